package wire

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// This file has the rules of the reference's canonicalization (reference session service 2.1,
// 2.2, 2.4, 2.5) with our settled differences: text lists collapse to a string, unknown keys
// of tool calls do not take part, only leading system messages merge, developer is system.

// A path names a place inside the request for error texts. It is built only when needed.
type path struct {
	list  string
	index int
}

func (p path) String() string { return fmt.Sprintf("%s[%d]", p.list, p.index) }

// A ruler checks one list of messages. param is the field named in errors.
type ruler struct{ param string }

func (r ruler) fail(format string, args ...any) *Error { return Invalid(r.param, format, args...) }

// A list is what a JSON list of a request means, or the first thing wrong with it.
type list[T any] struct {
	items []T
	fault *Error
	// skipped names what the list holds that could not be used.
	skipped []string
}

// replace takes in a list that comes after l under the same key: the last one counts. A fault
// stays, for what lies behind it was never checked to be JSON.
func (l *list[T]) replace(later list[T]) {
	if l.fault == nil {
		*l = later
	}
}

// The kinds of raw JSON the dialects read through a cache, see [canon.Cache.For].
const (
	chatElements canon.Rules = iota + 1
	messagesElements
	messagesSystem
	chatTools
	messagesTools
	responsesItems
	responsesInstructions
	responsesTurns
	responsesTools
)

// messages reads the JSON list of messages at raw[at] through the cache and returns the index
// after it. null is an empty list. The error is for text that is no JSON.
func (r ruler) messages(raw []byte, at int, cache *canon.Cache) (list[*canon.Message], int, error) {
	if at >= len(raw) || raw[at] != '[' {
		v, end, err := parseAt(raw, at)
		if err != nil || v.IsNull() {
			return list[*canon.Message]{}, end, err
		}
		return list[*canon.Message]{fault: r.fail("messages must be list, not %s", v.TypeName())}, end, nil
	}
	return elements(raw, at, cache.For(chatElements), r.parseMessage)
}

// elements reads the JSON list at raw[at] element by element through a cache.
func elements(raw []byte, at int, cache *canon.Cache, build func(index int, raw []byte) (canon.Meaning, error)) (
	list[*canon.Message], int, error) {
	all, end, err := cache.Elements(raw, at, build)
	if end == 0 {
		return list[*canon.Message]{}, 0, err
	}
	if err != nil {
		return list[*canon.Message]{fault: asError(err, "body")}, end, nil
	}
	return list[*canon.Message]{items: all.Messages, skipped: all.Skipped}, end, nil
}

// parseAt reads the value at raw[at] and returns the index after it.
func parseAt(raw []byte, at int) (canon.Value, int, error) {
	end, err := canon.SkipValue(raw, at)
	if err != nil {
		return canon.Value{}, 0, err
	}
	v, err := canon.ParseValue(raw[at:end])
	return v, end, err
}

// conversation puts messages and tools into a request, or returns the first fault.
func conversation(req *canon.Request, messages list[*canon.Message], tools list[canon.ToolSpec], cache *canon.Cache) *Error {
	if messages.fault != nil {
		return messages.fault
	}
	if tools.fault != nil {
		return tools.fault
	}
	if len(messages.items) == 0 {
		return Invalid("messages", "messages projected to zero supported messages; send at least one")
	}
	req.Messages = mergeLeadingSystem(messages.items, cache)
	req.Tools = tools.items
	if len(messages.skipped)+len(tools.skipped) > 0 {
		req.Ignored = sortedNames(slices.Concat(req.Ignored, messages.skipped, tools.skipped))
	}
	return nil
}

// mergeLeadingSystem joins the system messages a conversation begins with by a blank line.
// Later ones stay where they are: moving them up would change message 0 and fork the history.
func mergeLeadingSystem(messages []*canon.Message, cache *canon.Cache) []*canon.Message {
	n := 0
	for n < len(messages) && messages[n].Role == canon.System {
		n++
	}
	if n < 2 {
		return messages
	}
	texts := make([]string, n)
	for i, m := range messages[:n] {
		texts[i] = m.Content
	}
	merged := *messages[0]
	merged.Content = strings.Join(texts, systemGlue)
	messages[n-1] = cache.Intern(canon.NewMessage(merged))
	return messages[n-1:]
}

// parseMessage reads one message from raw bytes that never change.
func (r ruler) parseMessage(index int, raw []byte) (canon.Meaning, error) {
	at := path{"messages", index}
	v, err := canon.ParseOwned(raw)
	if err != nil {
		return canon.Meaning{}, Invalid("body", "%s: %v (counted from the message's start)", at, err)
	}
	m, e := r.message(v, at)
	if e != nil {
		return canon.Meaning{}, e
	}
	return m, nil
}

