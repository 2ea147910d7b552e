// Package schedule decides which Groups start, run, are carried over, dropped and delivered,
// and which model requests may be at the backend. It is a state machine without I/O: it takes
// events and returns actions.
//
// What may enter: counts, ids, and the time of each event. What it never does: read a
// clock, start a process, touch tokens, or know what a task says.
//
// The life of a Group:
//
//	task ─ StartGroup ─▶ preparing ─ every Session has asked ─▶ ready ─ Lease ─▶ running
//	                                     (the barrier)                             │
//	         holds resident capacity ◀─────────────────────────────────────────────┤
//	         holds none                                    every Session exported  ▼
//	delivered ◀─ Deliver, a partition owes ─ finalized ◀─ GroupScored ─ Score ─ scoring
//
//	From every state before delivered a Group can be dropped, with a reason. It is forgotten
//	(Forget) when it is delivered or dropped and no process of it runs any more.
//
// A train step opens a partition that owes rollout_batch_size Groups. The machine starts
// Groups while capacity and demand allow, leases ready ones in order of their barriers, and
// closes the step when nothing is owed, no more tasks will come, or too many Groups in a row
// were dropped. Closing shuts the train gate: requests at the backend are aborted and parked.
// Then Groups are either dropped (default mode) or carried into the next step (partial
// rollout, fully async; with prelaunch those that have no lease yet). Fully async steps may
// also close while the partition owes, if Groups whose requests a pause has parked cover the
// debt; the next step pays it first. An Eval is a step of its own: its Groups are not refilled
// and do not wait for the train gate.
//
// The rules follow the guide's "Configure Runtime Behavior" and "Runtime Scheduling" and
// sections 1, 2 and 4 of the reference pipeline.
package schedule

import (
	"time"
)

// GroupID numbers Groups of a run from 1.
type GroupID int64

// A SessionRef names a Session by its Group and its place in it.
type SessionRef struct {
	Group GroupID
	Seq   int
}

// A Reason is a short stable word for why a Group was dropped.
type Reason string

// Reasons the machine gives itself. Callers add theirs through SessionFailed and GroupFailed.
const (
	ReasonFirstRequest Reason = "first_request_timeout"
	ReasonAgentTimeout Reason = "agent_timeout"
	// ReasonEarlyExit: a Session ended well before its Group had a lease.
	ReasonEarlyExit Reason = "left_before_lease"
	// ReasonStepEnd: the Group was unfinished when its step closed and is not carried over.
	ReasonStepEnd Reason = "step_end"
	// ReasonSurplus: the Group was finished, but nothing owed it when the step closed.
	ReasonSurplus Reason = "surplus"
)

// A Machine schedules the Groups of one engine. It is not safe for concurrent use.
//
// Events are its methods; each returns the actions that follow from it, in order. An event of
// a Group, Session or request that is over is ignored: such events may be late, repeated, or
// cross an action on their way.
type Machine struct {
	cfg     Config
	actions []Action

	nextID GroupID
	groups map[GroupID]*group // that are not forgotten
	order  []*group           // the same, oldest first, with forgotten ones in between
	ready  []*group           // train Groups behind the barrier, oldest barrier first
	final  []*group           // finalized train Groups, oldest first
	count  tally

	queued     int       // train tasks waiting
	prepFailed int       // Groups in a row that died before their barrier
	notBefore  time.Time // no train Group starts before, after such deaths

	step        *step
	opened      bool  // a train step was opened once
	lastRollout int64 // of the newest train step
	partitions  []*partition
	unconsumed  []int64 // complete partitions the trainer has not taken, oldest first
	books       Books   // train Groups since the last step end
	evalSlots   int     // the largest E_d seen so far
	evalSlotsOf string  // how it came about, for messages

	paused    bool
	pausing   bool // a Pause waits for its Quiet
	trainOpen bool // the train gate; see gate.go
	evalOpen  bool
	requests  map[RequestID]*request
	arrivals  uint64
	passed    int // requests that were let through and are not back
	gated     queue
	free      queue // of protected Sessions: no gate
	eval      queue
	protected int // live protected Sessions

	timers  timers
	stopped int // timers that were stopped since stale ones were thrown away
}

// tally counts Groups, so that no decision has to look at all of them.
type tally struct {
	train, eval struct {
		resident  int // some process runs
		dying     int // resident, but over
		preparing int
		ready     int
		running   int
		scoring   int
		finalized int
	}
}

// New returns a machine with no step open. The configuration must pass [Validate].
func New(cfg Config) *Machine {
	return &Machine{
		cfg: cfg.withDefaults(), groups: map[GroupID]*group{}, requests: map[RequestID]*request{},
		books: newBooks(), evalOpen: true,
	}
}

// QueueTasks adds n train tasks to the queue.
func (m *Machine) QueueTasks(now time.Time, n int) []Action {
	m.queued += n
	if s := m.step; s != nil && n > 0 {
		s.asked = false
	}
	return m.settle(now)
}

// LastTasks adds n tasks and says that no more will come for the open step.
func (m *Machine) LastTasks(now time.Time, n int) []Action {
	if m.step != nil {
		m.step.tasksEnded = true
	}
	return m.QueueTasks(now, n)
}

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }

// settle does everything the current state allows and returns the actions collected since
// the last call. The order matters: what is owed is paid first, then the step may close, then
// what is still wanted is leased and started, and the requests follow.
func (m *Machine) settle(now time.Time) []Action {
	m.accept()
	m.advance()
	m.setGates(now)
	m.finish()
	m.lease(now)
	m.fill(now)
	m.fillEval(now)
	m.pass()
	m.quiet()
	out := m.actions
	m.actions = nil
	return out
}
