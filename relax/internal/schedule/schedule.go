// Package schedule decides which Groups start, run, are dropped and are delivered. It is a
// state machine without I/O: it takes events and returns actions.
//
// What may enter: counts, ids, and the time of each event. What it never does: read a
// clock, start a process, touch tokens, or know what a task says.
//
// A step opens with a debt of Groups. The machine starts Groups while capacity and debt
// allow, leases a Group when each of its Sessions has made its first request (the barrier),
// hands a Group to scoring when all its Sessions were exported, and closes the step when the
// debt is paid, no more tasks will come, or too many Groups in a row were dropped. Every
// Group ends in exactly one of delivered and dropped.
package schedule

import (
	"fmt"
	"slices"
	"time"
)

// GroupID numbers Groups of a run from 1.
type GroupID int64

// A SessionRef names a Session by its Group and its place in it.
type SessionRef struct {
	Group GroupID
	Seq   int
}

// Config holds the limits the machine keeps.
type Config struct {
	// BatchSize is the number of Groups a step owes.
	BatchSize int
	// GroupSize is the number of Sessions in a Group.
	GroupSize int
	// Capacity bounds resident Groups: started and not yet gone.
	Capacity int
	// MaxConsecutiveDropped ends the step after so many drops in a row.
	MaxConsecutiveDropped int
	// FirstRequestTimeout bounds the wait for a Session's first request.
	FirstRequestTimeout time.Duration
	// AgentTimeout bounds a Session's active time after its lease; paused time does not count.
	AgentTimeout time.Duration
}

// A Reason is a short stable word for why a Group was dropped.
type Reason string

// Reasons the machine gives itself. Callers add theirs through SessionFailed and GroupFailed.
const (
	ReasonFirstRequest Reason = "first_request_timeout"
	ReasonAgentTimeout Reason = "agent_timeout"
	ReasonStepEnd      Reason = "step_end"
)

type phase int

const (
	preparing phase = iota // some Session has not made its first request
	running                // leased
	scoring                // all Sessions exported, credit outstanding
	delivered
	dropped
)

type session struct {
	requested bool
	exported  bool
	gone      bool // its process and requests are over
	deadline  time.Time
	// left is the active time that remains while the timer is stopped.
	left time.Duration
}

type group struct {
	id       GroupID
	phase    phase
	sessions []session
}

func (g *group) resident() bool {
	return slices.ContainsFunc(g.sessions, func(s session) bool { return !s.gone })
}

// active says whether the Group may still pay debt.
func (g *group) active() bool {
	return g.phase == preparing || g.phase == running || g.phase == scoring
}

func (g *group) all(f func(session) bool) bool {
	return !slices.ContainsFunc(g.sessions, func(s session) bool { return !f(s) })
}

// A Machine schedules the Groups of one engine. It is not safe for concurrent use.
type Machine struct {
	cfg     Config
	paused  bool
	nextID  GroupID
	groups  map[GroupID]*group
	order   []GroupID // resident or unfinished Groups, oldest first
	step    *step
	queued  int // tasks waiting
	actions []Action
}

type step struct {
	rollout     int64
	debt        int
	asked       bool // a NeedTasks is outstanding
	tasksEnded  bool
	consecutive int
	firstCause  string
	closing     bool
	failure     string
}

// New returns a machine with no step open.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, groups: map[GroupID]*group{}}
}

// Open starts a step. It is an error while another one is open.
func (m *Machine) Open(now time.Time, rollout int64) ([]Action, error) {
	if m.step != nil {
		return nil, fmt.Errorf("rollout %d is still open", m.step.rollout)
	}
	m.step = &step{rollout: rollout, debt: m.cfg.BatchSize}
	return m.settle(now), nil
}

