package sglang

import (
	"context"
	"sync"
	"time"
)

// slots bounds the calls in flight and serves those that wait in their order. The bound moves
// with the number of workers.
type slots struct {
	mu      sync.Mutex
	limit   int
	used    int
	waiting []*slotWait // the longest wait first
}

type slotWait struct {
	granted chan struct{}
	since   time.Time
	left    bool // it stopped waiting
}

// acquire takes a slot, now. It is false if the call was aborted first, and an error when ctx ended.
func (s *slots) acquire(ctx context.Context, now time.Time, aborted <-chan struct{}) (bool, error) {
	s.mu.Lock()
	if s.used < s.limit && len(s.waiting) == 0 {
		s.used++
		s.mu.Unlock()
		return true, nil
	}
	w := &slotWait{granted: make(chan struct{}), since: now}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return true, nil
	case <-aborted:
		s.leave(w)
		return false, nil
	case <-ctx.Done():
		s.leave(w)
		return false, context.Cause(ctx)
	}
}

// leave ends a wait. A slot that was granted meanwhile goes back.
func (s *slots) leave(w *slotWait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted:
		s.used--
		s.grant()
	default:
		w.left = true
		s.trim()
	}
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.grant()
}

// setLimit moves the bound. Calls above a smaller one go on.
func (s *slots) setLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = n
	s.grant()
}

// grant hands free slots to those who wait. The caller holds mu.
func (s *slots) grant() {
	for s.trim(); len(s.waiting) > 0 && s.used < s.limit; s.trim() {
		close(s.waiting[0].granted)
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
		s.used++
	}
}

// trim drops those who left from the front, so that a queue of them does not grow.
func (s *slots) trim() {
	for len(s.waiting) > 0 && s.waiting[0].left {
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
	}
}

// queued is how many calls wait, and since when the first of them does.
func (s *slots) queued() (n int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiting {
		if w.left {
			continue
		}
		if n++; n == 1 {
			since = w.since
		}
	}
	return n, since
}
