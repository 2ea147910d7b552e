package relax

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/gateway"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// askFor is a request as the gateway hands it to a Session.
func askFor(text string, retry canon.Retry) *canon.Request {
	return &canon.Request{
		Messages: []*canon.Message{canon.NewMessage(canon.Message{Role: canon.User, Content: text})},
		Kwargs:   canon.ObjectOf(), Retry: retry,
	}
}

// A slow backend answers one id when it is let go, and counts what reached it.
type slow struct {
	begun   chan struct{} // a value for each call
	release chan struct{} // closed to answer all
	calls   atomic.Int32
	ended   atomic.Int32 // calls whose context ended
}

func slowEngine(t *testing.T, grace float64) (*session, *slow) {
	t.Helper()
	e, s := openIdle(t, func(c *Config) { c.DisconnectGrace = &grace })
	b := &slow{begun: make(chan struct{}, 16), release: make(chan struct{})}
	script(e, &scripted{
		generate: func(ctx context.Context, _ sglang.Call) (sglang.Result, error) {
			b.calls.Add(1)
			b.begun <- struct{}{}
			select {
			case <-b.release:
				end := e.core.format.Terminator()
				return sglang.Result{IDs: []int32{'a', end}, Logprobs: []float32{0, 0}, Finish: sglang.Finish{Type: "stop"}}, nil
			case <-ctx.Done():
				b.ended.Add(1)
				return sglang.Result{}, context.Cause(ctx)
			}
		},
	})
	return s, b
}

// abandoned makes a request whose client leaves once the backend has it. Its fault comes from
// the channel.
func abandoned(s *session, b *slow) <-chan *wire.Error {
	ctx, leave := context.WithCancelCause(context.Background())
	done := make(chan *wire.Error)
	go func() {
		_, fault := s.Complete(ctx, askFor("u", canon.Retry{}))
		done <- fault
	}()
	<-b.begun
	leave(gateway.ErrClientLeft)
	return done
}

// turnsOf counts committed generations.
func turnsOf(s *session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forest.Stats().Responses
}

func TestARetryJoinsTheRequestInFlight(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 5)
	var both sync.WaitGroup
	answers := make([]*wire.Completion, 2)
	ask := func(i int, retry canon.Retry) {
		defer both.Done()
		out, fault := s.Complete(context.Background(), askFor("u", retry))
		if fault != nil {
			t.Errorf("request %d: %v", i, fault)
		}
		answers[i] = out
	}
	both.Add(2)
	go ask(0, canon.Retry{})
	<-b.begun
	go ask(1, canon.Retry{Attempt: 1})
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.turns[0].waiting == 2 })
	close(b.release)
	both.Wait()
	if b.calls.Load() != 1 || turnsOf(s) != 1 {
		t.Errorf("%d calls and %d turns, want one of each", b.calls.Load(), turnsOf(s))
	}
	if answers[0].ID != answers[1].ID || answers[0].Message != answers[1].Message {
		t.Errorf("two answers: %+v and %+v", answers[0], answers[1])
	}
}

func TestARetryReplaysACommittedAnswer(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 5)
	close(b.release)
	complete := func(text string, retry canon.Retry) *wire.Completion {
		t.Helper()
		out, fault := s.Complete(context.Background(), askFor(text, retry))
		if fault != nil {
			t.Fatal(fault)
		}
		return out
	}
	first := complete("u", canon.Retry{})
	if again := complete("u", canon.Retry{Attempt: 2}); again.ID != first.ID {
		t.Errorf("the retry got answer %s, the first %s", again.ID, first.ID)
	}
	if other := complete("v", canon.Retry{Attempt: 1}); other.ID == first.ID {
		t.Error("a retry of another request got this one's answer")
	}
	if branch := complete("u", canon.Retry{}); branch.ID == first.ID {
		t.Error("the same request that is no retry got an old answer instead of a branch")
	}
	keyed := complete("k", canon.Retry{Key: "a"})
	if again := complete("k", canon.Retry{Key: "a"}); again.ID != keyed.ID {
		t.Error("the same Idempotency-Key got two answers")
	}
	if again := complete("k", canon.Retry{Key: "b"}); again.ID == keyed.ID {
		t.Error("another Idempotency-Key got the first one's answer")
	}
	if calls := b.calls.Load(); calls != 5 {
		t.Errorf("%d calls, want 5", calls)
	}
}

