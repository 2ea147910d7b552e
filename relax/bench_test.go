package relax

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/bytedance/sonic"
	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// instant is a backend that answers at once with the same few tokens.
type instant struct{ result sglang.Result }

func (i *instant) Generate(_ context.Context, call sglang.Call) (sglang.Result, error) {
	call.Placed("http://instant")
	return i.result, nil
}
func (*instant) AbortAll(context.Context, []string, func(string)) error { return nil }
func (*instant) CloseSession(string)                                    {}
func (*instant) Close()                                                 {}

// BenchmarkTurn measures one whole turn over HTTP at the end of a long history: read, match,
// encode the new messages, commit, answer, with a backend that costs nothing. x/bare is the
// ratio to a bare fasthttp handler that only validates the same bytes as JSON, in one run
// (design section 8: at most 1.5 at 200 messages and 800 KB).
func BenchmarkTurn(b *testing.B) {
	for _, messages := range []int{10, 200, 400} {
		b.Run(fmt.Sprintf("800KB/messages=%d", messages), func(b *testing.B) { benchmarkTurn(b, messages, 800<<10, 4) })
	}
	b.Run("32KB/new=200", func(b *testing.B) { benchmarkTurn(b, 20, 32<<10, 200) })
}

func benchmarkTurn(b *testing.B, messages, size, newTokens int) {
	e, token := openBenchSession(b, newTokens)
	turn := newPoster(b, e.BaseURL()+"v1/chat/completions", token)
	defer turn.close()
	bare := bareHandler(b)
	defer bare.close()

	body := converseBench(b, turn, messages, size)
	turn.post(b, body) // the history is new once; every later turn replays it
	bare.post(b, body)
	b.ReportAllocs()
	b.ResetTimer()
	began := time.Now()
	for i := range b.N {
		turn.post(b, withLast(body, i))
	}
	ours := time.Since(began)
	b.StopTimer()
	began = time.Now()
	for i := range b.N {
		bare.post(b, withLast(body, i))
	}
	b.ReportMetric(float64(ours)/float64(time.Since(began)), "x/bare")
	b.ReportMetric(float64(b.N)/ours.Seconds(), "turns/s")
}

// openBenchSession opens an engine whose one Session has an agent that only sleeps, so that
// the benchmark can make the Session's requests itself.
func openBenchSession(b *testing.B, newTokens int) (*Engine, string) {
	cfg := testConfig(b)
	cfg.AgentCommand, cfg.AgentEnv = "exec sleep 1000", nil
	cfg.HFCheckpoint = filepath.Join("..", "testdata", "checkpoints", "tinychat")
	e := openEngine(b, cfg)
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		b.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		b.Fatal(err)
	}
	ids := make([]int32, newTokens)
	for i := range ids {
		ids[i] = 100
	}
	ids[newTokens-1] = e.core.format.Terminator()
	e.core.backend.Close()
	e.core.backend = &instant{sglang.Result{
		IDs: ids, Logprobs: make([]float32, newTokens), Finish: sglang.Finish{Type: "stop"}, WeightVersion: "1",
	}}
	e.core.sessionsMu.Lock()
	defer e.core.sessionsMu.Unlock()
	for token := range e.core.sessions {
		return e, token
	}
	b.Fatal("no session")
	return nil, ""
}

// converseBench grows a conversation turn by turn, as an agent does, to the given number of
// messages and bytes. It returns the request body of the next turn.
func converseBench(b *testing.B, turn *poster, messages, size int) []byte {
	filler := string(bytes.Repeat([]byte("All work and no play. "), 1+2*size/messages/22))[:2*size/messages]
	var list []json.RawMessage
	add := func(m any) {
		raw, err := json.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		list = append(list, raw)
	}
	body := func() []byte {
		raw, err := json.Marshal(map[string]any{"model": "m", "messages": list})
		if err != nil {
			b.Fatal(err)
		}
		return raw
	}
	for len(list) < messages {
		add(map[string]string{"role": "user", "content": fmt.Sprintf("%d %s", len(list), filler)})
		turn.post(b, body())
		var answer struct {
			Choices []struct{ Message json.RawMessage }
		}
		if err := json.Unmarshal(turn.resp.Body(), &answer); err != nil {
			b.Fatal(err)
		}
		list = append(list, bytes.Clone(answer.Choices[0].Message))
	}
	add(map[string]string{"role": "user", "content": "turn 00000000"})
	return body()
}

// withLast rewrites the last message in place, so that each turn is a new one.
func withLast(body []byte, n int) []byte {
	at := bytes.LastIndex(body, []byte("turn "))
	copy(body[at:], fmt.Sprintf("turn %08d", n))
	return body
}

// A poster sends one body after the other over one connection. fasthttp's own client starts
// goroutines nobody can join.
type poster struct {
	conn net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	req  *fasthttp.Request
	resp *fasthttp.Response
	wait func()
}

func newPoster(b *testing.B, target, token string) *poster {
	where, err := url.Parse(target)
	if err != nil {
		b.Fatal(err)
	}
	conn, err := net.Dial("tcp", where.Host)
	if err != nil {
		b.Fatal(err)
	}
	p := &poster{
		conn: conn, in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10),
		req: fasthttp.AcquireRequest(), resp: fasthttp.AcquireResponse(), wait: func() {},
	}
	p.req.SetRequestURI(target)
	p.req.Header.SetMethod("POST")
	p.req.Header.Set("Authorization", "Bearer "+token)
	return p
}

func (p *poster) close() {
	p.conn.Close()
	p.wait()
}

func (p *poster) post(b *testing.B, body []byte) {
	p.req.SetBodyRaw(body)
	err := p.req.Write(p.out)
	if err == nil {
		err = p.out.Flush()
	}
	if err == nil {
		err = p.resp.Read(p.in)
	}
	if err != nil {
		b.Fatal(err)
	}
	if p.resp.StatusCode() != 200 {
		b.Fatalf("status %d: %s", p.resp.StatusCode(), p.resp.Body())
	}
}

// bareHandler serves one connection with a handler that only checks that the body is JSON.
func bareHandler(b *testing.B) *poster {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	server := &fasthttp.Server{NoDefaultDate: true, MaxRequestBodySize: 64 << 20, Handler: func(ctx *fasthttp.RequestCtx) {
		if !sonic.Valid(ctx.PostBody()) {
			ctx.SetStatusCode(400)
		}
	}}
	p := newPoster(b, "http://"+ln.Addr().String()+"/", "")
	conn, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeConn(conn)
	}()
	p.wait = func() { <-done }
	return p
}
