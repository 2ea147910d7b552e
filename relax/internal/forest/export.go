package forest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// ErrNotFinalizable is wrapped by errors of exports that name no recorded context.
var ErrNotFinalizable = errors.New("not finalizable")

// A Piece is a run of a row's tokens: an observation (mask 0) or a response (mask 1).
type Piece struct {
	// Tokens lie in the forest and must not be changed.
	Tokens []int32
	// Logprobs has one value a token for a response, nil for an observation.
	Logprobs []float32
	// Node is where the tokens come from.
	Node *Node
}

// A Lineage is one training context: the conversation from the root to an exported node.
type Lineage struct {
	// Pieces in order. There is one piece with Logprobs for each response, be it empty.
	Pieces []Piece
	// PromptLen is the number of tokens before the first response; Len of all of them.
	PromptLen, Len int
	// Spans are the weight versions, counted from the row's first token. A span also covers
	// the observations up to the next one; the tokens before the first response have none.
	Spans []VersionSpan
	// Turns counts responses, Aborts the aborts of all of them.
	Turns, Aborts int
	// Truncated: the last turn was cut off, or the row ends with an unanswered observation.
	Truncated bool
	// StartRollout is the step of the first response.
	StartRollout int64
	// Messages is the entire conversation.
	Messages []*canon.Message
	Tools    []canon.ToolSpec
	Kwargs   canon.Value
	// Seconds and WallSeconds are summed over the responses.
	Seconds, WallSeconds float64
}

// Row returns the training context that ends at n. A trailing observation keeps its body but
// not its generation prompt: nothing was sampled after it.
func (f *Forest) Row(n *Node) Lineage {
	row := Lineage{Messages: n.History(nil), Tools: n.Tools(), Kwargs: n.Kwargs()}
	row.Truncated = n.kind == Observation
	for _, node := range n.lineage() {
		if node.kind == Observation {
			row.observe(node, node.body)
			if node != n {
				row.observe(node, node.prompt)
			}
			continue
		}
		row.respond(node)
	}
	if row.Turns == 0 {
		row.PromptLen = row.Len
	}
	if n.kind == Response {
		row.Truncated = n.generation.Truncated
	}
	return row
}

func (l *Lineage) observe(n *Node, tokens []int32) {
	if len(tokens) == 0 {
		return
	}
	l.Pieces = append(l.Pieces, Piece{Tokens: tokens, Node: n})
	l.Len += len(tokens)
}

func (l *Lineage) respond(n *Node) {
	g := n.generation
	if l.Turns == 0 {
		l.PromptLen = l.Len
		l.StartRollout = g.Rollout
	}
	for _, s := range g.Spans {
		if last := len(l.Spans) - 1; s.Start < len(g.IDs) && (last < 0 || l.Spans[last].Version != s.Version) {
			l.Spans = append(l.Spans, VersionSpan{Start: l.Len + s.Start, Version: s.Version})
		}
	}
	l.Pieces = append(l.Pieces, Piece{Tokens: g.IDs, Logprobs: g.Logprobs, Node: n})
	l.Len += len(g.IDs)
	l.Turns++
	l.Aborts += g.Aborts
	l.Seconds += g.Seconds
	l.WallSeconds += g.WallSeconds
}

// Contexts returns the conversations that nothing continues, oldest first: for each, the
// newest response of its state if no response of that state was continued. A repeat of the
// same text by other ids is therefore no context of its own, nor is an unanswered
// observation.
func (f *Forest) Contexts() []*Node {
	var out []*Node
	for _, n := range f.responses {
		if f.isContext(n) {
			out = append(out, n)
		}
	}
	return out
}

func (f *Forest) isContext(n *Node) bool {
	if n.continued {
		return false
	}
	var conversation *canon.Request
	for _, o := range f.nodes[n.state] {
		if o == n || o.kind != Response {
			continue
		}
		if conversation == nil {
			conversation = n.conversation()
		}
		if o.end() == n.end() && o.holds(conversation) && (o.continued || o.id > n.id) {
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
		return nil, fmt.Errorf("%w: the session committed no response; let the agent make at least one model call",
			ErrNotFinalizable)
	}
	return nil, fmt.Errorf("%w: implicit export needs exactly one context, the session has %d: %s; "+
		"write named explicit records for the contexts to train", ErrNotFinalizable, len(contexts), listing(contexts))
}

// unanswered returns the newest observation below n, n if there is none. n must not be
// continued.
func (n *Node) unanswered() *Node {
	if len(n.children) == 0 {
		return n
	}
	return n.children[len(n.children)-1]
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

// Find returns the node whose conversation is exactly that of an explicit record: a response,
// or an observation with a response above it. Of equal ones the newest wins. The error names
// the nearest recorded conversation and where it parts from the record.
func (f *Forest) Find(req *canon.Request) (*Node, error) {
	s := canon.RootState(req.Tools, req.Kwargs) & f.mask
	for _, m := range req.Messages {
		s = s.Next(m) & f.mask
	}
	if n := f.lookup(s, Response, req, len(req.Messages)); n != nil {
		return n, nil
	}
	obs := f.lookup(s, Observation, req, len(req.Messages))
	if obs != nil && obs.responses > 0 {
		return obs, nil
	}
	if obs != nil {
		return nil, fmt.Errorf("%w: the record's %d messages were sent, but no response of the session answers them; "+
			"export a conversation with at least one response", ErrNotFinalizable, len(req.Messages))
	}
	if len(f.responses) == 0 {
		return nil, fmt.Errorf("%w: the session committed no response", ErrNotFinalizable)
	}
	near := f.nearest(req, f.responses)
	return nil, fmt.Errorf("%w: the record is no recorded conversation; nearest is #%d: %s",
		ErrNotFinalizable, near.id, difference(near, req))
}
