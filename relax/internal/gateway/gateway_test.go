package gateway

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// errorOf reads an error answer.
func errorOf(t *testing.T, body []byte) (code, message string) {
	t.Helper()
	var shape struct {
		Error *struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal(body, &shape); err != nil || shape.Error == nil || shape.Error.Message == "" {
		t.Fatalf("no error object: %s", body)
	}
	return shape.Error.Code, shape.Error.Message
}

func do(t *testing.T, c *http.Client, req *http.Request) (*http.Response, []byte) {
	t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

func TestRoutes(t *testing.T) {
	g := open(t, say, func(cfg *Config) {
		cfg.Model = "qwen/x"
		cfg.Health = func() map[string]int { return map[string]int{"sessions": 3} }
	})
	c := client(t)
	chat := chatBody("hi", false)
	for _, test := range []struct {
		method, path, body string
		status             int
		contains           string
	}{
		{"POST", "/agentic_api/", chat, 200, "you said hi"},
		{"POST", "/agentic_api", chat, 200, "you said hi"},
		{"POST", "/agentic_api/v1", chat, 200, "you said hi"},
		{"POST", "/agentic_api/chat/completions", chat, 200, "you said hi"},
		{"POST", "/agentic_api/v1/chat/completions", chat, 200, "you said hi"},
		{"POST", "/agentic_api//v1//chat/completions/", chat, 200, "you said hi"},
		{"POST", "/agentic_api//chat/completions?x=1", chat, 200, "you said hi"},
		{"HEAD", "/agentic_api/", "", 200, ""},
		{"HEAD", "/agentic_api", "", 200, ""},
		{"HEAD", "/agentic_api/v1/", "", 200, ""},
		{"HEAD", "/agentic_api/v1/messages", "", 405, ""},
		{"POST", "/agentic_api/v1/echo?beta=true", "hi", 200, "echo answer you said hi"},
		{"POST", "/agentic_api/v1/v1/echo", "hi", 200, "echo answer you said hi"},
		{"POST", "/agentic_api//messages/count_tokens", chat, 200, `{"input_tokens":2}`},
		{"GET", "/agentic_api/v1/models?limit=5", "", 200, `"id":"qwen/x"`},
		{"GET", "/agentic_api/models/qwen/x", "", 200, `"id":"qwen/x"`},
		{"GET", "/agentic_api/models/other", "", 404, "no such model"},
		{"GET", "/agentic_api/health", "", 200, `"sessions":3`},
		{"GET", "/agentic_api/healthz", "", 200, `"ok":true`},
		{"HEAD", "/agentic_api/healthz", "", 200, ""},
		{"GET", "/agentic_api/chat/completions", "", 405, "use POST"},
		{"POST", "/agentic_api/models", "", 405, "use GET"},
		{"GET", "/agentic_api/", "", 405, "use POST"},
		{"GET", "/agentic_api/v1/responses/resp_1", "", 404, "no such path"},
		{"GET", "/agentic_api/nope", "", 404, "no such path"},
		{"GET", "/agentic_apix/models", "", 404, "no such path"},
		{"POST", "/v1/chat/completions", chat, 404, "/agentic_api/"},
		{"GET", "/", "", 404, "no such path"},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			req, err := http.NewRequest(test.method, "http://"+g.address()+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("x-request-id", "mine")
			resp, body := do(t, c, req)
			if resp.StatusCode != test.status || !strings.Contains(string(body), test.contains) {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
			if got := resp.Header.Get("x-request-id"); got != "mine" {
				t.Errorf("x-request-id %q", got)
			}
			if ct := resp.Header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("content type %q", ct)
			}
			if test.status == 405 && resp.Header.Get("Allow") == "" {
				t.Error("no Allow header")
			}
			if test.status >= 400 && test.method != "HEAD" {
				errorOf(t, body)
			}
			if strings.Contains(string(body), token) {
				t.Error("the answer names the session")
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	g := open(t, say, nil)
	c := client(t)
	for _, test := range []struct {
		name, header, value string
		status              int
		code                string
	}{
		{"bearer", "Authorization", "Bearer " + token, 200, ""},
		{"lower case", "Authorization", "bearer " + token, 200, ""},
		{"api key", "x-api-key", token, 200, ""},
		{"missing", "X-Other", "x", 401, "authentication_error"},
		{"basic", "Authorization", "Basic abc", 401, "authentication_error"},
		{"no token", "Authorization", "Bearer ", 401, "authentication_error"},
		{"unknown", "Authorization", "Bearer unknown-session-token", 404, "session_discarded"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// A body that is wrong must not matter before the credential does.
			content := chatBody("hi", true)
			if test.status != 200 {
				content = "{"
			}
			req := post(t, t.Context(), g, content)
			req.Header.Del("Authorization")
			req.Header.Set(test.header, test.value)
			resp, body := do(t, c, req)
			if resp.StatusCode != test.status {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
			if test.status == 200 {
				return
			}
			if code, _ := errorOf(t, body); code != test.code {
				t.Errorf("code %q", code)
			}
			if strings.Contains(string(body), "unknown-session-token") {
				t.Error("the answer repeats the token")
			}
			if test.status == 404 && resp.Header.Get("x-should-retry") != "false" {
				t.Error("no x-should-retry: false")
			}
		})
	}
}

func TestTurn(t *testing.T) {
	g := open(t, say, nil)
	c := client(t)
	resp, body := do(t, c, post(t, t.Context(), g, `{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"we\nird":1}`))
	var got struct {
		Object  string
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(body, &got); err != nil || got.Object != "chat.completion" || got.Choices[0].Message.Content != "you said hi" {
		t.Errorf("%v %s", err, body)
	}
	if ignored := resp.Header.Get("x-relax-ignored"); ignored != "temperature, weird" {
		t.Errorf("ignored %q", ignored)
	}
	if id := resp.Header.Get("x-request-id"); !strings.HasPrefix(id, "req_") {
		t.Errorf("request id %q", id)
	}
	resp, body = do(t, c, post(t, t.Context(), g, `{"messages":3}`))
	if resp.StatusCode != 400 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestStream(t *testing.T) {
	release := make(chan struct{})
	g := open(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		<-release
		if req.Messages[0].Content == "fail" {
			return nil, wire.ContextLength(8, 9)
		}
		return completion(strings.Repeat("long ", 10000)), nil
	}, func(cfg *Config) { cfg.Heartbeat = time.Millisecond })
	c := client(t)
	for _, text := range []string{"hi", "fail"} {
		resp, err := c.Do(post(t, t.Context(), g, chatBody(text, true)))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" || resp.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
		r := bufio.NewReader(resp.Body)
		// These lines arrive before the turn has its result.
		for _, want := range []string{": connected\n", "\n", ": heartbeat\n", "\n", ": heartbeat\n", "\n"} {
			if line, err := r.ReadString('\n'); err != nil || line != want {
				t.Fatalf("got %q, %v, want %q", line, err, want)
			}
		}
		release <- struct{}{}
		rest, err := io.ReadAll(r)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		rest = bytes.ReplaceAll(rest, []byte(": heartbeat\n\n"), nil)
		want := wire.Chat.AppendStream(nil, completion(strings.Repeat("long ", 10000)))
		if text == "fail" {
			want = wire.Chat.AppendStreamError(nil, wire.ContextLength(8, 9))
		}
		if !bytes.Equal(rest, want) {
			t.Errorf("terminal block is %q", rest)
		}
	}
}

func TestPanicInStreamEndsIt(t *testing.T) {
	panics := make(chan any, 2)
	g := open(t, func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) { panic("broken") }, func(cfg *Config) {
		cfg.Goroutines = safego.New(func(_ string, value any, _ []byte) { panics <- value })
	})
	_, body := do(t, client(t), post(t, t.Context(), g, chatBody("hi", true)))
	if !strings.Contains(string(body), "internal_error") {
		t.Errorf("%s", body)
	}
	// The goroutine's guard hears of it while it unwinds, which may be after the answer.
	if got := <-panics; got != "broken" {
		t.Errorf("the guard heard %v", got)
	}
	if _, err := client(t).Do(post(t, t.Context(), g, chatBody("hi", false))); err == nil {
		t.Error("a panic gave an answer")
	}
}

func TestBodyLimit(t *testing.T) {
	g := open(t, say, func(cfg *Config) { cfg.MaxBodyBytes = 64 << 10 })
	c := client(t)
	huge := chatBody(strings.Repeat("x", 8<<20), false)
	for name, prepare := range map[string]func(*http.Request){
		"content length": func(*http.Request) {},
		"chunked":        func(r *http.Request) { r.ContentLength = -1 },
		"gzip": func(r *http.Request) {
			packed := gzipped(chatBody(strings.Repeat("x", 1<<20), false))
			r.Header.Set("Content-Encoding", "gzip")
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(packed)), int64(len(packed))
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := post(t, t.Context(), g, huge)
			prepare(req)
			resp, body := do(t, c, req)
			_, message := errorOf(t, body)
			if resp.StatusCode != 413 || !strings.Contains(message, "max_body_bytes") {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
}

func gzipped(s string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, s)
	w.Close()
	return b.Bytes()
}

func deflated(plain []byte) []byte {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	w.Write(plain)
	w.Close()
	return b.Bytes()
}

// zstdStored is a frame with one raw block, for at most 255 bytes.
func zstdStored(plain []byte) []byte {
	const singleSegment, last, raw = 0x20, 1, 0
	block := len(plain)<<3 | raw<<1 | last
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, singleSegment, byte(len(plain)), byte(block), byte(block >> 8), byte(block >> 16)}
	return append(frame, plain...)
}

func TestCompressedBodies(t *testing.T) {
	g := open(t, say, nil)
	c := client(t)
	plain := []byte(chatBody("packed", false))
	for encoding, body := range map[string][]byte{
		"gzip": gzipped(string(plain)), "GZIP": gzipped(string(plain)), "deflate": deflated(plain),
		"zstd": zstdStored(plain), "identity": plain,
	} {
		req := post(t, t.Context(), g, string(body))
		req.Header.Set("Content-Encoding", encoding)
		if resp, got := do(t, c, req); resp.StatusCode != 200 || !bytes.Contains(got, []byte("you said packed")) {
			t.Errorf("%s: %d %s", encoding, resp.StatusCode, got)
		}
	}
	for encoding, status := range map[string]int{"gzip": 400, "snappy": 415} {
		req := post(t, t.Context(), g, string(plain))
		req.Header.Set("Content-Encoding", encoding)
		if resp, got := do(t, c, req); resp.StatusCode != status {
			t.Errorf("%s: %d %s", encoding, resp.StatusCode, got)
		}
	}
}

// exchange writes raw bytes and returns all that comes back until the server closes.
func exchange(t *testing.T, g *Gateway, raw string) string {
	t.Helper()
	conn, err := net.Dial("tcp", g.address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func TestRawRequests(t *testing.T) {
	g := open(t, say, nil)
	head := "POST /agentic_api/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n"
	body := chatBody("raw", false)
	chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	whole := fmt.Sprintf("%sContent-Length: %d\r\n", head, len(body))
	last := whole + "Connection: close\r\n\r\n" + body
	for _, test := range []struct{ name, raw, want string }{
		{"length, then chunked", head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, "HTTP/1.1 400"},
		{"chunked, then length", head + "Transfer-Encoding: chunked\r\ncontent-length: 5\r\n\r\n" + chunk, "HTTP/1.1 400"},
		{"chunked", head + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk, "you said raw"},
		{"long headers", head + "X-Long: " + strings.Repeat("y", 60<<10) + last[len(head)-2:], "you said raw"},
		{"too long headers", head + "X-Long: " + strings.Repeat("y", 80<<10) + "\r\n\r\n", "HTTP/1.1 431"},
		{"HTTP/1.0", strings.Replace(last, "/1.1", "/1.0", 1), "you said raw"},
		{"HTTP/1.0 stream", "POST /agentic_api/echo HTTP/1.0\r\nAuthorization: Bearer " + token + "\r\nContent-Length: 3\r\n\r\n!hi", "\r\n\r\necho connected\necho stream you said hi"},
		{"no HTTP", "hello\r\n\r\n", "HTTP/1.1 400"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := exchange(t, g, test.raw); !strings.Contains(got, test.want) {
				t.Errorf("got %.300q", got)
			}
		})
	}
	if got := exchange(t, g, whole+"\r\n"+body+last); strings.Count(got, "you said raw") != 2 {
		t.Errorf("two requests in one write: %q", got)
	}
}

// A parsed request must survive the reuse of the buffer it was read into.
func TestRequestsDoNotShareBytes(t *testing.T) {
	var kept []*canon.Request
	g := open(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		kept = append(kept, req)
		return say(ctx, req)
	}, nil)
	c := client(t)
	text := func(i int) string { return strings.Repeat(string(rune('a'+i)), 3000) }
	for i := range 20 {
		do(t, c, post(t, t.Context(), g, chatBody(text(i), false)))
	}
	for i, req := range kept {
		if req.Messages[0].Content != text(i) {
			t.Errorf("request %d changed", i)
		}
	}
}

func TestCloseEndsParkedTurns(t *testing.T) {
	for _, stream := range []bool{false, true} {
		p := newParked()
		g := open(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
			p.complete(ctx, req)
			return nil, wire.Unavailable("shutting_down", "closing")
		}, nil)
		answer := make(chan string)
		go func() {
			resp, err := client(t).Do(post(t, t.Context(), g, chatBody("hi", stream)))
			if err != nil {
				answer <- err.Error()
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			answer <- string(body)
		}()
		<-p.waiting
		if err := g.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if cause := <-p.causes; !errors.Is(cause, ErrClosed) {
			t.Errorf("cause %v", cause)
		}
		if got := <-answer; !strings.Contains(got, "shutting_down") {
			t.Errorf("answer %q", got)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Errorf("second close: %v", err)
		}
		if _, err := net.Dial("tcp", g.address()); err == nil {
			t.Error("still listening")
		}
	}
}

func TestCloseIsBounded(t *testing.T) {
	stuck, began := make(chan struct{}), make(chan struct{})
	g := open(t, func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) {
		close(began)
		<-stuck
		return completion("late"), nil
	}, nil)
	go client(t).Do(post(t, t.Context(), g, chatBody("hi", false)))
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := g.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(stuck)
}

func TestNewErrors(t *testing.T) {
	good := open(t, say, nil)
	for name, change := range map[string]func(*Config){
		"api_advertise_url": func(c *Config) { c.AdvertiseURL = "host:1" },
		"api_port":          func(c *Config) { c.Port = good.ln.Addr().(*net.TCPAddr).Port },
		"Handler":           func(c *Config) { c.Handler = nil },
	} {
		cfg := Config{Handler: good.cfg.Handler, Goroutines: good.cfg.Goroutines}
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, url := range []string{"https://h/x/", "https://h/x/agentic_api/", "https://h/x"} {
		g := open(t, say, func(c *Config) { c.AdvertiseURL = url })
		if g.BaseURL() != "https://h/x/agentic_api/" {
			t.Errorf("%s: base %q", url, g.BaseURL())
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, path := range []string{"/agentic_api", "/agentic_api/v1/", "/agentic_api/v1/models/a/b", "", "/agentic_api/models/"} {
		f.Add(path, []byte(path))
	}
	f.Fuzz(func(t *testing.T, path string, text []byte) {
		if r, ok := find(path); ok && (r.serve == nil || !strings.HasPrefix(path, prefix)) {
			t.Fatalf("%q", path)
		}
		for _, b := range []byte(printable(text, 40)) {
			if b < ' ' || b > '~' {
				t.Fatalf("%q", b)
			}
		}
	})
}
