package forest

import (
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// tolerate returns the request with the recorded turn in place of each replay that the match
// policy "tolerant" forgives, up to the longest recorded conversation, and that conversation; the
// same request if there is nothing to replace.
func (f *Forest) tolerate(req *canon.Request) (*canon.Request, tolerated) {
	best := f.forgiving(req)
	if best.replaced == 0 {
		return req, best
	}
	stored := *req
	stored.Messages = slices.Concat(best.node.History(nil), req.Messages[best.node.end():])
	return &stored, best
}

// A tolerated is a response whose conversation a request replays but for replaced messages.
type tolerated struct {
	node     *Node
	replaced int
}

// better is the longer conversation, of equal ones that with less to replace, then a delivered
// one, then the newer.
func (t tolerated) better(o tolerated) tolerated {
	switch {
	case o.node == nil:
		return t
	case t.node == nil || o.node.end() > t.node.end():
		return o
	case o.node.end() < t.node.end() || o.replaced > t.replaced:
		return t
	case o.replaced < t.replaced:
		return o
	case o.node.IsUndelivered() != t.node.IsUndelivered():
		if t.node.IsUndelivered() {
			return o
		}
	case o.node.id > t.node.id:
		return o
	}
	return t
}

// forgiving returns the best conversation that the request replays but for replaced messages. It
// goes down every branch as far as the request follows, so it looks at each recorded message at
// most once, and at one a branch where conversations differ early.
func (f *Forest) forgiving(req *canon.Request) tolerated {
	var best tolerated
	var open []tolerated
	for _, top := range f.root.children {
		if top.context.same(req) {
			open = append(open, tolerated{node: top})
		}
	}
	for len(open) > 0 {
		t := open[len(open)-1]
		open = open[:len(open)-1]
		n, ok := t.node, false
		if t.replaced, ok = n.forgives(req, t.replaced); !ok {
			continue
		}
		if n.kind == Response {
			best = best.better(t)
		}
		for _, child := range n.children {
			open = append(open, tolerated{child, t.replaced})
		}
	}
	return best
}

// forgives reports whether the request replays n's own messages but for replaced ones, and adds
// their number to replaced.
func (n *Node) forgives(req *canon.Request, replaced int) (int, bool) {
	if n.end() > len(req.Messages) {
		return replaced, false
	}
	for i, m := range n.messages {
		sent := req.Messages[n.before+i]
		if m.Equal(sent) {
			continue
		}
		if n.kind != Response || !sameTurn(m, sent) {
			return replaced, false
		}
		replaced++
	}
	return replaced, true
}

// sameTurn reports whether sent is the recorded turn but for what the policy forgives.
func sameTurn(recorded, sent *canon.Message) bool {
	sent = forgiven(recorded, sent)
	return sent.Role == canon.Assistant && sent.Reasoning == recorded.Reasoning && sent.Content == recorded.Content &&
		slices.Equal(sent.Parts, recorded.Parts) && slices.Equal(sent.ToolCalls, recorded.ToolCalls)
}

// forgiven is sent with what the policy forgives as it was recorded: reasoning that was left out,
// white space at the content's end, and the arguments of calls that an id proves to be the same.
func forgiven(recorded, sent *canon.Message) *canon.Message {
	if sent.Role != canon.Assistant || recorded.Role != canon.Assistant {
		return sent
	}
	const space = " \t\r\n"
	out := *sent
	if sent.Reasoning == "" {
		out.Reasoning = recorded.Reasoning
	}
	if strings.TrimRight(sent.Content, space) == strings.TrimRight(recorded.Content, space) {
		out.Content = recorded.Content
	}
	out.ToolCalls = slices.Clone(sent.ToolCalls)
	for i, c := range recorded.ToolCalls {
		if i < len(out.ToolCalls) && sameCall(c, out.ToolCalls[i]) {
			out.ToolCalls[i] = c
		}
	}
	return &out
}

// sameCall reports whether sent is the recorded call, be it with other arguments: clients write
// the arguments anew when they replay a call.
func sameCall(recorded, sent canon.ToolCall) bool {
	return recorded == sent || recorded.ID == sent.ID && recorded.Name == sent.Name && isEngineID(recorded.ID)
}

// isEngineID reports whether the engine made a recorded call's id: "call_" and 24 hex digits of a
// hash over the conversation and the sampled ids (reference session service 7.1), so that no two
// sampled calls share one. Ids that models write prove nothing, for two answers to one request may
// hold the same; they look otherwise (Kimi's end in ":" and a number, Mistral's are nine letters
// and digits, as are those the engine makes for Mistral, which therefore prove nothing either).
func isEngineID(id string) bool {
	digits, ok := strings.CutPrefix(id, "call_")
	return ok && len(digits) == 24 && strings.Trim(digits, "0123456789abcdef") == ""
}

// forgivenFields names the fields in which replaced messages differed from the recorded ones.
func forgivenFields(recorded, sent []*canon.Message) []string {
	var out []string
	note := func(field string, same bool) {
		if !same && !slices.Contains(out, field) {
			out = append(out, field)
		}
	}
	for i, m := range recorded {
		if s := sent[i]; !m.Equal(s) {
			note("reasoning_content", m.Reasoning == s.Reasoning)
			note("content", m.Content == s.Content)
			note("tool_calls", slices.Equal(m.ToolCalls, s.ToolCalls))
		}
	}
	return out
}
