package relax

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// numbered is a task with a number in its metadata.
func numbered(n int, a agentTask) Task {
	t := task(a)
	t.Metadata = append(fmt.Appendf(nil, `{"number": %d, "list": [1], "not": "2",`, n), t.Metadata[1:]...)
	return t
}

// A host that keeps something for each task lets go of what is not open any more: of the dropped and the delivered.
func TestOpenTasksAreThoseThatMayBeDelivered(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.AgenticPrelaunch, cfg.AgenticConcurrency = true, 2
	e := openEngine(t, cfg)
	open := func() []json.Number {
		t.Helper()
		var numbers []json.Number
		for _, metadata := range readStats(t, e).OpenTasks {
			numbers = append(numbers, metadata["number"])
			if _, is := metadata["turns"]; !is || len(metadata) != 3 {
				t.Errorf("%v, want number, turns and reward", metadata)
			}
		}
		return numbers
	}
	submit(t, e, numbered(1, agentTask{Mode: "exit"}), numbered(2, agentTask{}), numbered(3, agentTask{Mode: "silent"}))
	if r := runStep(t, e, 0, func(Event) {}); r.report.Groups != 1 {
		t.Errorf("report = %+v", r.report)
	}
	until(t, func() bool { return slices.Equal(open(), []json.Number{"3"}) }) // the first may exit a little later
	submit(t, e, numbered(4, agentTask{}), numbered(5, agentTask{}), numbered(6, agentTask{}))
	want := []json.Number{"3", "4", "5", "6"}
	if got := open(); !slices.Equal(got, want[:len(got)]) || len(got)+readStats(t, e).QueuedTasks != len(want) {
		t.Errorf("carried, and started of the new ones: %v", got)
	}
}

func TestNumbersOfAnyMetadata(t *testing.T) {
	for metadata, want := range map[string]map[string]json.Number{
		"": {}, "null": {}, "{}": {}, ` { "x" : -1.5e3 , "y":true, "z": [1] } `: {"x": "-1.5e3"},
	} {
		if got := numbersIn(json.RawMessage(metadata)); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", metadata, got, want)
		}
	}
}
