package forest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func user(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.User, Content: text})
}

func assistant(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.Assistant, Content: text})
}

func request(messages ...*canon.Message) *canon.Request {
	return &canon.Request{Messages: messages, Kwargs: canon.ObjectOf()}
}

func logprobs(n int) []float32 { return make([]float32, n) }

func TestCommitRefuses(t *testing.T) {
	f := New("s")
	req := request(user("q"))
	obs := f.Attach(f.Match(req), []int32{1}, []int32{2}, req)
	good := Generation{IDs: []int32{3, 4}, Logprobs: logprobs(2), Message: assistant("a"), RequestID: "r"}
	tests := []struct {
		name   string
		at     *Node
		change func(*Generation)
		text   string
	}{
		{"root", f.Root(), func(*Generation) {}, "only answer an observation"},
		{"nil", nil, func(*Generation) {}, "only answer an observation"},
		{"no message", obs, func(g *Generation) { g.Message = nil }, "assistant message"},
		{"user message", obs, func(g *Generation) { g.Message = user("a") }, "assistant message"},
		{"logprobs", obs, func(g *Generation) { g.Logprobs = logprobs(1) }, "2 token ids but 1 logprobs"},
		{"spans not from 0", obs, func(g *Generation) { g.Spans = []VersionSpan{{Start: 1}} }, "span 0"},
		{"spans do not rise", obs, func(g *Generation) { g.Spans = []VersionSpan{{}, {Start: 1}, {Start: 1}} }, "span 2"},
		{"span beyond", obs, func(g *Generation) { g.Spans = []VersionSpan{{}, {Start: 3}} }, "span 1"},
	}
	for _, tt := range tests {
		g := good
		tt.change(&g)
		if _, err := f.Commit(tt.at, g); err == nil || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "session s") {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	if s := f.Stats(); s.Responses != 0 || s.Sampled != 0 {
		t.Errorf("a refused commit was counted: %+v", s)
	}
	if n, err := f.Commit(obs, good); err != nil || n.Len() != 4 {
		t.Errorf("got %v, %v", n, err)
	}
}

func TestEmptyTurn(t *testing.T) {
	f := New("s")
	req := request(user("q"))
	obs := f.Attach(f.Match(req), []int32{1}, []int32{2}, req)
	n, err := f.Commit(obs, Generation{Message: assistant(""), Spans: []VersionSpan{{Version: 5}}})
	if err != nil {
		t.Fatal(err)
	}
	row := f.Row(n)
	if row.Turns != 1 || row.Len != 2 || row.PromptLen != 2 || len(row.Spans) != 0 {
		t.Errorf("got %+v", row)
	}
	if last := row.Pieces[len(row.Pieces)-1]; last.Logprobs == nil || len(last.Tokens) != 0 {
		t.Error("an empty turn must still be a response piece")
	}
}

func TestCommitKeepsNoSpareRoom(t *testing.T) {
	f := New("s")
	req := request(user("q"))
	obs := f.Attach(f.Match(req), append(make([]int32, 0, 100), 1), []int32{2}, req)
	n, err := f.Commit(obs, Generation{
		IDs: append(make([]int32, 0, 1000), 3), Logprobs: append(make([]float32, 0, 1000), 0), Message: assistant("a")})
	if err != nil {
		t.Fatal(err)
	}
	if g := n.Generation(); cap(g.IDs) > 8 || cap(g.Logprobs) > 8 || cap(obs.Body()) > 8 {
		t.Errorf("capacities %d, %d, %d", cap(g.IDs), cap(g.Logprobs), cap(obs.Body()))
	}
}

func TestDivergenceIsOneASCIILine(t *testing.T) {
	f := New("s")
	long := strings.Repeat("é", 300)
	req := request(user("q\n" + long + "x"))
	obs := f.Attach(f.Match(req), nil, nil, req)
	if _, err := f.Commit(obs, Generation{Message: assistant("a")}); err != nil {
		t.Fatal(err)
	}
	d := f.Divergence(request(user("q\n" + long + "中\n")))
	if d == nil || d.Reason != ReasonMessage || d.Field != "content" || d.Message != 0 {
		t.Fatalf("got %+v", d)
	}
	for _, c := range []byte(d.String()) {
		if c < 0x20 || c > 0x7e {
			t.Fatalf("not fit for a header: %q", d.String())
		}
	}
	if !strings.Contains(d.Recorded, "x") || !strings.Contains(d.Sent, `\u4e2d`) || len(d.String()) > 600 {
		t.Errorf("the difference is not shown: %s", d)
	}
}

// A model is the plain truth a forest is checked against: a list of conversations.
type model struct {
	responses []*modelResponse
}

type modelResponse struct {
	req    *canon.Request // the entire conversation
	tokens []int32
	node   *Node
}

func sameContext(a, b *canon.Request) bool {
	return canon.EqualTools(a.Tools, b.Tools) && a.Kwargs.Equal(b.Kwargs)
}

func isPrefix(a, b *canon.Request) bool {
	if !sameContext(a, b) || len(a.Messages) > len(b.Messages) {
		return false
	}
	for i, m := range a.Messages {
		if !m.Equal(b.Messages[i]) {
			return false
		}
	}
	return true
}

// match is the newest of the longest recorded conversations that req extends.
func (m *model) match(req *canon.Request) *modelResponse {
	var best *modelResponse
	for _, r := range m.responses {
		if isPrefix(r.req, req) && (best == nil || len(r.req.Messages) >= len(best.req.Messages)) {
			best = r
		}
	}
	return best
}

// Random histories with states cut to few bits, so that hits must be confirmed.
func TestForestAgainstModel(t *testing.T) {
	for _, mask := range []canon.State{^canon.State(0), 0xf, 1, 0} {
		for seed := range uint64(20) {
			f := New("s")
			f.mask = mask
			checkAgainstModel(t, f, rand.New(rand.NewPCG(seed, 7)), fmt.Sprintf("mask %x seed %d", mask, seed))
		}
	}
}

func checkAgainstModel(t *testing.T, f *Forest, r *rand.Rand, label string) {
	var truth model
	var next int32
	fresh := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			next++
			ids[i] = next
		}
		return ids
	}
	sampled := 0
	for range 60 {
		req := randomRequest(r, &truth)
		m := f.Match(req)
		want := truth.match(req)
		var prefix []int32
		if want == nil {
			if m.Parent != f.Root() || m.From != 0 {
				t.Fatalf("%s: matched #%d, want the root", label, m.Parent.ID())
			}
		} else {
			if m.Parent != want.node || m.From != len(want.req.Messages) {
				t.Fatalf("%s: matched #%d at %d, want #%d at %d", label, m.Parent.ID(), m.From, want.node.ID(), len(want.req.Messages))
			}
			prefix = want.tokens
		}
		body, prompt := fresh(r.IntN(3)), fresh(r.IntN(2))
		if m.Observation != nil {
			body, prompt = m.Observation.Body(), m.Observation.Prompt()
		}
		obs := f.Attach(m, body, prompt, req)
		if m.Observation != nil && obs != m.Observation {
			t.Fatalf("%s: attached twice", label)
		}
		stream := slices.Concat(prefix, body, prompt)
		if got := slices.Concat(obs.Prefix(nil)...); !slices.Equal(got, stream) || obs.Len() != len(stream) {
			t.Fatalf("%s: prefix %v, length %d; want %v", label, got, obs.Len(), stream)
		}
		if r.IntN(4) == 0 {
			continue
		}
		ids := fresh(1 + r.IntN(3))
		answer := assistant(string(rune('a' + r.IntN(2))))
		n, err := f.Commit(obs, Generation{IDs: ids, Logprobs: logprobs(len(ids)), Message: answer})
		if err != nil {
			t.Fatalf("%s: %v", label, err)
		}
		sampled += len(ids)
		whole := *req
		whole.Messages = append(slices.Clone(req.Messages), answer)
		truth.responses = append(truth.responses, &modelResponse{req: &whole, tokens: slices.Concat(stream, ids), node: n})
		checkRow(t, f, n, truth.responses[len(truth.responses)-1], label)
	}
	checkExport(t, f, &truth, sampled, label)
}

