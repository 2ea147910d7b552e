package chat

import (
	"fmt"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

const (
	imStart = "<|im_start|>"
	imEnd   = "<|im_end|>"
)

// A style is one chat template written out in Go: what Hugging Face's renderer makes of it,
// byte for byte.
type style interface {
	// head writes what stands before the first message that is not a leading system message.
	head(s *script, v *scene)
	// message writes message i as the whole conversation prints it at its place.
	message(s *script, v *scene, i int)
	// prompt writes the generation prompt.
	prompt(s *script, v *scene)
}

// knownStyles are the templates that can be rendered, by [fingerprint].
var knownStyles = map[string]style{
	"d477531c9ee532f5": qwen3Style{}, // Qwen3 as first published
	"f72bf6e5763185fb": qwen3Style{}, // Qwen3 revised: differs only for content that is no string
	"2f5b3c747f6b3db8": qwen25Style{},
	"dbdfb9bdedc93ae1": qwen3Style{}, // testdata/checkpoints/tinychat: Qwen3 in other words
}

const supportedStyles = "Qwen3 (hybrid) and Qwen2.5 ChatML templates"

// detectStyle finds the style of a template read from source (a file's path).
func detectStyle(template, source string) (style, error) {
	mark := fingerprint(template)
	if s, ok := knownStyles[mark]; ok {
		return s, nil
	}
	what := "a template without " + imStart + " and " + imEnd
	if strings.Contains(template, imStart) && strings.Contains(template, imEnd) {
		what = "a ChatML template that is neither of these"
		if tool := toolFormat(template); tool != "" {
			what += ", with " + tool
		}
	}
	return nil, fmt.Errorf("%s: chat template not supported: found %s (fingerprint %s); supported are %s",
		source, what, mark, supportedStyles)
}

// toolFormat names what a ChatML template does about tools, for the message of an error.
func toolFormat(template string) string {
	switch {
	case strings.Contains(template, "<function="):
		return "tool calls as <function=NAME> blocks"
	case strings.Contains(template, "<tools>"):
		return "tool calls as JSON in <tool_call>"
	default:
		return "no tools"
	}
}

// A scene is what a template sees of a request.
type scene struct {
	controls controls
	messages []*canon.Message
	tools    []canon.ToolSpec
	// noThinking is enable_thinking given and exactly false.
	noThinking bool
	// lastQuery is the index of the user's last question, valid once queried is set.
	lastQuery int
	queried   bool
}

// toolsBlock writes the list of tools and how to call them, up to the end of the system turn.
func (v *scene) toolsBlock(s *script) {
	s.template(v.controls, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"+
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>")
	for i := range v.tools {
		s.template(v.controls, "\n")
		s.text = appendTool(s.text, &v.tools[i])
	}
	s.template(v.controls, "\n</tools>\n\nFor each function call, return a json object with function name and arguments "+
		"within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"+
		"</tool_call>"+imEnd+"\n")
}

// message writes message i; the styles differ in how they print an assistant.
func (v *scene) message(s *script, i int, assistant func(s *script, v *scene, i int)) {
	m := v.messages[i]
	switch m.Role {
	case canon.System:
		if i > 0 {
			v.turn(s, m)
		}
	case canon.User:
		v.turn(s, m)
	case canon.Tool:
		v.toolResult(s, i)
	case canon.Assistant:
		assistant(s, v, i)
	}
}

// turn writes a turn that is nothing but text.
func (v *scene) turn(s *script, m *canon.Message) {
	s.template(v.controls, imStart+string(m.Role)+"\n")
	s.plain(m.Content)
	s.template(v.controls, imEnd+"\n")
}

// call writes one tool call.
func (v *scene) call(s *script, c *canon.ToolCall) {
	s.template(v.controls, "<tool_call>\n{\"name\": \"")
	s.plain(c.Name)
	s.template(v.controls, "\", \"arguments\": ")
	s.text = appendArguments(s.text, c.Arguments)
	s.template(v.controls, "}\n</tool_call>")
}

// toolResult writes a tool message. Neighbouring ones share one user turn.
func (v *scene) toolResult(s *script, i int) {
	if i == 0 || v.messages[i-1].Role != canon.Tool {
		s.template(v.controls, imStart+"user")
	}
	s.template(v.controls, "\n<tool_response>\n")
	s.plain(v.messages[i].Content)
	s.template(v.controls, "\n</tool_response>")
	if i == len(v.messages)-1 || v.messages[i+1].Role != canon.Tool {
		s.template(v.controls, imEnd+"\n")
	}
}

// leadingSystem is the first message if it is the system's, else nil.
func (v *scene) leadingSystem() *canon.Message {
	if len(v.messages) > 0 && v.messages[0].Role == canon.System {
		return v.messages[0]
	}
	return nil
}
