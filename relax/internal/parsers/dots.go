package parsers

import (
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// dots reads <dots_function_call> blocks that hold the invoke elements of MiniMax-M2 or
// JSON calls. Values take the type of the schema, "$ref" followed. Content is the text before
// the first block, stripped.
type dots struct{}

const (
	dotsOpen  = "<dots_function_call>"
	dotsClose = "</dots_function_call>"
)

func (dots) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, dotsOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	_, open := blocks(text[first:], dotsOpen, dotsClose, func(block string) {
		body := pyStrip(block)
		if body != "" && (body[0] == '{' || body[0] == '[') {
			if err := got.block(body); err != nil {
				got.fault("%v", err)
			}
			return
		}
		whole := plainInvoke.calls(body, func(name, body string) {
			got.take(name, invokeArguments(body, schemaOf(tools, name), allowedNull))
		})
		if !whole {
			got.fault("an invoke element is not closed")
		}
	})
	if open {
		got.fault("a %s block is not closed", dotsOpen)
	}
	return got.found(text, first)
}
