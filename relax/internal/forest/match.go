package forest

import (
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A Match says what a request continues.
type Match struct {
	// Parent is the response the request extends, or the root.
	Parent *Node
	// From is the index of the request's first message that is new below Parent.
	From int
	// Observation is the node that holds exactly the new messages already, nil if there is
	// none: then they must be encoded and attached.
	Observation *Node

	// Replaced counts the messages of the request that the tolerant policy replaced by recorded
	// ones; see [Forest.MatchTolerant]. Forgiven names the fields they differed in, each once:
	// "reasoning_content", "content", "tool_calls".
	Replaced int
	Forgiven []string

	state canon.State
	// forgiving: the match was made by the tolerant policy.
	forgiving bool
}

// A hit is a prefix of a request whose state some node has.
type hit struct {
	end   int
	state canon.State
}

// Match finds the longest committed conversation that the request extends. Only responses and
// the root can be extended; of equal conversations the newest that was delivered wins. Attach
// takes the result even if the forest has grown since.
//
// The messages of the conversation are compared, mostly by their address; hashed are only new
// messages where the request continues one of the newest responses, else all.
func (f *Forest) Match(req *canon.Request) Match {
	m := Match{Parent: f.root}
	if recent := f.recent(req); recent != nil {
		m.Parent, m.From, m.state = recent, recent.end(), recent.state
	} else {
		m.state = canon.RootState(req.Tools, req.Kwargs) & f.mask
	}
	f.hits = f.hits[:0]
	for i, message := range req.Messages[m.From:] {
		m.state = m.state.Next(message) & f.mask
		if message.Role == canon.Assistant && f.nodes[m.state] != nil {
			f.hits = append(f.hits, hit{m.From + i + 1, m.state})
		}
	}
	for i := len(f.hits) - 1; i >= 0; i-- {
		if n := f.lookup(f.hits[i].state, Response, req, f.hits[i].end); n != nil {
			m.Parent, m.From = n, f.hits[i].end
			break
		}
	}
	m.Observation = f.observation(m, req)
	return m
}

// recentEnds is the number of responses that recent tries: about the number of conversations a
// Session holds at once.
const recentEnds = 8

// recent returns a recorded conversation that the request extends, if one of the newest
// responses ends it; a longer one may be recorded.
func (f *Forest) recent(req *canon.Request) *Node {
	last := len(f.responses) - 1
	for i := last; i >= 0 && i > last-recentEnds; i-- {
		n := f.responses[i]
		end := n.end()
		if end > len(req.Messages) || !n.messages[0].Equal(req.Messages[end-1]) {
			continue
		}
		if known := f.lookup(n.state, Response, req, end); known != nil {
			return known
		}
	}
	return nil
}

// lookup returns the newest node of a kind that holds the first n messages of the request, an
// undelivered response only if there is no other.
func (f *Forest) lookup(s canon.State, kind Kind, req *canon.Request, n int) *Node {
	var lost *Node
	for node := f.nodes[s]; node != nil; node = node.older {
		if node.kind != kind || node.end() != n || !node.holds(req) {
			continue
		}
		if !node.IsUndelivered() {
			return node
		}
		if lost == nil {
			lost = node
		}
	}
	return lost
}

// observation returns the observation below m.Parent with the same new messages.
func (f *Forest) observation(m Match, req *canon.Request) *Node {
	for n := f.nodes[m.state]; n != nil; n = n.older {
		if n.kind == Observation && n.parent == m.Parent && n.end() == len(req.Messages) && n.repeatsBelow(req) {
			return n
		}
	}
	return nil
}

// end is the number of messages down to and with the node.
func (n *Node) end() int { return n.before + len(n.messages) }

// holds reports whether the conversation down to n is a prefix of the request, message by
// message and with the same tools and template arguments.
func (n *Node) holds(req *canon.Request) bool {
	if n.end() > len(req.Messages) {
		return false
	}
	if n.top != nil && !n.top.context.same(req) {
		return false
	}
	for ; n.kind != Root; n = n.parent {
		if !n.repeats(req) {
			return false
		}
	}
	return true
}

// repeats reports whether the request has n's own messages at their place.
func (n *Node) repeats(req *canon.Request) bool {
	for i, m := range n.messages {
		if !m.Equal(req.Messages[n.before+i]) {
			return false
		}
	}
	return true
}

// repeatsBelow is holds of a request that holds the parent.
func (n *Node) repeatsBelow(req *canon.Request) bool {
	return n.repeats(req) && (n.parent.kind != Root || n.context.same(req))
}

func (c *context) same(req *canon.Request) bool {
	return canon.EqualTools(c.tools, req.Tools) && c.kwargs.Equal(req.Kwargs)
}

// MatchTolerant is Match by the policy "tolerant": clients that drop reasoning_content, trim white
// space at the end of an answer or write the arguments of a call anew still continue it. It returns
// the request to go on with, its match and the number of messages replaced.
//
// The request is first matched as it is. Only if an assistant message of it belongs to no
// recorded response is it compared again with such differences forgiven; if that finds a longer
// conversation, the result is a copy of the request with the recorded turns in place of the
// replayed ones, so that what the model reads is what it said. Of equally long conversations
// that with fewer replacements wins, then a delivered one, then the newer. Role, the calls' number,
// order, names and ids, and any reasoning that was sent must be equal, and so must the arguments
// unless the engine made the call's id, which proves that it is the same call: two different calls
// are never taken for one. The original request is not changed.
//
// The replacement is in the Match too: Attach counts it and marks the observation.
func (f *Forest) MatchTolerant(req *canon.Request) (*canon.Request, Match, int) {
	m := f.Match(req)
	m.forgiving = true
	unknown := func(m *canon.Message) bool { return m.Role == canon.Assistant }
	if !slices.ContainsFunc(req.Messages[m.From:], unknown) {
		return req, m, 0 // nothing longer can be recorded
	}
	stored, best := f.tolerate(req)
	if best.replaced == 0 {
		return req, m, 0
	}
	// Not matched again: a longer conversation may hold the recorded turn as a message of the agent's
	// own, and that is not what was replayed.
	m = Match{
		Parent: best.node, From: best.node.end(), state: f.state(stored),
		Replaced: best.replaced, Forgiven: forgivenFields(stored.Messages, req.Messages), forgiving: true,
	}
	m.Observation = f.observation(m, stored)
	return stored, m, best.replaced
}
