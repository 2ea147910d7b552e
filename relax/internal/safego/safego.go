// Package safego starts goroutines that have an owner, a name, and a panic guard.
//
// What may enter: functions to run. What it never does: know what they do. It is the only
// room that may write a bare go statement; a test of package relax greps for others.
package safego

import (
	"context"
	"runtime/debug"
	"sync"
)

// A Group owns goroutines. The zero Group is not usable; see [New].
type Group struct {
	onPanic func(name string, value any, stack []byte)

	mu    sync.Mutex
	names map[string]int
	live  int
	idle  chan struct{} // closed while no goroutine runs
}

// New returns a Group. onPanic is called in the goroutine that panicked, which then ends; it
// must not panic itself. Because a panic means that the engine's state is not to be trusted,
// the owner is expected to poison itself.
func New(onPanic func(name string, value any, stack []byte)) *Group {
	idle := make(chan struct{})
	close(idle)
	return &Group{onPanic: onPanic, names: map[string]int{}, idle: idle}
}

// Go runs fn in a goroutine counted under name.
func (g *Group) Go(name string, fn func()) {
	g.mu.Lock()
	g.names[name]++
	if g.live++; g.live == 1 {
		g.idle = make(chan struct{})
	}
	g.mu.Unlock()
	go g.run(name, fn)
}

func (g *Group) run(name string, fn func()) {
	defer g.done(name)
	defer func() {
		if v := recover(); v != nil {
			g.onPanic(name, v, debug.Stack())
		}
	}()
	fn()
}

func (g *Group) done(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.names[name]--; g.names[name] == 0 {
		delete(g.names, name)
	}
	if g.live--; g.live == 0 {
		close(g.idle)
	}
}

// Wait returns when no goroutine of the Group runs, or with ctx's error.
func (g *Group) Wait(ctx context.Context) error {
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

// Names returns how many goroutines run under each name.
func (g *Group) Names() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[string]int, len(g.names))
	for name, n := range g.names {
		out[name] = n
	}
	return out
}
