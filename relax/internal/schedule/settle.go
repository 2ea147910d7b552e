package schedule

import "time"

// An Action is something the engine must do. The concrete types are in this file.
type Action interface{ action() }

// StartGroup starts the processes of a new Group for the oldest queued task.
type StartGroup struct{ Group GroupID }

// Lease lets a Group's parked requests through to the backend.
type Lease struct{ Group GroupID }

// Score asks for the Group's credit; answer with GroupScored or GroupFailed.
type Score struct{ Group GroupID }

// Deliver puts the Group's rows into the step's batch.
type Deliver struct{ Group GroupID }

// Drop ends a Group: its Sessions are killed and its tokens written off.
type Drop struct {
	Group  GroupID
	Reason Reason
	Cause  string
	// Late is the place of the Session whose deadline passed, -1 for other reasons.
	Late int
}

// Forget says that nothing of the Group runs any more and its state can be freed.
type Forget struct{ Group GroupID }

// NeedTasks asks for more tasks; answer with QueueTasks or LastTasks.
type NeedTasks struct{ Count int }

// EndStep closes the step. No Group of it is resident any more. Failure is not empty when it
// ended on the failure budget.
type EndStep struct {
	Rollout int64
	Debt    int
	Failure string
}

func (StartGroup) action() {}
func (Lease) action()      {}
func (Score) action()      {}
func (Deliver) action()    {}
func (Drop) action()       {}
func (Forget) action()     {}
func (NeedTasks) action()  {}
func (EndStep) action()    {}

// settle does everything the current state allows and returns the actions collected since
// the last call.
func (m *Machine) settle(now time.Time) []Action {
	m.forget()
	if s := m.step; s != nil {
		m.closeIfDone(s)
		if s.closing {
			m.endIfIdle(s)
		} else {
			m.fill(now, s)
		}
	}
	out := m.actions
	m.actions = nil
	return out
}

// forget lets go of Groups that are over and have nothing running.
func (m *Machine) forget() {
	kept := m.order[:0]
	for _, id := range m.order {
		g := m.groups[id]
		if g.active() || g.resident() {
			kept = append(kept, id)
			continue
		}
		delete(m.groups, id)
		m.act(Forget{Group: id})
	}
	m.order = kept
}

// closeIfDone starts closing the step once nothing can or need be added to it.
func (m *Machine) closeIfDone(s *step) {
	starved := s.tasksEnded && m.queued == 0 && m.countActive() == 0
	if s.closing || (s.debt > 0 && s.failure == "" && !starved) {
		return
	}
	s.closing = true
	cause := "the step had all its groups"
	if s.failure != "" {
		cause = "the step failed"
	}
	for _, id := range m.order {
		m.drop(m.groups[id], ReasonStepEnd, cause, -1)
	}
	m.forget()
}

func (m *Machine) endIfIdle(s *step) {
	if len(m.order) > 0 {
		return
	}
	m.step = nil
	m.act(EndStep{Rollout: s.rollout, Debt: s.debt, Failure: s.failure})
}

// fill starts Groups for the debt that no active Group will pay.
func (m *Machine) fill(now time.Time, s *step) {
	gap := s.debt - m.countActive()
	for gap > 0 && m.queued > 0 && m.countResident() < m.cfg.Capacity {
		m.start(now)
		gap--
	}
	if missing := gap - m.queued; missing > 0 && !s.asked && !s.tasksEnded {
		s.asked = true
		m.act(NeedTasks{Count: missing})
	}
}

func (m *Machine) start(now time.Time) {
	m.queued--
	m.nextID++
	g := &group{id: m.nextID, sessions: make([]session, m.cfg.GroupSize)}
	for i := range g.sessions {
		g.sessions[i].deadline = now.Add(m.cfg.FirstRequestTimeout)
	}
	m.groups[g.id] = g
	m.order = append(m.order, g.id)
	m.act(StartGroup{Group: g.id})
}

func (m *Machine) countActive() int {
	n := 0
	for _, g := range m.groups {
		if g.active() {
			n++
		}
	}
	return n
}

func (m *Machine) countResident() int {
	n := 0
	for _, g := range m.groups {
		if g.resident() {
			n++
		}
	}
	return n
}

// Counts is a snapshot for stats.
type Counts struct {
	Preparing, Running, Scoring, Resident, QueuedTasks int
	// Debt is the open step's, 0 between steps.
	Debt int
	// Paused: active-time budgets stand still.
	Paused bool
}

// Counts returns a snapshot.
func (m *Machine) Counts() Counts {
	c := Counts{QueuedTasks: m.queued, Resident: m.countResident(), Paused: m.paused}
	for _, g := range m.groups {
		switch g.phase {
		case preparing:
			c.Preparing++
		case running:
			c.Running++
		case scoring:
			c.Scoring++
		}
	}
	if m.step != nil {
		c.Debt = m.step.debt
	}
	return c
}
