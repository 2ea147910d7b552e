package chat

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// traits are what a template prints at all. What it leaves out it leaves out without a word,
// so requests that have it are refused.
type traits struct {
	System, Tools, Calls, Results, ParallelCalls bool
	// Reasoning: an assistant's reasoning is printed at least in the current tool loop.
	Reasoning bool
}

// The words of probe conversations: none is part of another, none is likely in a template.
const (
	askWord       = "relaxask"
	answerWord    = "relaxanswer"
	systemWord    = "relaxsystem"
	resultWord    = "relaxresult"
	reasoningWord = "relaxreasoning"
	keyWord       = "relaxkey"
	valueWord     = "relaxvalue"
	toolWord      = "relaxtool"
)

func say(role canon.Role, text string) *canon.Message {
	return &canon.Message{Role: role, Content: text}
}

func callTo(id, name string) canon.ToolCall {
	return canon.ToolCall{ID: id, Name: name, Arguments: `{"` + keyWord + `":"` + valueWord + `"}`}
}

func answerTo(id, text string) *canon.Message {
	return &canon.Message{Role: canon.Tool, Content: text, ToolCallID: id}
}

// probeTool is a tool as agents list them.
var probeTool = canon.NewToolSpec(toolWord, &probeDescription, canon.ObjectOf(
	canon.Member{Key: "type", Value: canon.StringValue("object")},
	canon.Member{Key: "properties", Value: canon.ObjectOf(canon.Member{
		Key: keyWord, Value: canon.ObjectOf(
			canon.Member{Key: "type", Value: canon.StringValue("string")},
			canon.Member{Key: "description", Value: canon.StringValue("a word")})})},
	canon.Member{Key: "required", Value: canon.ArrayOf(canon.StringValue(keyWord))}))

var probeDescription = "looks something up"

// probe finds out how the template wants a conversation and what it prints of it.
func (t *template) probe() error {
	if err := t.probeContent(); err != nil {
		return err
	}
	t.probeCalls()
	t.probeReasoning()
	t.probeSystem()
	return nil
}

// shows renders a conversation and reports whether all words are in it, in this order.
func (t *template) shows(c conversation, words ...string) (bool, error) {
	out, err := t.print(c, false)
	if err != nil {
		return false, err
	}
	rest := out.text
	for _, w := range words {
		at := bytes.Index(rest, bytesOf(w))
		if at < 0 {
			return false, nil
		}
		rest = rest[at+len(w):]
	}
	return true, nil
}

// probeContent finds how text goes in. A template that prints nothing without tools is one
// for requests with tools alone.
func (t *template) probeContent() error {
	ask := conversation{turns: []*canon.Message{say(canon.User, askWord)}}
	var tried causes
	for i, way := range []string{"as a string", "as a list of parts", "as a string, with tools", "as a list of parts, with tools"} {
		t.dialect.ContentParts, t.toolsOnly = i&1 > 0, i&2 > 0
		ok, err := t.shows(ask, askWord)
		if ok {
			return nil
		}
		if err == nil {
			err = errors.New("its text is left out")
		}
		tried.add(way, err)
	}
	return fmt.Errorf("chat template %s cannot print a user message; tried %s", t.source, tried)
}

// causes are things that were tried, by why they failed: each cause is said once.
type causes []struct {
	tried []string
	why   string
}

func (c *causes) add(tried string, why error) {
	for i := range *c {
		if (*c)[i].why == why.Error() {
			(*c)[i].tried = append((*c)[i].tried, tried)
			return
		}
	}
	*c = append(*c, struct {
		tried []string
		why   string
	}{[]string{tried}, why.Error()})
}

func (c causes) String() string {
	parts := make([]string, len(c))
	for i, x := range c {
		parts[i] = strings.Join(x.tried, ", ") + ": " + x.why
	}
	return strings.Join(parts, "; ")
}

