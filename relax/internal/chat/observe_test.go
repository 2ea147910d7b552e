package chat

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
)

func TestObserve(t *testing.T) {
	f := byteFormat(t)
	end, cut := Prev{IDs: generated(t, f, "x<|im_end|>")}, Prev{IDs: generated(t, f, "x")}
	other := Prev{IDs: generated(t, f, "x<|endoftext|>")}
	const prompt = "<|im_start|>assistant\n"
	const u1 = "<|im_start|>user\nu1<|im_end|>\n"
	for _, c := range []struct {
		name         string
		req          *canon.Request
		from         int
		prev         Prev
		body, prompt string
	}{
		{"first", request(user("u1")), 0, Prev{}, u1, prompt},
		{"first with system", request(system("s"), user("u1")), 0, Prev{}, "<|im_start|>system\ns<|im_end|>\n" + u1, prompt},
		{"delta", request(user("u1"), assistant("x"), user("u2")), 2, end, "\n<|im_start|>user\nu2<|im_end|>\n", prompt},
		{"after a cut turn", request(user("u1"), assistant("x"), user("u2")), 2, cut, "<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n", prompt},
		{"after another stop token", request(user("u1"), assistant("x"), user("u2")), 2, other, "<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n", prompt},
		{"after an empty turn", request(user("u1"), assistant(""), user("u2")), 2, Prev{}, "<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n", prompt},
		{"nothing new", request(user("u1"), assistant("x")), 2, end, "\n", prompt},
		{"tool results share a turn", request(user("u1"), calling("", "1", "f", "{}", "2", "f", "{}"), result("1", "r1"), result("2", "r2"), user("u2")), 2, end,
			"\n<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response><|im_end|>\n" +
				"<|im_start|>user\nu2<|im_end|>\n", prompt},
		{"results without calls", request(user("u1"), assistant("x"), result("", "r1")), 2, end,
			"\n<|im_start|>user\n<tool_response>\nr1\n</tool_response><|im_end|>\n", prompt},
		{"later system message", request(user("u1"), assistant("x"), system("s")), 2, end, "\n<|im_start|>system\ns<|im_end|>\n", prompt},
		{"ends in the agent's own answer", request(user("u1"), assistant("a")), 0, Prev{},
			u1 + "<|im_start|>assistant\n<think>\n\n</think>\n\na<|im_end|>\n", prompt},
		{"the agent's own answer before a question", request(user("u1"), assistant("x"), user("u2"), assistant("a"), user("u3")), 2, end,
			"\n<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nu3<|im_end|>\n", prompt},
		{"a message that spells the stand-in", request(user("u1"), assistant("x"), user(anchor(0)+anchor(1))), 2, end,
			"\n<|im_start|>user\n" + anchor(0) + anchor(1) + "<|im_end|>\n", prompt},
		{"a response that spells it", request(user("u1"), assistant(anchor(0)), user("u2")), 2, end, "\n<|im_start|>user\nu2<|im_end|>\n", prompt},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := f.Observe(c.req, c.from, c.prev)
			if err != nil {
				t.Fatal(err)
			}
			if body := decoded(t, f.tok, got.Body); body != c.body {
				t.Errorf("body %q\nwant %q", body, c.body)
			}
			if p := decoded(t, f.tok, got.Prompt); p != c.prompt {
				t.Errorf("prompt %q, want %q", p, c.prompt)
			}
		})
	}
}

func TestObserveErrors(t *testing.T) {
	f := byteFormat(t)
	if _, err := f.Observe(request(), 0, Prev{}); err == nil {
		t.Error("no messages: no error")
	}
	for _, from := range []int{-1, 2} {
		if _, err := f.Observe(request(user("u")), from, Prev{}); err == nil || !strings.Contains(err.Error(), "the request has 1") {
			t.Errorf("from %d: %v", from, err)
		}
	}
	bad := &canon.Message{Role: canon.User, Content: "\xff"}
	for range 2 { // the second time as well: a failure is not cached
		if _, err := f.Observe(request(bad), 0, Prev{}); err == nil || !strings.Contains(err.Error(), "observe messages 0 to 0") {
			t.Errorf("bad UTF-8: %v", err)
		}
	}
}

