package chat

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A plan is how the text behind a response is found. The new messages are always rendered
// behind the assistant message that they follow, with its real tool calls, because templates
// look calls up by id and print results by neighbour. The plans differ in what stands before:
//
//   - suffix: a short stand-in conversation. What a turn costs does not depend on how long the
//     conversation is.
//   - splice: the real conversation, cut at the end of that assistant turn.
//   - full: the real conversation, whose render up to the response must begin the render of
//     all of it.
type plan struct {
	// Real: the real earlier messages are rendered.
	Real bool
	// Anchored: the assistant message is a stand-in whose text can be found again.
	Anchored bool
	// System and Tools: a suffix needs the real system message, the real tools.
	System, Tools bool
	// CallsOnly: an assistant message with calls must have no content.
	CallsOnly bool
}

// String is the plan's name in reports.
func (p plan) String() string {
	switch {
	case p.Real && p.Anchored:
		return "splice"
	case p.Real:
		return "full"
	}
	name := "suffix"
	if p.System {
		name += "+system"
	}
	if p.Tools {
		name += "+tools"
	}
	return name
}

// plans are what is tried at start, cheapest first.
func plans() []plan {
	var out []plan
	for i := range 8 {
		out = append(out, plan{Anchored: true, CallsOnly: i&1 > 0, System: i&2 > 0, Tools: i&4 > 0})
	}
	return append(out, plan{Real: true, Anchored: true}, plan{Real: true, Anchored: true, CallsOnly: true}, plan{Real: true})
}

// turnEnd is how a template ends an assistant turn.
type turnEnd struct {
	// Own are the tokens that close a turn whatever follows, as a closed conversation shows
	// them: the one to sample first.
	Own []int32
	// InHistory are those of Own that close only a turn that another follows: they are not
	// what a model samples at the end (gpt-oss: <|end|>).
	InHistory []int32
	// Shared are tokens that open the next turn and thereby end this one (GLM).
	Shared []int32
	// Equal are the ids that end a turn as well as an own terminator does, because the template
	// itself writes them (gpt-oss samples <|return|> where history has <|end|>).
	Equal []int32
}

// errMoved says that a template prints the conversation so that no place behind the response
// can be found.
var errMoved = errors.New("the response's turn is printed differently once messages follow it")

// behind renders what follows the response at c.turns[from-1] up to and with the generation
// prompt: from the template's end of the turn on, whether the model sampled that end or not.
func (t *template) behind(p plan, c conversation, from int) (script, error) {
	if !p.Anchored {
		return t.behindPrefix(c, from)
	}
	mark := anchor(rand.Uint64())
	var first error
	for _, calls := range callSubsets(c.turns[from-1].ToolCalls) {
		tail, err := t.behindAnchor(p, c, from, calls, mark)
		if err == nil {
			return tail, nil
		}
		if first == nil {
			first = err
		}
	}
	return script{}, first
}

// callSubsets are the calls a stand-in may have, best first. A model can make two calls in one
// turn though its template prints one at most (Llama 3.1). The calls are in the tokens; what
// follows is printed behind the last of them, or behind none.
func callSubsets(calls []canon.ToolCall) [][]canon.ToolCall {
	switch n := len(calls); n {
	case 0:
		return [][]canon.ToolCall{nil}
	case 1:
		return [][]canon.ToolCall{calls, nil}
	default:
		return [][]canon.ToolCall{calls, calls[n-1:], nil}
	}
}

// anchor is a text to find a stand-in by. n is random, so that no client can write it into a
// message first; probes, which nobody else writes to, take any.
func anchor(n uint64) string { return "QzRelax" + strconv.FormatUint(n|1<<63, 36) + "z" }

func (t *template) behindAnchor(p plan, c conversation, from int, calls []canon.ToolCall, mark string) (script, error) {
	base := append(t.base(p, c, from), standIn(calls, mark, p.CallsOnly))
	n := len(base)
	stage := conversation{turns: append(base, t.dialect.adapt(c.turns[from:], false)...), options: c.options}
	if p.Real || p.Tools {
		stage.tooling = c.tooling
	}
	v := t.view(stage)
	all, err := t.render(v, len(v.messages), true)
	if err != nil {
		return script{}, err
	}
	place, count := bytes.LastIndex(all.text, bytesOf(mark)), bytes.Count(all.text, bytesOf(mark))
	if place < 0 || (len(calls) == 0 && count > 1) {
		return script{}, fmt.Errorf("%w: the template prints its text %d times", errMoved, count)
	}
	behind := all.from(place + len(mark))
	if len(calls) == 0 {
		return behind, nil // nothing that the model samples is printed behind the text
	}
	closed, err := t.render(v, n, false)
	if err != nil {
		return script{}, err
	}
	place = bytes.LastIndex(closed.text, bytesOf(mark))
	if alone := bytes.Count(closed.text, bytesOf(mark)); alone != count {
		return script{}, fmt.Errorf("%w: its calls are printed %d times alone and %d times then", errMoved, alone, count)
	}
	return t.endOfTurn(closed.from(place+len(mark)), behind, c.turns[from:])
}

