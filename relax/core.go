package relax

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/gateway"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule/admission"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// heartbeat is how long a step may be silent before it says what it waits for.
const heartbeat = 30 * time.Second

// core is the engine behind [Engine]. One goroutine, the loop, owns the schedule and
// everything a step is made of; others hand it work through do and post.
type core struct {
	cfg     resolved
	alloc   Allocator
	environ []string
	format  *chat.Format
	// divergences counts requests that did not go on from their Session's newest turn.
	divergences struct {
		sync.Mutex
		by map[forest.Reason]int64
		// told is what it was at the last step end.
		told map[forest.Reason]int64
	}
	stopIDs     []int32 // the model's and the configured ones
	isStop      map[int32]bool
	experts     expertShape
	simulator   *sglangtest.Server // nil with a real backend
	backend     generator
	backendURL  string
	backendInfo sglang.Info
	admission   *admitter // nil unless agentic_program_admission is set
	launcher    *agent.Launcher
	gateway     *gateway.Gateway
	metricsPage *metricsPage // nil unless metrics_port is set
	runDir      runDir
	traces      *tracer // nil unless trace_dir is set

	goroutines *safego.Group
	ctx        context.Context // ends at close, with the reason as its cause
	cancel     context.CancelCauseFunc
	events     *eventQueue
	weight     atomic.Int64
	lastTicket atomic.Uint64
	inbox      chan func()
	closing    chan struct{} // holds one token while a close runs, and guards closed
	closed     bool          // nothing runs any more, and the rest was freed

	sessionsMu sync.Mutex
	sessions   map[string]*session // by bearer token, only while requests are answered

	train rules // of train Groups

	// Owned by the loop.
	machine *schedule.Machine
	actions []schedule.Action // decided, not carried out yet
	acting  bool              // an apply is carrying them out
	groups  map[schedule.GroupID]*group
	tickets map[schedule.RequestID]*ticket
	recalls []string     // rids of attempts that are wanted back, until apply ends
	pauses  []chan error // pauses that wait for their Quiet; each holds one value
	tasks   []Task
	step    *stepState // until its step end is reported; Groups may go on without one
	books   ledger     // of train Groups
	debts   debts
	totals  totals
	strays  []stray // of what ended while no step was open; they go with the next one's
	// filteredRun counts the train Groups that filters took out since they kept one.
	filteredRun int
	asks        map[uint64]openAsk
	nextAsk     uint64
	lifecycle   admission.Lifecycle
	batches     uint64
	heard       time.Time // last event of the open step
}

// A generator is the backend as a turn needs it: a [sglang.Client], or a stand-in in benchmarks.
type generator interface {
	// Generate calls call.Placed at each dispatch: version and time are taken there.
	Generate(ctx context.Context, call sglang.Call) (sglang.Result, error)
	AbortAll(ctx context.Context, rids []string, landed func(rid string)) error
	CloseSession(session string)
	Close()
}

// An ask takes the reply to an event. An error leaves the event open.
type ask func(reply []byte) error

// An openAsk is an event that waits for its reply.
type openAsk struct {
	kind  EventKind
	group *group // that it is about, nil if it is about the step
	reply ask
	since time.Time
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
	if c.step != nil {
		wait = time.Until(c.heard.Add(heartbeat))
	}
	if deadline := c.machine.Deadline(); !deadline.IsZero() {
		wait = min(wait, time.Until(deadline))
	}
	return max(wait, 0)
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

// askFor queues an event about a Group, or if it is nil about the step, that wants a reply.
func (c *core) askFor(g *group, kind EventKind, data any, reply ask) {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("event %d does not marshal: %v", kind, err)) // its parts are ours
	}
	c.nextAsk++
	ev := Event{Kind: kind, ID: c.nextAsk, RolloutID: c.rolloutOf(g), Data: raw}
	c.asks[ev.ID] = openAsk{kind: kind, group: g, reply: reply, since: time.Now()}
	c.emit(ev)
}

