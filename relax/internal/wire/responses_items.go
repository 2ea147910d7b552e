package wire

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// This file reads the items of a Responses input. The cache works item by item, messages may be
// made of several: so each item becomes a piece, a message that stands for its item alone, and
// pieces become messages afterwards. Roles beside the canonical ones mark what never leaves
// this package.
const (
	// rolePassed is an item that says nothing to the model.
	rolePassed canon.Role = "passed"
	// roleEmpty is an assistant's message without any content; it needs company.
	roleEmpty canon.Role = "empty"
	// roleTools is an item that adds tools; its content is the JSON list of them.
	roleTools canon.Role = "tools"
)

// An itemReader reads one item.
type itemReader struct {
	ruler
	at      path
	skipped []string
}

// itemPiece reads one item from raw bytes that never change.
func itemPiece(index int, raw []byte) (canon.Meaning, error) {
	r := itemReader{ruler: ruler{param: "input"}, at: path{"input", index}}
	v, err := canon.ParseOwned(raw)
	if err != nil {
		return canon.Meaning{}, Invalid("body", "%s: %v (counted from the item's start)", r.at, err)
	}
	m, e := r.item(v)
	if e != nil {
		return canon.Meaning{}, e
	}
	return canon.Meaning{Messages: []*canon.Message{canon.NewMessage(m)}, Skipped: r.skipped}, nil
}

// skip records the name of what is left out.
func (r *itemReader) skip(name string) { r.skipped = addSkipped(r.skipped, name) }

func (r *itemReader) item(v canon.Value) (canon.Message, *Error) {
	if v.Kind() != canon.Object {
		r.skip(skippedName("input", v))
		return canon.Message{Role: rolePassed}, nil
	}
	kind, _ := v.Get("type")
	if kind.IsNull() {
		return r.message(v)
	}
	switch kind.Str() {
	case "message":
		return r.message(v)
	case "reasoning":
		return r.reasoning(v), nil
	case "function_call", "custom_tool_call":
		return r.call(v, kind.Str() == "custom_tool_call")
	case "function_call_output", "custom_tool_call_output":
		return r.output(v)
	case "additional_tools":
		if tools, _ := v.Get("tools"); tools.Kind() == canon.Array {
			return canon.Message{Role: roleTools, Content: string(tools.AppendCompact(nil))}, nil
		}
	}
	r.skip(skippedName("input", v))
	return canon.Message{Role: rolePassed}, nil
}

func (r *itemReader) message(v canon.Value) (canon.Message, *Error) {
	m := canon.Message{}
	switch role, _ := v.Get("role"); role.Str() {
	case "user", "assistant", "system":
		m.Role = canon.Role(role.Str())
	case "developer":
		m.Role = canon.System
	default:
		r.skip("input.role=" + canon.Shorten(roleName(role), 40))
		m.Role = rolePassed
		return m, nil
	}
	var e *Error
	content, _ := v.Get("content")
	switch {
	case content.Kind() == canon.String:
		m.Content = content.Str()
	case content.Kind() == canon.Array:
		e = r.parts(&m, "content", content.Elems())
	case content.IsNull() && m.Role == canon.Assistant:
	default:
		e = r.fail("%s.content must be str or list, not %s", r.at, content.TypeName())
	}
	if e == nil && m.Content == "" && m.Parts == nil && (m.Role == canon.User || m.Role == canon.System) {
		e = r.fail("%s.content must not be empty; expected text or, in a list, input_text and input_image parts", r.at)
	}
	return m, e
}

// roleName shows a role that is not supported.
func roleName(role canon.Value) string {
	if role.Kind() == canon.String {
		return role.Str()
	}
	return role.TypeName()
}

