package batch

import "fmt"

// plan places columns one after another.
type plan struct {
	columns []Column
	size    int
}

func (p *plan) add(name string, code Code, bits uint8, domain Domain, n int) int {
	p.size = (p.size + Align - 1) / Align * Align
	c := Column{Name: name, Code: code, Bits: bits, Domain: domain, Offset: p.size, Len: n}
	p.columns = append(p.columns, c)
	p.size += c.Size()
	return c.Offset
}

// counts are the lengths of a batch's columns.
type counts struct {
	rows, tokens, segments, turns, meta int
	// routes counts positions of routed experts: the tokens of each row less one.
	routes int
	// perTurn: some row has credit for each turn.
	perTurn bool
	experts shape
}

func count(rows []Row) (counts, error) {
	n := counts{rows: len(rows)}
	for i := range rows {
		r := &rows[i]
		length := r.Len()
		n.tokens += length
		n.routes += routes(length)
		n.segments += len(r.Segments)
		n.turns += len(r.TurnTable)
		n.meta += len(r.Meta)
		n.perTurn = n.perTurn || r.PerTurn
	}
	const maxInt32 = 1<<31 - 1
	if n.tokens > maxInt32 {
		return n, fmt.Errorf("batch: %d tokens do not fit cu_seqlens (int32); lower rollout_batch_size", n.tokens)
	}
	var err error
	n.experts, err = expertShape(rows)
	return n, err
}

// Build lays rows out in one arena. Column names, types and meanings:
//
//	offsets            int64    rows+1   first token of each row in the token columns
//	cu_seqlens         int32    rows+1   the same as int32, as varlen attention kernels want it
//	tokens             int32    tokens   exact ids
//	logprobs           float32  tokens   rollout logprob where loss_mask is 1, 0 elsewhere
//	loss_mask          uint8    tokens   1 exactly on ids the policy sampled in this row
//	prompt_len         int32    rows     tokens before the first response
//	total_lengths      int64    rows     tokens
//	response_lengths   int64    rows     tokens from the first response on, later observations included
//	reward             float64  rows     task outcome this context carries, NaN if unset
//	raw_reward         float32  rows     task outcome of the row's Session, NaN if unset
//	advantage          float32  rows     training credit of the whole row
//	group_id           int64    rows     Group number within the run
//	session_seq        int32    rows     place of the Session in its Group
//	sample_indices     int64    rows     logical sample: rows of one Session share it
//	sample_index_mask_sums int64 rows    loss_mask summed over all rows of the Session
//	partition          int64    rows     rollout the row was delivered for
//	status             int32    rows     RowStatus
//	truncated          int64    rows     1 if status is Truncated
//	turns, aborts      int32    rows
//	seg_offsets        int64    rows+1   first weight-version segment of each row
//	seg_start          int32    segments row-relative first token of the run
//	seg_weight_version int64    segments the version, -1 if it is not a number
//	turn_offsets       int64    rows+1   first turn of each row
//	turn_start         int32    turns    row-relative first token of the response
//	turn_len           int32    turns    its tokens
//	turn_advantage     float32  turns    its training credit
//	turn_masked        uint8    turns    1 if an earlier row trains it: loss_mask is 0 there
//	meta_offsets       int64    rows+1   byte boundaries in meta_json
//	meta_json          uint8    bytes    one JSON document a row
//
// Only if some row has credit for each turn (reference pipeline 6.3, jagged rewards):
//
//	advantages         float32  tokens   0 before the first response. A row with credit for each
//	                                     turn: the turn's where loss_mask is 1, 0 elsewhere; other
//	                                     rows: advantage on all tokens from the first response on
//
// Only if the rows have routed experts:
//
//	routed_experts       int32  (tokens-rows) x layers x top k: len(tokens)-1 positions of each row
//	routed_experts_shape int32  2        layers, top k
//
// total_lengths, response_lengths, sample_indices, sample_index_mask_sums, truncated and raw_reward
// have the names and types of the reference's train batch. Rows of one Session must be in one batch.
func Build(alloc Allocator, id uint64, rolloutID int64, rows []Row) (*Batch, error) {
	n, err := count(rows)
	if err != nil {
		return nil, err
	}
	var p plan
	w := writer{counts: n}
	w.place(&p)
	w.placeOptional(&p)
	arena, err := alloc.Alloc(max(p.size, 1))
	if err != nil {
		return nil, fmt.Errorf("batch: arena of %d bytes for rollout %d: %w", p.size, rolloutID, err)
	}
	w.mem = arena.Bytes()
	if err := w.write(rows); err != nil {
		arena.Free()
		return nil, err
	}
	return &Batch{
		ID: id, RolloutID: rolloutID,
		Seqs: n.rows, Tokens: n.tokens, Segments: n.segments,
		Columns: p.columns, arena: arena,
	}, nil
}

