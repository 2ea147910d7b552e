package chat

import (
	"fmt"
	"strings"
	"testing"
)

// summary says in one line what was found out about a template.
func summary(f *Format) string {
	t := f.plain
	out := []string{t.plan.String()}
	if t.plan.CallsOnly {
		out[0] += "(calls only)"
	}
	for _, id := range f.stopIDs {
		out = append(out, f.TokenText(id))
	}
	d, p := t.dialect, t.traits
	for _, x := range []struct {
		on   bool
		name string
	}{
		{len(t.turnEnd.Shared) > 0, "shared"}, {d.ArgumentsText, "text"}, {d.ReasoningKey != "reasoning_content", d.ReasoningKey},
		{d.ContentParts, "parts"}, {d.NullContent, "null"}, {d.ShortIDs, "ids9"}, {d.ToolNames, "names"},
		{d.SystemAsUser, "sys→user"}, {d.MergeUsers, "merge"}, {!p.System, "-system"}, {!p.Tools, "-tools"}, {!p.Calls, "-calls"},
		{!p.Results, "-results"}, {!p.ParallelCalls, "-parallel"}, {!p.Reasoning, "-reasoning"}, {t.toolsOnly, "tools only"},
	} {
		if x.on {
			out = append(out, x.name)
		}
	}
	return strings.Join(out, " ")
}

// TestFixtureTemplates checks what is found out about every public template at start. Each line
// was compared with the template's text and with spec/parsers.md section 6.
func TestFixtureTemplates(t *testing.T) {
	for _, name := range templateNames(t) {
		if name == "lc__MiroThinker" {
			continue
		}
		want, known := summaries[name]
		if got := summary(fixtureFormat(t, name)); !known || got != want {
			t.Errorf("%s:\n got %q,\nwant %q", name, got, want)
		}
	}
	if n := len(templateNames(t)); n != len(summaries)+1 {
		t.Errorf("%d templates, %d are described", n, len(summaries))
	}
}

// TestRaisingTemplate: MiroThinker assigns to a message, which jinja2's sandbox refuses, too.
func TestRaisingTemplate(t *testing.T) {
	_, err := templated(t, "lc__MiroThinker", "<s>", "</s>")
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"lc__MiroThinker", "no way to go on after a response holds", "line 281", "cannot assign attribute 'tool_calls'"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: does not say %q", err, part)
		}
	}
}

// TestEveryScenarioIsSettled: a format that starts has no faults among its findings, and the
// report says of each scenario what came of it.
func TestEveryScenarioIsSettled(t *testing.T) {
	for _, name := range templateNames(t) {
		if name == "lc__MiroThinker" {
			continue
		}
		f := fixtureFormat(t, name)
		report, err := f.Report()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := report.Templates[0]
		if len(r.Checks) != len(scenarios()) {
			t.Errorf("%s: %d checks of %d scenarios", name, len(r.Checks), len(scenarios()))
		}
		for _, x := range f.findings[f.plain] {
			if x.Fault != "" {
				t.Errorf("%s: %s: %s", name, x.Scenario, x.Fault)
			}
		}
		for _, c := range r.Checks {
			if (c.Result == "ok") != (c.Detail == "") {
				t.Errorf("%s: %s: %s %q", name, c.Scenario, c.Result, c.Detail)
			}
		}
		if want := fmt.Sprint(f.plain.plan); r.Strategy != want || report.Terminator.ID != f.Terminator() {
			t.Errorf("%s: strategy %s, terminator %v", name, r.Strategy, report.Terminator)
		}
	}
}