// QueueTasks adds n tasks to the queue.
func (m *Machine) QueueTasks(now time.Time, n int) []Action {
	m.queued += n
	if m.step != nil && n > 0 {
		m.step.asked = false
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

// SessionRequested reports a Session's first model request.
func (m *Machine) SessionRequested(now time.Time, ref SessionRef) []Action {
	g := m.groups[ref.Group]
	if g == nil || !g.active() {
		return nil
	}
	s := &g.sessions[ref.Seq]
	if s.requested {
		return nil
	}
	s.requested, s.deadline = true, time.Time{}
	if g.phase == preparing && g.all(func(s session) bool { return s.requested }) {
		m.lease(now, g)
	}
	return m.settle(now)
}

func (m *Machine) lease(now time.Time, g *group) {
	g.phase = running
	for i := range g.sessions {
		g.sessions[i].left = m.cfg.AgentTimeout
		if !m.paused {
			g.sessions[i].deadline = now.Add(m.cfg.AgentTimeout)
		}
	}
	m.act(Lease{Group: g.id})
}

// SessionExported reports that a Session ended well and its contexts were selected. The
// Session is gone with it.
func (m *Machine) SessionExported(now time.Time, ref SessionRef) []Action {
	g := m.groups[ref.Group]
	if g == nil {
		return nil
	}
	s := &g.sessions[ref.Seq]
	s.gone, s.exported, s.deadline = true, true, time.Time{}
	if g.phase == running && g.all(func(s session) bool { return s.exported }) {
		g.phase = scoring
		m.act(Score{Group: g.id})
	}
	return m.settle(now)
}

// SessionFailed reports that a Session ended without a usable result; its Group is dropped.
// The Session is gone with it. Sessions of a Group dropped before report here as well.
func (m *Machine) SessionFailed(now time.Time, ref SessionRef, reason Reason, cause string) []Action {
	g := m.groups[ref.Group]
	if g == nil {
		return nil
	}
	g.sessions[ref.Seq].gone = true
	m.drop(g, reason, cause, -1)
	return m.settle(now)
}

// GroupScored reports that a Group's credit is known: it is delivered.
func (m *Machine) GroupScored(now time.Time, id GroupID) []Action {
	g := m.groups[id]
	if g == nil || g.phase != scoring {
		return nil
	}
	g.phase = delivered
	if m.step != nil {
		m.step.debt--
		m.step.consecutive, m.step.firstCause = 0, ""
	}
	m.act(Deliver{Group: id})
	return m.settle(now)
}

// GroupFailed reports that a Group cannot be trained: it is dropped.
func (m *Machine) GroupFailed(now time.Time, id GroupID, reason Reason, cause string) []Action {
	if g := m.groups[id]; g != nil {
		m.drop(g, reason, cause, -1)
	}
	return m.settle(now)
}

// Pause stops the active-time budgets; Resume lets them run on.
func (m *Machine) Pause(now time.Time) {
	if m.paused {
		return
	}
	m.paused = true
	for _, g := range m.groups {
		if g.phase != running {
			continue
		}
		for i := range g.sessions {
			if s := &g.sessions[i]; !s.deadline.IsZero() {
				s.left, s.deadline = s.deadline.Sub(now), time.Time{}
			}
		}
	}
}

// Resume undoes Pause.
func (m *Machine) Resume(now time.Time) {
	if !m.paused {
		return
	}
	m.paused = false
	for _, g := range m.groups {
		if g.phase != running {
			continue
		}
		for i := range g.sessions {
			if s := &g.sessions[i]; !s.gone {
				s.deadline = now.Add(s.left)
			}
		}
	}
}

// Tick drops Groups whose deadlines have passed.
func (m *Machine) Tick(now time.Time) []Action {
	for _, id := range slices.Clone(m.order) {
		g := m.groups[id]
		if !g.active() {
			continue
		}
		for i, s := range g.sessions {
			if s.deadline.IsZero() || now.Before(s.deadline) {
				continue
			}
			m.expire(g, i)
			break
		}
	}
	return m.settle(now)
}

func (m *Machine) expire(g *group, seq int) {
	if g.phase == preparing {
		m.drop(g, ReasonFirstRequest, fmt.Sprintf(
			"session %d made no model request within agent_first_request_timeout (%s)", seq, m.cfg.FirstRequestTimeout), seq)
		return
	}
	m.drop(g, ReasonAgentTimeout, fmt.Sprintf(
		"session %d was active longer than agent_timeout (%s)", seq, m.cfg.AgentTimeout), seq)
}

// Deadline is the time of the next Tick that matters, zero if none does.
func (m *Machine) Deadline() time.Time {
	var next time.Time
	for _, g := range m.groups {
		if !g.active() {
			continue
		}
		for _, s := range g.sessions {
			if !s.deadline.IsZero() && (next.IsZero() || s.deadline.Before(next)) {
				next = s.deadline
			}
		}
	}
	return next
}

func (m *Machine) drop(g *group, reason Reason, cause string, late int) {
	if !g.active() {
		return
	}
	g.phase = dropped
	for i := range g.sessions {
		g.sessions[i].deadline = time.Time{}
	}
	m.act(Drop{Group: g.id, Reason: reason, Cause: cause, Late: late})
	if m.step == nil || m.step.closing {
		return
	}
	m.step.consecutive++
	if m.step.firstCause == "" {
		m.step.firstCause = fmt.Sprintf("%s: %s", reason, cause)
	}
	if m.step.consecutive >= m.cfg.MaxConsecutiveDropped {
		m.step.failure = fmt.Sprintf(
			"%d groups in a row were dropped (max_consecutive_dropped_groups); the first because of %s",
			m.step.consecutive, m.step.firstCause)
	}
}

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }
