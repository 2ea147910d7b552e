package forest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A Reason says why a request does not extend a recorded conversation.
type Reason string

// The reasons.
const (
	// ReasonTools and ReasonKwargs: other tools or template arguments, hence another subtree.
	ReasonTools  Reason = "tools"
	ReasonKwargs Reason = "chat_template_kwargs"
	// ReasonMessage: a message differs.
	ReasonMessage Reason = "message"
	// ReasonShorter: the request ends before the recorded conversation does (a retry or a
	// rewind).
	ReasonShorter Reason = "shorter"
	// ReasonLonger: the request has messages after the recorded conversation.
	ReasonLonger Reason = "longer"
)

// A Divergence says where a request parts from the recorded conversation it is nearest to.
type Divergence struct {
	Reason Reason
	// Node is the response compared with; for a record also an unanswered observation.
	Node *Node
	// Message is the index of the first differing message, -1 for tools and kwargs.
	Message int
	// Field is the message's field that differs, "" unless Reason is ReasonMessage.
	Field string
	// Recorded and Sent are the two values around their first difference, quoted in ASCII and
	// cut to about 80 characters.
	Recorded, Sent string
}

// String is one ASCII line, fit for a header.
func (d *Divergence) String() string {
	switch d.Reason {
	case ReasonTools, ReasonKwargs:
		return fmt.Sprintf("%s differ: recorded %s, sent %s", d.Reason, d.Recorded, d.Sent)
	case ReasonShorter:
		return fmt.Sprintf("ends after %d messages, before recorded message %d: %s", d.Message, d.Message, d.Recorded)
	case ReasonLonger:
		return fmt.Sprintf("messages[%d] follows the recorded conversation: %s", d.Message, d.Sent)
	default:
		return fmt.Sprintf("messages[%d].%s differs: recorded %s, sent %s", d.Message, d.Field, d.Recorded, d.Sent)
	}
}

// Divergence explains why a request does not extend the newest state of a conversation. It is
// nil if the request extends a response nothing has continued yet, or if there is no response.
// Conversations that take turns, as concurrent sub-agents do, each have a newest state of their
// own; only the request that opens one diverges. Ask before the request's own generation is
// committed.
func (f *Forest) Divergence(req *canon.Request) *Divergence {
	return f.Explain(f.Match(req), req)
}

// Explain is Divergence of a request whose match is known. It costs one pass over the request
// and over the few conversations it is compared with.
func (f *Forest) Explain(m Match, req *canon.Request) *Divergence {
	if len(f.responses) == 0 || (m.Parent.kind == Response && !m.Parent.continued) {
		return nil
	}
	d := difference(f.nearest(req, f.compared(m, req)), req)
	if m.forgiving {
		d.forgive(req)
	}
	return d
}

// forgive names a field that the tolerant policy does not forgive, if there is one: another would
// not have kept the request from going on.
func (d *Divergence) forgive(req *canon.Request) {
	if d.Reason != ReasonMessage {
		return
	}
	recorded, sent := d.Node.History(nil)[d.Message], req.Messages[d.Message]
	if name, was, is := field(recorded, forgiven(recorded, sent)); name != "" {
		d.Field, d.Recorded, d.Sent = name, was, is
	}
}

// comparedEnds bounds the conversations a diverging request is compared with, searchedEnds the
// responses among which they are sought, the newest first: a harness that branches on every
// request must not pay for all it ever said.
const (
	comparedEnds = 4
	searchedEnds = 64
)

// compared returns the ends of the newest conversations, oldest first, and behind them that of
// the conversation the request begins with. The former may share messages with the request
// that were recorded together with others and are therefore no state of their own.
func (f *Forest) compared(m Match, req *canon.Request) []*Node {
	ends := make([]*Node, 0, comparedEnds+1)
	last := len(f.responses) - 1
	for i := last; i >= 0 && i > last-searchedEnds && len(ends) < comparedEnds; i-- {
		if n := f.responses[i]; !n.continued {
			ends = append(ends, n)
		}
	}
	slices.Reverse(ends)
	if n := f.known(m, req); n != nil {
		ends = append(ends, n.newestEnd())
	}
	return ends
}

// known returns the node with the longest recorded conversation that the request begins with
// and a response continues, be it an observation's; nil if there is none.
func (f *Forest) known(m Match, req *canon.Request) *Node {
	states := make([]canon.State, len(req.Messages))
	s := canon.RootState(req.Tools, req.Kwargs) & f.mask
	for i, message := range req.Messages {
		s = s.Next(message) & f.mask
		states[i] = s
	}
	for i := len(states) - 1; i >= m.From; i-- {
		for n := f.nodes[states[i]]; n != nil; n = n.older {
			if n.continued && n.end() == i+1 && n.holds(req) {
				return n
			}
		}
	}
	if m.Parent.kind == Root {
		return nil
	}
	return m.Parent
}

// newestEnd goes down from n, by the newest child that has a response, to a response that
// nothing continues.
func (n *Node) newestEnd() *Node {
	for n.continued {
		for i := len(n.children) - 1; ; i-- {
			if child := n.children[i]; child.continued || child.kind == Response {
				n = child
				break
			}
		}
	}
	return n
}

