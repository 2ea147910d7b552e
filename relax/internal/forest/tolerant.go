package forest

import (
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// tolerate returns the request with the recorded turn in place of each replay that the match
// policy "tolerant" forgives, up to the longest recorded conversation, and the number of messages
// replaced; 0 and the same request if there is nothing to replace.
func (f *Forest) tolerate(req *canon.Request) (*canon.Request, int) {
	best := f.forgiving(req)
	if best.replaced == 0 {
		return req, 0
	}
	stored := *req
	stored.Messages = slices.Concat(best.node.History(nil), req.Messages[best.node.end():])
	return &stored, best.replaced
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

// sameTurn reports whether sent is the recorded turn but for missing reasoning or white space
// at the content's end.
func sameTurn(recorded, sent *canon.Message) bool {
	sent = forgiven(recorded, sent)
	return sent.Role == canon.Assistant && sent.Reasoning == recorded.Reasoning && sent.Content == recorded.Content &&
		slices.Equal(sent.Parts, recorded.Parts) && slices.Equal(sent.ToolCalls, recorded.ToolCalls)
}

// forgiven is sent with what the policy forgives as it was recorded.
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
	return &out
}
