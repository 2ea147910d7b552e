package relax

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// A finished batch waits this long for arena memory before its step fails.
const (
	memoryWait  = 60 * time.Second
	memoryRetry = 50 * time.Millisecond
)

// stepState is what a step, of training or an Eval, has brought so far.
type stepState struct {
	rollout int64
	started time.Time
	eval    *evalStep // nil of a train step
	groups  []*group  // delivered, in order of delivery
	total   int       // Sessions owed at its start
	scored  int       // Sessions with credit
	ended   []schedule.EndPartition
	// over: the schedule has ended it, what is left is its batch. What happens now is booked in the
	// next step.
	over      bool
	overSince time.Time
	// tail is closed when the batches so far are out, nil if there was none.
	tail chan struct{}
}

func (c *core) startRollout(rollout int64) error {
	return c.do(func() error {
		if err := c.checkNoStep(fmt.Sprintf("start rollout %d", rollout)); err != nil {
			return err
		}
		now := time.Now()
		carried := c.machine.Counts().Finalized
		actions, err := c.machine.Open(now, rollout)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		c.step = &stepState{rollout: rollout, started: now, scored: carried * c.cfg.NSamplesPerPrompt}
		c.heard = now
		final := c.cfg.FullyAsync && rollout == c.cfg.NumRollout
		owed := c.openDebts(rollout, final)
		c.step.total = owed * c.cfg.NSamplesPerPrompt
		c.traces.begin(rollout, modeTrain)
		c.takeOver(rollout)
		c.log(observe.Event("ROLLOUT", "accounting_start", observe.F("rollout", rollout),
			observe.F("sessions", c.step.total), observe.F("groups", owed), observe.F("final_backfill", final)))
		c.apply(actions)
		return nil
	})
}

// checkNoStep refuses what needs that no step is open.
func (c *core) checkNoStep(what string) error {
	if c.step == nil {
		return nil
	}
	open := "rollout"
	if c.step.eval != nil {
		open = "the eval of rollout"
	}
	return fmt.Errorf("%w: %s: %s %d is still open; poll until its step end", ErrState, what, open, c.step.rollout)
}

// openDebts opens what the step owes, and returns how many Groups that are with what is left of
// the step before.
func (c *core) openDebts(rollout int64, final bool) int {
	if !c.cfg.FullyAsync {
		return c.cfg.RolloutBatchSize
	}
	if !final {
		c.debts.open(rollout)
	}
	return c.debts.owed(c.cfg.RolloutBatchSize)
}

// takeOver moves what was carried into the new step.
func (c *core) takeOver(rollout int64) {
	c.forgetAsks()
	for _, g := range c.groups {
		if g.isLeased() {
			g.rollout = rollout
		}
	}
	for _, traces := range c.strays {
		c.traces.put(traces(&rollout))
	}
	c.strays = nil
}

// trainStep is the open train step, nil if there is none.
func (c *core) trainStep() *stepState {
	if s := c.step; s != nil && s.eval == nil && !s.over {
		return s
	}
	return nil
}

// scored reports that a Group's credit is known.
func (c *core) scored(g *group) {
	c.filteredRun = 0
	if s := c.trainStep(); s != nil {
		s.scored += len(g.sessions)
		c.progress()
	}
	c.apply(c.machine.GroupScored(time.Now(), g.id))
}

// deliverGroup puts a Group's rows into a partition.
func (c *core) deliverGroup(g *group, partition int64) {
	g.deliveredAt, g.partition = time.Now(), partition
	c.step.groups = append(c.step.groups, g)
	switch {
	case g.origin != nil:
		g.origin.dataset.groups = append(g.origin.dataset.groups, g)
	case c.cfg.FullyAsync:
		c.debts.pay(partition)
	}
	for i := range g.rows {
		g.stats[i].Staleness += c.step.rollout - g.rows[i].Partition // it was laid out in an earlier step
		g.rows[i].Partition = partition
	}
	c.progress()
}

func (c *core) progress() {
	s := c.step
	p := map[string]any{
		"rollout": s.rollout, "scored": s.scored,
		"done": len(s.groups) * c.cfg.NSamplesPerPrompt, "total": max(s.total, len(s.groups)*c.cfg.NSamplesPerPrompt),
	}
	switch {
	case s.eval != nil:
		p = s.eval.progress(s.rollout)
	case c.cfg.AgenticPrelaunch:
		p["prepared"] = c.machine.Counts().Ready
	}
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers and names marshal
	}
	c.emit(Event{Kind: EventProgress, RolloutID: s.rollout, Data: raw})
}

// An endedStep is a step whose books are closed and whose batch may still be in the making.
type endedStep struct {
	schedule.EndStep
	groups     []*group
	books      ledger
	accounting Accounting
	traces     string // the file with its Sessions' traces
	// diverged counts requests that did not go on from the newest turn, since the last step end.
	diverged map[string]int64
	// Groups at its end: with a parked request, and with a process that runs.
	interrupted, resident int
}

func (c *core) endStep(end schedule.EndStep) {
	s := c.step
	s.over, s.overSince = true, time.Now()
	if end.Eval {
		c.endEval(end)
		return
	}
	e := &endedStep{EndStep: end, groups: s.groups, interrupted: c.interruptedGroups(), resident: c.machine.Counts().Resident}
	e.books, e.accounting = c.closeBooks(end.Books)
	e.traces, e.diverged = c.traces.storyFile(end.Rollout, modeTrain), c.newDivergences()
	slices.SortFunc(e.groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.id, b.id))
	})
	if len(rowsOf(e.groups)) == 0 && c.traces == nil {
		c.report(e, nil, nil)
		return
	}
	c.publish(e.groups, end.Rollout, func(b *Batch, err error) { c.report(e, b, err) })
}

