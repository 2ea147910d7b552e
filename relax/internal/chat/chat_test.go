package chat

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
)

// byteFormat is the built-in format with Qwen3's parsers.
func byteFormat(t testing.TB) *Format {
	t.Helper()
	f, err := New(bytetok.New(), Options{ReasoningParser: "qwen3", ToolCallParser: "qwen"})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// styled is a byte format in another style.
func styled(t testing.TB, s style) *Format {
	t.Helper()
	f, err := newFormat(bytetok.New(), s, nil, Options{ReasoningParser: "qwen3", ToolCallParser: "qwen"})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func user(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.User, Content: text})
}

func system(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.System, Content: text})
}

func assistant(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.Assistant, Content: text})
}

func result(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.Tool, Content: text})
}

func request(messages ...*canon.Message) *canon.Request {
	return &canon.Request{Messages: messages, Kwargs: canon.ObjectOf()}
}

func kwargs(t testing.TB, text string) canon.Value {
	t.Helper()
	v, err := canon.ParseValue([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// text decodes ids.
func text(t testing.TB, tok tokenizer.Tokenizer, ids ...[]int32) string {
	t.Helper()
	var all []int32
	for _, part := range ids {
		all = append(all, part...)
	}
	s, err := tok.Decode(all)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// generated encodes text as a model samples it: control tokens as their ids.
func generated(t testing.TB, f *Format, text string) []int32 {
	t.Helper()
	var s script
	s.template(f.controls, text)
	ids, err := s.ids(f.encode)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// rendered is the whole conversation as the template prints it.
func rendered(f *Format, req *canon.Request, generationPrompt bool) string {
	return string(renderScript(f, req, generationPrompt).text)
}

func renderScript(f *Format, req *canon.Request, generationPrompt bool) *script {
	v, s := f.scene(req), &script{}
	f.style.head(s, v)
	for i := range v.messages {
		f.style.message(s, v, i)
	}
	if generationPrompt {
		f.style.prompt(s, v)
	}
	return s
}

// sharedPath is a development fixture's path. Fixtures lie beside the repository and are not
// part of it.
func sharedPath(t testing.TB, name string) string {
	t.Helper()
	root := os.Getenv("RELAX_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "..", "shared")
	}
	path := filepath.Join(root, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("SKIPPED, PARITY WITH HUGGING FACE NOT CHECKED: %v (set RELAX_SHARED)", err)
	}
	return path
}
