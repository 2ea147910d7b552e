package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// The families whose calls are JSON between markers of their own.

// trinity is qwen after every think tag is deleted.
type trinity struct{}

func (trinity) Find(text string, tools []canon.ToolSpec) Found {
	if !strings.Contains(text, "think>") {
		return qwen{}.Find(text, tools)
	}
	bare := strings.NewReplacer("<think>", "", "</think>", "").Replace(text)
	found := qwen{}.Find(bare, tools)
	if len(found.Calls) == 0 {
		found.Content = text
	}
	return found
}

// interns1 reads <|action_start|> <|plugin|>{json}<|action_end|> with the one space (special
// tokens). A bad block is left out. Content is the text before the first, stripped.
type interns1 struct{}

func (interns1) Find(text string, tools []canon.ToolSpec) Found {
	const opening, closing = "<|action_start|> <|plugin|>", "<|action_end|>"
	first := markerAt(text, opening, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	_, open := blocks(text[first:], opening, closing, func(block string) {
		if err := got.block(block); err != nil {
			got.fault("%v", err)
		}
	})
	if open {
		got.fault("a call is not closed by %s", closing)
	}
	return got.found(text, first)
}

// gigachat3 reads one call, function call<|role_sep|> and a line of JSON or <|function_call|>
// and JSON (special tokens). Content is the text before it or before <|message_sep|>; text
// after it, such as </s>, is dropped.
type gigachat3 struct{}

func (gigachat3) Find(text string, tools []canon.ToolSpec) Found {
	if len(tools) == 0 {
		return Found{Content: text}
	}
	const word = "<|function_call|>"
	before, body, found := strings.Cut(text, word)
	if !found {
		if before, body, found = strings.Cut(text, "function call<|role_sep|>\n"); !found {
			return Found{Content: text}
		}
	}
	before, _, _ = strings.Cut(before, "<|message_sep|>")
	got := harvest{tools: tools}
	if v, _, ok := newJSONScanner(pyTrimLeft(body)).at(0); !ok {
		got.fault("a function call is not valid JSON")
	} else if err := got.act(v); err != nil {
		got.fault("%v", err)
	}
	return got.result(text, before)
}

// cohere reads <|START_ACTION|>[{"tool_name", "parameters"}]<|END_ACTION|> (special tokens).
// The list may be cut off: calls that are whole count. SGLang also completes a call cut off
// in its arguments, which the policy never finished; here it is left out and noted. Content
// is the text before the block.
type cohere struct{}

func (cohere) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, cohereActionOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	block, _, _ := strings.Cut(text[first+len(cohereActionOpen):], cohereActionClose)
	block = pyStrip(block)
	if inner, isList := strings.CutPrefix(block, "["); isList {
		got.cohereList(inner)
	} else {
		got.fault("an action is not a list of calls")
	}
	return got.result(text, text[:first])
}

// cohereList takes the calls of a list behind its opening bracket.
func (h *harvest) cohereList(inner string) {
	scan := newJSONScanner(inner)
	for i := 0; i < len(inner); {
		switch inner[i] {
		case ' ', '\t', '\r', '\n', ',':
			i++
			continue
		case ']':
			return
		}
		act, end, ok := scan.at(i)
		if !ok {
			h.fault("a call of an action is cut off or not valid JSON")
			return
		}
		i = end
		name, _ := act.Get("tool_name")
		arguments, _ := act.Get("parameters")
		if arguments.IsNull() {
			arguments = canon.ObjectOf()
		}
		h.take(name.Str(), arguments)
	}
}

// apertus reads <|tools_prefix|>[{"NAME": {arguments}}, …]<|tools_suffix|> blocks (special
// tokens). Content is the text outside, stripped. A block that is not closed is text.
type apertus struct{}

func (apertus) Find(text string, tools []canon.ToolSpec) Found {
	if markerAt(text, apertusToolsOpen, tools) < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	outside, open := blocks(text, apertusToolsOpen, apertusToolsClose, func(block string) {
		v, err := canon.ParseValue([]byte(pyStrip(block)))
		if err != nil || v.Kind() != canon.Array {
			got.fault("a tools block is not a JSON list")
			return
		}
		for _, act := range v.Elems() {
			if act.Kind() != canon.Object {
				got.fault("a tool call is not a JSON object but %s", act.TypeName())
			}
			for _, m := range act.Members() {
				arguments := m.Value
				if arguments.IsNull() {
					arguments = canon.ObjectOf()
				}
				got.take(m.Key, arguments)
			}
		}
	})
	if open {
		got.fault("a tools block is not closed")
	}
	return got.result(text, pyStrip(outside))
}

// k2Horizon reads <ifm|tool_calls> groups of <ifm|tool_call>, whose bodies are JSON or a name
// with <ifm|arg_key>, perhaps <ifm|arg_type>, and <ifm|arg_value>. A malformed group makes the
// whole turn plain text. Content is the text outside, stripped.
type k2Horizon struct{}

const k2HorizonOpen = "<ifm|tool_calls>"

func (k2Horizon) Find(text string, tools []canon.ToolSpec) Found {
	if markerAt(text, k2HorizonOpen, tools) < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	bad := false
	outside, open := blocks(text, k2HorizonOpen, "</ifm|tool_calls>", func(group string) {
		left, cut := blocks(group, "<ifm|tool_call>", "</ifm|tool_call>", func(body string) {
			if s := pyStrip(body); s != "" && (s[0] == '{' || s[0] == '[') {
				bad = got.block(s) != nil || bad
				return
			}
			name, pairs := body, ""
			if i := strings.Index(body, "<ifm|arg_key>"); i >= 0 {
				name, pairs = body[:i], body[i:]
			}
			name = pyStrip(name)
			arguments, ok := ifmArguments(pairs, schemaOf(tools, name))
			bad = bad || !ok
			got.take(name, arguments)
		})
		bad = bad || cut || pyStrip(left) != ""
	})
	if bad || open {
		return Found{Content: text, ParseError: "a group of tool calls does not follow the grammar"}
	}
	return got.result(text, pyStrip(outside))
}

func ifmArguments(pairs string, schema canon.Value) (canon.Value, bool) {
	var args argList
	for pyStrip(pairs) != "" {
		key, rest, ok := ifmElement(pairs, "arg_key")
		if !ok {
			return canon.Value{}, false
		}
		typ, after, typed := ifmElement(rest, "arg_type")
		if typed {
			rest = after
		}
		value, rest, ok := ifmElement(rest, "arg_value")
		if !ok {
			return canon.Value{}, false
		}
		pairs = rest
		set := typeSet{pyStrip(typ): true}
		if !typed {
			property, _ := propertyOf(schema, pyStrip(key))
			set = typesOf(property, schema)
		}
		args.set(pyStrip(key), bySet(value, set))
	}
	return args.value(), true
}

// ifmElement reads the element of name at the beginning of text.
func ifmElement(text, name string) (body, rest string, ok bool) {
	body, ok = strings.CutPrefix(pyTrimLeft(text), "<ifm|"+name+">")
	if !ok {
		return "", text, false
	}
	return strings.Cut(body, "</ifm|"+name+">")
}
