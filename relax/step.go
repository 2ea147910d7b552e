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

// stepState is what a step has started and what became of it.
type stepState struct {
	rollout int64
	started time.Time
	groups  []*group // delivered, in order of delivery
	scored  int      // Sessions with credit
	books   Accounting
	drops   map[schedule.Reason]*Drop
}

func (c *core) startRollout(rollout int64) error {
	return c.do(func() error {
		if c.step != nil {
			return fmt.Errorf("%w: start rollout %d: rollout %d is still open; poll until its step end", ErrState, rollout, c.step.rollout)
		}
		actions, err := c.machine.Open(time.Now(), rollout)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		c.step = &stepState{rollout: rollout, started: time.Now(), drops: map[schedule.Reason]*Drop{}}
		c.heard = time.Now()
		clear(c.asks) // what an earlier step asked and nobody answered
		c.log(observe.Event("ROLLOUT", "accounting_start",
			observe.F("rollout", rollout),
			observe.F("sessions", c.cfg.RolloutBatchSize*c.cfg.NSamplesPerPrompt),
			observe.F("groups", c.cfg.RolloutBatchSize), observe.F("final_backfill", false)))
		c.apply(actions)
		return nil
	})
}

func (s *stepState) start(sessions int) {
	s.books.Groups.Started++
	s.books.Sessions.Started += int64(sessions)
}

func (s *stepState) deliver(g *group) { s.groups = append(s.groups, g) }

// account writes a Group that is over into the books: every Session and every sampled token
// gets its one fate.
func (s *stepState) account(g *group) {
	sessions := int64(len(g.sessions))
	var sampled int64
	for _, session := range g.sessions {
		sampled += session.sampled()
	}
	s.books.Tokens.Started += sampled
	if g.reason != "" {
		s.books.Groups.Dropped++
		s.books.Sessions.Dropped += sessions
		s.drop(g.reason, 1, sessions, sampled, g.cause)
		return
	}
	var trained int64
	for _, session := range g.sessions {
		trained += session.trained()
	}
	s.books.Groups.Delivered++
	s.books.Sessions.Delivered += sessions
	s.books.Tokens.Delivered += trained
	if rest := sampled - trained; rest != 0 {
		s.drop("not_exported", 0, 0, rest, "sampled outside the exported contexts")
	}
}

func (s *stepState) drop(reason schedule.Reason, groups, sessions, tokens int64, cause string) {
	d := s.drops[reason]
	if d == nil {
		d = &Drop{Reason: string(reason), First: cause}
		s.drops[reason] = d
	}
	d.Groups += groups
	d.Sessions += sessions
	d.Tokens += tokens
	s.books.Tokens.Dropped += tokens
}

func (c *core) progress() {
	raw, err := json.Marshal(map[string]int64{
		"rollout": c.step.rollout, "scored": int64(c.step.scored),
		"done":  int64(len(c.step.groups) * c.cfg.NSamplesPerPrompt),
		"total": int64(c.cfg.RolloutBatchSize * c.cfg.NSamplesPerPrompt),
	})
	if err != nil {
		panic(err) // integers marshal
	}
	c.emit(Event{Kind: EventProgress, RolloutID: c.step.rollout, Data: raw})
}

// endStep builds the batch outside the loop, since it copies every token once and may wait
// for memory, and then reports.
func (c *core) endStep(end schedule.EndStep) {
	slices.SortFunc(c.step.groups, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
	var rows []batch.Row
	for _, g := range c.step.groups {
		rows = append(rows, g.rows...)
	}
	if len(rows) == 0 && c.traces == nil {
		c.report(end, nil, nil)
		return
	}
	c.batches++
	id, groups := c.batches, c.step.groups
	c.goroutines.Go("assemble", func() {
		var b *Batch
		var buildErr error
		if len(rows) > 0 {
			b, buildErr = c.assemble(id, end.Rollout, rows)
		}
		c.traceDelivered(groups, end.Rollout, buildErr)
		var once sync.Once // the batch is reported or freed, whichever comes first
		err := c.do(func() error {
			once.Do(func() { c.report(end, b, buildErr) })
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
func (c *core) report(end schedule.EndStep, b *Batch, buildErr error) {
	s := c.step
	r := StepReport{
		Rollout: end.Rollout, Debt: end.Debt, Seconds: time.Since(s.started).Seconds(), Error: end.Failure,
		Groups: len(s.groups), Accounting: s.books, Drops: s.sortedDrops(),
	}
	var stats []observe.RowStat
	for _, g := range s.groups {
		stats = append(stats, g.stats...)
	}
	r.Metrics, r.Rows = observe.StepMetrics(stats), len(stats)
	if buildErr != nil {
		s.undeliver(&r, buildErr)
	}
	c.log(observe.Event("ROLLOUT", "accounting_end",
		observe.F("rollout", r.Rollout), observe.F("groups", r.Groups), observe.F("rows", r.Rows), observe.F("debt", r.Debt),
		observe.F("resident_groups", len(c.groups)), observe.F("interrupted_groups", 0)))
	if b != nil {
		c.emit(Event{Kind: EventBatch, RolloutID: end.Rollout, Batch: b})
	}
	raw, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("step report does not marshal: %v", err))
	}
	c.step = nil
	c.emit(Event{Kind: EventStepEnd, RolloutID: end.Rollout, Data: raw})
}

// undeliver rewrites the books of a step whose batch could not be built.
func (s *stepState) undeliver(r *StepReport, err error) {
	books := &s.books
	s.drop(reasonMemory, books.Groups.Delivered, books.Sessions.Delivered, books.Tokens.Delivered, err.Error())
	for _, b := range []*Balance{&books.Groups, &books.Sessions} {
		b.Dropped, b.Delivered = b.Dropped+b.Delivered, 0
	}
	books.Tokens.Delivered = 0
	r.Debt, r.Groups, r.Rows, r.Metrics = r.Debt+r.Groups, 0, 0, map[string]float64{}
	r.Accounting, r.Drops = *books, s.sortedDrops()
	if r.Error != "" {
		r.Error += "; then: "
	}
	r.Error += err.Error()
}

func (s *stepState) sortedDrops() []Drop {
	out := make([]Drop, 0, len(s.drops))
	for _, d := range s.drops {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Drop) int { return cmp.Compare(a.Reason, b.Reason) })
	return out
}
