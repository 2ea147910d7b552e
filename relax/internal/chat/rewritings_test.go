package chat

import "testing"

// limit keeps a talker to what a template prints where it stands.
func (k *talker) limit(name string) {
	switch name {
	case "lc__google-gemma-4-31B-it", "trl__diffusion_gemma", "trl__diffusion_gemma_training":
		k.bare = true // the text of a response with calls is printed behind the results
	}
}

// variants are further versions of a family's template.
var variants = map[string]bool{
	"lc__google-gemma-4-31B-it-interleaved": true, "minja__qwen3coder": true, "npm__gemma3": true, "npm__qwen3": true,
	"lc__MiMo-VL": true, "lc__NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": true, "lc__llama-cpp-deepseek-r1": true,
	"miles__qwen3.5_fixed": true, "miles__qwen3_thinking_2507_and_next_fixed": true,
	"trl__diffusion_gemma_training": true, "trl__gemma_training": true, "trl__gptoss_training": true, "trl__idefics3_training": true,
	"trl__llama3_1": true, "trl__llama3_2": true, "trl__llama3_training": true, "trl__nemotron_3_nano_training": true,
	"trl__nemotron_3_super_training": true, "trl__nemotron_3_ultra": true, "trl__phi3_5": true, "trl__phi3_5_training": true,
	"trl__phi3_training": true, "trl__qwen2_5_vl_training": true, "trl__qwen3": true, "trl__qwen3_5_nothink_training": true,
	"trl__qwen3_5_think_training": true, "trl__qwen3_6": true, "lc__unsloth-Apriel-1.5": true, "lc__GigaChat3.1-10B-A1.8B": true,
	"sgl__tool_chat_template_deepseekr1": true, "sgl__tool_chat_template_deepseekv31": true,
}

func lineageFormat(t testing.TB, name string) *Format { return fixtureFormat(t, name) }

type rewriting struct {
	same        int
	differences []string
}

