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
	toolCallOpen  = "<tool_call>"
	toolCallClose = "</tool_call>"
)

func (hermes) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, toolCallOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	for rest := text[first:]; ; {
		_, after, opened := strings.Cut(rest, toolCallOpen)
		if !opened {
			break
		}
		block, next, _ := strings.Cut(after, toolCallClose)
		if block != "" {
			if err := got.block(block); err != nil {
				return Found{Content: text, ParseError: err.Error()}
			}
		}
		rest = next
	}
	return got.found(text, first)
}

// markerAt is where marker first begins, -1 if there is nothing to look for: no marker or
// no tools.
func markerAt(text, marker string, tools []canon.ToolSpec) int {
	if len(tools) == 0 {
		return -1
	}
	return strings.Index(text, marker)
}
