package forest

import (
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func TestUndelivered(t *testing.T) {
	f := New("s")
	n := say(t, f, request(user("q")), assistant("a"))
	obs := n.Parent()
	f.Undelivered(obs)
	f.Undelivered(f.Root())
	if obs.IsUndelivered() || n.IsUndelivered() {
		t.Error("only a response can be undelivered")
	}
	f.Undelivered(n)
	f.Undelivered(n)
	if s := f.Stats(); !n.IsUndelivered() || s.Undelivered != 1 || s.UndeliveredTokens != 1 {
		t.Errorf("got %v, %+v", n.IsUndelivered(), s)
	}
	var tree strings.Builder
	if err := f.Dump(&tree); err != nil || !strings.Contains(tree.String(), " undelivered") {
		t.Errorf("%v\n%s", err, &tree)
	}
	f.Delivered(n)
	f.Undelivered(n)
	if s := f.Stats(); n.IsUndelivered() || s.Undelivered != 0 || s.UndeliveredTokens != 0 {
		t.Errorf("got %v, %+v after a replay", n.IsUndelivered(), s)
	}
}

// A repeat of a lost generation is an answer of its own.
func TestUndeliveredRepeat(t *testing.T) {
	f := New("s")
	n := say(t, f, request(user("q")), assistant("a"))
	again := Generation{IDs: n.Generation().IDs, Logprobs: logprobs(1), Message: assistant("a")}
	f.Undelivered(n)
	if _, err := f.Commit(n.Parent(), again); err != nil || n.IsUndelivered() {
		t.Errorf("the repeat was delivered: %v", err)
	}
	f.Undelivered(n)
	if !n.IsUndelivered() {
		t.Error("both answers were lost")
	}
}

// Whoever continues an answer has it.
func TestContinuedIsDelivered(t *testing.T) {
	f := New("s")
	n := say(t, f, request(user("q")), assistant("a"))
	f.Undelivered(n)
	req := request(user("q"), assistant("a"), user("r"))
	f.Attach(f.Match(req), nil, nil, req)
	f.Undelivered(n)
	if n.IsUndelivered() || f.Stats().Undelivered != 0 {
		t.Error("an answer that a request continues is marked as lost")
	}
}

// The messages of lostCases.
var askQ, answerA, askR = user("q"), assistant("a"), user("r")

// lostCases are Sessions with lost answers and their contexts.
var lostCases = []struct {
	name string
	// play returns the contexts.
	play func(t *testing.T, f *Forest) []*Node
}{
	{"a retry after a lost answer", func(t *testing.T, f *Forest) []*Node {
		f.Undelivered(say(t, f, request(askQ), assistant("lost")))
		return []*Node{say(t, f, request(askQ), answerA)}
	}},
	{"the lost answer came last", func(t *testing.T, f *Forest) []*Node {
		n := say(t, f, request(askQ), answerA)
		f.Undelivered(say(t, f, request(askQ), assistant("lost")))
		return []*Node{n}
	}},
	{"the same text was lost by other ids", func(t *testing.T, f *Forest) []*Node {
		n := say(t, f, request(askQ), answerA)
		f.Undelivered(say(t, f, request(askQ), answerA))
		return []*Node{n}
	}},
	{"the last answer was lost", func(t *testing.T, f *Forest) []*Node {
		say(t, f, request(askQ), answerA)
		n := say(t, f, request(askQ, answerA, askR), assistant("lost"))
		f.Undelivered(n)
		return []*Node{n}
	}},
	{"the last answer was lost beside another conversation", func(t *testing.T, f *Forest) []*Node {
		say(t, f, request(askQ), answerA)
		n := say(t, f, request(askQ, answerA, askR), assistant("lost"))
		f.Undelivered(n)
		return []*Node{n, say(t, f, request(user("title")), assistant("t"))}
	}},
	{"the last answer was lost and its request changed", func(t *testing.T, f *Forest) []*Node {
		say(t, f, request(askQ), answerA)
		f.Undelivered(say(t, f, request(askQ, answerA, askR), assistant("lost")))
		return []*Node{say(t, f, request(askQ, answerA, user("r2")), assistant("b"))}
	}},
	{"two last answers were lost", func(t *testing.T, f *Forest) []*Node {
		n := say(t, f, request(askQ), answerA)
		f.Undelivered(say(t, f, request(askQ, answerA, askR), assistant("lost")))
		f.Undelivered(say(t, f, request(askQ, answerA, askR), assistant("lost again")))
		return []*Node{n}
	}},
	{"the only answer of a conversation was lost", func(t *testing.T, f *Forest) []*Node {
		f.Undelivered(say(t, f, request(askQ), answerA))
		return []*Node{say(t, f, request(user("title")), assistant("t"))}
	}},
	{"nothing was received", func(t *testing.T, f *Forest) []*Node {
		n := say(t, f, request(askQ), answerA)
		f.Undelivered(n)
		return []*Node{n}
	}},
}

func TestContextsWithoutLostAnswers(t *testing.T) {
	for _, tt := range lostCases {
		f := New("s")
		if want, got := tt.play(t, f), f.Contexts(); !slices.Equal(got, want) {
			t.Errorf("%s: contexts %v, want %v", tt.name, ids(got), ids(want))
		}
	}
}

// A lost answer is dropped with its own reason, unless its context is exported.
func TestFatesOfLostAnswers(t *testing.T) {
	f := New("s")
	lost := say(t, f, request(user("q")), assistant("lost"))
	n := say(t, f, request(user("q")), assistant("a"))
	side := say(t, f, request(user("title")), assistant("t"))
	f.Undelivered(lost)
	if got, want := f.Fates(n), (Fates{Sampled: 3, Trained: 1, Undelivered: 1, Unexported: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := f.Fates(n, lost, side), (Fates{Sampled: 3, Trained: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The client holds the answer it got: of two equal ones the lost one is not extended, whether
// the request is matched exactly or with tolerance.
func TestMatchPrefersDelivered(t *testing.T) {
	answer := canon.NewMessage(canon.Message{Role: canon.Assistant, Content: "a", Reasoning: "hm"})
	for _, sent := range []*canon.Message{answer, assistant("a")} {
		f := New("s")
		got := say(t, f, request(user("q")), answer)
		f.Undelivered(say(t, f, request(user("q")), answer))
		if _, m, _ := f.MatchTolerant(request(user("q"), sent, user("r"))); m.Parent != got {
			t.Errorf("extends #%d, want #%d", m.Parent.ID(), got.ID())
		}
	}
}
