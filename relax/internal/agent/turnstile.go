//go:build linux

package agent

import (
	"container/list"
	"context"
	"runtime"
	"sync"
	"time"
)

// defaultStarts is how many agents may be starting at once if nobody says: twice the
// processors keeps them busy while some starts wait for the disk, and 8 lets one Group start
// together on a small host.
func defaultStarts() int { return max(8, 2*runtime.NumCPU()) }

// A turnstile lets a bounded number of starts in at once, first come, first served. Thousands
// of forks and execs in one moment would starve the host, and so the trainer in it.
type turnstile struct {
	mu      sync.Mutex
	free    int
	busy    int
	waiting list.List // of waiter
	over    chan struct{}
	closed  bool
}

// A waiter's turn is closed when it is let in.
type waiter struct {
	turn  chan struct{}
	since time.Time
}

func newTurnstile(n int) *turnstile {
	return &turnstile{free: n, over: make(chan struct{})}
}

// enter waits for its turn. The caller owes a leave, unless it got ctx's cause or ErrClosed.
func (t *turnstile) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	turn, place, err := t.queue()
	if turn == nil {
		return err
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-t.over:
		err = ErrClosed
	}
	t.giveUp(turn, place)
	return err
}

// giveUp leaves the line. Who was let in at the same moment gives the turn to the next.
func (t *turnstile) giveUp(turn chan struct{}, place *list.Element) {
	t.mu.Lock()
	select {
	case <-turn:
		t.mu.Unlock()
		t.leave()
	default:
		t.waiting.Remove(place)
		t.mu.Unlock()
	}
}

// queue takes a free place, or a place in the line and the channel that is closed for it.
func (t *turnstile) queue() (turn chan struct{}, place *list.Element, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil, ErrClosed
	}
	if t.free > 0 { // then nobody waits
		t.free--
		t.busy++
		return nil, nil, nil
	}
	turn = make(chan struct{})
	return turn, t.waiting.PushBack(waiter{turn, time.Now()}), nil
}

// leave ends one start and lets the next in.
func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.waiting.Front()
	if next == nil || t.closed {
		t.free++
		t.busy--
		return
	}
	close(t.waiting.Remove(next).(waiter).turn)
}

// close sends away everybody who waits. It may be called again.
func (t *turnstile) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		close(t.over)
	}
}

func (t *turnstile) counts() (starting, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.busy, t.waiting.Len()
}

// longest is how long the first in the line has waited, 0 if there is none.
func (t *turnstile) longest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if first := t.waiting.Front(); first != nil {
		return time.Since(first.Value.(waiter).since)
	}
	return 0
}
