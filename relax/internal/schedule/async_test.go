package schedule

import (
	"strings"
	"testing"
	"time"
)

func asyncConfig() Config {
	cfg := solo(2, 2)
	cfg.FullyAsync, cfg.NumRollout, cfg.MaxStaleness = true, 3, 1
	return cfg
}

// begun is a fully-async run whose first step works on two Groups, each with a request at the
// backend.
func begun(t *testing.T, cfg Config) *Machine {
	t.Helper()
	m := New(cfg)
	m.QueueTasks(t0, 9)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12)
	return m
}

func TestAsyncStepLeavesWhatParkedGroupsCover(t *testing.T) {
	m := begun(t, asyncConfig())
	finished(m, 1)
	check(t, "a pause", m.Pause(t0), "Abort12")
	check(t, "the rest is parked", m.RequestReturned(t0, 12, Aborted), "EndStep debt=1 failed=false Quiet")
	check(t, "the next step goes on with it", open(t, m, 1), "StartGroup3")
	check(t, "after the pause", m.Resume(t0), "Pass12")
	check(t, "the older partition is paid first", finished(m, 2), "Score2 StartGroup4 Deliver2 Forget2 EndPartition0 groups=2 debt=0")
	arrive(m, 3, 13)
	finished(m, 3)
	arrive(m, 4, 14)
	check(t, "then its own", finished(m, 4), "Score4 Deliver4→1 Forget4 EndPartition1 groups=2 debt=0 EndStep debt=0 failed=false")
	open(t, m, 2)
	if c := m.Counts(); !c.Stale || c.Oldest != 0 || c.TrainOpen {
		t.Errorf("partition 0 was not taken, but the step does not wait for it: %+v", c)
	}
	check(t, "a barrier", arrive(m, 5, 15), "")
	check(t, "the trainer takes it", m.Consumed(t0, 0), "Lease5 Pass15")
}

func TestAgentsInsideToolsAreNoCredit(t *testing.T) {
	m := begun(t, asyncConfig())
	finished(m, 1)
	m.RequestReturned(t0, 12, Answered)
	check(t, "nothing is parked", m.Pause(t0), "Quiet")
	m.Resume(t0)
	m.RequestArrived(t0, ref(2, 0), 22, 0)
	m.Pause(t0)
	check(t, "it was not at the backend", m.RequestReturned(t0, 22, Withdrawn), "Quiet")
	m.Resume(t0)
	m.Pause(t0)
	check(t, "it was", m.RequestReturned(t0, 22, Aborted), "EndStep debt=1 failed=false Quiet")
	check(t, "parked in another step", open(t, m, 1), "StartGroup3")
}

func TestAsyncWithoutStalenessPaysEverything(t *testing.T) {
	cfg := asyncConfig()
	cfg.MaxStaleness = 0
	m := begun(t, cfg)
	finished(m, 1)
	m.Pause(t0)
	check(t, "parked, but owed", m.RequestReturned(t0, 12, Aborted), "Quiet")
}

func TestFinalBackfill(t *testing.T) {
	cfg := asyncConfig()
	cfg.OverSampling, cfg.Capacity, cfg.NumRollout = 4, 4, 1
	m := New(cfg)
	m.QueueTasks(t0, 9)
	open(t, m, 0)
	for g := 1; g <= 4; g++ {
		arrive(m, g, RequestID(10+g))
	}
	finished(m, 1)
	m.Pause(t0)
	for id := RequestID(12); id <= 14; id++ {
		m.RequestReturned(t0, id, Aborted)
	}
	m.Resume(t0)
	check(t, "no partition, no over-sampling", open(t, m, 1), "Pass12 Pass13 Pass14")
	check(t, "it keeps nothing", finished(m, 3), "Score3 Deliver3 Forget3 EndPartition0 groups=2 debt=0 Drop2:step_end Drop4:step_end")
	m.SessionFailed(t0, ref(2, 0), "agent_exit", "killed")
	check(t, "the end", m.SessionFailed(t0, ref(4, 0), "agent_exit", "killed"), "Forget4 EndStep debt=0 failed=false")
	if _, err := m.Open(t0, 2); err == nil || !strings.Contains(err.Error(), "num_rollout (1)") {
		t.Errorf("a rollout behind the last one: %v", err)
	}
}

func TestPartitionThatOwesIsNotPushedOut(t *testing.T) {
	cfg := asyncConfig()
	cfg.MaxConsecutiveDropped = 1
	m := begun(t, cfg)
	m.Pause(t0)
	m.RequestReturned(t0, 11, Aborted)
	check(t, "all is parked", m.RequestReturned(t0, 12, Aborted), "EndStep debt=2 failed=false Quiet")
	m.Resume(t0)
	open(t, m, 1)
	m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1")
	check(t, "the step fails", m.RequestReturned(t0, 12, Aborted), "EndStep debt=4 failed=true")
	if _, err := m.Open(t0, 2); err == nil || !strings.Contains(err.Error(), "partition 0 still owes 2 groups") ||
		!strings.Contains(err.Error(), "open rollout 1 again") {
		t.Errorf("rollout 2: %v", err)
	}
	check(t, "another try", open(t, m, 1), "StartGroup3 Pass12")
}

