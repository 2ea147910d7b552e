package relax

import (
	"context"
	"strconv"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// lastTokens bounds the wait for the tokens of an attempt that nobody wants any more.
const lastTokens = 2 * time.Second

// attempt is one flight to the backend and back. It is at the backend from its last dispatch on; what
// came before, a wait for a place there or for a repeat included, is queueing. The version of its tokens
// is the reply's where that is a number, else the one set at that dispatch.
func (t *turn) attempt(ctx context.Context, try observe.Attempt) (sglang.Result, error) {
	c := t.session.core
	call, placing := t.call(try.RID), c.admission.placing(try.RID)
	t.version, t.dispatched = 0, 0
	call.Placed = func(worker string) {
		t.version, t.dispatched = t.session.core.weight.Load(), t.session.since()
		if placing != nil {
			placing(worker)
		}
	}
	result, err := t.send(ctx, call)
	c.admission.landed(try.RID, len(result.IDs))
	if !result.Unsent {
		t.attempts++
		try.Version, try.Started = t.version, t.dispatched
	}
	if v, noNumber := strconv.ParseInt(result.WeightVersion, 10, 64); noNumber == nil {
		try.Version = v
	}
	if try.Tokens, try.Finish = len(result.IDs), result.Finish.Type; err != nil {
		try.Finish = observe.FinishError
	} else if result.Unsent {
		try.Finish = observe.FinishNotSent
	}
	t.version = try.Version
	try = t.wrote(try)
	t.queued, t.generating = t.queued+try.Gated(), t.generating+try.Generated()
	return result, err
}

// send makes a call. When ctx ends, because the client has left or the Group was dropped, the attempt
// is aborted at the backend and what it had sampled is waited for, so that those tokens have their
// fate as well; at most for lastTokens, and not when the engine closes.
func (t *turn) send(ctx context.Context, call sglang.Call) (sglang.Result, error) {
	c := t.session.core
	sending, cancel := context.WithCancelCause(c.ctx)
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		waiting, end := context.WithTimeout(sending, lastTokens)
		defer end()
		_ = c.backend.AbortAll(waiting, []string{call.RID}, nil) // the call itself says how it came back
		<-waiting.Done()
		cancel(context.Cause(ctx))
	})
	defer func() {
		cancel(nil)
		if !stop() {
			<-over
		}
	}()
	return c.backend.Generate(sending, call)
}

func (t *turn) call(rid string) sglang.Call {
	c := t.session.core
	sampling := t.session.group.rules.sampling
	sampling.MaxNewTokens = t.budget - len(t.ids)
	sampling.StopTokenIDs = c.stopIDs
	if len(t.req.Stop) > 0 {
		sampling.Stop = t.req.Stop
	}
	if sampling.Seed = t.req.Seed; sampling.Seed == nil {
		sampling.Seed = t.session.seed()
	}
	prefix := t.node.Prefix(nil)
	if len(t.ids) > 0 {
		prefix = append(prefix, t.ids)
	}
	call := sglang.Call{RID: rid, Session: t.session.id, Prefix: prefix, Sampling: sampling}
	if t.routes() {
		call.RoutedExperts, call.RoutedExpertsStart = true, t.routedEnd()
	}
	return call
}
