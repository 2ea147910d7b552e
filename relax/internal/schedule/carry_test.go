package schedule

import (
	"testing"
	"time"
)

// solo is a configuration of Groups of one Session.
func solo(batch, over int) Config {
	cfg := testConfig()
	cfg.GroupSize, cfg.BatchSize, cfg.OverSampling, cfg.Capacity = 1, batch, over, over
	return cfg
}

func arrive(m *Machine, g int, id RequestID) []Action { return m.RequestArrived(t0, ref(g, 0), id, 0) }

// finished brings a leased Group of one Session to its credit.
func finished(m *Machine, g int) []Action {
	return append(m.SessionExported(t0, ref(g, 0)), m.GroupScored(t0, GroupID(g))...)
}

func TestDefaultModeKeepsNothing(t *testing.T) {
	m := New(solo(1, 3))
	m.QueueTasks(t0, 3)
	check(t, "open", open(t, m, 0), "StartGroup1 StartGroup2 StartGroup3")
	check(t, "one asks", arrive(m, 1, 11), "Lease1 Pass11")
	check(t, "two asks", arrive(m, 2, 12), "Lease2 Pass12")
	check(t, "the first is finished", finished(m, 1), "Score1 Deliver1 Forget1 Drop2:step_end Drop3:step_end")
	check(t, "what runs is waited for", m.SessionFailed(t0, ref(2, 0), "agent_exit", "killed"), "Forget2")
	check(t, "the last one", m.SessionFailed(t0, ref(3, 0), "agent_exit", "killed"), "Forget3 EndStep debt=0 failed=false")
}

func TestFinishedSurplusIsDroppedWithItsReason(t *testing.T) {
	m := New(solo(1, 2))
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12)
	m.SessionExported(t0, ref(1, 0))
	m.SessionExported(t0, ref(2, 0))
	check(t, "credit of the first", m.GroupScored(t0, 2), "Deliver2 Forget2 Drop1:step_end Forget1 EndStep debt=0 failed=false")
}

func TestPartialRolloutParksAndCarries(t *testing.T) {
	cfg := solo(1, 4)
	cfg.PartialRollout = true
	m := New(cfg)
	m.QueueTasks(t0, 4)
	open(t, m, 0)
	for g := 1; g <= 3; g++ {
		arrive(m, g, RequestID(10+g))
	}
	m.SessionExported(t0, ref(3, 0))
	check(t, "what is at the backend is taken back", finished(m, 1), "Score1 Deliver1 Forget1 Abort12")
	check(t, "a new request waits", m.RequestArrived(t0, ref(2, 0), 22, 0), "")
	check(t, "credit comes late", m.GroupScored(t0, 3), "")
	end := m.RequestReturned(t0, 12, Aborted)
	check(t, "and parked", end, "EndStep debt=0 failed=false")
	books := end[0].(EndStep).Books
	if want := (Balance{Started: 4, Delivered: 1, Carried: 3}); books.Groups != want || books.Sessions != want {
		t.Errorf("books %+v, want %+v", books, want)
	}
	check(t, "a barrier between steps", arrive(m, 4, 14), "")
	// Finished ones pay first, then those that run, then what is ready.
	next := open(t, m, 1)
	check(t, "the next step is paid at once", next, "Deliver3→1 Forget3 EndStep debt=0 failed=false")
	if want := (Balance{Inherited: 3, Delivered: 1, Carried: 2}); next[2].(EndStep).Books.Groups != want {
		t.Errorf("books %+v, want %+v", next[2].(EndStep).Books.Groups, want)
	}
	check(t, "then requests go on in their order, and the ready Group has its lease", open(t, m, 2), "Lease4 NeedTasks2 Pass22 Pass12 Pass14")
}

func TestCarriedGroupThatDiesBetweenSteps(t *testing.T) {
	cfg := solo(1, 2)
	cfg.PartialRollout = true
	m := New(cfg)
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12)
	finished(m, 1)
	m.RequestReturned(t0, 12, Withdrawn)
	check(t, "between steps", m.SessionFailed(t0, ref(2, 0), "agent_exit", "exit 1"), "Drop2:agent_exit Forget2")
	check(t, "the next step makes up for it", open(t, m, 1), "NeedTasks2")
	if got := m.books.Groups; got != (Balance{Inherited: 1, Dropped: 1}) {
		t.Errorf("books %+v", got)
	}
}

func TestProtection(t *testing.T) {
	cfg := solo(1, 2)
	cfg.PartialRollout, cfg.MaxAborted = true, 2
	m := New(cfg)
	m.QueueTasks(t0, 9)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12)
	check(t, "a foreign abort is continued", m.RequestReturned(t0, 12, Aborted), "Pass12")
	check(t, "step end", finished(m, 1), "Score1 Deliver1 Forget1 Abort12")
	m.RequestReturned(t0, 12, Aborted)
	check(t, "the second abort protects", open(t, m, 1), "StartGroup3 Pass12")
	if m.Counts().Protected != 1 {
		t.Errorf("counts %+v", m.Counts())
	}
	arrive(m, 3, 13)
	check(t, "the step waits for it", finished(m, 3), "Score3 Deliver3→1 Forget3")
	check(t, "a pause leaves it alone", m.Pause(t0), "")
	check(t, "its later requests too", m.RequestReturned(t0, 12, Answered), "")
	check(t, "they ignore the gate", m.RequestArrived(t0, ref(2, 0), 22, 0), "Pass22")
	if at := m.Deadline(); at.IsZero() {
		t.Error("the budget of a protected session stands still")
	}
	check(t, "its end ends the step and the pause's wait", m.SessionExported(t0, ref(2, 0)), "Score2 EndStep debt=0 failed=false Quiet")
}

