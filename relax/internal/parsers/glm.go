package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// glm reads <tool_call>NAME, then <arg_key>K</arg_key><arg_value>V</arg_value> pairs, then
// </tool_call>. GLM-4.5 and Ling 3 write a newline after the name, GLM-4.7 does not: all are
// read by both.
//
// Values are read as JSON first. A string parameter then keeps strings, gets containers as
// JSON text and other scalars as Python spells them; any other parameter keeps what was read,
// else a Python literal, else the text.
//
// Fixed against SGLang: a name without a newline in GLM-4.5 (no arguments) and with one in
// GLM-4.7 are read, SGLang loses the call; "null" for a string parameter is null if the schema
// allows it and else the text null, SGLang makes it "None".
type glm struct {
	// keepsAfter joins the text around the blocks to the content (GLM-4.7); else content is
	// the text before the first, and both are stripped.
	keepsAfter bool
}

func (g glm) Find(text string, tools []canon.ToolSpec) Found {
	return findGLM(text, tools, g.keepsAfter, glmValue)
}

// poolside reads the grammar of GLM-4.7. A value loses one newline at each end; a string
// parameter takes it verbatim, any other as JSON, else a Python literal, else text.
type poolside struct{}

func (poolside) Find(text string, tools []canon.ToolSpec) Found {
	return findGLM(text, tools, true, func(value string, property canon.Value, known bool) canon.Value {
		value = trimNewline(value)
		if known && inferredType(property) == "string" {
			return textValue(value)
		}
		return jsonOrPython(value)
	})
}

type typer func(value string, property canon.Value, known bool) canon.Value

func findGLM(text string, tools []canon.ToolSpec, keepsAfter bool, read typer) Found {
	first := markerAt(text, toolCallOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	outside, open := blocks(text, toolCallOpen, toolCallClose, func(block string) {
		name, body := glmName(block)
		got.take(name, pairArguments(body, schemaOf(tools, name), read))
	})
	if open {
		got.fault("a <tool_call> block is not closed")
	}
	if keepsAfter {
		return got.result(text, pyStrip(outside))
	}
	return got.found(text, first)
}

// glmName parts a block into the function's name and the rest. The two characters \n count
// as a newline, as in SGLang.
func glmName(block string) (name, rest string) {
	block = pyTrimLeft(block)
	end := strings.Index(block, "<arg_key>")
	if end < 0 {
		end = len(block)
	}
	for _, newline := range [...]string{"\n", `\n`} {
		if i := strings.Index(block[:end], newline); i >= 0 {
			end = i
		}
	}
	return pyStrip(block[:end]), block[end:]
}

func pairArguments(body string, schema canon.Value, read typer) canon.Value {
	var args argList
	argPairs(body, func(key, value string) {
		key = pyStrip(key)
		property, known := propertyOf(schema, key)
		args.set(key, read(value, property, known))
	})
	return args.value()
}

func glmValue(value string, property canon.Value, known bool) canon.Value {
	typ := ""
	if known {
		typ = inferredType(property)
	}
	if typ == "string" {
		return glmText(value, property)
	}
	v, err := canon.ParseValue([]byte(value))
	if err != nil {
		return pythonOr(value, textValue(value))
	}
	if v.Kind() == canon.String && (typ == "number" || typ == "integer") {
		if n, ok := floatOrInt(v.Str()); ok {
			return n
		}
	}
	return v
}

// glmText is the value of a string parameter.
func glmText(value string, property canon.Value) canon.Value {
	v, err := canon.ParseValue([]byte(value))
	if err != nil {
		return textValue(value)
	}
	switch v.Kind() {
	case canon.String:
		return v
	case canon.Array, canon.Object:
		return canon.StringValue(string(v.AppendTemplate(nil)))
	case canon.Null:
		if typesOf(property, canon.Value{})["null"] {
			return v
		}
		return canon.StringValue("null")
	case canon.Bool:
		if v.Bool() {
			return canon.StringValue("True")
		}
		return canon.StringValue("False")
	default:
		return canon.StringValue(string(v.AppendCompact(nil)))
	}
}

// hunyuan reads <tool_calls> with <tool_call>NAME<tool_sep> and GLM's pairs, whose tags may
// carry a suffix of the vocabulary: <tool_calls:x>. Values take the type of the schema; null
// is null where that allows it. Content is the text before the first marker, stripped.
type hunyuan struct{}

func (hunyuan) Find(text string, tools []canon.ToolSpec) Found {
	suffix, found := tagSuffix(text, "<tool_calls")
	opening := "<tool_calls" + suffix + ">"
	first := markerAt(text, opening, tools)
	if !found || first < 0 {
		return Found{Content: text}
	}
	block, _, closed := strings.Cut(text[first+len(opening):], "</tool_calls"+suffix+">")
	got := harvest{tools: tools}
	if !closed {
		got.fault("the %s block is not closed", opening)
	}
	if suffix != "" {
		// The tags inside carry it too; without it they are the same grammar.
		block = strings.NewReplacer("tool_call"+suffix+">", "tool_call>", "tool_sep"+suffix+">", "tool_sep>",
			"arg_key"+suffix+">", "arg_key>", "arg_value"+suffix+">", "arg_value>").Replace(block)
	}
	blocks(block, toolCallOpen, toolCallClose, func(inside string) {
		name, body, ok := strings.Cut(inside, "<tool_sep>")
		if !ok {
			got.fault("a tool call lacks <tool_sep>")
			return
		}
		name = pyStrip(name)
		got.take(name, pairArguments(body, schemaOf(tools, name), hunyuanValue))
	})
	return got.found(text, first)
}

func hunyuanValue(value string, property canon.Value, _ bool) canon.Value {
	set := typesOf(property, canon.Value{})
	if allowedNull(value, set) {
		return canon.Value{}
	}
	if len(set) > 1 {
		delete(set, "null")
	}
	if declaredOrUnion(property) {
		return bySet(value, set)
	}
	return jsonOr(value, textValue(value))
}

// declaredOrUnion reports whether a schema says anything about its types.
func declaredOrUnion(property canon.Value) bool {
	for _, key := range [...]string{"type", "anyOf", "oneOf", "allOf", "enum", "$ref"} {
		if _, ok := property.Get(key); ok {
			return true
		}
	}
	return false
}
