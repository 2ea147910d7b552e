package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// noTurn is a handler for requests that must not become a turn.
func noTurn(t *testing.T) func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) {
	return func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) {
		t.Error("a turn began")
		return nil, wire.Internal("")
	}
}

// dial connects to a gateway until the test ends.
func dial(t testing.TB, g *Gateway) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", g.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// head of a request to a path, with a credential and further header lines.
func rawHead(path string, lines ...string) string {
	out := "POST " + prefix + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n"
	for _, line := range lines {
		out += line + "\r\n"
	}
	return out + "\r\n"
}

func rawEcho(text string) string {
	return rawHead("/echo", fmt.Sprint("Content-Length: ", len(text))) + text
}

func rawCount(text string) string {
	body := chatBody(text, false)
	return rawHead("/messages/count_tokens", fmt.Sprint("Content-Length: ", len(body))) + body
}

// answer reads one answer.
func answer(t testing.TB, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// allocated runs f and returns the bytes the process allocated meanwhile.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// zeros sends n bytes, in chunks or not, until the server does not take them any more.
func zeros(conn net.Conn, n int, chunked bool) {
	piece := make([]byte, 64<<10)
	for ; n > 0; n -= len(piece) {
		if chunked {
			fmt.Fprintf(conn, "%x\r\n", len(piece))
		}
		if _, err := conn.Write(piece); err != nil {
			return
		}
		if chunked {
			io.WriteString(conn, "\r\n")
		}
	}
	if chunked {
		io.WriteString(conn, "0\r\n\r\n")
	}
}

// A body of 300 MB is refused while it arrives: a declared one, and one of a stranger, without
// holding any of it.
func TestHugeBodies(t *testing.T) {
	const size = 300 << 20
	stranger := "POST " + prefix + "/echo HTTP/1.1\r\nHost: x\r\n"
	declared := fmt.Sprint("Content-Length: ", size)
	const chunks = "Transfer-Encoding: chunked"
	for _, test := range []struct {
		name, head, want string
		chunked          bool
		most             int64 // allocated, in MB
	}{
		{"declared", rawHead("/echo", declared), "echo error 413 body_too_large", false, 4},
		{"declared by a stranger", stranger + declared + "\r\n\r\n", "echo error 401 authentication_error", false, 4},
		{"chunked by a stranger", stranger + chunks + "\r\n\r\n", "echo error 401 authentication_error", true, 8},
		// Nobody can know where it ends, so what is legal is held: twice while it grows.
		{"chunked", rawHead("/echo", chunks), "echo error 413 body_too_large", true, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := open(t, noTurn(t), nil)
			before := inUse()
			used := allocated(func() {
				conn := dial(t, g)
				io.WriteString(conn, test.head)
				sent := make(chan struct{})
				go func() { zeros(conn, size, test.chunked); close(sent) }()
				if _, body := answer(t, bufio.NewReader(conn)); body != test.want {
					t.Errorf("got %q", body)
				}
				conn.Close()
				<-sent
			})
			t.Logf("allocated %d MB", used>>20)
			if used>>20 > test.most {
				t.Errorf("allocated %d MB, want at most %d", used>>20, test.most)
			}
			if held := inUse() - before; held > 8<<20 {
				t.Errorf("%d MB are still held", held>>20)
			}
		})
	}
}

// pack compresses plain in each encoding there is.
func pack(plain []byte) map[string][]byte {
	return map[string][]byte{
		"gzip":    fasthttp.AppendGzipBytes(nil, plain),
		"deflate": fasthttp.AppendDeflateBytes(nil, plain),
		"br":      fasthttp.AppendBrotliBytes(nil, plain),
		"zstd":    fasthttp.AppendZstdBytes(nil, plain),
	}
}

func TestPackedBodies(t *testing.T) {
	const limit = 256 << 10
	g := open(t, say, func(cfg *Config) { cfg.MaxBodyBytes = limit })
	conn := dial(t, g)
	r := bufio.NewReader(conn)
	send := func(encoding string, body []byte) (int, string) {
		io.WriteString(conn, rawHead("/echo", "Content-Encoding: "+encoding, fmt.Sprint("Content-Length: ", len(body))))
		conn.Write(body)
		resp, text := answer(t, r)
		return resp.StatusCode, text
	}
	small := pack([]byte("packed words"))
	// Far more than is allowed, and not the same byte again and again, so that all of it must be
	// unpacked to be seen.
	bomb := pack(bytes.Repeat([]byte("many words "), 16<<20/11))
	for encoding, body := range small {
		for name, broken := range map[string][]byte{
			"cut":     body[:len(body)-4],
			"no":      []byte("not packed at all, just words"),
			"flipped": append(bytes.Clone(body[:len(body)/2]), bytes.Repeat([]byte{0xff}, 20)...),
		} {
			if status, text := send(encoding, broken); status != 400 || text != "echo error 400 invalid_request_error" {
				t.Errorf("%s %s: %d %s", name, encoding, status, text)
			}
		}
		used := allocated(func() {
			if status, text := send(encoding, bomb[encoding]); status != 413 || text != "echo error 413 body_too_large" {
				t.Errorf("bomb in %s (%d bytes): %d %s", encoding, len(bomb[encoding]), status, text)
			}
		})
		t.Logf("bomb in %s: %d bytes sent, %d KB allocated", encoding, len(bomb[encoding]), used>>10)
		if used > 16<<20 {
			t.Errorf("bomb in %s: %d KB allocated under a limit of %d KB", encoding, used>>10, limit>>10)
		}
		// The connection is as good as new.
		if status, text := send(encoding, body); status != 200 || text != "echo answer you said packed words" {
			t.Errorf("%s: %d %s", encoding, status, text)
		}
	}
	if status, text := send("snappy", []byte("x")); status != 415 || text != "echo error 415 unsupported_encoding" {
		t.Errorf("snappy: %d %s", status, text)
	}
}

