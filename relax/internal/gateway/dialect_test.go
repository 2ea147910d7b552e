package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

func TestDialectOf(t *testing.T) {
	for path, want := range map[string]wire.Dialect{
		"/agentic_api":                          wire.Chat,
		"/agentic_api/v1":                       wire.Chat,
		"/agentic_api/v1/chat/completions":      wire.Chat,
		"/agentic_api/chat/completions/x":       wire.Chat,
		"/agentic_api/responses":                wire.Responses,
		"/agentic_api/v1/responses/resp_1":      wire.Responses,
		"/agentic_api/v1/messages":              wire.Messages,
		"/agentic_api/messages/count_tokens":    wire.Messages,
		"/agentic_api/v1/v1/messages/batches/1": wire.Messages,
		"/agentic_api/v1/models":                nil,
		"/agentic_api/v1/completions":           nil,
		"/agentic_api/messagesx":                nil,
		"/messages":                             nil,
		"":                                      nil,
	} {
		openAI, anthropic := want, want
		if want == nil { // the client decides
			openAI, anthropic = wire.Chat, wire.Messages
		}
		if got := dialectOf(path, false); got != openAI {
			t.Errorf("%q: %T", path, got)
		}
		if got := dialectOf(path, true); got != anthropic {
			t.Errorf("%q of an Anthropic client: %T", path, got)
		}
	}
}

// protocols are the paths of turns with a body that says "hi".
var protocols = []struct {
	path    string
	dialect wire.Dialect
	body    string
}{
	{"", wire.Chat, `{"messages":[{"role":"user","content":"hi"}]`},
	{"/v1/chat/completions", wire.Chat, `{"messages":[{"role":"user","content":"hi"}]`},
	{"/responses", wire.Responses, `{"model":"m","input":"hi"`},
	{"//v1/responses", wire.Responses, `{"model":"m","input":[{"role":"user","content":"hi"}]`},
	{"/v1/messages?beta=true", wire.Messages, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`},
	{"//messages", wire.Messages, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`},
}

// Every protocol's answers and streams are those its dialect writes.
func TestProtocols(t *testing.T) {
	g := open(t, func(_ context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		c := completion("you said " + req.Messages[0].Content)
		c.Spelling = req.Spelling
		return c, nil
	}, nil)
	conn := dial(t, g)
	r := bufio.NewReader(conn)
	for _, p := range protocols {
		for body, kind := range map[string]string{p.body + "}": "application/json", p.body + `,"stream":true}`: "text/event-stream; charset=utf-8"} {
			io.WriteString(conn, rawHead(p.path, fmt.Sprint("Content-Length: ", len(body)))+body)
			resp, got := answer(t, r)
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != kind || !strings.Contains(got, "you said hi") {
				t.Errorf("%s %s: %d %v %s", p.path, kind, resp.StatusCode, resp.Header, got)
			}
			if named := resp.Header.Get("request-id") == resp.Header.Get("x-request-id"); named != (p.dialect == wire.Messages) {
				t.Errorf("%s: %v", p.path, resp.Header)
			}
			if stream := kind != "application/json"; stream && !strings.HasPrefix(got, p.dialect.Connected()) {
				t.Errorf("%s: the stream begins with %.100q", p.path, got)
			}
		}
	}
}

// What is wrong before a dialect reads the body is said in that dialect, however the body comes.
func TestEarlyErrorsSpeakTheDialect(t *testing.T) {
	g := open(t, noTurn(t), func(cfg *Config) { cfg.MaxBodyBytes = 2 << 20 })
	over := g.cfg.MaxBodyBytes + 1
	bodies := map[string][2]string{
		"declared":          {fmt.Sprint("Content-Length: ", over), ""},
		"declared, waiting": {fmt.Sprint("Content-Length: ", over, "\r\nExpect: 100-continue"), ""},
		"chunked":           {"Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n", over)},
		"small":             {"Content-Length: 2\r\nConnection: close", "{}"},
		"small, packed":     {"Content-Length: 2\r\nConnection: close\r\nContent-Encoding: lzw", "{}"},
	}
	for _, p := range append(protocols, struct {
		path    string
		dialect wire.Dialect
		body    string
	}{"/v1/messages/count_tokens", wire.Messages, ""}) {
		for name, body := range bodies {
			ours := rawHead(p.path, body[0]) + body[1]
			for raw, want := range map[string]*wire.Error{
				strings.Replace(ours, token, "unknown-session", 1): wire.SessionDiscarded(),
				strings.Replace(ours, "Authorization", "X-Other", 1): wire.Unauthorized(
					`the Authorization header is missing: send "Authorization: Bearer <RELAX_SESSION_ID>"`),
				strings.Replace(ours, "POST", "PATCH", 1): {Status: 405, Type: "invalid_request_error", Code: "method_not_allowed",
					Message: "method PATCH is not allowed here; use POST"},
				ours: earlyError(name, g.cfg.MaxBodyBytes),
			} {
				if want == nil {
					continue
				}
				got := exchange(t, g, raw)
				if !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", want.Status)) || !strings.HasSuffix(got, "\r\n\r\n"+string(p.dialect.AppendError(nil, want))) {
					t.Errorf("%s to %s: got %s", name, p.path, got)
				}
				if allow := strings.Contains(got, "Allow: POST"); allow != (want.Status == http.StatusMethodNotAllowed) {
					t.Errorf("%s to %s: got %s", name, p.path, got)
				}
			}
		}
	}
}