func TestPrelaunch(t *testing.T) {
	cfg := solo(1, 1)
	cfg.Capacity, cfg.Prelaunch, cfg.NumRollout = 3, true, 2
	m := New(cfg)
	check(t, "before the first step", m.QueueTasks(t0, 1), "")
	check(t, "all capacity is used", open(t, m, 0), "StartGroup1 NeedTasks2")
	check(t, "early", m.QueueTasks(t0, 5), "StartGroup2 StartGroup3")
	check(t, "the first asks", arrive(m, 2, 12), "Lease2 Pass12")
	check(t, "others are held", arrive(m, 1, 11), "")
	check(t, "a finished Group makes room", m.SessionExported(t0, ref(2, 0)), "Score2 StartGroup4")
	check(t, "they stay", m.GroupScored(t0, 2), "Deliver2 Forget2 EndStep debt=0 failed=false")
	check(t, "one dies between steps", m.SessionFailed(t0, ref(4, 0), "agent_exit", "exit 1"), "Drop4:agent_exit Forget4 StartGroup5")
	check(t, "the last step has no next one", open(t, m, 1), "Lease1 Pass11")
	check(t, "nothing stays behind it", finished(m, 1), "Score1 Deliver1→1 Forget1 Drop3:step_end Drop5:step_end")
}

func TestGap(t *testing.T) {
	for _, row := range []struct {
		final bool
		want  int
	}{{false, 3}, {true, 1}} { // cases L4 and L5
		cfg := solo(4, 6)
		cfg.FullyAsync, cfg.NumRollout = true, 7
		m := New(cfg)
		rollout := int64(0)
		if row.final {
			rollout = 7
		}
		m.step = &step{rollout: rollout}
		m.partitions = []*partition{{target: 4, accepted: 1}}
		m.count.train.running, m.count.train.finalized = 1, 1
		if got := m.gap(); got != row.want {
			t.Errorf("final %t: gap %d, want %d", row.final, got, row.want)
		}
	}
}

func TestDynamicBatch(t *testing.T) {
	cfg := solo(2, 5)
	cfg.PartialRollout, cfg.DynamicBatch, cfg.DataParallel = true, true, 2
	m := New(cfg)
	m.QueueTasks(t0, 6)
	open(t, m, 0)
	for g := 1; g <= 5; g++ {
		arrive(m, g, RequestID(10+g))
	}
	for g := 1; g <= 4; g++ {
		m.SessionExported(t0, ref(g, 0))
	}
	m.GroupScored(t0, 1)
	check(t, "the batch is there", m.GroupScored(t0, 2), "Deliver2 Forget2 Abort15")
	check(t, "surplus", m.GroupScored(t0, 3), "")
	check(t, "more surplus", m.GroupScored(t0, 4), "")
	check(t, "and a third", m.SessionExported(t0, ref(5, 0)), "Score5 Deliver3 Forget3 Deliver4 Forget4 EndStep debt=0 failed=false")
	check(t, "the third is carried", m.GroupScored(t0, 5), "")
}

func TestPauseInAStep(t *testing.T) {
	m := New(solo(2, 2))
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12)
	check(t, "pause", m.Pause(t0), "Abort11 Abort12")
	check(t, "again", m.Pause(t0), "")
	check(t, "one had not left", m.RequestReturned(t0, 11, Withdrawn), "")
	check(t, "one comes back", m.RequestReturned(t0, 12, Aborted), "Quiet")
	check(t, "late, and foreign", m.RequestReturned(t0, 99, Aborted), "")
	check(t, "nothing is let through", m.RequestArrived(t0, ref(1, 0), 21, 0), "")
	check(t, "a pause of a pause is quiet", m.Pause(t0), "Quiet")
	check(t, "resume", m.Resume(t0.Add(time.Hour)), "Pass11 Pass12 Pass21")
}

func TestPermits(t *testing.T) {
	cfg := solo(3, 3)
	cfg.Permits = 2
	m := New(cfg)
	m.QueueTasks(t0, 3)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12)
	check(t, "no permit is left", arrive(m, 3, 13), "Lease3")
	check(t, "behind it", m.RequestArrived(t0, ref(1, 0), 21, 0), "")
	check(t, "its client leaves while it waits", m.RequestReturned(t0, 13, Answered), "")
	check(t, "first come, first served", m.RequestReturned(t0, 12, Answered), "Pass21")
	check(t, "a foreign abort goes to the end", m.RequestReturned(t0, 11, Aborted), "Pass11")
	check(t, "a Session's end frees its permits", m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1"), "Drop1:agent_exit Forget1 NeedTasks1")
	check(t, "so that others pass", m.RequestArrived(t0, ref(2, 0), 22, 0), "Pass22")
}
