package chat

import (
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"slices"
	"strings"
	"testing"
)

// A turnText is one request and its answer in pieces: what the agent says, the generation
// prompt, what the model says.
type turnText struct{ context, prompt, said string }

// A familyTalk is a tool conversation of three turns with a real template: a question, a call
// and its result, an answer and another question.
type familyTalk struct {
	template, bos string
	eos           []string
	turns         []*canon.Message
	tools         []canon.ToolSpec
	want          []turnText
}

// asks are the numbers of messages of the requests.
func (c *familyTalk) asks() []int {
	var out []int
	for k, m := range c.turns {
		if m.Role == canon.Assistant {
			out = append(out, k)
		}
	}
	return append(out, len(c.turns))
}

func (c *familyTalk) request(k int) *canon.Request {
	return &canon.Request{Messages: c.turns[:k], Tools: c.tools, Kwargs: canon.ObjectOf()}
}

var weatherDescription = "Current weather"

var weather = canon.NewToolSpec("weather", &weatherDescription, canon.ObjectOf(
	canon.Member{Key: "type", Value: canon.StringValue("object")},
	canon.Member{Key: "properties", Value: canon.ObjectOf(canon.Member{Key: "city", Value: canon.ObjectOf(
		canon.Member{Key: "type", Value: canon.StringValue("string")},
		canon.Member{Key: "description", Value: canon.StringValue("a city")})})},
	canon.Member{Key: "required", Value: canon.ArrayOf(canon.StringValue("city"))}))

const parisID = "call_0123456789abcdef01234567"

// paris is the conversation all families have: reasoning only where the template prints it.
func paris(reasoning string) []*canon.Message {
	call := calling("", parisID, "weather", `{"city":"Paris"}`)
	if reasoning != "" {
		call = thinking(call, reasoning)
	}
	return []*canon.Message{user("Weather in Paris?"), call, result(parisID, "18 C"), assistant("18 degrees."), user("Thanks!")}
}

// fits reports whether text is a pattern, in which "…" stands for anything.
func fits(text, pattern string) bool {
	first, rest, open := strings.Cut(pattern, "…")
	if !open {
		return text == pattern
	}
	text, ok := strings.CutPrefix(text, first)
	parts := strings.Split(rest, "…")
	last := parts[len(parts)-1]
	for _, p := range parts[:len(parts)-1] {
		at := strings.Index(text, p)
		if at < 0 {
			return false
		}
		text = text[at+len(p):]
	}
	return ok && strings.HasSuffix(text, last)
}

// TestFamilies compares each piece of each conversation with its expected text.
func TestFamilies(t *testing.T) {
	for _, c := range familyTalks {
		t.Run(c.template, func(t *testing.T) {
			f := family(t, c.template, c.bos, c.eos...)
			from, prev := 0, Prev{}
			for i, k := range c.asks() {
				obs, err := f.Observe(c.request(k), from, prev)
				if err != nil {
					t.Fatal(err)
				}
				want := c.want[i]
				if got := decoded(t, f.tok, obs.Body); !fits(got, want.context) {
					t.Errorf("turn %d: context\n%q, want\n%q", i, got, want.context)
				}
				if got := decoded(t, f.tok, obs.Prompt); got != want.prompt {
					t.Errorf("turn %d: prompt\n%q, want\n%q", i, got, want.prompt)
				}
				if want.said == "" {
					break
				}
				prev = Prev{IDs: generated(t, f, want.said)}
				if last := prev.IDs[len(prev.IDs)-1]; !slices.Contains(f.StopIDs(), last) {
					t.Errorf("turn %d: %q ends in no stop token", i, want.said)
				}
				from = k + 1
			}
		})
	}
}

