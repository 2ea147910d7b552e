package forest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bytedance/sonic"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// conversation returns a Chat body of n messages and about size bytes, and its responses.
func conversation(n, size int) []byte {
	text := strings.Repeat(`some words of \"source\" code,\n\tindented; `, size/n/44+1)
	if len(text) > size/n {
		text = text[:size/n]
	}
	text = strings.TrimRight(text, `\`)
	var b strings.Builder
	b.WriteString(`{"model":"m","temperature":1,"messages":[`)
	for i := range n {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":"%d %s"}`, role, i, text)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

// replayed returns a forest and a cache that know all but the last user message of the body.
func replayed(tb testing.TB, body []byte) (*Forest, *canon.Cache) {
	tb.Helper()
	cache := canon.NewCache(0)
	req, e := wire.Chat.Parse(body, cache)
	if e != nil {
		tb.Fatal(e)
	}
	f := New("s")
	for i := 1; i < len(req.Messages); i += 2 {
		turn := *req
		turn.Messages = req.Messages[:i]
		obs := f.Attach(f.Match(&turn), []int32{1, 2}, []int32{3}, &turn)
		if _, err := f.Commit(obs, Generation{IDs: []int32{4}, Logprobs: []float32{0}, Message: req.Messages[i]}); err != nil {
			tb.Fatal(err)
		}
	}
	return f, cache
}

func benchmarkReplay(b *testing.B, messages, size int) {
	body := conversation(messages, size)
	f, cache := replayed(b, body)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		req, e := wire.Chat.Parse(body, cache)
		if e != nil {
			b.Fatal(e)
		}
		if m := f.Match(req); m.From < messages-1 {
			b.Fatalf("matched %d of %d messages", m.From, messages)
		}
	}
}

// BenchmarkReplay reads and matches a history that was seen before: 200 messages, 800 KB.
func BenchmarkReplay(b *testing.B) { benchmarkReplay(b, 200, 800<<10) }

// BenchmarkReplayGrowth has the same bytes in more and more messages.
func BenchmarkReplayGrowth(b *testing.B) {
	for _, n := range []int{10, 100, 400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkReplay(b, n, 800<<10) })
	}
}

// BenchmarkFirstSight reads a history for the first time.
func BenchmarkFirstSight(b *testing.B) {
	body := conversation(200, 800<<10)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, e := wire.Chat.Parse(body, canon.NewCache(0)); e != nil {
			b.Fatal(e)
		}
	}
}

// BenchmarkValidateOnly is the yardstick of the targets: the same bytes, only validated.
func BenchmarkValidateOnly(b *testing.B) {
	body := conversation(200, 800<<10)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if !sonic.Valid(body) {
			b.Fatal("invalid")
		}
	}
}
