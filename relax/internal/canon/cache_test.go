package canon

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func buildUser(raw []byte) (*Message, error) {
	return NewMessage(Message{Role: User, Content: string(raw)}), nil
}

// single makes the meaning of one message.
func single(m *Message, err error) (Meaning, error) {
	if err != nil {
		return Meaning{}, err
	}
	return Meaning{Messages: []*Message{m}}, nil
}

// readMessage reads bytes that mean one message.
func readMessage(c *Cache, raw []byte, build func(raw []byte) (*Message, error)) (*Message, error) {
	m, err := c.Read(raw, func(raw []byte) (Meaning, error) { return single(build(raw)) })
	if err != nil {
		return nil, err
	}
	return m.Messages[0], nil
}

// readMessages reads a list whose every element means one message.
func readMessages(c *Cache, raw []byte, at int, build func(index int, raw []byte) (*Message, error)) ([]*Message, int, error) {
	all, end, err := c.Elements(raw, at, func(i int, raw []byte) (Meaning, error) { return single(build(i, raw)) })
	return all.Messages, end, err
}

func TestCacheRecognisesBytes(t *testing.T) {
	c := NewCache(0)
	builds := 0
	build := func(raw []byte) (*Message, error) { builds++; return buildUser(raw) }
	raw := []byte(`"hello"`)
	a, err := readMessage(c, raw, build)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := readMessage(c, bytes.Clone(raw), build)
	if a != b || builds != 1 {
		t.Errorf("the second reading built again (%d builds)", builds)
	}
	// The cache keeps its own copy: the caller's buffer is reused for the next request.
	raw[1] = 'j'
	if d, _ := readMessage(c, raw, build); d == a || d.Content != `"jello"` || builds != 2 {
		t.Errorf("changed bytes gave %q", d.Content)
	}
	if a.Content != `"hello"` {
		t.Errorf("the first message changed to %q", a.Content)
	}
}

func TestCacheConfirmsHits(t *testing.T) {
	c := NewCache(0)
	m, _ := readMessage(c, []byte("one"), buildUser)
	// Put a span of other bytes under the same key, as a hash collision would.
	c.mu.Lock()
	for key, s := range c.young.spans {
		s.raw, s.Messages = []byte("two"), []*Message{NewMessage(Message{Role: User, Content: "two"})}
		c.young.spans[key] = s
	}
	c.mu.Unlock()
	if got, _ := readMessage(c, []byte("one"), buildUser); !got.Equal(m) {
		t.Errorf("got %q", got.Content)
	}
}

func TestCacheSharesEqualMessages(t *testing.T) {
	c := NewCache(0)
	response := c.Intern(NewMessage(Message{Role: Assistant, Content: "x"}))
	got, _ := readMessage(c, []byte("any bytes"), func([]byte) (*Message, error) {
		return NewMessage(Message{Role: Assistant, Content: "x"}), nil
	})
	if got != response {
		t.Error("a replayed response does not share the committed message")
	}
}

