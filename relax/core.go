package relax

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/internal/gateway"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// heartbeat is how long a step may be silent before it says what it waits for.
const heartbeat = 30 * time.Second

// core is the engine behind [Engine]. One goroutine, the loop, owns the schedule and
// everything a step is made of; others hand it work through do and post.
type core struct {
	cfg         resolved
	alloc       Allocator
	environ     []string
	format      *chat.Format
	stopIDs     []int32 // the model's and the configured ones
	isStop      map[int32]bool
	simulator   *sglangtest.Server // nil with a real backend
	backend     generator
	backendURL  string
	backendInfo sglang.Info
	launcher    *agent.Launcher
	gateway     *gateway.Gateway
	runDir      runDir

	goroutines *safego.Group
	ctx        context.Context // ends at close, with the reason as its cause
	cancel     context.CancelCauseFunc
	events     *eventQueue
	gate       *gate
	weight     atomic.Int64
	inbox      chan func()
	closing    chan struct{} // holds one token while a close runs, and guards closed
	closed     bool          // everything has ended

	sessionsMu sync.Mutex
	sessions   map[string]*session // by bearer token, only while requests are answered

	// Owned by the loop.
	machine *schedule.Machine
	groups  map[schedule.GroupID]*group
	tasks   []Task
	step    *stepState
	asks    map[uint64]ask
	nextAsk uint64
	batches uint64
	heard   time.Time // last event of the open step
}

// A generator is the backend as a turn needs it: a [sglang.Client], or a stand-in in benchmarks.
type generator interface {
	Generate(ctx context.Context, call sglang.Call) (sglang.Result, error)
	Abort(rid string) bool
	Close()
}

// An ask is an event that waits for a reply.
type ask struct {
	event Event
	reply func([]byte) error
}

// loop owns the schedule: it runs what others post and watches deadlines.
func (c *core) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(c.nextWake())
		select {
		case fn := <-c.inbox:
			fn()
			c.heard = time.Now()
		case now := <-timer.C:
			c.apply(c.machine.Tick(now))
			c.beat(now)
		case <-c.ctx.Done():
			return
		}
	}
}

// nextWake is the time until the loop must look at a deadline or say that it waits.
func (c *core) nextWake() time.Duration {
	wait := heartbeat
	if deadline := c.machine.Deadline(); !deadline.IsZero() {
		wait = min(wait, time.Until(deadline))
	}
	return max(wait, 0)
}

func (c *core) beat(now time.Time) {
	if c.step == nil || now.Sub(c.heard) < heartbeat {
		return
	}
	c.heard = now
	counts := c.machine.Counts()
	c.log(observe.Event("ROLLOUT", "idle_heartbeat",
		observe.F("rollout", c.step.rollout), observe.F("debt", counts.Debt),
		observe.F("warming_prepare_group_count", counts.Preparing),
		observe.F("runtime_reward_group_count", counts.Running+counts.Scoring),
		observe.F("resident_group_count", counts.Resident)))
}

// post hands fn to the loop. It is dropped if the engine is closed.
func (c *core) post(fn func()) {
	select {
	case c.inbox <- fn:
	case <-c.ctx.Done():
	}
}