func TestHeaderBombs(t *testing.T) {
	g := open(t, noTurn(t), func(cfg *Config) { cfg.ReadTimeout = 200 * time.Millisecond })
	for name, raw := range map[string]string{
		"one long header":    "POST /x HTTP/1.1\r\nA: " + strings.Repeat("a", 1<<20),
		"a long path":        "POST /" + strings.Repeat("a", 1<<20),
		"no end":             "POST /x HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 200<<10),
		"10,000 headers":     rawHead("/echo", strings.Repeat("A: b\r\n", 10_000)+"Connection: close"),
		"257 with a stop":    rawHead("/echo", strings.Repeat("A: b\r\n", 255)+"Connection: close"),
		"folded and nothing": "POST /x HTTP/1.1\r\nA: b\r\n" + strings.Repeat(" c\r\n", 100<<10),
	} {
		conn := dial(t, g)
		go io.WriteString(conn, raw) // the server may stop reading
		got, _ := io.ReadAll(conn)   // a reset after the answer is all right
		status, _, _ := strings.Cut(strings.TrimPrefix(string(got), "HTTP/1.1 "), " ")
		if status != "431" && !(strings.HasPrefix(name, "folded") && status == "400") {
			t.Errorf("%s: %.200q", name, got)
		}
	}
}

// A client that stops in the middle of its request is told so and let go.
func TestSlowSenders(t *testing.T) {
	g := open(t, noTurn(t), func(cfg *Config) { cfg.ReadTimeout = 50 * time.Millisecond })
	for raw, want := range map[string]string{
		"POST /agentic_api/echo HTTP/1.1\r\nHost":                      `"code":"request_timeout"`,
		rawHead("/echo", "Content-Length: 10") + "abc":                 "echo error 408 request_timeout",
		rawHead("/echo", "Transfer-Encoding: chunked"):                 "echo error 408 request_timeout",
		rawHead("/echo", "Content-Length: 10", "Expect: 100-continue"): "echo error 408 request_timeout",
		"": "",
	} {
		if got := exchange(t, g, raw); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: got %q", raw, got)
		}
	}
}

// Bytes that come earn a client time, and the end of a connection is an error at any place.
func TestConnReads(t *testing.T) {
	server, peer := pair(t)
	c := &clientConn{TCPConn: server}
	start := time.Now().Add(time.Hour)
	if err := c.SetReadDeadline(start); err != nil {
		t.Fatal(err)
	}
	const sent = 3*readPiece + 10
	go func() { zeros(peer, readPiece, false); peer.Write(make([]byte, sent-readPiece)); peer.Close() }()
	if _, err := io.ReadFull(c, make([]byte, sent)); err != nil {
		t.Fatal(err)
	}
	if earned := c.deadline.Sub(start); earned != 3*time.Second {
		t.Errorf("%d bytes earned %v", sent, earned)
	}
	if _, err := c.Read(make([]byte, 1)); err != io.ErrUnexpectedEOF {
		t.Errorf("the end is %v", err)
	}
}

// A body that ends early never becomes a turn.
func TestTruncatedBodies(t *testing.T) {
	g := open(t, noTurn(t), nil)
	for _, raw := range []string{
		rawHead("/echo", "Content-Length: 100") + "abc",
		rawHead("/echo", "Content-Length: 100"),
		rawHead("/echo", "Transfer-Encoding: chunked") + "5\r\nhello\r\n",
		rawHead("/echo", "Transfer-Encoding: chunked") + "5\r\nhel",
		rawHead("/echo", "Transfer-Encoding: chunked") + "zz\r\nhel",
	} {
		conn := dial(t, g)
		io.WriteString(conn, raw)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if resp, body := answer(t, bufio.NewReader(conn)); resp.StatusCode != 400 || body != "echo error 400 invalid_request_error" {
			t.Errorf("%q: %d %s", raw, resp.StatusCode, body)
		}
		gone := dial(t, g)
		io.WriteString(gone, raw)
		gone.Close()
	}
}

