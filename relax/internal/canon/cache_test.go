package canon

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cespare/xxhash/v2"
)

func hashOf(b []byte) uint64 { return xxhash.Sum64(b) }

func buildUser(raw []byte) (*Message, error) {
	return NewMessage(Message{Role: User, Content: string(raw)}), nil
}

func TestCacheRecognisesBytes(t *testing.T) {
	c := NewCache(0)
	builds := 0
	build := func(raw []byte) (*Message, error) { builds++; return buildUser(raw) }
	raw := []byte(`"hello"`)
	a, err := c.Message(raw, build)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := c.Message(bytes.Clone(raw), build)
	if a != b || builds != 1 {
		t.Errorf("the second reading built again (%d builds)", builds)
	}
	// The cache keeps its own copy: the caller's buffer is reused for the next request.
	raw[1] = 'j'
	if d, _ := c.Message(raw, build); d == a || d.Content != `"jello"` || builds != 2 {
		t.Errorf("changed bytes gave %q", d.Content)
	}
	if a.Content != `"hello"` {
		t.Errorf("the first message changed to %q", a.Content)
	}
}

func TestCacheConfirmsHits(t *testing.T) {
	c := NewCache(0)
	m, _ := c.Message([]byte("one"), buildUser)
	// Put a span of other bytes under the same key, as a hash collision would.
	c.mu.Lock()
	for key, s := range c.young.spans {
		s.raw, s.message = []byte("two"), NewMessage(Message{Role: User, Content: "two"})
		c.young.spans[key] = s
	}
	c.mu.Unlock()
	if got, _ := c.Message([]byte("one"), buildUser); !got.Equal(m) {
		t.Errorf("got %q", got.Content)
	}
}

func TestCacheSharesEqualMessages(t *testing.T) {
	c := NewCache(0)
	response := c.Intern(NewMessage(Message{Role: Assistant, Content: "x"}))
	got, _ := c.Message([]byte("any bytes"), func([]byte) (*Message, error) {
		return NewMessage(Message{Role: Assistant, Content: "x"}), nil
	})
	if got != response {
		t.Error("a replayed response does not share the committed message")
	}
}

func TestCacheErrorsAreNotKept(t *testing.T) {
	c := NewCache(0)
	bad := errors.New("bad")
	if _, err := c.Message([]byte("x"), func([]byte) (*Message, error) { return nil, bad }); !errors.Is(err, bad) {
		t.Fatalf("got %v", err)
	}
	if m, err := c.Message([]byte("x"), buildUser); err != nil || m == nil {
		t.Errorf("got %v, %v", m, err)
	}
	if _, err := c.Tools([]byte("x"), func([]byte) ([]ToolSpec, error) { return nil, bad }); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
}

func TestCacheTools(t *testing.T) {
	c := NewCache(0)
	build := func([]byte) ([]ToolSpec, error) { return []ToolSpec{NewToolSpec("f", nil, Value{})}, nil }
	a, _ := c.Tools([]byte("[f]"), build)
	b, _ := c.Tools([]byte("[f]"), build)
	if &a[0] != &b[0] {
		t.Error("the list was built twice")
	}
}

func TestCacheIsBounded(t *testing.T) {
	const limit = 20_000
	c := NewCache(limit)
	hot := []byte("hot")
	first, _ := c.Message(hot, buildUser)
	for i := range 1000 {
		if _, err := c.Message(fmt.Appendf(nil, "message %d", i), buildUser); err != nil {
			t.Fatal(err)
		}
		if n := c.Bytes(); n > limit+1000 {
			t.Fatalf("after %d messages the cache holds %d bytes", i, n)
		}
		if got, _ := c.Message(hot, buildUser); got != first {
			t.Fatalf("a message in use was forgotten at %d", i)
		}
	}
	kept := 0
	for i := range 1000 {
		if _, m, _ := c.find(hashOf(fmt.Appendf(nil, "message %d", i)), fmt.Appendf(nil, "message %d", i)); m != nil {
			kept++
		}
	}
	if kept == 0 || kept > 200 {
		t.Errorf("%d of 1000 messages kept", kept)
	}
}

func TestNilCacheBuilds(t *testing.T) {
	var c *Cache
	if m, err := c.Message([]byte("x"), buildUser); err != nil || c.Intern(m) != m {
		t.Errorf("got %v, %v", m, err)
	}
	if _, err := c.Tools([]byte("x"), func([]byte) ([]ToolSpec, error) { return nil, nil }); err != nil {
		t.Error(err)
	}
}

