package relax

import (
	"context"
	"sync"
)

// A gate lets generation through while it is open and knows what is at the backend, so that
// a pause can abort it and wait until it is parked. Its owner serialises close and open.
type gate struct {
	mu      sync.Mutex
	opened  chan struct{} // closed while the gate is open
	isOpen  bool
	flights map[*flight]struct{}
}

// A flight is one attempt at the backend.
type flight struct {
	rid  string
	done chan struct{} // closed when it is back
	// asked: a pause wants it back. It may be read after land.
	asked bool
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{}), isOpen: true, flights: map[*flight]struct{}{}}
	close(g.opened)
	return g
}

// enter waits until the gate is open and takes off. The caller ends with land.
func (g *gate) enter(ctx context.Context, rid string) (*flight, error) {
	for {
		g.mu.Lock()
		if g.isOpen {
			f := &flight{rid: rid, done: make(chan struct{})}
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
	g.mu.Lock()
	delete(g.flights, f)
	g.mu.Unlock()
	close(f.done)
}

// close shuts the gate, if it is not shut already, and returns what is at the backend. Until
// it is opened nothing comes to that.
func (g *gate) close() []*flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpen {
		g.isOpen, g.opened = false, make(chan struct{})
	}
	out := make([]*flight, 0, len(g.flights))
	for f := range g.flights {
		f.asked = true
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

func (g *gate) state() (open bool, inFlight int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isOpen, len(g.flights)
}