// do runs fn in the loop and returns its error.
func (c *core) do(fn func() error) error {
	done := make(chan error, 1)
	select {
	case c.inbox <- func() { done <- fn() }:
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
	select {
	case err := <-done:
		return err
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// poison makes every later call fail: after a panic the engine's state is not to be trusted.
func (c *core) poison(name string, value any, stack []byte) {
	c.cancel(fmt.Errorf("%w: goroutine %s: %v\n%s", ErrPanic, name, value, stack))
	c.events.close(context.Cause(c.ctx))
}

func (c *core) submit(tasks []Task) error {
	for i, t := range tasks {
		if err := t.check(); err != nil {
			return fmt.Errorf("%w: task %d: %w", ErrInvalid, i, err)
		}
	}
	return c.do(func() error {
		c.queue(tasks)
		return nil
	})
}

func (c *core) queue(tasks []Task) {
	c.tasks = append(c.tasks, tasks...)
	c.apply(c.machine.QueueTasks(time.Now(), len(tasks)))
}

// check refuses what the agent could not read.
func (t *Task) check() error {
	if len(t.Messages) > 0 {
		var list []json.RawMessage
		if err := json.Unmarshal(t.Messages, &list); err != nil {
			return fmt.Errorf("messages: expected a list of message objects: %w", err)
		}
	}
	if len(t.Metadata) > 0 {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(t.Metadata, &object); err != nil {
			return fmt.Errorf("metadata: expected an object: %w", err)
		}
	}
	return nil
}

func (c *core) poll(ctx context.Context) (Event, error) { return c.events.poll(ctx) }
func (c *core) setReadyFunc(f func())                   { c.events.setReady(f) }

func (c *core) pendingEvents() int {
	n, _ := c.events.pending()
	return n
}

// askFor queues an event that wants a reply.
func (c *core) askFor(kind EventKind, data any, reply func([]byte) error) {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("event %d does not marshal: %v", kind, err)) // its parts are ours
	}
	c.nextAsk++
	ev := Event{Kind: kind, ID: c.nextAsk, RolloutID: c.step.rollout, Data: raw}
	c.asks[ev.ID] = ask{event: ev, reply: reply}
	c.events.push(ev)
}

func (c *core) reply(id uint64, data []byte) error {
	return c.do(func() error {
		open, ok := c.asks[id]
		if !ok {
			return fmt.Errorf("%w: reply to event %d: no such event is open", ErrInvalid, id)
		}
		if err := open.reply(data); err != nil {
			return fmt.Errorf("%w: reply to event %d: %w", ErrInvalid, id, err)
		}
		delete(c.asks, id)
		return nil
	})
}

func (c *core) setWeightVersion(version int64) error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	if version < 0 {
		return fmt.Errorf("%w: weight version %d: expected zero or a positive integer", ErrInvalid, version)
	}
	c.weight.Store(version)
	return nil
}

func (c *core) pause(ctx context.Context) error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	for _, f := range c.gate.close() {
		c.backend.Abort(f.rid) // the client repeats it until the answer is in
	}
	c.post(func() { c.machine.Pause(time.Now()) })
	return c.gate.wait(ctx)
}

func (c *core) resume() error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	c.post(func() { c.machine.Resume(time.Now()) })
	c.gate.open()
	return nil
}

func (c *core) baseURL() string { return c.gateway.BaseURL() }

func (c *core) log(l observe.Line) {
	rollout := int64(-1)
	if c.step != nil {
		rollout = c.step.rollout
	}
	c.events.push(Event{Kind: EventLog, RolloutID: rollout, Data: l.AppendJSON(nil)})
}

// close ends everything in the order that lets nothing new start: the engine's context first
// (parked requests are answered), then agents, the endpoint, the backend. A close that ran
// out of time can be repeated.
func (c *core) close(ctx context.Context) error {
	c.cancel(ErrClosed)
	c.events.close(context.Cause(c.ctx))
	select {
	case c.closing <- struct{}{}:
		defer func() { <-c.closing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.closed {
		return nil
	}
	err := c.shutdown(ctx)
	c.closed = ctx.Err() == nil
	return err
}

func (c *core) shutdown(ctx context.Context) error {
	var errs []error
	if c.launcher != nil {
		errs = append(errs, c.launcher.Close(ctx))
	}
	if c.gateway != nil {
		errs = append(errs, c.gateway.Close(ctx))
	}
	if c.backend != nil {
		c.backend.Close()
	}
	if err := c.goroutines.Wait(ctx); err != nil {
		errs = append(errs, fmt.Errorf("relax: close: still running: %v: %w", c.goroutines.Names(), err))
	}
	if c.simulator != nil {
		errs = append(errs, c.simulator.Close())
	}
	if c.format != nil {
		errs = append(errs, c.format.Close())
	}
	errs = append(errs, c.runDir.remove())
	return errors.Join(errs...)
}