// TestTemplateErrors: what a template cannot print is a *TemplateError that says what.
func TestTemplateErrors(t *testing.T) {
	talk := request(user("u"), calling("", "call00001", "f", "{}"), result("call00001", "r"))
	for _, c := range []struct {
		name string
		req  *canon.Request
		want string
	}{
		{"lc__microsoft-Phi-3.5-mini-instruct", talk, "does not print tool"},
		{"npm__gemma3", talk, "does not print tool"},
		{"lc__google-gemma-2-2b-it", talk, "does not print tool"},
		{"trl__cohere", talk, "does not print tool"},
		{"trl__phi3_5", request(user("u"), assistant("a"), result("x", "r")), "does not print tool results"},
		{"lc__meta-llama-Llama-3.1-8B-Instruct", request(user("u"), calling("", "a", "f", "{}", "b", "f", "{}")), "only supports single tool-calls"},
		{"lc__Qwen3.5-4B", request(system("s")), "No user query found"},
	} {
		f := family(t, c.name, "<s>", "</s>")
		for from := range len(c.req.Messages) {
			if from > 1 || from == 1 && len(c.req.Messages) == 2 {
				continue
			}
			_, err := f.Observe(c.req, from, Prev{})
			var fault *TemplateError
			if !errors.As(err, &fault) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.name) {
				t.Errorf("%s from %d: %v, want %q", c.name, from, err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "NoneType") {
				t.Errorf("%s: %v: the agent gave no None", c.name, err)
			}
			if errors.As(err, &fault) && fault.Template != c.name {
				t.Errorf("%s: the template is %q", c.name, fault.Template)
			}
		}
	}
}

func TestEnableThinking(t *testing.T) {
	const open, off = "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
	f := byteFormat(t)
	for kw, want := range map[string]string{
		`{}`: open, `{"enable_thinking":true}`: open, `{"enable_thinking":null}`: open,
		`{"enable_thinking":0}`:     open, // the template asks for exactly false
		`{"enable_thinking":false}`: off,
	} {
		req := request(user("u"), assistant("x"), user("u"))
		req.Kwargs = kwargs(t, kw)
		for _, from := range []int{0, 2} {
			obs, err := f.Observe(req, from, Prev{})
			if err != nil {
				t.Fatal(err)
			}
			if got := decoded(t, f.tok, obs.Prompt); got != want {
				t.Errorf("%s from %d: prompt %q, want %q", kw, from, got, want)
			}
		}
	}
}

// TestToolsAreThePrintedOnes: tools from a client keep its key order and its other keys.
func TestToolsAreThePrintedOnes(t *testing.T) {
	f := byteFormat(t)
	description := "d \"é\" <b>"
	req := request(user("u"))
	own := canon.NewToolSpec("h", nil, canon.Value{})
	own.Function = kwargs(t, `{"strict":true,"parameters":{"b":1,"a":2.0},"name":"h","description":"later"}`)
	req.Tools = []canon.ToolSpec{
		canon.NewToolSpec("f", &description, kwargs(t, `{"type":"object","properties":{"z":{"default":1.0},"a":{}}}`)),
		canon.NewToolSpec("g", nil, canon.ObjectOf()), own,
	}
	obs, err := f.Observe(req, 0, Prev{})
	if err != nil {
		t.Fatal(err)
	}
	want := "<tools>\n" +
		`{"type": "function", "function": {"name": "f", "description": "d \"é\" <b>", "parameters": {"type": "object", "properties": {"z": {"default": 1.0}, "a": {}}}}}` + "\n" +
		`{"type": "function", "function": {"name": "g", "parameters": {}}}` + "\n" +
		`{"type": "function", "function": {"strict": true, "parameters": {"b": 1, "a": 2.0}, "name": "h", "description": "later"}}` + "\n</tools>"
	if got := decoded(t, f.tok, obs.Body); !strings.Contains(got, want) {
		t.Errorf("body %q\ndoes not hold %q", got, want)
	}
}

