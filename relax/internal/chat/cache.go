package chat

import (
	"sync"

	"github.com/cespare/xxhash/v2"
)

// The cache keeps what the Sessions of a Group have in common for the time they start
// together, not conversations.
const (
	cacheEntries = 128
	cacheBytes   = 8 << 20
)

// An encodeCache encodes equal scripts once, also when they arrive at the same time.
type encodeCache struct {
	mu      sync.Mutex
	entries map[uint64]*cached
	order   []uint64 // oldest first
	bytes   int
}

// cached is one encoded script. ids and err are written before done is closed.
type cached struct {
	script script
	done   chan struct{}
	ids    []int32
	err    error
}

func (e *cached) size() int {
	return cap(e.script.text) + 24*cap(e.script.marks) + 4*cap(e.ids)
}

// get returns the ids of s, which it keeps, encoding with encode only if no equal script is
// there. The lock is not held while encoding.
func (c *encodeCache) get(s script, encode func(*script) ([]int32, error)) ([]int32, error) {
	key := xxhash.Sum64(s.text)
	c.mu.Lock()
	if e, ok := c.entries[key]; ok {
		c.mu.Unlock()
		if !e.script.equal(&s) {
			return encode(&s) // two texts with one hash: the first keeps the place
		}
		<-e.done // bounded by the other caller's encoding
		return e.ids, e.err
	}
	e := &cached{script: s.alone(), done: make(chan struct{})}
	if c.entries == nil {
		c.entries = map[uint64]*cached{}
	}
	c.entries[key] = e
	c.mu.Unlock()

	finished := false
	defer func() {
		if !finished { // encode panicked: let nobody wait for ever
			e.err = errEncodePanicked
			c.settle(key, e)
		}
	}()
	e.ids, e.err = encode(&s)
	finished = true
	c.settle(key, e)
	return e.ids, e.err
}

// settle publishes e and keeps it if it is worth its memory.
func (c *encodeCache) settle(key uint64, e *cached) {
	c.mu.Lock()
	if e.err != nil || e.size() > cacheBytes/2 {
		delete(c.entries, key)
	} else {
		c.order = append(c.order, key)
		c.bytes += e.size()
		c.evict()
	}
	c.mu.Unlock()
	close(e.done)
}

// evict drops the oldest entries until the rest fits. Entries being encoded are not in order.
func (c *encodeCache) evict() {
	for len(c.order) > cacheEntries || c.bytes > cacheBytes {
		oldest := c.order[0]
		c.order = c.order[1:]
		c.bytes -= c.entries[oldest].size()
		delete(c.entries, oldest)
	}
}