func TestCacheConcurrent(t *testing.T) {
	c := NewCache(50_000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				text := fmt.Sprintf("m%d", i%50)
				m, err := c.Message([]byte(text), buildUser)
				if err != nil || m.Content != text {
					t.Errorf("got %v, %v", m, err)
				}
				messages, _, err := c.Messages(fmt.Appendf(nil, `[{"a":%d},{"b":%d},{"c":%d}]`, i%7, i%5, i%3), 0,
					func(_ int, raw []byte) (*Message, error) { return buildUser(raw) })
				if err != nil || len(messages) != 3 || messages[1].Content != fmt.Sprintf(`{"b":%d}`, i%5) {
					t.Errorf("got %v, %v", messages, err)
				}
				if _, err := c.Tools([]byte(fmt.Sprintf(`[%d]`, i%3)), func([]byte) ([]ToolSpec, error) { return make([]ToolSpec, 1), nil }); err != nil {
					t.Error(err)
				}
				c.ExpectTools([]byte(`[1]`))
			}
		})
	}
	wg.Wait()
}

// list reads a list of messages and says which were built.
func list(t *testing.T, c *Cache, text string) (messages []*Message, built []int) {
	t.Helper()
	raw := []byte("x" + text + ",y")
	messages, end, err := c.Messages(raw, 1, func(i int, raw []byte) (*Message, error) {
		built = append(built, i)
		return buildUser(raw)
	})
	if err != nil || string(raw[end:]) != ",y" {
		t.Fatalf("%s: ends at %d, %v", text, end, err)
	}
	return messages, built
}

func TestCacheMessages(t *testing.T) {
	c := NewCache(0)
	if m, _ := list(t, c, `[ ]`); len(m) != 0 {
		t.Errorf("got %v", m)
	}
	first, built := list(t, c, `[{"a":1} , {"b":"]"},{"c":[]}]`)
	if len(first) != 3 || len(built) != 3 {
		t.Fatalf("got %v, built %v", first, built)
	}
	if first[1].Content != `{"b":"]"}` {
		t.Errorf("got %q", first[1].Content)
	}
	tests := []struct {
		text  string
		built string
	}{
		{`[{"a":1},{"b":"]"},{"c":[]}]`, "[]"},
		{`[{"a":1},{"b":"]"},{"c":[]},{"d":1}]`, "[3]"},
		{`[{"a":1},{"b":"]"}]`, "[]"},
		{`[{"z":1},{"b":"]"},{"c":[]}]`, "[0]"},  // another head, known followers
		{`[{"a":1},{"d":1},{"b":"]"}]`, "[]"},    // known messages in another order
		{`[{"a":1},{"d":1},{"b":"]"},7]`, "[3]"}, // an element that is no object
		{`[7,{"a":1}]`, "[]"},
		{`[71,{"a":1}]`, "[0]"}, // begins with the bytes of 7
	}
	for _, tt := range tests {
		if _, built := list(t, c, tt.text); fmt.Sprint(built) != tt.built {
			t.Errorf("%s: built %v, want %s", tt.text, built, tt.built)
		}
	}
	again, _ := list(t, c, `[{"a":1},{"b":"]"},{"c":[]}]`)
	for i := range again {
		if again[i] != first[i] {
			t.Errorf("message %d is not shared", i)
		}
	}
	for _, text := range []string{`[`, `[{`, `[{}`, `[{} {}]`, `[{},]`, `[,]`, `[{"a":1}`, `[{"a":1},`, `[{"a":1}x`} {
		if _, end, err := c.Messages([]byte(text), 0, func(_ int, raw []byte) (*Message, error) { return buildUser(raw) }); err == nil || end != 0 {
			t.Errorf("%s: end %d, %v", text, end, err)
		}
	}
	bad := errors.New("bad")
	text := `[{"n":1},{"n":2},{"n":3}]`
	_, end, err := c.Messages([]byte(text), 0, func(i int, raw []byte) (*Message, error) {
		if i == 1 {
			return nil, bad
		}
		return buildUser(raw)
	})
	if !errors.Is(err, bad) || end != len(text) {
		t.Errorf("end %d, %v", end, err)
	}
}

func TestCacheExpectTools(t *testing.T) {
	c := NewCache(0)
	build := func([]byte) ([]ToolSpec, error) { return []ToolSpec{NewToolSpec("f", nil, Value{})}, nil }
	a, _ := c.Tools([]byte("[f]"), build)
	if b, n := c.ExpectTools([]byte("[f],x")); n != 3 || &a[0] != &b[0] {
		t.Errorf("got %v, %d", b, n)
	}
	if _, n := c.ExpectTools([]byte("[g],x")); n != 0 {
		t.Errorf("got %d", n)
	}
}

// A cache far smaller than the history must still give the right messages.
func TestCacheMessagesBeyondLimit(t *testing.T) {
	c := NewCache(2000)
	var text bytes.Buffer
	text.WriteByte('[')
	for i := range 100 {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"n":%d}`, i)
	}
	text.WriteByte(']')
	for range 3 {
		messages, _ := list(t, c, text.String())
		for i, m := range messages {
			if m.Content != fmt.Sprintf(`{"n":%d}`, i) {
				t.Fatalf("message %d is %q", i, m.Content)
			}
		}
		if n := c.Bytes(); n > 3000 {
			t.Fatalf("holds %d bytes", n)
		}
	}
}