// rolloutOf is the step a Group is in, or the open one.
func (c *core) rolloutOf(g *group) int64 {
	switch {
	case g != nil && g.isLeased():
		return g.rollout
	case c.step != nil:
		return c.step.rollout
	}
	return -1
}

// forgetAsks drops what nobody answered and nobody waits for any more: the tasks of an earlier step,
// and questions about Groups that are over.
func (c *core) forgetAsks() {
	for id, open := range c.asks {
		if open.group == nil || c.groups[open.group.id] != open.group {
			delete(c.asks, id)
		}
	}
}

func (c *core) reply(id uint64, data []byte) error {
	return c.do(func() error {
		open, ok := c.asks[id]
		if !ok {
			return fmt.Errorf("%w: reply to event %d: no such event is open; it was answered before, or its rollout is over", ErrState, id)
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

// countDivergence counts a request that did not go on from its Session's newest turn.
func (c *core) countDivergence(why forest.Reason) {
	c.divergences.Lock()
	defer c.divergences.Unlock()
	if c.divergences.by == nil {
		c.divergences.by = map[forest.Reason]int64{}
	}
	c.divergences.by[why]++
}

// newDivergences is what was counted since it was asked last.
func (c *core) newDivergences() map[string]int64 {
	c.divergences.Lock()
	defer c.divergences.Unlock()
	out := map[string]int64{}
	for why, n := range c.divergences.by {
		if more := n - c.divergences.told[why]; more > 0 {
			out[string(why)] = more
		}
	}
	c.divergences.told = maps.Clone(c.divergences.by)
	return out
}

func (c *core) baseURL() string { return c.gateway.BaseURL() }

func (c *core) log(l observe.Line) {
	c.emit(Event{Kind: EventLog, RolloutID: c.rolloutOf(nil), Data: l.AppendJSON(nil)})
}

// emit queues an event from the loop.
func (c *core) emit(ev Event) {
	c.heard = time.Now()
	c.events.push(ev)
}

// warn logs a text from outside the loop.
func (c *core) warn(text string) {
	c.post(func() { c.log(observe.Status(observe.Warning, text)) })
}

// close ends everything in the order that lets nothing new start: the engine's context first
// (parked requests are answered), then agents, the endpoint, the backend. A close that ran
// out of time can be repeated.
func (c *core) close(ctx context.Context) error {
	c.cancel(ErrClosed)
	c.events.close(context.Cause(c.ctx))
	if !c.enterClose(ctx) {
		return fmt.Errorf("relax: close: another close runs: %w", ctx.Err())
	}
	defer func() { <-c.closing }()
	if !c.closed {
		if err := c.shutdown(ctx); err != nil {
			return err
		}
	}
	if err := context.Cause(c.ctx); errors.Is(err, ErrPanic) {
		return err // nobody may have called since
	}
	return nil
}

// enterClose takes the closing token. It is there without a wait unless another close runs, so
// that a context which has ended already still ends the agents.
func (c *core) enterClose(ctx context.Context) bool {
	select {
	case c.closing <- struct{}{}:
		return true
	default:
	}
	select {
	case c.closing <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *core) shutdown(ctx context.Context) error {
	if c.launcher != nil {
		// What lies behind the agents, close_session calls of their Sessions among it, ends after them.
		if err := c.launcher.Close(ctx); err != nil {
			return err
		}
	}
	var errs []error
	if c.gateway != nil {
		errs = append(errs, c.gateway.Close(ctx))
	}
	errs = append(errs, c.metricsPage.close(ctx))
	if c.backend != nil {
		c.awaitCloseSessions(ctx)
		c.backend.Close()
	}
	if err := c.goroutines.Wait(ctx); err != nil {
		// What still runs may use the tokenizer and the directory: a later close ends them.
		return errors.Join(append(errs, fmt.Errorf("relax: close: still running: %v; close again to wait on: %w", c.goroutines.Names(), err))...)
	}
	c.closed = true
	c.traceRest()
	if c.simulator != nil {
		errs = append(errs, c.simulator.Close())
	}
	if c.format != nil {
		errs = append(errs, c.format.Close())
	}
	errs = append(errs, c.runDir.remove())
	return errors.Join(errs...)
}
