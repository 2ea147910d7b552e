package relax

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// A weight update in the middle of a step: the backend aborts what it has and holds what comes; the
// step goes on with the new weights, and no token is lost.
func TestWeightUpdateDuringAStep(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutBatchSize, cfg.NSamplesPerPrompt = 2, 2
	cfg.Simulator = json.RawMessage(`{"token_delay_ms": 1, "policy": {"default": [{"text": "` + strings.Repeat("a long reply ", 30) + `"}]}}`)
	e := openEngine(t, cfg)
	setVersion(t, e, 1)
	submit(t, e, task(agentTask{}), task(agentTask{}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return e.core.simulator.InFlight() > 0 })
	if err := e.core.simulator.Pause("abort"); err != nil {
		t.Fatal(err)
	}
	e.core.simulator.SetWeightVersion("2")
	e.core.simulator.Continue()
	r := finishStep(t, e, nil)
	if r.report.Groups != 2 || len(r.report.Drops) != 0 {
		t.Errorf("report = %+v", r.report)
	}
	if v := View[int64](r.batch, "seg_weight_version"); !slices.Contains(v, 2) {
		t.Errorf("weight versions %v, want some of 2", v)
	}
	checkTokens(t, e, r.batch)
}

// A Pause stops an Eval as well, and it goes on from the tokens it has.
func TestPauseDuringAnEval(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, nil)
	dataset := EvalDataset{Name: "d", Tasks: []Task{asking("long", agentTask{})}}
	if err := e.StartEval(0, []EvalDataset{dataset}); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return p.held() == 1 })
	if err := e.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	if n := passed(e); n != 0 || p.held() != 0 {
		t.Errorf("%d requests were let through, %d hang in a pause", n, p.held())
	}
	if w := findWait(t, e, "gate"); w.Count != 1 || !strings.Contains(w.Owner, "Engine.Resume") {
		t.Errorf("waits = %+v", readStats(t, e).Waits)
	}
	p.set(0, 0)
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	r := finishStep(t, e, nil)
	if d := r.report.Datasets; len(d) != 1 || d[0].Delivered != 1 || View[int32](r.batch, "aborts")[0] != 1 {
		t.Errorf("report = %+v", r.report)
	}
	checkTokens(t, e, r.batch)
}

// With a group reward model the samples of a task are one Group, judged together.
func TestEvalWithGroupRewards(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.CustomRM, cfg.GroupRM = true, true
	e := openEngine(t, cfg)
	if err := e.StartEval(0, []EvalDataset{{Name: "d", NSamples: 3, Tasks: []Task{task(agentTask{})}}}); err != nil {
		t.Fatal(err)
	}
	r := finishStep(t, e, func(ev Event) {
		if err := e.Reply(ev.ID, []byte(`{"rewards": [1, 2, 3]}`)); err != nil {
			t.Error(err)
		}
	})
	if d := r.report.Datasets[0]; !slices.Equal(d.Rewards, []float64{1, 2, 3}) || r.report.Groups != 1 || r.report.Metrics["eval/d"] != 2 {
		t.Errorf("report = %+v", r.report)
	}
}

// Of a carried Group the Sessions that are done wait for the others; the Group is delivered whole.
func TestAHalfFinishedGroupIsCarried(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, func(c *Config) {
		c.NSamplesPerPrompt, c.AgentCommand = 2, `if [ ! -e first ] && (set -C; : > first) 2>/dev/null; then export RELAXTEST_SAY=long; fi; `+c.AgentCommand
	})
	submit(t, e, task(agentTask{}), task(agentTask{}))
	r := runStep(t, e, 0, nil)
	if a := r.report.Accounting; r.report.Groups != 1 || a.Sessions.Carried != 2 || a.Groups.Carried != 1 || r.report.InterruptedGroups != 1 {
		t.Fatalf("report = %+v", r.report)
	}
	until(t, func() bool { return e.core.launcher.Live() == 1 }) // its other agent has left
	p.set(0, 0)
	r = runStep(t, e, 1, func(Event) {})
	if r.report.Groups != 1 || r.report.Rows != 2 || len(partitionsOf(r.batch)) != 2 {
		t.Errorf("report = %+v", r.report)
	}
	aborts := View[int32](r.batch, "aborts")
	if slices.Sort(aborts); !slices.Equal(aborts, []int32{0, 1}) {
		t.Errorf("aborts = %v, want one parked session", aborts)
	}
	checkTokens(t, e, r.batch)
}
