package parsers

import (
	"fmt"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// qwen reads <tool_call>\n{json}\n</tool_call>, where the newlines belong to the markers and
// the JSON is one {"name", "arguments"} object or a list of them. Content is the text before
// the first marker, stripped; text after it is dropped.
//
// Same as SGLang: a bad block is left out and the others count; a block without the newlines
// is plain text. Different: a list of things that are no objects is a bad block, where
// SGLang raises.
type qwen struct{}

const (
	qwenOpen  = "<tool_call>\n"
	qwenClose = "\n</tool_call>"
)

func (qwen) Find(text string, tools []canon.ToolSpec) Found {
	if len(tools) == 0 {
		return Found{Content: text}
	}
	first := strings.Index(text, qwenOpen)
	if first < 0 {
		return Found{Content: text, ParseError: qwenNearMiss(text)}
	}
	got := harvest{tools: tools}
	for rest := text[first:]; ; {
		_, after, opened := strings.Cut(rest, qwenOpen)
		if !opened {
			break
		}
		block, next, closed := strings.Cut(after, qwenClose)
		if !closed {
			got.fault("a <tool_call> block is not closed by a newline and </tool_call>")
			break
		}
		if err := got.block(block); err != nil {
			got.fault("%v", err)
		}
		rest = next
	}
	return got.found(text, first)
}

// qwenNearMiss says why text that looks like a call is plain text. The bare word
// <tool_call> in prose is no fault.
func qwenNearMiss(text string) string {
	for rest := text; ; {
		_, after, ok := strings.Cut(rest, "<tool_call>")
		if !ok {
			return ""
		}
		if s := strings.TrimLeft(after, " \t"); s != "" && (s[0] == '{' || s[0] == '[') {
			return fmt.Sprintf("a <tool_call> is not followed by a newline but by %q: read as plain text", s[:1])
		}
		rest = after
	}
}
