package sglang

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

const (
	// abortBackoff bounds the growth of the pause between two aborts of one request, in
	// multiples of Config.AbortEvery: SGLang's rule is to ask again every 1 to 3 s.
	abortBackoff = 3
	// doomedFor is how long an abort of a call that is not here yet is remembered.
	doomedFor = time.Minute
)

// Abort asks for the end of the generate call with this rid (the caller's, without attempt).
// It returns at once and reports whether such a call is in flight. The call itself returns
// soon with Finish.Type "abort" and the tokens there are, or with a finish that was faster.
//
// In the background the abort is sent to the one worker that has the request, again after
// AbortEvery, then twice and three times that, because servers forget aborts that came too
// early, until Generate returned. After AbortGrace the connection is closed instead and the
// partial tokens are lost; so it is at once for requests that go through a router, which
// cannot abort. Only the workers behind a router of prefill/decode pairs are asked directly,
// all of them, if all can be reached.
func (c *Client) Abort(rid string) bool {
	c.mu.Lock()
	f := c.calls[rid]
	if f != nil {
		c.abortLocked(f)
	}
	c.mu.Unlock()
	return f != nil
}

// AbortAll is [Client.Abort] of many calls. It returns when all of them have returned, or with
// an error when ctx ends before; the aborts go on then. landed, if not nil, is called in
// this goroutine with each rid whose call is in.
//
// A healthy worker gets one abort call for each of its requests, a few at a time. A rid that
// is not in flight counts as in. It is remembered for a minute: a call of that rid that was
// only on its way returns aborted without being sent.
func (c *Client) AbortAll(ctx context.Context, rids []string, landed func(rid string)) error {
	in := make(chan string, len(rids)) // never blocks who sends
	for _, rid := range c.abortOrDoom(rids, in) {
		in <- rid
	}
	for left := len(rids); left > 0; left-- {
		select {
		case rid := <-in:
			if landed != nil {
				landed(rid)
			}
		case <-ctx.Done():
			return fmt.Errorf("sglang: %d of %d aborted requests have not returned: %w", left, len(rids), context.Cause(ctx))
		}
	}
	return nil
}

// abortOrDoom aborts the calls in flight, which will tell in when they return, and remembers
// and returns the other rids.
func (c *Client) abortOrDoom(rids []string, in chan<- string) (absent []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetDoomed()
	for _, rid := range rids {
		f := c.calls[rid]
		if f == nil {
			c.doomed[rid] = c.cfg.Now()
			absent = append(absent, rid)
			continue
		}
		f.watchers = append(f.watchers, in)
		c.abortLocked(f)
	}
	return absent
}

// forgetDoomed drops old aborts of calls that never came. The caller holds mu.
func (c *Client) forgetDoomed() {
	limit := c.cfg.Now().Add(-doomedFor)
	for rid, at := range c.doomed {
		if at.Before(limit) {
			delete(c.doomed, rid)
		}
	}
}

// An abortion is one abort until its call returned. The client's mutex guards it.
type abortion struct {
	began   time.Time
	due     time.Time // when it is sent again
	tries   int
	pending int // calls queued or under way
}

// abortLocked marks a call and sends its first abort. The caller holds mu.
func (c *Client) abortLocked(f *flight) {
	if !f.markAborted() {
		return
	}
	now := c.cfg.Now()
	a := &abortion{began: now, due: now.Add(c.cfg.AbortEvery)}
	c.aborting[f] = a
	c.sendAbort(f, a)
	if !c.repeating && c.spawnLocked("sglang-aborts", c.repeatAborts) {
		c.repeating = true
	}
}

// sendAbort queues the abort calls of f at the workers that may have it. The caller holds mu.
func (c *Client) sendAbort(f *flight, a *abortion) {
	w, router, rid := f.where()
	switch {
	case w == nil: // between attempts: Generate sees the mark itself
	case !router:
		a.pending++
		c.errand(w, errand{kind: abortErrand, flight: f, id: rid})
	case len(c.fleet.behind) == 0:
		f.cancel(errGivenUp)
	default:
		for _, w := range c.fleet.behind {
			a.pending++
			c.errand(w, errand{kind: abortErrand, flight: f, id: rid})
		}
	}
}

// repeatAborts sends aborts again while there are calls that did not return, and closes the
// connections of those that had AbortGrace. It ends when there are none.
func (c *Client) repeatAborts() {
	for {
		select {
		case <-c.cfg.After(c.cfg.AbortEvery / 2):
		case <-c.ctx.Done():
			return
		}
		c.mu.Lock()
		now := c.cfg.Now()
		for f, a := range c.aborting {
			switch {
			case now.Sub(a.began) >= c.cfg.AbortGrace:
				f.cancel(errGivenUp)
			case a.pending == 0 && !now.Before(a.due):
				a.due = now.Add(c.cfg.AbortEvery)
				c.sendAbort(f, a)
			}
		}
		c.repeating = len(c.aborting) > 0
		again := c.repeating
		c.mu.Unlock()
		if !again {
			return
		}
	}
}

// abortSent notes an abort call that was made, or was not needed any more.
func (c *Client) abortSent(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.aborting[f]
	if a == nil {
		return
	}
	if a.pending--; a.pending == 0 {
		a.tries++
		a.due = c.cfg.Now().Add(time.Duration(min(a.tries, abortBackoff)) * c.cfg.AbortEvery)
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

// isDial tells that no connection was made at all.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// isRefused tells that nobody listens at the address, so whatever ran there is gone.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
