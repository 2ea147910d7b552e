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

func TestStepMetrics(t *testing.T) {
	m := StepMetrics([]RowStat{
		{Reward: 1, ResponseLen: 10, Turns: 2, PromptTokens: 30, CachedTokens: 15, Staleness: 1},
		{Reward: 0, ResponseLen: 20, Turns: 1, Truncated: true},
		{Reward: math.NaN(), ResponseLen: 60, Turns: 3},
	})
	for name, want := range map[string]float64{
		"rollout/raw_reward": 0.5, "rollout/response_len/mean": 30, "rollout/response_len/median": 20,
		"rollout/response_len/max": 60, "rollout/response_len/min": 10, "rollout/num_turn/mean": 2,
		"rollout/truncated_ratio": 1.0 / 3, "rollout/prefix_cache_hit_rate": 0.5, "rollout/staleness/max": 1,
	} {
		if got, ok := m[name]; !ok || math.Abs(got-want) > 1e-12 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if len(StepMetrics(nil)) != 0 {
		t.Error("metrics of no rows are not empty")
	}
}
