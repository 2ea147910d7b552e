package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// A turn is one request with a Session, from its admission until the Session is done with it.
type turn struct {
	gateway *Gateway
	session Session
	// ctx ends when the client leaves, the gateway closes or the turn ends.
	ctx     context.Context
	cancel  context.CancelCauseFunc
	unwatch func()
	client  *clientConn // nil in tests without a connection
}

// admit finds a place for the request of a head. The turn must end before the connection reads
// its next request.
func (g *Gateway) admit(ctx *fasthttp.RequestCtx, h *head) (*turn, *wire.Error) {
	if g.turns.Add(1) > int64(g.cfg.MaxRequests) {
		g.turns.Add(-1)
		return nil, overloaded("requests", g.cfg.MaxRequests)
	}
	t := &turn{gateway: g, session: h.session, unwatch: func() {}}
	t.ctx, t.cancel = context.WithCancelCause(g.ctx)
	if c, ok := ctx.Conn().(*clientConn); ok {
		t.client = c
		t.unwatch = g.watcher.watch(c.TCPConn, func() { t.cancel(ErrClientLeft) })
	}
	return t, nil
}

// end must be called exactly once.
func (t *turn) end() {
	t.unwatch()
	t.cancel(context.Canceled)
	t.gateway.turns.Add(-1)
}

// complete makes the turn and ends it: nothing of it waits for the client to read the answer.
func (t *turn) complete(req *canon.Request) (*wire.Completion, *wire.Error) {
	defer t.end()
	completion, e := t.session.Complete(t.ctx, req)
	if e == nil && completion == nil {
		e = noResult()
	}
	return completion, e
}

func noResult() *wire.Error {
	return wire.Internal("the request ended without a result; the engine's log has the cause")
}

// turn answers a request for a model turn.
func (g *Gateway) turn(ctx *fasthttp.RequestCtx, h *head) {
	t, e := g.admit(ctx, h)
	if e != nil {
		fail(ctx, h.dialect, e)
		return
	}
	req, e := g.read(ctx, t.session.Cache(), h.dialect.Parse)
	if e != nil {
		t.session.Refused(e)
		t.end()
		fail(ctx, h.dialect, e)
		return
	}
	if req.Stream {
		g.stream(ctx, h.dialect, t, req)
		return
	}
	completion, e := t.complete(req)
	if e != nil {
		fail(ctx, h.dialect, e)
		return
	}
	if completion.Divergence != "" {
		ctx.Response.Header.Set("x-relax-divergence", shownDivergence(completion))
	}
	ctx.SetContentType("application/json")
	buf := answers.Get().(*[]byte)
	*buf = h.dialect.AppendAnswer((*buf)[:0], completion)
	ctx.SetBody(*buf)
	answers.Put(buf)
	t.watchWrite(completion)
}

// watchWrite tells the Session if the answer, which is written after the handler returned,
// does not reach its client.
func (t *turn) watchWrite(completion *wire.Completion) {
	if t.client != nil && completion != nil {
		t.client.failed = func() { t.session.Undelivered(completion) }
	}
}

// written lets go of an answer, and of the Session behind it, once it is flushed: the connection
// may idle for longer than that lives, and its next write is another answer's.
func written(c net.Conn, state fasthttp.ConnState) {
	if c, ok := c.(*clientConn); ok && state == fasthttp.StateIdle {
		c.failed = nil
	}
}

// shownDivergence is a completion's divergence as one short line of visible ASCII.
func shownDivergence(c *wire.Completion) string { return printable([]byte(c.Divergence), 512) }

var answers = sync.Pool{New: func() any { return new([]byte) }}

// count answers how many tokens a Messages request has.
func (g *Gateway) count(ctx *fasthttp.RequestCtx, h *head) {
	t, e := g.admit(ctx, h)
	if e != nil {
		fail(ctx, h.dialect, e)
		return
	}
	defer t.end()
	req, e := g.read(ctx, t.session.Cache(), wire.ParseCountTokens)
	if e != nil {
		fail(ctx, h.dialect, e)
		return
	}
	n, e := t.session.CountTokens(t.ctx, req)
	if e != nil {
		fail(ctx, h.dialect, e)
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBodyString(`{"input_tokens":` + strconv.Itoa(n) + `}`)
}

// A parser reads a request body, as [wire.Dialect] has it.
type parser func(body []byte, cache *canon.Cache) (*canon.Request, *wire.Error)

// read parses the body and lets go of it: the request waits perhaps for hours, its bytes must
// not.
func (g *Gateway) read(ctx *fasthttp.RequestCtx, cache *canon.Cache, parse parser) (*canon.Request, *wire.Error) {
	body, e := g.body(ctx)
	if e != nil {
		return nil, e
	}
	req, e := parse(body, cache)
	if e != nil {
		return nil, e
	}
	ctx.Request.ResetBody()
	req.Retry = retry(&ctx.Request.Header)
	if len(req.Ignored) > 0 {
		ctx.Response.Header.Set("x-relax-ignored", printable([]byte(strings.Join(req.Ignored, ", ")), 1024))
	}
	return req, nil
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
