package relax

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// asyncEngine is partialEngine in fully-async mode: a rollout owes two Groups.
func asyncEngine(t *testing.T, numRollout int64) (*Engine, *paced) {
	t.Helper()
	return partialEngine(t, 10, func(c *Config) {
		c.PartialRollout, c.FullyAsync = false, true
		c.RolloutBatchSize, c.OverSamplingBatchSize, c.NumRollout, c.MaxStaleness = 2, 2, numRollout, 1
	})
}

// stepWithDebt runs a step in which the trainer pauses once one Group is delivered and the other,
// which hangs, owes. Then the step ends in debt.
func stepWithDebt(t *testing.T, e *Engine, p *paced, rollout int64) stepResult {
	t.Helper()
	if err := e.StartRollout(rollout); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return counts(e).Debt == 1 && p.held() == 1 })
	if err := e.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	r := finishStep(t, e, nil)
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	return r
}

func partitionsOf(b *Batch) []int64 { return View[int64](b, "partition") }

// Acceptance 9: a partition that a step leaves in debt is completed by the next one, each is complete
// exactly once, and the final backfill closes the last.
func TestFullyAsyncPartitions(t *testing.T) {
	t.Parallel()
	e, p := asyncEngine(t, 2)
	complete := map[int64]int{}
	check := func(r stepResult, rows []int64, reports ...PartitionReport) {
		t.Helper()
		if !slices.Equal(partitionsOf(r.batch), rows) {
			t.Errorf("rollout %d: rows of partitions %v, want %v", r.report.Rollout, partitionsOf(r.batch), rows)
		}
		if !slices.Equal(r.report.Partitions, reports) {
			t.Errorf("rollout %d: partitions %+v, want %+v", r.report.Rollout, r.report.Partitions, reports)
		}
		for _, part := range r.report.Partitions {
			if part.Complete {
				complete[part.ID]++
			}
		}
	}
	submit(t, e, asking("long", agentTask{}), asking("short", agentTask{}))
	r := stepWithDebt(t, e, p, 0)
	check(r, []int64{0}, PartitionReport{ID: 0, Groups: 1, Debt: 1})
	if r.report.Debt != 1 || r.report.InterruptedGroups != 1 || r.report.Accounting.Tokens.Carried != 10 {
		t.Errorf("report = %+v", r.report)
	}

	p.set(0, 0)
	submit(t, e, asking("short", agentTask{}))
	if err := e.StartRollout(1); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return counts(e).Debt == 1 }) // partition 0, and one Group of 1
	p.set(10, 0)
	submit(t, e, asking("long again", agentTask{}))
	until(t, func() bool { return p.held() == 1 })
	if err := e.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	r = finishStep(t, e, func(Event) {})
	check(r, []int64{0, 1}, PartitionReport{ID: 0, Groups: 1, Complete: true}, PartitionReport{ID: 1, Groups: 1, Debt: 1})
	// One Group began in the step before; one that began in this step may pay the older partition.
	if m := r.report.Metrics; m["rollout/staleness/min"] != 0 || m["rollout/staleness/max"] != 1 {
		t.Errorf("staleness from %v to %v", m["rollout/staleness/min"], m["rollout/staleness/max"])
	}
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}

	p.set(0, 0)
	r = runStep(t, e, 2, nil)
	check(r, []int64{1}, PartitionReport{ID: 1, Groups: 1, Complete: true})
	if m := r.report.Metrics; m["rollout/staleness/max"] != 1 {
		t.Errorf("staleness %v", m["rollout/staleness/max"])
	}
	if a := r.report.Accounting.Groups; r.report.Debt != 0 || a.Carried != 0 || a.CarriedIn != 1 || a.Started != 0 {
		t.Errorf("final backfill: %+v", r.report)
	}
	if !slices.ContainsFunc(r.logs, func(l string) bool { return strings.Contains(l, "final_backfill=true") }) {
		t.Errorf("no accounting_start of a final backfill in %q", r.logs)
	}
	if complete[0] != 1 || complete[1] != 1 {
		t.Errorf("partitions were complete so often: %v", complete)
	}
	if err := e.StartRollout(3); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "final backfill") {
		t.Errorf("a rollout after the final backfill: %v", err)
	}
}

// A step waits while the oldest partition that the trainer has not taken is too far behind, and says
// so.
func TestStepsWaitForTheTrainer(t *testing.T) {
	t.Parallel()
	e, p := asyncEngine(t, 9)
	p.set(0, 0)
	for step := range int64(2) {
		submit(t, e, asking("short", agentTask{}), asking("short", agentTask{}))
		if r := runStep(t, e, step, nil); !r.report.Partitions[0].Complete {
			t.Errorf("report = %+v", r.report)
		}
	}
	submit(t, e, asking("short", agentTask{}), asking("short", agentTask{}))
	if err := e.StartRollout(2); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return counts(e).Ready == 2 }) // they have asked, and get no lease
	if err := e.core.do(func() error { e.core.step.started = time.Now().Add(-time.Hour); return nil }); err != nil {
		t.Fatal(err)
	}
	if w := findWait(t, e, "consumed"); w.Count != 1 || w.OldestSeconds < 3600 || !strings.Contains(w.Owner, "partition 0") {
		t.Errorf("waits = %+v", readStats(t, e).Waits)
	}
	if s := readStats(t, e); s.Requests.Lease != 2 || s.Groups.Ready != 2 || s.Requests.Backend != 0 {
		t.Errorf("stats = %+v", s)
	}
	for partition, want := range map[int64]string{2: "owes 2 groups", 3: "no rollout"} {
		if err := e.Consumed(partition); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), want) {
			t.Errorf("consumed %d: %v, want %q", partition, err, want)
		}
	}
	if err := e.Consumed(0); err != nil {
		t.Fatal(err)
	}
	if r := finishStep(t, e, nil); r.report.Groups != 2 || !r.report.Partitions[0].Complete {
		t.Errorf("report = %+v", r.report)
	}
}

