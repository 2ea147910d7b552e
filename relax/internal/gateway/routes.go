package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// retryAfter is when a client that gets 503 may come again, in seconds.
const retryAfter = "1"

// A route is what a path means: the methods it takes, whether it needs a Session, and what
// answers the first method.
type route struct {
	methods []string
	session bool
	serve   func(g *Gateway, ctx *fasthttp.RequestCtx, h *head)
}

var (
	posted  = []string{http.MethodPost}
	fetched = []string{http.MethodGet, http.MethodHead}
)

// routes has the paths below the prefix without /v1 and without a slash at the end.
var routes = map[string]route{
	// Claude Code asks for the bare base with HEAD to see whether somebody is there.
	"":                       {[]string{http.MethodPost, http.MethodHead}, true, (*Gateway).turn},
	"/chat/completions":      {posted, true, (*Gateway).turn},
	"/responses":             {posted, true, (*Gateway).turn},
	"/messages":              {posted, true, (*Gateway).turn},
	"/messages/count_tokens": {posted, true, (*Gateway).count},
	"/models":                {fetched, false, (*Gateway).models},
	"/health":                {fetched, false, (*Gateway).health},
	"/healthz":               {fetched, false, (*Gateway).health},
}

// below returns what follows the prefix and /v1, without a slash at the end. A base URL that
// ends in /v1 and an SDK that adds it make two of them.
func below(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok || (rest != "" && rest[0] != '/') {
		return "", false
	}
	rest = strings.TrimRight(rest, "/")
	for rest == "/v1" || strings.HasPrefix(rest, "/v1/") {
		rest = rest[len("/v1"):]
	}
	return rest, true
}

// find returns the route of a path. fasthttp has collapsed double slashes in it already.
func find(path string) (route, bool) {
	rest, ok := below(path)
	if !ok {
		return route{}, false
	}
	if id, ok := strings.CutPrefix(rest, "/models/"); ok && id != "" {
		return route{fetched, false, (*Gateway).model}, true
	}
	r, ok := routes[rest]
	return r, ok
}

// dialects are by the first name of a path below the prefix.
var dialects = map[string]wire.Dialect{"": wire.Chat, "chat": wire.Chat, "responses": wire.Responses, "messages": wire.Messages}

// dialectOf returns the dialect errors about a path are spelled in, whether or not there is
// such a path. anthropic says that the client sent the header only Anthropic's SDKs send.
func dialectOf(path string, anthropic bool) wire.Dialect {
	rest, ok := below(path)
	first, _, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if d := dialects[first]; ok && d != nil {
		return d
	}
	if anthropic {
		return wire.Messages
	}
	return wire.Chat
}

// serve answers one request.
func (g *Gateway) serve(ctx *fasthttp.RequestCtx) {
	h := g.take(ctx)
	h.stamp(ctx)
	if h.fault != nil {
		fail(ctx, h.dialect, h.fault)
		return
	}
	if h.route.session && ctx.IsHead() {
		ctx.SetContentType("application/json")
		return
	}
	h.route.serve(g, ctx, h)
}

// expect answers Expect: 100-continue: a body that will be refused need not be sent.
func (g *Gateway) expect(ctx *fasthttp.RequestCtx) int {
	h := g.take(ctx)
	e := h.fault
	if e == nil && ctx.Request.Header.ContentLength() > h.limit {
		e = tooLarge(h.limit)
	}
	if e == nil {
		g.putBack(ctx, h)
		return fasthttp.StatusContinue
	}
	linger(ctx)
	h.stamp(ctx)
	fail(ctx, h.dialect, e)
	return e.Status
}

// refuse answers what could not be read as a request.
func (g *Gateway) refuse(ctx *fasthttp.RequestCtx, err error) {
	linger(ctx)
	h := g.take(ctx)
	h.stamp(ctx)
	ctx.SetConnectionClose()
	var small *fasthttp.ErrSmallBuffer
	var network net.Error
	switch {
	case h.fault != nil:
		fail(ctx, h.dialect, h.fault)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		fail(ctx, h.dialect, tooLarge(h.limit))
	case errors.As(err, &small):
		fail(ctx, h.dialect, headersTooLarge())
	case errors.As(err, &network) && network.Timeout():
		fail(ctx, h.dialect, &wire.Error{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: "request_timeout",
			Message: fmt.Sprintf("the request did not arrive in time: its headers have %v, its body as long again "+
				"and a second more for each 64 KiB that came", g.cfg.ReadTimeout)})
	default:
		fail(ctx, h.dialect, wire.Invalid("body", "the request could not be read as HTTP/1.1, or ended before its body did"))
	}
}

// linger makes a connection read on for a while after its answer.
func linger(ctx *fasthttp.RequestCtx) {
	if c, ok := ctx.Conn().(*clientConn); ok {
		c.linger = true
	}
}

func headersTooLarge() *wire.Error {
	return &wire.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Type: "invalid_request_error", Code: "headers_too_large",
		Message: fmt.Sprintf("the request headers are larger than %d KB or more than %d", maxHeaderBytes>>10, maxHeaders)}
}

func tooLarge(limit int) *wire.Error {
	e := wire.BodyTooLarge(limit)
	e.Message += "; option max_body_bytes sets the limit"
	if limit == chunkedBody {
		e.Message += ", which is lower for a body sent without Content-Length"
	}
	return e
}

func notFound(format string, args ...any) *wire.Error {
	return &wire.Error{Status: http.StatusNotFound, Type: "not_found_error", Code: "not_found", Message: fmt.Sprintf(format, args...)}
}

// fail writes an error in the shape of a dialect.
func fail(ctx *fasthttp.RequestCtx, d wire.Dialect, e *wire.Error) {
	h := &ctx.Response.Header
	ctx.SetStatusCode(e.Status)
	ctx.SetContentType("application/json")
	if e.Retry != nil {
		h.Set("x-should-retry", strconv.FormatBool(*e.Retry))
	}
	if e.Status == http.StatusServiceUnavailable {
		h.Set(fasthttp.HeaderRetryAfter, retryAfter)
	}
	ctx.SetBody(d.AppendError(nil, e))
}
