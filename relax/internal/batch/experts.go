package batch

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"
)

// Experts are the experts a mixture-of-experts model routed a row's tokens to, as the backend
// sent them. The last token was never put through the model, so there are len(tokens)-1 positions.
type Experts struct {
	// Layers and TopK are the model's; they are positive, and the same in all rows of a batch.
	Layers, TopK int
	// Pieces cover the positions from 0 on without a hole. Where two overlap the later one counts.
	// Positions behind the last response, which nobody computed, may be left out: they get experts
	// 0 to TopK-1. Nothing behind them is trained.
	Pieces []ExpertPiece
}

// An ExpertPiece is one answer of the backend.
type ExpertPiece struct {
	// Start is the row-relative position of its first entry.
	Start int
	// Base64 is standard base64, with padding, of little-endian int32 in the shape
	// [positions, Layers, TopK]. Build decodes it straight into the arena.
	Base64 []byte
}

// shape is the width of the routed_experts column; its zero value means that there is none.
type shape struct{ layers, topK int }

func (s shape) width() int { return s.layers * s.topK }

// routes is the number of positions of a row.
func routes(tokens int) int { return max(tokens-1, 0) }

// expertShape finds the one shape of all rows.
func expertShape(rows []Row) (shape, error) {
	var s shape
	for i := range rows {
		e, first := rows[i].Experts, rows[0].Experts
		if e == nil && first == nil {
			continue
		}
		if e == nil || first == nil {
			return s, fmt.Errorf("batch: session %s: some rows have routed experts and some have none", rows[i].Session)
		}
		if e.Layers <= 0 || e.TopK <= 0 || e.Layers != first.Layers || e.TopK != first.TopK {
			return s, fmt.Errorf("batch: session %s: routed experts of %d layers x top %d, expected positive numbers and those of the first row: %d x %d",
				rows[i].Session, e.Layers, e.TopK, first.Layers, first.TopK)
		}
		s = shape{e.Layers, e.TopK}
	}
	return s, nil
}

// placeOptional plans the columns only some batches have.
func (w *writer) placeOptional(p *plan) {
	if w.perTurn {
		w.advantages = p.add("advantages", Float, 32, PerToken, w.counts.tokens)
	}
	if w.experts != (shape{}) {
		w.routed = p.add("routed_experts", Int, 32, PerRoute, w.routes*w.experts.width())
		w.routedShape = p.add("routed_experts_shape", Int, 32, PerBatch, 2)
	}
}

// writeExperts decodes a row's experts behind the first at positions of the column.
func (w *writer) writeExperts(r *Row, at, tokens int) error {
	bytesPer := 4 * w.experts.width()
	base := w.routed + at*bytesPer
	dst := w.mem[base : base+routes(tokens)*bytesPer]
	done := 0
	for i, piece := range r.Experts.Pieces {
		if piece.Start < 0 || piece.Start > done {
			return fmt.Errorf("batch: session %s: routed experts: piece %d starts at position %d, but only %d are there before it", r.Session, i, piece.Start, done)
		}
		size, err := DecodedLen(piece.Base64)
		if err != nil {
			return fmt.Errorf("batch: session %s: routed experts: piece %d: %w", r.Session, i, err)
		}
		if size%bytesPer != 0 || piece.Start*bytesPer+size > len(dst) {
			return fmt.Errorf("batch: session %s: routed experts: piece %d has %d bytes from position %d on, expected a multiple of %d "+
				"(%d layers x top %d x 4 bytes) that ends within the row's %d positions (its tokens less 1)",
				r.Session, i, size, piece.Start, bytesPer, w.experts.layers, w.experts.topK, routes(tokens))
		}
		from := piece.Start * bytesPer
		if err := decode(dst[from:from+size], piece.Base64); err != nil {
			return fmt.Errorf("batch: session %s: routed experts: piece %d: %w", r.Session, i, err)
		}
		done = max(done, piece.Start+size/bytesPer)
	}
	if need := routedEnd(r); done < need {
		return fmt.Errorf("batch: session %s: routed experts: %d positions, expected at least %d: all that a response was sampled behind", r.Session, done, need)
	}
	if !littleEndian {
		swap(dst[:done*bytesPer])
	}
	w.fillRoutes(dst[done*bytesPer:])
	return nil
}

// routedEnd is the number of positions the row must have: the backend computed all of them to
// sample the last token of the last response that has one.
func routedEnd(r *Row) int {
	for _, t := range slices.Backward(r.TurnTable) {
		if t.Len > 0 {
			return routes(t.Start + t.Len)
		}
	}
	return 0
}

// fillRoutes writes experts 0 to top k - 1 for each layer of positions nobody computed.
func (w *writer) fillRoutes(dst []byte) {
	if len(dst) == 0 {
		return
	}
	out := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)/4)
	for i := range out {
		out[i] = int32(i % w.experts.topK)
	}
}

// DecodedLen is the number of bytes of padded base64, which is not looked at.
func DecodedLen(text []byte) (int, error) {
	n := len(text)
	if n%4 != 0 {
		return 0, fmt.Errorf("expected padded base64, found %d characters, which is no multiple of 4", n)
	}
	pad := 0
	for pad < 2 && pad < n && text[n-1-pad] == '=' {
		pad++
	}
	return n/4*3 - pad, nil
}

// decode fills dst, which has the text's decoded length. The last four characters may hold padding,
// which the fast decoder has no room for.
func decode(dst, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	body := len(text) - 4
	n, err := decodeBase64(dst[:body/4*3], text[:body])
	if err != nil {
		return err
	}
	tail, err := base64.StdEncoding.Decode(dst[body/4*3:], text[body:])
	if err != nil {
		return err
	}
	if n+tail != len(dst) { // decoders skip line breaks
		return fmt.Errorf("expected base64 without line breaks, found %d bytes in %d characters", n+tail, len(text))
	}
	return nil
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func swap(words []byte) {
	for i := 0; i+4 <= len(words); i += 4 {
		slices.Reverse(words[i : i+4])
	}
}
