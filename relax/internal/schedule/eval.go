package schedule

import (
	"fmt"
	"time"
)

// An EvalDataset is one dataset of an Eval.
type EvalDataset struct {
	Name string
	// Prompts is the number of prompts, Samples the runs of each (n_samples_per_eval_prompt).
	Prompts, Samples int
}

// An evalRun is an open Eval: its datasets one after the other, each sample once, none refilled.
type evalRun struct {
	datasets []EvalDataset
	at       int
	next     int // Group of the dataset that starts next
	books    Books
	// Samples of the dataset.
	delivered, dropped int
}

// OpenEval starts an Eval as a step of its own. It is an error while another step is open. Train
// Groups stay as they are; their gate is shut.
func (m *Machine) OpenEval(now time.Time, rollout int64, datasets []EvalDataset) ([]Action, error) {
	if err := m.checkClosed(); err != nil {
		return nil, err
	}
	for i, d := range datasets {
		if d.Samples < 1 || d.Prompts < 0 {
			return nil, fmt.Errorf("eval dataset %d (%s): expected at least 1 n_samples_per_eval_prompt and no negative number of prompts, found %d and %d",
				i, d.Name, d.Samples, d.Prompts)
		}
		if slots := m.cfg.EvalSlots(d.Samples); slots > m.evalSlots {
			m.evalSlots = slots
			m.evalSlotsOf = fmt.Sprintf("E of dataset %s = %d resident groups * n_samples_per_eval_prompt (%d)",
				d.Name, m.cfg.EvalGroups(d.Samples), d.Samples)
		}
	}
	m.step = &step{rollout: rollout, eval: &evalRun{datasets: datasets, books: newBooks()}}
	return m.settle(now), nil
}

// shape is how a dataset is cut into Groups: their size, their number, and how many may be
// resident. Without a group reward model each sample is a Group, so that one does not wait for
// its siblings; the number of agents is the same.
func (m *Machine) shape(d EvalDataset) (size, groups, capacity int) {
	if m.cfg.GroupRM {
		return d.Samples, d.Prompts, m.cfg.EvalGroups(d.Samples)
	}
	return 1, d.Prompts * d.Samples, m.cfg.EvalSlots(d.Samples)
}

// fillEval leases the Eval's ready Groups, starts further ones and ends what is over.
func (m *Machine) fillEval(now time.Time) {
	if m.step == nil || m.step.eval == nil {
		return
	}
	e := m.step.eval
	if m.count.eval.ready > 0 {
		for _, g := range m.order {
			if g.eval && g.phase == ready {
				m.leaseGroup(now, g)
			}
		}
	}
	for ; e.at < len(e.datasets); e.at++ {
		d := e.datasets[e.at]
		size, groups, capacity := m.shape(d)
		for ; e.next < groups && m.count.eval.resident < capacity; e.next++ {
			g := m.newGroup(now, size, true)
			first := e.next * size
			m.act(StartEval{Group: g.id, Dataset: e.at, Prompt: first / d.Samples, First: first % d.Samples, Sessions: size})
		}
		if c := &m.count.eval; e.next < groups || c.resident > 0 || c.scoring > 0 {
			return
		}
		m.act(EndDataset{Dataset: e.at, Delivered: e.delivered, Dropped: e.dropped})
		e.next, e.delivered, e.dropped = 0, 0, 0
	}
	rollout := m.step.rollout
	m.step = nil
	m.act(EndStep{Rollout: rollout, Eval: true, Books: e.books.closeBooks()})
}
