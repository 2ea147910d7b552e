package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/hf"
)

// simple is a template that names itself and prints its special tokens.
func simple(name string) string {
	return name + "{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" +
		"{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}<|im_end|>\n{% endfor %}" +
		"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
}

// write puts files into a new directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// loadFiles loads a directory made of files, with a byte tokenizer for tokenizer.json.
func loadFiles(t *testing.T, files map[string]string) (*Format, string, error) {
	t.Helper()
	dir := write(t, files)
	f, err := load(dir, Options{}, func(_ string, o hf.Options) (tokenizer.Tokenizer, error) {
		tok := bytetok.NewWith([]tokenizer.AddedToken{{Content: "<|endoftext|>", Special: true}, {Content: "<|im_start|>", Special: true},
			{Content: "<|im_end|>", Special: true}, {Content: "<s>", Special: true}})
		return tok, nil
	})
	return f, dir, err
}

// fields is a JSON object.
func fields(t *testing.T, m map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func list(pairs ...string) []map[string]string {
	var out []map[string]string
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, map[string]string{"name": pairs[i], "template": pairs[i+1]})
	}
	return out
}

func TestLoadFindsTheTemplates(t *testing.T) {
	for name, c := range map[string]struct {
		files        map[string]string
		plain, tools string // what the prompt begins with
	}{
		"jinja file": {map[string]string{jinjaFile: simple("A")}, "A", "A"},
		"text":       {map[string]string{configFile: fields(t, map[string]any{"chat_template": simple("B")})}, "B", "B"},
		"jinja file wins": {map[string]string{jinjaFile: simple("A"), configFile: fields(t, map[string]any{"chat_template": simple("B")})},
			"A", "A"},
		"list": {map[string]string{configFile: fields(t, map[string]any{"chat_template": list("rag", "x", "default", simple("C"))})}, "C", "C"},
		"list with tool use": {map[string]string{configFile: fields(t, map[string]any{
			"chat_template": list("default", simple("C"), "tool_use", simple("D"))})}, "C", "D"},
		"more files": {map[string]string{jinjaFile: simple("A"), jinjaDir + "/tool_use.jinja": simple("E"), jinjaDir + "/rag.jinja": "{{"}, "A", "E"},
		"more files beside a list": {map[string]string{jinjaFile: simple("A"), jinjaDir + "/tool_use.jinja": simple("E"),
			configFile: fields(t, map[string]any{"chat_template": list("default", "x")})}, "A", "E"},
		"chat_template.json": {map[string]string{configFile: "{}", legacyJSONFile: fields(t, map[string]any{"chat_template": simple("F")})}, "F", "F"},
		"config before chat_template.json": {map[string]string{configFile: fields(t, map[string]any{"chat_template": simple("B")}),
			legacyJSONFile: fields(t, map[string]any{"chat_template": simple("F")})}, "B", "B"},
		"tool use alone prints tools": {map[string]string{jinjaFile: simple("A"),
			jinjaDir + "/tool_use.jinja": "{% for t in tools %}{% if loop.first %}" + simple("G") + "{% endif %}{% endfor %}"}, "A", "G"},
	} {
		c.files[tokenizerFile] = "{}"
		f, _, err := loadFiles(t, c.files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		req := request(user("u"))
		for want, tools := range map[string][]canon.ToolSpec{c.plain: nil, c.tools: {probeTool}} {
			req.Tools = tools
			if text, _, err := f.First(req); err != nil || !strings.HasPrefix(text, want) {
				t.Errorf("%s: %q, %v; want %s first", name, text, err, want)
			}
		}
	}
}

// TestToolUseIsTakenForRequestsWithTools: both templates have findings of their own.
func TestToolUseIsTakenForRequestsWithTools(t *testing.T) {
	f, dir, err := loadFiles(t, map[string]string{tokenizerFile: "{}", jinjaFile: simple("A"), jinjaDir + "/tool_use.jinja": simple("B")})
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Report()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Templates) != 2 || r.Templates[0].Name != "default" || r.Templates[1].Name != "tool_use" ||
		r.Templates[0].Source != filepath.Join(dir, jinjaFile) || r.Templates[1].Source != filepath.Join(dir, jinjaDir, "tool_use.jinja") {
		t.Errorf("%+v", r.Templates)
	}
}

