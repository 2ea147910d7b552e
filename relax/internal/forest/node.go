package forest

import (
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// ID numbers the nodes of a forest from 1 in the order they came; the root's is 0.
func (n *Node) ID() int { return n.id }

// Kind says what the node holds.
func (n *Node) Kind() Kind { return n.kind }

// Parent is the node above, nil for the root.
func (n *Node) Parent() *Node { return n.parent }

// Children are the nodes below, oldest first. They must not be changed, and only the forest's
// owner may ask.
func (n *Node) Children() []*Node { return n.children }

// State is the conversation state down to and with the node.
func (n *Node) State() canon.State { return n.state }

// Messages are the node's own messages: new ones of an observation, the one of a response.
// They must not be changed.
func (n *Node) Messages() []*canon.Message { return n.messages }

// End is the number of messages down to and with the node.
func (n *Node) End() int { return n.end() }

// Tools are the tools of the node's subtree, nil for the root.
func (n *Node) Tools() []canon.ToolSpec {
	if n.top == nil {
		return nil
	}
	return n.top.context.tools
}

// Kwargs are the template arguments of the node's subtree, an empty object for the root.
func (n *Node) Kwargs() canon.Value {
	if n.top == nil {
		return canon.ObjectOf()
	}
	return n.top.context.kwargs
}

// Body are the ids of an observation's messages, nil for other kinds.
func (n *Node) Body() []int32 { return n.body }

// Prompt are the ids of an observation's generation prompt, nil for other kinds.
func (n *Node) Prompt() []int32 { return n.prompt }

// Generation is what a response holds, nil for other kinds. It must not be changed.
func (n *Node) Generation() *Generation { return n.generation }

// RoutedEnd is the number of positions of the lineage, from its first token on, whose routed
// experts are recorded.
func (n *Node) RoutedEnd() int {
	for ; n != nil; n = n.parent {
		if g := n.generation; g != nil && len(g.Experts) > 0 {
			return g.Experts[len(g.Experts)-1].End
		}
	}
	return 0
}

// Responses counts the responses of the lineage with the node.
func (n *Node) Responses() int { return n.responses }

// Duplicates counts the generations that were equal to this one in message and ids. Only the
// forest's owner may call it.
func (n *Node) Duplicates() int { return n.duplicates }

// Replaced is the largest number of messages that the tolerant policy replaced in a request
// that led to the observation; 0 if it came as recorded. Only the forest's owner may call it.
func (n *Node) Replaced() int { return n.replaced }

// Len is the number of tokens of the lineage with the node, generation prompt included.
func (n *Node) Len() int { return n.length }

// Prefix appends the token segments from the root down to and with the node to dst, without
// copying tokens. The segments must not be changed. The generation prompt of an inner
// observation belongs to the stream: the model saw it before its response.
func (n *Node) Prefix(dst [][]int32) [][]int32 {
	segments := 0
	for above := n; above != nil; above = above.parent {
		for _, tokens := range above.segments() {
			segments += min(len(tokens), 1)
		}
	}
	at := len(dst) + segments
	dst = slices.Grow(dst, segments)[:at]
	for ; n != nil; n = n.parent {
		for _, tokens := range n.segments() {
			if len(tokens) > 0 {
				at--
				dst[at] = tokens
			}
		}
	}
	return dst
}

// segments are the node's runs of tokens, the last first. Some may be empty.
func (n *Node) segments() [2][]int32 {
	if n.generation != nil {
		return [...][]int32{n.generation.IDs, nil}
	}
	return [...][]int32{n.prompt, n.body}
}

// History appends the messages from the root down to and with the node to dst.
func (n *Node) History(dst []*canon.Message) []*canon.Message {
	base := len(dst)
	dst = slices.Grow(dst, n.end())[:base+n.end()]
	for ; n != nil; n = n.parent {
		copy(dst[base+n.before:], n.messages)
	}
	return dst
}

// lineage returns the nodes from the first below the root down to n.
func (n *Node) lineage() []*Node {
	path := make([]*Node, 0, 2*n.responses+1)
	for ; n.kind != Root; n = n.parent {
		path = append(path, n)
	}
	slices.Reverse(path)
	return path
}
