package batch

// A Segment is a run of tokens sampled under one weight version.
type Segment struct {
	// Start is the row-relative index of the run's first token.
	Start int
	// WeightVersion is the version, -1 if it is not a number.
	WeightVersion int64
}

// Piece is a run of a row's tokens: an observation (mask 0) or a response (mask 1).
type Piece struct {
	Tokens []int32
	// Logprobs has one value a token for a response and is nil for an observation.
	Logprobs []float32
}

// A Turn is one response of a row.
type Turn struct {
	// Start is the row-relative index of its first token, Len its number of tokens.
	Start, Len int
	// Advantage is the turn's training credit.
	Advantage float32
	// Masked: an earlier row trains the response, its loss mask is 0 here (shared_prefix_loss).
	Masked bool
}

// A Row is one training context, ready to be laid out.
type Row struct {
	// Session names the row's Session in errors.
	Session string
	// Pieces in order: the prompt first, then responses and observations in turn. They are
	// views into the forest; Build copies them once, into the arena.
	Pieces []Piece
	// PromptLen is the number of tokens before the first response.
	PromptLen int
	Segments  []Segment
	// Reward is the task outcome that this context carries, RawReward the one of its Session,
	// which is the same for all rows of the Session. NaN if unset.
	Reward    float64
	RawReward float32
	// Advantage is the training credit of the whole row. If PerTurn is set, TurnTable holds it
	// for each turn and Advantage their mean over the row's trained tokens.
	Advantage float32
	PerTurn   bool
	// TurnTable has the row's responses in order.
	TurnTable []Turn
	// GroupID numbers the Group within the run; SessionSeq is the Session's place in it.
	// SampleIndex numbers the logical sample: all rows of one Session share it.
	GroupID     int64
	SessionSeq  int32
	SampleIndex int64
	// Partition is the rollout the row was delivered for: the batch's, or in a fully-async run an
	// earlier one whose debt it pays.
	Partition int64
	// Status is a RowStatus.
	Status RowStatus
	// Turns counts responses, Aborts counts backend aborts along the lineage.
	Turns, Aborts int32
	// Experts are the routed experts of the row, nil if they were not asked for.
	Experts *Experts
	// Meta is one JSON document about the row.
	Meta []byte
}

// RowStatus says how a row's last turn ended. The numbers are part of the C ABI.
type RowStatus int32

// Row states.
const (
	Completed RowStatus = 0
	Truncated RowStatus = 1
)

// Len is the number of tokens in the row.
func (r *Row) Len() int {
	n := 0
	for _, p := range r.Pieces {
		n += len(p.Tokens)
	}
	return n
}

// Trained is the number of tokens with loss mask 1.
func (r *Row) Trained() int {
	n := 0
	for _, p := range r.Pieces {
		n += len(p.Logprobs)
	}
	return n
}
