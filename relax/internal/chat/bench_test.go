package chat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// history is n messages of a conversation that ends in a response with a call.
func history(n int) []*canon.Message {
	out := []*canon.Message{system("Be brief.")}
	for len(out) < n-2 {
		out = append(out, user(strings.Repeat("word and more. ", 20)), assistant(strings.Repeat("more and words. ", 20)))
	}
	return append(out, user("Weather in Paris?"), calling("", parisID, "weather", `{"city":"Paris"}`))
}

// BenchmarkObserveDelta encodes a tool result of 1 KB behind histories of different lengths.
// The cost must not grow with them.
func BenchmarkObserveDelta(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("history=%d", n), func(b *testing.B) { benchmarkDelta(b, byteFormat(b), n) })
	}
}

// BenchmarkObserveDeltaReal is the same with Qwen3's own tokenizer and template.
func BenchmarkObserveDeltaReal(b *testing.B) {
	f := real(b, realModels[0])
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("history=%d", n), func(b *testing.B) { benchmarkDelta(b, f, n) })
	}
}

func benchmarkDelta(b *testing.B, f *Format, n int) {
	before := history(n)
	content := strings.Repeat("word and more. ", 1<<10/15)
	turns := append(before, nil)
	prev := Prev{IDs: []int32{f.Terminator()}}
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ { // new text in each round, so that the cache does not help
		turns[len(before)] = result(parisID, fmt.Sprint(i)+content)
		req := &canon.Request{Messages: turns, Tools: []canon.ToolSpec{weather}, Kwargs: canon.ObjectOf()}
		if _, err := f.Observe(req, len(before), prev); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkObserveFirst encodes a first request of 8 KB.
func BenchmarkObserveFirst(b *testing.B) { benchmarkFirst(b, byteFormat(b)) }

// BenchmarkObserveFirstReal is the same with Qwen3's own tokenizer and template.
func BenchmarkObserveFirstReal(b *testing.B) { benchmarkFirst(b, real(b, realModels[0])) }

func benchmarkFirst(b *testing.B, f *Format) {
	content := strings.Repeat("word and more. ", 8<<10/15)
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		req := &canon.Request{Messages: []*canon.Message{system("Be brief."), user(fmt.Sprint(i) + content)}, Tools: []canon.ToolSpec{weather}, Kwargs: canon.ObjectOf()}
		if _, err := f.Observe(req, 0, Prev{}); err != nil {
			b.Fatal(err)
		}
	}
}
