package relax

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// An agent that drops the reasoning of an answer goes on from it under match_policy tolerant,
// and starts a new conversation, which says why, under exact.
func TestMatchPolicy(t *testing.T) {
	t.Parallel()
	for policy, subtrees := range map[string]int{matchExact: 2, matchTolerant: 1} {
		t.Run(policy, func(t *testing.T) {
			_, s := openIdle(t, func(c *Config) {
				c.MatchPolicy, c.ReasoningParser = policy, "qwen3"
				c.Simulator = json.RawMessage(`{"policy":{"default":[{"text":"<think>hm</think>yes "}]}}`)
			})
			ctx := context.Background()
			first := askFor("u", canon.Retry{})
			out, fault := s.Complete(ctx, first)
			if fault != nil {
				t.Fatal(fault)
			}
			if out.Message.Reasoning != "hm" {
				t.Fatalf("message %+v", out.Message)
			}
			second := askFor("u", canon.Retry{})
			second.Messages = append(second.Messages,
				canon.NewMessage(canon.Message{Role: canon.Assistant, Content: "yes"}),
				canon.NewMessage(canon.Message{Role: canon.User, Content: "sure?"}))
			out, fault = s.Complete(ctx, second)
			if fault != nil {
				t.Fatal(fault)
			}
			if diverges := subtrees > 1; (out.Divergence != "") != diverges {
				t.Errorf("divergence %q", out.Divergence)
			}
			if got := s.forest.Stats().Subtrees; got != subtrees {
				t.Errorf("%d subtrees, want %d", got, subtrees)
			}
		})
	}
}

// The client that began a turn is gone, but the retry that joined it has the answer: it is delivered.
func TestAJoinedRetryHasTheAnswer(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 3600)
	first := abandoned(s, b)
	joined := make(chan *wire.Completion)
	go func() {
		out, _ := s.Complete(context.Background(), askFor("u", canon.Retry{Attempt: 1}))
		joined <- out
	}()
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.turns[0].waiting == 1 })
	close(b.release)
	if fault := <-first; fault != nil {
		t.Fatal(fault)
	}
	out := <-joined
	if out == nil {
		t.Fatal("the retry got no answer")
	}
	s.Undelivered(out) // the gateway could not write to the first client
	s.mu.Lock()
	defer s.mu.Unlock()
	if response := s.forest.Contexts()[0]; response.IsUndelivered() || s.forest.Stats().Undelivered != 0 {
		t.Error("an answer that a retry has counts as undelivered")
	}
}

// An answer that did not reach its client is marked, until a retry has it.
func TestUndeliveredAnswers(t *testing.T) {
	t.Parallel()
	s, b := slowEngine(t, 5)
	close(b.release)
	ctx := context.Background()
	out, fault := s.Complete(ctx, askFor("u", canon.Retry{}))
	if fault != nil {
		t.Fatal(fault)
	}
	s.Undelivered(out)
	response := s.forest.Contexts()[0]
	if !response.IsUndelivered() {
		t.Fatal("the answer counts as delivered")
	}
	again, fault := s.Complete(ctx, askFor("u", canon.Retry{Attempt: 1}))
	if fault != nil {
		t.Fatal(fault)
	}
	if again.ID != out.ID || response.IsUndelivered() || b.calls.Load() != 1 {
		t.Errorf("the retry got %s, undelivered %v, %d calls", again.ID, response.IsUndelivered(), b.calls.Load())
	}
}
