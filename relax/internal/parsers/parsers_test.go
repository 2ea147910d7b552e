package parsers

import (
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func tools(names ...string) []canon.ToolSpec {
	var list []canon.ToolSpec
	for _, n := range names {
		list = append(list, canon.NewToolSpec(n, nil, canon.ObjectOf()))
	}
	return list
}

func TestUnknownNames(t *testing.T) {
	_, err := Reasoning("qwen9")
	want := `unknown reasoning parser "qwen9": expected one of apertus2509, cohere_command4, deepseek-r1, deepseek-v3, ` +
		`deepseek-v4, dots, gemma4, glm45, gpt-oss, hunyuan, inkling, interns1, k2_horizon, kimi, kimi_k2, kimi_k3, ling3, ` +
		`mimo, minimax, minimax-append-think, minimax-m3, mistral, muse, nemotron_3, poolside_v1, qwen3, qwen3-thinking, ` +
		`step3, step3p5, or empty for none`
	if err == nil || err.Error() != want {
		t.Errorf("Reasoning: %v\nwant %s", err, want)
	}
	_, err = ToolCalls("auto")
	want = `unknown tool-call parser "auto": expected one of apertus2509, cohere_command4, deepseekv3, deepseekv31, ` +
		`deepseekv32, deepseekv4, dots, gemma4, gigachat3, glm, glm45, glm47, gpt-oss, hermes, hunyuan, inkling, interns1, ` +
		`k2_horizon, kimi_k2, kimi_k3, lfm2, ling3, llama3, mimo, minicpm5, minimax-m2, minimax-m3, mistral, muse, ` +
		`poolside_v1, pythonic, qwen, qwen25, qwen3_coder, step3, step3p5, trinity, or empty for none`
	if err == nil || err.Error() != want {
		t.Errorf("ToolCalls: %v\nwant %s", err, want)
	}
}

func TestNamesInAnyCase(t *testing.T) {
	if p, err := Reasoning("Qwen3"); err != nil || p != ReasoningParser(qwen3) {
		t.Errorf("Reasoning(Qwen3) = %v, %v", p, err)
	}
	if p, err := ToolCalls("HERMES"); err != nil || p != ToolCallParser(hermes{}) {
		t.Errorf("ToolCalls(HERMES) = %v, %v", p, err)
	}
}

func TestNone(t *testing.T) {
	const text = "<think>a</think><tool_call>\n{\"name\":\"f\"}\n</tool_call>"
	r, err := Reasoning("")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Split(Turn{Text: text, ThinkOpen: true}); got != (Split{Content: text}) {
		t.Errorf("Split = %+v", got)
	}
	c, err := ToolCalls("")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Find(text, tools("f")); got.Content != text || got.Calls != nil || got.ParseError != "" {
		t.Errorf("Find = %+v", got)
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		parser string
		turn   Turn
		want   Split
	}{
		{"qwen3", Turn{Text: ""}, Split{}},
		{"qwen3", Turn{Text: "plain"}, Split{Content: "plain"}},
		{"qwen3", Turn{Text: "<think>\na\n</think>\n\nb\n"}, Split{"\na\n", "\n\nb\n"}},
		{"qwen3", Turn{Text: "<think><think>a</think>b"}, Split{"a", "b"}},
		{"qwen3", Turn{Text: " <think>a</think>b"}, Split{" <think>a", "b"}},
		{"qwen3", Turn{Text: "<think>a</think>b</think>c"}, Split{"a", "b</think>c"}},
		{"qwen3", Turn{Text: "<think>a<tool_call>b</think>c"}, Split{"a<tool_call>b", "c"}},
		{"qwen3", Turn{Text: "a</think>b", ThinkOpen: true}, Split{"a", "b"}},
		{"qwen3", Turn{Text: "a<tool_call>b", ThinkOpen: true}, Split{"a", "<tool_call>b"}},
		{"qwen3-thinking", Turn{Text: "a<tool_call>b"}, Split{"a", "<tool_call>b"}},
		{"deepseek-r1", Turn{Text: "a<tool_call>b"}, Split{Reasoning: "a<tool_call>b"}},
		{"deepseek-r1", Turn{Text: "a</think>b"}, Split{"a", "b"}},
	} {
		p, err := Reasoning(c.parser)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Split(c.turn); got != c.want {
			t.Errorf("%s %+v: %+v, want %+v", c.parser, c.turn, got, c.want)
		}
	}
}

func TestFind(t *testing.T) {
	call := func(i int, name, arguments string) Call { return Call{Index: i, Name: name, Arguments: arguments} }
	const same = "\x00same" // content is the text as it was
	for _, c := range []struct {
		name, parser, text string
		content            string
		calls              []Call
		fault              string // part of ParseError, "" for none
	}{
		{"plain", "qwen", " hello ", same, nil, ""},
		{"prose about the tag", "qwen", "the <tool_call> tag", same, nil, ""},
		{"one", "qwen", "Hi \n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 2.0, \"a\": \"é\"}}\n</tool_call> bye",
			"Hi", []Call{call(0, "f", `{"a":"é","b":2}`)}, ""},
		{"same tool twice", "qwen", "<tool_call>\n{\"name\":\"f\"}\n</tool_call>\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>",
			"", []Call{call(0, "f", "{}"), call(1, "f", `{"x":1}`)}, ""},
		{"list", "qwen", "<tool_call>\n[{\"name\":\"g\"},{\"name\":\"f\"}]\n</tool_call>",
			"", []Call{call(0, "g", "{}"), call(1, "f", "{}")}, ""},
		{"parameters win", "qwen", "<tool_call>\n{\"name\":\"f\",\"parameters\":{\"p\":1},\"arguments\":{\"a\":1}}\n</tool_call>",
			"", []Call{call(0, "f", `{"p":1}`)}, ""},
		{"empty parameters do not", "qwen", "<tool_call>\n{\"name\":\"f\",\"parameters\":{},\"arguments\":{\"a\":1}}\n</tool_call>",
			"", []Call{call(0, "f", `{"a":1}`)}, ""},
		{"null arguments", "qwen", "<tool_call>\n{\"name\":\"f\",\"arguments\":null}\n</tool_call>", "", []Call{call(0, "f", "{}")}, ""},
		{"arguments in a string", "qwen", "<tool_call>\n{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}\n</tool_call>",
			"", []Call{call(0, "f", `{"x":1}`)}, ""},
		{"key given twice", "qwen", "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1,\"x\":2}}\n</tool_call>",
			"", []Call{call(0, "f", `{"x":2}`)}, ""},
		{"argument text may hold the start marker", "qwen", "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":\"<tool_call>\"}}\n</tool_call>",
			"", []Call{call(0, "f", `{"x":"<tool_call>"}`)}, ""},
		{"list arguments", "qwen", "a <tool_call>\n{\"name\":\"f\",\"arguments\":[1]}\n</tool_call>", same, nil, "not list"},
		{"text arguments", "qwen", "<tool_call>\n{\"name\":\"f\",\"arguments\":\"x\"}\n</tool_call>", same, nil, `call of "f"`},
		{"NaN", "qwen", "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":NaN}}\n</tool_call>", same, nil, "not valid JSON"},
		{"bad JSON alone", "qwen", "ok\n<tool_call>\n{bad}\n</tool_call>", same, nil, "not valid JSON"},
		{"bad JSON among good", "qwen", "<tool_call>\n{bad}\n</tool_call><tool_call>\n{\"name\":\"f\"}\n</tool_call>",
			"", []Call{call(0, "f", "{}")}, "not valid JSON"},
		{"unknown function", "qwen", "<tool_call>\n{\"name\":\"h\"}\n</tool_call>", same, nil, `not offered: "h"`},
		{"no name", "qwen", "<tool_call>\n{}\n</tool_call>", same, nil, "not offered: null"},
		{"name is no text", "qwen", "<tool_call>\n{\"name\":[1]}\n</tool_call>", same, nil, "not offered: [1]"},
		{"no object", "qwen", "<tool_call>\n[\"x\"]\n</tool_call>", same, nil, "not a JSON object but str"},
		{"null", "qwen", "<tool_call>\nnull\n</tool_call>", same, nil, "not a JSON object but NoneType"},
		{"empty list", "qwen", "<tool_call>\n[]\n</tool_call>", same, nil, "without a call"},
		{"unclosed", "qwen", "x<tool_call>\n{\"name\":\"f\"}", same, nil, "not closed"},
		{"unclosed after closed", "qwen", "x<tool_call>\n{\"name\":\"f\"}\n</tool_call>\n<tool_call>\n{\"na",
			"x", []Call{call(0, "f", "{}")}, "not closed"},
		{"no newlines", "qwen", "<tool_call>{\"name\":\"f\"}</tool_call>", same, nil, "read as plain text"},

		{"hermes: no newlines", "hermes", "x<tool_call>{\"name\":\"f\"}</tool_call>y", "x", []Call{call(0, "f", "{}")}, ""},
		{"hermes: last block open", "hermes", "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}",
			"", []Call{call(0, "f", "{}"), call(1, "g", "{}")}, ""},
		{"hermes: one bad block", "hermes", "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"na</tool_call>", same, nil, "not valid JSON"},
		{"hermes: nothing inside", "hermes", "<tool_call></tool_call>", same, nil, "without a call"},
		{"hermes: blank inside", "hermes", "<tool_call>\n</tool_call>", same, nil, "not valid JSON"},
		{"hermes: unknown function", "hermes", "<tool_call>{\"name\":\"h\"}</tool_call>", same, nil, "not offered"},
		{"hermes: unknown among known", "hermes", "<tool_call>[{\"name\":\"h\"},{\"name\":\"f\"}]</tool_call>",
			"", []Call{call(0, "f", "{}")}, "not offered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := ToolCalls(c.parser)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Find(c.text, tools("f", "g"))
			content := strings.ReplaceAll(c.content, same, c.text)
			if got.Content != content || !slices.Equal(got.Calls, c.calls) {
				t.Errorf("Find(%q) = %+v, want content %q, calls %+v", c.text, got, content, c.calls)
			}
			if (c.fault == "") != (got.ParseError == "") || !strings.Contains(got.ParseError, c.fault) {
				t.Errorf("ParseError %q, want %q", got.ParseError, c.fault)
			}
			if bare := p.Find(c.text, nil); bare.Content != c.text || bare.Calls != nil || bare.ParseError != "" {
				t.Errorf("without tools: %+v", bare)
			}
		})
	}
}