// parts reads a list of content parts into m. Texts are joined, unless there are images.
func (r *itemReader) parts(m *canon.Message, field string, list []canon.Value) *Error {
	glue := ""
	if m.Role == canon.System {
		glue = systemGlue
	}
	var parts []canon.Part
	place := r.at.String() + "." + field
	for i, v := range list {
		at := path{place, i}
		kind, _ := v.Get("type")
		switch {
		case kind.Str() == "input_text", kind.Str() == "output_text" && m.Role != canon.Tool:
			text, _ := v.Get("text")
			if text.Kind() != canon.String || text.Str() == "" && m.Role != canon.Assistant {
				return r.fail("%s.text must be a non-empty str, not %s", at, describe(text))
			}
			if glue != "" && len(parts) > 0 {
				parts = append(parts, canon.Part{Text: glue})
			}
			parts = append(parts, canon.Part{Text: text.Str()})
		case kind.Str() == "input_image" && (m.Role == canon.User || m.Role == canon.Tool):
			url, e := r.image(v, at)
			if e != nil {
				return e
			}
			parts = append(parts, canon.Part{Image: url})
		default:
			r.skip(skippedName("input."+field, v))
		}
	}
	if len(parts) == 0 && m.Role == canon.Assistant {
		m.Role = roleEmpty
	}
	setContent(m, parts)
	return nil
}

// reasoning takes the summary's texts if there are any, else the content's. What is encrypted
// cannot be read.
func (r *itemReader) reasoning(v canon.Value) canon.Message {
	for _, key := range []string{"summary", "content"} {
		var texts []string
		list, _ := v.Get(key)
		for _, part := range list.Elems() {
			if text, _ := part.Get("text"); text.Kind() == canon.String && text.Str() != "" {
				texts = append(texts, text.Str())
			}
		}
		if len(texts) > 0 {
			return canon.Message{Role: canon.Assistant, Reasoning: strings.Join(texts, "\n\n")}
		}
	}
	if secret, _ := v.Get("encrypted_content"); !secret.IsNull() {
		r.skip("input.encrypted_content")
	}
	return canon.Message{Role: rolePassed}
}

// call reads function_call or, custom, custom_tool_call.
func (r *itemReader) call(v canon.Value, custom bool) (canon.Message, *Error) {
	id, e := r.required(v, "call_id")
	if e != nil {
		return canon.Message{}, e
	}
	name, e := r.required(v, "name")
	if e != nil {
		return canon.Message{}, e
	}
	space, _ := v.Get("namespace")
	if !space.IsNull() && space.Kind() != canon.String {
		return canon.Message{}, r.fail("%s.namespace must be str or null, not %s", r.at, space.TypeName())
	}
	call := canon.ToolCall{ID: id, Name: qualifiedName(space.Str(), name)}
	if custom {
		call.Arguments, e = r.input(v)
	} else {
		call.Arguments, e = r.arguments(v)
	}
	return canon.Message{Role: canon.Assistant, ToolCalls: []canon.ToolCall{call}}, e
}

func (r *itemReader) arguments(v canon.Value) (string, *Error) {
	arguments, _ := v.Get("arguments")
	if arguments.Kind() != canon.String {
		return "", r.fail("%s.arguments must be str, the JSON text of an object, not %s", r.at, arguments.TypeName())
	}
	text, err := canon.CanonicalArgumentsText(arguments.Str())
	if err != nil {
		return "", r.fail("%s.%v", r.at, err)
	}
	return text, nil
}

func (r *itemReader) input(v canon.Value) (string, *Error) {
	input, _ := v.Get("input")
	if input.Kind() != canon.String {
		return "", r.fail("%s.input must be str, not %s", r.at, input.TypeName())
	}
	return customArguments(input.Str()), nil
}

