package parsers

import "testing"

func TestOpensThinking(t *testing.T) {
	for _, c := range []struct {
		parser, prompt string
		want           bool
	}{
		{"qwen3", "<|im_start|>assistant\n<think>\n", true},
		{"qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", false},
		{"qwen3", "", false},
		{"", "<think>", true},
		{"mistral", "[/INST][THINK]", true},
		{"mistral", "<think>", false},
		{"gemma4", "<|turn>model\n<|channel>thought\n", true},
		{"gemma4", "<|turn>model\n<|channel>thought\n<channel|>", false},
		{"minimax-m3", "<mm:think>\n", true},
		{"kimi_k3", "<|open|>think<|sep|>", true},
		{"k2_horizon", "<ifm|think_fast>", true},
		{"hunyuan", "x<think:opensource>\n", true},
		{"hunyuan", "x<think:a></think:a>", false},
		{"hunyuan", "", false},
		{"gpt-oss", "<|start|>assistant", false},
	} {
		p, err := Reasoning(c.parser)
		if err != nil {
			t.Fatal(err)
		}
		if got := OpensThinking(p, c.prompt); got != c.want {
			t.Errorf("%q after %q: %v", c.parser, c.prompt, got)
		}
	}
}
