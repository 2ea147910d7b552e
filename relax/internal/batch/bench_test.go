package batch

import (
	"encoding/base64"
	"fmt"
	"testing"
)

// pool gives the same memory out again, as the C ABI's arenas do.
type pool struct{ free map[int]Arena }

func (p *pool) Alloc(size int) (Arena, error) {
	if a := p.free[size]; a != nil {
		return a, nil
	}
	a, err := (&dirtyHeap{}).Alloc(size)
	p.free[size] = a
	return a, err
}

// benchRows are rows of 8,192 tokens in 8 turns, as a step of agents leaves them. Rows share
// their tokens' memory, so that the benchmark's own data stays small beside the batch.
func benchRows(n, tokens int) []Row {
	const turns = 8
	ids, logprobs := make([]int32, tokens/turns/2), make([]float32, tokens/turns/2)
	rows := make([]Row, n)
	for i := range rows {
		r := &rows[i]
		*r = Row{PromptLen: len(ids), SampleIndex: int64(i), Turns: turns, Meta: make([]byte, 512)}
		for turn := range turns {
			start := (2*turn + 1) * len(ids)
			r.Pieces = append(r.Pieces, Piece{Tokens: ids}, Piece{Tokens: ids, Logprobs: logprobs})
			r.TurnTable = append(r.TurnTable, Turn{Start: start, Len: len(ids)})
			r.Segments = append(r.Segments, Segment{Start: start, WeightVersion: int64(turn)})
		}
	}
	return rows
}

// BenchmarkBuild is a step's rows into a pooled arena: bytes are those of the columns.
func BenchmarkBuild(b *testing.B) {
	for _, shape := range []struct{ rows, tokens int }{{64, 8192}, {1024, 8192}} {
		for _, perTurn := range []bool{false, true} {
			b.Run(fmt.Sprintf("rows=%d/tokens=%d/perTurn=%v", shape.rows, shape.tokens, perTurn), func(b *testing.B) {
				rows := benchRows(shape.rows, shape.tokens)
				rows[0].PerTurn = perTurn
				benchBuild(b, rows)
			})
		}
	}
}

// BenchmarkRoutedExperts decodes 48 layers x top 8 of each token: bytes are those of the columns.
func BenchmarkRoutedExperts(b *testing.B) {
	const layers, topK, tokens = 48, 8, 2048
	raw := make([]byte, (tokens-1)*layers*topK*4)
	for i := range raw {
		raw[i] = byte(i * 7)
	}
	text := []byte(base64.StdEncoding.EncodeToString(raw))
	rows := benchRows(16, tokens)
	for i := range rows {
		rows[i].Experts = &Experts{Layers: layers, TopK: topK, Pieces: []ExpertPiece{{0, text}}}
	}
	benchBuild(b, rows)
}

func benchBuild(b *testing.B, rows []Row) {
	memory := &pool{free: map[int]Arena{}}
	built, err := Build(memory, 1, 0, rows)
	if err != nil {
		b.Fatal(err)
	}
	size := 0
	for _, c := range built.Columns {
		size += c.Size()
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Build(memory, 1, 0, rows); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(rows))/b.Elapsed().Seconds(), "rows/s")
}