// message checks one message object in the reference's order of rules.
func (r ruler) message(v canon.Value, at path) (canon.Meaning, *Error) {
	var none canon.Meaning
	if v.Kind() != canon.Object {
		return none, r.fail("%s must be dict, not %s", at, v.TypeName())
	}
	role, e := r.role(v, at)
	if e != nil {
		return none, e
	}
	m := canon.Message{Role: role}
	if role == canon.Assistant {
		if m.ToolCalls, e = r.toolCalls(v, at); e != nil {
			return none, e
		}
	}
	if m.Reasoning, e = r.reasoning(v, at); e != nil {
		return none, e
	}
	if id, ok := v.Get("tool_call_id"); ok && role == canon.Tool {
		if id.Kind() != canon.String || id.Str() == "" {
			return none, r.fail("%s.tool_call_id must be a non-empty str, not %s", at, describe(id))
		}
		m.ToolCallID = id.Str()
	}
	content, ok := v.Get("content")
	if !ok && len(m.ToolCalls) == 0 && m.Reasoning == "" {
		return none, r.fail("%s.content is missing", at)
	}
	if role == canon.System && content.Kind() == canon.Array {
		return r.systemList(content.Elems(), m, at)
	}
	if e = r.content(content, &m, at); e != nil {
		return none, e
	}
	return canon.Meaning{Messages: []*canon.Message{canon.NewMessage(m)}}, nil
}

func (r ruler) role(v canon.Value, at path) (canon.Role, *Error) {
	role, ok := v.Get("role")
	if !ok {
		return "", r.fail("%s.role is missing", at)
	}
	if role.Kind() != canon.String {
		return "", r.fail("%s.role must be str, not %s", at, role.TypeName())
	}
	switch name := role.Str(); name {
	case "assistant", "system", "tool", "user":
		return canon.Role(name), nil
	case "developer":
		return canon.System, nil
	default:
		return "", r.fail("%s.role must be one of assistant, developer, system, tool, user, not %q",
			at, canon.Shorten(name, 40))
	}
}

// reasoning reads reasoning_content, or reasoning where a client renamed the field.
func (r ruler) reasoning(v canon.Value, at path) (string, *Error) {
	text, _ := v.Get("reasoning_content")
	switch text.Kind() {
	case canon.String:
		return text.Str(), nil
	case canon.Null:
		renamed, _ := v.Get("reasoning")
		if renamed.Kind() == canon.String {
			return renamed.Str(), nil
		}
		return "", nil
	default:
		return "", r.fail("%s.reasoning_content must be str or null, not %s", at, text.TypeName())
	}
}

// describe shows a value in an error text: short strings by their text, the rest by type.
func describe(v canon.Value) string {
	if v.Kind() == canon.String {
		return fmt.Sprintf("%q", canon.Shorten(v.Str(), 40))
	}
	return v.TypeName()
}

// toolCalls reads an assistant's calls. Keys beside id, function.name and function.arguments
// do not take part.
func (r ruler) toolCalls(v canon.Value, at path) ([]canon.ToolCall, *Error) {
	list, _ := v.Get("tool_calls")
	if list.IsNull() {
		return nil, nil
	}
	if list.Kind() != canon.Array {
		return nil, r.fail("%s.tool_calls must be list or null, not %s", at, list.TypeName())
	}
	calls := make([]canon.ToolCall, len(list.Elems()))
	for i, item := range list.Elems() {
		call, e := r.toolCall(item, fmt.Sprintf("%s.tool_calls[%d]", at, i))
		if e != nil {
			return nil, e
		}
		calls[i] = call
	}
	return calls, nil
}

func (r ruler) toolCall(item canon.Value, at string) (canon.ToolCall, *Error) {
	var call canon.ToolCall
	if item.Kind() != canon.Object {
		return call, r.fail("%s must be dict, not %s", at, item.TypeName())
	}
	if id, _ := item.Get("id"); !id.IsNull() {
		if id.Kind() != canon.String || id.Str() == "" {
			return call, r.fail("%s.id must be a non-empty str or null, not %s", at, describe(id))
		}
		call.ID = id.Str()
	}
	function, _ := item.Get("function")
	if function.Kind() != canon.Object {
		return call, r.fail("%s.function must be dict, not %s", at, function.TypeName())
	}
	if name, _ := function.Get("name"); !name.IsNull() {
		if name.Kind() != canon.String {
			return call, r.fail("%s.function.name must be str or null, not %s", at, name.TypeName())
		}
		call.Name = name.Str()
	}
	arguments, _ := function.Get("arguments")
	text, err := canon.CanonicalArguments(arguments)
	if err != nil {
		return call, r.fail("%s.function.%v", at, err)
	}
	call.Arguments = text
	return call, nil
}

