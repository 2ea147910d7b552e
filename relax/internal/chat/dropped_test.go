package chat

import (
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// This file plays conversations through a SessionForest and a chat format together, as the engine
// does: the forest says what a request extends, the format encodes what is new, and what the
// model is sent is the path down to the observation. What a harness does to its history between
// two requests must never show in the tokens otherwise than in a full render of what it sent.

// A play is one Session with a model that follows its template to the letter.
type play struct {
	format *Format
	forest *forest.Forest
	tools  []canon.ToolSpec
}

// ask makes a request and returns its observation and the tokens the model is sent.
func (p *play) ask(t *testing.T, messages []*canon.Message) (*forest.Node, []int32) {
	t.Helper()
	req := p.request(messages)
	match := p.forest.Match(req)
	prev := Prev{}
	if g := match.Parent.Generation(); g != nil {
		prev.IDs = g.IDs
	}
	seen, err := p.format.Observe(req, match.From, prev)
	if err != nil {
		t.Fatalf("observe from %d: %v", match.From, err)
	}
	node := p.forest.Attach(match, seen.Body, seen.Prompt, req)
	return node, slices.Concat(node.Prefix(nil)...)
}

func (p *play) request(messages []*canon.Message) *canon.Request {
	return &canon.Request{Messages: messages, Tools: p.tools, Kwargs: canon.ObjectOf()}
}

// answer commits what the model says at an observation. lineal reports whether the template
// prints the finished turn as its prompt began it.
func (p *play) answer(t *testing.T, at *forest.Node, messages []*canon.Message, said *canon.Message) (lineal bool) {
	t.Helper()
	tpl := p.format.template(p.tools)
	turns := append(slices.Clip(messages), said)
	text, lineal := tpl.sampled(p.talk(tpl, turns), len(messages))
	if !lineal { // its tokens are of no account: nobody compares a row with a render that differs
		text = script{text: []byte(said.Reasoning + said.Content)}
	}
	ids, err := p.format.encodeScript(&text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.forest.Commit(at, forest.Generation{IDs: ids, Logprobs: make([]float32, len(ids)), Message: said}); err != nil {
		t.Fatal(err)
	}
	return lineal
}

func (p *play) talk(tpl *template, turns []*canon.Message) conversation {
	return conversation{tpl.dialect.adapt(turns, true), p.tools, canon.ObjectOf()}
}

// render is a full render of the messages with the generation prompt, as text and in ids.
func (p *play) render(t *testing.T, messages []*canon.Message) (string, []int32) {
	t.Helper()
	tpl := p.format.template(p.tools)
	text, err := tpl.print(p.talk(tpl, messages), true)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := p.format.encodeScript(&text)
	if err != nil {
		t.Fatal(err)
	}
	return string(text.text), ids
}

// isRender requires that what the model was sent is a full render of what the harness sent.
func (p *play) isRender(t *testing.T, what string, sent []int32, messages []*canon.Message) {
	t.Helper()
	text, ids := p.render(t, messages)
	if !slices.Equal(sent, ids) {
		t.Errorf("%s: the model is sent\n%q,\na full render is\n%q", what, decoded(t, p.format.tok, sent), text)
	}
}

// once requires that each message is there once and that nothing of the hidden words is.
func (p *play) once(t *testing.T, what string, sent []int32, messages []*canon.Message, hidden ...string) {
	t.Helper()
	text := decoded(t, p.format.tok, sent)
	for _, m := range messages {
		for _, w := range wordsOf(m) {
			if n := strings.Count(text, w); n != 1 {
				t.Errorf("%s: %s of the %s is there %d times in %q", what, w, m.Role, n, text)
			}
		}
	}
	for _, w := range hidden {
		if strings.Contains(text, w) {
			t.Errorf("%s: %s was dropped and is in %q", what, w, text)
		}
	}
}

// A droppedTalk is the conversation of the tests below: a question, a call with reasoning and its
// result (an answer and another question where a template prints no calls), an answer with
// reasoning, a last question.
type droppedTalk struct {
	tools         []canon.ToolSpec
	question      *canon.Message
	first, second *canon.Message // as the model says them
	result, last  *canon.Message
}

func droppedTalkOf(f *Format, secondThinks bool) droppedTalk {
	h := droppedTalk{question: user("wq1qw"), second: assistant("wq5qw"), last: user("wq6qw")}
	if traits := f.tools.traits; traits.Calls && traits.Results {
		h.tools = []canon.ToolSpec{weather}
		h.first = calling("", parisID, "weather", `{"city":"wq2qw"}`)
		h.result = result(parisID, "wq4qw")
	} else {
		h.first, h.result = assistant("wq2qw"), user("wq4qw")
	}
	h.first = thinking(h.first, "wq3qw")
	if secondThinks {
		h.second = thinking(h.second, "wq7qw")
	}
	return h
}

func bare(m *canon.Message) *canon.Message { return thinking(m, "") }

// testDroppedReasoning: the second request drops the reasoning of the first answer, the third that of
// both. Each is sent to the model as a full render of exactly what the harness sent: one
// assistant header, nothing doubled, nothing of what was dropped. rewrites is the format's entry in
// rewritings: where a template prints finished turns as they were sampled, a third request that
// extends the second answer is such a render, too.
func testDroppedReasoning(t *testing.T, f *Format, rewrites string) {
	t.Helper()
	h := droppedTalkOf(f, true)
	p := &play{format: f, forest: forest.New("s"), tools: h.tools}
	one := []*canon.Message{h.question}
	node, sent := p.ask(t, one)
	p.isRender(t, "first request", sent, one)
	p.answer(t, node, one, h.first)

	two := []*canon.Message{h.question, bare(h.first), h.result}
	node, sent = p.ask(t, two)
	p.isRender(t, "second request", sent, two)
	p.once(t, "second request", sent, two, "wq3qw")
	p.answer(t, node, two, h.second)

	three := []*canon.Message{h.question, bare(h.first), h.result, bare(h.second), h.last}
	_, sent = p.ask(t, three)
	p.isRender(t, "third request", sent, three)
	if node.Parent() != p.forest.Root() || p.forest.Stats().Subtrees != 3 {
		t.Errorf("%d subtrees, want one for each request", p.forest.Stats().Subtrees)
	}
	if !testKeptAnswer(t, f) && len(rewritings[rewrites].differences) == 0 {
		t.Error("third request: the template is said to print turns as they were sampled, and does not")
	}
}

// testKeptAnswer is the same up to the second answer, which does not think and is replayed as it
// was: the third request extends it. It reports whether the text is that of a full render; then
// the ids are, too. A template that rewrites finished turns prints the second answer otherwise
// than it was sampled, and sampled ids stay.
func testKeptAnswer(t *testing.T, f *Format) bool {
	t.Helper()
	h := droppedTalkOf(f, false)
	p := &play{format: f, forest: forest.New("s"), tools: h.tools}
	one := []*canon.Message{h.question}
	node, _ := p.ask(t, one)
	p.answer(t, node, one, h.first)
	two := []*canon.Message{h.question, bare(h.first), h.result}
	node, _ = p.ask(t, two)
	if !p.answer(t, node, two, h.second) {
		return false
	}
	three := []*canon.Message{h.question, bare(h.first), h.result, h.second, h.last}
	node, sent := p.ask(t, three)
	if node.Parent().Kind() != forest.Response || node.Responses() != 1 {
		t.Errorf("the third request extends %s #%d, want the second answer", node.Parent().Kind(), node.Parent().ID())
	}
	p.once(t, "third request", sent, three, "wq3qw")
	text, ids := p.render(t, three)
	if decoded(t, f.tok, sent) != text {
		return false
	}
	if !slices.Equal(sent, ids) {
		t.Errorf("the text of the third request is that of a full render, its ids are not: %v, %v", sent, ids)
	}
	return true
}

// TestDroppedReasoning plays every template of the fixtures. TestReal does it with real tokenizers.
//
// Case H8.
func TestDroppedReasoning(t *testing.T) {
	for _, name := range templateNames(t) {
		if name == "lc__MiroThinker" {
			continue // refused: TestRaisingTemplate
		}
		t.Run(name, func(t *testing.T) { testDroppedReasoning(t, fixtureFormat(t, name), name) })
	}
}