func checkRow(t *testing.T, f *Forest, n *Node, want *modelResponse, label string) {
	t.Helper()
	row := f.Row(n)
	var tokens []int32
	for _, p := range row.Pieces {
		if p.Logprobs != nil && len(p.Logprobs) != len(p.Tokens) {
			t.Fatalf("%s: %d tokens, %d logprobs", label, len(p.Tokens), len(p.Logprobs))
		}
		tokens = append(tokens, p.Tokens...)
	}
	if !slices.Equal(tokens, want.tokens) || row.Len != len(tokens) || len(row.Messages) != len(want.req.Messages) {
		t.Fatalf("%s: row %v, want %v", label, tokens, want.tokens)
	}
}

func checkExport(t *testing.T, f *Forest, truth *model, sampled int, label string) {
	t.Helper()
	if f.SampledTokens() != sampled {
		t.Fatalf("%s: %d sampled tokens, want %d", label, f.SampledTokens(), sampled)
	}
	var all []*Node
	var contexts []*Node
	for i, r := range truth.responses {
		all = append(all, r.node)
		n, err := f.Find(r.req)
		newest := truth.match(r.req)
		if err != nil || n != newest.node {
			t.Fatalf("%s: Find gave %v, %v", label, n, err)
		}
		if d := f.Divergence(r.req); d != nil && !n.continued {
			t.Fatalf("%s: %s for a request that extends #%d", label, d, n.ID())
		}
		leaf := true
		for j, o := range truth.responses {
			equal := isPrefix(o.req, r.req) && len(o.req.Messages) == len(r.req.Messages)
			if equal && (j > i || hasBelow(truth, o)) {
				leaf = false
			}
		}
		if leaf {
			contexts = append(contexts, r.node)
		}
	}
	if got := f.Contexts(); !slices.Equal(got, contexts) {
		t.Fatalf("%s: contexts %v, want %v", label, ids(got), ids(contexts))
	}
	if trained := f.Fates(all...).Trained; trained != sampled {
		t.Fatalf("%s: all responses train %d of %d tokens", label, trained, sampled)
	}
	if _, err := f.Implicit(); (err == nil) != (len(contexts) == 1) || err != nil && !errors.Is(err, ErrNotFinalizable) {
		t.Fatalf("%s: implicit export of %d contexts: %v", label, len(contexts), err)
	}
	missing := request(user("never sent"))
	if _, err := f.Find(missing); !errors.Is(err, ErrNotFinalizable) {
		t.Fatalf("%s: found a conversation nobody had: %v", label, err)
	}
}

