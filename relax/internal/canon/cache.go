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
// after the same messages the one that came there last time: such a hit costs one comparison
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
	limit int

	mu    sync.Mutex
	young generation
	old   generation
	// tools is the tool list to expect: the last one.
	tools *span
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

// A span is one piece of raw JSON and what it meant. A forgotten span has no raw bytes.
type span struct {
	key     uint64
	raw     []byte
	message *Message
	tools   []ToolSpec
	size    int
	// young: the span is in the younger half.
	young bool
}

// NewCache returns a Cache that holds at most about limit bytes, [DefaultCacheBytes] if
// limit is 0.
func NewCache(limit int) *Cache {
	if limit <= 0 {
		limit = DefaultCacheBytes
	}
	return &Cache{limit: limit}
}

// Message returns the message that raw means. If the bytes are new, build makes it from a
// private copy of raw that never changes, so the message may keep parts of it. Errors of
// build are returned and not remembered.
func (c *Cache) Message(raw []byte, build func(raw []byte) (*Message, error)) (*Message, error) {
	_, m, err := c.message(raw, build)
	return m, err
}

// message is Message with the span, nil for a nil Cache. The span's fields need the lock.
func (c *Cache) message(raw []byte, build func(raw []byte) (*Message, error)) (*span, *Message, error) {
	if c == nil {
		m, err := build(bytes.Clone(raw))
		return nil, m, err
	}
	key := xxhash.Sum64(raw)
	if s, m, _ := c.find(key, raw); m != nil {
		return s, m, nil
	}
	owned := bytes.Clone(raw)
	m, err := build(owned)
	if err != nil {
		return nil, nil, err
	}
	m = c.Intern(m)
	s := &span{key: key, raw: owned, message: m, size: len(owned) + m.Size()}
	c.store(s)
	return s, m, nil
}

// Messages reads the JSON array of messages that starts at raw[at] and returns the index
// after its end. New elements are built as by [Cache.Message]. If build fails, its first
// error is returned with the array's end, so that a caller may check more; if the array
// itself is malformed, end is 0.
func (c *Cache) Messages(raw []byte, at int, build func(index int, raw []byte) (*Message, error)) (
	messages []*Message, end int, err error) {
	i := skipSpace(raw, at+1)
	if i < len(raw) && raw[i] == ']' {
		return nil, i + 1, nil
	}
	run := run{messages: make([]*Message, 0, 64), end: i, known: true}
	for {
		if !c.expected(&run, raw, i) {
			run.end, err = c.unexpected(&run, raw, i, err, build)
			if run.end == 0 {
				return nil, 0, err
			}
		}
		i = skipSpace(raw, run.end)
		if i < len(raw) && raw[i] == ']' {
			break
		}
		if i >= len(raw) || raw[i] != ',' {
			return nil, 0, spanError(i, "expected ',' or ']'")
		}
		i = skipSpace(raw, i+1)
	}
	if err != nil {
		return nil, i + 1, err
	}
	return run.messages, i + 1, nil
}

// A run is how far a list has been read: its messages, the place after them (known only while
// the cache has them all), and the index after them.
type run struct {
	messages []*Message
	place    place
	known    bool
	end      int
}

// expected reads the messages from raw[i] on that came at the run's place last time and
// reports whether there was any. A message's bytes are an entire JSON object, so no other
// value can begin with them.
func (c *Cache) expected(r *run, raw []byte, i int) bool {
	if c == nil || !r.known {
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
		r.messages, r.place, r.end = append(r.messages, s.message), r.place.after(s), i+len(s.raw)
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
func (c *Cache) unexpected(r *run, raw []byte, i int, failed error, build func(index int, raw []byte) (*Message, error)) (int, error) {
	end, err := skipValue(raw, i)
	if err != nil {
		return 0, err
	}
	if failed != nil {
		r.messages, r.known = append(r.messages, nil), false
		return end, failed
	}
	index := len(r.messages)
	s, m, err := c.message(raw[i:end], func(owned []byte) (*Message, error) { return build(index, owned) })
	r.messages = append(r.messages, m)
	if r.known = r.known && s != nil; r.known {
		c.expect(r.place, s)
		r.place = r.place.after(s)
	}
	return end, err
}

// expect makes s the span to expect at a place from now on.
func (c *Cache) expect(p place, s *span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeRoom(followerOverhead)
	c.young.followers[p] = s
}

// follower returns the span to expect at a place, nil if there is none.
func (c *Cache) follower(p place) *span {
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

// Tools returns the tool list that raw means, as [Cache.Message] does for messages.
func (c *Cache) Tools(raw []byte, build func(raw []byte) ([]ToolSpec, error)) ([]ToolSpec, error) {
	if c == nil {
		return build(bytes.Clone(raw))
	}
	key := xxhash.Sum64(raw)
	if _, m, tools := c.find(key, raw); m == nil && tools != nil {
		return tools, nil
	}
	owned := bytes.Clone(raw)
	tools, err := build(owned)
	if err != nil {
		return nil, err
	}
	// A parsed schema takes several times its text.
	s := &span{key: key, raw: owned, tools: tools, size: 5*len(owned) + messageOverhead}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.insert(s)
	c.tools = s
	return tools, nil
}

// ExpectTools returns the last tool list and the length of its text if raw begins with it,
// else 0. The text is an entire JSON array, so no other value can begin with it.
func (c *Cache) ExpectTools(raw []byte) ([]ToolSpec, int) {
	if c == nil {
		return nil, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.tools
	if s == nil || len(s.raw) == 0 || s.raw[0] != '[' || !bytes.HasPrefix(raw, s.raw) {
		return nil, 0
	}
	c.touch(s)
	return s.tools, len(s.raw)
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

// find returns the span of these bytes and what it means.
func (c *Cache) find(key uint64, raw []byte) (*span, *Message, []ToolSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.young.spans[key]
	if s == nil {
		s = c.old.spans[key]
	}
	if s == nil || !bytes.Equal(s.raw, raw) {
		return nil, nil, nil
	}
	c.touch(s)
	return s, s.message, s.tools
}

// touch moves a span that is used to the young half.
func (c *Cache) touch(s *span) {
	if s.young {
		return
	}
	delete(c.old.spans, s.key)
	c.old.bytes -= s.size
	c.insert(s)
}

func (c *Cache) store(s *span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.insert(s)
}

// insert puts a span into the young half. One of the same hash makes way.
func (c *Cache) insert(s *span) {
	c.makeRoom(s.size)
	s.young = true
	if taken := c.young.spans[s.key]; taken != nil {
		taken.forget()
	}
	c.young.spans[s.key] = s
}

// makeRoom counts n bytes more and lets the young half grow old when it is full.
func (c *Cache) makeRoom(n int) {
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
	s.raw, s.message, s.tools = nil, nil, nil
}

// Bytes is about what the cache holds now, in bytes.
func (c *Cache) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.young.bytes + c.old.bytes
}
