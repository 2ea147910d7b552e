package parsers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// typedTools offers f with one parameter of each type and g without any.
func typedTools(t testing.TB) []canon.ToolSpec {
	t.Helper()
	schema, err := canon.ParseValue([]byte(`{"type":"object","$defs":{"N":{"type":"integer"}},"properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
		"a":{"type":"array","items":{"type":"integer"}},"o":{"type":"object","properties":{"k":{"type":"integer"},"l":{"type":"array"}}},
		"z":{"type":["string","null"]},"u":{"anyOf":[{"type":"integer"},{"type":"null"}]},"e":{"enum":[1,2]},"r":{"$ref":"#/$defs/N"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	return []canon.ToolSpec{canon.NewToolSpec("f", nil, schema), canon.NewToolSpec("g", nil, canon.ObjectOf())}
}

// A familyCase is one text and what a parser makes of it. calls is every call as its name and
// arguments, parted by spaces; "" stands for none, and content is then the text.
type familyCase struct{ parser, text, content, calls, fault string }

const ns = "]<]minimax[>["

var familyCases = []familyCase{
	{"trinity", "<think>r</think>a<tool_call>\n{\"name\":\"f\"}\n</tool_call>", "ra", "f{}", ""},
	{"trinity", "<think>r</think><tool_call>\n{bad}\n</tool_call>", "", "", "not valid JSON"},

	{"llama3", `{"name":"f","parameters":{"i":1}}; {"name":"g"}`, "", `f{"i":1} g{}`, ""},
	{"llama3", `hi<|python_tag|>{"name":"f","arguments":{"i":1}}`, "hi", `f{"i":1}`, ""},
	{"llama3", `<|python_tag|>print(1)`, "", "", "without a call"},
	{"llama3", `<|python_tag|>{"name":"f","parameters":{'a':(1,-2)}} end`, "end", `f{"a":[1,-2]}`, ""},
	{"llama3", `{"answer": 42}`, "", "", ""},
	{"llama3", `{"name":"h"}`, "", "", "not offered"},
	{"llama3", `{"name":{bad {"name":"g"}`, "", "g{}", ""},

	{"mistral", `Hi [TOOL_CALLS] [{"name":"f","arguments":{"s":"]"}},{"name":"g"}] bye`, "Hi bye", `f{"s":"]"} g{}`, ""},
	{"mistral", `[TOOL_CALLS]f[ARGS]{"i":1}[TOOL_CALLS]g[ARGS]{}`, "", `f{"i":1} g{}`, ""},
	{"mistral", `[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"i":1}`, "", `f#a1b2c3d4e{"i":1}`, ""},
	{"mistral", `[TOOL_CALLS]f[CALL_ID]short[ARGS]{"i":1}`, "", `f{"i":1}`, ""},
	{"mistral", `[TOOL_CALLS]f[ARGS]{"i":`, "", "", "no valid JSON"},
	{"mistral", `a[TOOL_CALLS]`, "", "", "nothing follows"},
	{"mistral", `[TOOL_CALLS]f`, "", "", "no arguments"},
	{"mistral", `[TOOL_CALLS]h{"i":1}[TOOL_CALLS]g{}`, "", "g{}", "not offered"},

	{"deepseekv3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"s\":\"```\"}\n```<｜tool▁call▁end｜>", "", "f{\"s\":\"```\"}", ""},
	{"deepseekv3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n[1]\n```<｜tool▁call▁end｜>", "", "", "not an object"},
	{"deepseekv3", "<｜tool▁calls▁begin｜>", "", "", "without a call"},
	{"deepseekv31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{", "", "f{}", "not closed"},
	{"deepseekv32", "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"i\" string=\"true\">1</｜DSML｜parameter>" +
		"<｜DSML｜parameter name=\"o\" string=\"false\">{bad</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls> tail", "", `f{"i":"1","o":"{bad"}`, ""},
	{"deepseekv32", "a<｜DSML｜function_calls><｜DSML｜invoke name=\"f\">", "", "", "not closed"},
	{"deepseekv4", "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\">{}</｜DSML｜invoke></｜DSML｜tool_calls>", "", "f{}", ""},

	{"kimi_k2", "a <|tool_calls_section_begin|><|tool_call_begin|> functions.my.tool-1:12 <|tool_call_argument_begin|> {\"i\":1.0} <|tool_call_end|>",
		"a ", `my.tool-1#functions.my.tool-1:12{"i":1}`, ""},
	{"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
		"", "f#f:0{} f{}", ""},
	{"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{bad}<|tool_call_end|>", "", "", "not valid JSON"},
	{"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>[1]<|tool_call_end|>", "", "", "not list"},
	{"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>5<|tool_call_argument_begin|>{\"nope\":1}<|tool_call_end|>", "", "", "not offered"},
	{"kimi_k3", `hi<|open|>tools<|sep|><|open|>call tool="f" index="0"<|sep|><|open|>argument key="s" type="string"<|sep|>1<|close|>argument<|sep|>` +
		`<|open|>argument key="&quot;" type="object"<|sep|>{"x": [1]}<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>`, "hi", `f{"\"":{"x":[1]},"s":"1"}`, ""},
	{"kimi_k3", `<|open|>tools<|sep|><|open|>call tool="f" index="0"<|sep|>`, "", "", "not closed"},

	{"qwen3_coder", "<tool_call><function=f><parameter=i>1_000</parameter><parameter=n>1e3</parameter><parameter=u>x</parameter><parameter=e>2</parameter>" +
		"<parameter=a>(1, 2)</parameter><parameter=z>NULL</parameter><parameter=s>\n\n1\n</parameter></function>",
		"", `f{"a":[1,2],"e":2,"i":1000,"n":1000,"s":"\n1","u":"x","z":null}`, ""},
	{"qwen3_coder", "<tool_call><function=other><parameter=i>1</parameter></function></tool_call>", "", `other{"i":"1"}`, ""},
	{"qwen3_coder", "<tool_call>{\"name\":\"f\"}</tool_call>", "", "", "without a call"},
	{"qwen3_coder", "<tool_call><function=f", "", "", "not closed"},
	{"step3p5", "<tool_call><function=f></function><function=g></function></tool_call>", "", "f{} g{}", ""},
	{"mimo", "<tool_call><function=f><parameter=n>2.50</parameter><parameter=u>1</parameter><parameter=b>no</parameter></function></tool_call>", "", `f{"b":false,"n":2.5,"u":"1"}`, ""},
	{"mimo", "<tool_call><function=f></tool_call>", "", "", "is not <function="},

	{"glm", "a<tool_call>f\\n<arg_key>s</arg_key>\n<arg_value>true</arg_value><arg_key>n</arg_key><arg_value>\"2.5\"</arg_value>" +
		"<arg_key>b</arg_key><arg_value>True</arg_value><arg_key>z</arg_key><arg_value>null</arg_value><arg_key>i</arg_key><arg_value>007</arg_value></tool_call>b",
		"a", `f{"b":true,"i":"007","n":2.5,"s":"True","z":null}`, ""},
	{"glm45", "<tool_call>\nf\n<arg_key>s</arg_key>x<arg_value>1</arg_value>\n</tool_call>", "", "f{}", ""},
	{"glm47", "a<tool_call>f\n<arg_key>i</arg_key><arg_value>1</arg_value></tool_call>b<tool_call>g</tool_call> c<tool_call>f", "ab c<tool_call>f", `f{"i":1} g{}`, "not closed"},
	{"ling3", "<tool_call>f<arg_key>i</arg_key><arg_value>1</arg_value></tool_call>", "", `f{"i":1}`, ""},
	{"poolside_v1", "<tool_call>f<arg_key>s</arg_key><arg_value>\n\n1\n</arg_value><arg_key>q</arg_key><arg_value>'x'</arg_value></tool_call>", "", `f{"q":"x","s":"\n1"}`, ""},
	{"hunyuan", "<tool_calls:7><tool_call:7>f<tool_sep:7><arg_key:7>i</arg_key:7><arg_value:7>1</arg_value:7></tool_call:7></tool_calls:7>", "", `f{"i":1}`, ""},
	{"hunyuan", "<tool_calls><tool_call>f<tool_sep><arg_key>s</arg_key><arg_value>1</arg_value><arg_key>u</arg_key><arg_value>null</arg_value>" +
		"<arg_key>q</arg_key><arg_value>[1]</arg_value></tool_call></tool_calls>", "", `f{"q":[1],"s":"1","u":null}`, ""},
	{"hunyuan", "<tool_calls><tool_call>f</tool_call></tool_calls>", "", "", "lacks <tool_sep>"},

	{"minimax-m2", "<minimax:tool_call><invoke name=\"f\"><parameter name=\"z\">\n\nkeep\n</parameter><parameter name=\"u\">Nil</parameter><parameter name=\"i\">x</parameter>" +
		"<parameter name=\"b\">off</parameter><parameter name=\"o\">{\"k\": 1}</parameter></invoke></minimax:tool_call>", "", `f{"b":false,"i":"x","o":{"k":1},"u":null,"z":"keep"}`, ""},
	{"minimax-m2", "a<minimax:tool_call><invoke name=\"g\"></invoke></minimax:tool_call>b<minimax:tool_call>c", "ab<minimax:tool_call>c", "g{}", "not closed"},
	{"minimax-m3", ns + "<tool_call>" + ns + "\n<invoke name=\"f\">" + ns + "<a>" + ns + "<item>1" + ns + "</item>" + ns + "<item>2" + ns + "</item>" + ns + "</a>" +
		ns + "<o>" + ns + "<k>3" + ns + "</k>" + ns + "<l>x" + ns + "</l>" + ns + "<l>y" + ns + "</l>" + ns + "</o>" + ns + "</invoke>" + ns + "</tool_call>",
		"", `f{"a":[1,2],"o":{"k":3,"l":["x","y"]}}`, ""},
	{"minimax-m3", ns + "<tool_call>" + ns + "<invoke name=\"f\">" + ns + "<s>x" + ns + "</i>" + ns + "</invoke>" + ns + "</tool_call>", "", "", "do not match"},
	{"minimax-m3", "a " + ns + "<b>", "", "", ""},

	{"gpt-oss", "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}<|call|>", "", "g{}", ""},
	{"gpt-oss", " to=functions.f<|channel|>commentary json<|message|>{\"i\":1}", "", `f{"i":1}`, ""},
	{"gpt-oss", "<|channel|>analysis<|message|>r<|end|><|start|>assistant to=functions.g<|channel|>commentary<|message|>{}<|return|>", "", "g{}", ""},
	{"gpt-oss", "pre<|start|>assistant<|channel|>analysis to=functions.g<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>post", "pre post", "g{}", ""},
	{"gpt-oss", "<|channel|>commentary to=functions.g<|message|>{bad<|call|>", "", "", `call of "g"`},
	{"gpt-oss", "assistant<|channel|>commentary to=functions.g<|message|>{}", "", "g{}", ""},
	{"gpt-oss", "<|channel|>final<|message|>to=you", "", "", ""},

	{"pythonic", "a [f(n=-2.5, a=(1,), o={'k': [None, True]}, s='it''s'), g()] b", "a  b", `f{"a":[1],"n":-2.5,"o":{"k":[null,true]},"s":"its"} g{}`, ""},
	{"pythonic", "[1] and [f(i=1)]", "[1] and ", `f{"i":1}`, ""},
	{"pythonic", "[f(i=1+1)]", "", "", "literal arguments"},
	{"pythonic", "[f(1)]", "", "", "literal arguments"},
	{"lfm2", "<|tool_call_start|>f(b=true, z=null)<|tool_call_end|>", "", `f{"b":true,"z":null}`, ""},
	{"lfm2", "<|tool_call_start|>[f(s=x(1)), g()]<|tool_call_end|>", "", "g{}", "literal arguments"},
	{"lfm2", `<|tool_call_start|>[{"name":"f","arguments":{"i":1}}]<|tool_call_end|>`, "", `f{"i":1}`, ""},
	{"lfm2", "<|tool_call_start|>[g()]", "", "", "not closed"},

	{"step3", "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\"><steptml:parameter name=\"s\"> a<b </steptml:parameter>" +
		"<steptml:parameter name=\"o\">{'k': 1}</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>", "", `f{"o":{"k":1},"s":"a<b"}`, ""},
	{"step3", "<｜tool_calls_begin｜><｜tool_call_begin｜>", "", "", "not closed"},
	{"gemma4", "<|tool_call>call:f{a:[1,-2.0,<|\"|>,<|\"|>],o:{},<|\"|>k<|\"|>:w x}<tool_call|><|tool_call>call:g{}<tool_call|>", "", `f{"a":[1,-2,","],"k":"w x","o":{}} g{}`, ""},
	{"gemma4", "<|tool_call>call:f{a:[}<tool_call|>", "", "", "cannot be read"},
	{"gigachat3", "hi<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\":\"f\",\"arguments\":{\"i\":1}}</s>", "hi", `f{"i":1}`, ""},
	{"cohere_command4", `<|START_ACTION|>[{"tool_name":"f","parameters":{"i":1}}, {"tool_name":"g","par`, "", `f{"i":1}`, "cut off"},
	{"cohere_command4", `<|START_ACTION|>{}<|END_ACTION|>`, "", "", "not a list"},
	{"apertus2509", `a <|tools_prefix|>[{"f": {"i": 1}, "g": null}, 1]<|tools_suffix|>`, "a", `f{"i":1} g{}`, "not a JSON object"},
	{"interns1", "<|action_start|> <|plugin|>{bad}<|action_end|><|action_start|> <|plugin|>{\"name\":\"g\"}<|action_end|>", "", "g{}", "not valid JSON"},
	{"interns1", "<|action_start|><|plugin|>{\"name\":\"g\"}<|action_end|>", "", "", ""},
	{"minicpm5", "a<function name=\"f\"><param name=\"s\"><![CDATA[</param></function>]]></param><param name=\"i\">2</param></function>b", "ab", `f{"i":2,"s":"</param></function>"}`, ""},
	{"minicpm5", "<function name=\"f\"><param name=\"i\">1</param><param name=\"i\">2</param></function><function name=\"g\"></function>",
		"<function name=\"f\"><param name=\"i\">1</param><param name=\"i\">2</param></function>", "g{}", "repeated"},
	{"muse", " to=user<|message|>hi<|eom|><|start|>assistant to=f<|message|><atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"i\">1</atem:parameter>" +
		"<atem:parameter name=\"s\">x y</atem:parameter></atem:invoke></atem:function_calls>", "hi", `f{"i":1,"s":"x y"}`, ""},
	{"muse", "<atem:invoke>", "", "", "without a call"},
	{"inkling", "f<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{\"i\":1}}", "", `f{"i":1}`, ""},
	{"inkling", "hi<|message_model|>f<|content_invoke_tool_json|>{bad<|end_message|><|content_text|>t", "", "", "a call is not"},
	{"dots", "<dots_function_call><invoke name='f'><parameter name='r'>7</parameter></invoke></dots_function_call>", "", `f{"r":7}`, ""},
	{"dots", "<dots_function_call><invoke name=f><parameter name=s>none</parameter><parameter name=z>null</parameter></invoke></dots_function_call>", "", `f{"s":"none","z":null}`, ""},
	{"dots", "<dots_function_call>{\"name\":\"f\"", "", "", "not closed"},
	{"k2_horizon", "a<ifm|tool_calls><ifm|tool_call>{\"name\":\"f\",\"arguments\":{\"i\":1}}</ifm|tool_call><ifm|tool_call>f<ifm|arg_key>i</ifm|arg_key><ifm|arg_value>2</ifm|arg_value>" +
		"<ifm|arg_key>q</ifm|arg_key><ifm|arg_type>number</ifm|arg_type><ifm|arg_value>3</ifm|arg_value></ifm|tool_call></ifm|tool_calls>", "a", `f{"i":1} f{"i":2,"q":3}`, ""},
	{"k2_horizon", "<ifm|tool_calls>junk</ifm|tool_calls>", "", "", "does not follow"},
}

func TestFamilies(t *testing.T) {
	offer := typedTools(t)
	for i, c := range familyCases {
		t.Run(fmt.Sprintf("%s %d", c.parser, i), func(t *testing.T) {
			p, err := ToolCalls(c.parser)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Find(c.text, offer)
			var calls []string
			for n, call := range got.Calls {
				if call.Index != n {
					t.Errorf("call %d has index %d", n, call.Index)
				}
				id := ""
				if call.ID != "" {
					id = "#" + call.ID
				}
				calls = append(calls, call.Name+id+call.Arguments)
			}
			content := c.content
			if c.calls == "" {
				content = c.text
			}
			if s := strings.Join(calls, " "); s != c.calls || got.Content != content {
				t.Errorf("%q:\n got %q, content %q\nwant %q, content %q", c.text, s, got.Content, c.calls, content)
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

// TestEveryFamilyHasACase holds the table to the registry.
func TestEveryFamilyHasACase(t *testing.T) {
	have := map[string]bool{"hermes": true, "qwen": true, "qwen25": true} // TestFind
	for _, c := range familyCases {
		have[c.parser] = true
	}
	for name := range toolCallFamilies {
		if !have[name] {
			t.Errorf("no case for %s", name)
		}
	}
}

func TestReasoningFamilies(t *testing.T) {
	for _, c := range []struct {
		parser string
		turn   Turn
		want   Split
	}{
		{"deepseek-v4", Turn{Text: "p<｜DSML｜x", ThinkOpen: true}, Split{"p", "<｜DSML｜x"}},
		{"kimi", Turn{Text: "p◁/think▷a", ThinkOpen: true}, Split{"", "p◁/think▷a"}},
		{"kimi_k2", Turn{Text: "p<|tool_calls_section_begin|>", ThinkOpen: true}, Split{"p", "<|tool_calls_section_begin|>"}},
		{"kimi_k3", Turn{Text: "a"}, Split{"", "a"}},
		{"kimi_k3", Turn{Text: "p", ThinkOpen: true}, Split{"p", ""}},
		{"kimi_k3", Turn{Text: "p<|close|>think<|sep|><|open|>response<|sep|>a<|close|>response<|sep|><|open|>tools<|sep|>x"}, Split{"p", "a<|open|>tools<|sep|>x"}},
		{"kimi_k3", Turn{Text: "p<|close|>think<|sep|><|open|>response<|sep|>a<|close|>resp"}, Split{"p", "a"}},
		{"kimi_k3", Turn{Text: "p<|open|>response<|sep|>a", ThinkOpen: true}, Split{"p", "a"}},
		{"mistral", Turn{Text: "p[/THINK]a", ThinkOpen: true}, Split{"p", "a"}},
		{"gemma4", Turn{Text: "<|channel>thought\n<channel|>a"}, Split{"", "a"}},
		{"hunyuan", Turn{Text: "<think:opensource>p</think:opensource>a"}, Split{"p", "a"}},
		{"hunyuan", Turn{Text: "p</think:x>a", ThinkOpen: true}, Split{"p", "a"}},
		{"minimax-m3", Turn{Text: " \n</mm:think>a"}, Split{"", "a"}},
		{"minimax-m3", Turn{Text: "p</mm:think>a", ThinkOpen: true}, Split{"p", "a"}},
		{"k2_horizon", Turn{Text: "<ifm|think_fast>p</ifm|think_fast>a"}, Split{"p", "a"}},
		{"k2_horizon", Turn{Text: "p</ifm|think_faster>a", ThinkOpen: true}, Split{"p", "a"}},
		{"k2_horizon", Turn{Text: "p", ThinkOpen: true}, Split{"p", ""}},
		{"dots", Turn{Text: "<think>p<dots_function_call>"}, Split{"p", "<dots_function_call>"}},
		{"cohere_command4", Turn{Text: "<|START_TEXT|>a<|END_TEXT|>"}, Split{"", "a"}},
		{"cohere_command4", Turn{Text: "p<|START_ACTION|>[]"}, Split{"p", "<|START_ACTION|>[]"}},
		{"cohere_command4", Turn{Text: "p<|END_THINKING|><|START_TEXT|>a<|END_TEXT|><|START_ACTION|>[]"}, Split{"p", "a<|START_ACTION|>[]"}},
		{"apertus2509", Turn{Text: "<|inner_prefix|>p<|inner_suffix|>a<|inner_prefix|>q<|tools_prefix|>"}, Split{"pq<|tools_prefix|>", "a"}},
		{"gpt-oss", Turn{Text: "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"}, Split{"ab", ""}},
		{"gpt-oss", Turn{Text: " to=functions.f<|channel|>commentary<|message|>{}"}, Split{"", " to=functions.f<|channel|>commentary<|message|>{}"}},
		{"gpt-oss", Turn{Text: "<|channel|>final"}, Split{"", "<|channel|>final"}},
		{"gpt-oss", Turn{Text: "<|start|><|start|>assistant<|channel|>final<|message|>x"}, Split{"", "<|start|>x"}},
		{"muse", Turn{Text: " to=self<|message|>p<|eom|><|start|>assistant to=self<|message|>q<|eom|><|start|>assistant to=user<|message|>a<|eot|>"}, Split{"p\nq", "a"}},
		{"muse", Turn{Text: " to=f<|message|><atem:function_calls>"}, Split{"", " to=f<|message|><atem:function_calls>"}},
		{"inkling", Turn{Text: "<|content_thinking|>p<|end_message|><|message_model|>f<|content_invoke_tool_json|>{}<|end_message|>"},
			Split{"p", "<|message_model|>f<|content_invoke_tool_json|>{}<|end_message|>"}},
		{"minimax-append-think", Turn{Text: "p</think>a", ThinkOpen: true}, Split{"", "<think>p</think>a"}},
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
