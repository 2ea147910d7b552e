package chat

import (
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/parsers"
)

// Parsers are suggested by trial: a parser fits a template if it reads back the call and the
// reasoning that the template itself prints.

// preferred lists parsers of which several read the same text, the one to suggest first. Names
// that are not here come after, in alphabetical order.
var preferred = []string{
	"qwen", "hermes", "qwen3_coder", "glm45", "glm47", "deepseekv3", "deepseekv31", "kimi_k2", "minimax-m2", "mistral", "llama3",
}

// reasoningOf are the reasoning parsers that go with a tool-call parser, SGLang's pairs.
var reasoningOf = map[string]string{
	"qwen": "qwen3", "qwen3_coder": "qwen3", "glm45": "glm45", "glm47": "glm45", "deepseekv3": "deepseek-r1",
	"deepseekv31": "deepseek-v3", "deepseekv32": "deepseek-v3", "deepseekv4": "deepseek-v4", "kimi_k2": "kimi_k2",
	"kimi_k3": "kimi_k3", "minimax-m2": "minimax", "minimax-m3": "minimax-m3", "mistral": "mistral",
	"step3": "step3", "step3p5": "step3p5",
}

// toolCallParsers are the parsers that read the template's calls, best first.
func (f *Format) toolCallParsers(t *template) []string {
	text, ok := f.callText(t)
	if !ok {
		return nil
	}
	var fit []string
	for _, name := range parsers.ToolCallNames() {
		p, err := parsers.ToolCalls(name)
		if err == nil && readsCall(p, text) {
			fit = append(fit, name)
		}
	}
	slices.SortStableFunc(fit, func(a, b string) int { return rank(a) - rank(b) })
	return fit
}

func rank(name string) int {
	if i := slices.Index(preferred, name); i >= 0 {
		return i
	}
	return len(preferred)
}

// callText is what a model would sample for the probe's call, without its terminator.
func (f *Format) callText(t *template) (string, bool) {
	if !t.traits.Calls {
		return "", false
	}
	said, ok := t.sampled(oneCall(), 1)
	return strings.TrimSpace(f.withoutStop(said)), ok
}

// withoutStop is the text of s without a final stop token.
func (f *Format) withoutStop(s script) string {
	if n := len(s.marks); n > 0 && s.marks[n-1].end == len(s.text) && slices.Contains(f.stopIDs, s.marks[n-1].id) {
		return string(s.text[:s.marks[n-1].start])
	}
	return string(s.text)
}

func readsCall(p parsers.ToolCallParser, text string) bool {
	found := p.Find(text, []canon.ToolSpec{probeTool})
	return len(found.Calls) == 1 && found.Calls[0].Name == toolWord &&
		found.Calls[0].Arguments == `{"`+keyWord+`":"`+valueWord+`"}` && found.ParseError == ""
}

// reasoningParsers are the parsers that part the template's reasoning from its answer.
func (f *Format) reasoningParsers(t *template) []string {
	if !t.traits.Reasoning {
		return nil
	}
	c := conversation{turns: []*canon.Message{say(canon.User, askWord),
		{Role: canon.Assistant, Content: answerWord, Reasoning: reasoningWord}}}
	said, ok := t.sampled(c, 1)
	if !ok {
		return nil
	}
	prompt, err := t.print(conversation{turns: c.turns[:1]}, true)
	if err != nil {
		return nil
	}
	var fit []string
	for _, name := range parsers.ReasoningNames() {
		p, err := parsers.Reasoning(name)
		if err != nil {
			continue
		}
		split := p.Split(parsers.Turn{Text: f.withoutStop(said), ThinkOpen: parsers.OpensThinking(p, string(prompt.text))})
		if strings.TrimSpace(split.Reasoning) == reasoningWord && strings.TrimSpace(split.Content) == answerWord {
			fit = append(fit, name)
		}
	}
	return fit
}

// suggest picks one of each.
func suggest(reasoning, toolCalls []string) (string, string) {
	toolCall := ""
	if len(toolCalls) > 0 {
		toolCall = toolCalls[0]
	}
	if pair := reasoningOf[toolCall]; slices.Contains(reasoning, pair) {
		return pair, toolCall
	}
	if slices.Contains(reasoning, "qwen3") {
		return "qwen3", toolCall
	}
	if len(reasoning) > 0 {
		return reasoning[0], toolCall
	}
	return "", toolCall
}