// A batch of a fully-async step that cannot be built leaves its partitions in debt, and the steps
// behind do not wait for the trainer to take them.
func TestAnAsyncBatchThatCannotBeBuilt(t *testing.T) {
	t.Parallel()
	full := true
	cfg := testConfig(t)
	cfg.FullyAsync, cfg.NumRollout, cfg.MaxStaleness = true, 9, 0
	e := openWith(t, cfg, &countingAllocator{before: func() error {
		if full {
			return errors.New("the disk of the memory is full")
		}
		return nil
	}})
	submit(t, e, task(agentTask{}))
	r := runStep(t, e, 0, nil)
	if r.report.Debt != 1 || !slices.Equal(r.report.Partitions, []PartitionReport{{ID: 0, Debt: 1, Short: true}}) {
		t.Errorf("report = %+v", r.report)
	}
	full = false
	submit(t, e, task(agentTask{}))
	if r := runStep(t, e, 1, nil); r.report.Groups != 1 || !r.report.Partitions[0].Complete {
		t.Errorf("report = %+v", r.report)
	}
}

// A partition that tasks ran out for is never waited for, and a warning says that it ends.
func TestAsyncTasksRunOut(t *testing.T) {
	t.Parallel()
	e, p := asyncEngine(t, 9)
	p.set(0, 0)
	submit(t, e, asking("short", agentTask{}))
	end := func(ev Event) {
		if err := e.Reply(ev.ID, []byte(`{"tasks": [], "end": true}`)); err != nil {
			t.Error(err)
		}
	}
	r := runStep(t, e, 0, end)
	if !slices.Equal(r.report.Partitions, []PartitionReport{{ID: 0, Groups: 1, Debt: 1, Short: true}}) {
		t.Errorf("report = %+v", r.report)
	}
	if !slices.ContainsFunc(r.logs, func(l string) bool { return strings.Contains(l, "missing_groups=1") }) {
		t.Errorf("no warning in %q", r.logs)
	}
	for step := range int64(3) {
		submit(t, e, asking("short", agentTask{}), asking("short", agentTask{}))
		if r := runStep(t, e, 1+step, nil); !r.report.Partitions[0].Complete {
			t.Errorf("report = %+v", r.report)
		}
		if err := e.Consumed(1 + step); err != nil {
			t.Error(err)
		}
	}
}

// A question about a carried Group stays open over a step end: the host may answer late.
func TestScoresOfCarriedGroupsCanComeBetweenSteps(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, func(c *Config) { c.CustomRM = true })
	p.set(10, 0)
	submit(t, e, asking("short", agentTask{Mode: "unscored"}), asking("long", agentTask{}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	ctx := waitContext(t)
	var open Event
	for open.Kind != EventScore {
		ev, err := e.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		open = ev
	}
	until(t, func() bool { return p.held() == 1 })
	p.release()
	r := finishStep(t, e, nil)
	if r.report.Accounting.Groups.Carried != 1 {
		t.Fatalf("report = %+v", r.report)
	}
	if err := e.Reply(open.ID, []byte(`{"rewards": [0.5]}`)); err != nil {
		t.Fatal(err)
	}
	if n := counts(e); n.Finalized != 1 {
		t.Errorf("counts = %+v", n)
	}
	r = runStep(t, e, 1, nil)
	if rewards := View[float64](r.batch, "reward"); r.report.Groups != 1 || rewards[0] != 0.5 || partitionsOf(r.batch)[0] != 1 {
		t.Errorf("rewards %v, report %+v", rewards, r.report)
	}
}

// Acceptance 6: active time runs neither in Prepare nor between steps.
func TestBudgetsStandStill(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, func(c *Config) { c.AgentFirstRequestTimeout = 3000 })
	deadline := func() (at time.Time) {
		if err := e.core.do(func() error { at = e.core.machine.Deadline(); return nil }); err != nil {
			t.Fatal(err)
		}
		return at
	}
	if !deadline().IsZero() {
		t.Error("a clock runs before anything started")
	}
	submit(t, e, asking("long", agentTask{}), asking("short", agentTask{}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	finishStep(t, e, nil)
	if n := counts(e); n.Running != 1 || !deadline().IsZero() {
		t.Errorf("%d Groups run, and a clock until %s", n.Running, deadline())
	}
	if err := e.StartRollout(1); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return p.held() == 1 })
	if left := time.Until(deadline()); left <= 0 || left > 1800*time.Second {
		t.Errorf("%s of the budget are left, want less than agent_timeout", left)
	}
	p.release()
	finishStep(t, e, func(Event) {})
}
