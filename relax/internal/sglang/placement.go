package sglang

import (
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A worker is one server, or a router when requests go through it.
type worker struct {
	pool pool
	at   endpoint
	url  string
	hash uint64
	// router is true when the URL does not sample itself: requests through it cannot be
	// aborted by id, only by closing their connection.
	router bool

	control    chan struct{} // holds a token for each small call under way
	loadSource atomic.Int32  // the first of loadSources that answered

	// The client's mutex guards these.
	load      int       // generate attempts in flight here
	down      bool      // refused a connection or fell silent, and has not answered a probe since
	proven    bool      // it was up once, and so is one of ours
	ailing    bool      // the router does not trust it
	nextProbe time.Time // not asked again before
	heard     time.Time // last answer while it had requests
	quiet     int       // questions in a row it did not answer
	errands   errandQueue
	stats     WorkerStats // only the counts and the last error
}

func newWorker(rawURL string, cfg *Config) (*worker, error) {
	at, err := parseEndpoint(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	w := &worker{at: at, url: at.base, hash: xxhash.Sum64String(at.base), control: make(chan struct{}, maxControl)}
	w.pool = pool{at: at, dialTimeout: cfg.DialTimeout, idleTimeout: cfg.IdleTimeout, maxReply: cfg.MaxReplyBytes}
	return w, nil
}

// A class says how willingly a worker is given a request.
type class int

const (
	lastResort class = iota // down, or it just failed this very request
	suspect                 // up, but the router found it unhealthy
	fit
)

func (w *worker) class(avoid *worker) class {
	switch {
	case w.down || w == avoid:
		return lastResort
	case w.ailing:
		return suspect
	}
	return fit
}

// pick chooses the worker for key among candidates and nil if there is none: of the best class
// there is, the highest rendezvous score among those whose load stays within 5/4 of the mean.
// A key keeps its worker, and with it its prefix cache, while others come and go: also when all
// slots are taken, so that Config.Concurrency bounds the mean, not each worker. avoid is the worker
// that just failed.
func pick(candidates []*worker, key string, avoid *worker) *worker {
	best := lastResort
	for _, w := range candidates {
		best = max(best, w.class(avoid))
	}
	total, n := 1, 0
	for _, w := range candidates {
		if w.class(avoid) == best {
			total += w.load
			n++
		}
	}
	if n == 0 {
		return nil
	}
	limit := (5*total + 4*n - 1) / (4 * n)
	keyHash := xxhash.Sum64String(key)
	var chosen *worker
	var highest uint64
	for _, w := range candidates {
		if w.load >= limit || w.class(avoid) != best {
			continue
		}
		if score := mix(keyHash ^ w.hash); chosen == nil || score > highest {
			chosen, highest = w, score
		}
	}
	return chosen
}

// WorkerFor is the URL that a call of the Session would be sent to now. It charges nothing, so the
// call may yet go elsewhere; see [Call].Placed.
func (c *Client) WorkerFor(session string) string {
	c.maybeRefresh()
	c.mu.Lock()
	defer c.mu.Unlock()
	return pick(c.fleet.active, session, nil).url
}

// mix spreads the bits of x (the finaliser of splitmix64), so that scores of different
// workers for one key are independent.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
