package chat

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

func user(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.User, Content: text})
}

func system(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.System, Content: text})
}

func assistant(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.Assistant, Content: text})
}

func result(id, text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.Tool, Content: text, ToolCallID: id})
}

// calling is an assistant message with calls, given as id, name, arguments for each.
func calling(content string, calls ...string) *canon.Message {
	m := canon.Message{Role: canon.Assistant, Content: content}
	for i := 0; i < len(calls); i += 3 {
		m.ToolCalls = append(m.ToolCalls, canon.ToolCall{ID: calls[i], Name: calls[i+1], Arguments: calls[i+2]})
	}
	return canon.NewMessage(m)
}

func thinking(m *canon.Message, reasoning string) *canon.Message {
	out := *m
	out.Reasoning = reasoning
	return canon.NewMessage(out)
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

// decoded is the text of ids.
func decoded(t testing.TB, tok tokenizer.Tokenizer, ids ...[]int32) string {
	t.Helper()
	s, err := tok.Decode(slices.Concat(ids...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// generated encodes text as a model samples it: control tokens as their ids.
func generated(t testing.TB, f *Format, text string) []int32 {
	t.Helper()
	s := script{text: []byte(text), marks: f.controls.scan([]byte(text), nil)}
	ids, err := f.encodeScript(&s)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// need skips a test that lacks something, loudly, and fails it where nothing may be lacking.
func need(t testing.TB, format string, args ...any) {
	t.Helper()
	message := "CHAT FORMATS ARE NOT CHECKED: " + fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatal(message)
	}
	t.Skip(message)
}

// sharedPath is a development fixture's path. Fixtures lie beside the repository and are not
// part of it.
func sharedPath(t testing.TB, name string) string {
	t.Helper()
	root := os.Getenv("RELAX_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "..", "shared")
	}
	path := filepath.Join(root, filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		need(t, "%v (set RELAX_SHARED)", err)
	}
	return path
}

// fixture is the text of a chat template of the shared fixtures.
func fixture(t testing.TB, name string) string {
	t.Helper()
	raw, err := os.ReadFile(sharedPath(t, "fixtures/chat_templates/"+name+".jinja"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// fixedNow is the clock of the shared fixtures.
func fixedNow() time.Time { return time.Date(2025, 3, 7, 9, 5, 2, 0, time.UTC) }

// spelled finds the control tokens of all template families.
var spelled = regexp.MustCompile(`<\|[A-Za-z_0-9/]+\|?>|<｜[^｜<>'"]+｜>|\[/?[A-Z_]{3,}\]|</?s>|<(start|end)_of_turn>|` +
	`<\|turn>|<turn\|>|<\|?channel\|?>|<end_of_utterance>|<sep>|\[e~\[|\]~b\]|\]~!b\[|<bos>|<eos>|\[gMASK\]|<sop>|<\|?tool_[a-z]+\|?>`)

// tags are the spellings that vocabularies list as ordinary tokens.
var tags = []string{"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}

// vocabulary is a byte tokenizer with the control tokens that texts spell, and tags.
func vocabulary(texts ...string) *bytetok.Tokenizer {
	var found []string
	for _, text := range texts {
		found = append(found, spelled.FindAllString(text, -1)...)
	}
	slices.Sort(found)
	var list []tokenizer.AddedToken
	for _, s := range slices.Compact(found) {
		if !slices.Contains(tags, s) {
			list = append(list, tokenizer.AddedToken{Content: s, Special: true})
		}
	}
	for _, s := range tags {
		list = append(list, tokenizer.AddedToken{Content: s})
	}
	return bytetok.NewWith(list)
}

// templated is a format of a fixture's template with the special tokens given; eos are the
// ids of generation_config.json, the eos_token first.
func templated(t testing.TB, name, bos string, eos ...string) (*Format, error) {
	t.Helper()
	text := fixture(t, name)
	tok := vocabulary(append([]string{text, bos, "<|endoftext|>"}, eos...)...)
	c := checkpoint{templates: []source{{defaultTemplate, name, text}},
		specials: []specialToken{{"bos_token", bos}, {"eos_token", eos[0]}, {"unk_token", "<unk>"}, {"pad_token", eos[0]}}}
	for _, s := range eos {
		id, ok := tok.TokenID(s)
		if !ok {
			t.Fatalf("%s is no token", s)
		}
		c.eos = append(c.eos, id)
	}
	return newFormat(tok, c, Options{Now: fixedNow})
}

var formats sync.Map // name and tokens → *Format; byte tokenizers hold nothing that must be closed

// family is [templated] for tests that share it.
func family(t testing.TB, name, bos string, eos ...string) *Format {
	t.Helper()
	f, err := tryFamily(t, name, bos, eos...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return f
}

func tryFamily(t testing.TB, name, bos string, eos ...string) (*Format, error) {
	t.Helper()
	key := strings.Join(append([]string{name, bos}, eos...), "\x00")
	if f, ok := formats.Load(key); ok {
		return f.(*Format), nil
	}
	f, err := templated(t, name, bos, eos...)
	if err == nil {
		formats.Store(key, f)
	}
	return f, err
}

// fixtureFormat has the special tokens of the shared cases.
func fixtureFormat(t testing.TB, name string) *Format { return family(t, name, "<s>", "</s>") }

// templateNames are all templates of the shared fixtures.
func templateNames(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(sharedPath(t, "fixtures/chat_templates"), "*.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	out := make([]string, len(files))
	for i, file := range files {
		out[i] = strings.TrimSuffix(filepath.Base(file), ".jinja")
	}
	return out
}
