package chat

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// qwen3Style is the Qwen3 hybrid template: no default system prompt, thinking of the current
// tool loop is printed, thinking before the user's last question is not, enable_thinking
// false closes an empty think block in the generation prompt.
type qwen3Style struct{}

func (qwen3Style) head(s *script, v *scene) {
	system := v.leadingSystem()
	if len(v.tools) == 0 {
		if system != nil {
			v.turn(s, system)
		}
		return
	}
	s.template(v.controls, imStart+"system\n")
	if system != nil {
		s.plain(system.Content)
		s.template(v.controls, "\n\n")
	}
	v.toolsBlock(s)
}

func (q qwen3Style) message(s *script, v *scene, i int) { v.message(s, i, q.assistant) }

func (qwen3Style) assistant(s *script, v *scene, i int) {
	m := v.messages[i]
	content, reasoning := m.Content, m.Reasoning
	if reasoning == "" {
		content, reasoning = inlineThinking(content)
	}
	s.template(v.controls, imStart+"assistant\n")
	last := i == len(v.messages)-1
	if i > v.lastQueryIndex() && (last || reasoning != "") {
		s.template(v.controls, "<think>\n")
		s.plain(strings.Trim(reasoning, "\n"))
		s.template(v.controls, "\n</think>\n\n")
		s.plain(strings.TrimLeft(content, "\n"))
	} else {
		s.plain(content)
	}
	for k := range m.ToolCalls {
		if k > 0 || content != "" {
			s.template(v.controls, "\n")
		}
		v.call(s, &m.ToolCalls[k])
	}
	s.template(v.controls, imEnd+"\n")
}

func (qwen3Style) prompt(s *script, v *scene) {
	s.template(v.controls, imStart+"assistant\n")
	if v.noThinking {
		s.template(v.controls, "<think>\n\n</think>\n\n")
	}
}

// inlineThinking parts thinking that a client left in the content from the answer.
func inlineThinking(content string) (answer, reasoning string) {
	const open, end = "<think>", "</think>"
	first := strings.Index(content, end)
	if first < 0 {
		return content, ""
	}
	reasoning = strings.TrimRight(content[:first], "\n")
	if i := strings.LastIndex(reasoning, open); i >= 0 {
		reasoning = reasoning[i+len(open):]
	}
	answer = content[strings.LastIndex(content, end)+len(end):]
	return strings.TrimLeft(answer, "\n"), strings.TrimLeft(reasoning, "\n")
}

// lastQueryIndex is the last user message that is not a wrapped tool result; the last
// message if there is none.
func (v *scene) lastQueryIndex() int {
	if v.queried {
		return v.lastQuery
	}
	v.queried = true
	v.lastQuery = len(v.messages) - 1
	for i := len(v.messages) - 1; i >= 0; i-- {
		m := v.messages[i]
		if m.Role == canon.User &&
			!(strings.HasPrefix(m.Content, "<tool_response>") && strings.HasSuffix(m.Content, "</tool_response>")) {
			v.lastQuery = i
			break
		}
	}
	return v.lastQuery
}