// interruptedGroups counts leased Groups with a request that is parked.
func (c *core) interruptedGroups() int {
	groups := map[*group]bool{}
	for _, k := range c.tickets {
		if k.aborted && k.session.group.origin == nil {
			groups[k.session.group] = true
		}
	}
	return len(groups)
}

func rowsOf(groups []*group) []batch.Row {
	var rows []batch.Row
	for _, g := range groups {
		rows = append(rows, g.rows...)
	}
	return rows
}

// publish builds the batch of delivered Groups outside the loop, since it copies every token once
// and may wait for memory, and hands it to then, in the loop, behind the batches of the step that
// are in the making. Without rows there is no batch. then owns the batch.
func (c *core) publish(groups []*group, rollout int64, then func(*Batch, error)) {
	rows, before, done := rowsOf(groups), c.step.tail, make(chan struct{})
	c.step.tail = done
	if len(rows) > 0 {
		c.batches++
	}
	id := c.batches
	c.goroutines.Go("assemble", func() {
		defer close(done)
		var b *Batch
		var buildErr error
		if len(rows) > 0 {
			b, buildErr = c.assemble(id, rollout, rows)
		}
		c.traceDelivered(groups, rollout, buildErr)
		if before != nil {
			<-before // bounded as this one is: its owner is the same
		}
		var once sync.Once // the batch is reported or freed, whichever comes first
		err := c.do(func() error {
			once.Do(func() { then(b, buildErr) })
			return nil
		})
		if err != nil && b != nil {
			once.Do(b.Release)
		}
	})
}

// assemble builds the batch. When the arena limit is reached it waits for the trainer to let
// go of older batches, for at most memoryWait.
func (c *core) assemble(id uint64, rollout int64, rows []batch.Row) (*Batch, error) {
	deadline := time.Now().Add(memoryWait)
	for {
		b, err := batch.Build(c.alloc, id, rollout, rows)
		if err == nil || !errors.Is(err, ErrNoMemory) || time.Now().After(deadline) {
			return b, err
		}
		select {
		case <-time.After(memoryRetry):
		case <-c.ctx.Done():
			return nil, err
		}
	}
}

// report closes the step: the log line, the batch, the step end, in this order.
func (c *core) report(e *endedStep, b *Batch, buildErr error) {
	r := StepReport{
		Rollout: e.Rollout, Debt: e.Debt, Seconds: time.Since(c.step.started).Seconds(), Error: e.Failure,
		Groups: len(e.groups), Accounting: e.accounting, Drops: e.books.sorted(e.traces), Partitions: c.partitions(),
		InterruptedGroups: e.interrupted, Filtered: e.Books.Filtered, Retries: e.Books.Retries,
	}
	if buildErr != nil {
		c.undeliver(e, &r, buildErr)
	}
	stats := statsOf(e.groups)
	r.Metrics, r.Rows = c.metrics(e, &r, stats), len(stats)
	c.log(observe.Event("ROLLOUT", "accounting_end",
		observe.F("rollout", r.Rollout), observe.F("groups", r.Groups), observe.F("rows", r.Rows), observe.F("debt", r.Debt),
		observe.F("resident_groups", e.resident), observe.F("interrupted_groups", e.interrupted)))
	if b != nil {
		c.emit(Event{Kind: EventBatch, RolloutID: e.Rollout, Batch: b})
	}
	c.closeStep(&r)
}

// closeStep queues the step's end. Another step can start from now on.
func (c *core) closeStep(r *StepReport) {
	raw, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("step report does not marshal: %v", err))
	}
	c.totals.add(r)
	c.step = nil
	c.emit(Event{Kind: EventStepEnd, RolloutID: r.Rollout, Data: raw})
}

func statsOf(groups []*group) []observe.RowStat {
	var stats []observe.RowStat
	for _, g := range groups {
		stats = append(stats, g.stats...)
	}
	return stats
}

// metrics are the numbers of a train step.
func (c *core) metrics(e *endedStep, r *StepReport, stats []observe.RowStat) map[string]float64 {
	step := observe.Step{
		Rollout: r.Rollout, Seconds: r.Seconds, GPUs: c.cfg.RolloutNumGPUs, Passrate: c.cfg.LogPassrate,
		Estimator: c.cfg.AdvantageEstimator, Custom: c.cfg.CustomAdvantage, Divergences: e.diverged,
	}
	for _, d := range r.Drops {
		step.Drops = append(step.Drops, observe.DropStat{Reason: d.Reason, Groups: d.Groups, Tokens: d.Tokens})
	}
	m := step.Metrics(stats)
	c.kvMetrics(m, "")
	return m
}

// undeliver rewrites the books of a step whose batch could not be built. Its partitions can never
// be complete: the trainer is not waited for to take them.
func (c *core) undeliver(e *endedStep, r *StepReport, err error) {
	books := &r.Accounting
	e.books.drop(reasonMemory, books.Groups.Delivered, books.Sessions.Delivered, books.Tokens.Delivered, err.Error())
	for _, b := range []*Balance{&books.Groups, &books.Sessions, &books.Tokens} {
		b.Dropped, b.Delivered = b.Dropped+b.Delivered, 0
	}
	for i := range r.Partitions {
		p := &r.Partitions[i]
		p.Debt, p.Groups = p.Debt+p.Groups, 0
		if p.Complete && p.Debt > 0 {
			p.Complete, p.Short = false, true
			c.apply(c.machine.Consumed(time.Now(), p.ID))
		}
	}
	r.Debt, r.Groups, r.Drops = r.Debt+r.Groups, 0, e.books.sorted(e.traces)
	e.groups = nil
	r.Error = joinErrors(r.Error, err.Error())
}

func joinErrors(first, then string) string {
	if first == "" {
		return then
	}
	return first + "; then: " + then
}
