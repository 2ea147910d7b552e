package gateway

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// TestMain looks for leaked goroutines, except of benchmarks, whose fasthttp clients leave some.
func TestMain(m *testing.M) {
	flag.Parse()
	dialects["echo"] = echo{}
	routes["/echo"] = route{posted, true, (*Gateway).turn}
	if flag.Lookup("test.bench").Value.String() != "" {
		os.Exit(m.Run())
	}
	// The tests, not the gateway, compress with fasthttp, which keeps workers for it.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/valyala/fasthttp/stackless.funcWorker"))
}

// token is the only session there is.
const token = "session-secret-0123456789abcdef"

// A fake is a handler with one Session; complete answers its turns. It counts the bytes of the
// first message as tokens.
type fake struct {
	cache       *canon.Cache
	undelivered chan *wire.Completion // nil: not asked for
	refused     chan *wire.Error      // nil: not asked for
	complete    func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error)
}

func (f *fake) Session(t string) (Session, bool) { return f, t == token }
func (f *fake) Cache() *canon.Cache              { return f.cache }
func (f *fake) Undelivered(answer *wire.Completion) {
	if f.undelivered != nil {
		f.undelivered <- answer
	}
}
func (f *fake) Refused(e *wire.Error) {
	if f.refused != nil {
		f.refused <- e
	}
}
func (f *fake) Complete(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
	return f.complete(ctx, req)
}

func (f *fake) CountTokens(_ context.Context, req *canon.Request) (int, *wire.Error) {
	if req.Messages[0].Content == "fail" {
		return 0, wire.ContextLength(8, 9)
	}
	return len(req.Messages[0].Content), nil
}

// echo is a dialect none of whose words another has. Its body is the text of one message; a
// stream is asked for with a first "!", and "?" is wrong.
type echo struct{}

func (echo) Parse(body []byte, _ *canon.Cache) (*canon.Request, *wire.Error) {
	if string(body) == "?" {
		return nil, wire.Invalid("text", "no questions")
	}
	text, stream := strings.CutPrefix(string(body), "!")
	return &canon.Request{Stream: stream, Messages: []*canon.Message{canon.NewMessage(canon.Message{Role: canon.User, Content: text})}}, nil
}

func (echo) AppendAnswer(dst []byte, c *wire.Completion) []byte {
	return fmt.Appendf(dst, "echo answer %s", c.Message.Content)
}
func (echo) AppendError(dst []byte, e *wire.Error) []byte {
	return fmt.Appendf(dst, "echo error %d %s", e.Status, e.Code)
}
func (echo) Connected() string { return "echo connected\n" }
func (echo) Heartbeat() string { return "echo heartbeat\n" }
func (echo) AppendStream(dst []byte, c *wire.Completion) []byte {
	return fmt.Appendf(dst, "echo stream %s", c.Message.Content)
}
func (echo) AppendStreamError(dst []byte, e *wire.Error) []byte {
	return fmt.Appendf(dst, "echo stream error %d %s", e.Status, e.Code)
}

// say answers with the text of the last message.
func say(_ context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
	return completion("you said " + req.Messages[len(req.Messages)-1].Content), nil
}

func completion(text string) *wire.Completion {
	return &wire.Completion{
		ID: "1", Created: 5, Model: "m", FinishReason: wire.FinishStop, PromptTokens: 3, CompletionTokens: 2,
		Message: canon.NewMessage(canon.Message{Role: canon.Assistant, Content: text}),
	}
}

// parked answers when the turn's context ends and reports its cause.
type parked struct {
	waiting chan struct{} // one value for each turn that began
	causes  chan error    // one value for each turn that ended
}

func newParked() *parked {
	return &parked{waiting: make(chan struct{}, 5000), causes: make(chan error, 5000)}
}

func (p *parked) complete(ctx context.Context, _ *canon.Request) (*wire.Completion, *wire.Error) {
	p.waiting <- struct{}{}
	<-ctx.Done()
	p.causes <- context.Cause(ctx)
	return nil, wire.Disconnected()
}

// open returns a running gateway.
func open(t testing.TB, complete func(context.Context, *canon.Request) (*wire.Completion, *wire.Error), change func(*Config)) *Gateway {
	t.Helper()
	cfg := Config{
		Handler: &fake{cache: canon.NewCache(1 << 20), complete: complete},
		Goroutines: safego.New(func(name string, v any, stack []byte) {
			t.Errorf("panic in %s: %v\n%s", name, v, stack)
		}),
		Log: func(text string) { t.Log(text) },
	}
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return g
}

// client returns an HTTP client whose connections end with the test.
func client(t testing.TB) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// address is where the gateway listens.
func (g *Gateway) address() string { return g.ln.Addr().String() }

func chatBody(text string, stream bool) string {
	body := `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]`
	if stream {
		body += `,"stream":true`
	}
	return body + "}"
}

// post makes a turn request with a credential.
func post(t testing.TB, ctx context.Context, g *Gateway, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", g.BaseURL()+"v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return req
}
