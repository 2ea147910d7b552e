// Package gateway is the HTTP server agents talk to: routes, credentials, limits, streams,
// clients that leave.
//
// What may enter: bytes of HTTP, a [Handler] that knows Sessions. What it never does: know
// what a conversation is, talk to a backend, name a session id to anybody who did not bring it.
//
// Connections are accepted here and served one owned goroutine each; fasthttp's own accept
// loop leaves workers behind that nobody can join. A request that waits for its turn holds its
// parsed form, not its body, and one epoll set watches all of them for clients that leave
// (disconnect.go), because fasthttp does not tell. Whatever the path, a request passes the same
// checks in the same order: path, method, credential, a free place, body.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// prefix is the path all routes are under.
const prefix = "/agentic_api"

// Causes of a request context's end; see [context.Cause].
var (
	// ErrClientLeft: the client closed its connection.
	ErrClientLeft = errors.New("gateway: the client left")
	// ErrClosed: the gateway is closing.
	ErrClosed = errors.New("gateway: closed")
)

// A Handler knows the Sessions.
type Handler interface {
	// Session returns the live Session with this token, which is its id. It must be quick.
	Session(token string) (Session, bool)
}

// A Session answers the requests of one agent.
type Session interface {
	// Cache is the Session's message cache, nil for none.
	Cache() *canon.Cache
	// Complete makes one turn. ctx ends when the client left ([ErrClientLeft]): then Complete may
	// go on for a while, in case the client comes back, or for as long as another client waits for
	// the same turn. It returns soon after the gateway closes ([ErrClosed]). Exactly one result is
	// not nil.
	Complete(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error)
	// Undelivered says that the answer of a Complete could not be written to its client. It may
	// come late, and must be quick.
	Undelivered(answer *wire.Completion)
	// Refused says that a request of the Session was answered with an error before Complete. It
	// must be quick.
	Refused(e *wire.Error)
	// CountTokens returns how many tokens the model would read if req were completed. It samples
	// nothing and records nothing.
	CountTokens(ctx context.Context, req *canon.Request) (int, *wire.Error)
}

// Config describes a gateway. Goroutines and Handler are required.
type Config struct {
	// Host (default 127.0.0.1) and Port (default 0: a free one) are listened at.
	Host string
	Port int
	// AdvertiseURL replaces http://host:port in BaseURL, for agents that reach it by another name.
	AdvertiseURL string
	// MaxBodyBytes bounds a request body, also after decompression. Default 256 MiB. One sent
	// without Content-Length may have at most 96 MiB.
	MaxBodyBytes int
	// MaxConnections bounds the connections served at once; each is a descriptor of the process,
	// and so is what it needs of the backend. A connection over it is told 503 with Retry-After
	// and closed. Default 16,384.
	MaxConnections int
	// MaxRequests bounds the requests with a Session that are under way at once, parked ones
	// included. One over it gets 503 with Retry-After. Default: MaxConnections.
	MaxRequests int
	// Model is the id GET /models lists, "" for none.
	Model string
	// Heartbeat is the pause between two comments of a waiting stream. Default 15 s.
	Heartbeat time.Duration
	// IdleTimeout closes connections without a request. Default 10 minutes: longer than the
	// clients' own, so that they do not send into a close.
	IdleTimeout time.Duration
	// ReadTimeout bounds the time a client takes to send the headers of a request, and again the
	// time it takes to send the body, which gets one second more for each 64 KiB that came.
	// Default 1 minute.
	ReadTimeout time.Duration
	// WriteTimeout closes connections whose clients read less than 64 KiB of an answer in this
	// time. Default 2 minutes.
	WriteTimeout time.Duration
	// Goroutines owns the accept loop, the connections and the watcher.
	Goroutines *safego.Group
	Handler    Handler
	// Health, if set, adds counts to GET /health. It must not name sessions.
	Health func() map[string]int
	// Log, if set, gets what the HTTP server has to say about broken connections.
	Log func(text string)
}

func (c *Config) setDefaults() {
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.MaxBodyBytes <= 0 {
		c.MaxBodyBytes = 256 << 20
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 15 * time.Second
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = 10 * time.Minute
	}
	if c.MaxConnections <= 0 {
		c.MaxConnections = 16384
	}
	if c.MaxRequests <= 0 {
		c.MaxRequests = c.MaxConnections
	}
	if c.ReadTimeout <= 0 {
		c.ReadTimeout = time.Minute
	}
	if c.WriteTimeout <= 0 {
		c.WriteTimeout = 2 * time.Minute
	}
	if c.Log == nil {
		c.Log = func(string) {}
	}
}