// A counter counts the texts it encodes and can hold them up.
type counter struct {
	tokenizer.Tokenizer
	count atomic.Int64
	gate  chan struct{}
}

func (c *counter) wait(n int) {
	c.count.Add(int64(n))
	if c.gate != nil {
		<-c.gate
	}
}

func (c *counter) Encode(text string) ([]int32, error) {
	c.wait(1)
	return c.Tokenizer.Encode(text)
}

func (c *counter) EncodeInner(text string) ([]int32, error) {
	c.wait(1)
	return c.Tokenizer.EncodeInner(text)
}

func (c *counter) EncodeBatch(texts []string) ([][]int32, error) {
	c.wait(len(texts))
	return c.Tokenizer.EncodeBatch(texts)
}

func TestSiblingsEncodeOnce(t *testing.T) {
	tok := &counter{Tokenizer: bytetok.New()}
	f, err := New(tok, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Observe(request(user("first")), 0, Prev{}); err != nil { // the prompt is known from now on
		t.Fatal(err)
	}
	tok.gate = make(chan struct{})
	tok.count.Store(0)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			// Each sibling has its own messages with the same text.
			obs, err := f.Observe(request(user(strings.Repeat("long ", 100))), 0, Prev{})
			if err != nil || len(obs.Body) < 500 {
				t.Errorf("%d ids, %v", len(obs.Body), err)
			}
			_ = append(obs.Body, 1) // must copy: the race detector sees it if not
		})
	}
	close(tok.gate)
	group.Wait()
	if got := tok.count.Load(); got != 1 { // the text of the turn; the newline behind it is known
		t.Errorf("%d runs encoded, want 1", got)
	}
}

func TestEncodeCacheIsBounded(t *testing.T) {
	f := byteFormat(t)
	for i := range 3 * cacheEntries {
		if _, err := f.Observe(request(user(fmt.Sprint(i))), 0, Prev{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.cache.entries); n != cacheEntries || len(f.cache.order) != n {
		t.Errorf("%d entries, %d in order", n, len(f.cache.order))
	}
	for range 3 {
		if _, err := f.Observe(request(user(strings.Repeat("x", cacheBytes/2))), 0, Prev{}); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for _, e := range f.cache.entries {
		total += e.size()
	}
	if total != f.cache.bytes || total > cacheBytes {
		t.Errorf("%d bytes counted, %d held", f.cache.bytes, total)
	}
}

func TestEncodeCacheTellsMarksApart(t *testing.T) {
	var c encodeCache
	const text = "<|im_end|>"
	plain := script{text: []byte(text)}
	other := script{text: []byte(text), marks: []mark{{0, len(text), 1}}}
	encode := func(s *script) ([]int32, error) { return []int32{int32(len(s.marks))}, nil }
	for range 2 {
		a, _ := c.get(plain, encode)
		b, _ := c.get(other, encode)
		if a[0] != 0 || b[0] != 1 {
			t.Fatalf("plain %v, marked %v", a, b)
		}
	}
}

func TestPanicReleasesWaiters(t *testing.T) {
	var c encodeCache
	s := script{text: []byte("x")}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		c.get(s, func(*script) ([]int32, error) { panic("boom") })
	}()
	ids, err := c.get(s, func(*script) ([]int32, error) { return []int32{1}, nil })
	if err != nil || len(ids) != 1 {
		t.Errorf("afterwards: %v, %v", ids, err)
	}
}

// TestPromptsAreBounded: a client may send other template arguments with each request.
func TestPromptsAreBounded(t *testing.T) {
	f := byteFormat(t)
	for i := range 3 * maxPrompts {
		req := request(user("u"))
		req.Kwargs = canon.ObjectOf(canon.Member{Key: "n", Value: canon.IntValue(int64(i))})
		if _, err := f.Observe(req, 0, Prev{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.prompts); n > maxPrompts {
		t.Errorf("%d prompts are remembered", n)
	}
}
