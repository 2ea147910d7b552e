package chat

import (
	"errors"
	"fmt"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Prev is what stands before an observation.
type Prev struct {
	// IDs are the sampled ids of the response the request extends, stop token included. They
	// do not matter for an observation under the root.
	IDs []int32
}

// An Observation is new messages in tokens. Body and Prompt are encoded apart, so that the
// prompt can be left away when a later request does not follow from this one's answer. The
// slices are shared between requests and must not be changed; appending to them copies.
type Observation struct {
	// Body is the messages, closed turns all.
	Body []int32
	// Prompt is the generation prompt, empty for templates that have none (Mistral).
	Prompt []int32
}

// A TemplateError is a request that the model's chat template cannot print: the template
// raised, or it would leave a part of the request out without a word.
type TemplateError struct {
	// Template is the file the template comes from.
	Template string
	// Problem says what it cannot print, "" if Err says all.
	Problem string
	Err     error
}

func (e *TemplateError) Error() string {
	if e.Problem != "" {
		text := fmt.Sprintf("the model's chat template (%s) %s", e.Template, e.Problem)
		if e.Err != nil {
			text += ": " + e.Err.Error()
		}
		return text
	}
	return fmt.Sprintf("the model's chat template cannot print this conversation: %v", e.Err)
}

func (e *TemplateError) Unwrap() error { return e.Err }

// Observe encodes the messages of req from index from on. With from 0 that is the whole
// conversation with its head (system prompt, tools). Otherwise message from-1 is the response
// whose ids are prev.IDs, and the observation begins behind its last sampled id: with the
// terminator if the turn was cut off before it, then with what the template puts between
// turns. Each message is printed as the render of the whole conversation prints it at its
// place, so an assistant message at the end is a closed turn before a new prompt.
//
// It fails if from is outside the messages, there is nothing to say, the text is not UTF-8, or
// with a *TemplateError.
func (f *Format) Observe(req *canon.Request, from int, prev Prev) (Observation, error) {
	if from < 0 || from > len(req.Messages) || len(req.Messages) == 0 {
		return Observation{}, fmt.Errorf("observe messages from %d: the request has %d", from, len(req.Messages))
	}
	t := f.template(req.Tools)
	c := conversation{turns: req.Messages, tooling: req.Tools, options: req.Kwargs}
	if err := t.refuses(c, from); err != nil {
		return Observation{}, err
	}
	last := int32(-1)
	if n := len(prev.IDs); n > 0 {
		last = prev.IDs[n-1]
	}
	text, err := t.observe(c, from, last)
	if err != nil {
		return Observation{}, &TemplateError{Template: t.source, Err: err}
	}
	prompt, err := f.promptFor(t, c, text)
	if err != nil {
		return Observation{}, err
	}
	body, err := f.cache.get(text.upTo(len(text.text)-len(prompt.text)), f.encodeScript)
	if err != nil {
		return Observation{}, fmt.Errorf("observe messages %d to %d: %w", from, len(req.Messages)-1, err)
	}
	return Observation{Body: slices.Clip(body), Prompt: prompt.ids}, nil
}

// observe is the text of an observation behind the sampled id last, -1 if there is none.
func (t *template) observe(c conversation, from int, last int32) (script, error) {
	if from == 0 {
		c.turns = t.dialect.adapt(c.turns, true)
		out, err := t.print(c, true)
		out.start = true
		return out, err
	}
	tail, err := t.after(c, from)
	if err != nil {
		return script{}, err
	}
	return t.joined(tail, last), nil
}

// after is behind with the template's own plan, and where a conversation is not like those of
// the self-check, with the plans that look at all of it.
func (t *template) after(c conversation, from int) (script, error) {
	tail, err := t.behind(t.plan, c, from)
	if err == nil || !errors.Is(err, errMoved) {
		return tail, err
	}
	for _, p := range []plan{{Real: true, Anchored: true}, {Real: true, Anchored: true, CallsOnly: true}, {Real: true}} {
		if p == t.plan {
			continue
		}
		if tail, again := t.behind(p, c, from); again == nil {
			return tail, nil
		}
	}
	return script{}, err
}

// refuses says what of c the template would leave out in silence.
func (t *template) refuses(c conversation, from int) error {
	problem := ""
	if from == 0 && c.turns[0].Role == canon.System && !t.traits.System {
		problem = "does not print a system message"
	}
	for _, m := range c.turns[from:] {
		switch {
		case len(m.Parts) > 0:
			return &TemplateError{Template: t.source, Problem: "could print images, but this version encodes text alone: leave images out"}
		case m.Role == canon.Tool && !t.traits.Results:
			problem = "does not print tool results"
		case len(m.ToolCalls) > 0 && !t.traits.Calls:
			problem = "does not print tool calls"
		case m.Role == canon.System && !t.traits.System && !t.dialect.SystemAsUser:
			problem = "does not print system messages"
		}
	}
	if problem == "" {
		return nil
	}
	return &TemplateError{Template: t.source, Problem: problem, Err: t.noCalls}
}

// A prompt is a generation prompt and its ids.
type prompt struct {
	text string
	ids  []int32
}

// maxPrompts bounds the remembered prompts: one for each set of template arguments in use.
const maxPrompts = 64

// promptFor finds the generation prompt at the end of text. What a template prompts with
// depends on its arguments and on the last message's role, hardly on more; where it does, the
// text has another end, and prompt and body are not told apart.
func (f *Format) promptFor(t *template, c conversation, text script) (*prompt, error) {
	key := promptKey{t, c.turns[len(c.turns)-1].Role, xxhashOf(c.options)}
	f.mu.Lock()
	p := f.prompts[key]
	f.mu.Unlock()
	if p == nil {
		var err error
		if p, err = f.newPrompt(t, key.role, c.options); err != nil {
			return nil, err
		}
		f.mu.Lock()
		if len(f.prompts) >= maxPrompts {
			clear(f.prompts)
		}
		f.prompts[key] = p
		f.mu.Unlock()
	}
	if !text.endsWith(p.text) {
		return &prompt{}, nil
	}
	return p, nil
}

type promptKey struct {
	template *template
	role     canon.Role
	options  uint64
}

// newPrompt renders the prompt behind a short conversation that ends in role.
func (f *Format) newPrompt(t *template, role canon.Role, options canon.Value) (*prompt, error) {
	c := oneCall()
	switch role {
	case canon.Tool:
	case canon.Assistant:
		c = conversation{turns: []*canon.Message{standInUser, say(canon.Assistant, answerWord)}}
	default:
		c = conversation{turns: []*canon.Message{standInUser}}
	}
	c.options = options
	found, err := t.promptBehind(c)
	if err != nil {
		return &prompt{}, nil // no such conversation: no prompt of its own
	}
	if len(found.marks) == 0 || found.marks[0].start > 0 {
		return &prompt{}, nil // its first token could merge with what stands before
	}
	ids, err := f.encodeScript(&found)
	if err != nil {
		return nil, fmt.Errorf("generation prompt: %w", err)
	}
	return &prompt{text: string(found.text), ids: slices.Clip(ids)}, nil
}

// promptBehind is what the generation prompt adds to c.
func (t *template) promptBehind(c conversation) (script, error) {
	closed, err := t.print(c, false)
	if err != nil {
		return script{}, err
	}
	open, err := t.print(c, true)
	if err != nil {
		return script{}, err
	}
	return open.from(common(closed, open)), nil
}
