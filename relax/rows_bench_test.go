package relax

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// BenchmarkRows is what a step of 1,024 Sessions of 8 turns and 8k tokens costs from exported
// Sessions to a built batch, into memory that was used before, as the C ABI's pool has it: bytes
// are those of the columns. "loop-us/group" is the part the engine's loop does, for a Group of 8.
func BenchmarkRows(b *testing.B) {
	const sessions, turns, half = 1024, 8, 512 // tokens of an observation, and of a response
	e, token := openBenchSession(b, 1)
	s := e.core.sessions[token]
	var history []*canon.Message
	for i := range turns {
		req := askFor("q"+strconv.Itoa(i), canon.Retry{})
		req.Messages = append(slices.Clip(history), req.Messages...)
		message := canon.NewMessage(canon.Message{Role: canon.Assistant, Content: "a" + strconv.Itoa(i)})
		g := forest.Generation{IDs: make([]int32, half), Logprobs: make([]float32, half), Message: message}
		if _, err := s.forest.Commit(s.forest.Attach(s.forest.Match(req), make([]int32, half), nil, req), g); err != nil {
			b.Fatal(err)
		}
		history = append(slices.Clip(req.Messages), message)
	}
	out, err := exported(s, `{"reward":1,"metadata":{"solved":true}}`)
	if err != nil {
		b.Fatal(err)
	}
	s.results = out
	credits := []credit.Credit{{Number: 1, Turns: make([]float32, turns)}}
	memory := &onePiece{}
	var rows []batch.Row
	var laid time.Duration
	b.ReportAllocs()
	for b.Loop() {
		rows = rows[:0]
		began := time.Now()
		for range sessions {
			more, _ := s.rows(credits)
			rows = append(rows, more...)
		}
		laid += time.Since(began)
		built, err := batch.Build(memory, 1, 0, rows)
		if err != nil {
			b.Fatal(err)
		}
		last := built.Columns[len(built.Columns)-1]
		b.SetBytes(int64(last.Offset + last.Size()))
	}
	b.ReportMetric(float64(b.N*sessions)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(8*laid.Seconds()*1e6/float64(b.N*sessions), "loop-us/group")
}

// onePiece is an allocator of one piece of memory that is used again and again.
type onePiece struct{ mem []byte }

func (p *onePiece) Alloc(size int) (Arena, error) {
	if len(p.mem) < size {
		p.mem = make([]byte, size+batch.Align)
	}
	return p, nil
}

func (p *onePiece) Bytes() []byte { return p.mem }
func (p *onePiece) Free()         {}
