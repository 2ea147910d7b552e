//go:build !relax_nohf

package relax

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// Acceptance 18: one close_session for each ended Session, at the worker that served it, and none
// for a parked one.
func TestSessionsAreClosedOnce(t *testing.T) {
	t.Parallel()
	f := startKV(t, 3)
	f.open(testConfig(t), func(c *Config) { c.AgenticSessionLifecycle, c.NSamplesPerPrompt = true, 8 })
	sessions := map[string]bool{}
	for _, s := range f.start() {
		sessions[s.id] = true
	}
	until(t, func() bool { return f.atWorkers() == len(sessions) })
	if err := f.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := f.Resume(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return f.atWorkers() == len(sessions) })
	for _, w := range f.workers {
		if ended := w.ClosedSessions(); len(ended) != 0 {
			t.Errorf("%v were closed although they are parked", ended)
		}
	}
	f.goOn()
	finishStep(t, f.Engine, nil)
	until(t, func() bool { return f.kvClosed(t) == int64(len(sessions)) })
	f.checkClosed(t, sessions)
}

func (f *kvFleet) kvClosed(t *testing.T) int64 {
	return readStats(t, f.Engine).Backend.Fleet.SessionsClosed
}

// checkClosed compares what the workers were told with what they served.
func (f *kvFleet) checkClosed(t *testing.T, sessions map[string]bool) {
	t.Helper()
	closed := map[string]bool{}
	for _, w := range f.workers {
		served := map[string]bool{}
		for _, r := range w.Requests() {
			served[r.Request.SessionID] = true
		}
		told := w.ClosedSessions()
		if len(told) != len(served) {
			t.Errorf("%s served %d sessions and was told the end of %d", w.URL(), len(served), len(told))
		}
		for _, s := range told {
			if !served[s] || !sessions[s] {
				t.Errorf("%s was told the end of %s", w.URL(), s)
			}
			closed[s] = true
		}
	}
	if len(closed) != len(sessions) {
		t.Errorf("%d of %d sessions were closed", len(closed), len(sessions))
	}
}

// Sessions that Close ends are closed at the workers as well.
func TestCloseClosesSessions(t *testing.T) {
	for name, before := range map[string]func(*Engine){
		"at once": func(*Engine) {},
		// The agents are not gone when the time of the first is over.
		"in rounds": func(e *Engine) {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_ = e.Close(over)
		},
	} {
		t.Run(name, func(t *testing.T) { testCloseClosesSessions(t, before) })
	}
}

func testCloseClosesSessions(t *testing.T, before func(*Engine)) {
	t.Parallel()
	f := openKV(t, 2, func(c *Config) { c.AgenticSessionLifecycle, c.NSamplesPerPrompt = true, 4 })
	sessions := map[string]bool{}
	for _, s := range f.start() {
		sessions[s.id] = true
		f.post(t, s, "Hello", nil)
	}
	until(t, func() bool { return f.atWorkers() == len(sessions) })
	before(f.Engine)
	closeEngine(t, f.Engine)
	f.posts.Wait()
	f.checkClosed(t, sessions)
}

// A worker that cannot be told is counted, and nothing else.
func TestFailedCloseOfASessionIsOnlyCounted(t *testing.T) {
	t.Parallel()
	f := openKV(t, 1, func(c *Config) { c.AgenticSessionLifecycle = true })
	s := f.start()[0]
	f.goOn()
	f.post(t, s, "Hello", nil)
	f.posts.Wait()
	if err := f.workers[0].Close(); err != nil {
		t.Fatal(err)
	}
	s.kill("")
	until(t, func() bool { return readStats(t, f.Engine).Backend.Fleet.SessionCloseFailures == 1 })
	wantMetrics(t, f.kv(t), map[string]float64{"session/lifecycle_enabled": 1, "session/close": 0, "session/close_failure": 1})
	wantMetrics(t, f.kv(t), map[string]float64{"session/close_failure": 0})
}

// A pause makes one abort call for each request, at the worker that has it.
func TestPauseAbortsEachRequestOnce(t *testing.T) {
	t.Parallel()
	const requests = 96
	f := openKV(t, 8, nil)
	client, err := sglang.New(sglang.Config{URL: f.router.URL(), Goroutines: f.core.goroutines, AbortEvery: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.core.backend.Close()
	f.core.backend = client // one that repeats no abort, however slow this machine is
	s := f.start()[0]
	for i := range requests {
		f.post(t, s, fmt.Sprint("request ", i), nil)
	}
	until(t, func() bool { return f.atWorkers() == requests })
	if err := f.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for _, w := range f.workers {
		for _, a := range w.Aborts() {
			if calls[a.RID]++; a.Hit != 1 {
				t.Errorf("abort %+v at %s", a, w.URL())
			}
		}
	}
	if len(calls) != requests {
		t.Errorf("%d requests were aborted, want %d", len(calls), requests)
	}
	for rid, n := range calls {
		if n != 1 {
			t.Errorf("%s: %d abort calls", rid, n)
		}
	}
	f.goOn()
	if err := f.Resume(); err != nil {
		t.Fatal(err)
	}
	f.posts.Wait()
}
