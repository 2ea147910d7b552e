package schedule

import (
	"container/heap"
	"fmt"
	"slices"
	"time"
)

// A timer is the deadline of a Session. A Session that started a newer one, or stopped it, has
// another alarm: such timers are thrown away when they come up.
type timer struct {
	at    time.Time
	g     *group
	seq   int
	alarm uint32
}

func (t *timer) stale() bool {
	s := &t.g.sessions[t.seq]
	return s.alarm != t.alarm || s.deadline.IsZero()
}

// timers is a heap, the next deadline first.
type timers []timer

func (t timers) Len() int      { return len(t) }
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) }
func (t timers) Less(i, j int) bool {
	if t[i].at.Equal(t[j].at) {
		return t[i].g.id < t[j].g.id || t[i].g.id == t[j].g.id && t[i].seq < t[j].seq
	}
	return t[i].at.Before(t[j].at)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	(*t)[last] = timer{}
	*t = (*t)[:last]
	return x
}

func (m *Machine) startTimer(now time.Time, g *group, seq int, d time.Duration) {
	s := &g.sessions[seq]
	s.alarm++
	s.deadline = now.Add(d)
	heap.Push(&m.timers, timer{at: s.deadline, g: g, seq: seq, alarm: s.alarm})
}

func (m *Machine) stopTimer(s *session) {
	if s.deadline.IsZero() {
		return
	}
	s.alarm++
	s.deadline = time.Time{}
	if m.stopped++; m.stopped > len(m.timers)/2+fewTimers {
		m.sweepTimers()
	}
}

// fewTimers is how many stale timers are no matter.
const fewTimers = 16

// sweepTimers throws stale timers away. Each turn of a gate stops those of all leased Sessions, and
// they would stay until they come up: agent_timeout later.
func (m *Machine) sweepTimers() {
	m.timers = slices.DeleteFunc(m.timers, func(t timer) bool { return t.stale() })
	heap.Init(&m.timers)
	m.stopped = 0
}

// runBudget lets a leased Session's active time run, if it may: the gate is open for it.
func (m *Machine) runBudget(now time.Time, g *group, seq int) {
	s := &g.sessions[seq]
	if s.alive && s.doomed == nil && s.deadline.IsZero() && m.admits(g, s) {
		m.startTimer(now, g, seq, s.left)
	}
}

// holdBudget stops a leased Session's active time.
func (m *Machine) holdBudget(now time.Time, s *session) {
	if !s.deadline.IsZero() {
		s.left = s.deadline.Sub(now)
		m.stopTimer(s)
	}
}

// Tick handles deadlines that have passed.
func (m *Machine) Tick(now time.Time) []Action {
	for len(m.timers) > 0 {
		t := m.timers[0]
		if !t.stale() && now.Before(t.at) {
			break
		}
		heap.Pop(&m.timers)
		if !t.stale() {
			m.expire(now, t.g, t.seq)
		}
	}
	return m.settle(now)
}

// expire ends a Session whose time is up: alone if it may be run again, else with its Group.
func (m *Machine) expire(now time.Time, g *group, seq int) {
	f := fault{ReasonAgentTimeout, fmt.Sprintf("session %d was active longer than agent_timeout (%s)", seq, m.cfg.AgentTimeout)}
	if g.phase == preparing {
		f = fault{ReasonFirstRequest, m.lateFirstRequest(seq)}
	}
	s := &g.sessions[seq]
	m.stopTimer(s)
	if s.tries < m.cfg.AgentRetries {
		m.silence(s)
		s.doomed = &f
		m.act(KillSession{Ref: SessionRef{g.id, seq}, Reason: f.reason, Cause: f.cause})
		return
	}
	m.drop(now, g, f.reason, f.cause, seq)
}

// Deadline is the time of the next Tick that matters, zero if none does.
func (m *Machine) Deadline() time.Time {
	for len(m.timers) > 0 && m.timers[0].stale() {
		heap.Pop(&m.timers)
	}
	var next time.Time
	if len(m.timers) > 0 {
		next = m.timers[0].at
	}
	if at := m.notBefore; !at.IsZero() && m.startable() > 0 && (next.IsZero() || at.Before(next)) {
		next = at
	}
	return next
}