func TestLoadReadsSpecialTokens(t *testing.T) {
	const template = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ image_token }}|{{ additional_special_tokens|join('+') }}|{{ sep_token is defined }}"
	for name, c := range map[string]struct {
		config, specials string
		want             string
	}{
		"texts and objects": {`{"bos_token": "<s>", "eos_token": {"content": "<|endoftext|>", "lstrip": false}, "pad_token": null}`, "",
			"<s>|<|endoftext|>||||False"},
		"special_tokens_map.json where the config has none": {`{"bos_token": null, "eos_token": "<|im_end|>"}`,
			`{"bos_token": {"content": "<s>"}, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}`, "<s>|<|im_end|>|<|endoftext|>|||False"},
		"a model's own": {`{"extra_special_tokens": {"image_token": "x"}, "image_token": "<img>", "additional_special_tokens": ["a", {"content": "b"}]}`, "",
			"|||<img>|a+b|False"},
		"a list of extra tokens names none": {`{"extra_special_tokens": ["<s>"], "image_token": "<img>"}`, "", "|||||False"},
	} {
		files := map[string]string{tokenizerFile: "{}", jinjaFile: simple(template), configFile: c.config}
		if c.specials != "" {
			files[specialsFile] = c.specials
		}
		f, _, err := loadFiles(t, files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, _, err := f.First(request(user("u")))
		if got, _, _ := strings.Cut(text, "<|im_start|>"); err != nil || strings.TrimSuffix(got, "<s>") != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// TestLoadHandsOverAddedTokens: added_tokens_decoder of tokenizer_config.json goes to the
// tokenizer, and so does what may not come out of text.
func TestLoadHandsOverAddedTokens(t *testing.T) {
	dir := write(t, map[string]string{tokenizerFile: "{}", jinjaFile: simple("") + "{# <｜User｜> #}", configFile: `{"added_tokens_decoder": {
		"300": {"content": "b", "special": true, "single_word": true, "normalized": true},
		"7": {"content": "a", "special": false, "lstrip": true, "rstrip": true}}}`})
	var got hf.Options
	f, err := load(dir, Options{}, func(file string, o hf.Options) (tokenizer.Tokenizer, error) {
		got = o
		if file != filepath.Join(dir, tokenizerFile) {
			t.Errorf("tokenizer file %s", file)
		}
		return bytetok.New(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := []tokenizer.AddedToken{{ID: 7, Content: "a", LStrip: true, RStrip: true}, {ID: 300, Content: "b", Special: true, SingleWord: true, Normalized: true}}
	if !slices.Equal(got.Added, want) {
		t.Errorf("added %+v", got.Added)
	}
	for content, control := range map[string]bool{"<｜User｜>": true, "<｜Other｜>": false, "<think>": false, "<|im_end|>": true} {
		if got.Control(tokenizer.AddedToken{Content: content}) != control {
			t.Errorf("%s is a control token: %v", content, !control)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	good := func(more ...string) map[string]string {
		files := map[string]string{tokenizerFile: "{}", jinjaFile: simple("")}
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"no tokenizer": {map[string]string{jinjaFile: simple("")}, []string{tokenizerFile, "no such file", "expected a checkpoint directory"}},
		"no template": {map[string]string{tokenizerFile: "{}", configFile: `{"chat_template": null}`},
			[]string{"has no chat template: expected chat_template.jinja or chat_template in tokenizer_config.json"}},
		"nothing but a tokenizer": {map[string]string{tokenizerFile: "{}"}, []string{"has no chat template"}},
		"no default": {map[string]string{tokenizerFile: "{}", configFile: fields(t, map[string]any{"chat_template": list("b", "x", "a", "x")})},
			[]string{configFile, `no chat template is named "default": found a, b`}},
		"template is a number":      {map[string]string{tokenizerFile: "{}", configFile: `{"chat_template": 3}`}, []string{configFile, "chat_template: expected a text or a list of {name, template}"}},
		"legacy is a number":        {map[string]string{tokenizerFile: "{}", legacyJSONFile: `{"chat_template": 3}`}, []string{legacyJSONFile, "chat_template: expected a text or a list"}},
		"broken config":             {good(configFile, `{`), []string{configFile, "unexpected end"}},
		"broken specials":           {good(specialsFile, `[`), []string{specialsFile, "unexpected end"}},
		"bad token":                 {good(configFile, `{"bos_token": 3}`), []string{configFile, `bos_token: expected a text or {"content": text}`}},
		"bad token in the map":      {good(specialsFile, `{"pad_token": 3}`), []string{specialsFile, `pad_token: expected a text`}},
		"bad additional tokens":     {good(configFile, `{"additional_special_tokens": "x"}`), []string{configFile, "additional_special_tokens: expected a list of tokens"}},
		"bad additional token":      {good(configFile, `{"additional_special_tokens": ["x", 3]}`), []string{configFile, "additional_special_tokens: token 1"}},
		"bad added tokens":          {good(configFile, `{"added_tokens_decoder": []}`), []string{configFile, "added_tokens_decoder: expected an object of token ids"}},
		"bad added id":              {good(configFile, `{"added_tokens_decoder": {"x": {}}}`), []string{configFile, `added_tokens_decoder: "x" is no token id`}},
		"unknown eos":               {good(configFile, `{"eos_token": "<eos>"}`), []string{configFile, `eos_token "<eos>" is not a token of tokenizer.json`}},
		"broken generation":         {good(generationFile, `{`), []string{generationFile, "unexpected end"}},
		"bad generation eos":        {good(generationFile, `{"eos_token_id": "x"}`), []string{generationFile, "eos_token_id: expected a token id or a list of them"}},
		"negative eos":              {good(generationFile, `{"eos_token_id": [1, -1]}`), []string{generationFile, "eos_token_id: -1 is no token id"}},
		"template does not compile": {good(jinjaFile, "{% if %}"), []string{"chat template", jinjaFile, "line 1"}},
		"tool use does not compile": {good(jinjaDir+"/tool_use.jinja", "\n\n{{ x"), []string{"chat template", "tool_use.jinja", "line 3"}},
		"template prints no user": {good(jinjaFile, "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"),
			[]string{jinjaFile, "cannot print a user message", "its text is left out"}},
		"template raises": {good(jinjaFile, "{{ raise_exception('never') }}"), []string{jinjaFile, "cannot print a user message", "never"}},
		"nothing ends a turn": {good(jinjaFile, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"),
			[]string{"no token ends a turn", "eos_token", "eos_token_id"}},
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
		if last := c.want[len(c.want)-1]; strings.Count(err.Error(), "hf_checkpoint") != 1 || strings.Count(err.Error(), last) > 2 {
			t.Errorf("%s: error %q says it twice", name, err)
		}
	}
}

func TestLoadRefusesPaths(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nowhere")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"": "the option is empty", missing: missing, file: "is not a directory"} {
		_, err := Load(dir, Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "hf_checkpoint: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q): %v", dir, err)
		}
	}
}

// TestLoadClosesTheTokenizer when what comes after it fails.
func TestLoadClosesTheTokenizer(t *testing.T) {
	tok := bytetok.New()
	dir := write(t, map[string]string{tokenizerFile: "{}", jinjaFile: "{{ raise_exception('never') }}"})
	if _, err := load(dir, Options{}, func(string, hf.Options) (tokenizer.Tokenizer, error) { return tok, nil }); err == nil {
		t.Fatal("no error")
	}
	if _, err := tok.Encode("x"); !errors.Is(err, bytetok.ErrClosed) {
		t.Errorf("the tokenizer is open: %v", err)
	}
	boom := errors.New("boom")
	_, err := load(dir, Options{}, func(string, hf.Options) (tokenizer.Tokenizer, error) { return nil, boom })
	if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "hf_checkpoint: ") {
		t.Errorf("%v", err)
	}
}

func TestLoadReadsStops(t *testing.T) {
	for eos, want := range map[string][]int32{`5`: {258, 5, 256}, `[258, 5]`: {258, 5, 256}, `[]`: {258, 256}, `null`: {258, 256}} {
		f, _, err := loadFiles(t, map[string]string{tokenizerFile: "{}", jinjaFile: simple(""),
			configFile:     `{"eos_token": {"content": "<|endoftext|>"}}`,
			generationFile: `{"eos_token_id": ` + eos + `}`})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(f.StopIDs(), want) || f.Terminator() != want[0] {
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