// tools reads the JSON list of tools at raw[at] through the cache and returns the index after
// it. null is an empty list; entries that are not function tools are skipped, as the
// reference does. The error is for text that is no JSON.
func (r ruler) tools(raw []byte, at int, cache *canon.Cache) (list[canon.ToolSpec], int, error) {
	return toolList(raw, at, cache.For(chatTools), r.param, r.tool)
}

// toolList reads the JSON list of tools at raw[at] through a cache. read reads one object of
// the list and reports whether it is a tool a model can be offered.
func toolList(raw []byte, at int, cache *canon.Cache, param string, read func(v canon.Value, i int) (canon.ToolSpec, bool, *Error)) (
	list[canon.ToolSpec], int, error) {
	m, end, err := cache.ToolList(raw, at, func(owned []byte) (canon.Meaning, error) {
		v, err := canon.ParseOwned(owned)
		if err != nil {
			return canon.Meaning{}, Invalid("body", "tools: %v (counted from the list's start)", err)
		}
		m, e := everyTool(v, param, read)
		if e != nil {
			return canon.Meaning{}, e
		}
		return m, nil
	})
	if end == 0 {
		return list[canon.ToolSpec]{}, 0, err
	}
	if err != nil {
		return list[canon.ToolSpec]{fault: asError(err, param)}, end, nil
	}
	return list[canon.ToolSpec]{items: m.Tools, skipped: m.Skipped}, end, nil
}

func everyTool(v canon.Value, param string, read func(v canon.Value, i int) (canon.ToolSpec, bool, *Error)) (canon.Meaning, *Error) {
	var m canon.Meaning
	if v.IsNull() {
		return m, nil
	}
	if v.Kind() != canon.Array {
		return m, Invalid(param, "tools must be list or null, not %s", v.TypeName())
	}
	m.Tools = make([]canon.ToolSpec, 0, len(v.Elems()))
	for i, item := range v.Elems() {
		tool, ok, e := read(item, i)
		if e != nil {
			return canon.Meaning{}, e
		}
		if ok {
			m.Tools = append(m.Tools, tool)
			continue
		}
		m.Skipped = addSkipped(m.Skipped, skippedName("tools", item))
	}
	return m, nil
}

// maxSkipped bounds the names kept of what one message or list holds that is left out.
const maxSkipped = 16

func addSkipped(names []string, name string) []string {
	if len(names) >= maxSkipped || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// skippedName names an item that is left out by its list and its type.
func skippedName(list string, item canon.Value) string {
	kind, _ := item.Get("type")
	switch {
	case item.Kind() != canon.Object:
		return list + "." + item.TypeName()
	case kind.Kind() != canon.String:
		return list + ".untyped"
	default:
		return list + "." + canon.Shorten(kind.Str(), 40)
	}
}

// tool reads one entry of tools; other types than function are no tools.
func (r ruler) tool(item canon.Value, i int) (canon.ToolSpec, bool, *Error) {
	if item.Kind() != canon.Object {
		return canon.ToolSpec{}, false, r.fail("tools[%d] must be dict, not %s", i, item.TypeName())
	}
	kind, _ := item.Get("type")
	function, _ := item.Get("function")
	if kind.Kind() != canon.String || kind.Str() != "function" || function.Kind() != canon.Object {
		return canon.ToolSpec{}, false, nil
	}
	name, _ := function.Get("name")
	if name.Kind() != canon.String {
		return canon.ToolSpec{}, false, r.fail("tools[%d].function.name must be str, not %s", i, name.TypeName())
	}
	parameters, _ := function.Get("parameters")
	description, e := toolDescription(function, r.param, fmt.Sprintf("tools[%d].function", i))
	if e != nil {
		return canon.ToolSpec{}, false, e
	}
	tool := canon.NewToolSpec(name.Str(), description, parameters)
	tool.Function = function
	return tool, true, nil
}

// toolDescription reads the description member of v, nil if there is none.
func toolDescription(v canon.Value, param, at string) (*string, *Error) {
	switch d, _ := v.Get("description"); d.Kind() {
	case canon.Null:
		return nil, nil
	case canon.String:
		text := d.Str()
		return &text, nil
	default:
		return nil, Invalid(param, "%s.description must be str or null, not %s", at, d.TypeName())
	}
}
