package wire

import (
	"fmt"
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
}

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
	messages, end, err := cache.Messages(raw, at, func(i int, owned []byte) (*canon.Message, error) {
		return r.parseMessage(owned, i)
	})
	if end == 0 {
		return list[*canon.Message]{}, 0, err
	}
	if err != nil {
		return list[*canon.Message]{fault: asError(err, "body")}, end, nil
	}
	return list[*canon.Message]{items: messages}, end, nil
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
	merged.Content = strings.Join(texts, "\n\n")
	messages[n-1] = cache.Intern(canon.NewMessage(merged))
	return messages[n-1:]
}

// parseMessage reads one message from raw bytes that never change.
func (r ruler) parseMessage(raw []byte, index int) (*canon.Message, error) {
	at := path{"messages", index}
	v, err := canon.ParseOwned(raw)
	if err != nil {
		return nil, Invalid("body", "%s: %v (counted from the message's start)", at, err)
	}
	m, e := r.message(v, at)
	if e != nil {
		return nil, e
	}
	return m, nil
}

// message checks one message object in the reference's order of rules.
func (r ruler) message(v canon.Value, at path) (*canon.Message, *Error) {
	if v.Kind() != canon.Object {
		return nil, r.fail("%s must be dict, not %s", at, v.TypeName())
	}
	role, e := r.role(v, at)
	if e != nil {
		return nil, e
	}
	m := canon.Message{Role: role}
	if role == canon.Assistant {
		if m.ToolCalls, e = r.toolCalls(v, at); e != nil {
			return nil, e
		}
	}
	if m.Reasoning, e = r.reasoning(v, at); e != nil {
		return nil, e
	}
	if id, ok := v.Get("tool_call_id"); ok && role == canon.Tool {
		if id.Kind() != canon.String || id.Str() == "" {
			return nil, r.fail("%s.tool_call_id must be a non-empty str, not %s", at, describe(id))
		}
		m.ToolCallID = id.Str()
	}
	if m.Content, e = r.content(v, &m, at); e != nil {
		return nil, e
	}
	return canon.NewMessage(m), nil
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

// content reads the message's text. An assistant message may be empty even without calls and
// reasoning, unlike the reference's: a turn of no visible tokens is one we hand out
// ourselves, so its replay must be accepted.
func (r ruler) content(v canon.Value, m *canon.Message, at path) (string, *Error) {
	content, ok := v.Get("content")
	if !ok && len(m.ToolCalls) == 0 && m.Reasoning == "" {
		return "", r.fail("%s.content is missing", at)
	}
	switch content.Kind() {
	case canon.Null:
		if m.Role != canon.Assistant {
			return "", r.fail("%s.content must not be null", at)
		}
		return "", nil
	case canon.String:
		if content.Str() == "" && m.Role != canon.Assistant && m.Role != canon.Tool {
			return "", r.fail("%s.content must not be empty", at)
		}
		return content.Str(), nil
	case canon.Array:
		return r.parts(content.Elems(), at)
	default:
		return "", r.fail("%s.content must be str, list or null, not %s", at, content.TypeName())
	}
}

// parts collapses a list of text parts to one string.
func (r ruler) parts(parts []canon.Value, at path) (string, *Error) {
	if len(parts) == 0 {
		return "", r.fail("%s.content must not be an empty list", at)
	}
	if len(parts) == 1 {
		return r.part(parts[0], at, 0)
	}
	var text strings.Builder
	for i, part := range parts {
		s, e := r.part(part, at, i)
		if e != nil {
			return "", e
		}
		text.WriteString(s)
	}
	return text.String(), nil
}

func (r ruler) part(part canon.Value, at path, i int) (string, *Error) {
	if part.Kind() != canon.Object {
		return "", r.fail("%s.content[%d] must be dict, not %s", at, i, part.TypeName())
	}
	kind, _ := part.Get("type")
	switch kind.Str() {
	case "image_url", "image", "input_image":
		return "", r.fail("%s.content[%d]: images are not supported yet; send text only", at, i)
	}
	text, _ := part.Get("text")
	if text.Kind() != canon.String {
		return "", r.fail("%s.content[%d] of type %s has no text; only text parts are supported",
			at, i, describe(kind))
	}
	if text.Str() == "" {
		return "", r.fail("%s.content[%d].text must not be empty", at, i)
	}
	return text.Str(), nil
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
		return call, r.fail("%s.function: %v", at, err)
	}
	call.Arguments = text
	return call, nil
}

// tools reads the JSON list of tools at raw[at] through the cache and returns the index after
// it. null is an empty list; entries that are not function tools are skipped, as the
// reference does. The error is for text that is no JSON.
func (r ruler) tools(raw []byte, at int, cache *canon.Cache) (list[canon.ToolSpec], int, error) {
	if at <= len(raw) {
		if tools, n := cache.ExpectTools(raw[at:]); n > 0 {
			return list[canon.ToolSpec]{items: tools}, at + n, nil
		}
	}
	end, err := canon.SkipValue(raw, at)
	if err != nil {
		return list[canon.ToolSpec]{}, 0, err
	}
	tools, err := cache.Tools(raw[at:end], func(owned []byte) ([]canon.ToolSpec, error) {
		v, err := canon.ParseOwned(owned)
		if err != nil {
			return nil, Invalid("body", "tools: %v (counted from the list's start)", err)
		}
		tools, e := r.toolList(v)
		if e != nil {
			return nil, e
		}
		return tools, nil
	})
	if err != nil {
		return list[canon.ToolSpec]{fault: asError(err, r.param)}, end, nil
	}
	return list[canon.ToolSpec]{items: tools}, end, nil
}

func (r ruler) toolList(v canon.Value) ([]canon.ToolSpec, *Error) {
	if v.IsNull() {
		return nil, nil
	}
	if v.Kind() != canon.Array {
		return nil, r.fail("tools must be list or null, not %s", v.TypeName())
	}
	tools := make([]canon.ToolSpec, 0, len(v.Elems()))
	for i, item := range v.Elems() {
		if item.Kind() != canon.Object {
			return nil, r.fail("tools[%d] must be dict, not %s", i, item.TypeName())
		}
		kind, _ := item.Get("type")
		function, _ := item.Get("function")
		if kind.Kind() != canon.String || kind.Str() != "function" || function.Kind() != canon.Object {
			continue
		}
		tool, e := r.tool(function, i)
		if e != nil {
			return nil, e
		}
		tools = append(tools, tool)
	}
	return tools, nil
}

func (r ruler) tool(function canon.Value, i int) (canon.ToolSpec, *Error) {
	name, _ := function.Get("name")
	if name.Kind() != canon.String {
		return canon.ToolSpec{}, r.fail("tools[%d].function.name must be str, not %s", i, name.TypeName())
	}
	parameters, _ := function.Get("parameters")
	var description *string
	switch d, _ := function.Get("description"); d.Kind() {
	case canon.Null:
	case canon.String:
		text := d.Str()
		description = &text
	default:
		return canon.ToolSpec{}, r.fail("tools[%d].function.description must be str or null, not %s", i, d.TypeName())
	}
	tool := canon.NewToolSpec(name.Str(), description, parameters)
	tool.Function = function
	return tool, nil
}
