package parsers

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// markers is for every tool-call family a text that begins a call beyond doubt: a turn that
// holds it has calls or is flagged.
var markers = map[string]string{
	"apertus2509":     apertusToolsOpen,
	"cohere_command4": cohereActionOpen,
	"deepseekv3":      deepseekCallsOpen,
	"deepseekv31":     deepseekCallsOpen,
	"deepseekv32":     "<｜DSML｜function_calls>",
	"deepseekv4":      "<｜DSML｜tool_calls>",
	"dots":            dotsOpen,
	"gemma4":          gemma4Open,
	"gigachat3":       "<|function_call|>",
	"glm":             toolCallOpen,
	"glm45":           toolCallOpen,
	"glm47":           toolCallOpen,
	"gpt-oss":         "<|start|>assistant<|channel|>commentary to=functions.f<|message|>",
	"hermes":          toolCallOpen,
	"hunyuan":         "<tool_calls>",
	"inkling":         inklingToolJSON,
	"interns1":        "<|action_start|> <|plugin|>",
	"k2_horizon":      k2HorizonOpen,
	"kimi_k2":         kimiSectionOpen,
	"kimi_k3":         kimiK3ToolsOpen,
	"lfm2":            lfm2Open,
	"ling3":           toolCallOpen,
	"llama3":          pythonTag,
	"mimo":            toolCallOpen,
	"minicpm5":        "<function ",
	"minimax-m2":      minimaxM2Open,
	"minimax-m3":      minimaxNS + "<tool_call>",
	"mistral":         mistralOpen,
	"muse":            "<atem:invoke",
	"poolside_v1":     toolCallOpen,
	"pythonic":        "[f(",
	"qwen":            qwenOpen,
	"qwen25":          qwenOpen,
	"qwen3_coder":     toolCallOpen,
	"step3":           "<｜tool_calls_begin｜>",
	"step3p5":         toolCallOpen,
	"trinity":         qwenOpen,
}

// fuzzFind is the harness of every tool-call family.
func fuzzFind(f *testing.F, name string) {
	p, err := ToolCalls(name)
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range familyCases {
		f.Add(c.text)
	}
	for _, s := range []string{
		"", "hello", "<tool_call>", "<tool_call>\n", "<tool_call>\n\n</tool_call>", markers[name], strings.Repeat(markers[name], 3),
		"a<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":[1,2.0,null,\"é\"]}}\n</tool_call>b",
		"<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}</tool_call>",
		"<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":\"\\ud800\"}}\n</tool_call>",
		"<tool_call>\n" + strings.Repeat("[", 2000) + "\n</tool_call>",
		"[f(a=" + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + ")]",
		"<tool_call><function=f><parameter=a>" + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "</parameter><parameter=s>\xff\xfe</parameter>",
	} {
		f.Add(s)
	}
	offer := typedTools(f)
	f.Fuzz(func(t *testing.T, text string) { checkFound(t, name, text, p.Find(text, offer), offer) })
}

// checkFound holds what a family made of a text to the rules of all families.
func checkFound(t *testing.T, name, text string, got Found, offer []canon.ToolSpec) {
	t.Helper()
	if len(got.Calls) == 0 && got.Content != text {
		t.Fatalf("no call, and content %q is not the text %q", got.Content, text)
	}
	if len(got.Calls) == 0 && got.ParseError == "" && strings.Contains(text, markers[name]) {
		t.Fatalf("neither calls nor a flag for %q", text)
	}
	if len(got.Content) > len(text) {
		t.Fatalf("content %q is longer than %q", got.Content, text)
	}
	passes := map[string]bool{"qwen3_coder": true, "step3p5": true, "kimi_k2": true, "kimi_k3": true, "gemma4": true, "inkling": true}[name]
	for i, c := range got.Calls {
		if c.Index != i || c.Name == "" || !utf8.ValidString(c.Name) || !passes && !offered(c.Name, offer) {
			t.Fatalf("call %d: %+v", i, c)
		}
		again, err := canon.CanonicalArgumentsText(c.Arguments)
		if err != nil || again != c.Arguments {
			t.Fatalf("arguments %q are not canonical: %q, %v", c.Arguments, again, err)
		}
	}
	if utf8.ValidString(text) && !utf8.ValidString(got.ParseError) {
		t.Fatalf("ParseError %q is not text", got.ParseError)
	}
}

// fuzzSplit is the harness of every reasoning family: nothing is made up, and a turn without
// any marker is whole on one side.
func fuzzSplit(f *testing.F, name string) {
	p, err := Reasoning(name)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		"", "plain", "<think>", "</think>", "<think>\na\n</think>\n\nb", "<think><think>a<tool_call>b", "a</think>b</think>",
		"◁think▷a◁/think▷b", "[THINK]a[/THINK]b", "<|channel>thought\na<channel|>b", "<mm:think>a</mm:think>b", "<think:x>a</think:x>b",
		"<ifm|think>a</ifm|think>b", "<|START_THINKING|>a<|END_THINKING|><|START_TEXT|>b<|END_TEXT|><|START_ACTION|>",
		"<|inner_prefix|>a<|tools_prefix|>[]<|tools_suffix|><|inner_suffix|>b",
		"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "analysisaassistantfinalb",
		" to=functions.f<|channel|>commentary<|message|>{}", "<|start|><|start|><|message|>", "assistant to=x<|message|>",
		"<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>", "a<|open|>tools<|sep|>b",
		" to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>", "to=<|message|>",
		"<|content_thinking|>a<|end_message|><|message_model|><|content_text|>b<|content_model_end_sampling|>",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, text string, open bool) {
		got := p.Split(Turn{Text: text, ThinkOpen: open})
		content := got.Content
		if name == "minimax-append-think" {
			content = strings.TrimPrefix(content, "<think>")
		}
		if len(got.Reasoning)+len(content) > len(text) {
			t.Fatalf("%q of %q is made up", got, text)
		}
		if !strings.ContainsAny(text, "<[◁") && !strings.HasPrefix(text, "analysis") && content != text && got.Reasoning != text {
			t.Fatalf("%q is lost: %q", text, got)
		}
		if _, base := p.(thinkTags); base {
			checkNothingLost(t, p.(thinkTags), text, got)
		}
	})
}