// hasBelow reports whether a response was committed below o.
func hasBelow(truth *model, o *modelResponse) bool {
	for _, r := range truth.responses {
		for n := r.node.parent; n != nil; n = n.parent {
			if n == o.node {
				return true
			}
		}
	}
	return false
}

func ids(nodes []*Node) []int {
	var out []int
	for _, n := range nodes {
		out = append(out, n.ID())
	}
	return out
}

// randomRequest continues, cuts or edits a recorded conversation, or begins a new one.
func randomRequest(r *rand.Rand, truth *model) *canon.Request {
	req := request()
	if r.IntN(3) == 0 {
		req.Tools = []canon.ToolSpec{canon.NewToolSpec(string(rune('f'+r.IntN(2))), nil, canon.Value{})}
	}
	if n := len(truth.responses); n > 0 && r.IntN(4) > 0 {
		from := truth.responses[r.IntN(n)].req
		req.Tools = from.Tools
		cut := len(from.Messages)
		if r.IntN(3) == 0 {
			cut = r.IntN(cut + 1)
		}
		req.Messages = slices.Clone(from.Messages[:cut])
	}
	for range r.IntN(3) {
		text := string(rune('a' + r.IntN(2)))
		if r.IntN(3) == 0 {
			req.Messages = append(req.Messages, assistant(text))
		} else {
			req.Messages = append(req.Messages, user(text))
		}
	}
	if len(req.Messages) == 0 {
		req.Messages = append(req.Messages, user("a"))
	}
	return req
}
