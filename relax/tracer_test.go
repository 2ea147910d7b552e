package relax

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// A disk that does not write loses what the queue has no room for, and the warning says how many.
func TestTraceQueueIsBounded(t *testing.T) {
	t.Parallel()
	nodes := make([]observe.TraceNode, 100)
	var warnings []string
	dir := t.TempDir()
	tr := newTracer(dumpFiles{traces: dir}, func(text string) { warnings = append(warnings, text) })
	tr.room = 4 * len(nodes)
	for i := range 6 {
		if full := tr.full(); full != (i >= 4) {
			t.Errorf("full after %d documents: %v", i, full)
		}
		tr.put([]*observe.Trace{{Nodes: nodes}})
	}
	tr.drain()
	if len(warnings) != 1 || !strings.Contains(warnings[0], "2 lines of traces and dumps were not written") || tr.full() {
		t.Errorf("warnings %q, full %v", warnings, tr.full())
	}
	if traces := readTraces(t, Config{TraceDir: dir}, "rollout_none.jsonl"); len(traces) != 4 {
		t.Errorf("%d traces, want 4", len(traces))
	}
}

// A step with more traces than the queue takes at once loses none.
func TestTraceQueueMakesRoom(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	e := openEngine(t, cfg)
	e.core.traces.room = 1
	groups := make([]*group, 20)
	fill := func(g *group) {
		g.sessions = []*session{{group: g, trace: &observe.Trace{}}, {group: g, trace: &observe.Trace{}}}
	}
	for i := range groups {
		groups[i] = &group{leased: make(chan struct{}), rules: &e.core.train}
		fill(groups[i])
	}
	e.core.traceDelivered(groups, 3, nil)
	if traces := readTraces(t, cfg, "rollout_3.jsonl"); len(traces) != 2*len(groups) {
		t.Errorf("%d traces, want %d", len(traces), 2*len(groups))
	}
	// Nobody else writes when an engine was closed.
	closeEngine(t, e)
	for i, g := range groups {
		fill(g)
		e.core.groups[schedule.GroupID(i)] = g
	}
	e.core.traceRest()
	if traces := readTraces(t, cfg, "rollout_none.jsonl"); len(traces) != 2*len(groups) {
		t.Errorf("%d traces of a closed engine, want %d", len(traces), 2*len(groups))
	}
}

// What a Session had sampled that is run again between steps is in the next step's books, and so is
// its trace.
func TestTracesOfRetriesBetweenSteps(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	e := openEngine(t, cfg)
	g := &group{leased: make(chan struct{}), rules: &e.core.train}
	s := &session{group: g, trace: &observe.Trace{SessionID: "first try"}, ended: ending{reasonExit, "exit 1"}}
	if err := e.core.do(func() error { e.core.traceRetried(g, s); return nil }); err != nil {
		t.Fatal(err)
	}
	submit(t, e, task(agentTask{}))
	runStep(t, e, 3, nil)
	traces := readTraces(t, cfg, "rollout_3.jsonl")
	if len(traces) != 2 || traces[0].SessionID != "first try" || traces[0].Outcome.Reason != string(reasonRetried) {
		t.Errorf("traces = %+v", traces)
	}
	if files, err := os.ReadDir(cfg.TraceDir); err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
}

// A line that an earlier run could not finish costs no trace of this one.
func TestTracesBehindHalfALine(t *testing.T) {
	t.Parallel()
	var warnings []string
	dir := t.TempDir()
	tr := newTracer(dumpFiles{traces: dir}, func(text string) { warnings = append(warnings, text) })
	file := filepath.Join(dir, "rollout_none.jsonl")
	if err := os.WriteFile(file, []byte(`{"session_id":"a"}`+"\n"+`{"session_id":"b`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"c", "d"} {
		tr.put([]*observe.Trace{{SessionID: id}})
		tr.drain()
	}
	raw, err := os.ReadFile(file)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	if len(lines) != 4 || lines[1] != `{"session_id":"b` || !strings.HasPrefix(lines[2], `{"session_id":"c"`) || !strings.HasPrefix(lines[3], `{"session_id":"d"`) {
		t.Errorf("lines %q", lines)
	}
}

// An answer that is found lost while the trace is made is in its counts or not, but the counts agree.
// (The race detector watches the rest.)
func TestALateLostAnswer(t *testing.T) {
	t.Parallel()
	e, s := tracedSession(t, nil)
	out, fault := s.Complete(t.Context(), askFor("u", canon.Retry{}))
	if fault != nil {
		t.Fatal(fault)
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		s.Undelivered(out)
	}()
	s.conclude(observe.Process{}, false)
	<-told
	c := s.trace.Counts
	if c.SampledTokens == 0 || c.SampledTokens != c.UndeliveredTokens+c.UnexportedTokens || (c.Undelivered == 1) != (c.UndeliveredTokens > 0) {
		t.Errorf("counts = %+v", c)
	}
	closeEngine(t, e)
}
