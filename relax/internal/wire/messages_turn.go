package wire

import (
	"fmt"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// This file reads the elements of a Messages request's messages. One element can be several
// canonical messages: the results of tools come inside of user messages. Blocks we have no
// use for are left out and named, as the reference leaves them out.

// A turnReader reads one element.
type turnReader struct {
	ruler
	// place is where the element is, for error texts; field is its name when parts are skipped.
	place, field string
	meaning      canon.Meaning
	// pending are user parts that are not in a message yet.
	pending []canon.Part
}

// readTurn reads one element from raw bytes that never change.
func readTurn(index int, raw []byte) (canon.Meaning, error) {
	at := path{"messages", index}
	v, err := canon.ParseOwned(raw)
	if err != nil {
		return canon.Meaning{}, Invalid("body", "%s: %v (counted from the message's start)", at, err)
	}
	t := turnReader{ruler: ruler{"messages"}, place: at.String() + ".content", field: "messages.content"}
	if e := t.turn(v); e != nil {
		return canon.Meaning{}, e
	}
	return t.meaning, nil
}

// turn reads an element by its role. Elements that are no messages and messages of other roles
// are left out, as the reference does. A system message stays where it is: Claude Code sends
// one after the first user message.
func (t *turnReader) turn(v canon.Value) *Error {
	role, _ := v.Get("role")
	content, _ := v.Get("content")
	switch name := role.Str(); {
	case v.Kind() != canon.Object:
		t.skip("messages." + v.TypeName())
		return nil
	case role.Kind() != canon.String:
		t.skip("messages.role")
		return nil
	case name == "user":
		return t.user(content)
	case name == "assistant":
		return t.assistant(content)
	case name == "system" || name == "developer":
		return t.system(content)
	default:
		t.skip("messages.role." + canon.Shorten(name, 40))
		return nil
	}
}

func (t *turnReader) skip(name string) { t.meaning.Skipped = addSkipped(t.meaning.Skipped, name) }

func (t *turnReader) add(m canon.Message) {
	t.meaning.Messages = append(t.meaning.Messages, canon.NewMessage(m))
}

// blocks calls fn with the blocks of a list, those that are no objects left out, and their type.
func (t *turnReader) blocks(list []canon.Value, fn func(i int, block canon.Value, kind string) *Error) *Error {
	for i, block := range list {
		kind, _ := block.Get("type")
		if block.Kind() != canon.Object || kind.Kind() != canon.String {
			t.skip(skippedName(t.field, block))
			continue
		}
		if e := fn(i, block, kind.Str()); e != nil {
			return e
		}
	}
	return nil
}

// system reads content of the system role: a string or a list of texts.
func (t *turnReader) system(content canon.Value) *Error {
	switch content.Kind() {
	case canon.Null:
		if t.field == "system" {
			return nil
		}
		return t.fail("%s must be str or list, not %s", t.place, content.TypeName())
	case canon.String:
		if content.Str() == "" {
			return t.fail("%s must not be empty", t.place)
		}
		t.add(canon.Message{Role: canon.System, Content: content.Str()})
		return nil
	case canon.Array:
	default:
		return t.fail("%s must be str or list, not %s", t.place, content.TypeName())
	}
	var texts []string
	e := t.blocks(content.Elems(), func(i int, block canon.Value, kind string) *Error {
		if kind != "text" {
			t.skip(skippedName(t.field, block))
			return nil
		}
		text, e := t.text(block, "text", t.place, i)
		texts = append(texts, text)
		return e
	})
	if e == nil && len(texts) > 0 {
		t.add(canon.Message{Role: canon.System, Content: strings.Join(texts, systemGlue)})
	}
	return e
}

// text returns a member of the block list[i] that must be a non-empty string.
func (t *turnReader) text(block canon.Value, key, list string, i int) (string, *Error) {
	v, _ := block.Get(key)
	if v.Kind() != canon.String || v.Str() == "" {
		return "", t.fail("%s[%d].%s must be a non-empty str, not %s", list, i, key, describe(v))
	}
	return v.Str(), nil
}

// user reads content of the user role: text and images gather in one message until the result
// of a tool comes between them.
func (t *turnReader) user(content canon.Value) *Error {
	switch content.Kind() {
	case canon.String:
		if content.Str() == "" {
			return t.fail("%s must not be empty", t.place)
		}
		t.add(canon.Message{Role: canon.User, Content: content.Str()})
		return nil
	case canon.Array:
	default:
		return t.fail("%s must be str or list, not %s", t.place, content.TypeName())
	}
	e := t.blocks(content.Elems(), func(i int, block canon.Value, kind string) *Error {
		if kind == "tool_result" {
			t.flush()
			return t.toolResult(block, i)
		}
		part, e := t.piece(block, kind, t.place, i)
		if part != (canon.Part{}) {
			t.pending = append(t.pending, part)
		}
		return e
	})
	if e != nil {
		return e
	}
	t.flush()
	if len(t.meaning.Messages) == 0 {
		return t.fail("%s has no text, image or tool_result block", t.place)
	}
	return nil
}

func (t *turnReader) flush() {
	if len(t.pending) == 0 {
		return
	}
	m := canon.Message{Role: canon.User}
	setContent(&m, t.pending)
	t.add(m)
	t.pending = nil
}

// piece reads the block list[i] as text or image; another block is left out and no part.
func (t *turnReader) piece(block canon.Value, kind, list string, i int) (canon.Part, *Error) {
	switch kind {
	case "text":
		text, e := t.text(block, "text", list, i)
		return canon.Part{Text: text}, e
	case "image":
		url, e := t.imageSource(block, path{list, i})
		return canon.Part{Image: url}, e
	default:
		t.skip(skippedName(t.field, block))
		return canon.Part{}, nil
	}
}

// toolResult reads the tool_result block i. Unlike the reference's, an empty list is the empty
// result that an absent content is, and images are kept. is_error does not take part.
func (t *turnReader) toolResult(block canon.Value, i int) *Error {
	m := canon.Message{Role: canon.Tool}
	var e *Error
	if m.ToolCallID, e = t.text(block, "tool_use_id", t.place, i); e != nil {
		return e
	}
	at := fmt.Sprintf("%s[%d].content", t.place, i)
	content, _ := block.Get("content")
	switch content.Kind() {
	case canon.Null:
	case canon.String:
		m.Content = content.Str()
	case canon.Array:
		var parts []canon.Part
		e = t.blocks(content.Elems(), func(k int, inner canon.Value, kind string) *Error {
			part, e := t.piece(inner, kind, at, k)
			if part != (canon.Part{}) {
				parts = append(parts, part)
			}
			return e
		})
		if e == nil && len(parts) == 0 && len(content.Elems()) > 0 {
			e = t.fail("%s has no text or image block", at)
		}
		setContent(&m, parts)
	default:
		e = t.fail("%s must be str or list, not %s", at, content.TypeName())
	}
	if e == nil {
		t.add(m)
	}
	return e
}

// assistant reads content of the assistant role. The order between blocks is lost, as in the
// other dialects. Unlike the reference's, the message may be empty: see [ruler.content].
func (t *turnReader) assistant(content canon.Value) *Error {
	m := canon.Message{Role: canon.Assistant}
	switch content.Kind() {
	case canon.String:
		m.Content = content.Str()
	case canon.Array:
		if e := t.assistantBlocks(content.Elems(), &m); e != nil {
			return e
		}
	default:
		return t.fail("%s must be str or list, not %s", t.place, content.TypeName())
	}
	t.add(m)
	return nil
}

func (t *turnReader) assistantBlocks(list []canon.Value, m *canon.Message) *Error {
	var texts, thoughts []string
	e := t.blocks(list, func(i int, block canon.Value, kind string) *Error {
		switch kind {
		case "text":
			text, e := t.text(block, "text", t.place, i)
			texts = append(texts, text)
			return e
		case "thinking":
			thinking, _ := block.Get("thinking")
			if thinking.Kind() != canon.String {
				return t.fail("%s[%d].thinking must be str, not %s", t.place, i, thinking.TypeName())
			}
			if thinking.Str() != "" {
				thoughts = append(thoughts, thinking.Str())
			}
			return nil
		case "tool_use":
			call, e := t.toolUse(block, i)
			m.ToolCalls = append(m.ToolCalls, call)
			return e
		default:
			t.skip(skippedName(t.field, block))
			return nil
		}
	})
	m.Content = strings.Join(texts, "")
	m.Reasoning = strings.Join(thoughts, "\n\n")
	return e
}

// toolUse reads the tool_use block i.
func (t *turnReader) toolUse(block canon.Value, i int) (canon.ToolCall, *Error) {
	var call canon.ToolCall
	var e *Error
	if call.ID, e = t.text(block, "id", t.place, i); e != nil {
		return call, e
	}
	if call.Name, e = t.text(block, "name", t.place, i); e != nil {
		return call, e
	}
	input, _ := block.Get("input")
	if input.Kind() != canon.Object {
		return call, t.fail("%s[%d].input must be dict, not %s", t.place, i, input.TypeName())
	}
	var err error
	if call.Arguments, err = canon.CanonicalArguments(input); err != nil {
		return call, t.fail("%s[%d].input: %v", t.place, i, err)
	}
	return call, nil
}
