// Package sglang is the client of an SGLang server or router: generate, abort, the list of
// workers, close_session, load.
//
// What may enter: token ids, sampling values, request ids, a URL. What it never does: decode
// a token, know a conversation, decide whether a partial result is continued, use the text
// a server sends.
//
// A request that a server may have accepted is never repeated blindly: see [Client.Generate].
// Connections are this package's own (conn.go) with fasthttp's request and response codecs on
// them. fasthttp.HostClient cannot say whether the bytes of a failed request left, cannot be
// cancelled by a context, and starts one goroutine for each slot that nobody owns.
package sglang

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

// Config describes one backend. URL and Goroutines are required.
type Config struct {
	// URL is the base URL of a server or router (option sglang_url).
	URL string
	// APIKey is sent as a bearer token if set (option sglang_api_key).
	APIKey string
	// Concurrency times the workers that get requests bounds generate calls in flight (option
	// sglang_server_concurrency); calls beyond wait in their order. One worker may have a quarter more
	// than Concurrency, so that Sessions keep the worker whose cache knows them. Default 512.
	Concurrency int
	// Goroutines owns what runs in the background: aborts, close_session calls, the watch over
	// silent workers and refreshes of the worker list.
	Goroutines *safego.Group
	// SendSessionID puts Call.Session into the body as session_id, for servers with the
	// session-aware radix cache (option agentic_session_lifecycle). Every Session is then to
	// be ended by CloseSession; until then its workers are remembered.
	SendSessionID bool

	// MaxAttempts bounds how often one call is sent. Default 12, at most 100.
	MaxAttempts int
	// Backoff is the wait before the second attempt; it doubles up to BackoffMax.
	// Defaults 250 ms and 10 s: with 12 attempts a backend may be away for about a minute.
	Backoff, BackoffMax time.Duration
	// AbortEvery is the pause after the first abort call for one request; it grows to three
	// times that. Default 1 s.
	AbortEvery time.Duration
	// AbortGrace is how long an aborted request may take to answer before its connection is
	// closed and its partial tokens are given up. Default 30 s.
	AbortGrace time.Duration
	// RefreshEvery is the age at which the worker list is read again while in use. Default 3 s.
	RefreshEvery time.Duration
	// WatchEvery is how often a worker with requests is asked whether it is there (default 5 s),
	// StallAfter how long it may answer nothing at all before its requests end with
	// [ErrStalled] (default 2 min, negative: never). How long a request takes is no matter.
	WatchEvery, StallAfter time.Duration
	// MaxReplyBytes bounds a reply; a longer one is a [*ReplyError]. Default 1 GiB: a million
	// tokens with log probabilities are about 60 MB, routed experts come on top.
	MaxReplyBytes int
	// DialTimeout bounds a connect (default 5 s), ControlTimeout every call but generate
	// (default 2 s), ProbeTimeout the whole of Probe (default 10 s).
	DialTimeout, ControlTimeout, ProbeTimeout time.Duration
	// IdleTimeout is how long a connection is kept for reuse. Default 2 s, because uvicorn
	// closes idle ones after 5 s and a request must not cross such a close.
	IdleTimeout time.Duration
	// TLS is used for https URLs. Default: the system's roots.
	TLS *tls.Config

	// Now and After are the clock. Defaults: the time package's.
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}

