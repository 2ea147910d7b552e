package chat

import (
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
	// Prompt is the generation prompt.
	Prompt []int32
}

// Observe encodes the messages of req from index from on. With from 0 that is the whole
// conversation with its head (system prompt, tools). Otherwise message from-1 is the response
// whose ids are prev.IDs, and the observation begins behind its last sampled id: with the
// terminator if the turn was cut off before it, then with what the template puts between
// turns. Each message is printed as the render of the whole conversation prints it at its
// place, so an assistant message at the end is a closed turn before a new prompt.
//
// It fails if from is outside the messages, there is nothing to say, or the text is not UTF-8.
func (f *Format) Observe(req *canon.Request, from int, prev Prev) (Observation, error) {
	if from < 0 || from > len(req.Messages) || len(req.Messages) == 0 {
		return Observation{}, fmt.Errorf("observe messages from %d: the request has %d", from, len(req.Messages))
	}
	v := f.scene(req)
	var s script
	s.text = make([]byte, 0, sizeHint(req.Messages[from:]))
	if from == 0 {
		f.style.head(&s, v)
	} else {
		f.joint(&s, prev)
	}
	for i := from; i < len(v.messages); i++ {
		f.style.message(&s, v, i)
	}
	body, err := f.cache.get(s, func(s *script) ([]int32, error) { return s.ids(f.encode) })
	if err != nil {
		return Observation{}, fmt.Errorf("observe messages %d to %d: %w", from, len(req.Messages)-1, err)
	}
	return Observation{Body: slices.Clip(body), Prompt: f.promptFor(v).ids}, nil
}

// joint writes what stands between a response and the next message.
func (f *Format) joint(s *script, prev Prev) {
	if n := len(prev.IDs); n == 0 || prev.IDs[n-1] != f.imEnd {
		s.template(f.controls, imEnd)
	}
	s.template(f.controls, "\n")
}

func (f *Format) scene(req *canon.Request) *scene {
	thinking, given := req.Kwargs.Get("enable_thinking")
	return &scene{
		controls:   f.controls,
		messages:   req.Messages,
		tools:      req.Tools,
		noThinking: given && thinking.Kind() == canon.Bool && !thinking.Bool(),
	}
}

func (f *Format) promptFor(v *scene) *prompt {
	if v.noThinking {
		return &f.promptNoThinking
	}
	return &f.prompt
}

// sizeHint is about how long the messages are when rendered.
func sizeHint(messages []*canon.Message) int {
	n := 512
	for _, m := range messages {
		n += len(m.Content) + len(m.Reasoning) + 64
	}
	return n
}

// appendTool appends a tool as Hugging Face's tojson prints it.
func appendTool(dst []byte, t *canon.ToolSpec) []byte { return t.Value().AppendTemplate(dst) }

// appendArguments appends canonical arguments as Hugging Face's tojson prints the object.
func appendArguments(dst []byte, arguments string) []byte {
	v, err := canon.ParseValue([]byte(arguments))
	if err != nil {
		return append(dst, arguments...) // cannot be for canonical text; never lose it
	}
	return v.AppendTemplate(dst)
}
