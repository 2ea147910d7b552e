package wire

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// This file reads the tools of a Responses request. Models are offered functions only, so
// custom tools (Codex's freeform ones) become functions of one text, and functions inside a
// namespace get a name of their own; a call is spelled back in the way its tool was given.

// A responsesSpelling is what the answer to a request must remember of it.
type responsesSpelling struct {
	// calls is an object: for the canonical name of each tool that is no plain function, its
	// type, name and namespace.
	calls     canon.Value
	metadata  canon.Value
	maxTokens int
}

// qualifiedName is the canonical name of a tool inside a namespace: both joined by two
// underscores, as models know it from MCP. Where cutting at the last two underscores would give
// another pair, the namespace's length follows after two more. So no two pairs share a name,
// and the name needs no knowledge of the tools.
func qualifiedName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	plain := namespace + "__" + name
	if strings.LastIndex(plain, "__") == len(namespace) && strings.Trim(name, "0123456789") != "" {
		return plain
	}
	return plain + "__" + strconv.Itoa(len(namespace))
}

// invalidInput begins the text a custom tool gets if the model's arguments were not one string
// called input. The tool will complain to the model; a function_call, which would say the same,
// makes Codex give up.
const invalidInput = "invalid call, expected one string argument named input, got "

// customInput is the text that a custom tool gets for a call's canonical arguments.
// [customArguments] gives the arguments back.
func customInput(arguments string) string {
	v, err := canon.ParseValue([]byte(arguments))
	if err == nil && len(v.Members()) == 1 {
		input, _ := v.Get("input")
		if input.Kind() == canon.String && !strings.HasPrefix(input.Str(), invalidInput) {
			return input.Str()
		}
	}
	return invalidInput + arguments
}

// customArguments are the canonical arguments of a call that a custom tool got as input.
func customArguments(input string) string {
	if rest, ok := strings.CutPrefix(input, invalidInput); ok {
		if text, err := canon.CanonicalArgumentsText(rest); err == nil && text == rest {
			return rest
		}
	}
	v := canon.ObjectOf(canon.Member{Key: "input", Value: canon.StringValue(input)})
	return string(v.AppendCanonical(nil))
}

// readTools reads the tools at body[at] through the cache.
func (f *responsesFields) readTools(at int) (end int, err error) {
	m, end, err := f.cache.For(responsesTools).ToolList(f.body, at, parseToolItems)
	if end == 0 {
		return 0, err
	}
	f.takeTools(m, err)
	f.toolText = f.body[at:end]
	return end, nil
}

// addTools takes in the tools of additional_tools items, where Codex puts all its tools for
// models it knows to run code. They come after the request's own, as if they were one list.
func (f *responsesFields) addTools() *Error {
	var text []byte
	for _, piece := range f.input.items {
		if piece.Role != roleTools {
			continue
		}
		if text == nil {
			text = appendElements([]byte{'['}, f.toolText)
		}
		text = appendElements(text, []byte(piece.Content))
	}
	if text == nil {
		return nil
	}
	f.takeTools(f.cache.For(responsesTools).Read(append(text, ']'), parseToolItems))
	if e := f.tools.fault; e != nil {
		return Invalid(e.Param, "tools, with the additional_tools of input after them: %s", e.Message)
	}
	return nil
}

// appendElements appends the elements of a JSON list, if it is one, to those of an open list.
func appendElements(dst, list []byte) []byte {
	if len(list) < 2 || list[0] != '[' {
		return dst
	}
	elements := bytes.TrimSpace(list[1 : len(list)-1])
	if len(elements) > 0 && len(dst) > 1 {
		dst = append(dst, ',')
	}
	return append(dst, elements...)
}

// takeTools parts what the cache keeps of a list of tools, see [parseToolItems].
func (f *responsesFields) takeTools(m canon.Meaning, err error) {
	f.spelling.calls, f.tools = canon.Value{}, list[canon.ToolSpec]{skipped: m.Skipped}
	if err != nil {
		f.tools.fault = asError(err, "tools")
	}
	n := len(m.Tools)
	if n > 0 && m.Tools[n-1].Name == "" {
		n--
		f.spelling.calls = m.Tools[n].Function
	}
	f.tools.items = m.Tools[:n:n]
}

// parseToolItems reads the list of tools from raw bytes that never change. If calls of some
// tool have a spelling of their own, the cache keeps it too: after the tools comes one without
// a name, whose function is that of [responsesSpelling].
func parseToolItems(raw []byte) (canon.Meaning, error) {
	v, err := canon.ParseOwned(raw)
	if err != nil {
		return canon.Meaning{}, Invalid("body", "tools: %v (counted from the list's start)", err)
	}
	if v.IsNull() {
		return canon.Meaning{}, nil
	}
	r := toolReader{ruler: ruler{param: "tools"}, specs: make([]canon.ToolSpec, 0, len(v.Elems())+1), spelled: map[string]string{}}
	if v.Kind() != canon.Array {
		return canon.Meaning{}, r.fail("tools must be list or null, not %s", v.TypeName())
	}
	if e := r.list(v.Elems(), "tools", ""); e != nil {
		return canon.Meaning{}, e
	}
	if len(r.calls) > 0 {
		r.specs = append(r.specs, canon.ToolSpec{Function: canon.ObjectOf(r.calls...)})
	}
	return canon.Meaning{Tools: r.specs, Skipped: r.skipped}, nil
}

