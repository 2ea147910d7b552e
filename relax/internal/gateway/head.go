package gateway

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

const (
	// maxHeaderBytes bounds the header block of a request, maxHeaders its lines: a parked request
	// keeps them.
	maxHeaderBytes = 64 << 10
	maxHeaders     = 256
	// strangerBody bounds the bodies that are read although their request will be refused, which
	// leaves the connection fit for the next one; larger ones are refused unread.
	strangerBody = 1 << 20
	// chunkedBody bounds bodies of undeclared length: beyond 100 MB fasthttp copies all it has with
	// each chunk, so that one client could keep a core busy for hours.
	chunkedBody = 96 << 20
)

// A head is what the headers of a request say about it.
type head struct {
	id string // of the request
	// dialect is that of the answer.
	dialect wire.Dialect
	route   route
	// session is nil if the route needs none.
	session Session
	// fault is the first thing that is wrong, whatever the body holds.
	fault *wire.Error
	// limit is how large the body may be.
	limit int
	// disconnect says that nothing more may be read from the connection.
	disconnect bool
}

// arrived looks at the headers of a request before its body is read, and says how large the body
// may be. fasthttp gives no connection here and forgets the headers when the body turns out bad,
// so the head is kept under the address of what it was made from.
func (g *Gateway) arrived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	head := g.look(h)
	head.limit = g.cfg.MaxBodyBytes
	if h.ContentLength() < 0 {
		head.limit = min(head.limit, chunkedBody)
	}
	if head.fault != nil {
		head.limit = min(head.limit, strangerBody)
	}
	g.heads.Store(h, head)
	return fasthttp.RequestConfig{MaxRequestBodySize: head.limit, ReadTimeout: g.cfg.ReadTimeout}
}

// take returns the head of the request that is answered now.
func (g *Gateway) take(ctx *fasthttp.RequestCtx) *head {
	if h, ok := g.heads.LoadAndDelete(&ctx.Request.Header); ok {
		return h.(*head)
	}
	if c, ok := ctx.Conn().(*clientConn); ok && c.expecting != nil {
		h := c.expecting
		c.expecting = nil
		return h
	}
	return &head{id: g.newID(), dialect: wire.Chat} // its headers could not be read
}

// putBack keeps the head of a request whose body is still to be read. The connection has it
// from now on: it may end before the request is answered.
func (g *Gateway) putBack(ctx *fasthttp.RequestCtx, h *head) {
	if c, ok := ctx.Conn().(*clientConn); ok {
		c.expecting = h
	}
}

// look makes all checks that need no body, in the order path, method, credential.
func (g *Gateway) look(h *fasthttp.RequestHeader) *head {
	uri := fasthttp.AcquireURI()
	defer fasthttp.ReleaseURI(uri)
	path := ""
	if uri.Parse(h.Host(), h.RequestURI()) == nil {
		path = string(uri.Path())
	}
	out := &head{id: printable(h.Peek("x-request-id"), 128)}
	if out.id == "" {
		out.id = g.newID()
	}
	out.dialect = dialectOf(path, len(h.Peek("anthropic-version")) > 0)
	switch {
	case g.ctx.Err() != nil:
		out.disconnect = true
		out.fault = wire.Unavailable("shutting_down", "the rollout engine is closing")
	case conflictingLength(h):
		out.disconnect = true
		out.fault = wire.Invalid("body", "the request has both Content-Length and Transfer-Encoding")
	case h.Len() > maxHeaders:
		out.fault = headersTooLarge()
	default:
		out.fault = g.direct(out, path, h)
	}
	return out
}

// direct finds the route and the Session of a request.
func (g *Gateway) direct(out *head, path string, h *fasthttp.RequestHeader) *wire.Error {
	r, ok := find(path)
	if !ok {
		return notFound("no such path: the base URL of this API ends in %s/ and is followed by chat/completions, "+
			"responses, messages, messages/count_tokens or models, with or without v1/ before it", prefix)
	}
	out.route = r
	if method := string(h.Method()); !slices.Contains(r.methods, method) {
		return &wire.Error{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Code: "method_not_allowed",
			Message: fmt.Sprintf("method %s is not allowed here; use %s", shortToken(method), r.methods[0])}
	}
	if !r.session || h.IsHead() {
		return nil
	}
	token, e := credential(h)
	if e != nil {
		return e
	}
	if out.session, ok = g.cfg.Handler.Session(token); !ok {
		return wire.SessionDiscarded()
	}
	return nil
}

// stamp gives the answer the headers every answer has.
func (h *head) stamp(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.Set("x-request-id", h.id)
	if h.dialect == wire.Messages {
		ctx.Response.Header.Set("request-id", h.id) // what Anthropic's SDKs call it
	}
	if h.fault != nil && h.fault.Status == http.StatusMethodNotAllowed {
		ctx.Response.Header.Set(fasthttp.HeaderAllow, strings.Join(h.route.methods, ", "))
	}
	if h.disconnect {
		ctx.SetConnectionClose()
	}
}

// newID returns an id for a request whose client gave none.
func (g *Gateway) newID() string {
	return "req_" + g.requestBase + "_" + strconv.FormatUint(g.requests.Add(1), 10)
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

// retry reads what the SDKs say about a request they send again. An attempt that is no number
// counts as the first.
func retry(h *fasthttp.RequestHeader) canon.Retry {
	attempt, err := strconv.Atoi(string(bytes.TrimSpace(h.Peek("x-stainless-retry-count"))))
	if err != nil || attempt < 0 {
		attempt = 0
	}
	return canon.Retry{Attempt: attempt, Key: string(bytes.TrimSpace(h.Peek("Idempotency-Key")))}
}