// output reads the result of a call.
func (r *itemReader) output(v canon.Value) (canon.Message, *Error) {
	id, e := r.required(v, "call_id")
	m := canon.Message{Role: canon.Tool, ToolCallID: id}
	if e != nil {
		return m, e
	}
	switch output, _ := v.Get("output"); output.Kind() {
	case canon.String:
		m.Content = output.Str()
	case canon.Array:
		if e = r.parts(&m, "output", output.Elems()); e == nil && m.Content == "" && m.Parts == nil {
			e = r.fail("%s.output must have at least one input_text or input_image part, or be str", r.at)
		}
	default:
		e = r.fail("%s.output must be str or list, not %s", r.at, output.TypeName())
	}
	return m, e
}

// required returns a member that must be a non-empty str.
func (r *itemReader) required(v canon.Value, key string) (string, *Error) {
	text, _ := v.Get(key)
	if text.Kind() != canon.String || text.Str() == "" {
		return "", r.fail("%s.%s must be a non-empty str, not %s", r.at, key, describe(text))
	}
	return text.Str(), nil
}

// An assistantTurn collects the pieces of one assistant message.
type assistantTurn struct {
	pieces []*canon.Message
	// empty is the index of an item without content, -1 if there is none.
	empty int
}

// end appends the turn's message, if there is one, and begins a new turn.
func (t *assistantTurn) end(messages []*canon.Message, cache *canon.Cache) ([]*canon.Message, *Error) {
	switch {
	case len(t.pieces) > 0:
		messages = append(messages, joinedTurn(t.pieces, cache))
	case t.empty >= 0:
		return nil, Invalid("input", "%s.content projected to no supported content; expected output_text parts",
			path{"input", t.empty})
	}
	t.pieces, t.empty = t.pieces[:0], -1
	return messages, nil
}

// joinedTurn makes one message of the pieces of a turn. The cache remembers it by their hashes,
// so that a replayed turn is neither built nor hashed again; a hit is confirmed.
func joinedTurn(pieces []*canon.Message, cache *canon.Cache) *canon.Message {
	if len(pieces) == 1 {
		return pieces[0]
	}
	key := make([]byte, 0, 64)
	for _, p := range pieces {
		key = binary.LittleEndian.AppendUint64(key, p.Hash())
	}
	m, err := cache.For(responsesTurns).Read(key, func([]byte) (canon.Meaning, error) {
		return canon.Meaning{Messages: []*canon.Message{joinPieces(pieces)}}, nil
	})
	if err != nil || len(m.Messages) != 1 || !isJoined(m.Messages[0], pieces) {
		return joinPieces(pieces)
	}
	return m.Messages[0]
}

func joinPieces(pieces []*canon.Message) *canon.Message {
	var texts, reasonings []string
	m := canon.Message{Role: canon.Assistant}
	for _, p := range pieces {
		// A lone text is shared, not copied.
		if p.Content != "" {
			texts = append(texts, p.Content)
		}
		if p.Reasoning != "" {
			reasonings = append(reasonings, p.Reasoning)
		}
		m.ToolCalls = append(m.ToolCalls, p.ToolCalls...)
	}
	m.Content, m.Reasoning = strings.Join(texts, ""), strings.Join(reasonings, "\n\n")
	return canon.NewMessage(m)
}

// isJoined reports whether m is what joinPieces makes of pieces.
func isJoined(m *canon.Message, pieces []*canon.Message) bool {
	content, reasoning, calls := m.Content, m.Reasoning, m.ToolCalls
	between := ""
	for _, p := range pieces {
		var ok bool
		if content, ok = strings.CutPrefix(content, p.Content); !ok {
			return false
		}
		if len(calls) < len(p.ToolCalls) || !slices.Equal(calls[:len(p.ToolCalls)], p.ToolCalls) {
			return false
		}
		calls = calls[len(p.ToolCalls):]
		if p.Reasoning == "" {
			continue
		}
		if reasoning, ok = strings.CutPrefix(reasoning, between); !ok {
			return false
		}
		if reasoning, ok = strings.CutPrefix(reasoning, p.Reasoning); !ok {
			return false
		}
		between = "\n\n"
	}
	return content == "" && reasoning == "" && len(calls) == 0 && m.Role == canon.Assistant
}
