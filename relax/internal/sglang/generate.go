package sglang

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/valyala/fasthttp"
)

// routingHeader is what routers place a request by.
const routingHeader = "X-SMG-Routing-Key"

// errGivenUp ends a connection whose aborted request did not answer, or cannot be aborted.
var errGivenUp = errors.New("sglang: aborted by closing the connection")

// A flight is one Generate call as [Client.Abort] sees it.
type flight struct {
	cancel  context.CancelCauseFunc
	aborted chan struct{} // closed by the first Abort
	done    chan struct{} // closed when Generate returned

	mu     sync.Mutex
	worker *worker // has the request now, nil between attempts
	router bool
	rid    string
}

// begin says where the request is about to be. It is false if the call was aborted, and then
// nothing may be sent.
func (f *flight) begin(w *worker, router bool, rid string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isAborted() {
		return false
	}
	f.worker, f.router, f.rid = w, router, rid
	return true
}

func (f *flight) end() {
	f.mu.Lock()
	f.worker = nil
	f.mu.Unlock()
}

func (f *flight) isAborted() bool {
	select {
	case <-f.aborted:
		return true
	default:
		return false
	}
}

// Generate samples one continuation and returns it, also when it was cut short by
// [Client.Abort]: then Finish.Type is "abort" and the tokens are those the server had.
//
// An attempt that the backend did not accept (no connection, request not completely sent,
// 429, 503) is repeated with a new rid and a growing pause; so is one that a proxy answered
// 502 or 504. A 500 is repeated once. If the connection breaks after the request had left,
// the old rid is first aborted at its worker, within a few tries; the attempt is repeated only
// if that was acknowledged, or the worker refuses connections (its requests died with it), or the
// connection went through a router (which ends the upstream request with it). Otherwise, and
// when attempts run out, the error is a [*TransportError] or [*StatusError]. A
// [*ContextLengthError] and a [*ReplyError] are never repeated.
//
// When ctx ends Generate closes the connection, tells the worker to abort, and returns an
// error that wraps ctx's cause. There is no read time limit: a paused server is silent for long.
func (c *Client) Generate(ctx context.Context, call Call) (Result, error) {
	if err := call.validate(); err != nil {
		return Result{}, fmt.Errorf("request %s: %w", call.RID, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &flight{cancel: cancel, aborted: make(chan struct{}), done: make(chan struct{})}
	if err := c.register(call.RID, f); err != nil {
		return Result{}, err
	}
	defer c.unregister(call.RID, f)

	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-f.aborted:
		return abortedResult("not sent"), nil
	case <-ctx.Done():
		return Result{}, fmt.Errorf("request %s: %w", call.RID, context.Cause(ctx))
	}
	b := newBody(&call, c.cfg.SendSessionID)
	defer b.release()
	result, err := c.attempts(ctx, f, &call, b)
	if errors.Is(err, errGivenUp) {
		return abortedResult("connection closed"), nil
	}
	return result, err
}

// abortedResult is the answer of an aborted call that has no answer from the backend.
func abortedResult(why string) Result {
	return Result{Finish: Finish{Type: FinishAbort, Message: "aborted by the client: " + why}}
}

func (c *Client) register(rid string, f *flight) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if c.calls[rid] != nil {
		return fmt.Errorf("request %s: rid is in flight already", rid)
	}
	c.calls[rid] = f
	return nil
}

func (c *Client) unregister(rid string, f *flight) {
	c.mu.Lock()
	delete(c.calls, rid)
	c.mu.Unlock()
	close(f.done)
}

