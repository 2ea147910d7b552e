package gateway

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// chat answers a Chat Completions request.
func (g *Gateway) chat(ctx *fasthttp.RequestCtx) {
	session, req, e := g.read(ctx)
	if e != nil {
		fail(ctx, e)
		return
	}
	// The request waits perhaps for hours; its bytes must not.
	ctx.Request.ResetBody()
	setIgnored(ctx, req)
	if req.Stream {
		g.stream(ctx, session, req)
		return
	}
	turn, stop := g.turnContext(ctx)
	defer stop()
	completion, e := session.Complete(turn, req)
	if e == nil && completion == nil {
		e = noResult()
	}
	if e != nil {
		fail(ctx, e)
		return
	}
	ctx.SetContentType("application/json")
	buf := answers.Get().(*[]byte)
	*buf = wire.Chat.AppendAnswer((*buf)[:0], completion)
	ctx.SetBody(*buf)
	answers.Put(buf)
}

var answers = sync.Pool{New: func() any { return new([]byte) }}

func noResult() *wire.Error {
	return wire.Internal("the request ended without a result; the engine's log has the cause")
}

// read finds the Session and then parses the body, so that a stranger's bytes are not parsed.
func (g *Gateway) read(ctx *fasthttp.RequestCtx) (Session, *canon.Request, *wire.Error) {
	token, e := credential(&ctx.Request.Header)
	if e != nil {
		return nil, nil, e
	}
	session, ok := g.cfg.Handler.Session(token)
	if !ok {
		return nil, nil, wire.SessionDiscarded()
	}
	body, e := g.body(ctx)
	if e != nil {
		return nil, nil, e
	}
	req, e := wire.Chat.Parse(body, session.Cache())
	return session, req, e
}

// body returns the request's body, decompressed within the limit. It is valid until the
// request's body is reset.
func (g *Gateway) body(ctx *fasthttp.RequestCtx) ([]byte, *wire.Error) {
	encoding := ctx.Request.Header.ContentEncoding()
	if len(encoding) == 0 || strings.EqualFold(string(encoding), "identity") {
		return ctx.Request.Body(), nil
	}
	body, err := ctx.Request.BodyUncompressedWithLimit(g.cfg.MaxBodyBytes)
	switch {
	case err == nil:
		return body, nil
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return nil, tooLarge(g.cfg.MaxBodyBytes)
	case errors.Is(err, fasthttp.ErrContentEncodingUnsupported):
		return nil, &wire.Error{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: "unsupported_encoding", Param: "body",
			Message: "this Content-Encoding is not supported; use gzip, deflate, br, zstd or none"}
	}
	return nil, wire.Invalid("body", "the body is not valid %s: %v", shortToken(string(encoding)), err)
}

// setIgnored lists the request's fields that had no effect.
func setIgnored(ctx *fasthttp.RequestCtx, req *canon.Request) {
	if len(req.Ignored) > 0 {
		ctx.Response.Header.Set("x-relax-ignored", printable([]byte(strings.Join(req.Ignored, ", ")), 1024))
	}
}

// stream answers with a buffered event stream: a comment at once, one more at each heartbeat,
// and the entire turn in one block. The status is 200 from here on.
func (g *Gateway) stream(ctx *fasthttp.RequestCtx, session Session, req *canon.Request) {
	h := &ctx.Response.Header
	h.SetContentType("text/event-stream; charset=utf-8")
	h.Set(fasthttp.HeaderCacheControl, "no-cache")
	h.Set("X-Accel-Buffering", "no")

	turn, stop := g.turnContext(ctx)
	ticker := time.NewTicker(g.cfg.Heartbeat)
	s := &eventStream{
		pending: []byte(wire.Chat.Connected()),
		beat:    ticker.C,
		result:  make(chan []byte, 1),
		done:    make(chan struct{}),
	}
	s.end = func() { stop(); ticker.Stop() }
	g.spawn("gateway-stream", func() {
		defer close(s.done) // also after a panic
		completion, e := session.Complete(turn, req)
		if e == nil && completion == nil {
			e = noResult()
		}
		if e != nil {
			s.result <- wire.Chat.AppendStreamError(nil, e)
			return
		}
		s.result <- wire.Chat.AppendStream(nil, completion)
	})
	ctx.Response.SetBodyStream(s, -1)
}

// An eventStream is the body of a stream as the connection's own goroutine reads it; fasthttp
// flushes after each Read.
type eventStream struct {
	pending []byte
	last    bool // nothing follows pending
	beat    <-chan time.Time
	result  chan []byte
	done    chan struct{}
	end     func()
}

// Read returns the next bytes, waiting for them.
func (s *eventStream) Read(p []byte) (int, error) {
	for len(s.pending) == 0 {
		if s.last {
			return 0, io.EOF
		}
		select {
		case s.pending = <-s.result:
			s.last = true
		case <-s.done:
			s.finish()
		case <-s.beat:
			s.pending = []byte(wire.Chat.Heartbeat())
		}
	}
	n := copy(p, s.pending)
	s.pending = s.pending[n:]
	return n, nil
}

// finish takes the result of a turn that ended, which a panic leaves out.
func (s *eventStream) finish() {
	s.last = true
	select {
	case s.pending = <-s.result:
	default:
		s.pending = wire.Chat.AppendStreamError(nil, noResult())
	}
}

// Close ends the turn and waits for it, so that nothing of it outlives the request.
func (s *eventStream) Close() error {
	s.end()
	<-s.done
	return nil
}
