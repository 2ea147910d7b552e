package jinja

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestSemantics runs testdata/semantics.json: what jinja2 3.1.6 on Python 3.11, set up as
// transformers does, made of many small templates over one context.
func TestSemantics(t *testing.T) {
	raw, err := os.ReadFile("testdata/semantics.json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Context json.RawMessage
		Cases   []struct {
			Src string
			Out *string
			Err string
		}
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	vars := caseVars(t, table.Context)
	for _, c := range table.Cases {
		got, err := renderOnce(c.Src, vars)
		switch {
		case err != nil && strings.Contains(err.Error(), "InternalError"), err != nil && strings.Contains(err.Error(), "internal fault"):
			t.Errorf("%s\n  panicked: %v", c.Src, err)
		case c.Out == nil && err == nil:
			t.Errorf("%s\n  rendered %q, expected %s", c.Src, got, c.Err)
		case c.Out != nil && err != nil:
			t.Errorf("%s\n  %v, expected %q", c.Src, err, *c.Out)
		case c.Out != nil && got != *c.Out && !strings.Contains(*c.Out, " at 0x"):
			t.Errorf("%s\n  got  %q\n  want %q", c.Src, got, *c.Out)
		}
	}
	t.Logf("%d templates", len(table.Cases))
}

func renderOnce(src string, vars *Dict) (string, error) {
	t, err := Compile(src, Options{Now: fixedNow})
	if err != nil {
		return "", err
	}
	return t.Render(vars)
}
