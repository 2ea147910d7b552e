package chat

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A scenario is a small conversation whose messages from index from on are new.
type scenario struct {
	name string
	conversation
	from int
}

// A finding is what a scenario showed.
type finding struct {
	Scenario string
	// Unsupported says why the template cannot print the conversation at all, "" if it can.
	Unsupported string
	// Fault says why the plan does not hold, "" if it does.
	Fault string
	// Rewrites says how the template prints the history differently than it was sampled, ""
	// if a full render begins with what was there.
	Rewrites string
}

// scenarios are the ways in which agents go on after a response, each with and without a
// system message and tools.
func scenarios() []scenario {
	var out []scenario
	for i := range 4 {
		system, tools := i&1 > 0, i&2 > 0
		for _, s := range continuations() {
			s.name += context(system, tools)
			if system {
				s.turns = append([]*canon.Message{say(canon.System, systemWord)}, s.turns...)
				s.from++
			}
			if tools {
				s.tooling = []canon.ToolSpec{probeTool}
			}
			out = append(out, s)
		}
	}
	return out
}

func context(system, tools bool) string {
	switch {
	case system && tools:
		return ", system and tools"
	case system:
		return ", system"
	case tools:
		return ", tools"
	}
	return ""
}

// continuations are the conversations of the self-check without their heads.
func continuations() []scenario {
	ask := func(n string) *canon.Message { return say(canon.User, askWord+n) }
	answer := func(n string) *canon.Message { return say(canon.Assistant, answerWord+n) }
	thought := func(n string) *canon.Message {
		return &canon.Message{Role: canon.Assistant, Content: answerWord + n, Reasoning: reasoningWord + n}
	}
	calls := func(ids ...string) *canon.Message {
		m := &canon.Message{Role: canon.Assistant}
		for _, id := range ids {
			m.ToolCalls = append(m.ToolCalls, callTo(id, toolWord))
		}
		return m
	}
	a, b := "call_00000000000000000000000a", "call_00000000000000000000000b"
	thoughtCall := calls(a)
	thoughtCall.Reasoning = reasoningWord
	talk := func(messages ...*canon.Message) conversation { return conversation{turns: messages} }
	return []scenario{
		{"user", talk(ask("1"), answer("1"), ask("2")), 2},
		{"user after two turns", talk(ask("1"), answer("1"), ask("2"), answer("2"), ask("3")), 4},
		{"user after reasoning", talk(ask("1"), thought("1"), ask("2")), 2},
		{"tool", talk(ask("1"), calls(a), answerTo(a, resultWord)), 2},
		{"tool after reasoning", talk(ask("1"), thoughtCall, answerTo(a, resultWord)), 2},
		{"two tools", talk(ask("1"), calls(a, b), answerTo(a, resultWord+"1"), answerTo(b, resultWord+"2")), 2},
		{"tool and user", talk(ask("1"), calls(a), answerTo(a, resultWord), ask("2")), 2},
		{"second tool", talk(ask("1"), calls(a), answerTo(a, resultWord+"1"), calls(b), answerTo(b, resultWord+"2")), 4},
		{"user after a tool loop", talk(ask("1"), calls(a), answerTo(a, resultWord), answer("1"), ask("2")), 4},
		{"system and user", talk(ask("1"), answer("1"), say(canon.System, systemWord+"2"), ask("2")), 2},
		{"written assistant", talk(ask("1"), answer("1"), ask("2"), answer("2"), ask("3")), 2},
		{"tool and written answer", talk(ask("1"), calls(a), answerTo(a, resultWord), answer("1"), ask("2")), 2},
		{"written call", talk(ask("1"), answer("1"), ask("2"), calls(a), answerTo(a, resultWord)), 2},
	}
}

// choose picks the first plan that holds in every scenario the template can print.
func (t *template) choose() ([]finding, error) {
	list := scenarios()
	var tried causes
	for _, p := range plans() {
		findings, fault := t.try(p, list)
		if fault == nil {
			t.plan = p
			return findings, nil
		}
		tried.add(p.String(), fault)
	}
	return nil, fmt.Errorf("chat template %s: no way to go on after a response holds; tried %s", t.source, tried)
}

func (t *template) try(p plan, list []scenario) ([]finding, error) {
	findings := make([]finding, 0, len(list))
	supported := 0
	for _, s := range list {
		f := t.check(p, s)
		findings = append(findings, f)
		if f.Fault != "" {
			return findings, fmt.Errorf("%s: %s", f.Scenario, f.Fault)
		}
		if f.Unsupported == "" {
			supported++
		}
	}
	if supported == 0 {
		return findings, errors.New(findings[0].Unsupported)
	}
	return findings, nil
}

