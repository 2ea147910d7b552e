package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// A route is what a path means: the method it takes and what answers it.
type route struct {
	method string
	serve  func(g *Gateway, ctx *fasthttp.RequestCtx)
}

var (
	chatRoute   = route{http.MethodPost, (*Gateway).chat}
	modelsRoute = route{http.MethodGet, (*Gateway).models}
	healthRoute = route{http.MethodGet, (*Gateway).health}
	otherRoute  = route{http.MethodPost, (*Gateway).otherDialect}
)

// routes has the paths below the prefix without /v1 and without a slash at the end.
var routes = map[string]route{
	"":                  chatRoute,
	"/chat/completions": chatRoute,
	"/models":           modelsRoute,
	"/health":           healthRoute,
	"/healthz":          healthRoute,
	"/responses":        otherRoute,
	"/messages":         otherRoute,
}

// find returns the route of a path. fasthttp has collapsed double slashes in it already.
func find(path string) (route, bool) {
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok || (rest != "" && rest[0] != '/') {
		return route{}, false
	}
	rest = strings.TrimRight(rest, "/")
	if rest == "/v1" || strings.HasPrefix(rest, "/v1/") {
		rest = rest[len("/v1"):]
	}
	if id, ok := strings.CutPrefix(rest, "/models/"); ok && id != "" {
		return route{http.MethodGet, (*Gateway).model}, true
	}
	r, ok := routes[rest]
	return r, ok
}

// serve answers one request.
func (g *Gateway) serve(ctx *fasthttp.RequestCtx) {
	g.stamp(ctx)
	if g.ctx.Err() != nil {
		ctx.SetConnectionClose()
		fail(ctx, wire.Unavailable("shutting_down", "the rollout engine is closing"))
		return
	}
	if conflictingLength(&ctx.Request.Header) {
		ctx.SetConnectionClose()
		fail(ctx, wire.Invalid("body", "the request has both Content-Length and Transfer-Encoding"))
		return
	}
	r, ok := find(string(ctx.Path()))
	if !ok {
		fail(ctx, notFound("no such path: the base URL of this API ends in %s/ and is followed by chat/completions or v1/chat/completions", prefix))
		return
	}
	if method := string(ctx.Method()); method != r.method && (method != http.MethodHead || r.method != http.MethodGet) {
		ctx.Response.Header.Set(fasthttp.HeaderAllow, r.method)
		fail(ctx, &wire.Error{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Code: "method_not_allowed",
			Message: fmt.Sprintf("method %s is not allowed here; use %s", shortToken(method), r.method)})
		return
	}
	r.serve(g, ctx)
}

// refuse answers what could not be read as a request.
func (g *Gateway) refuse(ctx *fasthttp.RequestCtx, err error) {
	if c, ok := ctx.Conn().(*clientConn); ok {
		c.linger = true
	}
	g.stamp(ctx)
	ctx.SetConnectionClose()
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		fail(ctx, tooLarge(g.cfg.MaxBodyBytes))
	case errors.As(err, &small):
		fail(ctx, &wire.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Type: "invalid_request_error", Code: "headers_too_large",
			Message: "the request headers are larger than 64 KB"})
	default:
		fail(ctx, wire.Invalid("body", "the request could not be read as HTTP/1.1"))
	}
}

func tooLarge(limit int) *wire.Error {
	e := wire.BodyTooLarge(limit)
	e.Message += "; option max_body_bytes sets the limit"
	return e
}

func notFound(format string, args ...any) *wire.Error {
	return &wire.Error{Status: http.StatusNotFound, Type: "not_found_error", Code: "not_found", Message: fmt.Sprintf(format, args...)}
}

// otherDialect answers the paths of dialects this version does not serve.
func (g *Gateway) otherDialect(ctx *fasthttp.RequestCtx) {
	fail(ctx, notFound("this version serves OpenAI Chat Completions only (POST %s/v1/chat/completions); Responses and Messages are not available", prefix))
}

// health says that the server runs. It needs no credential and names no session.
func (g *Gateway) health(ctx *fasthttp.RequestCtx) {
	out := map[string]any{"ok": true, "active_requests": g.turns.Load()}
	if g.cfg.Health != nil {
		for name, n := range maps.All(g.cfg.Health()) {
			out[name] = n
		}
	}
	answerJSON(ctx, out)
}

