package sglang

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Abort asks for the end of the generate call with this rid (the caller's, without attempt).
// It returns at once and reports whether such a call is in flight. The call itself returns
// soon with Finish.Type "abort" and the tokens there are, or with a finish that was faster.
//
// In the background the abort is sent to the one worker that has the request, again every
// AbortEvery because servers forget aborts that came too early, until Generate returned.
// After AbortGrace the connection is closed instead and the partial tokens are lost; so it is
// at once for requests that go through a router, which cannot abort.
func (c *Client) Abort(rid string) bool {
	c.mu.Lock()
	f := c.calls[rid]
	c.mu.Unlock()
	if f == nil {
		return false
	}
	f.mu.Lock()
	again := f.isAborted()
	if !again {
		close(f.aborted)
	}
	f.mu.Unlock()
	if !again {
		c.spawn("sglang-abort", func() { c.abortLoop(f) })
	}
	return true
}

// abortLoop repeats the abort of f until its call returned.
func (c *Client) abortLoop(f *flight) {
	grace := c.cfg.After(c.cfg.AbortGrace)
	for {
		f.mu.Lock()
		w, router, rid := f.worker, f.router, f.rid
		f.mu.Unlock()
		switch {
		case w == nil: // between attempts: Generate sees the mark itself
		case router:
			f.cancel(errGivenUp)
		default:
			// A worker that cannot be told is tried again; its death ends the connection.
			_ = c.postAbort(c.ctx, w, rid)
		}
		select {
		case <-f.done:
			return
		case <-grace:
			f.cancel(errGivenUp)
			<-f.done
			return
		case <-c.cfg.After(c.cfg.AbortEvery):
		}
	}
}

// postAbort sends one abort. Nil means that the server took it, not that anything ended.
func (c *Client) postAbort(ctx context.Context, w *worker, rid string) error {
	body := append(appendString([]byte(`{"rid":`), rid), '}')
	status, reply, err := c.controlCall(ctx, w, "POST", "/abort_request", body)
	if err != nil {
		return fmt.Errorf("abort of %s at %s: %w", rid, w.url, err)
	}
	if status != 200 {
		return &StatusError{RID: rid, Worker: w.url, Status: status, Message: shorten(errorMessage(reply))}
	}
	return nil
}

// CloseSession tells every worker that a Session ended, so that session-aware caches let its
// entries go; a worker that does not know it only logs. It does nothing without
// Config.SendSessionID. Workers are told one after the other, each within ControlTimeout;
// the errors are joined.
func (c *Client) CloseSession(ctx context.Context, session string) error {
	if !c.cfg.SendSessionID {
		return nil
	}
	body := append(appendString([]byte(`{"session_id":`), session), '}')
	var failed []error
	for _, w := range c.targets() {
		status, reply, err := c.controlCall(ctx, w, "POST", "/close_session", body)
		if err == nil && status != 200 {
			err = &StatusError{RID: "close_session", Worker: w.url, Status: status, Message: shorten(errorMessage(reply))}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("close session at %s: %w", w.url, err))
		}
	}
	return errors.Join(failed...)
}

// targets are the workers requests go to now.
func (c *Client) targets() []*worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*worker(nil), c.fleet.active...)
}

// isDial tells that no connection was made at all.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// isRefused tells that nobody listens at the address, so whatever ran there is gone.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
