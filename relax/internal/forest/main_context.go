package forest

import (
	"cmp"
	"fmt"
	"slices"
)

// Main returns the node to export under the policy "main", by which an agent may hold side
// conversations (a title, a summary, a sub-agent) that it does not name. Of [Forest.Contexts]
// the main one is found by these steps, each among those that the steps before left equal:
//
//  1. the most turns: responses in its lineage;
//  2. the most tools;
//  3. the latest: that with the newest response, if this order tells more than chance. It does
//     over another context with which it shares no node, which has no unanswered request, and
//     which either ended before the latest began (the agent went on to a new conversation, as
//     after a compaction) or began after the latest's first response (a sub-agent).
//
// Else there is a tie and nothing is exported: of two branches of one conversation (a repeated
// request, a rewind) the forest cannot know which one the agent acted on, and of two that ran
// side by side the last to end is an accident. Training the wrong one would be silent. The
// error wraps [ErrNotFinalizable] and lists the tied contexts; the agent must name one.
//
// An unanswered request at the main context's end is handled as in [Forest.Implicit]. side are
// the contexts left out, in the order of Contexts.
func (f *Forest) Main() (node *Node, side []*Node, err error) {
	contexts := f.Contexts()
	if len(contexts) == 0 {
		return nil, nil, errNoResponse()
	}
	latest := slices.MaxFunc(contexts, func(a, b *Node) int {
		return cmp.Or(a.compareWeight(b), cmp.Compare(a.id, b.id))
	})
	var tied []*Node
	for _, n := range contexts {
		if n == latest {
			continue
		}
		side = append(side, n)
		if n.compareWeight(latest) == 0 && !latest.supersedes(n) {
			tied = append(tied, n)
		}
	}
	if len(tied) > 0 {
		return nil, nil, fmt.Errorf("%w: the session has no main context: %d of its %d contexts have the same number of turns "+
			"and tools and none is the later by more than chance: %s; write a named explicit record for the one to train",
			ErrNotFinalizable, len(tied)+1, len(contexts), listing(append(tied, latest)))
	}
	return latest.unanswered(), side, nil
}

// compareWeight compares what makes a context main, time aside.
func (n *Node) compareWeight(o *Node) int {
	return cmp.Or(cmp.Compare(n.responses, o.responses), cmp.Compare(len(n.Tools()), len(o.Tools())))
}

// supersedes reports whether n, committed after o, is later by more than chance. Node numbers
// are the order of events. Neither holds of two contexts that share a node: each began before
// anything else of the other.
func (n *Node) supersedes(o *Node) bool {
	follows := n.top.id > o.id
	encloses := n.firstResponse().id < o.top.id
	return len(o.children) == 0 && (follows || encloses)
}

// firstResponse is the oldest response of a response's lineage.
func (n *Node) firstResponse() *Node {
	first := n
	for ; n.kind != Root; n = n.parent {
		if n.kind == Response {
			first = n
		}
	}
	return first
}
