package relax

import (
	"context"
	"sync"
)

// maxPendingLogs bounds the log events kept for a host that does not poll; the oldest go first.
const maxPendingLogs = 4096

// eventQueue hands events to polls in order. It never blocks a producer.
type eventQueue struct {
	mu     sync.Mutex
	queue  []Event
	logs   int // log events in queue
	lost   int // log events dropped since the start
	closed error
	wake   chan struct{} // closed and replaced whenever the queue changes
	ready  func()
}

func newEventQueue() *eventQueue {
	return &eventQueue{wake: make(chan struct{})}
}

// push queues an event. A progress event replaces one that is still the newest. After close
// the event is dropped and its batch freed, since nobody can poll it.
func (q *eventQueue) push(ev Event) {
	q.mu.Lock()
	if q.closed != nil {
		q.mu.Unlock()
		if ev.Batch != nil {
			ev.Batch.Release()
		}
		return
	}
	last := len(q.queue) - 1
	if ev.Kind == EventProgress && last >= 0 && q.queue[last].Kind == EventProgress {
		q.queue[last] = ev
		q.mu.Unlock()
		return
	}
	if ev.Kind == EventLog {
		if q.logs++; q.logs > maxPendingLogs {
			q.dropOldestLog()
		}
	}
	q.queue = append(q.queue, ev)
	q.signal()
}

// signal wakes waiters and tells the host; it releases the lock.
func (q *eventQueue) signal() {
	close(q.wake)
	q.wake = make(chan struct{})
	ready := q.ready
	q.mu.Unlock()
	if ready != nil {
		ready()
	}
}

func (q *eventQueue) dropOldestLog() {
	for i, ev := range q.queue {
		if ev.Kind == EventLog {
			q.queue = append(q.queue[:i], q.queue[i+1:]...)
			q.logs--
			q.lost++
			return
		}
	}
}

// poll returns the next event, waiting until ctx ends or the queue is closed.
func (q *eventQueue) poll(ctx context.Context) (Event, error) {
	for {
		q.mu.Lock()
		if q.closed != nil {
			q.mu.Unlock()
			return Event{}, q.closed
		}
		if len(q.queue) > 0 {
			ev := q.queue[0]
			q.queue[0] = Event{} // the queue's memory must not keep a polled batch
			q.queue = q.queue[1:]
			if ev.Kind == EventLog {
				q.logs--
			}
			q.mu.Unlock()
			return ev, nil
		}
		wake := q.wake
		q.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// close makes every poll return err and frees batches nobody took.
func (q *eventQueue) close(err error) {
	q.mu.Lock()
	if q.closed != nil {
		q.mu.Unlock()
		return
	}
	q.closed = err
	left := q.queue
	q.queue = nil
	q.signal()
	for _, ev := range left {
		if ev.Batch != nil {
			ev.Batch.Release()
		}
	}
}

func (q *eventQueue) setReady(f func()) {
	q.mu.Lock()
	q.ready = f
	pending := len(q.queue) > 0
	q.mu.Unlock()
	if pending && f != nil {
		f()
	}
}

func (q *eventQueue) pending() (events, lostLogs int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue), q.lost
}
