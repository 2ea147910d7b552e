package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// BenchmarkParseReplay reads a history of 200 messages and 800 KB whose last message alone is
// new, in each dialect.
func BenchmarkParseReplay(b *testing.B) {
	const n, size = 200, 800 << 10
	text := strings.Repeat(`some words of \"source\" code,\n\tindented; `, size/n/44+1)[:size/n-120]
	text = strings.TrimRight(text, `\`)
	var chat, messages strings.Builder
	for i := range n - 1 {
		id := i / 2
		if i%2 == 0 {
			fmt.Fprintf(&chat, `{"role":"tool","tool_call_id":"c%d","content":"%s"},`, id-1, text)
			fmt.Fprintf(&messages, `{"role":"user","content":[{"type":"tool_result","tool_use_id":"c%d","content":"%s"}]},`, id-1, text)
			continue
		}
		fmt.Fprintf(&chat, `{"role":"assistant","content":"%s","tool_calls":[{"id":"c%d","type":"function","function":{"name":"f","arguments":"{}"}}]},`, text, id)
		fmt.Fprintf(&messages, `{"role":"assistant","content":[{"type":"text","text":"%s"},{"type":"tool_use","id":"c%d","name":"f","input":{}}]},`, text, id)
	}
	last := `{"role":"user","content":"00000000 ` + text + `"}],"max_tokens":1000}`
	for _, bench := range []struct {
		name    string
		dialect Dialect
		body    string
	}{{"chat", Chat, `{"model":"m","messages":[` + chat.String() + last}, {"messages", Messages, `{"model":"m","messages":[` + messages.String() + last}} {
		b.Run(bench.name, func(b *testing.B) {
			body := []byte(bench.body)
			number := bytes.LastIndex(body, []byte("00000000"))
			cache := canon.NewCache(0)
			parse := func() {
				req, e := bench.dialect.Parse(body, cache)
				if e != nil || len(req.Messages) != n {
					b.Fatal(e)
				}
			}
			parse()
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				copy(body[number:], fmt.Sprintf("%08d", i%100_000_000))
				parse()
			}
		})
	}
}