// earlyError is what the bodies of the test above get with everything else right.
func earlyError(name string, limit int) *wire.Error {
	switch name {
	case "small":
		return nil
	case "small, packed":
		return &wire.Error{Status: 415, Type: "invalid_request_error", Code: "unsupported_encoding", Param: "body",
			Message: "this Content-Encoding is not supported; use gzip, deflate, br, zstd or none"}
	}
	return tooLarge(limit)
}

// One list and one card for all SDKs: checked by hand against openai 3.57 and anthropic 2.14
// with strict validation.
func TestModels(t *testing.T) {
	const card = `{"id":"qwen","object":"model","created":0,"owned_by":"relax","type":"model","display_name":"qwen","created_at":"1970-01-01T00:00:00Z","lifecycle":"active"}`
	for name, want := range map[string][2]string{
		"qwen": {`{"object":"list","data":[` + card + `],"has_more":false,"first_id":"qwen","last_id":"qwen","models":[]}`, card},
		"":     {`{"object":"list","data":[],"has_more":false,"first_id":null,"last_id":null,"models":[]}`, string(wire.Chat.AppendError(nil, notFound("no such model; GET %s/v1/models lists what there is", prefix)))},
	} {
		g := open(t, noTurn(t), func(cfg *Config) { cfg.Model = name })
		for i, path := range []string{"models", "v1/models/qwen"} {
			req, err := http.NewRequestWithContext(t.Context(), "GET", g.BaseURL()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, body := do(t, client(t), req); string(body) != want[i] {
				t.Errorf("%s of %q: %s", path, name, body)
			}
		}
	}
}

func TestCountTokens(t *testing.T) {
	g := open(t, noTurn(t), nil)
	conn := dial(t, g)
	r := bufio.NewReader(conn)
	for raw, want := range map[string]string{
		rawCount("seven77"): `{"input_tokens":7}`, // without max_tokens
		strings.Replace(rawCount("seven77"), "/messages", "/v1/messages", 1): `{"input_tokens":7}`,
		rawCount("fail"): string(wire.Messages.AppendError(nil, wire.ContextLength(8, 9))),
	} {
		io.WriteString(conn, raw)
		if resp, got := answer(t, r); got != want || (resp.StatusCode == 200) != strings.Contains(want, "input_tokens") {
			t.Errorf("%s: %d %s", raw, resp.StatusCode, got)
		}
	}
	io.WriteString(conn, rawHead("/messages/count_tokens", "Content-Length: 2")+"{}")
	if resp, got := answer(t, r); resp.StatusCode != 400 || !strings.Contains(got, "messages") {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	if n := g.turns.Load(); n != 0 {
		t.Errorf("%d requests are under way", n)
	}
}

func TestRetryHeaders(t *testing.T) {
	var got canon.Retry
	g := open(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		got = req.Retry
		return say(ctx, req)
	}, nil)
	conn := dial(t, g)
	r := bufio.NewReader(conn)
	for lines, want := range map[string]canon.Retry{
		"X-Other: 1":                                           {},
		"X-Stainless-Retry-Count: 0":                           {},
		"x-stainless-retry-count: 2":                           {Attempt: 2},
		"X-Stainless-Retry-Count: -1":                          {},
		"X-Stainless-Retry-Count: x":                           {},
		"X-Stainless-Retry-Count: 99999999999999999999":        {},
		"Idempotency-Key: stainless-1":                         {Key: "stainless-1"},
		"Idempotency-Key:  a b \r\nX-Stainless-Retry-Count: 1": {Attempt: 1, Key: "a b"},
		"Idempotency-Key: " + strings.Repeat("k", 3000) + "1":  {Key: strings.Repeat("k", 3000) + "1"},
	} {
		io.WriteString(conn, rawHead("/echo", lines, "Content-Length: 1")+"x")
		if resp, _ := answer(t, r); resp.StatusCode != 200 || got != want {
			t.Errorf("%.100q: %d %.100v", lines, resp.StatusCode, got)
		}
	}
}

func TestDivergenceHeader(t *testing.T) {
	divergence := ""
	g := open(t, func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) {
		c := completion("ok")
		c.Divergence = divergence
		return c, nil
	}, nil)
	conn := dial(t, g)
	r := bufio.NewReader(conn)
	for _, test := range []struct{ divergence, want string }{
		{"", ""},
		{"messages[2].content: \"a\r\nb\" is not \"caf\u00e9\"", `messages[2].content: "ab" is not "caf"`},
		{strings.Repeat("long ", 1000), strings.TrimSpace(strings.Repeat("long ", 1000)[:512])},
	} {
		divergence = test.divergence
		io.WriteString(conn, rawEcho("x"))
		resp, _ := answer(t, r)
		if got, sent := resp.Header["X-Relax-Divergence"]; sent != (test.want != "") || sent && got[0] != test.want {
			t.Errorf("got %q", got)
		}
		io.WriteString(conn, rawHead("/v1/chat/completions", fmt.Sprint("Content-Length: ", len(chatBody("x", true))))+chatBody("x", true))
		_, body := answer(t, r)
		comment := "\n\n: x-relax-divergence: " + test.want + "\n\ndata: "
		if strings.Contains(body, comment) != (test.want != "") {
			t.Errorf("divergence %q: the stream is %q", test.divergence, body)
		}
	}
}
