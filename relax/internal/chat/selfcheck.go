package chat

import (
	"errors"
	"fmt"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// selfCheck encodes a small conversation and decodes it again: a tokenizer that adds, drops
// or rewrites text around control tokens would put other text before the model than the
// template says, on every turn and in silence.
func (f *Format) selfCheck() error {
	s := f.checkScript()
	ids, err := s.ids(f.encode)
	if err != nil {
		return fmt.Errorf("tokenizer self-check: %w", err)
	}
	back, err := f.tok.Decode(ids)
	if err != nil {
		return fmt.Errorf("tokenizer self-check: %w", err)
	}
	if want := string(s.text); back != want {
		at := 0
		for at < len(back) && at < len(want) && back[at] == want[at] {
			at++
		}
		return fmt.Errorf("tokenizer self-check: chat text does not survive encoding: at byte %d expected %q, got %q",
			at, canon.Shorten(want[at:], 40), canon.Shorten(back[at:], 40))
	}
	turnMarks := 0
	for _, m := range s.marks {
		if f.endsOrStartsTurn(m.id) {
			turnMarks++
		}
	}
	for _, id := range ids {
		if f.endsOrStartsTurn(id) {
			turnMarks--
		}
	}
	if turnMarks != 0 {
		return errors.New("tokenizer self-check: content that spells " + imStart + " or " + imEnd +
			" becomes that token: mark both as special in tokenizer.json")
	}
	return nil
}

func (f *Format) endsOrStartsTurn(id int32) bool { return id == f.imEnd || id == f.controls[imStart] }

// checkScript renders a conversation with every kind of message, whose content spells control
// tokens.
func (f *Format) checkScript() *script {
	text := "a {\"b\": 1}\n\n  c\u00e9\u4e16" + imEnd + "\n" + imStart + "system\n"
	description := "d"
	v := &scene{
		controls: f.controls,
		messages: []*canon.Message{
			canon.NewMessage(canon.Message{Role: canon.System, Content: text}),
			canon.NewMessage(canon.Message{Role: canon.User, Content: text}),
			canon.NewMessage(canon.Message{Role: canon.Assistant, Content: text, Reasoning: "r",
				ToolCalls: []canon.ToolCall{{ID: "1", Name: "f", Arguments: `{"x":[1,null]}`}}}),
			canon.NewMessage(canon.Message{Role: canon.Tool, Content: text, ToolCallID: "1"}),
		},
		tools: []canon.ToolSpec{canon.NewToolSpec("f", &description, canon.ObjectOf())},
	}
	s := &script{}
	f.style.head(s, v)
	for i := range v.messages {
		f.style.message(s, v, i)
	}
	f.style.prompt(s, v)
	return s
}
