package sglangtest

import "sync"

const (
	fineBlock   = 16      // tokens between marks at the beginning of a sequence
	fineUntil   = 256     // where the coarse marks begin
	coarseBlock = 256     // tokens between marks after that
	maxEntries  = 512     // sequences kept
	maxCached   = 4 << 20 // tokens kept
)

// A prefixCache says how much of a prompt was seen before, as a radix cache would. It keeps
// hashes of prefixes at certain lengths and compares tokens past the longest known one with
// the newest sequence that has it, so what it answers is a common prefix that really exists,
// and nearly always the longest.
type prefixCache struct {
	mu      sync.Mutex
	marks   map[uint64]*cacheEntry
	entries []*cacheEntry // oldest first
	tokens  int
}

// A cacheEntry is a prompt and what was said after it.
type cacheEntry struct {
	prompt, said []int32
	hashes       []uint64
	kept         bool // neither evicted nor flushed
}

func (e *cacheEntry) at(i int) (int32, bool) {
	if i < len(e.prompt) {
		return e.prompt[i], true
	}
	if i -= len(e.prompt); i < len(e.said) {
		return e.said[i], true
	}
	return 0, false
}

func newPrefixCache() *prefixCache { return &prefixCache{marks: map[uint64]*cacheEntry{}} }

// markLen is the length of the i-th marked prefix, counted from 0.
func markLen(i int) int {
	if i < fineUntil/fineBlock {
		return (i + 1) * fineBlock
	}
	return fineUntil + (i-fineUntil/fineBlock+1)*coarseBlock
}

// hashMarks hashes every marked prefix of a sequence in one pass.
func hashMarks(prompt, said []int32) []uint64 {
	hashes := make([]uint64, 0, 16+(len(prompt)+len(said))/coarseBlock)
	h, done := uint64(14695981039346656037), 0
	next := markLen(0)
	for _, part := range [2][]int32{prompt, said} {
		for _, id := range part {
			h = (h ^ uint64(uint32(id))) * 1099511628211
			if done++; done == next {
				hashes = append(hashes, mix(h))
				next = markLen(len(hashes))
			}
		}
	}
	return hashes
}

// admit returns how many leading tokens of a prompt are cached (never all of them: one must
// be computed) and keeps the prompt.
func (c *prefixCache) admit(prompt []int32) (cached int, entry *cacheEntry) {
	entry = &cacheEntry{prompt: prompt, hashes: hashMarks(prompt, nil)}
	c.mu.Lock()
	defer c.mu.Unlock()
	var known *cacheEntry
	if n := len(c.entries); n > 0 {
		known = c.entries[n-1]
	}
	for i, h := range entry.hashes {
		e, ok := c.marks[h]
		if !ok {
			break
		}
		known, cached = e, markLen(i)
	}
	if known != nil {
		for cached < len(prompt) {
			id, ok := known.at(cached)
			if !ok || id != prompt[cached] {
				break
			}
			cached++
		}
	}
	c.keep(entry)
	return min(cached, len(prompt)-1), entry
}

// extend adds what was said after an admitted prompt.
func (c *prefixCache) extend(entry *cacheEntry, said []int32) {
	hashes := hashMarks(entry.prompt, said)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !entry.kept {
		return
	}
	entry.said = said
	entry.hashes = hashes
	c.tokens += len(said)
	for _, h := range hashes {
		c.marks[h] = entry
	}
	c.evict()
}

func (c *prefixCache) keep(entry *cacheEntry) {
	entry.kept = true
	c.entries = append(c.entries, entry)
	c.tokens += len(entry.prompt)
	for _, h := range entry.hashes {
		c.marks[h] = entry
	}
	c.evict()
}

func (c *prefixCache) evict() {
	for len(c.entries) > maxEntries || c.tokens > maxCached && len(c.entries) > 1 {
		old := c.entries[0]
		c.entries = c.entries[1:]
		old.kept = false
		c.tokens -= len(old.prompt) + len(old.said)
		for _, h := range old.hashes {
			if c.marks[h] == old {
				delete(c.marks, h)
			}
		}
	}
}

func (c *prefixCache) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		e.kept = false
	}
	c.marks = map[uint64]*cacheEntry{}
	c.entries, c.tokens = nil, 0
}
