package relax

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule/admission"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// A kvBackend knows the KV caches of its workers.
type kvBackend interface {
	WorkerFor(session string) string
	Load(ctx context.Context) []sglang.WorkerLoad
}

// An admitter holds attempts back while their worker has no room for them
// (agentic_program_admission). It is the edge of an [admission.Machine]: its lock orders the
// machine's events, its two goroutines ask the workers for their load and watch deadlines, and turns
// wait in it in their own goroutines. Nothing is done under the lock but the machine's own work. A
// nil admitter lets everything through.
type admitter struct {
	backend kvBackend
	log     func(observe.Line) // must not be called by the engine's loop, which it waits for
	// alarm holds a value when the next deadline came nearer.
	alarm chan struct{}

	mu      sync.Mutex
	machine *admission.Machine
	waiters map[string]*admissionWait // by ticket
	armed   time.Time                 // the deadline that is watched, zero for none
}

// An admissionWait is a turn that asked.
type admissionWait struct {
	done     chan struct{}       // closed when it is decided
	decision *admission.Decision // nil: its Session is over
}

func (c *core) openAdmission() error {
	if !c.cfg.AgenticProgramAdmission {
		return nil
	}
	cfg := admission.Defaults(c.cfg.RolloutMaxResponseLen)
	cfg.Headroom, cfg.PressureThreshold = c.cfg.AgenticAdmissionHeadroom, c.cfg.AgenticAdmissionPressureThreshold
	cfg.ExpectedDecodeCap, cfg.MaxWait = c.cfg.AgenticAdmissionExpectedDecodeCap, c.cfg.admissionWait
	cfg.Scope = admission.Scope(c.cfg.AgenticAdmissionScope)
	machine, err := admission.New(cfg)
	if err != nil {
		return &OptionError{Option: "agentic_program_admission", Problem: "cannot be used", Err: err}
	}
	c.admission = &admitter{
		backend: c.backend.(kvBackend), log: func(l observe.Line) { c.post(func() { c.log(l) }) },
		alarm: make(chan struct{}, 1), machine: machine, waiters: map[string]*admissionWait{},
	}
	return nil
}

// start asks the workers once, so that the first requests meet ledgers that know something, and
// goes on in the background. The engine's loop must run.
func (a *admitter) start(ctx context.Context, goroutines *safego.Group) {
	if a == nil {
		return
	}
	a.poll(ctx)
	goroutines.Go("admission-poll", func() { a.polling(ctx) })
	goroutines.Go("admission-timer", func() { a.watch(ctx) })
}

// polling asks the workers for their load, again and again.
func (a *admitter) polling(ctx context.Context) {
	every := time.NewTicker(admission.PollEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			a.poll(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (a *admitter) poll(ctx context.Context) {
	loads := a.backend.Load(ctx)
	if ctx.Err() != nil {
		return // it is the engine that failed, not the workers
	}
	a.event(func(now time.Time) (all []admission.Action) {
		workers := make([]string, len(loads))
		for i, l := range loads {
			workers[i] = l.Worker
			if l.Err != nil {
				all = append(all, a.machine.ReportFailed(now, l.Worker, l.Err)...)
				continue
			}
			all = append(all, a.machine.Reported(now, admission.Report{
				Worker: l.Worker, UsedTokens: l.UsedTokens, MaxTokens: l.MaxTokens, Usage: l.Usage,
			})...)
		}
		return append(all, a.machine.Listed(now, workers)...)
	})
}

// watch ticks the machine at its deadlines.
func (a *admitter) watch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(a.untilDeadline())
		select {
		case <-timer.C:
			a.event(func(now time.Time) []admission.Action { return a.machine.Tick(now) })
		case <-a.alarm:
		case <-ctx.Done():
			return
		}
	}
}

func (a *admitter) untilDeadline() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.armed = a.machine.Deadline(); a.armed.IsZero() {
		return time.Hour // an alarm comes first
	}
	return max(time.Until(a.armed), 0)
}

// event makes an event and carries out what follows from it. A ticket that lost its worker is moved
// to the one its Session has now, which is an event again.
func (a *admitter) event(happen func(now time.Time) []admission.Action) {
	for happen != nil {
		a.mu.Lock()
		displaced, lines := a.carryOut(happen(time.Now()))
		sooner := a.rearm()
		a.mu.Unlock()
		if sooner {
			select {
			case a.alarm <- struct{}{}:
			default: // it is awake already
			}
		}
		for _, l := range lines {
			a.log(l)
		}
		happen = a.moving(displaced)
	}
}

// rearm says whether the next deadline came nearer. The caller holds mu.
func (a *admitter) rearm() bool {
	next := a.machine.Deadline()
	if next.IsZero() || !a.armed.IsZero() && !next.Before(a.armed) {
		return false
	}
	a.armed = next
	return true
}

// carryOut wakes those whose wait is over, and returns what is to be done without the lock. The
// caller holds mu.
func (a *admitter) carryOut(actions []admission.Action) (displaced []admission.Displaced, lines []observe.Line) {
	for _, action := range actions {
		switch act := action.(type) {
		case admission.Grant:
			a.wake(act.Ticket, act.Decision)
		case admission.Cancelled:
			a.wake(act.Ticket, nil)
		case admission.Displaced:
			displaced = append(displaced, act)
		case admission.Warn:
			lines = append(lines, observe.Status(observe.Warning, act.Text, observe.F("worker", act.Worker)))
		case admission.Recovered:
			lines = append(lines, observe.Status(observe.Info, "Admission controls a worker again", observe.F("worker", act.Worker)))
		}
	}
	return displaced, lines
}

