package batch

import "fmt"

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

// A Row is one training context, ready to be laid out.
type Row struct {
	// Pieces in order: the prompt first, then responses and observations in turn. They are
	// views into the forest; Build copies them once, into the arena.
	Pieces []Piece
	// PromptLen is the number of tokens before the first response.
	PromptLen int
	Segments  []Segment
	// Reward is the task outcome, NaN if unset; Advantage is the training credit.
	Reward    float64
	Advantage float32
	// GroupID numbers the Group within the run; SessionSeq is the Session's place in it.
	GroupID    int64
	SessionSeq int32
	// Status is a RowStatus.
	Status RowStatus
	// Turns counts responses, Aborts counts backend aborts along the lineage.
	Turns, Aborts int32
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

// Build lays rows out in one arena. Column names, types and meanings:
//
//	offsets            int64    rows+1   first token of each row in the token columns
//	cu_seqlens         int32    rows+1   the same as int32, as varlen attention kernels want it
//	tokens             int32    tokens   exact ids
//	logprobs           float32  tokens   rollout logprob where loss_mask is 1, 0 elsewhere
//	loss_mask          uint8    tokens   1 exactly on ids the policy sampled in this row
//	prompt_len         int32    rows     tokens before the first response
//	reward             float64  rows     NaN if unset
//	advantage          float32  rows     training credit
//	group_id           int64    rows     Group number within the run
//	session_seq        int32    rows     place of the Session in its Group
//	status             int32    rows     RowStatus
//	turns, aborts      int32    rows
//	seg_offsets        int64    rows+1   first weight-version segment of each row
//	seg_start          int32    segments row-relative first token of the run
//	seg_weight_version int64    segments the version, -1 if it is not a number
//	meta_offsets       int64    rows+1   byte boundaries in meta_json
//	meta_json          uint8    bytes    one JSON document a row
func Build(alloc Allocator, id uint64, rolloutID int64, rows []Row) (*Batch, error) {
	tokens, segments, meta := 0, 0, 0
	for i := range rows {
		tokens += rows[i].Len()
		segments += len(rows[i].Segments)
		meta += len(rows[i].Meta)
	}
	const maxInt32 = 1<<31 - 1
	if tokens > maxInt32 {
		return nil, fmt.Errorf("batch: %d tokens do not fit cu_seqlens (int32); lower rollout_batch_size", tokens)
	}
	n := len(rows)
	var p plan
	w := writer{
		offsets:    p.add("offsets", Int, 64, PerSeq1, n+1),
		cuSeqlens:  p.add("cu_seqlens", Int, 32, PerSeq1, n+1),
		tokens:     p.add("tokens", Int, 32, PerToken, tokens),
		logprobs:   p.add("logprobs", Float, 32, PerToken, tokens),
		lossMask:   p.add("loss_mask", Uint, 8, PerToken, tokens),
		promptLen:  p.add("prompt_len", Int, 32, PerSeq, n),
		reward:     p.add("reward", Float, 64, PerSeq, n),
		advantage:  p.add("advantage", Float, 32, PerSeq, n),
		groupID:    p.add("group_id", Int, 64, PerSeq, n),
		sessionSeq: p.add("session_seq", Int, 32, PerSeq, n),
		status:     p.add("status", Int, 32, PerSeq, n),
		turns:      p.add("turns", Int, 32, PerSeq, n),
		aborts:     p.add("aborts", Int, 32, PerSeq, n),
		segOffsets: p.add("seg_offsets", Int, 64, PerSeq1, n+1),
		segStart:   p.add("seg_start", Int, 32, PerSegment, segments),
		segVersion: p.add("seg_weight_version", Int, 64, PerSegment, segments),
		metaOffs:   p.add("meta_offsets", Int, 64, PerSeq1, n+1),
		metaJSON:   p.add("meta_json", Uint, 8, PerByte, meta),
	}
	arena, err := alloc.Alloc(max(p.size, 1))
	if err != nil {
		return nil, fmt.Errorf("batch: arena of %d bytes for rollout %d: %w", p.size, rolloutID, err)
	}
	w.mem = arena.Bytes()
	w.write(rows, tokens, segments)
	return &Batch{
		ID: id, RolloutID: rolloutID,
		Seqs: n, Tokens: tokens, Segments: segments,
		Columns: p.columns, arena: arena,
	}, nil
}

// writer holds the byte offset of every column.
type writer struct {
	mem                                        []byte
	offsets, cuSeqlens, tokens, logprobs       int
	lossMask, promptLen, reward, advantage     int
	groupID, sessionSeq, status, turns, aborts int
	segOffsets, segStart, segVersion           int
	metaOffs, metaJSON                         int
}

func (w *writer) write(rows []Row, tokens, segments int) {
	n := len(rows)
	offsets := viewAt[int64](w.mem, w.offsets, n+1)
	cu := viewAt[int32](w.mem, w.cuSeqlens, n+1)
	ids := viewAt[int32](w.mem, w.tokens, tokens)
	logprobs := viewAt[float32](w.mem, w.logprobs, tokens)
	mask := viewAt[uint8](w.mem, w.lossMask, tokens)
	segOffsets := viewAt[int64](w.mem, w.segOffsets, n+1)
	segStart := viewAt[int32](w.mem, w.segStart, segments)
	segVersion := viewAt[int64](w.mem, w.segVersion, segments)
	metaOffsets := viewAt[int64](w.mem, w.metaOffs, n+1)

	at, seg, meta := 0, 0, 0
	for i := range rows {
		r := &rows[i]
		offsets[i], cu[i], segOffsets[i], metaOffsets[i] = int64(at), int32(at), int64(seg), int64(meta)
		for _, p := range r.Pieces {
			at += copyPiece(ids[at:], logprobs[at:], mask[at:], p)
		}
		for _, s := range r.Segments {
			segStart[seg], segVersion[seg] = int32(s.Start), s.WeightVersion
			seg++
		}
		meta += copy(w.mem[w.metaJSON+meta:], r.Meta)
		w.writeScalars(i, n, r)
	}
	offsets[n], cu[n], segOffsets[n], metaOffsets[n] = int64(at), int32(at), int64(seg), int64(meta)
}

// copyPiece copies one piece and returns its length. Pooled arenas hold old bytes, so zeros
// are written as well.
func copyPiece(ids []int32, logprobs []float32, mask []uint8, p Piece) int {
	n := copy(ids, p.Tokens)
	if p.Logprobs == nil {
		clear(logprobs[:n])
		clear(mask[:n])
		return n
	}
	copy(logprobs[:n], p.Logprobs)
	for i := range mask[:n] {
		mask[i] = 1
	}
	return n
}

func (w *writer) writeScalars(i, n int, r *Row) {
	viewAt[int32](w.mem, w.promptLen, n)[i] = int32(r.PromptLen)
	viewAt[float64](w.mem, w.reward, n)[i] = r.Reward
	viewAt[float32](w.mem, w.advantage, n)[i] = r.Advantage
	viewAt[int64](w.mem, w.groupID, n)[i] = r.GroupID
	viewAt[int32](w.mem, w.sessionSeq, n)[i] = r.SessionSeq
	viewAt[int32](w.mem, w.status, n)[i] = int32(r.Status)
	viewAt[int32](w.mem, w.turns, n)[i] = r.Turns
	viewAt[int32](w.mem, w.aborts, n)[i] = r.Aborts
}
