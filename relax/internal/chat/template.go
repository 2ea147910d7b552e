package chat

import (
	"fmt"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/jinja"
)

// maxRendered bounds a rendered conversation: far above any model's context, far below what
// would hurt the process.
const maxRendered = 64 << 20

// A named is a value that templates find under a name, such as bos_token.
type named struct {
	name  string
	value jinja.Value
}

// A template is a chat template and what is known about it. It does not change once [probe]
// and [choose] are through.
type template struct {
	name     string // "default" or "tool_use"
	source   string // the file it comes from
	text     string
	code     *jinja.Template
	tokens   []named // the tokenizer's named special tokens
	controls *controls
	dialect  dialect
	traits   traits
	plan     plan
	turnEnd  turnEnd
	// toolsOnly: the template prints nothing without tools (Hermes' tool_use).
	toolsOnly bool
	// noCalls is why calls and results cannot be printed together, nil if they can.
	noCalls error
}

// A source is a template's text and where it stands.
type source struct {
	name, file, text string
}

func newTemplate(s source, tokens []named, controls *controls, now func() time.Time) (*template, error) {
	code, err := jinja.Compile(s.text, jinja.Options{Name: s.file, Now: now, MaxOutput: maxRendered})
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	return &template{name: s.name, source: s.file, text: s.text, code: code, tokens: tokens, controls: controls,
		dialect: dialect{ReasoningKey: "reasoning_content"}}, nil
}

// A view is a conversation as the template will see it, cast once for several renders.
type view struct {
	conversation
	cast     *cast
	messages []jinja.Value
	tools    jinja.Value
	kwargs   []named
}

// A conversation is what goes into a template.
type conversation struct {
	turns   []*canon.Message
	tooling []canon.ToolSpec
	options canon.Value // chat_template_kwargs
}

func (t *template) view(c conversation) *view {
	if t.toolsOnly && len(c.tooling) == 0 {
		c.tooling = []canon.ToolSpec{probeTool} // only probes and stand-ins come here
	}
	v := &view{conversation: c, cast: &cast{dialect: &t.dialect, controls: t.controls}}
	*v = *v.recast(v.cast)
	return v
}

// recast is v seen through another cast.
func (v *view) recast(c *cast) *view {
	out := &view{conversation: v.conversation, cast: v.cast}
	out.messages = c.messages(v.turns)
	out.tools = c.tools(v.tooling)
	for _, m := range v.options.Members() {
		out.kwargs = append(out.kwargs, named{m.Key, c.value(m.Value)})
	}
	return out
}

// render prints the first n messages of v, with the generation prompt if generate is set.
func (t *template) render(v *view, n int, generate bool) (script, error) {
	text, err := t.exec(v, n, generate)
	if err != nil {
		return script{}, err
	}
	var cuts []int
	if v.cast.hazards > 0 {
		if cuts, err = t.shielded(v, n, generate, text); err != nil {
			return script{}, err
		}
	}
	return script{text: text, marks: t.controls.scan(text, cuts)}, nil
}

// exec runs the template. The context is Hugging Face's: messages, tools (None without any),
// documents, add_generation_prompt, then the special tokens, then the template arguments.
func (t *template) exec(v *view, n int, generate bool) ([]byte, error) {
	vars := jinja.NewDict(4 + len(t.tokens) + len(v.kwargs))
	for _, list := range [][]named{t.tokens, v.kwargs} {
		for _, x := range list {
			vars.Set(x.name, x.value)
		}
	}
	vars.Set("messages", jinja.List(v.messages[:n]))
	vars.Set("tools", v.tools)
	vars.Set("documents", jinja.None())
	vars.Set("add_generation_prompt", jinja.Bool(generate))
	return t.code.AppendRender(make([]byte, 0, v.sizeHint(n)), vars)
}

// sizeHint is about how long the first n messages are when rendered, without the tools.
func (v *view) sizeHint(n int) int {
	size := 512
	for _, m := range v.turns[:n] {
		size += len(m.Content) + len(m.Reasoning) + 96
		for i := range m.ToolCalls {
			size += len(m.ToolCalls[i].Arguments) + 96
		}
	}
	return size
}

// print renders a whole conversation.
func (t *template) print(c conversation, generate bool) (script, error) {
	return t.render(t.view(c), len(c.turns), generate)
}
