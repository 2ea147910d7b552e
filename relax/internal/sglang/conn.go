package sglang

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// headerBuffer must hold a whole response header; with it a parked request costs
// about 12 KB of buffers.
const headerBuffer = 8 << 10

// An endpoint is where and how one base URL is reached.
type endpoint struct {
	base   string // normalised URL without trailing slash
	addr   string // host:port
	host   string // Host header
	prefix string // path before the API's own paths
	tls    *tls.Config
}

func parseEndpoint(raw string, cfg *Config) (endpoint, error) {
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil {
		return endpoint{}, err
	}
	if u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return endpoint{}, errors.New("expected scheme, host, optional port and path")
	}
	e := endpoint{base: u.String(), host: u.Host, prefix: u.EscapedPath()}
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if port == "" {
			port = "443"
		}
		e.tls = cfg.TLS.Clone()
		if e.tls == nil {
			e.tls = &tls.Config{}
		}
		if e.tls.ServerName == "" {
			e.tls.ServerName = u.Hostname()
		}
	default:
		return endpoint{}, fmt.Errorf("scheme %q is not http or https", u.Scheme)
	}
	e.addr = net.JoinHostPort(u.Hostname(), port)
	return e, nil
}

// A conn is one HTTP/1.1 connection with the buffers of its exchange.
type conn struct {
	net.Conn
	br   *bufio.Reader
	bw   *bufio.Writer
	idle time.Time // since when it waits for reuse
}

// A pool keeps the idle connections of one endpoint, the youngest last.
type pool struct {
	at          endpoint
	dialTimeout time.Duration
	idleTimeout time.Duration
	maxReply    int

	mu     sync.Mutex
	idle   []*conn
	closed bool
}

// get returns a live connection, reused if one is young enough.
func (p *pool) get(ctx context.Context) (*conn, error) {
	for {
		c := p.pop()
		if c == nil {
			return p.dial(ctx)
		}
		if time.Since(c.idle) < p.idleTimeout && alive(c.Conn) {
			return c, nil
		}
		c.Close()
	}
}

func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	c := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return c
}

func (p *pool) dial(ctx context.Context) (*conn, error) {
	d := net.Dialer{
		Timeout: p.dialTimeout,
		// A generation may be silent for an hour, so only keep-alives tell a dead host.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4},
	}
	nc, err := d.DialContext(ctx, "tcp", p.at.addr)
	if err != nil {
		return nil, err
	}
	if p.at.tls != nil {
		hello, cancel := context.WithTimeout(ctx, p.dialTimeout)
		defer cancel()
		tc := tls.Client(nc, p.at.tls)
		if err := tc.HandshakeContext(hello); err != nil {
			nc.Close()
			return nil, err
		}
		nc = tc
	}
	return &conn{Conn: nc, br: bufio.NewReaderSize(nc, headerBuffer), bw: bufio.NewWriterSize(nc, 4<<10)}, nil
}

// put keeps a connection for reuse.
func (p *pool) put(c *conn) {
	c.idle = time.Now()
	p.mu.Lock()
	if !p.closed {
		p.idle = append(p.idle, c)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	c.Close()
}

// dropOlderThan closes connections that idle since before t and returns how many are left.
func (p *pool) dropOlderThan(t time.Time) int {
	p.mu.Lock()
	n := 0
	for n < len(p.idle) && p.idle[n].idle.Before(t) {
		n++
	}
	old := append([]*conn(nil), p.idle[:n]...)
	p.idle = append(p.idle[:0], p.idle[n:]...)
	left := len(p.idle)
	p.mu.Unlock()
	for _, c := range old {
		c.Close()
	}
	return left
}

func (p *pool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
}

// exchange sends req and reads resp. sent tells whether the whole request had left when it
// failed. When ctx ends the connection is closed and the cause of ctx's end is the error,
// unless the response is already complete.
func (p *pool) exchange(ctx context.Context, req *fasthttp.Request, resp *fasthttp.Response) (sent bool, err error) {
	c, err := p.get(ctx)
	if err != nil {
		return false, causeOr(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	sent, err = c.roundTrip(req, resp, p.maxReply)
	untouched := stop()
	if err != nil {
		c.Close()
		return sent, causeOr(ctx, err)
	}
	if !untouched || resp.ConnectionClose() {
		c.Close()
		return true, nil
	}
	p.put(c)
	return true, nil
}

func (c *conn) roundTrip(req *fasthttp.Request, resp *fasthttp.Response, maxReply int) (sent bool, err error) {
	if err := req.Write(c.bw); err != nil {
		return false, err
	}
	if err := c.bw.Flush(); err != nil {
		return false, err
	}
	return true, resp.ReadLimitBody(c.br, maxReply)
}

func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// alive reports whether the peer has not closed an idle connection. It reads nothing: bytes
// that nobody asked for are as bad as an end of file.
func alive(nc net.Conn) bool {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	var buf [1]byte
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	})
	return err == nil && quiet
}

// controlCall is smallCall bounded by ControlTimeout.
func (c *Client) controlCall(ctx context.Context, w *worker, method, path string, body []byte) (status int, reply []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ControlTimeout, fmt.Errorf("no answer within %v", c.cfg.ControlTimeout))
	defer cancel()
	return c.smallCall(ctx, w, method, path, body)
}

// maxControl bounds the small calls at one worker at one time.
const maxControl = 16

// smallCall makes one call with a JSON or empty body. The number of such calls at one time is
// bounded for each worker, so that one that hangs holds up nobody else's; they end when the
// client closes.
func (c *Client) smallCall(ctx context.Context, w *worker, method, path string, body []byte) (status int, reply []byte, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })()
	select {
	case w.control <- struct{}{}:
		defer func() { <-w.control }()
	case <-ctx.Done():
		return 0, nil, context.Cause(ctx)
	}
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	c.prepare(req, w, method, path)
	if body != nil {
		req.Header.SetContentType("application/json")
		req.SetBodyRaw(body)
	}
	if _, err := w.pool.exchange(ctx, req, resp); err != nil {
		return 0, nil, err
	}
	c.keepSwept()
	return resp.StatusCode(), append([]byte(nil), resp.Body()...), nil
}

// prepare sets the request line and the headers every call has.
func (c *Client) prepare(req *fasthttp.Request, w *worker, method, path string) {
	req.Header.SetMethod(method)
	req.Header.SetRequestURI(w.at.prefix + path)
	req.Header.SetHost(w.at.host)
	req.Header.SetUserAgent("relax-rollout")
	if c.cfg.APIKey != "" {
		req.Header.Set(fasthttp.HeaderAuthorization, "Bearer "+c.cfg.APIKey)
	}
}
