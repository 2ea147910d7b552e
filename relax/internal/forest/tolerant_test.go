package forest

import (
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func TestMatchTolerant(t *testing.T) {
	turn := func(reasoning, content string, calls ...canon.ToolCall) *canon.Message {
		return canon.NewMessage(canon.Message{Role: canon.Assistant, Reasoning: reasoning, Content: content, ToolCalls: calls})
	}
	call := canon.ToolCall{ID: "c", Name: "f", Arguments: `{"n":1}`}
	made := canon.ToolCall{ID: "call_0123456789abcdef01234567", Name: "f", Arguments: `{"n":1}`}
	second := canon.ToolCall{ID: "call_123456789abcdef012345678", Name: "f", Arguments: `{"n":2}`}
	change := func(c canon.ToolCall, change func(*canon.ToolCall)) canon.ToolCall {
		change(&c)
		return c
	}
	other := func(f func(*canon.ToolCall)) canon.ToolCall { return change(call, f) }
	rewritten := func(c canon.ToolCall) canon.ToolCall {
		return change(c, func(c *canon.ToolCall) { c.Arguments = `{"n":1,"all":false}` })
	}
	named := func(id string) canon.ToolCall { return change(call, func(c *canon.ToolCall) { c.ID = id }) }
	// An id that models write, or that only begins as the engine's do, proves nothing.
	kimi, nine, short := named("functions.f:0"), named("abcDEF123"), named("call_0123")
	upper, kimiCall := named("call_0123456789ABCDEF01234567"), named("call_0123456789abcdef012345:0")
	tests := []struct {
		name           string
		recorded, sent *canon.Message
		replaced       int
	}{
		{"equal", turn("hm", "a"), turn("hm", "a"), 0},
		{"no reasoning", turn("hm", "a"), turn("", "a"), 1},
		{"trimmed", turn("", "a\n"), turn("", "a"), 1},
		{"a new line more", turn("", "a"), turn("", "a\n"), 1},
		{"neither reasoning nor text, one call", turn("hm", "\n", call), turn("", "", call), 1},
		{"other reasoning", turn("hm", "a"), turn("so", "a"), -1},
		{"reasoning nobody had", turn("", "a"), turn("so", "a"), -1},
		{"trimmed at the front", turn("", " a"), turn("", "a"), -1},
		{"other text", turn("hm", "a"), turn("", "b"), -1},
		{"other arguments", turn("hm", "a", call), turn("", "a", other(func(c *canon.ToolCall) { c.Arguments = `{"n":2}` })), -1},
		{"other call id", turn("hm", "a", call), turn("", "a", other(func(c *canon.ToolCall) { c.ID = "d" })), -1},
		{"other tool", turn("hm", "a", call), turn("", "a", other(func(c *canon.ToolCall) { c.Name = "g" })), -1},
		{"no call", turn("hm", "a", call), turn("", "a"), -1},
		{"one call more", turn("hm", "a", call), turn("", "a", call, call), -1},
		{"a user said it", turn("hm", "a"), user("a"), -1},
		{"the engine's call, other arguments", turn("hm", "a", made), turn("hm", "a", rewritten(made)), 1},
		{"all at once", turn("hm", "a\n", made), turn("", "a", rewritten(made)), 1},
		{"the second call's arguments", turn("", "a", call, made), turn("", "a", call, rewritten(made)), 1},
		{"the first call is not the engine's", turn("", "a", call, made), turn("", "a", rewritten(call), rewritten(made)), -1},
		{"the engine's calls in another order", turn("", "a", made, second), turn("", "a", second, made), -1},
		{"the engine's call of another tool", turn("", "a", made), turn("", "a", change(made, func(c *canon.ToolCall) { c.Name = "g" })), -1},
		{"the engine's call under another id", turn("", "a", made), turn("", "a", change(made, func(c *canon.ToolCall) { c.ID = second.ID })), -1},
		{"one of the engine's calls", turn("", "a", made, second), turn("", "a", rewritten(made)), -1},
		{"other text beside the engine's call", turn("", "a", made), turn("", "b", rewritten(made)), -1},
		{"Kimi's id", turn("", "a", kimi), turn("", "a", rewritten(kimi)), -1},
		{"an id of nine letters and digits", turn("", "a", nine), turn("", "a", rewritten(nine)), -1},
		{"a short id", turn("", "a", short), turn("", "a", rewritten(short)), -1},
		{"an id in capitals", turn("", "a", upper), turn("", "a", rewritten(upper)), -1},
		{"Kimi's id of a function by such a name", turn("", "a", kimiCall), turn("", "a", rewritten(kimiCall)), -1},
	}
	for _, tt := range tests {
		f := New("s")
		n := say(t, f, request(user("q")), tt.recorded)
		req := request(user("q"), tt.sent, user("r"))
		stored, m, replaced := f.MatchTolerant(req)
		if tt.replaced < 0 {
			if m.Parent != f.Root() || replaced != 0 || stored != req {
				t.Errorf("%s: was taken for the recorded turn", tt.name)
			}
			continue
		}
		if m.Parent != n || m.From != 2 || replaced != tt.replaced || m.Replaced != replaced || req.Messages[1] != tt.sent {
			t.Errorf("%s: extends #%d, %d replaced", tt.name, m.Parent.ID(), replaced)
		}
		if !stored.Messages[1].Equal(tt.recorded) {
			t.Errorf("%s: goes on with %q", tt.name, stored.Messages[1].Content)
		}
		f.Attach(m, nil, nil, stored)
		obs := f.Attach(m, nil, nil, stored)
		if s := f.Stats(); obs.Replaced() != replaced || s.Tolerated != 2*min(replaced, 1) || s.Replaced != 2*replaced {
			t.Errorf("%s: marked %d, counted %+v", tt.name, obs.Replaced(), s)
		}
	}
}

// A match names the fields in which replaced turns differed, each once; those a message shares with
// its recorded turn and messages that were not replaced are not named.
func TestMatchTolerantNamesFields(t *testing.T) {
	turn := func(reasoning, content, arguments string) *canon.Message {
		return canon.NewMessage(canon.Message{Role: canon.Assistant, Reasoning: reasoning, Content: content,
			ToolCalls: []canon.ToolCall{{ID: "call_0123456789abcdef01234567", Name: "f", Arguments: arguments}}})
	}
	f := New("s")
	first, second := turn("hm", "a\n", "{}"), turn("so", "b\n", "{}")
	say(t, f, request(user("q")), first)
	say(t, f, request(user("q"), first, user("r")), second)
	for _, tt := range []struct {
		first, second *canon.Message
		want          string
	}{
		{first, second, ""},
		{turn("hm", "a\n", `{"n":1}`), second, "tool_calls"},
		{turn("hm", "a\n", `{"n":1}`), turn("so", "b\n", `{"n":1}`), "tool_calls"},
		{turn("hm", "a", "{}"), turn("", "b", `{"n":1}`), "content reasoning_content tool_calls"},
	} {
		_, m, _ := f.MatchTolerant(request(user("q"), tt.first, user("r"), tt.second, user("s")))
		if got := strings.Join(m.Forgiven, " "); got != tt.want || m.From != 4 {
			t.Errorf("forgiven %q up to message %d, want %q up to 4", got, m.From, tt.want)
		}
	}
}

// An exact continuation is never given up for a longer conversation's sake alone: only a
// message that is the recorded turn counts.
func TestMatchTolerantObservedAssistant(t *testing.T) {
	f := New("s")
	written := canon.NewMessage(canon.Message{Role: canon.Assistant, Content: "mine", Reasoning: "hm"})
	say(t, f, request(user("q"), written, user("r")), assistant("a"))
	lean := request(user("q"), assistant("mine"), user("r"), assistant("a"), user("s"))
	if _, m, replaced := f.MatchTolerant(lean); m.Parent != f.Root() || replaced != 0 {
		t.Errorf("an assistant message of the agent's own was replaced")
	}
}

// Nor once its turn was replaced does a request go on a longer conversation in which the agent
// wrote that turn itself.
func TestMatchTolerantObservedTwin(t *testing.T) {
	f := New("s")
	twin := assistant("a\n")
	say(t, f, request(user("q"), twin, user("r")), assistant("b"))
	sampled := say(t, f, request(user("q")), twin)
	req := request(user("q"), assistant("a"), user("r"), assistant("b"), user("s"))
	stored, m, replaced := f.MatchTolerant(req)
	if m.Parent != sampled || m.From != 2 || replaced != 1 || m.Observation != nil {
		t.Errorf("extends %s #%d at message %d, %d replaced", m.Parent.Kind(), m.Parent.ID(), m.From, replaced)
	}
	obs := f.Attach(m, nil, nil, stored)
	if _, again, _ := f.MatchTolerant(req); again.Observation != obs {
		t.Errorf("its observation is not found again")
	}
}

// A record that the policy does not forgive is told of the field that is at fault, and not of the
// reasoning it may drop; whether that was all it dropped or an earlier turn was replaced, too.
func TestFindTolerant(t *testing.T) {
	turn := func(reasoning, content string) *canon.Message {
		return canon.NewMessage(canon.Message{Role: canon.Assistant, Reasoning: reasoning, Content: content})
	}
	call := func(arguments, second string) *canon.Message {
		return canon.NewMessage(canon.Message{Role: canon.Assistant, ToolCalls: []canon.ToolCall{
			{ID: "call_0123456789abcdef01234567", Name: "f", Arguments: arguments},
			{ID: "call_123456789abcdef012345678", Name: second, Arguments: arguments},
		}})
	}
	f := New("s")
	first := say(t, f, request(user("q")), turn("hm", "a\n"))
	last := say(t, f, request(user("q"), turn("hm", "a\n"), user("r")), turn("so", "b"))
	called := say(t, f, request(user("p")), call("{}", "f"))
	for _, tt := range []struct {
		name string
		req  *canon.Request
		node *Node
		want string
	}{
		{"as recorded", request(user("q"), turn("hm", "a\n")), first, ""},
		{"forgiven", request(user("q"), assistant("a"), user("r"), assistant("b")), last, ""},
		{"its request", request(user("q"), assistant("a"), user("r")), last.Parent(), ""},
		{"the only turn edited", request(user("q"), assistant("A")), nil, `#2: messages[1].content differs: recorded "a\n", sent "A"`},
		{"the second turn edited", request(user("q"), assistant("a"), user("r"), assistant("B")), nil,
			`#4: messages[3].content differs: recorded "b", sent "B"`},
		{"a call written anew", request(user("p"), call(`{"n":1}`, "f")), called, ""},
		{"another call", request(user("p"), call(`{"n":1}`, "g")), nil,
			`#6: messages[1].tool_calls differs: recorded ..."23456789abcdef012345678=f({})", sent`},
		{"no turn", request(user("q")), nil, "end before the first response"},
	} {
		n, err := f.FindTolerant(tt.req)
		if n != tt.node || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %v, %q", tt.name, n, err, tt.node, tt.want)
		}
	}
}
