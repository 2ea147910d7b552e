package forest

import "github.com/relax-rollout/relax-rollout/relax/internal/canon"

// A SharedLoss says what rows do with a response that several of them hold: the option
// shared_prefix_loss.
type SharedLoss uint8

// The ways to train a shared response.
const (
	// SharedEach: every row trains it.
	SharedEach SharedLoss = iota
	// SharedFirst: the first row that holds it trains it, later rows have it with loss mask 0.
	SharedFirst
)

// String is the option's value.
func (s SharedLoss) String() string { return [...]string{"each", "first"}[s] }

// A Piece is a run of a row's tokens: an observation or a response. The loss mask is 1 exactly
// on pieces with Logprobs.
type Piece struct {
	// Tokens lie in the forest and must not be changed.
	Tokens []int32
	// Logprobs has one value a token for a response that the row trains, else it is nil.
	Logprobs []float32
	// Node is where the tokens come from.
	Node *Node
	// TrainedBefore: a response without Logprobs, because an earlier row trains it.
	TrainedBefore bool
}

// A Turn places one response in a row.
type Turn struct {
	// Start and End are the response's tokens [Start, End), counted from the row's first token.
	Start, End int
	// Masked: an earlier row trains the response, its loss mask is 0 here.
	Masked bool
	// Node is the response.
	Node *Node
}

// A Lineage is one training context: the conversation from the root to an exported node. Its
// tokens and messages are the forest's own.
type Lineage struct {
	// Pieces in order. There is one piece for each response, be it empty.
	Pieces []Piece
	// PromptLen is the number of tokens before the first response, Len of all of them, Trained
	// of those with loss mask 1.
	PromptLen, Len, Trained int
	// Spans are the weight versions, counted from the row's first token. A span also covers
	// the observations up to the next one; the tokens before the first response have none.
	Spans []VersionSpan
	// Turns counts responses, Aborts the aborts of all of them.
	Turns, Aborts int
	// TurnTable has the responses in order.
	TurnTable []Turn
	// Experts are the routed experts of all responses in order, nil if there are none.
	Experts []Experts
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
func (f *Forest) Row(n *Node) Lineage { return row(n, nil) }

// Rows returns the training contexts that end at nodes, one for each, in order. A node that is
// given twice has two rows. Under SharedFirst each sampled token has loss mask 1 in exactly one
// of the rows that hold it.
func (f *Forest) Rows(nodes []*Node, shared SharedLoss) []Lineage {
	rows := make([]Lineage, len(nodes))
	var trained map[*Node]bool
	if shared == SharedFirst {
		trained = map[*Node]bool{}
	}
	for i, n := range nodes {
		rows[i] = row(n, trained)
	}
	return rows
}

// row lays out the lineage of n. Responses in trained are masked, others join it if it is not nil.
func row(n *Node, trained map[*Node]bool) Lineage {
	l := Lineage{Messages: n.History(nil), Tools: n.Tools(), Kwargs: n.Kwargs()}
	l.Truncated = n.kind == Observation
	l.TurnTable = make([]Turn, 0, n.responses)
	l.Pieces = make([]Piece, 0, 3*n.responses+1)
	for _, node := range n.lineage() {
		if node.kind == Observation {
			l.observe(node, node.body)
			if node != n {
				l.observe(node, node.prompt)
			}
			continue
		}
		l.respond(node, trained[node])
		if trained != nil {
			trained[node] = true
		}
	}
	if l.Turns == 0 {
		l.PromptLen = l.Len
	}
	if n.kind == Response {
		l.Truncated = n.generation.Truncated
	}
	return l
}

func (l *Lineage) observe(n *Node, tokens []int32) {
	if len(tokens) == 0 {
		return
	}
	l.Pieces = append(l.Pieces, Piece{Tokens: tokens, Node: n})
	l.Len += len(tokens)
}

func (l *Lineage) respond(n *Node, before bool) {
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
	piece := Piece{Tokens: g.IDs, Node: n, TrainedBefore: before}
	if !before {
		piece.Logprobs = g.Logprobs
		l.Trained += len(g.IDs)
	}
	l.Pieces = append(l.Pieces, piece)
	l.TurnTable = append(l.TurnTable, Turn{Start: l.Len, End: l.Len + len(g.IDs), Masked: before, Node: n})
	l.Experts = append(l.Experts, g.Experts...)
	l.Len += len(g.IDs)
	l.Turns++
	l.Aborts += g.Aborts
	l.Seconds += g.Seconds
	l.WallSeconds += g.WallSeconds
}