func (a *admitter) wake(ticket string, d *admission.Decision) {
	if w := a.waiters[ticket]; w != nil {
		delete(a.waiters, ticket)
		w.decision = d
		close(w.done)
	}
}

// moving is the event that moves tickets to other workers, nil if there are none.
func (a *admitter) moving(displaced []admission.Displaced) func(now time.Time) []admission.Action {
	if len(displaced) == 0 {
		return nil
	}
	workers := make([]string, len(displaced))
	for i, d := range displaced {
		workers[i] = a.backend.WorkerFor(d.Session)
	}
	return func(now time.Time) (all []admission.Action) {
		for i, d := range displaced {
			all = append(all, a.machine.Move(now, d.Ticket, workers[i])...)
		}
		return all
	}
}

// await waits until the attempt may go to its worker, at most agentic_admission_max_wait_s, or until
// recall or ctx ends the wait. Then it is not admitted, and waited is how long it was held so far.
func (a *admitter) await(ctx context.Context, r admission.Request, recall <-chan struct{}) (admitted bool, waited time.Duration, err error) {
	w := &admissionWait{done: make(chan struct{})}
	a.event(func(now time.Time) (actions []admission.Action) {
		a.waiters[r.Ticket] = w
		actions, err = a.machine.Ask(now, r)
		return actions
	})
	if err != nil {
		panic(fmt.Sprintf("admission refuses a ticket: %v", err)) // its parts are ours
	}
	select {
	case <-w.done:
		if w.decision == nil {
			return false, 0, errSessionOver
		}
		select {
		case <-recall: // what was granted by others' return is wanted back as they were
		default:
			return true, 0, nil
		}
	case <-recall:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	a.event(func(now time.Time) (actions []admission.Action) {
		delete(a.waiters, r.Ticket)
		waited, actions = a.machine.Withdraw(now, r.Ticket)
		return actions
	})
	return false, waited, err
}

// placing tells the ledgers where an attempt really goes.
func (a *admitter) placing(ticket string) func(worker string) {
	if a == nil {
		return nil
	}
	return func(worker string) {
		a.event(func(now time.Time) []admission.Action { return a.machine.Started(now, ticket, worker) })
	}
}

// landed ends an attempt that was admitted, whatever became of it.
func (a *admitter) landed(ticket string, tokens int) {
	if a != nil {
		a.event(func(now time.Time) []admission.Action { return a.machine.Landed(now, ticket, tokens) })
	}
}

// sessionOver ends everything of a Session.
func (a *admitter) sessionOver(session string) {
	if a != nil {
		a.event(func(now time.Time) []admission.Action { return a.machine.SessionOver(now, session) })
	}
}

// admit waits for room at the worker of the turn's next attempt. It is false if the schedule wants
// the attempt back; the next one has the age of this one.
func (t *turn) admit(ctx context.Context, k *ticket, leave passage) (bool, error) {
	s := t.session
	a := s.core.admission
	if a == nil {
		return true, nil
	}
	kind := admission.Fresh
	switch {
	case leave.protected:
		kind = admission.Protected
	case t.aborts > 0:
		kind = admission.Resumed
	}
	k.admitting.Store(true)
	defer k.admitting.Store(false)
	admitted, waited, err := a.await(ctx, admission.Request{
		Ticket: k.rid, Session: s.id, Worker: a.backend.WorkerFor(s.id),
		PromptTokens: t.node.Len() + len(t.ids), RemainingTokens: t.budget - len(t.ids),
		Kind: kind, Eval: s.group.origin != nil, Waited: t.waited,
	}, k.recall)
	t.waited = waited
	return admitted, err
}

// shownWaits bounds the held attempts that stats list one by one.
const shownWaits = 100

// AdmissionStats says what program-aware admission holds and why.
type AdmissionStats struct {
	// Stats has the number of held and admitted attempts, and a ledger for each worker.
	admission.Stats
	// Held are the held attempts that wait longest.
	Held []admission.Wait `json:"held"`
}

// stats is nil without admission.
func (a *admitter) stats() *AdmissionStats {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return &AdmissionStats{Stats: a.machine.Stats(time.Now()), Held: a.machine.Waits(shownWaits)}
}

// kvMetrics adds what KV scheduling counted since the last step's end (reference pipeline 8.6), with
// a prefix before each name. What is not switched on has no names.
func (c *core) kvMetrics(into map[string]float64, prefix string) {
	all := map[string]float64{}
	if a := c.admission; a != nil {
		a.mu.Lock()
		maps.Copy(all, a.machine.Metrics())
		a.mu.Unlock()
	}
	if b, ok := c.backend.(statsBackend); ok && c.cfg.AgenticSessionLifecycle {
		fleet := b.Stats()
		maps.Copy(all, c.lifecycle.Metrics(fleet.SessionsClosed, fleet.SessionCloseFailures))
	}
	for name, value := range all {
		into[prefix+name] = value
	}
}