// probeCalls finds how calls and their results go in. The first way that shows most wins, an
// arguments object before text, as SGLang tries them.
func (t *template) probeCalls() {
	given := t.dialect
	best, shown := given, 0
	for i := range 16 {
		t.dialect = given
		t.dialect.ArgumentsText, t.dialect.NullContent = i&1 > 0, i&2 > 0
		t.dialect.ShortIDs, t.dialect.ToolNames = i&4 > 0, i&8 > 0
		calls, results, err := t.showsCalls()
		if i == 0 {
			t.noCalls = err
		}
		score := 0
		if calls {
			score = 2
		}
		if results {
			score++
		}
		if score > shown {
			best, shown, t.noCalls = t.dialect, score, err
			t.traits.Calls, t.traits.Results = calls, results
		}
	}
	t.dialect = best
	ok, err := t.shows(twoCalls(), valueWord, valueWord)
	t.traits.ParallelCalls = t.traits.Calls && ok && err == nil
	tools := conversation{turns: []*canon.Message{say(canon.User, askWord)}, tooling: []canon.ToolSpec{probeTool}}
	ok, err = t.shows(tools, toolWord)
	t.traits.Tools = ok && err == nil
}

// showsCalls reports whether a call's name and arguments are printed as JSON or markup, not as
// JSON inside a JSON string, and whether results are. fault is why both together cannot be.
func (t *template) showsCalls() (calls, results bool, fault error) {
	out, fault := t.print(oneCall(), false)
	if fault == nil {
		return printsCall(out.text), bytes.Contains(out.text, bytesOf(resultWord)), nil
	}
	c := oneCall()
	c.turns = c.turns[:2]
	out, err := t.print(c, false)
	return err == nil && printsCall(out.text), false, fault
}

func printsCall(text []byte) bool {
	for _, w := range []string{toolWord, keyWord, valueWord} {
		if !bytes.Contains(text, bytesOf(w)) {
			return false
		}
	}
	return !bytes.Contains(text, bytesOf(`\"`+keyWord))
}

func oneCall() conversation {
	return conversation{tooling: []canon.ToolSpec{probeTool}, turns: []*canon.Message{
		say(canon.User, askWord),
		{Role: canon.Assistant, ToolCalls: []canon.ToolCall{callTo("call_00000000000000000000000a", toolWord)}},
		answerTo("call_00000000000000000000000a", resultWord),
	}}
}

func twoCalls() conversation {
	return conversation{tooling: []canon.ToolSpec{probeTool}, turns: []*canon.Message{
		say(canon.User, askWord),
		{Role: canon.Assistant, ToolCalls: []canon.ToolCall{
			callTo("call_00000000000000000000000a", toolWord), callTo("call_00000000000000000000000b", toolWord)}},
		answerTo("call_00000000000000000000000a", resultWord),
		answerTo("call_00000000000000000000000b", resultWord),
	}}
}

// probeReasoning finds the key that reasoning is read from.
func (t *template) probeReasoning() {
	given := t.dialect.ReasoningKey
	for _, key := range []string{given, "thinking", "reasoning"} {
		t.dialect.ReasoningKey = key
		if t.showsReasoning() {
			t.traits.Reasoning = true
			return
		}
	}
	t.dialect.ReasoningKey = given
}

func (t *template) showsReasoning() bool {
	loop := oneCall()
	loop.turns[1].Reasoning = reasoningWord
	if ok, err := t.shows(loop, reasoningWord); err == nil && ok {
		return true
	}
	answer := conversation{turns: []*canon.Message{
		say(canon.User, askWord), {Role: canon.Assistant, Content: answerWord, Reasoning: reasoningWord}}}
	ok, err := t.shows(answer, reasoningWord)
	return err == nil && ok
}

// probeSystem finds where system messages are printed.
func (t *template) probeSystem() {
	leading := conversation{turns: []*canon.Message{say(canon.System, systemWord), say(canon.User, askWord)}}
	ok, err := t.shows(leading, systemWord)
	t.traits.System = err == nil && ok

	later := conversation{turns: []*canon.Message{say(canon.User, askWord), say(canon.Assistant, answerWord),
		say(canon.System, systemWord), say(canon.User, askWord)}}
	inPlace, err := t.shows(later, answerWord, systemWord, askWord)
	if last := later.turns[:3]; inPlace && err == nil {
		inPlace, err = t.shows(conversation{turns: last}, answerWord, systemWord)
	}
	t.dialect.SystemAsUser = !inPlace || err != nil
	twice := conversation{turns: []*canon.Message{say(canon.User, askWord), say(canon.Assistant, answerWord),
		say(canon.User, askWord), say(canon.User, askWord)}}
	ok, err = t.shows(twice, askWord, answerWord, askWord, askWord)
	t.dialect.MergeUsers = err != nil || !ok
}

