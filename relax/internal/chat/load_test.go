package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/hf"
)

// Templates that stand for known ones in these tests; what is known is a table of fingerprints.
const (
	testQwen3   = "{%- for m in messages %}qwen3 test{{ m.role }}<|im_start|><|im_end|>{% endfor %}"
	testQwen25  = "{%- for m in messages %}qwen2.5 test{{ m.role }}<|im_start|><|im_end|>{% endfor %}"
	testChatML  = "{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|><tools><function={% endfor %}"
	testForeign = "[INST]{{ messages[0].content }}[/INST]"
)

func init() {
	knownStyles[fingerprint(testQwen3)] = qwen3Style{}
	knownStyles[fingerprint(testQwen25)] = qwen25Style{}
}

// loadFiles loads a directory made of files, with a byte tokenizer for tokenizer.json.
func loadFiles(t *testing.T, files map[string]string) (*Format, string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := load(dir, Options{}, func(string) (tokenizer.Tokenizer, error) { return bytetok.New(), nil })
	return f, dir, err
}

// config is a tokenizer_config.json.
func config(t *testing.T, fields map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func named(pairs ...string) []map[string]string {
	var list []map[string]string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, map[string]string{"name": pairs[i], "template": pairs[i+1]})
	}
	return list
}

func TestLoadFindsTheTemplate(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  style
	}{
		"jinja file": {map[string]string{jinjaFile: testQwen3}, qwen3Style{}},
		"text":       {map[string]string{configFile: config(t, map[string]any{"chat_template": testQwen25})}, qwen25Style{}},
		"jinja file wins": {map[string]string{jinjaFile: testQwen3,
			configFile: config(t, map[string]any{"chat_template": testQwen25})}, qwen3Style{}},
		"list": {map[string]string{configFile: config(t, map[string]any{"chat_template": named("rag", "x", "default", testQwen3)})}, qwen3Style{}},
		"list with tool_use": {map[string]string{configFile: config(t, map[string]any{
			"chat_template": named("default", testQwen3, "tool_use", testQwen3)})}, qwen3Style{}},
		"legacy file": {map[string]string{configFile: "{}", legacyJSONFile: config(t, map[string]any{"chat_template": testQwen25})}, qwen25Style{}},
	} {
		c.files[tokenizerFile] = "{}"
		f, _, err := loadFiles(t, c.files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f.style != c.want {
			t.Errorf("%s: style %T, want %T", name, f.style, c.want)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"no tokenizer": {map[string]string{jinjaFile: testQwen3}, []string{"hf_checkpoint", tokenizerFile, "no such file", "expected a checkpoint directory"}},
		"no template": {map[string]string{tokenizerFile: "{}", configFile: `{"chat_template": null}`},
			[]string{"has no chat template: expected chat_template.jinja or chat_template in tokenizer_config.json"}},
		"nothing but a tokenizer": {map[string]string{tokenizerFile: "{}"}, []string{"has no chat template"}},
		"no ChatML": {map[string]string{tokenizerFile: "{}", jinjaFile: testForeign},
			[]string{jinjaFile, "not supported", "found a template without <|im_start|> and <|im_end|>", "supported are Qwen3"}},
		"other ChatML": {map[string]string{tokenizerFile: "{}", configFile: config(t, map[string]any{"chat_template": testChatML})},
			[]string{configFile, "found a ChatML template that is neither of these, with tool calls as <function=NAME> blocks"}},
		"templates differ": {map[string]string{tokenizerFile: "{}", configFile: config(t, map[string]any{
			"chat_template": named("default", testQwen3, "tool_use", testQwen25)})}, []string{"different families"}},
		"tool_use foreign": {map[string]string{tokenizerFile: "{}", configFile: config(t, map[string]any{
			"chat_template": named("default", testQwen3, "tool_use", testForeign)})}, []string{"(tool_use)", "not supported"}},
		"no default": {map[string]string{tokenizerFile: "{}", configFile: config(t, map[string]any{
			"chat_template": named("b", testQwen3, "a", testQwen3)})}, []string{`no template named "default": found a, b`}},
		"template is a number": {map[string]string{tokenizerFile: "{}", configFile: `{"chat_template": 3}`},
			[]string{configFile, "chat_template: expected a text or a list"}},
		"broken config": {map[string]string{tokenizerFile: "{}", configFile: `{`}, []string{configFile, "unexpected end"}},
		"unknown eos": {map[string]string{tokenizerFile: "{}", jinjaFile: testQwen3, configFile: `{"eos_token": "<eos>"}`},
			[]string{configFile, `eos_token "<eos>" is not a token`}},
		"broken generation config": {map[string]string{tokenizerFile: "{}", jinjaFile: testQwen3, generationFile: `{"eos_token_id": "x"}`},
			[]string{generationFile, "eos_token_id"}},
		"negative eos": {map[string]string{tokenizerFile: "{}", jinjaFile: testQwen3, generationFile: `{"eos_token_id": [1, -1]}`},
			[]string{generationFile, "-1 is no token id"}},
	} {
		_, dir, err := loadFiles(t, c.files)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, part := range append(c.want, dir, "hf_checkpoint") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %q does not say %q", name, err, part)
			}
		}
	}
}

