package forest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func systemText(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.System, Content: text})
}

func toolSpecs(names ...string) []canon.ToolSpec {
	var out []canon.ToolSpec
	for _, name := range names {
		out = append(out, canon.NewToolSpec(name, nil, canon.Value{}))
	}
	return out
}

// say plays one turn: the request and its answer, each by a token or more.
func say(tb testing.TB, f *Forest, req *canon.Request, answer *canon.Message) *Node {
	tb.Helper()
	id := int32(100 + f.count)
	obs := f.Attach(f.Match(req), []int32{1}, []int32{2}, req)
	n, err := f.Commit(obs, Generation{IDs: []int32{id}, Logprobs: logprobs(1), Message: answer})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func withTools(req *canon.Request, names ...string) *canon.Request {
	req.Tools = toolSpecs(names...)
	return req
}

// An explained is a request and the explanation it must get.
type explained struct {
	name           string
	req            *canon.Request
	reason         Reason
	message        int
	field          string
	recorded, sent string
}

// The conversation of explainCases.
var (
	sys     = systemText("be good; it is 12:00:00")
	ask1    = user("q1")
	answer1 = calling(func(*canon.Message) {})
	result1 = resultOf("c1", "result")
	answer2 = assistant("a2")
	ask2    = user("q2")
)

// calling is the first answer, changed.
func calling(change func(*canon.Message)) *canon.Message {
	m := canon.Message{Role: canon.Assistant, Reasoning: "I must look", Content: "a1",
		ToolCalls: []canon.ToolCall{{ID: "c1", Name: "look", Arguments: `{"n":1}`}}}
	change(&m)
	return canon.NewMessage(m)
}

func resultOf(id, text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.Tool, ToolCallID: id, Content: text})
}

// explainCases is what agents do that is no straight line.
func explainCases() []explained {
	kwargs := request(sys, ask1, answer1, result1)
	kwargs.Kwargs = canon.ObjectOf(canon.Member{Key: "enable_thinking", Value: canon.StringValue("no")})
	picture := canon.NewMessage(canon.Message{Role: canon.User, Parts: []canon.Part{{Text: "q1"}, {Image: "data:1"}}})
	return []explained{
		{"goes on", request(sys, ask1, answer1, result1, answer2, ask2), "", 0, "", "", ""},
		{"retry", request(sys, ask1, answer1, result1), ReasonShorter, 4, "", "assistant: a2", ""},
		{"retry of the first", request(sys, ask1), ReasonShorter, 2, "", "assistant: a1", ""},
		{"rewind", request(sys, ask1, answer1, ask2), ReasonMessage, 3, "role", "tool", "user"},
		{"rewind to the end of a turn", request(sys, ask1, answer1), ReasonShorter, 3, "", "tool: result", ""},
		{"other tool result", request(sys, ask1, answer1, resultOf("c1", "other")),
			ReasonMessage, 3, "content", "result", "other"},
		{"edited assistant", request(sys, ask1, calling(func(m *canon.Message) { m.Content = "edited" }), result1, answer2, ask2),
			ReasonMessage, 2, "content", "a1", "edited"},
		{"dropped reasoning", request(sys, ask1, calling(func(m *canon.Message) { m.Reasoning = "" }), result1),
			ReasonMessage, 2, "reasoning_content", "I must look", `""`},
		{"other arguments", request(sys, ask1, calling(func(m *canon.Message) { m.ToolCalls[0].Arguments = `{"n":2}` }), result1),
			ReasonMessage, 2, "tool_calls", `{\"n\":1}`, `{\"n\":2}`},
		{"other call id", request(sys, ask1, answer1, resultOf("c2", "result")),
			ReasonMessage, 3, "tool_call_id", "c1", "c2"},
		{"dropped answer", request(sys, ask1, result1), ReasonMessage, 2, "role", "assistant", "tool"},
		{"compaction", request(sys, user("summary of the talk so far")), ReasonMessage, 1, "content", "q1", "summary"},
		{"time in the system prompt", request(systemText("be good; it is 12:00:01"), ask1, answer1, result1, answer2, ask2),
			ReasonMessage, 0, "content", "12:00:00", "12:00:01"},
		{"title call", request(systemText("write a title"), ask1), ReasonMessage, 0, "content", "be good", "write a title"},
		{"sub-agent with other tools", withTools(request(systemText("search"), user("x")), "grep"), ReasonTools, -1, "", `""`, "grep"},
		{"other template arguments", kwargs, ReasonKwargs, -1, "", "{}", "enable_thinking"},
		{"picture", request(sys, picture), ReasonMessage, 1, "content", `"q1"`, "q1[image data:1]"},
	}
}

