package sglang

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrStalled ends a call whose worker answered nothing for Config.StallAfter, not even what it
// is asked for beside its requests. The request may still be there, so it was not repeated.
var ErrStalled = errors.New("sglang: the worker answers nothing any more, not even GET /v1/loads")

const (
	// quietLimit is how many questions in a row a worker may leave unanswered before it gets no
	// new requests.
	quietLimit = 2
	// stallLimit is how many it must leave unanswered, beside Config.StallAfter, before its
	// requests end: when this process itself stood still, one answer is late whatever the worker does.
	stallLimit = 3
)

// keepWatch starts the watch over workers with requests. The caller holds mu.
//
// A request has no time limit, because a slow or paused server is silent for long. Its worker
// has one: it is asked for its load, which servers answer from memory also while they are
// paused. Any answer will do. TCP keep-alives find a dead host but not a stopped process.
func (c *Client) keepWatch() {
	if !c.watching && c.cfg.StallAfter > 0 && c.spawnLocked("sglang-watch", c.watch) {
		c.watching = true
	}
}

// watch looks at the workers while calls are in flight.
func (c *Client) watch() {
	for {
		select {
		case <-c.cfg.After(c.cfg.WatchEvery):
		case <-c.ctx.Done():
			return
		}
		c.mu.Lock()
		c.watching = len(c.calls) > 0
		again := c.watching
		busy := c.busyWorkers()
		c.mu.Unlock()
		if !again {
			return
		}
		c.maybeRefresh() // requests that last long must not keep the list old
		var asked sync.WaitGroup
		for _, w := range busy {
			asked.Add(1)
			if !c.spawn("sglang-watch", func() { defer asked.Done(); c.lookAt(w) }) {
				asked.Done()
			}
		}
		asked.Wait()
	}
}

// busyWorkers are those with requests. The caller holds mu.
func (c *Client) busyWorkers() (out []*worker) {
	for _, w := range c.fleet.all(c.root) {
		if w.load > 0 {
			out = append(out, w)
		}
	}
	return out
}

// lookAt asks one worker and draws the consequences.
func (c *Client) lookAt(w *worker) {
	_, _, err := c.controlCall(c.ctx, w, "GET", "/v1/loads?include=core", nil)
	if context.Cause(c.ctx) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	if err == nil {
		w.hear(now)
		return
	}
	if w.quiet++; w.quiet >= quietLimit && w != c.root {
		w.down = true // the next refresh asks whether it is back
		w.nextProbe = now.Add(c.cfg.RefreshEvery)
	}
	if w.quiet < stallLimit || now.Sub(w.heard) < c.cfg.StallAfter {
		return
	}
	w.down = w != c.root
	for _, f := range c.calls {
		if at, _, _ := f.where(); at == w {
			f.cancel(ErrStalled)
		}
	}
}

// hear notes that the worker answered something. The caller holds the client's mutex.
func (w *worker) hear(now time.Time) {
	w.heard, w.quiet = now, 0
}
