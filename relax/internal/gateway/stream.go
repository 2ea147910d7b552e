package gateway

import (
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// stream answers with a buffered event stream: a first frame at once, a heartbeat now and then,
// and the entire turn in one block. The status is 200 from here on.
func (g *Gateway) stream(ctx *fasthttp.RequestCtx, d wire.Dialect, t *turn, req *canon.Request) {
	h := &ctx.Response.Header
	h.SetContentType("text/event-stream; charset=utf-8")
	h.Set(fasthttp.HeaderCacheControl, "no-cache")
	h.Set("X-Accel-Buffering", "no")
	if !ctx.Request.Header.IsHTTP11() {
		// Older clients, and proxies that speak like them, cannot read a body in pieces.
		ctx.SetBody(finish([]byte(d.Connected()), d, t, req))
		return
	}

	s := &eventStream{
		dialect: d,
		turn:    t,
		pending: []byte(d.Connected()),
		ticker:  time.NewTicker(g.cfg.Heartbeat),
		result:  make(chan []byte, 1),
		done:    make(chan struct{}),
	}
	g.spawn("gateway-stream", func() {
		defer close(s.done) // also after a panic
		s.result <- finish(nil, d, t, req)
	})
	ctx.Response.SetBodyStream(s, -1)
}

// finish makes the turn and appends what ends its stream.
func finish(dst []byte, d wire.Dialect, t *turn, req *canon.Request) []byte {
	completion, e := t.complete(req)
	if e != nil {
		return d.AppendStreamError(dst, e)
	}
	if completion.Divergence != "" { // the headers have left; clients skip comments
		dst = append(append(append(dst, ": x-relax-divergence: "...), shownDivergence(completion)...), "\n\n"...)
	}
	return d.AppendStream(dst, completion)
}

// An eventStream is the body of a stream as the connection's own goroutine reads it; fasthttp
// flushes after each Read.
type eventStream struct {
	dialect wire.Dialect
	turn    *turn
	pending []byte
	last    bool // nothing follows pending
	ticker  *time.Ticker
	result  chan []byte
	done    chan struct{}
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
			s.settle()
		case <-s.ticker.C:
			s.pending = []byte(s.dialect.Heartbeat())
		}
	}
	n := copy(p, s.pending)
	s.pending = s.pending[n:]
	return n, nil
}

// settle takes the result of a turn that ended, which a panic leaves out.
func (s *eventStream) settle() {
	s.last = true
	select {
	case s.pending = <-s.result:
	default:
		s.pending = s.dialect.AppendStreamError(nil, noResult())
	}
}

// Close ends the turn and waits for it, so that nothing of it outlives the request. A turn that
// is not over has lost its client: writing to it failed.
func (s *eventStream) Close() error {
	s.turn.cancel(ErrClientLeft)
	<-s.done
	s.ticker.Stop()
	return nil
}
