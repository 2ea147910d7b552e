package chat

import (
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// behindAnAnswer is what stands behind a recorded answer where no generation prompt is told apart
// there. Some templates print none behind an assistant message, whatever is asked of them; the
// others' prompt begins in the middle of a token, or they print the last message otherwise where no
// turn follows. The model is sent what they print, as it is by any server of theirs.
var behindAnAnswer = map[string]string{
	"lc__Apriel-1.6-15b-Thinker-fixed":        "",
	"lc__unsloth-Apriel-1.5":                  "",
	"lc__Mistral-Small-3.2-24B-Instruct-2506": "",
	"lc__Reka-Edge":                           "",
	"lc__deepseek-ai-DeepSeek-V3.1":           "",
	"sgl__tool_chat_template_deepseekv31":     "<｜end▁of▁sentence｜>",
	"lc__GigaChat3.1-10B-A1.8B":               "\n\n",
	"lc__openai-gpt-oss-120b":                 "<|start|>assistant",
	"trl__gptoss_training":                    "<|start|>assistant",
	"sgl__tool_chat_template_deepseekr1":      "    <｜Assistant｜>\n",
	"sgl__tool_chat_template_deepseekv32":     "<｜end▁of▁sentence｜>    <｜Assistant｜>      </think>",
	"trl__idefics3":                           "\nAssistant:",
	"trl__idefics3_training":                  "\nAssistant:",
}

// TestRequestsThatEndInAnAnswer: a request whose last message is an assistant's asks for another
// turn behind it. Where nobody sampled that message, the model is sent a full render; where it is
// recorded, the render's end behind what was sampled, its generation prompt once.
func TestRequestsThatEndInAnAnswer(t *testing.T) {
	for _, name := range templateNames(t) {
		if name == "lc__MiroThinker" {
			continue // refused: TestRaisingTemplate
		}
		t.Run(name, func(t *testing.T) {
			f := fixtureFormat(t, name)
			asked := []*canon.Message{user("wq1qw"), assistant("wq2qw")}
			p := &play{format: f, forest: forest.New("s")}
			_, sent := p.ask(t, asked)
			p.isRender(t, "an answer nobody sampled", sent, asked)
			p.once(t, "an answer nobody sampled", sent, asked)

			node, first := p.ask(t, asked[:1])
			lineal := p.answer(t, node, asked[:1], asked[1])
			node, sent = p.ask(t, asked)
			if node.Parent().Kind() != forest.Response {
				t.Fatalf("the request extends %s #%d", node.Parent().Kind(), node.Parent().ID())
			}
			p.once(t, "a recorded answer", sent, asked)
			said := node.Parent().Generation().IDs
			tail := decoded(t, f.tok, sent[len(first)+len(said):])
			text, ids := p.render(t, asked)
			if !strings.HasSuffix(text, tail) {
				t.Errorf("%q is not the end of a full render %q", tail, text)
			}
			want, listed := behindAnAnswer[name]
			if whole := len(node.Prompt()) > 0; whole == listed || listed && tail != want {
				t.Errorf("behind the answer stands %q, of it the prompt %q", tail, decoded(t, f.tok, node.Prompt()))
			}
			if lineal && len(rewritings[name].differences) == 0 && !slices.Equal(sent, ids) {
				t.Errorf("the model is sent %q, a full render is %q", decoded(t, f.tok, sent), text)
			}
		})
	}
}