func TestCacheErrorsAreNotKept(t *testing.T) {
	c := NewCache(0)
	bad := errors.New("bad")
	if _, err := readMessage(c, []byte("x"), func([]byte) (*Message, error) { return nil, bad }); !errors.Is(err, bad) {
		t.Fatalf("got %v", err)
	}
	if m, err := readMessage(c, []byte("x"), buildUser); err != nil || m == nil {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	const limit = 20_000
	c := NewCache(limit)
	hot := []byte("hot")
	first, _ := readMessage(c, hot, buildUser)
	for i := range 1000 {
		if _, err := readMessage(c, fmt.Appendf(nil, "message %d", i), buildUser); err != nil {
			t.Fatal(err)
		}
		if n := c.Bytes(); n > limit+1000 {
			t.Fatalf("after %d messages the cache holds %d bytes", i, n)
		}
		if got, _ := readMessage(c, hot, buildUser); got != first {
			t.Fatalf("a message in use was forgotten at %d", i)
		}
	}
	kept := 0
	for i := range 1000 {
		raw := fmt.Appendf(nil, "message %d", i)
		if s, _ := c.find(keyOf(0, raw), 0, raw); s != nil {
			kept++
		}
	}
	if kept == 0 || kept > 200 {
		t.Errorf("%d of 1000 messages kept", kept)
	}
}

func TestNilCacheBuilds(t *testing.T) {
	var c *Cache
	if m, err := readMessage(c, []byte("x"), buildUser); err != nil || c.Intern(m) != m {
		t.Errorf("got %v, %v", m, err)
	}
	if m, end, err := c.ToolList([]byte("[1]"), 0, func([]byte) (Meaning, error) { return Meaning{Skipped: []string{"s"}}, nil }); err != nil || end != 3 || len(m.Skipped) != 1 {
		t.Errorf("got %v, %d, %v", m, end, err)
	}
}

func TestCacheConcurrent(t *testing.T) {
	c := NewCache(50_000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				text := fmt.Sprintf("m%d", i%50)
				m, err := readMessage(c, []byte(text), buildUser)
				if err != nil || m.Content != text {
					t.Errorf("got %v, %v", m, err)
				}
				messages, _, err := readMessages(c, fmt.Appendf(nil, `[{"a":%d},{"b":%d},{"c":%d}]`, i%7, i%5, i%3), 0,
					func(_ int, raw []byte) (*Message, error) { return buildUser(raw) })
				if err != nil || len(messages) != 3 || messages[1].Content != fmt.Sprintf(`{"b":%d}`, i%5) {
					t.Errorf("got %v, %v", messages, err)
				}
				tools, _, err := c.For(1).ToolList([]byte(fmt.Sprintf(`[%d]`, i%3)), 0, func(raw []byte) (Meaning, error) {
					return Meaning{Tools: []ToolSpec{NewToolSpec(string(raw), nil, Value{})}}, nil
				})
				if err != nil || tools.Tools[0].Name != fmt.Sprintf(`[%d]`, i%3) {
					t.Errorf("got %v, %v", tools, err)
				}
			}
		})
	}
	wg.Wait()
}

