package chat

import (
	"bytes"
	"fmt"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// A script is rendered text in which the template's own control tokens are marked. Content
// can spell a control token but never be one, because only [script.template] sets marks.
type script struct {
	text  []byte
	marks []mark
}

// A mark says that text[start:end] is the token id.
type mark struct {
	start, end int
	id         int32
}

// controls are the tokens templates write, by their spelling, as far as the vocabulary has
// them. All begin with '<'.
type controls map[string]int32

// markers are the spellings a template may write as one token.
var markers = []string{
	imStart, imEnd,
	"<think>", "</think>",
	"<tool_call>", "</tool_call>",
	"<tool_response>", "</tool_response>",
	"<tools>", "</tools>",
}

func findControls(tok tokenizer.Tokenizer) controls {
	found := controls{}
	for _, m := range markers {
		if id, ok := tok.TokenID(m); ok {
			found[m] = id
		}
	}
	return found
}

// template writes text of the template itself.
func (s *script) template(c controls, text string) {
	for i := 0; i < len(text); {
		m, id := c.at(text[i:])
		if m == 0 {
			s.text = append(s.text, text[i])
			i++
			continue
		}
		start := len(s.text)
		s.text = append(s.text, text[i:i+m]...)
		s.marks = append(s.marks, mark{start, len(s.text), id})
		i += m
	}
}

// at returns the length and id of the control token text begins with, 0 if none.
func (c controls) at(text string) (int, int32) {
	if text[0] != '<' {
		return 0, 0
	}
	for _, m := range markers {
		if len(m) <= len(text) && text[:len(m)] == m {
			if id, ok := c[m]; ok {
				return len(m), id
			}
		}
	}
	return 0, 0
}

// plain writes text of the conversation.
func (s *script) plain(text string) { s.text = append(s.text, text...) }

// ids encodes the script: marks are their ids, the text between two marks is encoded in one
// piece, so that merges across the template's and the content's text are Hugging Face's.
func (s *script) ids(encode func(text []byte) ([]int32, error)) ([]int32, error) {
	out := make([]int32, 0, len(s.text)/3+2*len(s.marks)+8)
	at := 0
	run := func(end int) error {
		if at == end {
			return nil
		}
		ids, err := encode(s.text[at:end])
		if err != nil {
			return fmt.Errorf("encode %d bytes of chat text: %w", end-at, err)
		}
		out = append(out, ids...)
		return nil
	}
	for _, m := range s.marks {
		if err := run(m.start); err != nil {
			return nil, err
		}
		out = append(out, m.id)
		at = m.end
	}
	if err := run(len(s.text)); err != nil {
		return nil, err
	}
	return out, nil
}

func (s *script) equal(o *script) bool {
	if len(s.marks) != len(o.marks) || !bytes.Equal(s.text, o.text) {
		return false
	}
	for i := range s.marks {
		if s.marks[i] != o.marks[i] {
			return false
		}
	}
	return true
}
