package relax

import (
	"context"
	"sync"
)

// A gate lets generation through while it is open and knows what is at the backend, so that
// a pause can abort it and wait until it is parked.
type gate struct {
	mu      sync.Mutex
	opened  chan struct{} // closed while the gate is open
	isOpen  bool
	flights map[*flight]struct{}
	idle    chan struct{} // closed while nothing is at the backend
}

// A flight is one attempt at the backend.
type flight struct {
	rid  string
	done chan struct{}
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{}), isOpen: true, flights: map[*flight]struct{}{}, idle: make(chan struct{})}
	close(g.opened)
	close(g.idle)
	return g
}

// enter waits until the gate is open and takes off. The caller ends with land.
func (g *gate) enter(ctx context.Context, rid string) (*flight, error) {
	for {
		g.mu.Lock()
		if g.isOpen {
			f := &flight{rid: rid, done: make(chan struct{})}
			if len(g.flights) == 0 {
				g.idle = make(chan struct{})
			}
			g.flights[f] = struct{}{}
			g.mu.Unlock()
			return f, nil
		}
		opened := g.opened
		g.mu.Unlock()
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (g *gate) land(f *flight) {
	close(f.done)
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.flights, f); len(g.flights) == 0 {
		close(g.idle)
	}
}

// close shuts the gate and returns what is at the backend.
func (g *gate) close() []*flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isOpen {
		return nil
	}
	g.isOpen, g.opened = false, make(chan struct{})
	out := make([]*flight, 0, len(g.flights))
	for f := range g.flights {
		out = append(out, f)
	}
	return out
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isOpen {
		g.isOpen = true
		close(g.opened)
	}
}

// wait returns when nothing is at the backend.
func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) state() (open bool, inFlight int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isOpen, len(g.flights)
}