// checkNothingLost: beside the tags everything is in the reasoning or the content.
func checkNothingLost(t *testing.T, g thinkTags, text string, got Split) {
	t.Helper()
	lost, ok := strings.CutSuffix(text, got.Content)
	if !ok {
		t.Fatalf("content %q is not the end of %q", got.Content, text)
	}
	lost = strings.TrimSuffix(lost, g.end)
	if lost, ok = strings.CutSuffix(lost, got.Reasoning); !ok {
		t.Fatalf("reasoning %q is not in front of the content in %q", got.Reasoning, text)
	}
	if strings.ReplaceAll(lost, g.start+g.label, "") != "" {
		t.Fatalf("%q of %q is lost", lost, text)
	}
}

// FuzzEveryParser gives each text to all parsers.
func FuzzEveryParser(f *testing.F) {
	for _, c := range familyCases {
		f.Add(c.text, false)
	}
	for _, m := range markers {
		f.Add(m, true)
	}
	offer := typedTools(f)
	f.Fuzz(func(t *testing.T, text string, open bool) {
		for name, p := range toolCallFamilies {
			checkFound(t, name, text, p.Find(text, offer), offer)
		}
		for name, p := range reasoningFamilies {
			got := p.Split(Turn{Text: text, ThinkOpen: open})
			if made := len(got.Reasoning) + len(got.Content) - len(text); made > 0 && (name != "minimax-append-think" || made > len("<think>")) {
				t.Fatalf("%s: %q of %q is made up", name, got, text)
			}
		}
	})
}

func TestEveryFamilyHasAMarker(t *testing.T) {
	for name := range toolCallFamilies {
		if markers[name] == "" {
			t.Errorf("no marker for %s", name)
		}
	}
}

func FuzzReasoningApertus2509(f *testing.F)        { fuzzSplit(f, "apertus2509") }
func FuzzReasoningCohereCommand4(f *testing.F)     { fuzzSplit(f, "cohere_command4") }
func FuzzReasoningDeepseekR1(f *testing.F)         { fuzzSplit(f, "deepseek-r1") }
func FuzzReasoningDeepseekV3(f *testing.F)         { fuzzSplit(f, "deepseek-v3") }
func FuzzReasoningDeepseekV4(f *testing.F)         { fuzzSplit(f, "deepseek-v4") }
func FuzzReasoningDots(f *testing.F)               { fuzzSplit(f, "dots") }
func FuzzReasoningGemma4(f *testing.F)             { fuzzSplit(f, "gemma4") }
func FuzzReasoningGlm45(f *testing.F)              { fuzzSplit(f, "glm45") }
func FuzzReasoningGptOss(f *testing.F)             { fuzzSplit(f, "gpt-oss") }
func FuzzReasoningHunyuan(f *testing.F)            { fuzzSplit(f, "hunyuan") }
func FuzzReasoningInkling(f *testing.F)            { fuzzSplit(f, "inkling") }
func FuzzReasoningInterns1(f *testing.F)           { fuzzSplit(f, "interns1") }
func FuzzReasoningK2Horizon(f *testing.F)          { fuzzSplit(f, "k2_horizon") }
func FuzzReasoningKimi(f *testing.F)               { fuzzSplit(f, "kimi") }
func FuzzReasoningKimiK2(f *testing.F)             { fuzzSplit(f, "kimi_k2") }
func FuzzReasoningKimiK3(f *testing.F)             { fuzzSplit(f, "kimi_k3") }
func FuzzReasoningLing3(f *testing.F)              { fuzzSplit(f, "ling3") }
func FuzzReasoningMimo(f *testing.F)               { fuzzSplit(f, "mimo") }
func FuzzReasoningMinimax(f *testing.F)            { fuzzSplit(f, "minimax") }
func FuzzReasoningMinimaxAppendThink(f *testing.F) { fuzzSplit(f, "minimax-append-think") }
func FuzzReasoningMinimaxM3(f *testing.F)          { fuzzSplit(f, "minimax-m3") }
func FuzzReasoningMistral(f *testing.F)            { fuzzSplit(f, "mistral") }
func FuzzReasoningMuse(f *testing.F)               { fuzzSplit(f, "muse") }
func FuzzReasoningNemotron3(f *testing.F)          { fuzzSplit(f, "nemotron_3") }
func FuzzReasoningPoolsideV1(f *testing.F)         { fuzzSplit(f, "poolside_v1") }
func FuzzReasoningQwen3(f *testing.F)              { fuzzSplit(f, "qwen3") }
func FuzzReasoningQwen3Thinking(f *testing.F)      { fuzzSplit(f, "qwen3-thinking") }
func FuzzReasoningStep3(f *testing.F)              { fuzzSplit(f, "step3") }
func FuzzReasoningStep3p5(f *testing.F)            { fuzzSplit(f, "step3p5") }

