package schedule

import (
	"fmt"
	"slices"
	"time"
)

type phase int

const (
	preparing phase = iota // some Session has not made its first request
	ready                  // behind the barrier, waits for its lease
	running                // leased
	scoring                // all Sessions exported, credit outstanding
	finalized              // has its credit, nothing owes it yet
	delivered
	dropped
)

type session struct {
	alive     bool // its process or a request of it runs
	requested bool
	tries     int    // how often it was run again
	doomed    *fault // it was killed and may be run again
	// armed: enough aborts for protection, which the next resume brings.
	armed, protected bool
	requests         []*request // not answered

	deadline time.Time
	left     time.Duration // active time that remains while the timer is stopped
	alarm    uint32        // tells the newest timer from old ones
}

type fault struct {
	reason Reason
	cause  string
}

type group struct {
	id        GroupID
	eval      bool
	phase     phase
	sessions  []session
	alive     int // Sessions
	requested int
	exported  int
	// parkedIn is one more than the newest rollout in which a request of it was parked.
	parkedIn int64
}

// active says whether the Group has no terminal state yet.
func (g *group) active() bool { return g.phase < delivered }

// tallyOf is the counter of a Group's phase, nil for terminal ones.
func (m *Machine) tallyOf(g *group) *int {
	t := &m.count.train
	if g.eval {
		t = &m.count.eval
	}
	switch g.phase {
	case preparing:
		return &t.preparing
	case ready:
		return &t.ready
	case running:
		return &t.running
	case scoring:
		return &t.scoring
	case finalized:
		return &t.finalized
	}
	return nil
}

func (m *Machine) residents(g *group) (resident, dying *int) {
	if g.eval {
		return &m.count.eval.resident, &m.count.eval.dying
	}
	return &m.count.train.resident, &m.count.train.dying
}

// enter moves a Group to a phase.
func (m *Machine) enter(g *group, to phase) {
	if n := m.tallyOf(g); n != nil {
		*n--
	}
	g.phase = to
	if n := m.tallyOf(g); n != nil {
		*n++
	} else if g.alive > 0 {
		_, dying := m.residents(g)
		*dying++
	}
}

func (m *Machine) newGroup(now time.Time, size int, eval bool) *group {
	m.nextID++
	g := &group{id: m.nextID, eval: eval, sessions: make([]session, size), alive: size}
	*m.tallyOf(g)++
	resident, _ := m.residents(g)
	*resident++
	m.groups[g.id] = g
	m.order = append(m.order, g)
	m.booksOf(g).start(size)
	for i := range g.sessions {
		g.sessions[i].alive = true
		m.startTimer(now, g, i, m.cfg.FirstRequestTimeout)
	}
	return g
}

// live is the Group of a Session that runs, nil if either is over.
func (m *Machine) live(ref SessionRef) *group {
	g := m.groups[ref.Group]
	if g == nil || !g.active() || !g.sessions[ref.Seq].alive {
		return nil
	}
	return g
}

func (m *Machine) requested(g *group, seq int) {
	s := &g.sessions[seq]
	if s.requested || s.doomed != nil {
		return
	}
	s.requested = true
	g.requested++
	if g.phase != preparing {
		return // run again behind the lease: its budget runs already
	}
	m.stopTimer(s)
	if g.requested < len(g.sessions) {
		return
	}
	m.enter(g, ready)
	if g.eval {
		return // fillEval leases it
	}
	m.ready = append(m.ready, g)
	m.prepFailed, m.notBefore = 0, time.Time{}
}

// SessionExported reports that a Session ended well and its contexts were selected. The
// Session and its requests are gone with it.
func (m *Machine) SessionExported(now time.Time, ref SessionRef) []Action {
	g := m.groups[ref.Group]
	if g == nil || !g.sessions[ref.Seq].alive {
		return m.settle(now)
	}
	if g.active() && g.phase != running {
		return m.SessionFailed(now, ref, ReasonEarlyExit, fmt.Sprintf("session %d ended before its Group had a lease", ref.Seq))
	}
	m.sessionGone(g, ref.Seq)
	if g.active() {
		if g.exported++; g.exported == len(g.sessions) {
			m.enter(g, scoring)
			m.act(Score{Group: g.id})
		}
	}
	m.forget(g)
	return m.settle(now)
}

// SessionFailed reports that a Session ended without a usable result. It is run again if
// agent_retries allow, else its Group is dropped. The Session and its requests are gone with
// it. Sessions of a Group dropped before report here as well.
func (m *Machine) SessionFailed(now time.Time, ref SessionRef, reason Reason, cause string) []Action {
	g := m.groups[ref.Group]
	if g == nil || !g.sessions[ref.Seq].alive {
		return m.settle(now)
	}
	doomed := g.sessions[ref.Seq].doomed
	if doomed != nil {
		reason, cause = doomed.reason, doomed.cause
	}
	if g.active() && g.sessions[ref.Seq].tries < m.cfg.AgentRetries {
		m.rerun(now, g, ref.Seq, fault{reason, cause})
		return m.settle(now)
	}
	m.sessionGone(g, ref.Seq)
	m.drop(now, g, reason, cause, -1)
	m.forget(g)
	return m.settle(now)
}

