package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// step3 reads one section of calls, each the word function, a separator and a
// <steptml:invoke name="N"> with <steptml:parameter name="K">V</steptml:parameter>. The
// section's markers are special tokens. V is stripped; a parameter that is not a string is
// JSON, else a Python literal, else text. Content is the text before and after the section;
// a section that is not closed holds no call.
//
// Fixed against SGLang, which loses these: a call without parameters, a value with a "<".
type step3 struct{}

var step3Tags = invokeTags{call: "steptml:invoke", parameter: "steptml:parameter"}

func (step3) Find(text string, tools []canon.ToolSpec) Found {
	const opening, closing = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
	first := markerAt(text, opening, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	section, after, closed := strings.Cut(text[first+len(opening):], closing)
	if !closed {
		return Found{Content: text, ParseError: "the " + opening + " section is not closed"}
	}
	blocks(section, "<｜tool_call_begin｜>", "<｜tool_call_end｜>", func(call string) {
		kind, body, ok := strings.Cut(call, "<｜tool_sep｜>")
		if !ok || pyStrip(kind) != "function" {
			got.fault("a call is not one of a function")
			return
		}
		whole := step3Tags.calls(body, func(name, body string) {
			got.take(name, step3Arguments(body, schemaOf(tools, name)))
		})
		if !whole {
			got.fault("an invoke element is not closed")
		}
	})
	return got.result(text, text[:first]+after)
}

func step3Arguments(body string, schema canon.Value) canon.Value {
	var args argList
	step3Tags.parameters(body, func(key, _, value string) {
		value = pyStrip(value)
		property, known := propertyOf(schema, key)
		if !known || inferredType(property) == "string" {
			args.set(key, textValue(value))
			return
		}
		args.set(key, jsonOrPython(value))
	})
	return args.value()
}
