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
		body, completion := finish([]byte(d.Connected()), d, t, req)
		ctx.SetBody(body)
		t.watchWrite(completion)
		return
	}

	s := &eventStream{
		dialect: d,
		turn:    t,
		pending: []byte(d.Connected()),
		ticker:  time.NewTicker(g.cfg.Heartbeat),
		result:  make(chan streamEnd, 1),
		done:    make(chan struct{}),
	}
	g.spawn("gateway-stream", func() {
		defer close(s.done) // also after a panic
		frames, completion := finish(nil, d, t, req)
		s.result <- streamEnd{frames, completion}
	})
	ctx.Response.SetBodyStream(s, -1)
}

// finish makes the turn and appends what ends its stream. The completion is nil if it failed.
func finish(dst []byte, d wire.Dialect, t *turn, req *canon.Request) ([]byte, *wire.Completion) {
	completion, e := t.complete(req)
	if e != nil {
		return d.AppendStreamError(dst, e), nil
	}
	if completion.Divergence != "" { // the headers have left; clients skip comments
		dst = append(append(append(dst, ": x-relax-divergence: "...), shownDivergence(completion)...), "\n\n"...)
	}
	return d.AppendStream(dst, completion), completion
}

// A streamEnd is what ends a stream, and the completion it tells, nil for an error.
type streamEnd struct {
	frames     []byte
	completion *wire.Completion
}

// An eventStream is the body of a stream as the connection's own goroutine reads it; fasthttp
// flushes after each Read.
type eventStream struct {
	dialect wire.Dialect
	turn    *turn
	pending []byte
	last    bool // nothing follows pending
	ticker  *time.Ticker
	result  chan streamEnd
	done    chan struct{}
	// unread is the completion until the client has it.
	unread *wire.Completion
}

// Read returns the next bytes, waiting for them.
func (s *eventStream) Read(p []byte) (int, error) {
	for len(s.pending) == 0 {
		if s.last {
			s.unread = nil // what was read before is flushed
			return 0, io.EOF
		}
		select {
		case end := <-s.result:
			s.take(end)
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

func (s *eventStream) take(end streamEnd) {
	s.last, s.pending, s.unread = true, end.frames, end.completion
}

// settle takes the result of a turn that ended, which a panic leaves out.
func (s *eventStream) settle() {
	select {
	case end := <-s.result:
		s.take(end)
	default:
		s.take(streamEnd{s.dialect.AppendStreamError(nil, noResult()), nil})
	}
}

// Close ends the turn and waits for it, so that nothing of it outlives the request. A turn that
// is not over has lost its client: writing to it failed.
func (s *eventStream) Close() error {
	s.turn.cancel(ErrClientLeft)
	<-s.done
	s.ticker.Stop()
	select {
	case end := <-s.result: // it ended while the write failed
		s.take(end)
	default:
	}
	if s.unread != nil {
		s.turn.session.Undelivered(s.unread)
	}
	return nil
}
