//go:build linux

package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestTurnstileIsFirstComeFirstServed(t *testing.T) {
	const n = 20
	turns := newTurnstile(1)
	if err := turns.enter(patient(t)); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := turns.enter(patient(t)); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			turns.leave()
		})
		awaitCond(t, "waiting start", func() bool { _, waiting := turns.counts(); return waiting == i+1 })
	}
	turns.leave()
	all.Wait()
	if !slices.IsSorted(order) || len(order) != n {
		t.Errorf("order = %v", order)
	}
	if busy, waiting := turns.counts(); busy != 0 || waiting != 0 {
		t.Errorf("busy %d, waiting %d at the end", busy, waiting)
	}
}

func TestTurnstileIsBounded(t *testing.T) {
	const n, limit = 200, 3
	turns := newTurnstile(limit)
	var mu sync.Mutex
	inside, most := 0, 0
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if err := turns.enter(patient(t)); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			inside++
			most = max(most, inside)
			mu.Unlock()
			mu.Lock()
			inside--
			mu.Unlock()
			turns.leave()
		})
	}
	all.Wait()
	if most > limit {
		t.Errorf("%d inside at once, want at most %d", most, limit)
	}
}

// Whoever gives up, or is let in while giving up, takes nobody's place away.
func TestTurnstileWithGiversUp(t *testing.T) {
	const n = 200
	turns := newTurnstile(2)
	why := errors.New("dropped")
	var all sync.WaitGroup
	for i := range n {
		ctx, cancel := context.WithCancelCause(patient(t))
		all.Go(func() {
			if err := turns.enter(ctx); err == nil {
				turns.leave()
			} else if !errors.Is(err, why) {
				t.Error(err)
			}
		})
		if i%2 == 0 {
			all.Go(func() { cancel(why) })
		} else {
			defer cancel(nil)
		}
	}
	all.Wait()
	if busy, waiting := turns.counts(); busy != 0 || waiting != 0 || turns.free != 2 {
		t.Errorf("busy %d, waiting %d, free %d at the end", busy, waiting, turns.free)
	}
}

func TestTurnGivenUpAtTheMomentItComes(t *testing.T) {
	turns := newTurnstile(1)
	if err := turns.enter(patient(t)); err != nil {
		t.Fatal(err)
	}
	turn, place, err := turns.queue()
	if err != nil || turn == nil {
		t.Fatalf("queue = %v, %v, want a place in the line", turn, err)
	}
	next, _, _ := turns.queue()
	turns.leave()
	<-turn // let in
	turns.giveUp(turn, place)
	select {
	case <-next:
	default:
		t.Error("the next was not let in")
	}
	turns.leave()
	if busy, waiting := turns.counts(); busy != 0 || waiting != 0 || turns.free != 1 || turns.longest() != 0 {
		t.Errorf("busy %d, waiting %d, free %d at the end", busy, waiting, turns.free)
	}
}

func TestTurnstileClose(t *testing.T) {
	turns := newTurnstile(1)
	if err := turns.enter(patient(t)); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() { got <- turns.enter(context.Background()) }()
	awaitCond(t, "waiting start", func() bool { _, waiting := turns.counts(); return waiting == 1 })
	time.Sleep(time.Millisecond)
	if waited := turns.longest(); waited < time.Millisecond || waited > patience {
		t.Errorf("the first in the line has waited %s", waited)
	}
	turns.close()
	turns.close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Errorf("waiting start: %v", err)
	}
	if err := turns.enter(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("later start: %v", err)
	}
	turns.leave()
	if busy, waiting := turns.counts(); busy != 0 || waiting != 0 {
		t.Errorf("busy %d, waiting %d at the end", busy, waiting)
	}
	if n := defaultStarts(); n < 8 {
		t.Errorf("default %d, want at least 8", n)
	}
}
