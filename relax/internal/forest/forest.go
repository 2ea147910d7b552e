// Package forest records the committed conversations of one Session as a tree of tokens: the
// SessionForest. It finds what a request continues, keeps every sampled token exactly as it
// was sampled, and turns chosen conversations into training rows.
//
// What may enter: canonical requests, token ids, finished generations. What it never does:
// render or tokenise text, I/O, read a clock, lock. The owner serialises all calls; nodes
// already returned may be read from anywhere as far as their methods say so.
package forest

import (
	"fmt"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A Kind says what a [Node] holds.
type Kind uint8

// The node kinds.
const (
	// Root is the empty conversation. It is there only to be extended.
	Root Kind = iota
	// Observation holds messages the policy did not sample in this row: loss mask 0.
	Observation
	// Response holds one generation: loss mask 1.
	Response
)

// String is the kind's name in dumps and errors.
func (k Kind) String() string { return [...]string{"root", "observation", "response"}[k] }

// A VersionSpan says from which token on a weight version was in force, up to the next span
// or the end.
type VersionSpan struct {
	// Start is the index of the span's first token.
	Start int
	// Version is the weight version, -1 if the backend's is not a number.
	Version int64
}

// A Generation is one finished turn.
type Generation struct {
	// IDs are the sampled ids with the stop token; Logprobs has one value each.
	IDs      []int32
	Logprobs []float32
	// Spans are the weight versions over IDs, with rising starts, the first at 0.
	Spans []VersionSpan
	// Message is what the ids mean, as the client is told.
	Message *canon.Message
	// Truncated: the turn ended on a length limit.
	Truncated bool
	// Aborts counts this turn's backend aborts that were continued.
	Aborts int
	// Rollout is the step the turn was sampled in.
	Rollout int64
	// RequestID names the request for traces.
	RequestID string
	// ParseError says why the text was kept raw, "" if it parsed.
	ParseError string
	// PromptTokens and CachedTokens are what the backend prefilled and found in its cache, over all
	// attempts.
	PromptTokens, CachedTokens int
	// Spec are the counts of speculative decoding over all attempts.
	Spec Speculation
	// Experts are the routed experts of the positions that the lineage above did not have, in
	// pieces with rising starts, one for each attempt that brought some.
	Experts []Experts
	// Seconds is the time in the backend, QueueSeconds the wait before its attempts for gate, admission
	// and a place there, LeaseSeconds the wait for the Group's lease, WallSeconds all from arrival to commit.
	Seconds, QueueSeconds, LeaseSeconds, WallSeconds float64
}

// Speculation are counts of speculative decoding. Zero is data, absent is missing.
type Speculation struct {
	// Accepted of the Proposed draft tokens; Rated says that the backend gave both.
	Accepted, Proposed int
	Rated              bool
	// Verifications are the steps that brought the tokens; Verified says that the backend gave them.
	Verifications int
	Verified      bool
}

// Experts are the experts a mixture-of-experts model routed a lineage's tokens to, at the positions
// [Start, End) counted from the lineage's first token.
type Experts struct {
	Start, End int
	// Base64 is as the backend sent it; the forest does not look inside.
	Base64 []byte
}

// A Node is one committed piece of conversation. Its messages and tokens never change.
type Node struct {
	id     int
	kind   Kind
	parent *Node
	// top is the subtree's first observation, which owns the context.
	top     *Node
	context *context

	state    canon.State
	messages []*canon.Message
	// before counts the messages above this node, responses the responses down to it.
	before, responses int
	// length counts the tokens down to and with this node.
	length int

	body, prompt []int32
	generation   *Generation

	children []*Node
	older    *Node // of the same state
	// continued: a response lies below. followed: a delivered one does.
	continued, followed bool
	// read: a client has the response for certain. lost counts its answers that nobody got.
	read             bool
	duplicates, lost int
	// replaced counts the messages the tolerant policy replaced in an observation's request.
	replaced int
}

// A context is what all conversations of a subtree share.
type context struct {
	tools  []canon.ToolSpec
	kwargs canon.Value
}

// A Forest is the tree of one Session. It is not safe for concurrent use.
type Forest struct {
	session string
	root    *Node
	// nodes finds the newest node of a state; [Node.older] leads to the others. Different
	// conversations may share a state.
	nodes     map[canon.State]*Node
	responses []*Node
	count     int
	// mask cuts states; tests narrow it to make states collide.
	mask canon.State

	sampled, duplicates, duplicateTokens int
	undelivered, undeliveredTokens       int
	tolerated, replaced                  int

	hits []hit // scratch of Match
}

// New returns an empty forest for a Session.
func New(sessionID string) *Forest {
	return &Forest{
		session: sessionID,
		root:    &Node{kind: Root},
		nodes:   map[canon.State]*Node{},
		mask:    ^canon.State(0),
	}
}

// Root is the node of the empty conversation.
func (f *Forest) Root() *Node { return f.root }

// Attach adds the observation of a matched request: body are the ids of the new messages,
// prompt the ids of the generation prompt that follows them. The forest keeps both slices. If
// the same observation was attached before, that one is returned and the ids are not used; a
// request of the tolerant policy is counted all the same.
func (f *Forest) Attach(m Match, body, prompt []int32, req *canon.Request) *Node {
	if m.Replaced > 0 {
		f.tolerated++
		f.replaced += m.Replaced
	}
	if n := f.observation(m, req); n != nil {
		n.replaced = max(n.replaced, m.Replaced)
		return n
	}
	f.Delivered(m.Parent)
	n := &Node{
		replaced: m.Replaced,
		kind:     Observation,
		state:    m.state,
		messages: slices.Clone(req.Messages[m.From:]),
		body:     exact(body),
		prompt:   exact(prompt),
	}
	if m.Parent.kind == Root {
		n.top = n
		n.context = &context{tools: req.Tools, kwargs: req.Kwargs}
	}
	f.add(m.Parent, n, len(body)+len(prompt))
	return n
}

// Commit adds a finished generation below the observation it answers. The forest keeps the
// slices of g. A generation whose message and ids are those of an earlier one of the same
// observation is counted as a duplicate and the earlier node returned; equal text from
// other ids is a node of its own.
func (f *Forest) Commit(obs *Node, g Generation) (*Node, error) {
	if err := g.check(obs); err != nil {
		return nil, fmt.Errorf("forest: session %s: request %q: %w", f.session, g.RequestID, err)
	}
	f.sampled += len(g.IDs)
	if g.Message.Hash() == 0 {
		g.Message = canon.NewMessage(*g.Message)
	}
	state := obs.state.Next(g.Message) & f.mask
	for _, n := range obs.children {
		if n.state == state && slices.Equal(n.generation.IDs, g.IDs) && n.messages[0].Equal(g.Message) {
			lost := n.IsUndelivered()
			n.duplicates++
			f.found(n, lost)
			f.duplicates++
			f.duplicateTokens += len(g.IDs)
			return n, nil
		}
	}
	g.IDs, g.Logprobs = exact(g.IDs), exact(g.Logprobs)
	g.Spans = slices.Clip(g.Spans)
	n := &Node{
		kind:       Response,
		state:      state,
		messages:   []*canon.Message{g.Message},
		generation: &g,
		responses:  1,
	}
	f.add(obs, n, len(g.IDs))
	f.responses = append(f.responses, n)
	for above := obs; above != nil && !above.continued; above = above.parent {
		above.continued = true
	}
	n.heard()
	return n, nil
}

// add links a new node and fills what follows from its place.
func (f *Forest) add(parent, n *Node, tokens int) {
	f.count++
	n.id = f.count
	n.parent = parent
	if n.top == nil {
		n.top = parent.top
	}
	n.before = parent.end()
	n.responses += parent.responses
	n.length = parent.length + tokens
	parent.children = append(parent.children, n)
	n.older = f.nodes[n.state]
	f.nodes[n.state] = n
}

func (g *Generation) check(obs *Node) error {
	if obs == nil || obs.kind != Observation {
		return fmt.Errorf("a generation can only answer an observation")
	}
	if g.Message == nil || g.Message.Role != canon.Assistant {
		return fmt.Errorf("a generation needs an assistant message")
	}
	if len(g.IDs) != len(g.Logprobs) {
		return fmt.Errorf("%d token ids but %d logprobs; the backend must give one for each", len(g.IDs), len(g.Logprobs))
	}
	for i, s := range g.Spans {
		if i == 0 && s.Start != 0 || i > 0 && s.Start <= g.Spans[i-1].Start || s.Start > len(g.IDs) {
			return fmt.Errorf("weight version span %d starts at token %d of %d; starts must rise from 0",
				i, s.Start, len(g.IDs))
		}
	}
	return nil
}

// exact returns s without much unused room, so that a token costs no more than its 4 bytes,
// and never nil.
func exact[T int32 | float32](s []T) []T {
	if s != nil && cap(s)-len(s) <= len(s)/16 {
		return s
	}
	return append(make([]T, 0, len(s)), s...)
}