// rerun starts a Session from scratch in its Group. Before the lease the barrier waits for it.
func (m *Machine) rerun(now time.Time, g *group, seq int, why fault) {
	s := &g.sessions[seq]
	m.clear(s)
	if s.requested {
		g.requested--
	}
	tries, alarm := s.tries+1, s.alarm
	*s = session{alive: true, tries: tries, alarm: alarm}
	m.booksOf(g).Retries++
	m.act(StartSession{Ref: SessionRef{g.id, seq}, Try: tries, Reason: why.reason, Cause: why.cause})
	if g.phase == running {
		s.left = m.cfg.AgentTimeout
		m.runBudget(now, g, seq)
		return
	}
	if g.phase == ready {
		m.unready(g)
		m.enter(g, preparing)
	}
	m.startTimer(now, g, seq, m.cfg.FirstRequestTimeout)
}

func (m *Machine) unready(g *group) {
	m.ready = slices.DeleteFunc(m.ready, func(o *group) bool { return o == g })
}

// sessionGone takes a Session's process out of the Group.
func (m *Machine) sessionGone(g *group, seq int) {
	s := &g.sessions[seq]
	m.clear(s)
	s.alive = false
	if g.alive--; g.alive > 0 {
		return
	}
	resident, dying := m.residents(g)
	*resident--
	if !g.active() {
		*dying--
	}
}

// clear ends what waits or counts on behalf of a Session.
func (m *Machine) clear(s *session) {
	m.stopTimer(s)
	if s.protected {
		m.protected--
	}
	s.armed, s.protected, s.doomed = false, false, nil
	for _, r := range s.requests {
		m.endRequest(r)
	}
	s.requests = nil
}

// GroupScored reports that a Group's credit is known.
func (m *Machine) GroupScored(now time.Time, id GroupID) []Action {
	g := m.groups[id]
	if g == nil || g.phase != scoring {
		return m.settle(now)
	}
	if g.eval {
		m.deliver(g, m.step.rollout)
	} else {
		m.enter(g, finalized)
		m.final = append(m.final, g)
	}
	return m.settle(now)
}

// GroupFailed reports that a Group cannot be trained: it is dropped.
func (m *Machine) GroupFailed(now time.Time, id GroupID, reason Reason, cause string) []Action {
	if g := m.groups[id]; g != nil {
		m.drop(now, g, reason, cause, -1)
	}
	return m.settle(now)
}

// GroupFiltered reports that a filter took a scored Group out. It is dropped and refilled, and
// is no failure: the budget of consecutive drops starts anew.
func (m *Machine) GroupFiltered(now time.Time, id GroupID, reason Reason, cause string) []Action {
	g := m.groups[id]
	if g == nil || g.phase != scoring {
		return m.settle(now)
	}
	m.booksOf(g).Filtered++
	m.end(g, reason, cause, -1)
	m.healthy()
	return m.settle(now)
}

func (m *Machine) deliver(g *group, partition int64) {
	m.enter(g, delivered)
	m.booksOf(g).deliver(len(g.sessions))
	if g.eval {
		m.step.eval.delivered += len(g.sessions)
	}
	m.act(Deliver{Group: g.id, Partition: partition})
	m.forget(g)
}

// drop ends a Group that failed and counts it against the budgets.
func (m *Machine) drop(now time.Time, g *group, reason Reason, cause string, late int) {
	if !g.active() {
		return
	}
	unleased := g.phase < running
	m.end(g, reason, cause, late)
	if g.eval {
		return
	}
	if unleased {
		m.backOff(now)
	}
	m.failed(reason, cause)
}

// end drops a Group.
func (m *Machine) end(g *group, reason Reason, cause string, late int) {
	switch g.phase {
	case ready:
		m.unready(g)
	case finalized:
		m.final = slices.DeleteFunc(m.final, func(o *group) bool { return o == g })
	}
	m.enter(g, dropped)
	for i := range g.sessions {
		m.silence(&g.sessions[i])
	}
	m.booksOf(g).drop(reason, len(g.sessions))
	if g.eval {
		m.step.eval.dropped += len(g.sessions)
	}
	m.act(Drop{Group: g.id, Reason: reason, Cause: cause, Late: late})
	m.forget(g)
}

// silence stops a Session of a dropped Group. What it has at the backend still counts until it
// is back.
func (m *Machine) silence(s *session) {
	m.stopTimer(s)
	if s.protected {
		m.protected--
	}
	s.armed, s.protected = false, false
	s.requests = slices.DeleteFunc(s.requests, func(r *request) bool {
		if r.state == passed {
			return false
		}
		m.endRequest(r)
		return true
	})
}

// forget lets go of a Group that is over and has nothing running.
func (m *Machine) forget(g *group) {
	if g.active() || g.alive > 0 || m.groups[g.id] != g {
		return
	}
	delete(m.groups, g.id)
	m.act(Forget{Group: g.id})
	if len(m.order) > 2*len(m.groups)+16 {
		m.order = slices.DeleteFunc(m.order, func(o *group) bool { return m.groups[o.id] != o })
	}
}
