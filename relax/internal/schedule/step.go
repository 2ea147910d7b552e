package schedule

import (
	"fmt"
	"slices"
	"time"
)

type step struct {
	rollout     int64
	eval        *evalRun // of an Eval
	asked       bool     // a NeedTasks is outstanding
	tasksEnded  bool
	consecutive int
	firstCause  string
	closing     bool
	starved     bool // why it closes
	failure     string
}

// Open starts a train step. It is an error while another step is open, and in a fully-async run
// if it would push out a partition that owes.
func (m *Machine) Open(now time.Time, rollout int64) ([]Action, error) {
	if err := m.checkClosed(); err != nil {
		return nil, err
	}
	if err := m.openPartition(rollout); err != nil {
		return nil, err
	}
	m.step = &step{rollout: rollout}
	m.opened, m.lastRollout = true, rollout
	return m.settle(now), nil
}

func (m *Machine) checkClosed() error {
	switch {
	case m.step == nil:
		return nil
	case m.step.eval != nil:
		return fmt.Errorf("the eval of rollout %d is still open", m.step.rollout)
	}
	return fmt.Errorf("rollout %d is still open", m.step.rollout)
}

// Consumed reports that the trainer has taken a partition of a fully-async run.
func (m *Machine) Consumed(now time.Time, partition int64) []Action {
	m.unconsumed = slices.DeleteFunc(m.unconsumed, func(id int64) bool { return id == partition })
	return m.settle(now)
}

// trainStep is the open train step, nil if there is none or it closes.
func (m *Machine) trainStep() *step {
	if s := m.step; s != nil && s.eval == nil && !s.closing {
		return s
	}
	return nil
}

// isFinal says whether nothing is carried behind a rollout: no step will come that could take it.
func (m *Machine) isFinal(rollout int64) bool {
	last := m.cfg.NumRollout - 1
	switch {
	case m.cfg.NumRollout == 0 || rollout < last:
		return false
	case m.cfg.FullyAsync && rollout == last:
		return m.debt() == 0
	}
	return true
}

// done says whether nothing can or need be added to the step, whatever protected Sessions do.
func (m *Machine) done(s *step) bool {
	debt := m.debt()
	if debt == 0 || s.failure != "" {
		return true
	}
	s.starved = m.starving(s)
	return s.starved || m.covered(s, debt)
}

// starving says whether there is nothing the step could still be paid with.
func (m *Machine) starving(s *step) bool {
	c := &m.count.train
	return s.tasksEnded && m.queued == 0 && c.preparing+c.ready+c.running+c.scoring+c.finalized == 0
}

// covered says whether a fully-async step may leave its own partition in debt: the next step can
// still take it, nothing older owes, and at least as many Groups are parked.
func (m *Machine) covered(s *step, debt int) bool {
	if !m.cfg.FullyAsync || s.rollout == m.cfg.NumRollout || m.cfg.MaxStaleness < 1 || m.trainOpen || !m.paused {
		return false
	}
	if len(m.partitions) != 1 || m.partitions[0].id != s.rollout {
		return false
	}
	parked := 0
	for _, g := range m.order {
		if m.isParked(g, s) {
			parked++
		}
	}
	return parked >= debt
}

// isParked says whether a Group really was interrupted in this step: a request of it came back
// from the backend when we asked for it, and still waits; the other Sessions have nothing at the
// backend. A Group whose agents are all inside tools is not.
func (m *Machine) isParked(g *group, s *step) bool {
	if g.eval || g.phase != running || g.parkedIn != s.rollout+1 {
		return false
	}
	parked := false
	for i := range g.sessions {
		if g.sessions[i].protected {
			return false
		}
		for _, r := range g.sessions[i].requests {
			if r.state == passed {
				return false
			}
			parked = parked || r.parked
		}
	}
	return parked
}

// advance begins to close the step when it is done and no protected Session runs.
func (m *Machine) advance() {
	if s := m.step; s != nil && s.closing && s.starved && !m.starving(s) {
		s.closing, s.starved = false, false // tasks came after all
	}
	s := m.trainStep()
	if s == nil || !m.done(s) || m.protected > 0 {
		return
	}
	s.closing = true
	m.shed(s)
}

// shed drops the unfinished Groups that do not go on in the next step.
func (m *Machine) shed(s *step) {
	cause := "the step had all its groups"
	if s.failure != "" {
		cause = "the step failed"
	}
	for _, g := range slices.Clone(m.order) {
		if !g.eval && g.active() && g.phase != finalized && !m.carries(g, s) {
			m.end(g, ReasonStepEnd, cause, -1)
		}
	}
}

// carries says whether a Group goes on in the next step.
func (m *Machine) carries(g *group, s *step) bool {
	switch {
	case m.isFinal(s.rollout):
		return false
	case g.phase < running:
		return m.cfg.residentInEval()
	}
	return m.cfg.retains()
}

// finish ends a closing step once nothing of it is at the backend and what it dropped is gone.
func (m *Machine) finish() {
	s := m.step
	if s == nil || s.eval != nil || !s.closing || m.passed > 0 || m.count.train.dying > 0 {
		return
	}
	if m.shed(s); m.count.train.dying > 0 {
		return // what came in while it closed has made it the last step
	}
	if s.failure == "" {
		m.seal()
	}
	for len(m.final) > 0 && !m.carries(m.final[0], s) {
		m.end(m.final[0], ReasonSurplus, "it was finished when the step had all its groups", -1)
	}
	debt := m.debt()
	if s.starved {
		m.endShort()
	}
	if !m.cfg.FullyAsync {
		m.partitions = nil
	}
	m.step = nil
	m.act(EndStep{Rollout: s.rollout, Debt: debt, Failure: s.failure, Books: m.books.closeBooks()})
}

// failed counts a drop against the failure budget of the open step.
func (m *Machine) failed(reason Reason, cause string) {
	s := m.trainStep()
	if s == nil {
		return
	}
	s.consecutive++
	if s.firstCause == "" {
		s.firstCause = fmt.Sprintf("%s: %s", reason, cause)
	}
	if s.consecutive >= m.cfg.MaxConsecutiveDropped {
		s.failure = fmt.Sprintf("%d groups in a row were dropped (max_consecutive_dropped_groups); the first because of %s",
			s.consecutive, s.firstCause)
	}
}

// healthy starts the failure budget anew.
func (m *Machine) healthy() {
	if m.step != nil {
		m.step.consecutive, m.step.firstCause = 0, ""
	}
}