func TestLoadRefusesPaths(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nowhere")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"": "hf_checkpoint is empty", missing: missing, file: "is not a directory"} {
		_, err := Load(dir, Options{})
		if err == nil || !strings.Contains(err.Error(), "hf_checkpoint") || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q): %v", dir, err)
		}
	}
}

func TestLoadReadsStops(t *testing.T) {
	for eos, want := range map[string][]int32{`5`: {258, 5, 256}, `[258, 5]`: {258, 5, 256}, `null`: {258, 256}} {
		f, _, err := loadFiles(t, map[string]string{tokenizerFile: "{}", jinjaFile: testQwen3,
			configFile:     `{"eos_token": {"content": "<|endoftext|>"}}`,
			generationFile: `{"eos_token_id": ` + eos + `}`})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(f.StopIDs(), want) {
			t.Errorf("eos_token_id %s: stops %v, want %v", eos, f.StopIDs(), want)
		}
	}
}

func TestUnknownParsersAreNamed(t *testing.T) {
	_, err := New(bytetok.New(), Options{ReasoningParser: "x"})
	if err == nil || !strings.HasPrefix(err.Error(), `agentic_reasoning_parser: unknown reasoning parser "x"`) {
		t.Error(err)
	}
	_, err = New(bytetok.New(), Options{ToolCallParser: "y"})
	if err == nil || !strings.HasPrefix(err.Error(), `agentic_tool_call_parser: unknown tool-call parser "y"`) {
		t.Error(err)
	}
}

// A bent tokenizer breaks one promise.
type bent struct {
	tokenizer.Tokenizer
	encode func(tok tokenizer.Tokenizer, text string) ([]int32, error)
	hide   string
}

func (b bent) Encode(text string) ([]int32, error) {
	if b.encode == nil {
		return b.Tokenizer.Encode(text)
	}
	return b.encode(b.Tokenizer, text)
}

func (b bent) TokenID(token string) (int32, bool) {
	if token == b.hide {
		return 0, false
	}
	return b.Tokenizer.TokenID(token)
}

