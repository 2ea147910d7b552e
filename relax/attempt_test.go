package relax

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// onePlace opens an engine that sends one request at a time, each of which hangs after its first
// token until the test sets another token delay.
func onePlace(t *testing.T) (*Engine, *session) {
	t.Helper()
	return openIdle(t, func(c *Config) {
		c.SGLangServerConcurrency, c.Simulator = 1, json.RawMessage(`{"token_delay_ms": 3600000}`)
	})
}

// say makes a request in the background; its answer is 200 by the time replies is done.
func say(t *testing.T, e *Engine, s *session, text string, replies *sync.WaitGroup) {
	t.Helper()
	replies.Add(1)
	go func() {
		defer replies.Done()
		if a := post(t, e, s, map[string]any{"messages": []chatMessage{{"role": "user", "content": text}}}); a.status != 200 {
			t.Errorf("%s: %+v", text, a)
		}
	}()
}

// askTwo makes a request that hangs at the backend, and one that waits in the client for its place.
func askTwo(t *testing.T, e *Engine, s *session, replies *sync.WaitGroup) {
	t.Helper()
	say(t, e, s, "first", replies)
	until(t, func() bool { return e.core.simulator.InFlight() == 1 })
	say(t, e, s, "second", replies)
	until(t, func() bool { return e.core.backend.(*sglang.Client).Stats().Waiting == 1 })
}

// logged is the request that the Session logged for a user message.
func logged(t *testing.T, s *session, text string) observe.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.log {
		if r.Node != nil && r.Node.Parent().Messages()[0].Content == text {
			return r
		}
	}
	t.Fatalf("no turn of %q in %+v", text, s.log)
	return observe.Request{}
}

// checkTimes compares what a turn's generation says of times with its attempts.
func checkTimes(t *testing.T, r observe.Request) {
	t.Helper()
	var gated, generated time.Duration
	for _, a := range r.Attempts {
		gated, generated = gated+a.Gated(), generated+a.Generated()
	}
	if g := r.Node.Generation(); g.Seconds != generated.Seconds() || g.QueueSeconds != gated.Seconds() {
		t.Errorf("%v s at the backend, %v s queued; the attempts say %v and %v", g.Seconds, g.QueueSeconds, generated, gated)
	}
}

// The version of tokens the backend names none for, and the beginning of a turn's time at the backend,
// are those of the dispatch that brought them: not those of the wait for a place there, or for a repeat.
func TestVersionAndTimesAreThoseOfTheDispatch(t *testing.T) {
	for _, tt := range []struct {
		name, asked string
		wait        func(t *testing.T, e *Engine, s *session, replies *sync.WaitGroup) (release func())
	}{
		{"behind another request", "second", func(t *testing.T, e *Engine, s *session, replies *sync.WaitGroup) func() {
			askTwo(t, e, s, replies)
			return func() {}
		}},
		{"after a refusal", "first", func(t *testing.T, e *Engine, s *session, replies *sync.WaitGroup) func() {
			var refused atomic.Int64
			var over atomic.Bool
			e.core.simulator.SetFault(func(*sglangtest.GenerateRequest) *sglangtest.Fault {
				if over.Load() {
					return nil
				}
				refused.Add(1)
				return &sglangtest.Fault{Status: 503}
			})
			say(t, e, s, "first", replies)
			until(t, func() bool { return refused.Load() > 0 })
			return func() { over.Store(true) }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, s := onePlace(t)
			var replies sync.WaitGroup
			release := tt.wait(t, e, s, &replies)
			setVersion(t, e, 5)
			moment := s.since()
			release()
			e.core.simulator.SetTokenDelay(0)
			replies.Wait()
			r := logged(t, s, tt.asked)
			g := r.Node.Generation()
			if want := []forest.VersionSpan{{Start: 0, Version: 5}}; !slices.Equal(g.Spans, want) {
				t.Errorf("version spans %+v, want %+v", g.Spans, want)
			}
			if a := r.Attempts[0]; len(r.Attempts) != 1 || a.Version != 5 || a.Queued >= moment || a.Started < moment {
				t.Errorf("attempts %+v, want one that was dispatched after %v with version 5", r.Attempts, moment)
			}
			checkTimes(t, r)
			if tt.asked == "second" {
				first := logged(t, s, "first")
				if a := first.Attempts[0]; a.Version != 0 || a.Started >= moment {
					t.Errorf("the request before it: %+v, want version 0", a)
				}
				checkTimes(t, first)
			}
		})
	}
}

// An attempt that a pause met before it was sent is no abort, in the turn as in its trace, and the time
// until then is queueing.
func TestAttemptsThatNeverLeftAreNoAborts(t *testing.T) {
	t.Parallel()
	e, s := onePlace(t)
	var replies sync.WaitGroup
	askTwo(t, e, s, &replies)
	if err := e.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	e.core.simulator.SetTokenDelay(0)
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	replies.Wait()
	facts := s.facts(observe.Process{})
	facts.Hashes = observe.HashForest(s.forest)
	trace := facts.Trace()
	if trace.Counts.Aborts != 1 {
		t.Errorf("%d aborts in the trace, want that of the first request only", trace.Counts.Aborts)
	}
	for text, aborts := range map[string]int{"first": 1, "second": 0} {
		r := logged(t, s, text)
		i := slices.IndexFunc(trace.Turns, func(turn observe.TraceTurn) bool { return turn.RequestID == r.ID })
		kind := []string{"fresh", "resumed"}[aborts]
		if turn := trace.Turns[i]; r.Node.Generation().Aborts != aborts || turn.AbortCount != aborts || turn.RequestKind != kind || len(turn.Attempts) != 2 {
			t.Errorf("%s: %d aborts, turn %+v", text, r.Node.Generation().Aborts, turn)
		}
		checkTimes(t, r)
	}
	a := logged(t, s, "second").Attempts[0]
	if a.Finish != observe.FinishNotSent || a.Started != 0 || a.Version != 0 {
		t.Errorf("attempt %+v, want one that was not sent", a)
	}
}