// A Gateway is one listening server.
type Gateway struct {
	cfg     Config
	base    string
	ln      net.Listener
	server  *fasthttp.Server
	watcher *watcher

	ctx    context.Context // ends with ErrClosed when Close begins
	cancel context.CancelCauseFunc

	requestBase string // random start of generated request ids
	requests    atomic.Uint64
	heads       sync.Map     // *fasthttp.RequestHeader → *head, until the request is answered
	turns       atomic.Int64 // requests with a Session that are under way
	served      atomic.Int64 // connections; those that are turned away apart
	refusals    chan struct{}

	mu    sync.Mutex
	conns map[*clientConn]struct{} // nil once closing
	owned sync.WaitGroup
}

// New listens and serves until [Gateway.Close].
func New(cfg Config) (*Gateway, error) {
	if cfg.Goroutines == nil || cfg.Handler == nil {
		return nil, errors.New("gateway: Config.Goroutines and Config.Handler are required")
	}
	cfg.setDefaults()
	advertised, err := advertise(cfg.AdvertiseURL)
	if err != nil {
		return nil, err
	}
	listen := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4}}
	ln, err := listen.Listen(context.Background(), "tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port)))
	if err != nil {
		return nil, fmt.Errorf("options api_host %q, api_port %d: cannot listen: %w", cfg.Host, cfg.Port, err)
	}
	w, err := newWatcher()
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("gateway: cannot watch for clients that leave: %w", err)
	}
	g := &Gateway{cfg: cfg, ln: ln, watcher: w, base: advertised, conns: map[*clientConn]struct{}{}, refusals: make(chan struct{}, maxRefusals)}
	if g.base == "" {
		g.base = "http://" + ln.Addr().String()
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	g.requestBase = hex.EncodeToString(random[:])
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.server = g.newServer()
	g.spawn("gateway-watcher", w.run)
	g.spawn("gateway-accept", g.accept)
	return g, nil
}

// CheckAdvertise checks option api_advertise_url, for callers that want to know before they open
// anything else. "" is right: nothing is advertised.
func CheckAdvertise(raw string) error {
	u, err := url.Parse(raw)
	if raw == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" {
		return nil
	}
	return fmt.Errorf("expected a URL like http://host:port, found %q", raw)
}

// advertise returns option api_advertise_url without our path.
func advertise(raw string) (string, error) {
	if err := CheckAdvertise(raw); err != nil {
		return "", fmt.Errorf("option api_advertise_url: %w", err)
	}
	return strings.TrimSuffix(strings.TrimRight(raw, "/"), prefix), nil
}

func (g *Gateway) newServer() *fasthttp.Server {
	return &fasthttp.Server{
		Handler:            g.serve,
		ErrorHandler:       g.refuse,
		HeaderReceived:     g.arrived,
		ExpectHandler:      g.expect,
		ConnState:          written,
		MaxRequestBodySize: g.cfg.MaxBodyBytes,
		// One header block must fit; with ReduceMemoryUsage the buffer goes back to its pool
		// while a request waits.
		ReadBufferSize:               maxHeaderBytes,
		ReduceMemoryUsage:            true,
		ReadTimeout:                  g.cfg.ReadTimeout,
		IdleTimeout:                  g.cfg.IdleTimeout,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		NoDefaultDate:                true, // its clock is a goroutine that nobody owns
		LogAllErrors:                 false,
		Logger:                       logger(g.cfg.Log),
	}
}

// logger hands fasthttp's lines on, which would go to stderr otherwise.
type logger func(text string)

func (l logger) Printf(format string, args ...any) { l(fmt.Sprintf(format, args...)) }

// BaseURL is what agents get as RELAX_BASE_URL: it ends in /agentic_api/.
func (g *Gateway) BaseURL() string { return g.base + prefix + "/" }

func (g *Gateway) spawn(name string, fn func()) {
	g.owned.Add(1)
	g.cfg.Goroutines.Go(name, func() {
		defer g.owned.Done()
		fn()
	})
}

// Close ends the gateway: nothing is accepted any more, request contexts end with
// [ErrClosed], their answers are written, connections close, goroutines are joined. When ctx
// ends first the connections are cut and its error is returned; the goroutines then end as
// soon as their handlers do.
func (g *Gateway) Close(ctx context.Context) error {
	g.mu.Lock()
	conns := g.conns
	g.conns = nil
	open := make([]*clientConn, 0, len(conns))
	for c := range conns {
		open = append(open, c)
	}
	g.mu.Unlock()
	if conns == nil {
		return nil
	}
	g.ln.Close()
	g.cancel(ErrClosed)
	g.watcher.close()
	for _, c := range open {
		_ = c.CloseRead() // an idle one ends now, a busy one after its answer
	}
	done := make(chan struct{})
	g.cfg.Goroutines.Go("gateway-close", func() { g.owned.Wait(); close(done) })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		for _, c := range open {
			c.TCPConn.Close()
		}
		return fmt.Errorf("gateway: connections were cut: %w", ctx.Err())
	}
}
