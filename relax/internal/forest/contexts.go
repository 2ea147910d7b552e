package forest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Contexts returns the conversations that nothing continues, in the order of their last answers
// received: for each, the newest response of its state if no response of that state was continued.
// A repeat of the same text by other ids is therefore no context of its own, nor is an unanswered
// observation.
//
// An undelivered response continues nothing, for nobody acted on it. It is no context where
// its conversation went on without it, so a retry after a lost answer leaves one context. Where
// it is all that follows the last answer received, it stands for its conversation: nothing
// sampled is dropped without need. If other requests or answers follow too, none stands, for
// none is better than another; the context is then the last answer received. A conversation of
// which no answer was received is no context, unless the Session received none at all: then
// each answer is one.
func (f *Forest) Contexts() []*Node {
	if f.undelivered == len(f.responses) {
		return slices.Clone(f.responses)
	}
	var out []*Node
	for _, n := range f.responses {
		if f.isContext(n) {
			out = append(out, n.lostEnd())
		}
	}
	return out
}

// last is the newest node right below n, nil if there is none.
func (n *Node) last() *Node {
	if len(n.children) == 0 {
		return nil
	}
	return n.children[len(n.children)-1]
}

// lostEnd is the undelivered response that is all that follows n, a response no delivered one
// follows; n itself if there is none.
func (n *Node) lostEnd() *Node {
	if len(n.children) == 1 && len(n.children[0].children) == 1 {
		return n.children[0].children[0]
	}
	return n
}

func (f *Forest) isContext(n *Node) bool {
	if n.followed || n.IsUndelivered() {
		return false
	}
	var conversation *canon.Request
	for o := f.nodes[n.state]; o != nil; o = o.older {
		if o == n || o.kind != Response || o.IsUndelivered() {
			continue
		}
		if conversation == nil {
			conversation = n.conversation()
		}
		if o.end() == n.end() && o.holds(conversation) && (o.followed || o.id > n.id) {
			return false
		}
	}
	return true
}

// conversation returns the lineage as a request.
func (n *Node) conversation() *canon.Request {
	return &canon.Request{Messages: n.History(nil), Tools: n.Tools(), Kwargs: n.Kwargs()}
}

// Implicit returns the node to export when the agent names none: there must be exactly one of
// [Forest.Contexts]. If the run ended while a request of that context was unanswered, it is
// the newest such observation, whose row is truncated (reference session service 8.2).
func (f *Forest) Implicit() (*Node, error) {
	contexts := f.Contexts()
	if len(contexts) == 1 {
		return contexts[0].unanswered(), nil
	}
	if len(contexts) == 0 {
		return nil, errNoResponse()
	}
	return nil, fmt.Errorf("%w: implicit export needs exactly one context, the session has %d: %s; "+
		"write named explicit records for the contexts to train", ErrNotFinalizable, len(contexts), listing(contexts))
}

func errNoResponse() error {
	return fmt.Errorf("%w: the session committed no response; let the agent make at least one model call",
		ErrNotFinalizable)
}

// unanswered returns the newest observation below a context, n if there is none.
func (n *Node) unanswered() *Node {
	if request := n.last(); request != nil {
		return request
	}
	return n
}

// maxListed is the number of contexts an error names.
const maxListed = 5

func listing(nodes []*Node) string {
	var names []string
	for _, n := range nodes[:min(len(nodes), maxListed)] {
		names = append(names, n.brief())
	}
	if more := len(nodes) - maxListed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// brief names a response for an error text.
func (n *Node) brief() string {
	turns := "turns"
	if n.responses == 1 {
		turns = "turn"
	}
	return fmt.Sprintf("#%d (%d %s, %d tools, ends %s)", n.id, n.responses, turns, len(n.Tools()),
		quote(summary(n.messages[0]), 40))
}
