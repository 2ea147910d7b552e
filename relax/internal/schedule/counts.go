package schedule

import "time"

// Counts is a snapshot for stats.
type Counts struct {
	// Train Groups. Ready ones wait for a lease, Finalized ones for a partition that owes.
	Preparing, Ready, Running, Scoring, Finalized int
	// Resident Groups hold capacity: a process of them runs. Dying ones are over but for that.
	Resident, Dying int
	QueuedTasks     int
	// Eval Groups.
	EvalPreparing, EvalRunning, EvalScoring, EvalResident int
	// Debt is owed by the open step, or in a fully-async run by all open partitions.
	Debt int
	// Waiting requests wait for the gate or a permit, Held ones for a lease; Passed ones were let
	// through and are not back.
	Waiting, Held, Passed int
	// Protected Sessions ignore the gate; steps wait for them.
	Protected int
	// Paused: a Pause shut the gates. TrainOpen: the train gate is open.
	Paused, TrainOpen bool
	// Closing: the step waits for requests to come back and for dropped Groups to be gone.
	Closing bool
	// Stale: the step waits until the trainer has taken partition Oldest (max_staleness).
	Stale  bool
	Oldest int64
	// NotBefore is when the next Group may start after several died in Prepare, zero if at once.
	NotBefore time.Time
}

// Counts returns a snapshot.
func (m *Machine) Counts() Counts {
	t, e := &m.count.train, &m.count.eval
	c := Counts{
		Preparing: t.preparing, Ready: t.ready, Running: t.running, Scoring: t.scoring, Finalized: t.finalized,
		Resident: t.resident, Dying: t.dying, QueuedTasks: m.queued,
		EvalPreparing: e.preparing, EvalRunning: e.ready + e.running, EvalScoring: e.scoring, EvalResident: e.resident,
		Debt: m.debt(), Passed: m.passed, Protected: m.protected, Paused: m.paused, TrainOpen: m.trainOpen,
		Closing: m.step != nil && m.step.closing, Stale: m.stale(), NotBefore: m.notBefore,
	}
	for _, r := range m.requests {
		switch r.state {
		case waiting:
			c.Waiting++
		case held:
			c.Held++
		}
	}
	c.Oldest, _ = m.oldestOpen()
	return c
}
