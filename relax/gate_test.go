package relax

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

func TestGateHoldsBackWhileClosed(t *testing.T) {
	g := newGate()
	first, err := g.enter(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // closing twice tells again what is in the air
		if flights := g.close(); len(flights) != 1 || flights[0] != first {
			t.Fatalf("close = %v, want the one flight", flights)
		}
	}
	if open, n := g.state(); open || n != 1 {
		t.Errorf("open %v, %d in flight", open, n)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(gone)
	if _, err := g.enter(ctx, "b"); !errors.Is(err, gone) {
		t.Errorf("enter at a closed gate: %v, want the cause", err)
	}
	if !first.asked {
		t.Error("close did not ask for the flight")
	}
	g.land(first)
	select {
	case <-first.done:
	default:
		t.Error("a landed flight is not done")
	}
	entered := make(chan error, 1)
	go func() {
		f, err := g.enter(context.Background(), "c")
		if err == nil && f.asked {
			t.Error("a later flight is asked for as well")
		}
		entered <- err
	}()
	g.open()
	g.open() // no more than once
	if err := <-entered; err != nil {
		t.Error(err)
	}
}

func TestGateKnowsAllItLetThrough(t *testing.T) {
	g := newGate()
	var all sync.WaitGroup
	for i := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := range 200 {
				f, err := g.enter(context.Background(), fmt.Sprint(i, "-", n))
				if err != nil {
					t.Error(err)
					return
				}
				g.land(f)
			}
		}()
	}
	for range 100 {
		for _, f := range g.close() {
			<-f.done // bounded: nothing comes to these while the gate is closed
		}
		if _, n := g.state(); n != 0 {
			t.Errorf("%d in flight behind a closed gate", n)
		}
		g.open()
	}
	all.Wait()
}
