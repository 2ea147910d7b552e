package chat

import (
	"bytes"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// What a model that follows its template to the letter would sample, taken from the template's
// own render of a finished turn. The doctor's example is made of it, parsers are tried on it,
// and tests compare whole lineages with it.

// sampled is the text of the response c.turns[k] behind its prompt, with the terminator. ok is
// false where the template prints a finished turn otherwise than the prompt began it.
func (t *template) sampled(c conversation, k int) (text script, ok bool) {
	prompt, err := t.print(conversation{c.turns[:k], c.tooling, c.options}, true)
	if err != nil {
		return script{}, false
	}
	closed, err := t.print(conversation{c.turns[:k+1], c.tooling, c.options}, false)
	if err != nil || !bytes.HasPrefix(closed.text, prompt.text) {
		return script{}, false
	}
	turn := closed.from(len(prompt.text))
	return turn.upTo(t.sampledEnd(turn, lastWord(turn.text, c.turns[k]), prompt)), true
}

// sampledEnd is where a turn ends whose last word ends at offset said: behind its own
// terminator, or before the template goes on with another turn.
func (t *template) sampledEnd(turn script, said int, prompt script) int {
	for _, m := range turn.marks {
		if m.start < said {
			continue
		}
		if slices.Contains(t.turnEnd.Own, m.id) {
			return m.end
		}
		if opener := prompt.marks; len(opener) > 0 && m.id == lastHeader(opener) {
			return m.start
		}
	}
	return len(turn.text)
}

// lastHeader is the control token that begins the run of them at the end of a prompt.
func lastHeader(marks []mark) int32 {
	i := len(marks) - 1
	for i > 0 && marks[i-1].end == marks[i].start {
		i--
	}
	return marks[i].id
}

// lastWord is where the last thing that a message says ends in its printed turn.
func lastWord(turn []byte, m *canon.Message) int {
	end := 0
	find := func(text string) {
		if text = strings.TrimSpace(text); text == "" {
			return
		}
		if at := bytes.LastIndex(turn, bytesOf(text)); at >= 0 {
			end = max(end, at+len(text))
		}
	}
	find(m.Reasoning)
	find(m.Content)
	for _, c := range m.ToolCalls {
		find(c.Name)
		arguments, err := canon.ParseValue(bytesOf(c.Arguments))
		if err != nil {
			continue
		}
		for _, a := range arguments.Members() {
			find(a.Key)
			if a.Value.Kind() == canon.String {
				find(a.Value.Str())
			}
		}
	}
	return end
}

// A Span is a piece of an example conversation.
type Span struct {
	// Kind is "context" (messages, mask 0), "prompt" (the generation prompt, mask 0) or
	// "sampled" (what the model said, mask 1).
	Kind string `json:"kind"`
	Text string `json:"text"`
	// Tokens is the number of ids.
	Tokens int `json:"tokens"`
}

// example is a short conversation as a row would hold it.
func (f *Format) example(t *template) ([]Span, error) {
	c := t.exampleTalk()
	var spans []Span
	add := func(kind string, s script) error {
		ids, err := f.encodeScript(&s)
		if err == nil && len(s.text) > 0 {
			spans = append(spans, Span{Kind: kind, Text: string(s.text), Tokens: len(ids)})
		}
		return err
	}
	from, last := 0, int32(-1)
	for k, m := range c.turns {
		if m.Role != canon.Assistant {
			continue
		}
		part := conversation{c.turns[:k], c.tooling, c.options}
		seen, err := t.observe(part, from, last)
		if err != nil {
			return nil, err
		}
		prompt, err := f.promptFor(t, part, seen)
		if err != nil {
			return nil, err
		}
		cut := len(seen.text) - len(prompt.text)
		if err := add("context", seen.upTo(cut)); err != nil {
			return nil, err
		}
		if err := add("prompt", seen.from(cut)); err != nil {
			return nil, err
		}
		said, ok := t.sampled(c, k)
		if !ok { // the template rewrites the history before it: ask about the answer alone
			said, ok = t.sampled(conversation{[]*canon.Message{standInUser, m}, c.tooling, c.options}, 1)
		}
		if !ok {
			said = script{text: []byte(m.Content)}
		}
		if err := add("sampled", said); err != nil {
			return nil, err
		}
		from, last = k+1, lastID(said)
	}
	return spans, nil
}

// lastID is the control token that s ends with, -1 if it ends with text.
func lastID(s script) int32 {
	if n := len(s.marks); n > 0 && s.marks[n-1].end == len(s.text) {
		return s.marks[n-1].id
	}
	return -1
}

// exampleTalk is the example's conversation, with all that the template can print.
func (t *template) exampleTalk() conversation {
	const id = "call_00000000000000000000000a"
	answer := &canon.Message{Role: canon.Assistant, Content: "It is 4."}
	turns := []*canon.Message{say(canon.User, "What is 2 + 2?")}
	c := conversation{}
	if t.traits.System {
		turns = append([]*canon.Message{say(canon.System, "You are a calculator.")}, turns...)
	}
	if t.traits.Calls && t.traits.Results {
		call := &canon.Message{Role: canon.Assistant, ToolCalls: []canon.ToolCall{{ID: id, Name: "add", Arguments: `{"a":2,"b":2}`}}}
		if t.traits.Reasoning {
			call.Reasoning = "I should add."
		}
		turns = append(turns, call, answerTo(id, "4"))
		c.tooling = []canon.ToolSpec{exampleTool}
	}
	c.turns = append(turns, answer, say(canon.User, "And 3 + 3?"), say(canon.Assistant, "6."))
	return c
}

var exampleDescription = "Adds two numbers"

var exampleTool = canon.NewToolSpec("add", &exampleDescription, canon.ObjectOf(
	canon.Member{Key: "type", Value: canon.StringValue("object")},
	canon.Member{Key: "properties", Value: canon.ObjectOf(
		canon.Member{Key: "a", Value: aNumber("first")}, canon.Member{Key: "b", Value: aNumber("second")})}))

func aNumber(which string) canon.Value {
	return canon.ObjectOf(canon.Member{Key: "type", Value: canon.StringValue("number")},
		canon.Member{Key: "description", Value: canon.StringValue("the " + which)})
}