// A modelCard is one entry of the model list, as OpenAI's SDKs read it.
type modelCard struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int    `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (g *Gateway) card() modelCard {
	return modelCard{ID: g.cfg.Model, Object: "model", OwnedBy: "relax"}
}

func (g *Gateway) models(ctx *fasthttp.RequestCtx) {
	list := struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{Object: "list", Data: []modelCard{}}
	if g.cfg.Model != "" {
		list.Data = append(list.Data, g.card())
	}
	answerJSON(ctx, list)
}

func (g *Gateway) model(ctx *fasthttp.RequestCtx) {
	path := strings.TrimRight(string(ctx.Path()), "/")
	_, id, _ := strings.Cut(path, "/models/")
	if g.cfg.Model == "" || id != g.cfg.Model {
		fail(ctx, notFound("no such model; GET %s/v1/models lists what there is", prefix))
		return
	}
	answerJSON(ctx, g.card())
}

func answerJSON(ctx *fasthttp.RequestCtx, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		fail(ctx, wire.Internal("the answer could not be written"))
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}

// fail writes an error in the OpenAI shape.
func fail(ctx *fasthttp.RequestCtx, e *wire.Error) {
	ctx.SetStatusCode(e.Status)
	ctx.SetContentType("application/json")
	setRetry(ctx, e)
	ctx.SetBody(wire.Chat.AppendError(nil, e))
}

func setRetry(ctx *fasthttp.RequestCtx, e *wire.Error) {
	if e.Retry != nil {
		ctx.Response.Header.Set("x-should-retry", strconv.FormatBool(*e.Retry))
	}
}

// stamp gives the answer the client's x-request-id, or a new one.
func (g *Gateway) stamp(ctx *fasthttp.RequestCtx) {
	id := printable(ctx.Request.Header.Peek("x-request-id"), 128)
	if id == "" {
		id = "req_" + g.requestBase + "_" + strconv.FormatUint(g.requests.Add(1), 10)
	}
	ctx.Response.Header.Set("x-request-id", id)
}

// printable keeps the visible ASCII of foreign text, so that it fits into a header.
func printable(text []byte, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	clean := bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
	return string(bytes.TrimSpace(clean))
}

func shortToken(s string) string { return printable([]byte(s), 20) }

// credential returns the session id a request brings: Authorization: Bearer, as OpenAI's SDKs
// send it, or x-api-key, as Anthropic's do.
func credential(h *fasthttp.RequestHeader) (string, *wire.Error) {
	authorization := string(h.Peek(fasthttp.HeaderAuthorization))
	scheme, token, _ := strings.Cut(strings.TrimSpace(authorization), " ")
	if token = strings.TrimSpace(token); strings.EqualFold(scheme, "bearer") && token != "" {
		return token, nil
	}
	if key := strings.TrimSpace(string(h.Peek("x-api-key"))); key != "" {
		return key, nil
	}
	if authorization == "" {
		return "", wire.Unauthorized("the Authorization header is missing: send \"Authorization: Bearer <RELAX_SESSION_ID>\"")
	}
	return "", wire.Unauthorized("the Authorization header must be \"Bearer <RELAX_SESSION_ID>\"")
}

// conflictingLength finds requests whose end two servers could see at different places.
func conflictingLength(h *fasthttp.RequestHeader) bool {
	if len(h.Peek(fasthttp.HeaderTransferEncoding)) == 0 {
		return false
	}
	for line := range bytes.Lines(h.RawHeaders()) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		if strings.EqualFold(string(bytes.TrimSpace(name)), fasthttp.HeaderContentLength) {
			return true
		}
	}
	return false
}

// turnContext returns the context of one turn: it ends when the client leaves, the gateway
// closes or stop is called, which must happen before the connection reads its next request.
func (g *Gateway) turnContext(ctx *fasthttp.RequestCtx) (turn context.Context, stop func()) {
	turn, cancel := context.WithCancelCause(g.ctx)
	unwatch := func() {}
	if c, ok := ctx.Conn().(*clientConn); ok {
		unwatch = g.watcher.watch(c.TCPConn, func() { cancel(ErrClientLeft) })
	}
	g.turns.Add(1)
	return turn, func() {
		unwatch()
		cancel(context.Canceled)
		g.turns.Add(-1)
	}
}
