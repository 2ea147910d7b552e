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
	other := func(change func(*canon.ToolCall)) canon.ToolCall {
		c := call
		change(&c)
		return c
	}
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

// A record that the policy does not forgive is told of the field that is at fault, and not of the
// reasoning it may drop; whether that was all it dropped or an earlier turn was replaced, too.
func TestFindTolerant(t *testing.T) {
	turn := func(reasoning, content string) *canon.Message {
		return canon.NewMessage(canon.Message{Role: canon.Assistant, Reasoning: reasoning, Content: content})
	}
	f := New("s")
	first := say(t, f, request(user("q")), turn("hm", "a\n"))
	last := say(t, f, request(user("q"), turn("hm", "a\n"), user("r")), turn("so", "b"))
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
		{"no turn", request(user("q")), nil, "end before the first response"},
	} {
		n, err := f.FindTolerant(tt.req)
		if n != tt.node || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %v, %q", tt.name, n, err, tt.node, tt.want)
		}
	}
}