func TestExplain(t *testing.T) {
	for _, tt := range explainCases() {
		f := New("s")
		say(t, f, request(sys, ask1), answer1)
		say(t, f, request(sys, ask1, answer1, result1), answer2)
		d := f.Divergence(tt.req)
		if (d == nil) != (tt.reason == "") {
			t.Errorf("%s: %v", tt.name, d)
			continue
		}
		if d == nil {
			continue
		}
		if d.Reason != tt.reason || d.Message != tt.message || d.Field != tt.field ||
			!strings.Contains(d.Recorded, tt.recorded) || !strings.Contains(d.Sent, tt.sent) {
			t.Errorf("%s: %s: %+v", tt.name, d, d)
		}
	}
}

// Sub-agents that take turns diverge once each: when they begin.
func TestExplainTakingTurns(t *testing.T) {
	f := New("s")
	a, b := request(user("agent a")), request(user("agent b"))
	if d := f.Divergence(a); d != nil {
		t.Errorf("the first request: %s", d)
	}
	a.Messages = append(a.Messages, say(t, f, a, assistant("1")).Messages()[0], user("more"))
	if d := f.Divergence(b); d == nil || d.Reason != ReasonMessage || d.Message != 0 {
		t.Errorf("the second agent: %v", d)
	}
	b.Messages = append(b.Messages, say(t, f, b, assistant("1")).Messages()[0], user("more"))
	for i := range 3 {
		for _, req := range []*canon.Request{a, b} {
			if d := f.Divergence(req); d != nil {
				t.Errorf("round %d: %s", i, d)
			}
			req.Messages = append(req.Messages, say(t, f, req, assistant("1")).Messages()[0], user("more"))
		}
	}
}

// A request is compared with the conversation it begins with, be that older than many others.
func TestExplainFindsAnOldConversation(t *testing.T) {
	f := New("s")
	main := request(user("main"))
	for i := range 3 {
		main.Messages = append(main.Messages, say(t, f, main, assistant(fmt.Sprint("answer ", i))).Messages()[0], user(fmt.Sprint("next ", i)))
	}
	for i := range 2 * searchedEnds {
		say(t, f, request(user(fmt.Sprint("side ", i))), assistant("ok"))
	}
	back := request(main.Messages[0], main.Messages[1], user("another way"))
	d := f.Divergence(back)
	if d == nil || d.Message != 2 || !strings.Contains(d.Recorded, "next 0") || d.Node.Responses() != 3 {
		t.Errorf("got %v", d)
	}
	again := request(main.Messages[0])
	if d := f.Divergence(again); d == nil || d.Reason != ReasonShorter || d.Message != 1 {
		t.Errorf("got %v", d)
	}
}

// An answer nobody got is still named when its request comes again.
func TestExplainARetryOfALostAnswer(t *testing.T) {
	f := New("s")
	say(t, f, request(user("q")), assistant("a"))
	again := request(user("q"), assistant("a"), user("r"))
	f.Undelivered(say(t, f, again, assistant("lost")))
	if d := f.Divergence(again); d == nil || d.Reason != ReasonShorter || d.Message != 3 || !strings.Contains(d.Recorded, "lost") {
		t.Errorf("got %v", d)
	}
}

// Of conversations that share as much with the request the newest is named; one with the same
// messages and other tools shares them.
func TestExplainNamesTheNearest(t *testing.T) {
	f := New("s")
	first := say(t, f, request(user("first")), assistant("a"))
	newest := say(t, f, request(user("second")), assistant("a"))
	for _, tt := range []struct {
		req    *canon.Request
		node   *Node
		reason Reason
	}{
		{request(user("third")), newest, ReasonMessage},
		{withTools(request(user("third")), "f"), newest, ReasonTools},
		{withTools(request(user("first")), "f"), first, ReasonTools},
		{withTools(request(user("first"), assistant("a"), user("more")), "f"), first, ReasonTools},
		{withTools(request(user("first"), assistant("b"), user("more")), "f"), newest, ReasonTools},
	} {
		if d := f.Divergence(tt.req); d == nil || d.Node != tt.node || d.Reason != tt.reason {
			t.Errorf("got %v, want it from #%d by %s", d, tt.node.ID(), tt.reason)
		}
	}
}

// A record of an answer that was never given to a request that was made parts from the request, not
// from the answer before it.
func TestFindNamesAnUnansweredRequest(t *testing.T) {
	f := New("s")
	say(t, f, request(user("q")), assistant("a"))
	asked := request(user("q"), assistant("a"), user("r"))
	waiting := f.Attach(f.Match(asked), []int32{1}, []int32{2}, asked)
	if n, err := f.Find(asked); n != waiting || err != nil {
		t.Errorf("got %v, %v", n, err)
	}
	_, err := f.Find(request(user("q"), assistant("a"), user("r"), assistant("b")))
	if want := `nearest is #3: messages[3] follows the recorded conversation: "assistant: b"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
