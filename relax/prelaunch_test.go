package relax

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// Acceptance 2: the first requests of a Group are held until all of them are there.
func TestFirstRequestsAreHeldForTheBarrier(t *testing.T) {
	t.Parallel()
	e, _ := openIdle(t, func(c *Config) { c.NSamplesPerPrompt = 3 })
	var sessions []*session
	if err := e.core.do(func() error {
		for _, g := range e.core.groups {
			sessions = slices.Clone(g.sessions)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan *wire.Error, len(sessions))
	for i, s := range sessions {
		go func() {
			_, fault := s.Complete(context.Background(), askFor("u", canon.Retry{}))
			done <- fault
		}()
		if i < 2 {
			until(t, func() bool { return counts(e).Held == i+1 })
			if n := len(e.core.simulator.Requests()); n != 0 || len(done) != 0 {
				t.Errorf("%d requests are at the backend, %d are answered", n, len(done))
			}
		}
	}
	for range sessions {
		if fault := <-done; fault != nil {
			t.Error(fault)
		}
	}
}

// Acceptance 2: prelaunched agents' first requests are held across a step.
func TestPrelaunchHoldsRequestsAcrossAStep(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	cfg.AgenticPrelaunch, cfg.AgenticConcurrency = true, 2
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{}), task(agentTask{}))
	r := runStep(t, e, 0, func(Event) {})
	until(t, func() bool { return counts(e).Ready == 1 })
	if a := r.report.Accounting.Groups; r.report.Groups != 1 || a.Started != 2 || a.Carried != 1 {
		t.Errorf("report = %+v", r.report)
	}
	if n := len(e.core.simulator.Requests()); n != 1 {
		t.Errorf("%d requests were at the backend, want that of the first step", n)
	}
	if s := readStats(t, e); s.Rollout != nil || s.Requests.Lease != 1 || findWait(t, e, "lease").Count != 1 {
		t.Errorf("stats = %+v", s)
	}
	r = runStep(t, e, 1, func(Event) {})
	if a := r.report.Accounting.Groups; r.report.Groups != 1 || a.CarriedIn != 1 {
		t.Errorf("report = %+v", r.report)
	}
	trace := readTraces(t, cfg, "rollout_1.jsonl")[0]
	if v := trace.Events; *trace.StartRolloutID != 1 || !(v.FirstRequest > 0 && v.FirstRequest < v.Lease) || trace.Turns[0].RolloutID != 1 {
		t.Errorf("trace = %+v", trace)
	}
}

// What happens between two steps is in the books, the logs and the traces of the later one.
func TestDropsBetweenStepsAreBooked(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	cfg.AgenticPrelaunch, cfg.AgenticConcurrency = true, 2
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{}), task(agentTask{Mode: "await"}))
	runStep(t, e, 0, func(Event) {})
	until(t, func() bool { return counts(e).Preparing == 1 })
	if err := os.WriteFile(filepath.Join(cfg.AgentCwd, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return counts(e).Resident == 0 })
	submit(t, e, task(agentTask{}))
	r := runStep(t, e, 1, func(Event) {})
	if a := r.report.Accounting; r.report.Groups != 1 || a.Groups.CarriedIn != 1 || a.Groups.Dropped != 1 || a.Sessions.Dropped != 1 {
		t.Errorf("report = %+v", r.report)
	}
	if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != string(reasonExit) || !strings.Contains(r.report.Drops[0].First, "code 7") {
		t.Errorf("drops = %+v", r.report.Drops)
	}
	if !slices.ContainsFunc(r.logs, func(l string) bool { return strings.Contains(l, "Dropped 1 group") }) {
		t.Errorf("logs = %q", r.logs)
	}
	var reasons []string
	for _, trace := range readTraces(t, cfg, "rollout_1.jsonl") {
		reasons = append(reasons, trace.Outcome.Reason)
	}
	if slices.Sort(reasons); !slices.Equal(reasons, []string{"", string(reasonExit)}) {
		t.Errorf("traces of outcomes %q", reasons)
	}
}

// A failed Session is run again with a new id in its Group; its tokens are dropped as retried.
func TestFailedSessionsAreRunAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, mode, reason string
		alter              func(*Config)
	}{
		{"after an exit code", "flaky", "code 6", nil},
		// On a slow machine a good run may come too late as well, and is replaced again.
		{"after its time limit", "flakyhang", "agent_timeout", func(c *Config) { c.AgentTimeout, c.AgentRetries = 1, 1000 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := traced(t)
			cfg.AgentRetries, cfg.MaxConsecutiveDroppedGroups = 1, 1
			if tt.alter != nil {
				tt.alter(&cfg)
			}
			e := openEngine(t, cfg)
			submit(t, e, task(agentTask{Mode: tt.mode}))
			r := runStep(t, e, 0, nil)
			if a := r.report.Accounting; r.report.Groups != 1 || r.report.Retries < 1 || a.Sessions.Started != 1 || a.Groups.Dropped != 0 {
				t.Errorf("report = %+v", r.report)
			}
			drops := r.report.Drops
			if len(drops) != 1 || drops[0].Reason != string(reasonRetried) || drops[0].Tokens == 0 || drops[0].Groups != 0 || !strings.Contains(drops[0].First, tt.reason) {
				t.Errorf("drops = %+v", drops)
			}
			ids := map[string]bool{}
			for i, trace := range readTraces(t, cfg, "rollout_0.jsonl") {
				ids[trace.SessionID] = true
				if want := map[bool]string{true: string(reasonRetried)}[i < r.report.Retries]; trace.Outcome.Reason != want {
					t.Errorf("trace %d: outcome %+v, want %q", i, trace.Outcome, want)
				}
			}
			if len(ids) != 1+r.report.Retries {
				t.Errorf("%d sessions have traces, want %d", len(ids), 1+r.report.Retries)
			}
		})
	}
}

// A Session that fails more often than agent_retries allow drops its Group.
func TestRetriesEnd(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.AgentRetries, cfg.MaxConsecutiveDroppedGroups = 2, 1
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{Mode: "lateexit"}))
	r := runStep(t, e, 0, nil)
	if r.report.Retries != 2 || !strings.Contains(r.report.Error, "code 6") || r.report.Accounting.Groups.Dropped != 1 || len(r.report.Drops) != 2 {
		t.Errorf("report = %+v", r.report)
	}
}

// Acceptance 18: one close_session for each ended Session, none for a parked one.
func TestSessionLifecycle(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, func(c *Config) { c.AgenticSessionLifecycle = true })
	submit(t, e, asking("long", agentTask{}), asking("short", agentTask{}))
	runStep(t, e, 0, nil)
	until(t, func() bool { return len(e.core.simulator.ClosedSessions()) == 1 })
	closed := e.core.simulator.ClosedSessions()
	var parked string
	if err := e.core.do(func() error {
		for _, g := range e.core.groups {
			parked = g.sessions[0].id
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if parked == "" || closed[0] == parked {
		t.Errorf("closed %v, parked %s", closed, parked)
	}
	p.set(0, 0)
	runStep(t, e, 1, func(Event) {})
	until(t, func() bool { return len(e.core.simulator.ClosedSessions()) == 2 })
	if closed := e.core.simulator.ClosedSessions(); closed[1] != parked {
		t.Errorf("closed %v, want %s last", closed, parked)
	}
	for _, record := range e.core.simulator.Requests() {
		if record.Request.SessionID == "" {
			t.Error("a request has no session_id")
		}
	}
}