// TestEndsOfTurns: what stands behind a response depends on how it ended.
func TestEndsOfTurns(t *testing.T) {
	long := calling("", parisID, "weather", `{"city":"Paris"}`, "call_0123456789abcdef01234568", "weather", `{"city":"Rome"}`)
	both := []*canon.Message{user("u"), long, result(parisID, "18 C"), result("call_0123456789abcdef01234568", "25 C")}
	question := []*canon.Message{user("u"), assistant("a"), user("w")}
	for name, c := range map[string]struct {
		template string
		eos      []string
		turns    []*canon.Message
		said     string
		want     string // body and prompt
	}{
		"GLM: the token that ends a turn opens the next": {"lc__GLM-4.6", []string{"<|endoftext|>"}, question, "\n<think></think>\na<|user|>",
			"\nw<|assistant|>"},
		"GLM: cut off": {"lc__GLM-4.6", []string{"<|endoftext|>"}, question, "\n<think></think>\na", "<|user|>\nw<|assistant|>"},
		"GLM: another stop token": {"lc__GLM-4.6", []string{"<|endoftext|>"}, question, "\n<think></think>\na<|endoftext|>",
			"<|user|>\nw<|assistant|>"},
		"GLM: the model expected a tool": {"lc__GLM-4.6", []string{"<|endoftext|>"}, question, "\n<think></think>\na<|observation|>",
			"<|user|>\nw<|assistant|>"},
		"Qwen: cut off":            {"lc__Qwen-Qwen3-0.6B", []string{"<|im_end|>"}, question, "a", "<|im_end|>\n<|im_start|>user\nw<|im_end|>\n<|im_start|>assistant\n"},
		"Qwen: another stop token": {"lc__Qwen-Qwen3-0.6B", []string{"<|endoftext|>"}, question, "a<|endoftext|>", "<|im_end|>\n<|im_start|>user\nw<|im_end|>\n<|im_start|>assistant\n"},
		"Qwen: cut off in a call": {"lc__Qwen-Qwen3-0.6B", []string{"<|im_end|>"}, question, "<tool_call>\n{\"na",
			"<|im_end|>\n<|im_start|>user\nw<|im_end|>\n<|im_start|>assistant\n"},
		"gpt-oss: return where history has end": {"lc__openai-gpt-oss-120b", []string{"<|return|>", "<|call|>"}, question, "<|channel|>final<|message|>a<|return|>",
			"<|start|>user<|message|>w<|end|><|start|>assistant"},
		"gpt-oss: cut off": {"lc__openai-gpt-oss-120b", []string{"<|return|>", "<|call|>"}, question, "<|channel|>final<|message|>a",
			"<|end|><|start|>user<|message|>w<|end|><|start|>assistant"},
		"Mistral: cut off":         {"lc__Mistral-Small-3.2-24B-Instruct-2506", []string{"</s>"}, question, "a", "</s>" + mistralTools + "[INST]w[/INST]"},
		"DeepSeek: cut off":        {"lc__deepseek-ai-DeepSeek-V3.1", []string{"<｜end▁of▁sentence｜>"}, question, "a", "<｜end▁of▁sentence｜><｜User｜>w<｜Assistant｜><think></think>"},
		"Gemma 3: cut off":         {"npm__gemma3", []string{"<end_of_turn>"}, question, "a", "<end_of_turn>\n<start_of_turn>user\nw<end_of_turn>\n<start_of_turn>model\n"},
		"Phi: cut off":             {"lc__microsoft-Phi-3.5-mini-instruct", []string{"<|end|>"}, question, "a", "<|end|>\n<|user|>\nw<|end|>\n<|assistant|>\n"},
		"Phi: end of text":         {"lc__microsoft-Phi-3.5-mini-instruct", []string{"<|endoftext|>"}, question, "a<|endoftext|>", "<|end|>\n<|user|>\nw<|end|>\n<|assistant|>\n"},
		"Cohere 2: both tokens":    {"trl__cohere2_training", []string{"<|END_OF_TURN_TOKEN|>"}, question, "a<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>w<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>"},
		"Cohere 2: cut in between": {"trl__cohere2_training", []string{"<|END_OF_TURN_TOKEN|>"}, question, "a<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>w<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>"},
		"Cohere 2: cut off":        {"trl__cohere2_training", []string{"<|END_OF_TURN_TOKEN|>"}, question, "a", "<|END_RESPONSE|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>w<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>"},
		"Llama 3.1: two calls where the template takes one": {"lc__meta-llama-Llama-3.1-8B-Instruct", []string{"<|eot_id|>"}, both, "x<|eot_id|>",
			"<|start_header_id|>ipython<|end_header_id|>\n\n\"18 C\"<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"25 C\"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
		"gpt-oss: two calls where the template takes one": {"lc__openai-gpt-oss-120b", []string{"<|return|>", "<|call|>"}, both, "x<|call|>",
			"<|start|>functions.weather to=assistant<|channel|>commentary<|message|>\"18 C\"<|end|><|start|>functions.weather to=assistant<|channel|>commentary<|message|>\"25 C\"<|end|><|start|>assistant"},
		"Mistral: ids it would refuse": {"lc__Mistral-Small-3.2-24B-Instruct-2506", []string{"</s>"}, both, "x</s>",
			"[TOOL_RESULTS]" + shorten(parisID) + "[TOOL_CONTENT]18 C[/TOOL_RESULTS][TOOL_RESULTS]" + shorten("call_0123456789abcdef01234568") + "[TOOL_CONTENT]25 C[/TOOL_RESULTS]"},
		"Mistral: ids it takes": {"lc__Mistral-Small-3.2-24B-Instruct-2506", []string{"</s>"},
			[]*canon.Message{user("u"), calling("", "abcDEF123", "weather", "{}"), result("abcDEF123", "r")}, "x</s>", "[TOOL_RESULTS]abcDEF123[TOOL_CONTENT]r[/TOOL_RESULTS]"},
		"Gemma 4: the text of a response with calls is not said again": {"lc__google-gemma-4-31B-it", []string{"<turn|>", "<|tool_response>"},
			[]*canon.Message{user("u"), calling("I look.", parisID, "weather", "{}"), result(parisID, "18 C")}, "x<|tool_response>",
			"response:weather{value:<|\"|>18 C<|\"|>}<tool_response|>"},
		"a result for a call that nobody made": {"lc__Qwen-Qwen3-0.6B", []string{"<|im_end|>"},
			[]*canon.Message{user("u"), assistant("a"), result("nobody", "r")}, "a<|im_end|>",
			"\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := family(t, c.template, "<s>", c.eos...)
			obs, err := f.Observe(&canon.Request{Messages: c.turns, Tools: []canon.ToolSpec{weather}, Kwargs: canon.ObjectOf()}, 2, Prev{IDs: generated(t, f, c.said)})
			if err != nil {
				t.Fatal(err)
			}
			if got := decoded(t, f.tok, obs.Body, obs.Prompt); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// TestShortIDs: an id that Mistral's template refuses becomes another of its kind, always the
// same.
func TestShortIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"", "a", parisID, "call_1", "call_2", "abcdefgh-", "abcdefghij", "ａｂｃ"} {
		short := shorten(id)
		if !isShortID(short) || short != shorten(strings.Clone(id)) || seen[short] || isShortID(id) {
			t.Errorf("%q becomes %q", id, short)
		}
		seen[short] = true
	}
	if !isShortID("abcDEF123") {
		t.Error("a good id is refused")
	}
}
