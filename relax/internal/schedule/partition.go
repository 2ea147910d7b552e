package schedule

import (
	"fmt"
	"slices"
)

// A partition is what one rollout owes the trainer. Only fully-async runs have two at a time:
// the one of the step before, which is paid first, and the step's own.
type partition struct {
	id       int64
	target   int
	accepted int
}

func (p *partition) debt() int { return p.target - p.accepted }

// debt is what all open partitions owe.
func (m *Machine) debt() int {
	n := 0
	for _, p := range m.partitions {
		n += p.debt()
	}
	return n
}

// openPartition makes room for the step's partition and opens it. A partition that owes is
// never pushed out: that is an error, and the step does not open.
func (m *Machine) openPartition(rollout int64) error {
	if !m.cfg.FullyAsync {
		m.partitions = []*partition{{id: rollout, target: m.cfg.BatchSize}}
		return nil
	}
	final := rollout == m.cfg.NumRollout
	if rollout > m.cfg.NumRollout {
		return fmt.Errorf("rollout %d: the last one of a fully_async run is num_rollout (%d), the final backfill", rollout, m.cfg.NumRollout)
	}
	if final {
		return nil // it opens none
	}
	if n := len(m.partitions); n > 0 {
		switch newest := m.partitions[n-1]; {
		case newest.id == rollout:
			return nil // its step failed; this is another try
		case n > 1 || rollout-newest.id > m.cfg.MaxStaleness:
			owing := m.partitions[0]
			return fmt.Errorf("rollout %d: partition %d still owes %d groups and would be pushed out; open rollout %d again first",
				rollout, owing.id, owing.debt(), newest.id)
		}
	}
	if m.opened && rollout <= m.lastRollout {
		return fmt.Errorf("rollout %d: it is over; expected one after %d", rollout, m.lastRollout)
	}
	m.partitions = append(m.partitions, &partition{id: rollout, target: m.cfg.BatchSize})
	return nil
}

// accept delivers finished Groups while a partition of the open step owes them, the oldest
// partition first.
func (m *Machine) accept() {
	if m.step == nil || m.step.eval != nil {
		return
	}
	for len(m.final) > 0 && m.debt() > 0 {
		i := slices.IndexFunc(m.partitions, func(p *partition) bool { return p.debt() > 0 })
		m.pay(m.partitions[i])
	}
}

// pay delivers the oldest finished Group into a partition.
func (m *Machine) pay(p *partition) {
	g := m.final[0]
	m.final = slices.Delete(m.final, 0, 1)
	p.accepted++
	m.healthy()
	m.deliver(g, p.id)
	if m.cfg.FullyAsync && p.debt() == 0 {
		m.endPartition(p)
	}
}

func (m *Machine) endPartition(p *partition) {
	m.partitions = slices.DeleteFunc(m.partitions, func(o *partition) bool { return o == p })
	if p.debt() == 0 { // else the trainer never has it to take
		m.unconsumed = append(m.unconsumed, p.id)
	}
	m.act(EndPartition{Partition: p.id, Groups: p.accepted, Debt: p.debt()})
}

// CheckConsumed refuses a partition the trainer cannot have: one that still owes, or that no rollout
// has opened yet. Of those before the first rollout nothing is known.
func (m *Machine) CheckConsumed(partition int64) error {
	if !m.cfg.FullyAsync {
		return nil
	}
	for _, p := range m.partitions {
		if p.id == partition {
			return fmt.Errorf("partition %d still owes %d groups: it can be consumed once a step's report says that it is complete", p.id, p.debt())
		}
	}
	if m.opened && partition > m.lastRollout {
		return fmt.Errorf("partition %d: no rollout has opened it, the newest is %d", partition, m.lastRollout)
	}
	return nil
}

// endShort closes what nothing can pay any more.
func (m *Machine) endShort() {
	if m.cfg.FullyAsync {
		for len(m.partitions) > 0 {
			m.endPartition(m.partitions[0])
		}
	}
}

// seal adds finished surplus to the partition of a dynamic batch, as much as keeps its number of
// Groups a multiple of the data-parallel size (reference pipeline 4.5).
func (m *Machine) seal() {
	if !m.cfg.DynamicBatch {
		return
	}
	p := m.partitions[0]
	total := p.accepted + len(m.final)
	total -= total % m.cfg.DataParallel
	for p.debt() == 0 && p.accepted < total {
		p.target++
		m.pay(p)
	}
}

// oldestOpen is the oldest partition the trainer does not have, false if it has all.
func (m *Machine) oldestOpen() (int64, bool) {
	oldest, found := int64(0), false
	for _, id := range m.unconsumed {
		if !found || id < oldest {
			oldest, found = id, true
		}
	}
	if len(m.partitions) > 0 && (!found || m.partitions[0].id < oldest) {
		oldest, found = m.partitions[0].id, true
	}
	return oldest, found
}

// stale says whether the step must wait for the trainer to take an older partition.
func (m *Machine) stale() bool {
	s := m.step
	if !m.cfg.FullyAsync || s == nil || s.eval != nil || s.rollout == m.cfg.NumRollout {
		return false
	}
	oldest, ok := m.oldestOpen()
	return ok && s.rollout-oldest > m.cfg.MaxStaleness
}
