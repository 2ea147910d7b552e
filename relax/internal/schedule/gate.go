package schedule

import "time"

// The train gate lets requests of train Groups through. It is open while a train step is, unless
// the step closes or waits for the trainer. Two kinds of requests do not wait for it: those of
// Eval Groups, and those of protected Sessions. A Pause shuts the gates of train and Eval; only
// protected Sessions, which must not be aborted once more, go on.

func (m *Machine) wantTrainOpen() bool {
	s := m.step
	return s != nil && s.eval == nil && !s.closing && !m.paused && !m.stale()
}

// admits says whether the gate is open for a Session.
func (m *Machine) admits(g *group, s *session) bool {
	switch {
	case g.eval:
		return m.evalOpen
	case s.protected:
		return true
	}
	return m.trainOpen
}

// setGates opens and shuts the gates as the state asks for.
func (m *Machine) setGates(now time.Time) {
	train, eval := m.wantTrainOpen(), !m.paused
	if train != m.trainOpen {
		m.trainOpen = train
		m.turnGate(now, false)
	}
	if eval != m.evalOpen {
		m.evalOpen = eval
		m.turnGate(now, true)
	}
}

// turnGate stops or starts everything the gate of train or Eval Groups has power over.
func (m *Machine) turnGate(now time.Time, eval bool) {
	for _, g := range m.order {
		if g.eval != eval || g.phase != running {
			continue
		}
		for i := range g.sessions {
			s := &g.sessions[i]
			if !s.alive {
				continue
			}
			if m.admits(g, s) {
				m.protect(s)
				m.runBudget(now, g, i)
				continue
			}
			m.holdBudget(now, s)
			m.recall(s)
		}
	}
}

// protect gives a Session the protection its aborts have earned.
func (m *Machine) protect(s *session) {
	if !s.armed {
		return
	}
	s.armed, s.protected = false, true
	m.protected++
	for _, r := range s.requests {
		if r.state == waiting {
			m.free.push(r) // the other queue skips it
		}
	}
}

// recall takes a Session's requests back from the backend.
func (m *Machine) recall(s *session) {
	for _, r := range s.requests {
		if r.state == passed && !r.asked {
			r.asked = true
			m.act(Abort{Request: r.id})
		}
	}
}

// Pause shuts the gates at any time, also during a step: requests at the backend are aborted
// and parked, active-time budgets stop. Protected Sessions go on until they are over. Quiet
// follows, at once or later, when nothing is at the backend any more.
func (m *Machine) Pause(now time.Time) []Action {
	m.paused, m.pausing = true, true
	return m.settle(now)
}

// Resume undoes Pause. A Pause that has not had its Quiet gets none.
func (m *Machine) Resume(now time.Time) []Action {
	m.paused, m.pausing = false, false
	return m.settle(now)
}

func (m *Machine) quiet() {
	if m.pausing && m.passed == 0 && m.protected == 0 {
		m.pausing = false
		m.act(Quiet{})
	}
}
