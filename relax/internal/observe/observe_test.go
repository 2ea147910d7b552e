package observe

import (
	"encoding/json"
	"math"
	"testing"
)

func TestLine(t *testing.T) {
	l := Event("ROLLOUT", "accounting_end", F("rollout", 0), F("groups", 4), F("debt", 0))
	if want := "AGENTIC ROLLOUT event=accounting_end rollout=0 groups=4 debt=0"; l.String() != want {
		t.Errorf("line = %q, want %q", l, want)
	}
	want := `{"level":"INFO","component":"ROLLOUT","event":"accounting_end","rollout":0,"groups":4,"debt":0,` +
		`"line":"AGENTIC ROLLOUT event=accounting_end rollout=0 groups=4 debt=0"}`
	if got := string(l.AppendJSON(nil)); got != want {
		t.Errorf("json = %s\nwant  %s", got, want)
	}
}

func TestStatusSurvivesWhatJSONCannotSay(t *testing.T) {
	out := Status(Warning, "odd", F("x", math.NaN())).AppendJSON(nil)
	if !json.Valid(out) {
		t.Errorf("not JSON: %s", out)
	}
}

// Agents print colours, and causes quote what they print.
func TestLinesAreWithoutTerminalCodes(t *testing.T) {
	l := Status(Error, "Dropped 1 group", F("cause", "log tail:\n\x1b[31mred\x1b[0m\ttab\r\a\x7f"))
	if want := "AGENTIC Dropped 1 group cause=log tail:\n[31mred[0m\ttab"; l.String() != want {
		t.Errorf("line = %q, want %q", l, want)
	}
}
