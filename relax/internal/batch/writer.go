package batch

// cursor is how far each ragged column is written.
type cursor struct{ token, segment, turn, meta, route int }

// write fills the arena in one pass over the rows: pooled memory holds old bytes, so zeros are
// written as well.
func (w *writer) write(rows []Row) error {
	var at cursor
	sums := make(map[int64]int64, len(rows)) // trained tokens by sample index
	for i := range rows {
		r := &rows[i]
		w.writeOffsets(i, at)
		next, trained := w.writeTokens(r, at.token)
		w.writeScalars(i, r, next-at.token)
		if w.perTurn {
			w.writeAdvantages(r, at.token, next)
		}
		if w.experts != (shape{}) {
			if err := w.writeExperts(r, at.route, next-at.token); err != nil {
				return err
			}
			at.route += routes(next - at.token)
		}
		at.token = next
		at.segment = w.writeSegments(r, at.segment)
		at.turn = w.writeTurns(r, at.turn)
		at.meta += copy(w.mem[w.metaJSON+at.meta:], r.Meta)
		sums[r.SampleIndex] += int64(trained)
	}
	w.writeOffsets(len(rows), at)
	maskSums := viewAt[int64](w.mem, w.maskSums, w.rows)
	for i := range rows {
		maskSums[i] = sums[rows[i].SampleIndex]
	}
	if w.experts != (shape{}) {
		copy(viewAt[int32](w.mem, w.routedShape, 2), []int32{int32(w.experts.layers), int32(w.experts.topK)})
	}
	return nil
}

func (w *writer) writeOffsets(i int, at cursor) {
	n := w.rows + 1
	viewAt[int64](w.mem, w.offsets, n)[i] = int64(at.token)
	viewAt[int32](w.mem, w.cuSeqlens, n)[i] = int32(at.token)
	viewAt[int64](w.mem, w.segOffsets, n)[i] = int64(at.segment)
	viewAt[int64](w.mem, w.turnOffsets, n)[i] = int64(at.turn)
	viewAt[int64](w.mem, w.metaOffs, n)[i] = int64(at.meta)
}

// writeTokens returns the place behind the row's tokens, and how many of them are trained.
func (w *writer) writeTokens(r *Row, at int) (next, trained int) {
	ids := viewAt[int32](w.mem, w.tokens, w.counts.tokens)
	logprobs := viewAt[float32](w.mem, w.logprobs, w.counts.tokens)
	mask := viewAt[uint8](w.mem, w.lossMask, w.counts.tokens)
	for _, p := range r.Pieces {
		n := copy(ids[at:], p.Tokens)
		if p.Logprobs == nil {
			clear(logprobs[at : at+n])
			clear(mask[at : at+n])
		} else {
			copy(logprobs[at:at+n], p.Logprobs)
			fillOnes(mask[at : at+n])
			trained += n
		}
		at += n
	}
	return at, trained
}

// ones is copied from: a memmove is several times as fast as a loop over bytes.
var ones = func() (out [4096]uint8) {
	for i := range out {
		out[i] = 1
	}
	return out
}()

func fillOnes(mask []uint8) {
	for len(mask) > 0 {
		mask = mask[copy(mask, ones[:]):]
	}
}

func (w *writer) writeScalars(i int, r *Row, length int) {
	n := w.rows
	viewAt[int32](w.mem, w.promptLen, n)[i] = int32(r.PromptLen)
	viewAt[int64](w.mem, w.totalLen, n)[i] = int64(length)
	viewAt[int64](w.mem, w.responseLen, n)[i] = int64(length - r.PromptLen)
	viewAt[float64](w.mem, w.reward, n)[i] = r.Reward
	viewAt[float32](w.mem, w.rawReward, n)[i] = r.RawReward
	viewAt[float32](w.mem, w.advantage, n)[i] = r.Advantage
	viewAt[int64](w.mem, w.groupID, n)[i] = r.GroupID
	viewAt[int32](w.mem, w.sessionSeq, n)[i] = r.SessionSeq
	viewAt[int64](w.mem, w.sampleIndex, n)[i] = r.SampleIndex
	viewAt[int64](w.mem, w.partition, n)[i] = r.Partition
	viewAt[int32](w.mem, w.status, n)[i] = int32(r.Status)
	viewAt[int64](w.mem, w.truncated, n)[i] = int64(oneIf(r.Status == Truncated))
	viewAt[int32](w.mem, w.turnCount, n)[i] = r.Turns
	viewAt[int32](w.mem, w.aborts, n)[i] = r.Aborts
}

func (w *writer) writeSegments(r *Row, at int) int {
	start := viewAt[int32](w.mem, w.segStart, w.segments)
	version := viewAt[int64](w.mem, w.segVersion, w.segments)
	for _, s := range r.Segments {
		start[at], version[at] = int32(s.Start), s.WeightVersion
		at++
	}
	return at
}

func (w *writer) writeTurns(r *Row, at int) int {
	n := w.counts.turns
	start, length := viewAt[int32](w.mem, w.turnStart, n), viewAt[int32](w.mem, w.turnLen, n)
	advantage, masked := viewAt[float32](w.mem, w.turnAdv, n), viewAt[uint8](w.mem, w.turnMask, n)
	for _, t := range r.TurnTable {
		start[at], length[at], advantage[at], masked[at] = int32(t.Start), int32(t.Len), t.Advantage, oneIf(t.Masked)
		at++
	}
	return at
}

// writeAdvantages writes the credit of a row's tokens [from, to).
func (w *writer) writeAdvantages(r *Row, from, to int) {
	out := viewAt[float32](w.mem, w.advantages, w.counts.tokens)[from:to]
	if !r.PerTurn {
		clear(out[:r.PromptLen])
		fill(out[r.PromptLen:], r.Advantage)
		return
	}
	clear(out)
	for _, t := range r.TurnTable {
		if !t.Masked {
			fill(out[t.Start:t.Start+t.Len], t.Advantage)
		}
	}
}

// fill doubles what is written by memmove until dst is full.
func fill(dst []float32, v float32) {
	if len(dst) == 0 {
		return
	}
	dst[0] = v
	for n := 1; n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}

func oneIf(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