// A toolReader reads one list of tools.
type toolReader struct {
	ruler
	specs   []canon.ToolSpec
	calls   []canon.Member
	skipped []string
	// spelled has the kind of each canonical name so far.
	spelled map[string]string
}

// list reads the tools of a request or, with its name, of a namespace.
func (r *toolReader) list(items []canon.Value, list, namespace string) *Error {
	for i, item := range items {
		at := path{list, i}
		kind, _ := item.Get("type")
		var e *Error
		switch {
		case kind.Str() == "function", kind.Str() == "custom":
			e = r.tool(item, kind.Str(), at, namespace)
		case kind.Str() == "namespace" && namespace == "":
			e = r.namespace(item, at)
		default:
			r.skipped = addSkipped(r.skipped, skippedName("tools", item))
		}
		if e != nil {
			return e
		}
	}
	return nil
}

func (r *toolReader) namespace(item canon.Value, at path) *Error {
	name, e := r.name(item, at)
	if e != nil {
		return e
	}
	tools, _ := item.Get("tools")
	if tools.Kind() != canon.Array {
		return r.fail("%s.tools must be list, not %s", at, tools.TypeName())
	}
	return r.list(tools.Elems(), at.String()+".tools", name)
}

func (r *toolReader) name(item canon.Value, at path) (string, *Error) {
	name, _ := item.Get("name")
	if name.Kind() != canon.String || name.Str() == "" {
		return "", r.fail("%s.name must be a non-empty str, not %s", at, describe(name))
	}
	return name.Str(), nil
}

// tool reads a function or custom tool. Only name, description and parameters take part; strict
// and the like would only add words to the prompt.
func (r *toolReader) tool(item canon.Value, kind string, at path, namespace string) *Error {
	name, e := r.name(item, at)
	if e != nil {
		return e
	}
	description, e := toolDescription(item, r.param, at.String())
	if e != nil {
		return e
	}
	parameters, _ := item.Get("parameters")
	if kind == "custom" {
		parameters = customParameters(item)
	} else if parameters.Kind() != canon.Object {
		return r.fail("%s.parameters must be dict, not %s", at, parameters.TypeName())
	}
	canonical := qualifiedName(namespace, name)
	if e := r.spell(canonical, kind, namespace, name, at); e != nil {
		return e
	}
	r.specs = append(r.specs, canon.NewToolSpec(canonical, description, parameters))
	return nil
}

// spell remembers how calls of a tool are spelled. One canonical name cannot mean two tools: the
// answer would not know which of them the model called.
func (r *toolReader) spell(canonical, kind, namespace, name string, at path) *Error {
	how := fmt.Sprintf("%s %q of namespace %q", kind, name, namespace)
	if before, ok := r.spelled[canonical]; ok {
		if before != how {
			return r.fail("%s: the model would know %s and %s by one name, %q; rename one of them", at, before, how,
				canon.Shorten(canonical, 80))
		}
		return nil
	}
	r.spelled[canonical] = how
	if kind == "function" && namespace == "" {
		return nil
	}
	r.calls = append(r.calls, canon.Member{Key: canonical, Value: canon.ObjectOf(
		canon.Member{Key: "type", Value: canon.StringValue(kind)},
		canon.Member{Key: "name", Value: canon.StringValue(name)},
		canon.Member{Key: "namespace", Value: canon.StringValue(namespace)})})
	return nil
}

// customParameters is the schema of a custom tool: one text, described by the tool's grammar if
// it has one.
func customParameters(item canon.Value) canon.Value {
	about := "The whole input of the tool, as plain text."
	format, _ := item.Get("format")
	if grammar, _ := format.Get("definition"); grammar.Kind() == canon.String && grammar.Str() != "" {
		syntax, _ := format.Get("syntax")
		about += " It must match this grammar"
		if syntax.Kind() == canon.String {
			about += " (" + syntax.Str() + ")"
		}
		about += ":\n" + grammar.Str()
	}
	text := func(key, value string) canon.Member { return canon.Member{Key: key, Value: canon.StringValue(value)} }
	return canon.ObjectOf(text("type", "object"),
		canon.Member{Key: "properties", Value: canon.ObjectOf(canon.Member{Key: "input",
			Value: canon.ObjectOf(text("type", "string"), text("description", about))})},
		canon.Member{Key: "required", Value: canon.ArrayOf(canon.StringValue("input"))})
}