func TestAClientThatLeavesCancelsItsTurn(t *testing.T) {
	t.Parallel()
	for _, grace := range []float64{0, 0.05} {
		s, b := slowEngine(t, grace)
		done := abandoned(s, b)
		if fault := <-done; fault == nil || fault.Status != 499 {
			t.Errorf("grace %v: %v, want 499", grace, fault)
		}
		if b.ended.Load() != 1 || turnsOf(s) != 0 {
			t.Errorf("grace %v: %d calls cancelled, %d turns committed; want 1 and 0", grace, b.ended.Load(), turnsOf(s))
		}
	}
}

func TestAGenerationThatNobodyWaitsForIsNotCommitted(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 0.2)
	done := abandoned(s, b)
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.turns[0].waiting == 0 })
	close(b.release) // the generation ends within the grace
	if fault := <-done; fault == nil || turnsOf(s) != 0 {
		t.Errorf("fault %v, %d turns; want a fault and none", fault, turnsOf(s))
	}
	if lost := s.sampled(); lost != 2 {
		t.Errorf("%d sampled tokens are accounted for, want 2", lost)
	}
}

func TestAClientThatComesBackGetsItsAnswer(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 30)
	ctx, leave := context.WithCancelCause(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = s.Complete(ctx, askFor("u", canon.Retry{}))
	}()
	<-b.begun
	leave(gateway.ErrClientLeft)
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.turns[0].waiting == 0 })
	close(b.release)
	out, fault := s.Complete(context.Background(), askFor("u", canon.Retry{Attempt: 1}))
	if fault != nil || out.CompletionTokens != 2 {
		t.Errorf("the retry got %+v, %v", out, fault)
	}
	<-gone
	if b.calls.Load() != 1 || turnsOf(s) != 1 {
		t.Errorf("%d calls and %d turns, want one of each", b.calls.Load(), turnsOf(s))
	}
}

func TestAJoinedClientThatLeavesDoesNotEndTheTurn(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 0)
	done := make(chan *wire.Error)
	go func() {
		_, fault := s.Complete(context.Background(), askFor("u", canon.Retry{}))
		done <- fault
	}()
	<-b.begun
	ctx, leave := context.WithCancelCause(context.Background())
	joined := make(chan *wire.Error)
	go func() {
		_, fault := s.Complete(ctx, askFor("u", canon.Retry{Attempt: 1}))
		joined <- fault
	}()
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.turns[0].waiting == 2 })
	leave(gateway.ErrClientLeft)
	if fault := <-joined; fault == nil {
		t.Error("the client that left got an answer")
	}
	close(b.release)
	if fault := <-done; fault != nil {
		t.Errorf("the first client got %v", fault)
	}
}

func TestASessionThatEndsEndsAbandonedTurns(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 3600)
	done := abandoned(s, b)
	s.kill("")
	select {
	case <-done:
	case <-time.After(waitLimit):
		t.Fatal("the turn outlives its Session")
	}
}

func TestCountTokensIsTheLengthOfThePrompt(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 5)
	close(b.release)
	ctx := context.Background()
	count := func(messages ...*canon.Message) int {
		t.Helper()
		n, fault := s.CountTokens(ctx, &canon.Request{Messages: messages, Kwargs: canon.ObjectOf()})
		if fault != nil {
			t.Fatal(fault)
		}
		return n
	}
	user := canon.NewMessage(canon.Message{Role: canon.User, Content: "u"})
	before := count(user)
	if s.hasRequested() {
		t.Error("counting tokens passes for a model request")
	}
	out, fault := s.Complete(ctx, &canon.Request{Messages: []*canon.Message{user}, Kwargs: canon.ObjectOf()})
	if fault != nil {
		t.Fatal(fault)
	}
	if before != out.PromptTokens || count(user) != before {
		t.Errorf("counted %d, then %d; the prompt had %d", before, count(user), out.PromptTokens)
	}
	more := []*canon.Message{user, out.Message, canon.NewMessage(canon.Message{Role: canon.User, Content: "v"})}
	next := count(more...)
	second, fault := s.Complete(ctx, &canon.Request{Messages: more, Kwargs: canon.ObjectOf()})
	if fault != nil {
		t.Fatal(fault)
	}
	if second.PromptTokens != next {
		t.Errorf("counted %d, the prompt had %d", next, second.PromptTokens)
	}
}