// nearest returns the node whose conversation shares most with the request, the newest of
// equals. nodes is not empty and in order of commit.
func (f *Forest) nearest(req *canon.Request, nodes []*Node) *Node {
	best, most := nodes[0], -2
	for _, n := range nodes {
		shared := n.nearness(req)
		if shared >= most {
			best, most = n, shared
		}
	}
	return best
}

// nearness counts the leading messages n's conversation has in common with the request. With
// other tools or kwargs it is -1, unless one of the two begins with all of the other: then the
// messages are the same, and only the context is not.
func (n *Node) nearness(req *canon.Request) int {
	shared := n.shared(req)
	if shared < min(n.end(), len(req.Messages)) && !n.top.context.same(req) {
		return -1
	}
	return shared
}

// shared counts the leading messages n's conversation has in common with the request.
func (n *Node) shared(req *canon.Request) int {
	same := min(n.end(), len(req.Messages))
	for ; n.kind != Root; n = n.parent {
		for i, m := range n.messages {
			if at := n.before + i; at < same && !m.Equal(req.Messages[at]) {
				same = at
			}
		}
	}
	return same
}

// difference describes the first difference of n's conversation and the request.
func difference(n *Node, req *canon.Request) *Divergence {
	d := &Divergence{Node: n, Message: -1}
	context := n.top.context
	if !canon.EqualTools(context.tools, req.Tools) {
		d.Reason = ReasonTools
		d.Recorded, d.Sent = contrast(toolText(context.tools), toolText(req.Tools))
		return d
	}
	if !context.kwargs.Equal(req.Kwargs) {
		d.Reason = ReasonKwargs
		d.Recorded, d.Sent = contrast(string(context.kwargs.AppendCanonical(nil)), string(req.Kwargs.AppendCanonical(nil)))
		return d
	}
	history := n.History(nil)
	d.Message = n.shared(req)
	switch {
	case d.Message < len(history) && d.Message < len(req.Messages):
		d.Reason = ReasonMessage
		d.Field, d.Recorded, d.Sent = field(history[d.Message], req.Messages[d.Message])
	case d.Message < len(history):
		d.Reason = ReasonShorter
		d.Recorded = quote(summary(history[d.Message]), shownBytes)
	default:
		d.Reason = ReasonLonger
		if d.Message < len(req.Messages) {
			d.Sent = quote(summary(req.Messages[d.Message]), shownBytes)
		}
	}
	return d
}

// field returns the first field that differs between two messages and both values.
func field(a, b *canon.Message) (name, recorded, sent string) {
	pairs := [...]struct{ name, a, b string }{
		{"role", string(a.Role), string(b.Role)},
		{"reasoning_content", a.Reasoning, b.Reasoning},
		{"content", contentText(a), contentText(b)},
		{"tool_call_id", a.ToolCallID, b.ToolCallID},
		{"tool_calls", callText(a.ToolCalls), callText(b.ToolCalls)},
	}
	for _, p := range pairs {
		if p.a != p.b {
			recorded, sent = contrast(p.a, p.b)
			return p.name, recorded, sent
		}
	}
	return "", "", ""
}

// contentText shows content with its images' URLs.
func contentText(m *canon.Message) string {
	if m.Parts == nil {
		return m.Content
	}
	var b strings.Builder
	for _, p := range m.Parts {
		b.WriteString(p.Text)
		if p.Image != "" {
			fmt.Fprintf(&b, "[image %s]", p.Image)
		}
	}
	return b.String()
}

func callText(calls []canon.ToolCall) string {
	var b strings.Builder
	for _, c := range calls {
		fmt.Fprintf(&b, "%s=%s(%s) ", c.ID, c.Name, c.Arguments)
	}
	return strings.TrimSuffix(b.String(), " ")
}

func toolText(tools []canon.ToolSpec) string {
	var b []byte
	for i := range tools {
		b = tools[i].AppendCanonical(b)
	}
	return string(b)
}

// summary shows a message in one line.
func summary(m *canon.Message) string {
	text := contentText(m)
	if text == "" && len(m.ToolCalls) > 0 {
		text = callText(m.ToolCalls)
	}
	return string(m.Role) + ": " + text
}

// shownBytes is how much of a value is shown; leadBytes of it stand before the difference.
const (
	shownBytes = 80
	leadBytes  = 24
)

// contrast shows two different texts around their first difference.
func contrast(a, b string) (string, string) {
	at := 0
	for at < len(a) && at < len(b) && a[at] == b[at] {
		at++
	}
	at = max(0, at-leadBytes)
	return quoteFrom(a, at), quoteFrom(b, at)
}

func quoteFrom(s string, at int) string {
	for at > 0 && at < len(s) && !utf8.RuneStart(s[at]) {
		at--
	}
	text := quote(s[at:], shownBytes)
	if at > 0 {
		return "..." + text
	}
	return text
}

// quote shows at most about limit bytes of s in ASCII quotes.
func quote(s string, limit int) string {
	if len(s) <= limit {
		return strconv.QuoteToASCII(s)
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return strconv.QuoteToASCII(s[:limit]) + "..."
}