func TestTasksRunOutInAnAsyncRun(t *testing.T) {
	m := New(asyncConfig())
	open(t, m, 0)
	m.LastTasks(t0, 1)
	arrive(m, 1, 11)
	check(t, "nothing can pay the rest", finished(m, 1), "Score1 Deliver1 Forget1 EndPartition0 groups=1 debt=1 EndStep debt=1 failed=false")
	for rollout := range int64(2) {
		open(t, m, 1+rollout)
		if m.Counts().Stale {
			t.Fatalf("rollout %d waits until the trainer takes what it can never have", 1+rollout)
		}
		m.LastTasks(t0, 0)
	}
}

func TestConsumedTooEarly(t *testing.T) {
	m := New(asyncConfig())
	if err := m.CheckConsumed(41); err != nil {
		t.Errorf("of an earlier run: %v", err)
	}
	open(t, m, 0)
	for partition, want := range map[int64]string{-1: "", 0: "owes 2 groups", 1: "no rollout has opened it"} {
		err := m.CheckConsumed(partition)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("partition %d: %v, want %q", partition, err, want)
		}
	}
	if err := New(solo(1, 1)).CheckConsumed(0); err != nil {
		t.Errorf("without fully_async: %v", err)
	}
}

func TestEvalRunsItsDatasetsOneByOne(t *testing.T) {
	cfg := solo(1, 1)
	cfg.EvalCapacity = 1
	m := New(cfg)
	actions, err := m.OpenEval(t0, 5, []EvalDataset{{"a", 2, 2}, {"none", 0, 3}, {"b", 1, 1}})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "each sample is a Group", actions, "StartEval1:0.0.0×1 StartEval2:0.0.1×1")
	if _, err := m.Open(t0, 6); err == nil || !strings.Contains(err.Error(), "eval of rollout 5") {
		t.Errorf("a train step in an eval: %v", err)
	}
	check(t, "no sibling is waited for", arrive(m, 1, 11), "Lease1 Pass11")
	check(t, "a drop is not refilled", m.SessionFailed(t0, ref(2, 0), "agent_exit", "exit 1"), "Drop2:agent_exit Forget2 StartEval3:0.1.0×1")
	check(t, "credit", m.SessionExported(t0, ref(1, 0)), "Score1 StartEval4:0.1.1×1")
	check(t, "late", m.GroupScored(t0, 1), "Deliver1→5 Forget1")
	m.SessionFailed(t0, ref(3, 0), "agent_exit", "exit 1")
	check(t, "the last of a dataset", m.SessionFailed(t0, ref(4, 0), "agent_exit", "exit 1"),
		"Drop4:agent_exit Forget4 EndDataset0 +1 -3 EndDataset1 +0 -0 StartEval5:2.0.0×1")
	arrive(m, 5, 15)
	check(t, "the end", finished(m, 5), "Score5 Deliver5→5 Forget5 EndDataset2 +1 -0 EndStep debt=0 failed=false")
}

func TestGroupRMEvalsWholePrompts(t *testing.T) {
	cfg := solo(1, 2) // T = 2
	cfg.GroupRM = true
	m := New(cfg)
	actions, _ := m.OpenEval(t0, 0, []EvalDataset{{"a", 2, 2}})
	check(t, "C_d = ceil(2/2)", actions, "StartEval1:0.0.0×2")
	m.SessionRequested(t0, ref(1, 0))
	check(t, "the barrier", m.SessionRequested(t0, ref(1, 1)), "Lease1")
	check(t, "one fails", m.SessionFailed(t0, ref(1, 1), "agent_exit", "exit 1"), "Drop1:agent_exit")
	check(t, "the next prompt", m.SessionFailed(t0, ref(1, 0), "agent_exit", "killed"), "Forget1 StartEval2:0.1.0×2")
}

func TestTrainGateIsShutInAnEval(t *testing.T) {
	cfg := solo(1, 2)
	cfg.PartialRollout = true
	m := New(cfg)
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12)
	finished(m, 1)
	m.RequestReturned(t0, 12, Aborted)
	if at := m.Deadline(); !at.IsZero() {
		t.Errorf("a budget runs between steps, until %v", at)
	}
	_, err := m.OpenEval(t0, 0, []EvalDataset{{"a", 1, 1}})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "train waits", m.RequestArrived(t0, ref(2, 0), 22, 0), "")
	check(t, "eval does not", arrive(m, 3, 13), "Lease3 Pass13")
	check(t, "but for a pause", m.Pause(t0), "Abort13")
	check(t, "it is taken back too", m.RequestReturned(t0, 13, Aborted), "Quiet")
	check(t, "resume", m.Resume(t0.Add(time.Minute)), "Pass13")
}

func TestTasksThatComeAfterAllReopenTheStep(t *testing.T) {
	m := New(asyncConfig())
	m.QueueTasks(t0, 1)
	open(t, m, 0)
	m.LastTasks(t0, 0)
	check(t, "the last one dies", m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1"),
		"Drop1:agent_exit Forget1 EndPartition0 groups=0 debt=2 EndStep debt=2 failed=false")

	cfg := asyncConfig()
	cfg.GroupSize = 2
	m = New(cfg)
	m.QueueTasks(t0, 1)
	open(t, m, 0)
	m.LastTasks(t0, 0)
	check(t, "one of two dies", m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1"), "Drop1:agent_exit")
	check(t, "tasks while the other is killed", m.QueueTasks(t0, 2), "StartGroup2")
	check(t, "the step goes on", m.SessionFailed(t0, ref(1, 1), "agent_exit", "killed"), "Forget1 StartGroup3")
}
