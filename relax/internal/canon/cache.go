package canon

import (
	"bytes"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// DefaultCacheBytes is the memory a [Cache] may hold when none is given.
const DefaultCacheBytes = 32 << 20

// A Cache recognises messages and tool lists of one Session by the raw bytes they came in,
// so that a replayed history is neither parsed nor stored again. In a list the cache expects
// after the same elements the one that came there last time: such a hit costs one comparison
// of the raw bytes. Any other hit costs a hash and a comparison. Equal messages
// from different bytes share one [Message].
//
// Memory is bounded: raw bytes and messages are counted, and when half the limit is full the
// older half is forgotten. What is used stays. A history larger than the limit is parsed
// again, nothing else changes.
//
// A Cache is safe for concurrent use; its lock is never held while a message is built. A nil
// Cache builds everything.
type Cache struct {
	rules Rules
	*store
}

// Rules names the rules by which raw bytes get a meaning. Bytes seen under some rules say
// nothing under others, so a dialect has Rules of its own for each kind of value it reads.
type Rules uint8

// For returns the cache as seen by rules: the memory is shared, the raw bytes are not. The
// cache itself is that of Rules 0.
func (c *Cache) For(rules Rules) *Cache {
	if c == nil {
		return nil
	}
	return &Cache{rules: rules, store: c.store}
}

// A store is what all views of a Cache share.
type store struct {
	limit int

	mu    sync.Mutex
	young generation
	old   generation
	// tools is the tool list to expect: the last one.
	tools *span
}

// A Meaning is what a piece of raw JSON says.
type Meaning struct {
	// Messages are canonical: one element of a request can be several messages, or none.
	Messages []*Message
	Tools    []ToolSpec
	// Skipped names what has no place in messages or tools and was left out.
	Skipped []string
}

// A generation is one half of a Cache.
type generation struct {
	spans    map[uint64]*span
	messages map[uint64]*Message
	// followers are the spans to expect after the spans a place stands for.
	followers map[place]*span
	bytes     int
}

// A place is a position in a list: a chain of hashes over the spans before it. Equal messages
// at different places have followers of their own.
type place uint64

func (p place) after(s *span) place { return place(State(p).mix(s.key)) }

// followerOverhead is about what one follower takes, in bytes.
const followerOverhead = 48

// A span is one piece of raw JSON and what it means. A forgotten span has no raw bytes.
type span struct {
	key   uint64
	rules Rules
	raw   []byte
	Meaning
	// first is the first of the messages, nil if there is none: mostly it is the only one.
	first *Message
	size  int
	// young: the span is in the younger half.
	young bool
}

// NewCache returns a Cache that holds at most about limit bytes, [DefaultCacheBytes] if
// limit is 0.
func NewCache(limit int) *Cache {
	if limit <= 0 {
		limit = DefaultCacheBytes
	}
	return &Cache{store: &store{limit: limit}}
}

// Read returns what raw means. If the bytes are new, build finds it from a private copy of raw
// that never changes, so the meaning may keep parts of it. Errors of build are returned and
// not remembered.
func (c *Cache) Read(raw []byte, build func(raw []byte) (Meaning, error)) (Meaning, error) {
	_, m, err := c.read(raw, build)
	return m, err
}

// read is Read with the span, nil for a nil Cache. The span's fields need the lock.
func (c *Cache) read(raw []byte, build func(raw []byte) (Meaning, error)) (*span, Meaning, error) {
	if c == nil {
		m, err := build(bytes.Clone(raw))
		return nil, m, err
	}
	key := keyOf(c.rules, raw)
	if s, m := c.find(key, c.rules, raw); s != nil {
		return s, m, nil
	}
	owned := bytes.Clone(raw)
	m, err := build(owned)
	if err != nil {
		return nil, Meaning{}, err
	}
	s := &span{key: key, rules: c.rules, raw: owned, Meaning: m, size: len(owned) + messageOverhead}
	for i, message := range m.Messages {
		m.Messages[i] = c.Intern(message)
		s.size += m.Messages[i].Size()
	}
	if len(m.Messages) > 0 {
		s.first = m.Messages[0]
	}
	for _, name := range m.Skipped {
		s.size += len(name) + 32
	}
	if len(m.Tools) > 0 {
		// A parsed schema takes several times its text.
		s.size += 4 * len(owned)
	}
	c.store.add(s)
	return s, m, nil
}

func keyOf(rules Rules, raw []byte) uint64 {
	const odd = 0x9e3779b97f4a7c15
	return xxhash.Sum64(raw) + uint64(rules)*odd
}

// Elements reads the JSON array that starts at raw[at] and returns what its elements mean, in
// order, with the index after its end. New elements are built as by [Cache.Read]; index counts
// elements. If build fails, its first error is returned with the array's end, so that a
// caller may check more; if the array itself is malformed, end is 0.
func (c *Cache) Elements(raw []byte, at int, build func(index int, raw []byte) (Meaning, error)) (
	all Meaning, end int, err error) {
	i := skipSpace(raw, at+1)
	if i < len(raw) && raw[i] == ']' {
		return Meaning{}, i + 1, nil
	}
	run := run{messages: make([]*Message, 0, 64), end: i, known: c != nil}
	if c != nil {
		run.place = place(c.rules)
	}
	for {
		if !c.expected(&run, raw, i) {
			run.end, err = c.unexpected(&run, raw, i, err, build)
			if run.end == 0 {
				return Meaning{}, 0, err
			}
		}
		i = skipSpace(raw, run.end)
		if i < len(raw) && raw[i] == ']' {
			break
		}
		if i >= len(raw) || raw[i] != ',' {
			return Meaning{}, 0, spanError(i, "expected ',' or ']'")
		}
		i = skipSpace(raw, i+1)
	}
	if err != nil {
		return Meaning{}, i + 1, err
	}
	return Meaning{Messages: run.messages, Skipped: run.skipped}, i + 1, nil
}

// A run is how far a list has been read: what it means so far, the number of elements, the
// place after them (known only while the cache has them all), and the index after them.
type run struct {
	messages []*Message
	skipped  []string
	count    int
	place    place
	known    bool
	end      int
}

// expected reads the elements from raw[i] on that came at the run's place last time and
// reports whether there was any. An element's bytes are an entire JSON object, so no other
// value can begin with them.
func (c *Cache) expected(r *run, raw []byte, i int) bool {
	if !r.known {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := false
	for i < len(raw) {
		s := c.follower(r.place)
		if s == nil || len(s.raw) == 0 || s.raw[0] != '{' || !bytes.HasPrefix(raw[i:], s.raw) {
			break
		}
		c.touch(s)
		found = true
		if len(s.Messages) == 1 {
			r.messages = append(r.messages, s.first)
		} else {
			r.messages = append(r.messages, s.Messages...)
		}
		if s.Skipped != nil {
			r.skipped = append(r.skipped, s.Skipped...)
		}
		r.count, r.place, r.end = r.count+1, r.place.after(s), i+len(s.raw)
		comma := skipSpace(raw, r.end)
		if comma >= len(raw) || raw[comma] != ',' {
			break
		}
		i = skipSpace(raw, comma+1)
	}
	return found
}

// unexpected reads the element at raw[i] and returns the index after it, 0 if it is no value.
// After a failed build elements are only skipped and the failure passed on.
func (c *Cache) unexpected(r *run, raw []byte, i int, failed error, build func(index int, raw []byte) (Meaning, error)) (int, error) {
	end, err := skipValue(raw, i)
	if err != nil {
		return 0, err
	}
	index := r.count
	r.count++
	if failed != nil {
		return end, failed
	}
	s, m, err := c.read(raw[i:end], func(owned []byte) (Meaning, error) { return build(index, owned) })
	r.messages = append(r.messages, m.Messages...)
	r.skipped = append(r.skipped, m.Skipped...)
	if r.known = r.known && s != nil; r.known {
		c.expect(r.place, s)
		r.place = r.place.after(s)
	}
	return end, err
}

// expect makes s the span to expect at a place from now on.
func (c *store) expect(p place, s *span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeRoom(followerOverhead)
	c.young.followers[p] = s
}

// follower returns the span to expect at a place, nil if there is none.
func (c *store) follower(p place) *span {
	s := c.young.followers[p]
	if s != nil {
		return s
	}
	if s = c.old.followers[p]; s != nil {
		delete(c.old.followers, p)
		c.old.bytes -= followerOverhead
		c.makeRoom(followerOverhead)
		c.young.followers[p] = s
	}
	return s
}

// ToolList is [Cache.Read] of the list of tools at raw[at] and returns the index after it, 0 if
// there is no value. The last list is expected: if it comes again its end need not be sought.
// Its text is an entire JSON array, so no other value can begin with it.
func (c *Cache) ToolList(raw []byte, at int, build func(raw []byte) (Meaning, error)) (Meaning, int, error) {
	if m, n := c.expectedTools(raw, at); n > 0 {
		return m, at + n, nil
	}
	end, err := skipValue(raw, at)
	if err != nil {
		return Meaning{}, 0, err
	}
	s, m, err := c.read(raw[at:end], build)
	if s != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tools = s
	}
	return m, end, err
}

// expectedTools returns the last tool list and the length of its text if that is at raw[at],
// else 0.
func (c *Cache) expectedTools(raw []byte, at int) (Meaning, int) {
	if c == nil || at > len(raw) {
		return Meaning{}, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.tools
	if s == nil || s.rules != c.rules || len(s.raw) == 0 || s.raw[0] != '[' || !bytes.HasPrefix(raw[at:], s.raw) {
		return Meaning{}, 0
	}
	c.touch(s)
	return s.Meaning, len(s.raw)
}

// Intern returns the message of the cache that equals m, or m itself, which the cache then
// knows. The engine hands it every response it commits, so that the client's replay of it
// shares its memory.
func (c *Cache) Intern(m *Message) *Message {
	if c == nil {
		return m
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.young.messages[m.hash]; known.Equal(m) {
		return known
	}
	if known := c.old.messages[m.hash]; known.Equal(m) {
		m = known
	}
	c.makeRoom(messageOverhead)
	c.young.messages[m.hash] = m
	return m
}

// find returns the span of these bytes and what it means, nil if there is none.
func (c *store) find(key uint64, rules Rules, raw []byte) (*span, Meaning) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.young.spans[key]
	if s == nil {
		s = c.old.spans[key]
	}
	if s == nil || s.rules != rules || !bytes.Equal(s.raw, raw) {
		return nil, Meaning{}
	}
	c.touch(s)
	return s, s.Meaning
}

// touch moves a span that is used to the young half.
func (c *store) touch(s *span) {
	if s.young {
		return
	}
	delete(c.old.spans, s.key)
	c.old.bytes -= s.size
	c.insert(s)
}

func (c *store) add(s *span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.insert(s)
}

// insert puts a span into the young half. One of the same hash makes way.
func (c *store) insert(s *span) {
	c.makeRoom(s.size)
	s.young = true
	if taken := c.young.spans[s.key]; taken != nil {
		taken.forget()
	}
	c.young.spans[s.key] = s
}

// makeRoom counts n bytes more and lets the young half grow old when it is full.
func (c *store) makeRoom(n int) {
	if c.young.spans == nil || c.young.bytes+n > c.limit/2 {
		for _, s := range c.old.spans {
			s.forget()
		}
		for _, s := range c.young.spans {
			s.young = false
		}
		c.old = c.young
		c.young = generation{spans: map[uint64]*span{}, messages: map[uint64]*Message{}, followers: map[place]*span{}}
	}
	c.young.bytes += n
}

// forget frees what a span holds: others may still expect it after them.
func (s *span) forget() {
	s.raw, s.Meaning, s.first = nil, Meaning{}, nil
}

// Bytes is about what the cache holds now, in bytes.
func (c *Cache) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.young.bytes + c.old.bytes
}