func TestSelfCheckRefusesTokenizers(t *testing.T) {
	swap := func(text string) func(tokenizer.Tokenizer, string) ([]int32, error) {
		return func(tok tokenizer.Tokenizer, s string) ([]int32, error) {
			return tok.Encode(strings.ReplaceAll(s, text, text+"!"))
		}
	}
	obey := func(tok tokenizer.Tokenizer, s string) ([]int32, error) {
		before, after, found := strings.Cut(s, imEnd)
		if !found {
			return tok.Encode(s)
		}
		ids, err := tok.Encode(before)
		if err != nil {
			return nil, err
		}
		end, _ := tok.TokenID(imEnd)
		rest, err := tok.Encode(after)
		return append(append(ids, end), rest...), err
	}
	fail := func(tokenizer.Tokenizer, string) ([]int32, error) { return nil, errors.New("boom") }
	for name, c := range map[string]struct {
		tok  tokenizer.Tokenizer
		want string
	}{
		"adds text":           {bent{Tokenizer: bytetok.New(), encode: swap("\n\n")}, "does not survive encoding"},
		"control from text":   {bent{Tokenizer: bytetok.New(), encode: obey}, "mark both as special"},
		"fails":               {bent{Tokenizer: bytetok.New(), encode: fail}, "boom"},
		"no control token":    {bent{Tokenizer: bytetok.New(), hide: imStart}, "no token <|im_start|>"},
		"no terminator token": {bent{Tokenizer: bytetok.New(), hide: imEnd}, "no token <|im_end|>"},
	} {
		if _, err := New(c.tok, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestFingerprint(t *testing.T) {
	same := []string{
		"{% if a.b %}\n  x {{ 'q\"' }}\n{% endif %}\n",
		"{% if   a['b']   %}\n  x {{ \"q\\\"\" }}\n{% endif %}",
		"{#- a comment -#}\n{% if a[\"b\"] %}\n  x {{'q\"'}}\r\n{% endif %}",
		"{% if a.b %}\n  x {{ 'q' }}{# comment #}{{ '\"' }}\n  {% endif %}", // the last is trimmed from its line
		"{% if a.b -%}\n{{ '  x ' }}q\"\n{% endif %}",
	}
	for _, s := range same[1:] {
		if fingerprint(s) != fingerprint(same[0]) {
			t.Errorf("%q\n%q\n%q differs", s, lexTemplate(s), lexTemplate(same[0]))
		}
	}
	seen := map[string]string{}
	for _, s := range []string{
		same[0], "", "x", "{{ x }}", "{% x %}", "{{ 'x' ~ '' }}", "{{ x y }}", "{{ xy }}", "{{ x.y }}", "{{ [x]['y'] }}",
		"{% if a.b %}\n  x {{- 'q\"' }}\n{% endif %}\n", // trims the text before the value
		"{% if a.b %}\n x {{ 'q\"' }}\n{% endif %}\n",   // one space less
		"{% if a.b +%}\n  x {{ 'q\"' }}\n{% endif %}\n", // keeps the newline
		"{% a %}{% b %}", "{% a %} {% b %}", "{% a %}\n\n{% b %}",
		"{{ 'a\\nb' }}", "{{ 'anb' }}", "{{ '\\x41' }}", "{{ 'A' }}", "{{ '%}' }}", "{{ 'unclosed",
	} {
		mark := fingerprint(s)
		if other, ok := seen[mark]; ok {
			t.Errorf("%q and %q have one fingerprint", s, other)
		}
		seen[mark] = s
	}
}

func FuzzFingerprint(f *testing.F) {
	for _, s := range []string{"", "{", "{{", "{%", "{#", "{{ '", "{%-", "{%-%}", "{{ a['b'] }}", "{{+}}", "{#-#}x", "{{ [\"\"] }}", "a{{'\\", "{{-}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, template string) {
		if len(fingerprint(template)) != 16 {
			t.Fatal("fingerprint has not 16 digits")
		}
	})
}

// tinychat is the small real checkpoint of the repository's own test data.
func tinychat(t testing.TB) *Format {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "testdata", "checkpoints", "tinychat")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("SKIPPED, NO REAL TOKENIZER CHECKED: %v", err)
	}
	f, err := Load(dir, Options{ReasoningParser: "qwen3", ToolCallParser: "qwen"})
	if errors.Is(err, hf.ErrNotBuilt) {
		t.Skipf("SKIPPED, NO REAL TOKENIZER CHECKED: %v", err)
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

func TestTinychat(t *testing.T) {
	f := tinychat(t)
	if f.style != (qwen3Style{}) {
		t.Errorf("style %T", f.style)
	}
	if f.StopIDs()[0] != f.Terminator() || f.TokenText(f.Terminator()) != imEnd {
		t.Errorf("terminator %d, stops %v", f.Terminator(), f.StopIDs())
	}
	testStream(t, f)
	testNoControls(t, f)
}

// TestTinychatMerges checks that text is encoded in runs as long as the control tokens allow:
// what the template writes next to content merges with it, as in Hugging Face's encoding of
// the whole render.
func TestTinychatMerges(t *testing.T) {
	f := tinychat(t)
	req := request(user("\n\nhi"))
	obs, err := f.Observe(req, 0, Prev{})
	if err != nil {
		t.Fatal(err)
	}
	run, err := f.tok.Encode("user\n\n\nhi")
	if err != nil {
		t.Fatal(err)
	}
	newline, err := f.tok.Encode("\n")
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat([]int32{f.controls[imStart]}, run, []int32{f.imEnd}, newline)
	if !slices.Equal(obs.Body, want) {
		t.Errorf("body %v, want %v", obs.Body, want)
	}
}

func BenchmarkTinychatFirst8KB(b *testing.B) {
	benchmarkObserve(b, tinychat(b), strings.Repeat("word and more. ", 8<<10/15), true)
}

func BenchmarkTinychatDelta1KB(b *testing.B) {
	benchmarkObserve(b, tinychat(b), strings.Repeat("word and more. ", 1<<10/15), false)
}