// rewritings say of each template how many of 50 random conversations a full render prints as
// they were sampled, and how it prints the others: what was there → what is there. CONTENT,
// REASONING, WORD, ID and TOOL stand for a message's texts. "end: " is a difference between a
// response's last word and the next message. All follow from the templates' text: most leave
// out reasoning once a user speaks (spec/parsers.md section 6), Mistral moves the tools to the
// last user message, Command-R+ its instruction to the end.
var rewritings = map[string]rewriting{
	"lc__Apertus-8B-Instruct": {25, []string{
		`"<|assistant_start|>"→""`,
	}},
	"lc__Apriel-1.6-15b-Thinker-fixed": {0, []string{
		`""→", \"id\": \"ID\""`,
		`"Here are my reasoning steps:\n"→""`,
		`"Here are my reasoning steps:\nREASONING\n[BEGIN FINAL RESPONSE]\n"→""`,
		`"}]</tool_calls>"→", \"id\": \"ID\"}]</tool_calls>\n"`,
		`"}]</tool_calls>\n<|end|>\n<|begin_tool_result|>\n\n\n\n<…assistant|>\nHere are my reasoning steps:"→", \"id\": \"ID\"}]</tool_calls>\n<|end|>\n<|begin_tool_r…in_tool_result|>\n\n\n\n\n<|begin_assistant|>"`,
		`"}]</tool_calls>\n<|end|>\n<|begin_tool_result|>\n\n\n\n\n<|begin_assistant|>\nHere are my reasoning steps:"→", \"id\": \"ID\"}]</tool_calls>\n<|end|>\n<|begin_tool_result|>\n\n\n\n\n<|begin_assistant|>"`,
		`"}]</tool_calls>\n<|end|>\n<|begin_tool_result|>\n\n\n\n\n… steps:\nREASONING\n[BEGIN FINAL RESPONSE]"→", \"id\": \"ID\"}]</tool_calls>\n<|end|>\n<|begin_tool_result|>\n\n\n\n\n<|begin_assistant|>"`,
		`end: ""→", \"id\": \"ID\""`,
		`end: "}]</tool_calls>"→", \"id\": \"ID\"}]</tool_calls>\n"`,
	}},
	"lc__Bielik-11B-v3.0-Instruct": {36, []string{
		`"<|im_end|>\n"→""`,
	}},
	"lc__CohereForAI-c4ai-command-r-plus-tool_use": {0, []string{
		`"<|SYSTEM_TOKEN|>Write 'Action:' followed by a json…D_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"→""`,
	}},
	"lc__GLM-4.6": {13, []string{
		`"<|user|>"→""`,
		`"REASONING"→""`,
		`end: "<|user|>"→""`,
	}},
	"lc__GLM-5.2": {13, []string{
		`"<|user|>"→""`,
		`"REASONING"→""`,
		`end: "<|user|>"→""`,
	}},
	"lc__GigaChat3.1-10B-A1.8B": {10, nil},
	"lc__Kimi-K2-Instruct":      {50, nil},
	"lc__MiMo-VL":               {10, nil},
	"lc__Mistral-Small-3.2-24B-Instruct-2506": {15, []string{
		`"AVAILABLE_TOOLS][{\"type\": \"function\", \"function\": …\"required\": [\"q\"]}}}][/AVAILABLE_TOOLS]["→""`,
	}},
	"lc__NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": {4, []string{
		`""→"\n"`,
	}},
	"lc__NousResearch-Hermes-3-Llama-3.1-8B-tool_use": {25, []string{
		`""→"\n"`,
	}},
	"lc__Qwen-QwQ-32B": {0, []string{
		`"<think>\n</think>"→""`,
	}},
	"lc__Qwen-Qwen2.5-7B-Instruct": {50, nil},
	"lc__Qwen-Qwen3-0.6B": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"lc__Qwen3-Coder": {50, nil},
	"lc__Qwen3.5-4B": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"lc__Reka-Edge": {50, nil},
	"lc__deepseek-ai-DeepSeek-R1-Distill-Llama-8B": {0, []string{
		`"<think>\n"→""`,
		`"<｜Assistant｜><think>\n"→""`,
		`"<｜tool▁outputs▁end｜>"→""`,
	}},
	"lc__deepseek-ai-DeepSeek-V3.1": {50, nil},
	"lc__deepseek-ai-DeepSeek-V4":   {50, nil},
	"lc__google-gemma-2-2b-it":      {50, nil},
	"lc__google-gemma-4-31B-it": {0, []string{
		`"<channel|>"→""`,
		`"<|channel>thought\n<channel|>"→""`,
		`"<|channel>thought\n<channel|>REASONING\n<channel|>"→""`,
		`"<|channel>thought\nREASONING\n<channel|>"→""`,
	}},
	"lc__google-gemma-4-31B-it-interleaved": {0, []string{
		`"<channel|>"→""`,
		`"<|channel>thought\n<channel|>"→""`,
		`"<|channel>thought\n<channel|>REASONING<channel|>"→""`,
	}},
	"lc__ibm-granite-granite-3.3-2B-Instruct": {50, nil},
	"lc__llama-cpp-deepseek-r1": {0, []string{
		`"<think>\n"→""`,
	}},
	"lc__meetkai-functionary-medium-v3.2":  {50, nil},
	"lc__meta-llama-Llama-3.1-8B-Instruct": {50, nil},
	"lc__microsoft-Phi-3.5-mini-instruct":  {50, nil},
	"lc__moonshotai-Kimi-K2":               {50, nil},
	"lc__openai-gpt-oss-120b": {0, []string{
		`"<|channel|>analysis<|message|>CONTENT<|end|><|start|>assistant"→""`,
		`"<|channel|>analysis<|message|>REASONING<|end|><|start|>assistant"→""`,
		`"<|return"→"<|end"`,
		`"analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>"→""`,
		`end: "<|return"→"<|end"`,
	}},
	"lc__stepfun-ai-Step-3.5-Flash": {0, []string{
		`"<think>\nREASONING\n</think>\n"→""`,
		`"<think>\n\n</think>\n"→""`,
	}},
	"lc__unsloth-Apriel-1.5": {3, []string{
		`""→", \"id\": \"ID\""`,
		`"<|system|>\nYou are a thoughtful and systematic AI …ONSE] ... [END FINAL RESPONSE].\n<|end|>\n"→""`,
		`end: ""→", \"id\": \"ID\""`,
	}},
	"miles__inkling_fixed": {50, nil},
	"miles__kimi_k25_fixed": {29, []string{
		`"REASONING"→""`,
	}},
	"miles__minimax_m25_fixed": {0, []string{
		`"<think>\n"→""`,
		`"<think>\nREASONING\n</think>\n\n"→""`,
	}},
	"miles__qwen3.5_fixed": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"miles__qwen3_thinking_2507_and_next_fixed": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"minja__qwen3coder": {10, nil},
	"npm__deepseek_v3": {32, []string{
		`"<｜Assistant｜>"→""`,
		`"<｜tool▁outputs▁end｜>"→""`,
	}},
	"npm__gemma3": {10, nil},
	"npm__qwen3": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"sgl__tool_chat_template_deepseekr1": {10, nil},
	"sgl__tool_chat_template_deepseekv3": {25, []string{
		`"\n"→""`,
	}},
	"sgl__tool_chat_template_deepseekv31": {0, []string{
		`"<｜Assistant｜>    "→"    <｜Assistant｜>"`,
		`"<｜Assistant｜>"→"    <｜Assistant｜>    "`,
	}},
	"sgl__tool_chat_template_deepseekv32": {0, []string{
		`"<｜Assistant｜>      "→"  <｜Assistant｜>"`,
		`"<｜Assistant｜>"→"  <｜Assistant｜>  "`,
	}},
	"sgl__tool_chat_template_llama4_pythonic": {50, nil},
	"trl__cohere":           {50, nil},
	"trl__cohere2_training": {50, nil},
	"trl__diffusion_gemma": {13, []string{
		`"<|channel>thought\nREASONING\n<channel|>"→""`,
	}},
	"trl__diffusion_gemma_training": {3, []string{
		`"<|channel>thought\nREASONING\n<channel|>"→""`,
	}},
	"trl__gemma3":         {50, nil},
	"trl__gemma_training": {10, nil},
	"trl__gptoss_training": {0, []string{
		`"<|channel|>analysis<|message|>CONTENT<|end|><|start|>assistant"→""`,
		`"<|channel|>analysis<|message|>REASONING<|end|><|start|>assistant"→""`,
		`"<|return"→"<|end"`,
		`"analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>"→""`,
		`end: "<|return"→"<|end"`,
	}},
	"trl__idefics3":          {50, nil},
	"trl__idefics3_training": {10, nil},
	"trl__llama3":            {50, nil},
	"trl__llama3_1":          {10, nil},
	"trl__llama3_2":          {10, nil},
	"trl__llama3_training":   {10, nil},
	"trl__nemotron_3_nano": {0, []string{
		`"\n"→""`,
		`"\nREASONING\n"→""`,
	}},
	"trl__nemotron_3_nano_training": {0, []string{
		`"\n"→""`,
		`"\nREASONING\n"→""`,
	}},
	"trl__nemotron_3_super_training": {0, []string{
		`"\n"→""`,
		`"\nREASONING\n"→""`,
	}},
	"trl__nemotron_3_ultra": {0, []string{
		`"\n"→""`,
		`"\nREASONING"→""`,
	}},
	"trl__phi3_5":              {10, nil},
	"trl__phi3_5_training":     {10, nil},
	"trl__phi3_training":       {10, nil},
	"trl__qwen2_5_vl":          {50, nil},
	"trl__qwen2_5_vl_training": {10, nil},
	"trl__qwen3": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"trl__qwen3_5_nothink": {0, []string{
		`"<think>\n\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\nREASONING\n</think>\n\n"→""`,
		`"\n</think>\n\n"→""`,
	}},
	"trl__qwen3_5_nothink_training": {2, []string{
		`"\n</think>\n\n"→""`,
	}},
	"trl__qwen3_5_think": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"trl__qwen3_5_think_training": {10, nil},
	"trl__qwen3_6": {0, []string{
		`"<think>\nREASONING\n</think>\n\n"→""`,
		`"<think>\n\n</think>\n\n"→""`,
	}},
	"trl__qwen3_vl": {50, nil},
}
