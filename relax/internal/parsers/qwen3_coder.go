package parsers

import (
	"html"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// qwen3Coder reads <tool_call><function=N><parameter=K>V</parameter>…</function></tool_call>
// (Qwen3-Coder, Qwen3.5, Step-3.5, Nemotron 3). Anything may be unclosed at the end; a value
// also ends at the next parameter or the function's end. One newline at each end of a value
// is removed. Content is the text before the first marker as it stands; text after it is
// dropped. Functions that were not offered pass through.
//
// Values take the type of the schema as in SGLang, oddities included because they read the
// model's own words: "null" in any case is null whatever the type, and a boolean is true for
// "true" alone. A value its type does not take stays text.
type qwen3Coder struct{}

func (qwen3Coder) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, toolCallOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools, anyName: true}
	for rest := text[first:]; ; {
		_, after, opened := strings.Cut(rest, toolCallOpen)
		if !opened {
			break
		}
		var block string
		block, rest, _ = strings.Cut(after, toolCallClose)
		got.functions(block)
	}
	return got.result(text, text[:first])
}

// functions takes every <function=…> of a block.
func (h *harvest) functions(block string) {
	for {
		_, after, opened := strings.Cut(block, "<function=")
		if !opened {
			return
		}
		var function string
		function, block, _ = strings.Cut(after, "</function>")
		name, body, ok := strings.Cut(function, ">")
		if !ok {
			h.fault("a <function= tag is not closed")
			continue
		}
		name = pyStrip(name)
		h.take(name, qwen3CoderArguments(body, schemaOf(h.tools, name)))
	}
}

func qwen3CoderArguments(body string, schema canon.Value) canon.Value {
	const opening = "<parameter="
	var args argList
	for {
		_, after, opened := strings.Cut(body, opening)
		if !opened {
			return args.value()
		}
		end := firstOf(after, "</parameter>", opening, "</function>")
		key, value, ok := strings.Cut(after[:end], ">")
		body = after[end:]
		if !ok {
			continue
		}
		value = trimNewline(value)
		property, known := propertyOf(schema, key)
		args.set(key, qwen3CoderValue(value, known, inferredType(property)))
	}
}

// qwen3CoderValue is value as a schema's type, named as loosely as SGLang takes it.
func qwen3CoderValue(value string, known bool, typ string) canon.Value {
	plain := textValue(value)
	typ = strings.ToLower(pyStrip(typ))
	switch {
	case strings.EqualFold(value, "null"):
		return canon.Value{}
	case !known || oneOf(typ, "string", "str", "text", "varchar", "char", "enum"):
		return plain
	case startsWith(typ, "int", "uint", "long", "short", "unsigned"):
		if v, ok := pyInt(value); ok {
			return v
		}
		return plain
	case startsWith(typ, "num", "float"):
		if v, ok := floatOrInt(value); ok {
			return v
		}
		return plain
	case oneOf(typ, "boolean", "bool", "binary"):
		return canon.BoolValue(strings.EqualFold(value, "true"))
	case oneOf(typ, "object", "array") || startsWith(typ, "dict", "list"):
		return jsonOrPython(value)
	default:
		return pythonOr(value, plain)
	}
}

func oneOf(s string, words ...string) bool {
	for _, w := range words {
		if s == w {
			return true
		}
	}
	return false
}

func startsWith(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// mimo reads the tags of qwen3Coder with every closing tag asked for. Values are not trimmed
// but HTML-unescaped, types are the schema's plain "type". Functions that were not offered
// are not usable.
type mimo struct{}

func (mimo) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, toolCallOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	_, open := blocks(text, toolCallOpen, toolCallClose, func(block string) {
		head, ok := strings.CutPrefix(pyStrip(block), "<function=")
		body, closed := strings.CutSuffix(head, "</function>")
		name, body, named := strings.Cut(body, ">")
		if !ok || !closed || !named {
			got.fault("a tool call is not <function=…>…</function>")
			return
		}
		got.take(name, mimoArguments(body, schemaOf(tools, name)))
	})
	if open {
		got.fault("a <tool_call> block is not closed")
	}
	return got.result(text, text[:first])
}

func mimoArguments(body string, schema canon.Value) canon.Value {
	var args argList
	blocks(body, "<parameter=", "</parameter>", func(inside string) {
		key, value, ok := strings.Cut(inside, ">")
		if !ok {
			return
		}
		property, known := propertyOf(schema, key)
		typ := declaredType(property)
		value = html.UnescapeString(value)
		if typ == "" {
			known = false
		}
		args.set(key, qwen3CoderValue(value, known, typ))
	})
	return args.value()
}