// attempts sends the call until it has an answer or must not be sent again.
func (c *Client) attempts(ctx context.Context, f *flight, call *Call, b *body) (Result, error) {
	var avoid *worker
	pause := c.cfg.Backoff
	internal := 0 // 500s seen
	for n := 0; ; n++ {
		c.maybeRefresh()
		w, router := c.place(call.key(), avoid)
		rid := string(appendAttemptRID(nil, call.RID, n))
		result, err := c.attempt(ctx, f, call, b, w, router, rid)
		c.unplace(w)
		if err == nil {
			result.Attempts = n + 1
			return result, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return Result{}, fmt.Errorf("request %s: %w", call.RID, cause)
		}
		next := c.judge(ctx, w, router, rid, err)
		if next == retryOnce {
			internal++
		}
		if next == giveUp || internal > 1 || n+1 >= c.cfg.MaxAttempts {
			return Result{}, err
		}
		if f.isAborted() {
			return abortedResult(err.Error()), nil
		}
		avoid = w
		if next == retryNow {
			continue
		}
		if err := c.wait(ctx, jittered(pause, rid), f.aborted); err != nil {
			return Result{}, fmt.Errorf("request %s: %w", call.RID, err)
		}
		pause = min(2*pause, c.cfg.BackoffMax)
	}
}

// attempt sends the call once.
func (c *Client) attempt(ctx context.Context, f *flight, call *Call, b *body, w *worker, router bool, rid string) (Result, error) {
	if !f.begin(w, router, rid) {
		return abortedResult("not sent"), nil
	}
	defer f.end()
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	c.prepare(req, w, "POST", "/generate")
	req.Header.SetContentType("application/json")
	// Without the key a router with an Authorization header would send everything to one worker.
	req.Header.Set(routingHeader, call.key())
	req.SetBodyRaw(b.forAttempt(rid))

	sent, err := w.pool.exchange(ctx, req, resp)
	if err != nil {
		if sent && context.Cause(ctx) != nil && !router {
			c.spawn("sglang-abort", func() { _ = c.postAbort(c.ctx, w, rid) })
		}
		return Result{}, &TransportError{RID: rid, Worker: w.url, Sent: sent, Err: err}
	}
	c.keepSwept()
	if status := resp.StatusCode(); status != fasthttp.StatusOK {
		return Result{}, statusFailure(rid, w.url, status, errorMessage(resp.Body()))
	}
	return readReply(resp.Body(), rid, w.url, call.promptLen())
}

// A verdict says what follows a failed attempt.
type verdict int

const (
	giveUp verdict = iota
	retry
	retryNow  // another worker is there, no pause needed
	retryOnce // may be the request's own fault
)

// judge decides what follows err. It settles what an attempt may have left at its worker.
func (c *Client) judge(ctx context.Context, w *worker, router bool, rid string, err error) verdict {
	var transport *TransportError
	if errors.As(err, &transport) {
		return c.judgeTransport(ctx, w, router, rid, transport)
	}
	var status *StatusError
	if !errors.As(err, &status) {
		return giveUp
	}
	switch status.Status {
	case 429, 503:
		return retry
	case 502, 504:
		if !router {
			_ = c.postAbort(ctx, w, rid) // a proxy gave up; what is behind it may still run
		}
		return retry
	case 500:
		return retryOnce
	}
	return giveUp
}

func (c *Client) judgeTransport(ctx context.Context, w *worker, router bool, rid string, err *TransportError) verdict {
	if !err.Sent {
		if isDial(err.Err) && c.refused(w) {
			return retryNow
		}
		return retry
	}
	if router {
		return retry
	}
	switch settled, dead := c.settle(ctx, w, rid); {
	case dead && c.refused(w):
		return retryNow
	case settled, dead:
		return retry
	}
	return giveUp
}

// settle makes sure that an attempt whose connection broke does not go on: the worker took
// the abort, or nobody listens there any more. A worker that is just dying may first break the
// connections of aborts too, so it is asked a few times.
func (c *Client) settle(ctx context.Context, w *worker, rid string) (settled, dead bool) {
	const tries = 5
	pause := c.cfg.Backoff
	for range tries {
		err := c.postAbort(ctx, w, rid)
		if err == nil {
			return true, false
		}
		if isRefused(err) {
			return false, true
		}
		if c.wait(ctx, pause, nil) != nil {
			break
		}
		pause *= 2
	}
	return false, false
}

// jittered spreads pauses over 75–125 % by the attempt's id, so that requests which failed
// together do not come back together.
func jittered(d time.Duration, rid string) time.Duration {
	part := time.Duration(xxhash.Sum64String(rid) % 512)
	return d*3/4 + d*part/1024
}
