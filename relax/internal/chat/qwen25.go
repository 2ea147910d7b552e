package chat

// qwen25Style is the Qwen2.5 template: a default system prompt, no thinking (reasoning of
// earlier turns is not printed, enable_thinking means nothing).
type qwen25Style struct{}

const qwen25System = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

func (qwen25Style) head(s *script, v *scene) {
	s.template(v.controls, imStart+"system\n")
	if system := v.leadingSystem(); system != nil {
		s.plain(system.Content)
	} else {
		s.template(v.controls, qwen25System)
	}
	if len(v.tools) == 0 {
		s.template(v.controls, imEnd+"\n")
		return
	}
	s.template(v.controls, "\n\n")
	v.toolsBlock(s)
}

func (q qwen25Style) message(s *script, v *scene, i int) { v.message(s, i, q.assistant) }

func (qwen25Style) assistant(s *script, v *scene, i int) {
	m := v.messages[i]
	if len(m.ToolCalls) == 0 {
		v.turn(s, m)
		return
	}
	s.template(v.controls, imStart+"assistant")
	if m.Content != "" {
		s.template(v.controls, "\n")
		s.plain(m.Content)
	}
	for k := range m.ToolCalls {
		s.template(v.controls, "\n")
		v.call(s, &m.ToolCalls[k])
	}
	s.template(v.controls, imEnd+"\n")
}

func (qwen25Style) prompt(s *script, v *scene) { s.template(v.controls, imStart+"assistant\n") }
