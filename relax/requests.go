package relax

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// A ticket is one model request as the schedule sees it: it waits for its Pass, goes to the
// backend and comes back, as often as it is aborted. Its turn waits in the request's own
// goroutine, without a lock; what the schedule decides comes to it by the channels.
type ticket struct {
	id      schedule.RequestID
	session *session
	// rid names the next attempt. The turn sets it while the ticket waits for no Pass.
	rid string
	// pass lets the next attempt through, recall wants it back. Each holds one value, so the loop
	// never waits.
	pass   chan passage
	recall chan struct{}
	// admitting: it was let through and waits for room at its worker.
	admitting atomic.Bool

	// The loop's.
	at      string    // rid of the attempt that was let through, "" while there is none
	asked   bool      // the attempt is wanted back
	aborted bool      // it came back unfinished and was not let through since
	since   time.Time // when the present wait began
}

// A passage is the leave to make one attempt.
type passage struct {
	// rollout is the step it belongs to.
	rollout int64
	// protected: the Session was aborted often enough, and is not aborted any more.
	protected bool
}

// arrive takes a request to the schedule. aborts is how often the turns it goes on from were aborted.
// The caller ends with returned(Answered).
func (c *core) arrive(s *session, rid string, aborts int) *ticket {
	k := &ticket{
		id: schedule.RequestID(c.lastTicket.Add(1)), session: s, rid: rid,
		pass: make(chan passage, 1), recall: make(chan struct{}, 1),
	}
	c.post(func() {
		k.since = time.Now()
		c.tickets[k.id] = k
		c.apply(c.machine.RequestArrived(k.since, s.ref, k.id, aborts))
	})
	return k
}

// await waits until the schedule lets the next attempt through: until the Group has its lease and
// the gate is open. It is unbounded by design: the wait ends with the Session or the client.
func (k *ticket) await(ctx context.Context) (passage, error) {
	select {
	case p := <-k.pass:
		return p, nil
	case <-ctx.Done():
		return passage{}, context.Cause(ctx)
	}
}

// recalled says whether an attempt that was let through and not sent yet is wanted back.
func (k *ticket) recalled() bool {
	select {
	case <-k.recall:
		return true
	default:
		return false
	}
}

// returned tells the schedule how an attempt came back. Answered ends the ticket, wherever it is.
func (c *core) returned(k *ticket, how schedule.Outcome) {
	c.post(func() {
		k.at, k.asked, k.since = "", false, time.Now()
		switch how {
		case schedule.Answered:
			delete(c.tickets, k.id)
		case schedule.Aborted:
			k.aborted = true
		}
		c.apply(c.machine.RequestReturned(k.since, k.id, how))
	})
}

// letThrough carries a Pass to the turn that waits for it.
func (c *core) letThrough(p schedule.Pass) {
	k := c.tickets[p.Request]
	k.recalled() // of an earlier attempt
	k.at, k.aborted, k.since = k.rid, false, time.Now()
	k.pass <- passage{rollout: k.session.group.rollout, protected: p.Protected}
}

// recall takes an attempt back, at the backend or on its way there.
func (c *core) recall(id schedule.RequestID) {
	k := c.tickets[id]
	k.asked = true
	k.recall <- struct{}{} // the schedule recalls an attempt once
	c.recalls = append(c.recalls, k.at)
}

// abortRecalled hands the backend's client all attempts that a decision took back. It repeats each
// abort until the attempt is in, and stops one that was only on its way.
func (c *core) abortRecalled() {
	if len(c.recalls) == 0 {
		return
	}
	rids := c.recalls
	c.recalls = nil
	c.goroutines.Go("abort", func() {
		_ = c.backend.AbortAll(c.ctx, rids, nil) // each turn reports its own return; the error is the engine's end
	})
}