func TestDivergencesAreExplainedAndCounted(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 5)
	close(b.release)
	say := func(role canon.Role, text string) *canon.Message {
		return canon.NewMessage(canon.Message{Role: role, Content: text})
	}
	complete := func(messages ...*canon.Message) *wire.Completion {
		t.Helper()
		out, fault := s.Complete(context.Background(), &canon.Request{Messages: messages, Kwargs: canon.ObjectOf()})
		if fault != nil {
			t.Fatal(fault)
		}
		return out
	}
	u, v := say(canon.User, "u"), say(canon.User, "v")
	first := complete(u)
	second := complete(u, first.Message, v)
	if first.Divergence != "" || second.Divergence != "" {
		t.Errorf("a straight line diverges: %q, %q", first.Divergence, second.Divergence)
	}
	edited := complete(u, say(canon.Assistant, "edited"), v)
	if want := `messages[1].content differs: recorded "a", sent "edited"`; edited.Divergence != want {
		t.Errorf("divergence %q, want %q", edited.Divergence, want)
	}
	raw, err := s.core.stats()
	if err != nil {
		t.Fatal(err)
	}
	var stats Stats
	if err := json.Unmarshal(raw, &stats); err != nil || stats.Divergences["message"] != 1 || len(stats.Divergences) != 1 {
		t.Errorf("divergences %v, want one message (%v)", stats.Divergences, err)
	}
}

func TestDisconnectGraceIsChecked(t *testing.T) {
	grace := -1.0
	cfg := testConfig(t)
	cfg.DisconnectGrace = &grace
	var wrong *OptionError
	if _, err := Open(cfg); !errors.As(err, &wrong) || wrong.Option != "disconnect_grace" {
		t.Errorf("err %v", err)
	}
}

// Requests that are equal and yet two, as best-of-n makes them: a retry without a key takes the
// turn that lost its client, and none that has it.
func TestARetryTakesNoSiblingsTurn(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 30)
	type result struct {
		out   *wire.Completion
		fault *wire.Error
	}
	ask := func(ctx context.Context, retry canon.Retry) chan result {
		done := make(chan result, 1)
		go func() {
			out, fault := s.Complete(ctx, askFor("u", retry))
			done <- result{out, fault}
		}()
		return done
	}
	first := ask(context.Background(), canon.Retry{})
	<-b.begun
	ctx, leave := context.WithCancelCause(context.Background())
	gone := ask(ctx, canon.Retry{})
	<-b.begun
	third := ask(context.Background(), canon.Retry{Attempt: 1}) // both have their clients: its own turn
	<-b.begun
	leave(gateway.ErrClientLeft)
	until(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.turns[1].waiting == 0
	})
	back := ask(context.Background(), canon.Retry{Attempt: 1})
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.turns[1].waiting == 1 })
	close(b.release)
	a, c, d := <-first, <-third, <-back
	<-gone
	if a.fault != nil || c.fault != nil || d.fault != nil {
		t.Fatalf("faults %v, %v, %v", a.fault, c.fault, d.fault)
	}
	if a.out.ID == c.out.ID || a.out.ID == d.out.ID || c.out.ID == d.out.ID || b.calls.Load() != 3 {
		t.Errorf("answers %s, %s, %s of %d calls; want three of three", a.out.ID, c.out.ID, d.out.ID, b.calls.Load())
	}
	// An answer is given to one more try, not to every equal request that calls itself a retry.
	again, fault := s.Complete(context.Background(), askFor("u", canon.Retry{Attempt: 2}))
	if fault != nil || again.ID != c.out.ID && again.ID != d.out.ID && again.ID != a.out.ID {
		t.Errorf("the retry of an answer got %+v, %v", again, fault)
	}
}

func TestTheStopSequenceIsTold(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, nil)
	script(e, &scripted{generate: func(context.Context, sglang.Call) (sglang.Result, error) {
		return sglang.Result{IDs: []int32{'a'}, Logprobs: []float32{0}, Finish: sglang.Finish{Type: "stop", Matched: "END"}}, nil
	}})
	req := askFor("u", canon.Retry{})
	req.Stop = []string{"END"}
	out, fault := s.Complete(context.Background(), req)
	if fault != nil || out.StopSequence != "END" {
		t.Errorf("stop sequence %+v, %v", out, fault)
	}
	if out, fault = s.Complete(context.Background(), askFor("v", canon.Retry{})); fault != nil || out.StopSequence != "" {
		t.Errorf("a stop string nobody asked for: %+v, %v", out, fault)
	}
}