func TestExpectContinue(t *testing.T) {
	g := open(t, say, func(cfg *Config) { cfg.MaxBodyBytes = 1000 })
	const expect = "Expect: 100-continue"
	conn := dial(t, g)
	r := bufio.NewReader(conn)
	for range 3 { // one connection, again and again
		for _, framing := range []struct{ header, body string }{
			{"Content-Length: 5", "words"}, {"Transfer-Encoding: chunked", "5\r\nwords\r\n0\r\n\r\n"},
		} {
			io.WriteString(conn, rawHead("/echo", framing.header, expect))
			if resp, _ := answer(t, r); resp.StatusCode != 100 {
				t.Fatalf("got %d", resp.StatusCode)
			}
			io.WriteString(conn, framing.body)
			if resp, body := answer(t, r); resp.StatusCode != 200 || body != "echo answer you said words" {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
		}
	}
	// The next request, whose headers cannot be read, is not taken for the last one.
	io.WriteString(conn, "POST /x HTTP/1.1\r\nA: "+strings.Repeat("a", maxHeaderBytes))
	if resp, body := answer(t, r); resp.StatusCode != 431 || body != string(wire.Chat.AppendError(nil, headersTooLarge())) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	for raw, want := range map[string]string{
		rawHead("/echo", "Content-Length: 1001", expect):                                                                  "echo error 413 body_too_large",
		rawHead("/messages/batches", "Content-Length: 10", expect):                                                        "not_found",
		strings.Replace(rawHead("/echo", "Content-Length: 10", expect), token, "unknown", 1):                              "echo error 404 session_discarded",
		strings.Replace(rawHead("/echo", "Content-Length: 10", expect), "POST", "PUT", 1):                                 "echo error 405 method_not_allowed",
		rawHead("/echo", "Transfer-Encoding: chunked", expect) + "500\r\n" + strings.Repeat("x", 0x500) + "\r\n0\r\n\r\n": "echo error 413 body_too_large",
	} {
		got := exchange(t, g, raw)
		if !strings.Contains(got, want) || strings.Contains(got, "100 Continue") == strings.Contains(raw, "Content-Length") {
			t.Errorf("%.100q: got %q", raw, got)
		}
	}
}

// Requests and connections over the limit are told to come again, and may.
func TestTooManyRequests(t *testing.T) {
	p := newParked()
	release := make(chan struct{})
	g := open(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		p.waiting <- struct{}{}
		<-release
		return say(ctx, req)
	}, func(cfg *Config) { cfg.MaxRequests = 2 })
	first, second, third := dial(t, g), dial(t, g), dial(t, g)
	io.WriteString(first, rawEcho("a"))
	io.WriteString(second, rawEcho("!b"))
	<-p.waiting
	<-p.waiting
	r := bufio.NewReader(third)
	for raw, want := range map[string]string{
		rawEcho("?"):  "echo error 503 overloaded",
		rawCount("?"): string(wire.Messages.AppendError(nil, overloaded("requests", 2))),
	} {
		io.WriteString(third, raw)
		resp, body := answer(t, r)
		if resp.StatusCode != 503 || body != want || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
		}
	}
	close(release)
	answer(t, bufio.NewReader(first))
	answer(t, bufio.NewReader(second))
	io.WriteString(third, rawEcho("c"))
	if resp, body := answer(t, r); resp.StatusCode != 200 || body != "echo answer you said c" {
		t.Errorf("after the others: %d %s", resp.StatusCode, body)
	}
	// What is refused or wrong gives its place back.
	for range 3 {
		io.WriteString(third, rawEcho("?"))
		if resp, _ := answer(t, r); resp.StatusCode != 400 {
			t.Errorf("%d", resp.StatusCode)
		}
	}
	if n := g.turns.Load(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

func TestTooManyConnections(t *testing.T) {
	g := open(t, say, func(cfg *Config) { cfg.MaxConnections = 2 })
	served := []net.Conn{dial(t, g), dial(t, g)}
	for _, conn := range served {
		io.WriteString(conn, rawEcho("hi"))
		answer(t, bufio.NewReader(conn))
	}
	for i := range 100 { // more than are told so at once; some bodies are never read
		got := exchange(t, g, strings.Replace(rawEcho(strings.Repeat("x", i<<11)), "/echo", "//v1//echo", 1))
		if !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.HasSuffix(got, "\r\n\r\necho error 503 overloaded") || !strings.Contains(got, "Retry-After:") {
			t.Fatalf("got %q", got)
		}
	}
	if got := exchange(t, g, "nonsense\r\n\r\n"); got != "" {
		t.Errorf("got %q", got)
	}
	served[0].Close()
	await(t, "a free place", func() bool { return g.served.Load() == 1 })
	io.WriteString(served[1], rawEcho("hi"))
	answer(t, bufio.NewReader(served[1]))
	if resp, body := do(t, client(t), echoRequest(t, t.Context(), g, "hi")); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// Many connections over the limit that send nothing do not keep Close waiting.
func TestCloseWithRefusedConnections(t *testing.T) {
	g := open(t, say, func(cfg *Config) { cfg.MaxConnections = 1 })
	for range 2 * maxRefusals {
		dial(t, g)
	}
	await(t, "refusals", func() bool { return len(g.refusals) == maxRefusals })
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