// writer holds the byte offset of every column.
type writer struct {
	counts
	mem []byte

	offsets, cuSeqlens, tokens, logprobs, lossMask     int
	promptLen, totalLen, responseLen                   int
	reward, rawReward, advantage                       int
	groupID, sessionSeq, sampleIndex, maskSums         int
	partition, status, truncated, turnCount, aborts    int
	segOffsets, segStart, segVersion                   int
	turnOffsets, turnStart, turnLen, turnAdv, turnMask int
	metaOffs, metaJSON                                 int
	advantages, routed, routedShape                    int // optional
}

// place plans the columns every batch has.
func (w *writer) place(p *plan) {
	n := w.rows
	w.offsets = p.add("offsets", Int, 64, PerSeq1, n+1)
	w.cuSeqlens = p.add("cu_seqlens", Int, 32, PerSeq1, n+1)
	w.tokens = p.add("tokens", Int, 32, PerToken, w.counts.tokens)
	w.logprobs = p.add("logprobs", Float, 32, PerToken, w.counts.tokens)
	w.lossMask = p.add("loss_mask", Uint, 8, PerToken, w.counts.tokens)
	w.promptLen = p.add("prompt_len", Int, 32, PerSeq, n)
	w.totalLen = p.add("total_lengths", Int, 64, PerSeq, n)
	w.responseLen = p.add("response_lengths", Int, 64, PerSeq, n)
	w.reward = p.add("reward", Float, 64, PerSeq, n)
	w.rawReward = p.add("raw_reward", Float, 32, PerSeq, n)
	w.advantage = p.add("advantage", Float, 32, PerSeq, n)
	w.groupID = p.add("group_id", Int, 64, PerSeq, n)
	w.sessionSeq = p.add("session_seq", Int, 32, PerSeq, n)
	w.sampleIndex = p.add("sample_indices", Int, 64, PerSeq, n)
	w.maskSums = p.add("sample_index_mask_sums", Int, 64, PerSeq, n)
	w.partition = p.add("partition", Int, 64, PerSeq, n)
	w.status = p.add("status", Int, 32, PerSeq, n)
	w.truncated = p.add("truncated", Int, 64, PerSeq, n)
	w.turnCount = p.add("turns", Int, 32, PerSeq, n)
	w.aborts = p.add("aborts", Int, 32, PerSeq, n)
	w.segOffsets = p.add("seg_offsets", Int, 64, PerSeq1, n+1)
	w.segStart = p.add("seg_start", Int, 32, PerSegment, w.segments)
	w.segVersion = p.add("seg_weight_version", Int, 64, PerSegment, w.segments)
	w.turnOffsets = p.add("turn_offsets", Int, 64, PerSeq1, n+1)
	w.turnStart = p.add("turn_start", Int, 32, PerTurn, w.counts.turns)
	w.turnLen = p.add("turn_len", Int, 32, PerTurn, w.counts.turns)
	w.turnAdv = p.add("turn_advantage", Float, 32, PerTurn, w.counts.turns)
	w.turnMask = p.add("turn_masked", Uint, 8, PerTurn, w.counts.turns)
	w.metaOffs = p.add("meta_offsets", Int, 64, PerSeq1, n+1)
	w.metaJSON = p.add("meta_json", Uint, 8, PerByte, w.meta)
}
