package gateway

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bytedance/sonic"
	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// history is a request of n messages and about size bytes.
func history(n, size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"be brief"}`)
	text := strings.Repeat("some words of a message, ", size/n/25)
	for i := range n - 1 {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		fmt.Fprintf(&b, `,{"role":"%s","content":"%d %s"}`, role, i, text)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

// turner sends one body to a server again and again over one connection.
func turner(b *testing.B, addr, path string, body []byte) func() {
	c := &fasthttp.HostClient{Addr: addr, MaxConns: 1}
	b.Cleanup(c.CloseIdleConnections)
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	req.Header.SetMethod("POST")
	req.SetRequestURI("http://" + addr + path)
	req.Header.Set("Authorization", "Bearer "+token)
	req.SetBodyRaw(body)
	return func() {
		if err := c.Do(req, resp); err != nil || resp.StatusCode() != 200 {
			b.Fatal(err, resp.StatusCode())
		}
	}
}

// BenchmarkTurn is one turn of an 800 KB history with an instant handler, and its ratio to a
// bare fasthttp handler that only validates the same bytes. Both run in turns within each
// iteration, so that what else the machine does meets both.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{10, 200, 400} {
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			body := history(n, 800<<10)
			instant := completion("ok")
			g := open(b, func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) { return instant, nil },
				func(cfg *Config) { cfg.Handler.(*fake).cache = canon.NewCache(8 << 20) })
			ours := turner(b, g.address(), prefix+"/v1/chat/completions", body)

			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			bare := &fasthttp.Server{MaxRequestBodySize: 256 << 20, Handler: func(ctx *fasthttp.RequestCtx) {
				if !sonic.Valid(ctx.PostBody()) {
					ctx.SetStatusCode(400)
				}
				ctx.SetBodyString("{}")
			}}
			go bare.Serve(ln)
			b.Cleanup(func() { bare.Shutdown() })
			theirs := turner(b, ln.Addr().String(), "/", body)

			ours()
			theirs()
			var a, z time.Duration
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				ours()
				middle := time.Now()
				theirs()
				a += middle.Sub(start)
				z += time.Since(middle)
			}
			b.ReportMetric(float64(a)/float64(z), "ratio")
			b.ReportMetric(float64(a.Microseconds())/float64(b.N), "µs/turn")
		})
	}
}

// BenchmarkParked reports the memory the process holds for each request that waits for its
// turn: connection, goroutine, context, watch; both ends of the connection are counted. The
// messages are the Session's, whose cache has them once, so a large body adds nothing.
func BenchmarkParked(b *testing.B) {
	const n = 1000
	large := strings.TrimSuffix(string(history(40, 64<<10)), "}")
	for _, body := range []struct{ name, text string }{
		{"json", chatBody("hi", false)}, {"sse", chatBody("hi", true)},
		{"json 64KB", large + "}"}, {"sse 64KB", large + `,"stream":true}`},
	} {
		raw := rawHead("/", fmt.Sprint("Content-Length: ", len(body.text))) + body.text
		b.Run(body.name, func(b *testing.B) {
			for b.Loop() {
				p := newParked()
				g := open(b, p.complete, nil)
				before := inUse()
				conns := make([]net.Conn, n)
				for i := range conns {
					conn, err := net.Dial("tcp", g.address())
					if err != nil {
						b.Fatal(err)
					}
					conns[i] = conn
					if _, err := conn.Write([]byte(raw)); err != nil {
						b.Fatal(err)
					}
				}
				for range n {
					<-p.waiting
				}
				b.ReportMetric(float64(inUse()-before)/n, "B/parked")
				for _, conn := range conns {
					conn.Close()
				}
				for range n {
					<-p.causes
				}
			}
		})
	}
}

// inUse is the heap and stack memory in use after a collection.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
