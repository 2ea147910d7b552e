package relax

import (
	"fmt"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// A debt is an open partition of a fully-async run: what its rollout still owes the trainer.
type debt struct {
	id   int64
	paid int // Groups
}

// debts are the open partitions, oldest first. In other modes a partition ends with its step.
type debts []debt

// open adds the partition of a rollout, unless another try of it has opened it before.
func (d *debts) open(id int64) {
	if !slices.ContainsFunc(*d, func(o debt) bool { return o.id == id }) {
		*d = append(*d, debt{id: id})
	}
}

// pay books a Group into a partition.
func (d debts) pay(id int64) {
	for i := range d {
		if d[i].id == id {
			d[i].paid++
		}
	}
}

func (d *debts) end(id int64) {
	*d = slices.DeleteFunc(*d, func(o debt) bool { return o.id == id })
}

// owed is what all of them owe.
func (d debts) owed(target int) int {
	n := 0
	for _, o := range d {
		n += target - o.paid
	}
	return n
}

// A PartitionReport says what a step did for one partition of a fully-async run.
type PartitionReport struct {
	// ID is the rollout that opened it.
	ID int64 `json:"id"`
	// Groups of it are in the step's batch.
	Groups int `json:"groups"`
	// Debt is how many Groups it still owes.
	Debt int `json:"debt"`
	// Complete: with this step's batch the trainer has all of it.
	Complete bool `json:"complete"`
	// Short: what it owes never comes, since tasks ran out or a batch could not be built. No step
	// waits for the trainer to take it.
	Short bool `json:"short,omitempty"`
}

// endPartition notes a partition that has everything it will get.
func (c *core) endPartition(end schedule.EndPartition) {
	c.debts.end(end.Partition)
	c.step.ended = append(c.step.ended, end)
	if end.Debt > 0 {
		c.log(observe.Status(observe.Warning, "A partition ends before it is complete: no more tasks came",
			observe.F("partition", end.Partition), observe.F("groups", end.Groups), observe.F("missing_groups", end.Debt)))
	}
}

// partitions reports what the step did for the partitions of a fully-async run, oldest first.
func (c *core) partitions() []PartitionReport {
	if !c.cfg.FullyAsync {
		return nil
	}
	var out []PartitionReport
	for _, end := range c.step.ended {
		out = append(out, PartitionReport{ID: end.Partition, Debt: end.Debt, Complete: end.Debt == 0, Short: end.Debt > 0})
	}
	for _, open := range c.debts {
		out = append(out, PartitionReport{ID: open.id, Debt: c.cfg.RolloutBatchSize - open.paid})
	}
	for _, g := range c.step.groups {
		i := slices.IndexFunc(out, func(p PartitionReport) bool { return p.ID == g.partition })
		out[i].Groups++
	}
	slices.SortFunc(out, func(a, b PartitionReport) int { return int(a.ID - b.ID) })
	return out
}

// consumed tells the schedule that the trainer took a partition.
func (c *core) consumed(partition int64) error {
	return c.do(func() error {
		if err := c.machine.CheckConsumed(partition); err != nil {
			return fmt.Errorf("%w: consumed: %w", ErrState, err)
		}
		c.apply(c.machine.Consumed(time.Now(), partition))
		return nil
	})
}
