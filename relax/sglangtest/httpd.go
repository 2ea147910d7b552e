package sglangtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

// maxBody bounds a request body.
const maxBody = 256 << 20

// An httpd is a listening fasthttp server whose goroutines can all be joined. fasthttp's own
// accept loop leaves workers behind that end some time later, so connections are accepted
// here and served one goroutine each.
type httpd struct {
	srv   *fasthttp.Server
	ln    net.Listener
	group *safego.Group
	gone  *watcher

	ctx    context.Context // ends when close begins
	cancel context.CancelFunc

	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	panicked error // the first one
}

// listen opens addr. Connections are served from start on, so that the owner can be
// complete before its handler, which runs in the connection's goroutine, is called.
func listen(addr string, check time.Duration, handler fasthttp.RequestHandler) (*httpd, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %q: %w", addr, err)
	}
	h := &httpd{ln: ln, conns: map[net.Conn]struct{}{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.group = safego.New(h.onPanic)
	h.gone = newWatcher(check)
	h.srv = &fasthttp.Server{
		Handler:               handler,
		MaxRequestBodySize:    maxBody,
		ReadBufferSize:        16 << 10,
		NoDefaultServerHeader: true,
		NoDefaultDate:         true,
		Logger:                silent{},
		ErrorHandler:          unreadable,
	}
	return h, nil
}

func (h *httpd) start() {
	h.group.Go("sglangtest accept", h.accept)
	h.group.Go("sglangtest disconnects", func() { h.gone.run(h.ctx) })
}

// unreadable answers what is not HTTP, or too large.
func unreadable(ctx *fasthttp.RequestCtx, err error) {
	status := fasthttp.StatusBadRequest
	if errors.Is(err, fasthttp.ErrBodyTooLarge) {
		status = fasthttp.StatusRequestEntityTooLarge
	}
	answerText(ctx, status, "the request cannot be read: "+err.Error())
}

// silent drops fasthttp's log lines: a client that hangs up is no news in a test server.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (h *httpd) onPanic(name string, value any, stack []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.panicked == nil {
		h.panicked = fmt.Errorf("%s panicked: %v\n%s", name, value, stack)
	}
}

func (h *httpd) url() string { return "http://" + h.ln.Addr().String() }

func (h *httpd) accept() {
	for {
		conn, err := h.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: let some be closed
			if !sleep(h.ctx, 20*time.Millisecond) {
				return
			}
			continue
		}
		if !h.add(conn) {
			conn.Close()
			return
		}
		h.group.Go("sglangtest connection", func() {
			defer h.remove(conn)
			_ = h.srv.ServeConn(conn) // how a connection ended is the client's to know
		})
	}
}

// add counts a connection. false: the server is closing.
func (h *httpd) add(conn net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conns == nil {
		return false
	}
	h.conns[conn] = struct{}{}
	return true
}

func (h *httpd) remove(conn net.Conn) {
	conn.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, conn)
}

// close ends every connection and waits for every goroutine. Handlers must have been told to
// end before.
func (h *httpd) close() error {
	h.cancel()
	err := h.ln.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	h.mu.Lock()
	conns := h.conns
	h.conns = nil
	h.mu.Unlock()
	for conn := range conns {
		conn.Close()
	}
	_ = h.group.Wait(context.Background()) // cannot fail: the context does not end
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(err, h.panicked)
}

// sleep waits for d. false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A watcher notices that the peer of a connection has gone while a handler is busy and
// nobody reads. One goroutine looks at all of them from time to time.
type watcher struct {
	every time.Duration
	busy  chan struct{}

	mu      sync.Mutex
	watched map[*watch]struct{}
}

type watch struct {
	conn net.Conn
	gone func()
}

func newWatcher(every time.Duration) *watcher {
	return &watcher{every: every, busy: make(chan struct{}, 1), watched: map[*watch]struct{}{}}
}

// add calls gone, at most once, when the peer closes the connection. The returned function
// ends the watch. gone must not block.
func (w *watcher) add(conn net.Conn, gone func()) (stop func()) {
	one := &watch{conn: conn, gone: gone}
	w.mu.Lock()
	w.watched[one] = struct{}{}
	w.mu.Unlock()
	select {
	case w.busy <- struct{}{}:
	default:
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.watched, one)
	}
}

func (w *watcher) run(ctx context.Context) {
	for {
		select {
		case <-w.busy:
		case <-ctx.Done():
			return
		}
		for {
			if !sleep(ctx, w.every) {
				return
			}
			if !w.look() {
				break
			}
		}
	}
}

// look checks every connection once. false: there is none.
func (w *watcher) look() bool {
	w.mu.Lock()
	all := make([]*watch, 0, len(w.watched))
	for one := range w.watched {
		all = append(all, one)
	}
	w.mu.Unlock()
	for _, one := range all {
		if !hungUp(one.conn) {
			continue
		}
		w.mu.Lock()
		_, still := w.watched[one]
		delete(w.watched, one)
		w.mu.Unlock()
		if still {
			one.gone()
		}
	}
	return len(all) > 0
}