func (t *template) behindPrefix(c conversation, from int) (script, error) {
	before := t.dialect.adapt(c.turns[:from], true)
	n := len(before)
	v := t.view(conversation{
		turns:   append(slices.Clip(before), t.dialect.adapt(c.turns[from:], false)...),
		tooling: c.tooling, options: c.options,
	})
	closed, err := t.render(v, n, false)
	if err != nil {
		return script{}, err
	}
	all, err := t.render(v, len(v.messages), true)
	if err != nil {
		return script{}, err
	}
	return t.endOfTurn(closed, all, c.turns[from:])
}

// base is what stands before the response.
func (t *template) base(p plan, c conversation, from int) []*canon.Message {
	if p.Real {
		return slices.Clip(t.dialect.adapt(c.turns[:from-1], true))
	}
	if first := c.turns[0]; p.System && first.Role == canon.System {
		return []*canon.Message{first, standInUser}
	}
	return []*canon.Message{standInUser}
}

var standInUser = &canon.Message{Role: canon.User, Content: "."}

// standIn is a response with these calls that can be found again in rendered text. Its
// arguments do not matter for what follows, so they are the mark alone.
func standIn(calls []canon.ToolCall, mark string, callsOnly bool) *canon.Message {
	out := &canon.Message{Role: canon.Assistant, Content: mark}
	if len(calls) == 0 {
		return out
	}
	if callsOnly {
		out.Content = ""
	}
	arguments := `{"` + mark + `":"` + mark + `"}`
	out.ToolCalls = make([]canon.ToolCall, len(calls))
	for i, c := range calls {
		out.ToolCalls[i] = canon.ToolCall{ID: c.ID, Name: c.Name, Arguments: arguments}
	}
	return out
}

// endOfTurn compares the end of a closed conversation with the same place once messages
// follow, and returns all from the end of the assistant turn on. Where a template prints the
// last turn otherwise than earlier ones, the turn ends at its own terminator.
func (t *template) endOfTurn(closed, all script, following []*canon.Message) (script, error) {
	n := common(closed, all)
	if !t.closes(closed.from(n)) {
		for _, m := range all.marks {
			if m.start >= n && slices.Contains(t.turnEnd.Own, m.id) && !mentioned(following, all.text[:m.start]) {
				return all.from(m.start), nil
			}
		}
		if at := header(all, n); at < n {
			return all.from(at), nil
		}
		return script{}, fmt.Errorf("%w: %q becomes %q", errMoved, shorten40(closed.text[n:]), shorten40(all.text[n:]))
	}
	for i := len(all.marks) - 1; i >= 0; i-- {
		m := all.marks[i]
		if m.end > n {
			continue
		}
		if !slices.Contains(t.turnEnd.Own, m.id) || !isSpace(all.text[m.end:n]) {
			break
		}
		if isSpace(all.text[:m.start]) {
			return all, nil
		}
		return all.from(m.start), nil
	}
	return all.from(n), nil
}

// header is where the control tokens right before offset n begin: both conversations go on
// with the same ones, and then differ.
func header(s script, n int) int {
	for i := len(s.marks) - 1; i >= 0; i-- {
		if s.marks[i].end == n {
			n = s.marks[i].start
		}
	}
	return n
}

// mentioned reports whether text has one of the messages in it.
func mentioned(messages []*canon.Message, text []byte) bool {
	return slices.ContainsFunc(messages, func(m *canon.Message) bool {
		return m.Content == "" || bytes.Contains(text, bytesOf(m.Content))
	})
}

// closes reports whether rest can be left away from the end of a closed conversation: white
// space and control tokens alone.
func (t *template) closes(rest script) bool {
	at := 0
	for _, m := range rest.marks {
		if !isSpace(rest.text[at:m.start]) {
			return false
		}
		at = m.end
	}
	return isSpace(rest.text[at:])
}

func shorten40(text []byte) string { return canon.Shorten(string(text), 40) }

// joined is tail without what the model has sampled of it already. last is its last id, -1 if
// it sampled none. A turn that was cut off begins with the terminator it lacks; a token that
// both ends this turn and opens the next is not repeated.
func (t *template) joined(tail script, last int32) script {
	for _, m := range tail.marks[:t.closing(tail)] {
		if m.id == last || (slices.Contains(t.turnEnd.Own, m.id) && slices.Contains(t.turnEnd.Equal, last)) {
			return tail.from(m.end)
		}
	}
	return tail
}

// closing is the number of control tokens at the beginning of tail that end the turn; those
// behind them open the next one.
func (t *template) closing(tail script) int {
	n, at := 0, 0
	for i, m := range tail.marks {
		if !isSpace(tail.text[at:m.start]) {
			break
		}
		if slices.Contains(t.turnEnd.Own, m.id) || slices.Contains(t.turnEnd.Shared, m.id) {
			n = i + 1
		}
		at = m.end
	}
	return n
}