func (c *Config) setDefaults() {
	setDefault(&c.Concurrency, 512)
	setDefault(&c.MaxAttempts, 12)
	c.MaxAttempts = min(c.MaxAttempts, 100)
	setDefault(&c.Backoff, 250*time.Millisecond)
	setDefault(&c.BackoffMax, 10*time.Second)
	setDefault(&c.AbortEvery, time.Second)
	setDefault(&c.AbortGrace, 30*time.Second)
	setDefault(&c.RefreshEvery, 3*time.Second)
	setDefault(&c.WatchEvery, 5*time.Second)
	if c.StallAfter == 0 {
		c.StallAfter = 2 * time.Minute
	}
	setDefault(&c.MaxReplyBytes, 1<<30)
	setDefault(&c.DialTimeout, 5*time.Second)
	setDefault(&c.ControlTimeout, 2*time.Second)
	setDefault(&c.ProbeTimeout, 10*time.Second)
	setDefault(&c.IdleTimeout, 2*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.After == nil {
		c.After = time.After
	}
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// A Client talks to one backend. All methods are safe for concurrent use.
type Client struct {
	cfg   Config
	root  *worker // the URL itself
	slots slots

	ctx    context.Context // ends at Close
	cancel context.CancelFunc

	mu       sync.Mutex
	closed   bool
	calls    map[string]*flight // by base rid
	fleet    fleet
	sweep    *time.Timer // drops idle connections
	watching bool        // the watch over workers runs

	aborting  map[*flight]*abortion
	repeating bool                 // repeatAborts runs
	doomed    map[string]time.Time // aborted before they came

	sessions                        map[string][]*worker // who served them, with SendSessionID
	closesOpen                      int
	closesDone                      chan struct{} // closed when closesOpen comes to 0
	sessionsClosed, sessionFailures int64

	background sync.WaitGroup
}

// New returns a client. It does no I/O; call [Client.Probe] to learn whether the backend is there.
func New(cfg Config) (*Client, error) {
	if cfg.Goroutines == nil {
		return nil, errors.New("sglang: Config.Goroutines is required")
	}
	cfg.setDefaults()
	root, err := newWorker(cfg.URL, &cfg)
	if err != nil {
		return nil, &ProbeError{URL: cfg.URL, Problem: "is not a base URL like http://host:port", Err: err}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{
		cfg:      cfg,
		root:     root,
		ctx:      ctx,
		cancel:   cancel,
		calls:    map[string]*flight{},
		aborting: map[*flight]*abortion{},
		doomed:   map[string]time.Time{},
		sessions: map[string][]*worker{},
	}
	c.slots.limit = cfg.Concurrency
	c.fleet.known = map[string]*worker{}
	c.fleet.active = []*worker{root}
	return c, nil
}

// InFlight is the number of generate calls that were accepted and have not returned,
// including those that wait for a slot or for their next attempt.
func (c *Client) InFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// Close ends every call with [ErrClosed], closes all connections and joins the goroutines.
// It is idempotent. Requests still at the backend are noticed there by their closed connections.
// CloseSession calls under way get up to ControlTimeout to end.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	if c.sweep != nil {
		c.sweep.Stop()
	}
	for _, f := range c.calls {
		f.cancel(ErrClosed)
	}
	workers := c.fleet.all(c.root)
	c.mu.Unlock()

	c.drainCloses()
	c.cancel()
	for _, w := range workers {
		w.pool.close()
	}
	c.background.Wait()
}

// spawn runs fn in an owned goroutine unless the client is closed.
func (c *Client) spawn(name string, fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spawnLocked(name, fn)
}

// spawnLocked is spawn for a caller that holds mu.
func (c *Client) spawnLocked(name string, fn func()) bool {
	if c.closed {
		return false
	}
	c.background.Add(1)
	c.cfg.Goroutines.Go(name, func() {
		defer c.background.Done()
		fn()
	})
	return true
}

// wait sleeps d, or returns the cause of ctx's end, or nil early when wake is closed.
func (c *Client) wait(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	select {
	case <-c.cfg.After(d):
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keepSwept arms the timer that closes idle connections once they are too old, so that a
// fleet that is not used holds no half-closed sockets.
func (c *Client) keepSwept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.sweep != nil {
		return
	}
	c.sweep = time.AfterFunc(c.cfg.IdleTimeout, c.sweepIdle)
}

func (c *Client) sweepIdle() {
	c.mu.Lock()
	workers := c.fleet.all(c.root)
	c.sweep = nil
	c.mu.Unlock()
	left := 0
	for _, w := range workers {
		left += w.pool.dropOlderThan(time.Now().Add(-c.cfg.IdleTimeout))
	}
	if left > 0 {
		c.keepSwept()
	}
}