func FuzzToolCallsApertus2509(f *testing.F)    { fuzzFind(f, "apertus2509") }
func FuzzToolCallsCohereCommand4(f *testing.F) { fuzzFind(f, "cohere_command4") }
func FuzzToolCallsDeepseekv3(f *testing.F)     { fuzzFind(f, "deepseekv3") }
func FuzzToolCallsDeepseekv31(f *testing.F)    { fuzzFind(f, "deepseekv31") }
func FuzzToolCallsDeepseekv32(f *testing.F)    { fuzzFind(f, "deepseekv32") }
func FuzzToolCallsDeepseekv4(f *testing.F)     { fuzzFind(f, "deepseekv4") }
func FuzzToolCallsDots(f *testing.F)           { fuzzFind(f, "dots") }
func FuzzToolCallsGemma4(f *testing.F)         { fuzzFind(f, "gemma4") }
func FuzzToolCallsGigachat3(f *testing.F)      { fuzzFind(f, "gigachat3") }
func FuzzToolCallsGlm(f *testing.F)            { fuzzFind(f, "glm") }
func FuzzToolCallsGlm45(f *testing.F)          { fuzzFind(f, "glm45") }
func FuzzToolCallsGlm47(f *testing.F)          { fuzzFind(f, "glm47") }
func FuzzToolCallsGptOss(f *testing.F)         { fuzzFind(f, "gpt-oss") }
func FuzzToolCallsHermes(f *testing.F)         { fuzzFind(f, "hermes") }
func FuzzToolCallsHunyuan(f *testing.F)        { fuzzFind(f, "hunyuan") }
func FuzzToolCallsInkling(f *testing.F)        { fuzzFind(f, "inkling") }
func FuzzToolCallsInterns1(f *testing.F)       { fuzzFind(f, "interns1") }
func FuzzToolCallsK2Horizon(f *testing.F)      { fuzzFind(f, "k2_horizon") }
func FuzzToolCallsKimiK2(f *testing.F)         { fuzzFind(f, "kimi_k2") }
func FuzzToolCallsKimiK3(f *testing.F)         { fuzzFind(f, "kimi_k3") }
func FuzzToolCallsLfm2(f *testing.F)           { fuzzFind(f, "lfm2") }
func FuzzToolCallsLing3(f *testing.F)          { fuzzFind(f, "ling3") }
func FuzzToolCallsLlama3(f *testing.F)         { fuzzFind(f, "llama3") }
func FuzzToolCallsMimo(f *testing.F)           { fuzzFind(f, "mimo") }
func FuzzToolCallsMinicpm5(f *testing.F)       { fuzzFind(f, "minicpm5") }
func FuzzToolCallsMinimaxM2(f *testing.F)      { fuzzFind(f, "minimax-m2") }
func FuzzToolCallsMinimaxM3(f *testing.F)      { fuzzFind(f, "minimax-m3") }
func FuzzToolCallsMistral(f *testing.F)        { fuzzFind(f, "mistral") }
func FuzzToolCallsMuse(f *testing.F)           { fuzzFind(f, "muse") }
func FuzzToolCallsPoolsideV1(f *testing.F)     { fuzzFind(f, "poolside_v1") }
func FuzzToolCallsPythonic(f *testing.F)       { fuzzFind(f, "pythonic") }
func FuzzToolCallsQwen(f *testing.F)           { fuzzFind(f, "qwen") }
func FuzzToolCallsQwen25(f *testing.F)         { fuzzFind(f, "qwen25") }
func FuzzToolCallsQwen3Coder(f *testing.F)     { fuzzFind(f, "qwen3_coder") }
func FuzzToolCallsStep3(f *testing.F)          { fuzzFind(f, "step3") }
func FuzzToolCallsStep3p5(f *testing.F)        { fuzzFind(f, "step3p5") }
func FuzzToolCallsTrinity(f *testing.F)        { fuzzFind(f, "trinity") }
