package chat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
)

// A client that writes the stand-in's marks of earlier versions, in bulk and in arguments, gets
// what anybody gets.
func TestMarksInMessagesChangeNothing(t *testing.T) {
	f := byteFormat(t)
	end := Prev{IDs: generated(t, f, "x<|im_end|>")}
	var bulk strings.Builder
	for n := range 20000 {
		bulk.WriteString(anchor(uint64(n)))
	}
	written := assistant("")
	written.ToolCalls = []canon.ToolCall{{ID: "1", Name: "f", Arguments: `{"x":"` + anchor(0) + `"}`}}
	for name, turns := range map[string][]*canon.Message{
		"in bulk":      {user(bulk.String())},
		"in arguments": {user("u2"), written, result("1", "r"), user("u3")},
	} {
		req := request(append([]*canon.Message{user("u1"), assistant("x")}, turns...)...)
		got, err := f.Observe(req, 2, end)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := "\n<|im_start|>user\n" + turns[0].Content + "<|im_end|>\n"
		if body := decoded(t, f.tok, got.Body); !strings.HasPrefix(body, want) {
			t.Errorf("%s: the observation begins %.80q", name, body)
		}
	}
}

// A turn that was cut off right behind a token which opens turns still lacks its terminator.
func TestAnOpenerIsNoEnd(t *testing.T) {
	f := byteFormat(t)
	got, err := f.Observe(request(user("u1"), assistant("half"), user("u2")), 2, Prev{IDs: generated(t, f, "half<|im_start|>")})
	if err != nil {
		t.Fatal(err)
	}
	if body := decoded(t, f.tok, got.Body); body != "<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n" {
		t.Errorf("the observation is %q", body)
	}
}

// madeUp is the format of a template of the test's own.
func madeUp(template string) (*Format, error) {
	tok := bytetok.NewWith([]tokenizer.AddedToken{
		{Content: "<|user|>", Special: true}, {Content: "<|assistant|>", Special: true}, {Content: "<|end|>", Special: true},
		{Content: "<think>", Special: true}, {Content: "</think>", Special: true},
	})
	end, _ := tok.TokenID("<|end|>")
	return newFormat(tok, checkpoint{templates: []source{{defaultTemplate, "made up", template}}, eos: []int32{end}}, Options{})
}

// A template whose responses cannot be told from what follows them must not start.
func TestATailThatRepeatsTheResponseIsRefused(t *testing.T) {
	_, err := madeUp(`{%- for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}` +
		`{{ m.content | upper if m.role == 'assistant' else m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`)
	if err == nil || !strings.Contains(err.Error(), "no way to go on after a response holds") {
		t.Errorf("err %v", err)
	}
}

func TestASystemMessageThatTheTemplateIgnoresIsRefused(t *testing.T) {
	f, err := madeUp(`{%- for m in messages if m.role != 'system' %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}` +
		`{% if add_generation_prompt %}<|assistant|>{% endif %}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Observe(request(system("secret"), user("u")), 0, Prev{}); err == nil || !strings.Contains(err.Error(), "system message") {
		t.Errorf("err %v", err)
	}
}

// What the cache keeps of a long render is the part that it counts.
func TestTheCacheKeepsNoHistory(t *testing.T) {
	long := script{text: []byte(strings.Repeat("x", 1<<20))}
	var c encodeCache
	for i := range 8 {
		tail := script{text: append(long.text[:len(long.text):len(long.text)], fmt.Sprint(i)...)}.from(1 << 20)
		if _, err := c.get(tail, func(*script) ([]int32, error) { return []int32{1}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range c.entries {
		if e.script.part || cap(e.script.text) > 64 {
			t.Fatalf("an entry of %d bytes keeps %d", len(e.script.text), cap(e.script.text))
		}
	}
}
