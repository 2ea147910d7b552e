package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// hermes reads <tool_call>{json}</tool_call>: no newlines asked for, and the last block may
// lack its end. Content is the text before the first marker, stripped; text after it is
// dropped. As in SGLang one bad block makes the whole turn plain text.
type hermes struct{}

const (
	hermesOpen  = "<tool_call>"
	hermesClose = "</tool_call>"
)

func (hermes) Find(text string, tools []canon.ToolSpec) Found {
	if len(tools) == 0 {
		return Found{Content: text}
	}
	first := strings.Index(text, hermesOpen)
	if first < 0 {
		return Found{Content: text}
	}
	var got harvest
	for rest := text[first:]; ; {
		_, after, opened := strings.Cut(rest, hermesOpen)
		if !opened {
			break
		}
		block, next, _ := strings.Cut(after, hermesClose)
		if block != "" {
			if err := got.block(block, tools); err != nil {
				return Found{Content: text, ParseError: err.Error()}
			}
		}
		rest = next
	}
	return got.found(text, first)
}
