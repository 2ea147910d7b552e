package relax

import "testing"

// The second request waits for the only permit behind the first, which the simulator holds.
func TestAPermitIsWaitedFor(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NSamplesPerPrompt, cfg.SGLangServerConcurrency, cfg.RolloutNumGPUs = 2, 1, 1
	e := openEngine(t, cfg)
	if err := e.core.simulator.Pause("in_place"); err != nil {
		t.Fatal(err)
	}
	submit(t, e, task(agentTask{}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		w := findWait(t, e, "permit")
		return w.Count == 1 && w.OldestSeconds > 0 && findWait(t, e, "backend").Count == 2
	})
	e.core.simulator.Continue()
	if r := finishStep(t, e, nil); r.report.Groups != 1 {
		t.Errorf("report %+v", r.report)
	}
	if w := findWait(t, e, "permit"); w.Count != 0 {
		t.Errorf("waits for a permit at the end: %+v", w)
	}
}
