package sglang

// maxSenders is how many errands of one worker are under way at one time, so that a pause with
// a thousand requests does not open a thousand more connections.
const maxSenders = 8

// An errandKind is what an errand tells a worker.
type errandKind int

const (
	abortErrand errandKind = iota // id is the attempt's rid
	closeErrand                   // id is the Session's
)

// An errand is one small call to one worker that nobody waits for. A worker that does not
// answer holds up its own errands only.
type errand struct {
	kind   errandKind
	id     string
	flight *flight    // of an abort that is repeated; nil: sent once
	close  *closeCall // of a closeErrand
}

// An errandQueue is what a worker has to be told. The client's mutex guards it.
type errandQueue struct {
	aborts, closes []errand
	senders        int
}

func (q *errandQueue) add(e errand) {
	if e.kind == abortErrand {
		q.aborts = append(q.aborts, e)
		return
	}
	q.closes = append(q.closes, e)
}

// take returns the next errand, aborts first: a pause waits for those.
func (q *errandQueue) take() (e errand, ok bool) {
	for _, list := range []*[]errand{&q.aborts, &q.closes} {
		if n := len(*list); n > 0 {
			e = (*list)[0]
			if *list = (*list)[1:]; n == 1 {
				*list = nil // its array goes
			}
			return e, true
		}
	}
	return errand{}, false
}

// errand queues a call at w and sees that somebody makes it. The caller holds mu.
func (c *Client) errand(w *worker, e errand) {
	w.errands.add(e)
	if w.errands.senders >= maxSenders {
		return
	}
	if c.spawnLocked("sglang-errands", func() { c.runErrands(w) }) {
		w.errands.senders++
	}
}

// runErrands makes a worker's calls until there are none.
func (c *Client) runErrands(w *worker) {
	for {
		c.mu.Lock()
		e, ok := w.errands.take()
		if !ok {
			w.errands.senders--
			c.mu.Unlock()
			return
		}
		needed := e.flight == nil || !e.flight.isDone()
		if e.kind == abortErrand && needed {
			w.stats.Aborts++
		}
		c.mu.Unlock()
		c.run(w, e, needed)
	}
}

// run makes one call, unless it is not needed any more.
func (c *Client) run(w *worker, e errand, needed bool) {
	if e.kind == closeErrand {
		c.sessionTold(e.close, c.postClose(w, e.id))
		return
	}
	if needed {
		// A worker that cannot be told is tried again, or its connection is closed already; its
		// death ends the connection.
		_ = c.postAbort(c.ctx, w, e.id)
	}
	if e.flight != nil {
		c.abortSent(e.flight)
	}
}
