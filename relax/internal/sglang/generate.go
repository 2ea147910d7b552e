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

// routerCodeHeader has a router's own reason of a failure; codeNoUpstream is the one for a
// worker that took no connection, which routers answer as 500.
const (
	routerCodeHeader = "X-SMG-Error-Code"
	codeNoUpstream   = "call_upstream_connection_failed"
)

// errGivenUp ends a connection whose aborted request did not answer, or cannot be aborted.
var errGivenUp = errors.New("sglang: aborted by closing the connection")

// A flight is one Generate call as [Client.Abort] sees it.
type flight struct {
	cancel   context.CancelCauseFunc
	aborted  chan struct{}   // closed by the first Abort
	watchers []chan<- string // told the rid when Generate returns; the client's mutex guards it

	mu     sync.Mutex
	worker *worker // has the request now, nil between attempts
	router bool
	rid    string
	since  time.Time // when the attempt began
	over   bool      // Generate returned
}

// begin says where the request is about to be. It is false if the call was aborted, and then
// nothing may be sent.
func (f *flight) begin(w *worker, router bool, rid string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isAborted() {
		return false
	}
	f.worker, f.router, f.rid, f.since = w, router, rid, now
	return true
}

// where says which worker has the request, nil between attempts.
func (f *flight) where() (w *worker, router bool, rid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.worker, f.router, f.rid
}

// markAborted is true the first time.
func (f *flight) markAborted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isAborted() {
		return false
	}
	close(f.aborted)
	return true
}

// isDone says that no abort is needed any more.
func (f *flight) isDone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over || f.worker == nil
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
// [Client.Abort]: then Finish.Type is "abort" and the tokens are those the server had. An
// abort that nobody asked for here, as a weight update makes, is the same with
// Result.Foreign set: the caller goes on from the tokens there are.
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
// error that wraps ctx's cause. There is no read time limit: a paused server is silent for
// long. A worker that answers nothing at all, not even a question for its load, ends its calls
// with a [*TransportError] that wraps [ErrStalled].
func (c *Client) Generate(ctx context.Context, call Call) (Result, error) {
	if err := call.validate(); err != nil {
		return Result{}, fmt.Errorf("request %s: %w", call.RID, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &flight{cancel: cancel, aborted: make(chan struct{})}
	if err := c.register(call.RID, f); err != nil {
		return Result{}, err
	}
	defer c.unregister(call.RID, f)

	granted, err := c.slots.acquire(ctx, c.cfg.Now(), f.aborted)
	if err != nil {
		return Result{}, fmt.Errorf("request %s: %w", call.RID, err)
	}
	if !granted {
		return unsentResult(), nil
	}
	defer c.slots.release()
	b := newBody(&call, c.cfg.SendSessionID)
	defer b.release()
	result, err := c.attempts(ctx, f, &call, b)
	if errors.Is(err, errGivenUp) {
		return abortedResult("connection closed"), nil
	}
	return result, err
}

func unsentResult() Result {
	r := abortedResult("not sent")
	r.Unsent = true
	return r
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
	if _, ok := c.doomed[rid]; ok {
		delete(c.doomed, rid)
		f.markAborted()
	}
	c.calls[rid] = f
	c.keepWatch()
	return nil
}

func (c *Client) unregister(rid string, f *flight) {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	c.mu.Lock()
	delete(c.calls, rid)
	delete(c.aborting, f)
	watchers := f.watchers // no more come: it cannot be found any longer
	c.mu.Unlock()
	for _, in := range watchers {
		in <- rid // there is room for each of them
	}
}

// attempts sends the call until it has an answer or must not be sent again.
func (c *Client) attempts(ctx context.Context, f *flight, call *Call, b *body) (Result, error) {
	var avoid *worker
	pause := c.cfg.Backoff
	internal := 0 // 500s seen
	for n := 0; ; n++ {
		c.maybeRefresh()
		w, router := c.place(call, avoid)
		if call.Placed != nil {
			call.Placed(w.url)
		}
		rid := string(appendAttemptRID(nil, call.RID, n))
		result, err := c.attempt(ctx, f, call, b, w, router, rid)
		c.unplace(ctx, w, err)
		if err == nil {
			result.Attempts = n + 1
			result.Foreign = result.Finish.Type == FinishAbort && !f.isAborted()
			return result, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			if errors.Is(cause, ErrStalled) {
				return Result{}, err // it names the worker
			}
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
	if !f.begin(w, router, rid, c.cfg.Now()) {
		return unsentResult(), nil
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
		c.cancelled(ctx, w, router, rid, sent)
		if errors.Is(err, fasthttp.ErrBodyTooLarge) {
			return Result{}, &ReplyError{RID: rid, Worker: w.url, Problem: fmt.Sprintf("the body is longer than %d bytes", c.cfg.MaxReplyBytes)}
		}
		return Result{}, &TransportError{RID: rid, Worker: w.url, Sent: sent, Err: err}
	}
	c.keepSwept()
	if status := resp.StatusCode(); status != fasthttp.StatusOK {
		err := statusFailure(rid, w.url, status, errorMessage(resp.Body()))
		var failure *StatusError
		if errors.As(err, &failure) {
			failure.Code = string(resp.Header.Peek(routerCodeHeader))
		}
		return Result{}, err
	}
	return readReply(resp.Body(), rid, w.url, call)
}

// cancelled tells the worker, once, that a request whose context ended is not wanted any more.
// A stalled one would not hear it; the closed connection waits for it.
func (c *Client) cancelled(ctx context.Context, w *worker, router bool, rid string, sent bool) {
	cause := context.Cause(ctx)
	if !sent || router || cause == nil || errors.Is(cause, ErrStalled) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errand(w, errand{kind: abortErrand, id: rid})
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
		if router {
			return retry // it ended the upstream request
		}
		if settled, dead := c.settle(ctx, w, rid); settled || dead {
			return retry
		}
		return giveUp // a proxy left it; what is behind may still run
	case 500:
		if status.Code == codeNoUpstream {
			return retry
		}
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
