package sglang

import (
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

	// The client's mutex guards these.
	load      int       // generate attempts in flight here
	down      bool      // refused a connection and has not answered a probe since
	nextProbe time.Time // not asked again before
}

func newWorker(rawURL string, cfg *Config) (*worker, error) {
	at, err := parseEndpoint(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	w := &worker{at: at, url: at.base, hash: xxhash.Sum64String(at.base)}
	w.pool = pool{at: at, dialTimeout: cfg.DialTimeout, idleTimeout: cfg.IdleTimeout}
	return w, nil
}

// pick chooses the worker for key among candidates and nil if there is none: the highest
// rendezvous score among those whose load stays within 5/4 of the mean. A key keeps its
// worker, and with it its prefix cache, while others come and go.
func pick(candidates []*worker, key string) *worker {
	total := 1
	for _, w := range candidates {
		total += w.load
	}
	n := len(candidates)
	if n == 0 {
		return nil
	}
	limit := (5*total + 4*n - 1) / (4 * n)
	keyHash := xxhash.Sum64String(key)
	var best *worker
	var bestScore uint64
	for _, w := range candidates {
		if w.load >= limit {
			continue
		}
		if score := mix(keyHash ^ w.hash); best == nil || score > bestScore {
			best, bestScore = w, score
		}
	}
	return best
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