// list reads a list of messages and says which were built.
func list(t *testing.T, c *Cache, text string) (messages []*Message, built []int) {
	t.Helper()
	raw := []byte("x" + text + ",y")
	messages, end, err := readMessages(c, raw, 1, func(i int, raw []byte) (*Message, error) {
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
		if _, end, err := readMessages(c, []byte(text), 0, func(_ int, raw []byte) (*Message, error) { return buildUser(raw) }); err == nil || end != 0 {
			t.Errorf("%s: end %d, %v", text, end, err)
		}
	}
	bad := errors.New("bad")
	text := `[{"n":1},{"n":2},{"n":3}]`
	_, end, err := readMessages(c, []byte(text), 0, func(i int, raw []byte) (*Message, error) {
		if i == 1 {
			return nil, bad
		}
		return buildUser(raw)
	})
	if !errors.Is(err, bad) || end != len(text) {
		t.Errorf("end %d, %v", end, err)
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

// letters reads {"m":"abc"} as one message a letter; x is left out.
func letters(_ int, raw []byte) (Meaning, error) {
	v, err := ParseOwned(raw)
	if err != nil {
		return Meaning{}, err
	}
	text, _ := v.Get("m")
	var m Meaning
	for _, letter := range text.Str() {
		if letter == 'x' {
			m.Skipped = append(m.Skipped, "x")
			continue
		}
		m.Messages = append(m.Messages, NewMessage(Message{Role: User, Content: string(letter)}))
	}
	return m, nil
}

func TestCacheElements(t *testing.T) {
	text := []byte(`[{"m":"ab"},{"m":""},7,{"m":"x"},{"m":"c"},{"m":"dxe"}]`)
	var first []*Message
	for _, c := range []*Cache{nil, NewCache(0), NewCache(100)} {
		for round := range 3 {
			built := 0
			all, end, err := c.Elements(text, 0, func(i int, raw []byte) (Meaning, error) {
				built++
				if i == 2 && string(raw) != "7" {
					t.Errorf("element 2 is %s", raw)
				}
				return letters(i, raw)
			})
			if err != nil || end != len(text) || fmt.Sprint(all.Skipped) != "[x x]" {
				t.Fatalf("end %d, skipped %v, %v", end, all.Skipped, err)
			}
			if got := contents(all.Messages); got != "a b c d e" {
				t.Fatalf("round %d: got %s", round, got)
			}
			if c == nil || c.limit < 1000 {
				continue
			}
			if round > 0 && built > 0 {
				t.Errorf("round %d: %d elements were built again", round, built)
			}
			if round == 0 {
				first = all.Messages
			}
			for i := range first {
				if first[i] != all.Messages[i] {
					t.Errorf("round %d: message %d is not shared", round, i)
				}
			}
		}
	}
}

func contents(messages []*Message) string {
	var texts []string
	for _, m := range messages {
		texts = append(texts, m.Content)
	}
	return strings.Join(texts, " ")
}

// A caller may change the list it got: the next caller gets its own.
func TestCacheElementsAreTheCallers(t *testing.T) {
	c := NewCache(0)
	for range 3 {
		all, _, err := c.Elements([]byte(`[{"m":"ab"},{"m":"c"}]`), 0, letters)
		if err != nil || contents(all.Messages) != "a b c" {
			t.Fatalf("got %s, %v", contents(all.Messages), err)
		}
		clear(all.Messages)
	}
}

// The same bytes mean different things under different rules, in lists and alone.
func TestCacheKeepsRulesApart(t *testing.T) {
	c := NewCache(0)
	say := func(text string) func(raw []byte) (Meaning, error) {
		return func([]byte) (Meaning, error) {
			return Meaning{Messages: []*Message{NewMessage(Message{Role: User, Content: text})}, Tools: []ToolSpec{NewToolSpec(text, nil, Value{})}}, nil
		}
	}
	for range 2 {
		for rules := range Rules(3) {
			want := fmt.Sprint("rules ", rules)
			view := c.For(rules)
			all, _, err := view.Elements([]byte(`[{"a":1},{"b":1},{"a":1}]`), 0, func(_ int, raw []byte) (Meaning, error) { return say(want)(raw) })
			if err != nil || contents(all.Messages) != want+" "+want+" "+want {
				t.Errorf("%s: list %s, %v", want, contents(all.Messages), err)
			}
			if m, err := view.Read([]byte(`"v"`), say(want)); err != nil || contents(m.Messages) != want {
				t.Errorf("%s: value %s, %v", want, contents(m.Messages), err)
			}
			if m, end, err := view.ToolList([]byte(`x[1]`), 1, say(want)); err != nil || end != 4 || m.Tools[0].Name != want {
				t.Errorf("%s: tools %v, %d, %v", want, m.Tools, end, err)
			}
		}
	}
	if (*Cache)(nil).For(1) != nil {
		t.Error("a view of no cache is a cache")
	}
	if a, b := c.For(1).Intern(NewMessage(Message{Role: User, Content: "z"})), c.For(2).Intern(NewMessage(Message{Role: User, Content: "z"})); a != b {
		t.Error("equal messages of two views are not shared")
	}
}

func TestCacheToolList(t *testing.T) {
	c, bad := NewCache(0), errors.New("bad")
	built := 0
	build := func(raw []byte) (Meaning, error) {
		built++
		if string(raw) == "[bad]" {
			return Meaning{}, bad
		}
		return Meaning{Tools: []ToolSpec{NewToolSpec(string(raw), nil, Value{})}, Skipped: []string{"s"}}, nil
	}
	for _, text := range []string{`[1]`, `[2]`, `[1]`, `[1]`, `[2]`} {
		m, end, err := c.ToolList([]byte(text+",x"), 0, build)
		if err != nil || end != 3 || m.Tools[0].Name != text || m.Skipped[0] != "s" {
			t.Errorf("%s: %v, %d, %v", text, m, end, err)
		}
	}
	if built != 2 {
		t.Errorf("%d lists were built", built)
	}
	a, _, _ := c.ToolList([]byte(`[1]`), 0, build)
	if b, _, _ := c.ToolList([]byte(`[1]`), 0, build); &a.Tools[0] != &b.Tools[0] {
		t.Error("the list is not shared")
	}
	if _, end, err := c.ToolList([]byte(`[bad],`), 0, build); !errors.Is(err, bad) || end != 5 {
		t.Errorf("end %d, %v", end, err)
	}
	if _, end, err := c.ToolList([]byte(`[`), 0, build); err == nil || end != 0 {
		t.Errorf("end %d, %v", end, err)
	}
	if _, end, err := c.ToolList([]byte(`[`), 1, build); err == nil || end != 0 {
		t.Errorf("end %d, %v", end, err)
	}
}
