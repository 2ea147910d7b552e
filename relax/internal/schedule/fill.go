package schedule

import "time"

// gap is how many Groups the open step would lease more (case L4). The final backfill does not
// over-sample.
func (m *Machine) gap() int {
	s := m.trainStep()
	if s == nil || m.debt() == 0 || s.failure != "" {
		return 0
	}
	c := &m.count.train
	n := m.debt() - c.running - c.scoring - c.finalized
	if !m.cfg.FullyAsync || s.rollout != m.cfg.NumRollout {
		n += m.cfg.OverSampling - m.cfg.BatchSize
	}
	return max(n, 0)
}

// lease moves the oldest ready Groups into Runtime, as many as the step wants.
func (m *Machine) lease(now time.Time) {
	for len(m.ready) > 0 && m.gap() > 0 && !m.stale() {
		g := m.ready[0]
		m.ready = m.ready[1:]
		m.leaseGroup(now, g)
	}
}

func (m *Machine) leaseGroup(now time.Time, g *group) {
	m.enter(g, running)
	m.act(Lease{Group: g.id})
	for i := range g.sessions {
		g.sessions[i].left = m.cfg.AgentTimeout
		m.runBudget(now, g, i)
	}
	m.release(g)
}

// prelaunches says whether agents of later steps may start now.
func (m *Machine) prelaunches() bool {
	return m.cfg.Prelaunch && m.opened && (m.cfg.NumRollout == 0 || m.lastRollout+1 < m.cfg.NumRollout)
}

// wanted is how many Groups should start, capacity aside for those the step itself wants.
func (m *Machine) wanted() int {
	c := &m.count.train
	n := m.gap() - c.preparing - c.ready
	if m.prelaunches() {
		n = max(n, m.cfg.Capacity-c.resident)
	}
	return max(n, 0)
}

// startable is how many Groups could start now if no back-off held them.
func (m *Machine) startable() int {
	return min(m.wanted(), m.queued, m.cfg.Capacity-m.count.train.resident)
}

// fill starts the Groups that are wanted and asks for the tasks that are missing.
func (m *Machine) fill(now time.Time) {
	missing := m.wanted() - m.queued
	if !now.Before(m.notBefore) {
		for range m.startable() {
			m.queued--
			g := m.newGroup(now, m.cfg.GroupSize, false)
			m.act(StartGroup{Group: g.id})
		}
	}
	if s := m.trainStep(); s != nil && missing > 0 && !s.asked && !s.tasksEnded {
		s.asked = true
		m.act(NeedTasks{Count: missing})
	}
}

// backOff waits longer and longer before the next Group starts while Groups die in Prepare one
// after the other: a broken agent must not run through the tasks at full speed. The count goes on
// over steps.
func (m *Machine) backOff(now time.Time) {
	m.prepFailed++
	if m.prepFailed <= backoffFree {
		return
	}
	wait := m.cfg.Backoff
	for i := m.prepFailed - backoffFree - 1; i > 0 && wait < m.cfg.BackoffMax; i-- {
		wait *= 2
	}
	m.notBefore = now.Add(min(wait, m.cfg.BackoffMax))
}
