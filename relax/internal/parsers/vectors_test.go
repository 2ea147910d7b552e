package parsers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// sharedFile reads a development fixture. It lies beside the repository and is not part of it.
func sharedFile(t *testing.T, name string) []byte {
	t.Helper()
	root := os.Getenv("RELAX_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "..", "shared")
	}
	raw, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Skipf("SKIPPED, PARITY WITH SGLANG NOT CHECKED: %v (set RELAX_SHARED)", err)
	}
	return raw
}

type vectors struct {
	Tools []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
	ToolCall map[string][]struct {
		Text    string `json:"text"`
		Content string `json:"content"`
		Error   string `json:"error"`
		Calls   []struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"calls"`
	} `json:"tool_call"`
	Reasoning map[string][]struct {
		Text      string `json:"text"`
		Force     *bool  `json:"force_reasoning"`
		Reasoning string `json:"reasoning"`
		Content   string `json:"content"`
	} `json:"reasoning"`
}

func readVectors(t *testing.T) *vectors {
	t.Helper()
	var v vectors
	if err := json.Unmarshal(sharedFile(t, "fixtures/parser_vectors.json"), &v); err != nil {
		t.Fatal(err)
	}
	return &v
}

func (v *vectors) specs(t *testing.T) []canon.ToolSpec {
	t.Helper()
	var list []canon.ToolSpec
	for _, tool := range v.Tools {
		schema, err := canon.ParseValue(tool.Function.Parameters)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, canon.NewToolSpec(tool.Function.Name, nil, schema))
	}
	return list
}

// reasoningDeviations are the vectors we answer otherwise, with our answer and the reason.
var reasoningDeviations = map[string]struct {
	want Split
	why  string
}{
	"gpt-oss plain": {Split{Content: "plain"}, "SGLang loses a turn without markers"},
	"cohere_command4 <|START_THINKING|>p<|END_THINKING|>A": {
		Split{Reasoning: "p", Content: "A"}, "SGLang drops an answer without text markers"},
	"kimi_k3 answer<|close|>response<|sep|>": {
		Split{Content: "answer"}, "a closed response is no reasoning (SGLang PR 33995)"},
}

func TestReasoningVectors(t *testing.T) {
	v, ran, differ := readVectors(t), 0, 0
	for name, cases := range v.Reasoning {
		parser, err := Reasoning(name)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, c := range cases {
			ran++
			got := parser.Split(Turn{Text: c.Text, ThinkOpen: c.Force != nil && *c.Force})
			want := Split{c.Reasoning, c.Content}
			if d, ok := reasoningDeviations[name+" "+c.Text]; ok {
				differ++
				if d.want == want {
					t.Errorf("%s %q is no deviation: %s", name, c.Text, d.why)
				}
				want = d.want
			}
			if got != want {
				t.Errorf("%s %q: %+v, SGLang %+v", name, c.Text, got, want)
			}
		}
	}
	t.Logf("%d vectors, %d of them explained deviations", ran, differ)
	if ran < 90 || differ != len(reasoningDeviations) {
		t.Errorf("%d vectors and %d of %d deviations found", ran, differ, len(reasoningDeviations))
	}
}

// toolCallDeviations are the vectors whose calls we read otherwise. Turns without a usable
// call are no deviation of their own: SGLang drops or keeps their text, we always keep and
// flag it.
var toolCallDeviations = map[string]struct {
	content string
	calls   []Call
	why     string
}{
	`mistral [TOOL_CALLS]book{"city": "A"}`: {
		"", []Call{{Name: "book", Arguments: `{"city":"A"}`}}, "SGLang loses a call without [ARGS]"},
	`mistral [TOOL_CALLS][{"name": "ping", "arguments": {}}]`: {
		"", []Call{{Name: "ping", Arguments: "{}"}}, "SGLang loses a list without a space before it"},
	"glm45 <tool_call>ping</tool_call>": {
		"", []Call{{Name: "ping", Arguments: "{}"}}, "SGLang loses a call without arguments and newline"},
	"glm47 <tool_call>book<arg_key>note</arg_key><arg_value>null</arg_value><arg_key>city</arg_key><arg_value>null</arg_value></tool_call>": {
		"", []Call{{Name: "book", Arguments: `{"city":"null","note":null}`}}, `SGLang makes null the text "None"`},
	"minimax-m2 T\n<minimax:tool_call>\n<invoke name=\"book\">\n<parameter name=\"city\">A</parameter>\n<parameter name=\"nights\">3</parameter>\n" +
		"<parameter name=\"rate\">2.0</parameter>\n<parameter name=\"pets\">yes</parameter>\n<parameter name=\"tags\">[\"a\"]</parameter>\n" +
		"<parameter name=\"note\">keep me</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>\nZ": {
		"T\n\nZ", []Call{
			{Name: "book", Arguments: `{"city":"A","nights":3,"note":"keep me","pets":true,"rate":2,"tags":["a"]}`},
			{Index: 1, Name: "ping", Arguments: "{}"},
		}, "SGLang makes every nullable parameter null"},
	"pythonic [book(nights=-2)]": {
		"", []Call{{Name: "book", Arguments: `{"nights":-2}`}}, "SGLang cannot read negative numbers"},
	"step3 <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"ping\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>": {
		"", []Call{{Name: "ping", Arguments: "{}"}}, "SGLang loses a call without parameters"},
	"inkling <|message_model|>x<|content_invoke_tool_text|>raw<|end_message|>": {
		"", []Call{{Name: "x", Arguments: `{"text":"raw"}`}}, "SGLang leaves the name empty"},
}

func TestToolCallVectors(t *testing.T) {
	v, ran, differ := readVectors(t), 0, 0
	specs := v.specs(t)
	for name, cases := range v.ToolCall {
		parser, err := ToolCalls(name)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, c := range cases {
			ran++
			got := parser.Find(c.Text, specs)
			content := c.Content
			var want []Call
			for i, call := range c.Calls {
				arguments, err := canon.CanonicalArgumentsText(call.Arguments)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, Call{Index: i, Name: call.Name, Arguments: arguments})
			}
			if d, ok := toolCallDeviations[name+" "+c.Text]; ok {
				differ++
				if slices.Equal(want, d.calls) {
					t.Errorf("%s %q is no deviation: %s", name, c.Text, d.why)
				}
				content, want = d.content, d.calls
			}
			if len(want) == 0 && (got.ParseError != "" || content != c.Text) {
				content = c.Text
				if got.ParseError == "" && name != "llama3" { // llama3: an answer in JSON
					t.Errorf("%s %q: not flagged", name, c.Text)
				}
			}
			for i := range got.Calls { // SGLang writes ids of its own
				got.Calls[i].ID = ""
			}
			if !slices.Equal(got.Calls, want) || got.Content != content {
				t.Errorf("%s %q:\n got %q %+v (%s)\nwant %q %+v", name, c.Text, got.Content, got.Calls, got.ParseError, content, want)
			}
		}
	}
	t.Logf("%d vectors, %d of them explained deviations", ran, differ)
	if ran < 120 || differ != len(toolCallDeviations) {
		t.Errorf("%d vectors and %d of %d deviations found", ran, differ, len(toolCallDeviations))
	}
}

// TestVectorFamilies: every family with vectors is registered, and the names without any are
// known.
func TestVectorFamilies(t *testing.T) {
	v := readVectors(t)
	var bare []string
	for name := range reasoningFamilies {
		if len(v.Reasoning[name]) == 0 {
			bare = append(bare, "reasoning "+name)
		}
	}
	for name := range toolCallFamilies {
		if len(v.ToolCall[name]) == 0 {
			bare = append(bare, name)
		}
	}
	slices.Sort(bare)
	want := "glm, k2_horizon, qwen, reasoning dots, reasoning k2_horizon, reasoning ling3, step3p5"
	if got := strings.Join(bare, ", "); got != want {
		t.Errorf("families without vectors: %s", got)
	}
}
