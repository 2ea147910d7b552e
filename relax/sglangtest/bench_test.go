package sglangtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// BenchmarkGenerate is a whole /generate of 200 tokens over loopback, client included.
func BenchmarkGenerate(b *testing.B) {
	for _, promptLen := range []int{100, 32 << 10} {
		b.Run(fmt.Sprintf("prompt=%d", promptLen), func(b *testing.B) { benchGenerate(b, promptLen) })
	}
}

func benchGenerate(b *testing.B, promptLen int) {
	p := policyOf(b, fmt.Sprintf(`{"default":[{"text":%q},{"text":%q}]}`, strings.Repeat("a", 199), strings.Repeat("a", 198)+"b"))
	s := start(b, Config{Policy: p, ContextLen: 1 << 20, Records: -1})
	ids := make([]int32, promptLen)
	for i := range ids {
		ids[i] = int32('a' + i%26)
	}
	body, err := json.Marshal(fields{"input_ids": ids, "return_logprob": true,
		"sampling_params": fields{"temperature": 1, "max_new_tokens": 200, "skip_special_tokens": false, "no_stop_trim": true}})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	request := fmt.Appendf(nil, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		in := bufio.NewReaderSize(conn, 64<<10)
		var resp fasthttp.Response
		for pb.Next() {
			if _, err := conn.Write(request); err != nil {
				b.Error(err)
				return
			}
			if err := resp.Read(in); err != nil || resp.StatusCode() != 200 {
				b.Error(err, resp.StatusCode())
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N*200)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkTokens is the model alone.
func BenchmarkTokens(b *testing.B) {
	m := modelOf(b, threeWays)
	ask := tokens(b, m, "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n")
	sp := &SamplingParams{Temperature: 1, TopP: 1, TopK: -1}
	n := 0
	for i := range b.N {
		n += len(sampleWhole(b, m, ask, sp, uint64(i)))
	}
	b.ReportMetric(float64(n)/float64(b.N), "tokens/op")
}