// probeTurnEnd finds the tokens that end an assistant turn. eos are the ids of which the
// checkpoint's files say so.
func (t *template) probeTurnEnd(eos []int32) {
	mark := anchor(0)
	talk := conversation{turns: []*canon.Message{say(canon.User, askWord), say(canon.Assistant, mark), say(canon.User, askWord)}}
	if closed, then, ok := t.around(talk, 2, mark); ok {
		own := slices.DeleteFunc(leadingRun(closed), t.opensAnswer())
		t.turnEnd = endsOf(own, leadingRun(then), eos)
		if len(t.turnEnd.Shared) > 0 && !opens(then, t.turnEnd.Shared[0]) {
			t.turnEnd.Own, t.turnEnd.Shared = t.turnEnd.Shared, nil
		}
	}
	t.probeCallEnd(mark, eos)
}

// opensAnswer reports whether a control token belongs to the generation prompt: such a one
// begins a turn and ends none.
func (t *template) opensAnswer() func(id int32) bool {
	prompt, _ := t.promptBehind(conversation{turns: []*canon.Message{standInUser}}) // none begins no turn
	return func(id int32) bool {
		return slices.ContainsFunc(prompt.marks, func(m mark) bool { return m.id == id })
	}
}

// endsOf reads the control tokens behind the text of a turn, once closed and once followed by
// a question. A turn can close with several (Cohere, Inkling): the last one is sampled last,
// unless the checkpoint calls another an end.
func endsOf(closed, followed, eos []int32) turnEnd {
	if len(closed) == 0 {
		return turnEnd{Shared: followed[:min(1, len(followed))]}
	}
	both := slices.DeleteFunc(slices.Clone(closed), func(id int32) bool { return !slices.Contains(followed, id) })
	if len(both) == 0 {
		history := followed[:min(1, len(followed))]
		return turnEnd{Own: append([]int32{closed[0]}, history...), InHistory: history}
	}
	for _, id := range slices.Backward(both) {
		if slices.Contains(eos, id) {
			return turnEnd{Own: []int32{id}}
		}
	}
	return turnEnd{Own: both[len(both)-1:]}
}

// probeCallEnd looks behind calls: gpt-oss ends them with a token of their own.
func (t *template) probeCallEnd(mark string, eos []int32) {
	loop := oneCall()
	loop.turns[1] = standIn(loop.turns[1].ToolCalls, mark, true)
	closed, then, ok := t.around(loop, 2, mark)
	if !ok {
		return
	}
	n := common(closed, then)
	if len(t.turnEnd.Own) == 0 {
		if run := leadingRun(then.from(n)); len(run) > 0 && !slices.Contains(t.turnEnd.Shared, run[0]) {
			t.turnEnd.Shared = append(t.turnEnd.Shared, run[0])
		}
		return
	}
	for i := len(closed.marks) - 1; i >= 0; i-- {
		m := closed.marks[i]
		if m.end > n {
			continue
		}
		if isSpace(closed.text[m.end:n]) && slices.Contains(eos, m.id) && !slices.Contains(t.turnEnd.Own, m.id) {
			t.turnEnd.Own = append(t.turnEnd.Own, m.id)
		}
		return
	}
}

// around renders c closed behind message n-1 and whole, and cuts both behind the mark in it.
func (t *template) around(c conversation, n int, mark string) (closed, then script, ok bool) {
	v := t.view(c)
	closed, err := t.render(v, n, false)
	if err != nil {
		return closed, then, false
	}
	then, err = t.render(v, len(v.messages), true)
	if err != nil {
		return closed, then, false
	}
	i, k := strings.LastIndex(textOf(closed.text), mark), strings.LastIndex(textOf(then.text), mark)
	if i < 0 || k < 0 {
		return closed, then, false
	}
	return closed.from(i + len(mark)), then.from(k + len(mark)), true
}

// opens reports whether the control token id is the one right before the next question.
func opens(then script, id int32) bool {
	ask := bytes.Index(then.text, bytesOf(askWord))
	last := id
	for _, m := range then.marks {
		if m.end <= ask {
			last = m.id
		}
	}
	return last == id
}

// leadingRun are the control tokens that s begins with, white space apart.
func leadingRun(s script) []int32 {
	var run []int32
	at := 0
	for _, m := range s.marks {
		if !isSpace(s.text[at:m.start]) {
			break
		}
		run, at = append(run, m.id), m.end
	}
	return run
}
