package chat

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/hf"
)

// A realModel is a tokenizer that the npm packages carry, with its family's template.
type realModel struct {
	dir, template string
	parsers       Options
	rewrites      string // a name in rewritings
}

func (m realModel) name() string { return strings.Trim(m.dir+" "+m.template, " ") }

var realModels = []realModel{
	{"qwen3", "", Options{ReasoningParser: "qwen3", ToolCallParser: "qwen"}, "npm__qwen3"},
	{"qwen3", "lc__Qwen-Qwen2.5-7B-Instruct", Options{ToolCallParser: "qwen"}, "lc__Qwen-Qwen2.5-7B-Instruct"},
	{"deepseek_v3", "", Options{ToolCallParser: "deepseekv3"}, "npm__deepseek_v3"},
	{"llama3_1", "lc__meta-llama-Llama-3.1-8B-Instruct", Options{ToolCallParser: "llama3"}, "lc__meta-llama-Llama-3.1-8B-Instruct"},
	{"gptoss", "lc__openai-gpt-oss-120b", Options{ReasoningParser: "gpt-oss", ToolCallParser: "gpt-oss"}, "lc__openai-gpt-oss-120b"},
	{"gemma3", "", Options{}, "npm__gemma3"},
}

// real loads a checkpoint, with a template of the fixtures where it has none of its family.
func real(t testing.TB, m realModel) *Format {
	t.Helper()
	root := os.Getenv("RELAX_CHECKPOINTS")
	if root == "" {
		root = filepath.Join("..", "..", "..", ".cache", "checkpoints")
	}
	from, err := filepath.Abs(filepath.Join(root, m.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(from, tokenizerFile)); err != nil {
		need(t, "%v (`make deps` fetches it; RELAX_CHECKPOINTS names another place)", err)
	}
	dir := t.TempDir()
	for _, file := range []string{tokenizerFile, configFile} {
		if err := os.Symlink(filepath.Join(from, file), filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	if m.template != "" {
		if err := os.WriteFile(filepath.Join(dir, jinjaFile), []byte(fixture(t, m.template)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if m.dir == "gptoss" { // what the model's own file says
		if err := os.WriteFile(filepath.Join(dir, generationFile), []byte(`{"eos_token_id": [200002, 199999, 200012]}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.parsers.Now = fixedNow
	f, err := Load(dir, m.parsers)
	if errors.Is(err, hf.ErrNotBuilt) {
		need(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestReal loads each real tokenizer once for all that is to be checked with it.
func TestReal(t *testing.T) {
	for _, m := range realModels {
		t.Run(m.name(), func(t *testing.T) {
			t.Parallel()
			f := real(t, m)
			t.Run("lineage", func(t *testing.T) { testRealLineage(t, f, m) })
			t.Run("dropped reasoning", func(t *testing.T) { testDroppedReasoning(t, f, m.rewrites) })
			t.Run("shield", func(t *testing.T) { testRealShield(t, f) })
			if m.dir != "deepseek_v3" { // its template never closes one call: no parser reads that
				t.Run("replies", func(t *testing.T) { testRealReplies(t, f) })
			}
		})
	}
}

// testRealLineage grows 50 conversations. The lineage's text is as with byte tokens; its ids
// are those of one full render wherever its text is.
func testRealLineage(t *testing.T, f *Format, m realModel) {
	found := map[string]bool{}
	same := 0
	for seed := range uint64(50) {
		l := grow(t, f, talkerOf(f, seed).talk())
		if here := l.check(t); len(here) == 0 {
			same++
		} else {
			maps.Copy(found, here)
		}
	}
	want := rewritings[m.rewrites]
	for _, s := range slices.Sorted(maps.Keys(found)) {
		if !slices.Contains(want.differences, s) {
			t.Errorf("found %s", s)
		}
	}
	t.Logf("the ids of %d of 50 conversations are those of one render", same)
	if len(want.differences) == 0 && same != 50 {
		t.Errorf("only %d of 50 are", same)
	}
}

// testRealShield: text of messages never becomes a control token of a real vocabulary, plain
// tags do as Hugging Face encodes them.
func testRealShield(t *testing.T, f *Format) {
	count := func(text string) map[string]int {
		t.Helper()
		obs, err := f.Observe(request(user(text), assistant("a"), user(text)), 0, Prev{})
		if err != nil {
			t.Fatal(err)
		}
		delta, err := f.Observe(request(user("u"), assistant(text), user(text)), 2, Prev{IDs: []int32{f.Terminator()}})
		if err != nil {
			t.Fatal(err)
		}
		return counted(f, obs.Body, obs.Prompt, delta.Body, delta.Prompt)
	}
	want := count("harmless")
	for kind, text := range spellings(f) {
		if got := count(text); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
	tag, ok := f.tok.TokenID("<think>")
	if !ok || f.controls.token(tag) != nil {
		return // no such token, or a special one
	}
	obs, err := f.Observe(request(user("x<think>y")), 0, Prev{})
	if err != nil || !slices.Contains(obs.Body, tag) {
		t.Errorf("the tag <think> is no token in %v, %v", obs.Body, err)
	}
}

// testRealReplies: what a model samples for a call and an answer is read back.
func testRealReplies(t *testing.T, f *Format) {
	turns := paris("")
	if !f.tools.traits.Calls {
		turns = []*canon.Message{user("u"), assistant("18 degrees."), user("w")}
	}
	c := conversation{turns: turns, tooling: []canon.ToolSpec{weather}, options: canon.ObjectOf()}
	for k, said := range turns {
		if said.Role != canon.Assistant {
			continue
		}
		text, ok := f.tools.sampled(c, k)
		if !ok {
			t.Errorf("response %d is not what its prompt began", k)
			continue
		}
		ids, err := f.encodeScript(&text)
		if err != nil {
			t.Fatal(err)
		}
		req := &canon.Request{Messages: turns[:k], Tools: c.tooling, Kwargs: c.options}
		obs, err := f.Observe(req, 0, Prev{})
		if err != nil {
			t.Fatal(err)
		}
		reply := f.Read(1, ids, req, obs)
		if reply.ParseError != "" || strings.TrimSpace(reply.Message.Content) != said.Content || len(reply.Message.ToolCalls) != len(said.ToolCalls) {
			t.Errorf("%q is read as %+v, %s", text.text, reply.Message, reply.ParseError)
		} else if len(said.ToolCalls) == 1 && reply.Message.ToolCalls[0].Arguments != said.ToolCalls[0].Arguments {
			t.Errorf("arguments %s", reply.Message.ToolCalls[0].Arguments)
		}
	}
}