// check compares what a plan says about a scenario with a render of all of it.
func (t *template) check(p plan, s scenario) finding {
	f := finding{Scenario: s.name}
	whole := s.conversation
	whole.turns = t.dialect.adapt(whole.turns, true)
	full, err := t.print(whole, true)
	if err != nil {
		f.Unsupported = err.Error()
		return f
	}
	if missing := leftOut(full.text, s.turns[s.from:]); missing != "" {
		f.Unsupported = "the template leaves out " + missing
		return f
	}
	tail, err := t.behind(p, s.conversation, s.from)
	if err != nil {
		f.Fault = err.Error()
		return f
	}
	if missing := leftOut(tail.text, s.turns[s.from:]); missing != "" {
		f.Fault = fmt.Sprintf("%s is not behind the response but before it", missing)
		return f
	}
	before := whole
	before.turns = t.dialect.adapt(s.turns[:s.from-1], true)
	prompt, err := t.print(before, true)
	if err != nil {
		f.Fault = differs(full, tail)
		return f // the template refuses what stood before: nothing to compare with
	}
	if f.Fault = differs(full, tail); f.Fault == "" {
		f.Fault = repeats(s.turns[s.from-1].Content, prompt, full, tail)
	}
	f.Rewrites = t.rewrites(s, prompt, full)
	return f
}

// leftOut names a message whose text is not in the render, "" if all are.
func leftOut(text []byte, messages []*canon.Message) string {
	for _, m := range messages {
		if m.Content != "" && !bytes.Contains(text, bytesOf(m.Content)) {
			return "a " + string(m.Role) + " message"
		}
		if len(m.ToolCalls) > 0 && !bytes.Contains(text, bytesOf(valueWord)) {
			return "a call"
		}
	}
	return ""
}

// differs says where tail is not the end of full, text and control tokens, "" if it is.
func differs(full, tail script) string {
	cut := len(full.text) - len(tail.text)
	if cut < 0 || !bytes.Equal(full.text[cut:], tail.text) {
		n := 0
		for n < len(full.text) && n < len(tail.text) && full.text[len(full.text)-1-n] == tail.text[len(tail.text)-1-n] {
			n++
		}
		return fmt.Sprintf("expected …%q, found …%q", ending(full.text, n), ending(tail.text, n))
	}
	end := full.from(cut)
	if !end.equal(&tail) {
		return "the control tokens of the end differ"
	}
	return ""
}

// repeats says that tail has more than what follows the response, "" if it has not: the prompt
// before the response must lie before it, and so must the response.
func repeats(response string, prompt, full, tail script) string {
	if start := len(full.text) - len(tail.text); start < agree(prompt.text, full.text) ||
		(response != "" && bytes.Contains(tail.text, bytesOf(response))) {
		return fmt.Sprintf("what follows the response begins before its end, with %q", shorten40(tail.text))
	}
	return ""
}

// ending is text around the place n bytes before its end.
func ending(text []byte, n int) string {
	at := len(text) - n
	return string(text[max(0, at-40):min(len(text), at+20)])
}

// rewrites compares what stood there once the last response was sampled, its prompt and
// itself, with a full render of what came after it. The lineage keeps what was sampled.
func (t *template) rewrites(s scenario, prompt, full script) string {
	c := conversation{t.dialect.adapt(s.turns[:s.from], true), s.tooling, s.options}
	last := len(c.turns) - 1
	if n := agree(prompt.text, full.text); n < len(prompt.text) {
		return fmt.Sprintf("the prompt had %q, a full render has %q", shorten40(prompt.text[n:]), shorten40(full.text[n:]))
	}
	if c.turns[last].Reasoning == "" {
		return "" // templates print an empty think block of their own, which nobody sampled
	}
	said, ok := t.sampled(c, last)
	if !ok {
		return ""
	}
	rest := full.text[len(prompt.text):]
	if n := agree(t.withoutEnd(said), rest); n < len(t.withoutEnd(said)) {
		return fmt.Sprintf("the response was %q, a full render has %q", shorten40(said.text[n:]), shorten40(rest[n:]))
	}
	return ""
}

// withoutEnd is the text of a sampled turn without its terminator, which history may print
// otherwise (gpt-oss).
func (t *template) withoutEnd(said script) []byte {
	if n := len(said.marks); n > 0 && slices.Contains(t.turnEnd.Own, said.marks[n-1].id) {
		return said.text[:said.marks[n-1].start]
	}
	return said.text
}

// agree is the number of bytes a and b have in common from their beginning.
func agree(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
