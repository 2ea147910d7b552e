package relax

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/gateway"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// A pause hands over the rid of the attempt, once; the attempt goes on under another one.
func TestPauseAbortsWhatHadJustPassedTheGate(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, nil)
	entered, aborted := make(chan string, 1), make(chan []string, 1)
	script(e, &scripted{
		generate: func(_ context.Context, call sglang.Call) (sglang.Result, error) {
			if strings.HasSuffix(call.RID, "-0001") {
				return sglang.Result{IDs: []int32{1}, Logprobs: []float32{0}, Finish: sglang.Finish{Type: "stop"}}, nil
			}
			entered <- call.RID
			if rids := <-aborted; len(rids) != 1 || rids[0] != call.RID {
				t.Errorf("aborts of %v, want %s", rids, call.RID)
			}
			return sglang.Result{Finish: sglang.Finish{Type: "abort"}}, nil
		},
		abort: func(rids []string) { aborted <- rids },
	})
	var posted sync.WaitGroup
	posted.Add(1)
	go func() {
		defer posted.Done()
		if a := post(t, e, s, map[string]any{}); a.status != 200 {
			t.Errorf("the parked request: %+v", a)
		}
	}()
	<-entered
	if err := e.Pause(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := e.Pause(context.Background()); err != nil { // a second one has nothing to wait for
		t.Fatal(err)
	}
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	posted.Wait()
}

// A pause without time to wait says whether something is at the backend, and does not guess.
func TestPauseWithoutTime(t *testing.T) {
	t.Parallel()
	e, _ := openIdle(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		if err := e.Pause(ctx); err != nil {
			t.Fatalf("pause of an idle engine: %v", err)
		}
	}
}

func TestPauseEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(e *Engine, s *session, cancel func())
		err  error
	}{
		{"with its context", func(_ *Engine, _ *session, cancel func()) { cancel() }, context.Canceled},
		{"at close", func(e *Engine, _ *session, _ func()) {
			ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
			defer cancel()
			_ = e.Close(ctx)
		}, ErrClosed},
		{"when the sessions are over", func(_ *Engine, s *session, _ func()) { s.kill("") }, nil},
		{"when the engine is poisoned", func(e *Engine, _ *session, _ func()) { e.core.post(func() { panic("boom") }) }, ErrPanic},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, s := openIdle(t, nil)
			sent := make(chan struct{})
			script(e, &scripted{generate: func(ctx context.Context, _ sglang.Call) (sglang.Result, error) { // it takes aborts and does nothing
				close(sent)
				<-ctx.Done()
				return sglang.Result{}, context.Cause(ctx)
			}})
			var posted sync.WaitGroup
			posted.Add(1)
			go func() {
				defer posted.Done()
				if a := post(t, e, s, map[string]any{}); a.status == 200 {
					t.Errorf("answer %+v", a)
				}
			}()
			<-sent // a pause would withdraw what is only on its way
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			paused := make(chan error)
			go func() { paused <- e.Pause(ctx) }()
			until(t, func() bool { return counts(e).Paused })
			tt.end(e, s, cancel)
			// At close the request may come back before the pause has noticed.
			if err := <-paused; !errors.Is(err, tt.err) && (err != nil || tt.err == context.Canceled) {
				t.Errorf("pause: %v, want %v", err, tt.err)
			}
			s.kill("")
			posted.Wait()
		})
	}
}

func TestPauseAndResumeAtOnceAgree(t *testing.T) {
	t.Parallel()
	e, _ := openIdle(t, nil)
	for range 200 {
		var both sync.WaitGroup
		both.Add(2)
		go func() { defer both.Done(); _ = e.Pause(context.Background()) }()
		go func() { defer both.Done(); _ = e.Resume() }()
		both.Wait()
		err := e.core.do(func() error {
			if len(e.core.pauses) != 0 {
				return errors.New("a pause waits for ever")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A Resume ends a Pause that still waits: not everything was parked.
func TestResumeEndsAPauseThatWaits(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, nil)
	script(e, &scripted{
		generate: func(ctx context.Context, _ sglang.Call) (sglang.Result, error) {
			<-ctx.Done()
			return sglang.Result{}, context.Cause(ctx)
		},
	})
	done := make(chan *wire.Error)
	go func() {
		_, fault := s.Complete(context.Background(), askFor("u", canon.Retry{}))
		done <- fault
	}()
	until(t, func() bool { return passed(e) == 1 })
	paused := make(chan error)
	go func() { paused <- e.Pause(context.Background()) }()
	until(t, func() bool { return counts(e).Paused })
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-paused; !errors.Is(err, ErrState) {
		t.Errorf("pause: %v, want ErrState", err)
	}
	closeEngine(t, e)
	<-done
}

// What an attempt had sampled when its client left is taken back from the backend and counted.
func TestTokensOfAClientThatLeftAreCounted(t *testing.T) {
	t.Parallel()
	none := 0.0
	e, s := openIdle(t, func(c *Config) { c.DisconnectGrace, c.Simulator = &none, longReply(200) })
	p := pace(e, "long", 10, 0)
	ctx, leave := context.WithCancelCause(context.Background())
	done := make(chan *wire.Error)
	go func() {
		_, fault := s.Complete(ctx, askFor("long", canon.Retry{}))
		done <- fault
	}()
	until(t, func() bool { return p.held() == 1 })
	leave(gateway.ErrClientLeft)
	if fault := <-done; fault == nil {
		t.Error("a turn of a client that left was answered")
	}
	if n := s.sampled(); n != 10 {
		t.Errorf("%d tokens were counted, want 10", n)
	}
	if turns := turnsOf(s); turns != 0 {
		t.Errorf("%d turns were committed for nobody", turns)
	}
}
