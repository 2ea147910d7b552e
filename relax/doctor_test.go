package relax

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
)

var tinychat = filepath.Join("..", "testdata", "checkpoints", "tinychat")

func TestDoctorReportsTheFormat(t *testing.T) {
	report, err := Doctor(DoctorOptions{HFCheckpoint: tinychat, ToolCallParser: "qwen25", ReasoningParser: "qwen3"})
	if err != nil {
		t.Fatal(err)
	}
	end := FormatToken{ID: 2041, Text: "<|im_end|>"}
	if report.Terminator != end || len(report.StopTokens) != 2 || report.StopTokens[0] != end {
		t.Errorf("terminator %v, stops %v", report.Terminator, report.StopTokens)
	}
	if report.VocabSize != 2048 || report.Text != "" || len(report.IDs) != 0 || len(report.Warnings) != 0 {
		t.Errorf("report = %+v", report)
	}
	if len(report.Templates) != 1 {
		t.Fatalf("%d templates", len(report.Templates))
	}
	one := report.Templates[0]
	if one.Name != "default" || one.Strategy != "suffix" || one.Arguments != "object" || !one.PrintsParallelCalls {
		t.Errorf("template = %+v", one)
	}
	if len(one.Checks) == 0 || one.Checks[0].Result != "ok" {
		t.Errorf("checks = %v", one.Checks)
	}
	var sampled []string
	for _, s := range one.Example {
		if s.Kind == "sampled" {
			sampled = append(sampled, s.Text)
		}
	}
	if len(sampled) != 3 || !strings.HasSuffix(sampled[1], "It is 4.<|im_end|>") {
		t.Errorf("sampled in the example: %q", sampled)
	}
}

func TestDoctorWarnsOfAParserThatDoesNotFit(t *testing.T) {
	report, err := Doctor(DoctorOptions{HFCheckpoint: tinychat, ToolCallParser: "llama3"})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "agentic_tool_call_parser") {
		t.Errorf("warnings = %q", report.Warnings)
	}
}

func TestDoctorShowsThePrompt(t *testing.T) {
	const tools = `[{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]`
	report, err := Doctor(DoctorOptions{HFCheckpoint: tinychat,
		Messages: json.RawMessage(` [{"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]}] `),
		Tools:    json.RawMessage(tools), ChatTemplateKwargs: json.RawMessage(`{"enable_thinking": false}`)})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(report.Text, `"name": "add"`) {
		t.Errorf("no tools in %q", report.Text)
	}
	if !strings.HasSuffix(report.Text, "<|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n") {
		t.Errorf("text = %q", report.Text)
	}
	ends := 0
	for _, id := range report.IDs {
		if id == report.Terminator.ID {
			ends++
		}
	}
	if ends != 2 { // the system message's and the user's; what the user typed is text
		t.Errorf("%d terminators in %v", ends, report.IDs)
	}
}

func TestDoctorNamesTheOption(t *testing.T) {
	user := json.RawMessage(`[{"role": "user", "content": "x"}]`)
	oneTurn := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		raw, err := os.ReadFile(filepath.Join(tinychat, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(oneTurn, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const template = `{% for m in messages %}{% if m.role == "assistant" %}{{ raise_exception("one turn only") }}` +
		`{% endif %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}<|im_start|>`
	if err := os.WriteFile(filepath.Join(oneTurn, "chat_template.jinja"), []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name         string
		alter        func(*DoctorOptions)
		option, text string
	}{
		{"no checkpoint", func(o *DoctorOptions) { o.HFCheckpoint = "" }, "hf_checkpoint", "required"},
		{"no directory", func(o *DoctorOptions) { o.HFCheckpoint = "/none" }, "hf_checkpoint", "/none"},
		{"no template", func(o *DoctorOptions) { o.HFCheckpoint = filepath.Join(tinychat, "..", "notemplate") }, "hf_checkpoint", "chat template"},
		{"no plan", func(o *DoctorOptions) { o.HFCheckpoint = oneTurn }, "hf_checkpoint", "one turn only"},
		{"tool-call parser", func(o *DoctorOptions) { o.ToolCallParser = "qwen99" }, "agentic_tool_call_parser", "qwen25"},
		{"reasoning parser", func(o *DoctorOptions) { o.ReasoningParser = "qwen99" }, "agentic_reasoning_parser", "qwen3"},
		{"tools alone", func(o *DoctorOptions) { o.Tools = json.RawMessage(`[]`) }, "tools", "messages"},
		{"no role", func(o *DoctorOptions) { o.Messages = json.RawMessage(`[{"content": "x"}]`) }, "messages", "messages[0].role"},
		{"bad tool", func(o *DoctorOptions) { o.Messages, o.Tools = user, json.RawMessage(`[1]`) }, "messages", "tools[0]"},
		{"two values", func(o *DoctorOptions) { o.Messages = json.RawMessage(`[], "model": "x"`) }, "messages", "JSON"},
		{"arguments", func(o *DoctorOptions) { o.Messages, o.ChatTemplateKwargs = user, json.RawMessage(`[1]`) }, "chat_template_kwargs", "dict"},
	} {
		opts := DoctorOptions{HFCheckpoint: tinychat}
		tt.alter(&opts)
		_, err := Doctor(opts)
		var wrong *OptionError
		if !errors.As(err, &wrong) || wrong.Option != tt.option || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want option %s and %q", tt.name, err, tt.option, tt.text)
		}
	}
}

func TestParseDoctorOptions(t *testing.T) {
	opts, err := ParseDoctorOptions([]byte(`{"hf_checkpoint": "x", "agentic_tool_call_parser": null, "messages": [1], "tools": null}`))
	if err != nil || opts.HFCheckpoint != "x" || string(opts.Messages) != "[1]" || !absent(opts.Tools) {
		t.Errorf("opts = %+v, err %v", opts, err)
	}
	for doc, text := range map[string]string{
		`{"hf_chekpoint": ""}`: "did you mean hf_checkpoint?",
		`{"zzz": ""}`:          "relax.DoctorOptions",
		`{"hf_checkpoint": 1}`: "option hf_checkpoint: expected a string",
		`[]`:                   "one JSON object",
	} {
		if _, err := ParseDoctorOptions([]byte(doc)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", doc, err, text)
		}
	}
}

// The public types repeat the internal ones: nothing may be lost on the way.
func TestReportOfCopiesEverything(t *testing.T) {
	var found chat.Report
	fill(reflect.ValueOf(&found).Elem())
	want, err := json.Marshal(found)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(reportOf(&found))
	if err != nil {
		t.Fatal(err)
	}
	whole := strings.TrimSuffix(string(want), "}") + `,"text":"","ids":[],"prompts":[]}`
	if string(got) != whole {
		t.Errorf("got  %s\nwant %s", got, whole)
	}
	empty, err := json.Marshal(reportOf(&chat.Report{Templates: []chat.TemplateReport{{}}}))
	if err != nil || strings.Contains(string(empty), "null") {
		t.Errorf("absent lists must be empty: %s, %v", empty, err)
	}
}

// fill puts something into every field.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.SetInt(7)
	}
}
