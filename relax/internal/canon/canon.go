// Package canon holds the canonical conversation: what a model request says once the
// dialect it came in is forgotten. Ordered JSON values, messages, tools, template
// arguments, and the identity of a conversation state live here.
//
// What may enter: JSON values and plain text. What it never does: I/O, HTTP shapes,
// token ids, clocks.
package canon

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// A Role is who speaks. The four canonical roles are the guide's; a dialect maps its own
// (developer, function_call_output, …) to one of them.
type Role string

// The canonical roles.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
)

// A ToolCall is one function call of an assistant message.
type ToolCall struct {
	// ID is the call's id, "" when the client gave none. It takes part in identity.
	ID string
	// Name is the function's name.
	Name string
	// Arguments is the canonical JSON text of the arguments object: keys sorted, no
	// spaces, integral floats as ints (reference session service 2.3). [CanonicalArguments]
	// makes it.
	Arguments string
}

// A Part is a piece of the content of a message with images: text or an image, never both.
type Part struct {
	Text string
	// Image is the image's URL, mostly a data: URL.
	Image string
}

// A Message is one canonical message. It is immutable once built with [NewMessage] and may
// be shared by any number of requests, states and goroutines.
type Message struct {
	Role Role
	// Content is the message's text. Text-only content lists collapse to one string. It is ""
	// in a message with Parts.
	Content string
	// Parts is the content of a message with images, in order; nil for text alone.
	Parts []Part
	// Reasoning is the message's reasoning_content, "" if none. White space at its ends is the
	// template's, not the model's: clients trim it, and it takes no part in identity.
	Reasoning string
	// ToolCalls are the assistant's calls, in order.
	ToolCalls []ToolCall
	// ToolCallID names the call a tool message answers, "" if not given.
	ToolCallID string

	hash uint64
}

// HoistSystem joins all system messages by blank lines to one at the beginning, as the reference
// does (reference session service 2.1). messages come back as they are if there is nothing to do.
func HoistSystem(messages []*Message) []*Message {
	later := func(m *Message) bool { return m.Role == System }
	if len(messages) < 2 || !slices.ContainsFunc(messages[1:], later) {
		return messages
	}
	var texts []string
	rest := make([]*Message, 1, len(messages))
	for _, m := range messages {
		if m.Role == System {
			texts = append(texts, m.Content)
		} else {
			rest = append(rest, m)
		}
	}
	rest[0] = NewMessage(Message{Role: System, Content: strings.Join(texts, "\n\n")})
	return rest
}

// A ToolSpec is one function tool offered to the model. Build it with [NewToolSpec], so that
// its part of the state identity is computed once.
type ToolSpec struct {
	Name        string
	Description *string
	// Parameters is the JSON schema with the client's key order, which templates print; null
	// when the client gave none.
	Parameters Value
	// Function is the function object as the client wrote it, for templates to print: its key
	// order and keys beyond the three above. It takes no part in identity. Null if the tool did
	// not come from a client that writes such objects.
	Function Value

	hash uint64
}

// A Request is a complete-history model request after its dialect was read.
type Request struct {
	// Model is only echoed; it selects nothing.
	Model    string
	Messages []*Message
	Tools    []ToolSpec
	// Kwargs are the chat_template_kwargs, an object (never the zero Value) with sorted keys
	// as [MergeKwargs] makes it.
	Kwargs Value
	// MaxTokens is the turn limit, 0 when the client gave none.
	MaxTokens int
	Stop      []string
	Seed      *int64
	Logprobs  bool
	Stream    bool
	// Ignored names the request's fields that do not alter generation, sorted.
	Ignored []string
	// Spelling is what the request's dialect must remember to spell the answer; nobody else
	// reads it.
	Spelling any
	// Retry says that the client sent this request before.
	Retry Retry
}

// Retry is what a client says about a request it may have sent before.
type Retry struct {
	// Attempt counts the tries before this one, as the SDKs' x-stainless-retry-count does.
	Attempt int
	// Key is the client's Idempotency-Key, "" for none: requests with one key are one.
	Key string
}

// buffers holds scratch space for canonical bytes that are only hashed.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// maxPooled bounds the scratch buffers kept, in bytes: one giant message must not pin its
// size for ever.
const maxPooled = 1 << 20

// sum hashes what fill appends.
func sum(fill func(dst []byte) []byte) uint64 {
	p := buffers.Get().(*[]byte)
	b := fill((*p)[:0])
	h := xxhash.Sum64(b)
	if cap(b) <= maxPooled {
		*p = b
		buffers.Put(p)
	}
	return h
}

// NewMessage returns an immutable message with its identity computed. Text that is not valid
// UTF-8 gets U+FFFD for each bad run, because JSON could not carry it to a client and back.
// Parts without an image become content. The caller must not change m.ToolCalls and m.Parts
// afterwards; the calls' Arguments must be canonical.
func NewMessage(m Message) *Message {
	m.Content = validText(m.Content)
	m.Reasoning = strings.TrimSpace(validText(m.Reasoning))
	m.Parts = settleParts(&m)
	if len(m.ToolCalls) == 0 {
		m.ToolCalls = nil
	}
	m.hash = sum(m.AppendCanonical)
	return &m
}

// settleParts drops parts that are text alone into the content, so that a message has one form.
func settleParts(m *Message) []Part {
	if !slices.ContainsFunc(m.Parts, func(p Part) bool { return p.Image != "" }) {
		for _, p := range m.Parts {
			m.Content += validText(p.Text)
		}
		return nil
	}
	parts := make([]Part, len(m.Parts))
	for i, p := range m.Parts {
		parts[i] = Part{validText(p.Text), validText(p.Image)}
	}
	m.Content = ""
	return parts
}

func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Hash is the 64-bit xxhash of the message's canonical bytes. It is 0 for a message not built
// with [NewMessage].
func (m *Message) Hash() uint64 { return m.hash }

// Equal reports whether two messages built with [NewMessage] say the same. Messages that
// share their memory are equal at the cost of one comparison.
func (m *Message) Equal(o *Message) bool {
	if m == o {
		return true
	}
	if m == nil || o == nil || m.hash != o.hash {
		return false
	}
	if m.Role != o.Role || m.Content != o.Content || m.Reasoning != o.Reasoning ||
		m.ToolCallID != o.ToolCallID || len(m.ToolCalls) != len(o.ToolCalls) || !slices.Equal(m.Parts, o.Parts) {
		return false
	}
	for i := range m.ToolCalls {
		if m.ToolCalls[i] != o.ToolCalls[i] {
			return false
		}
	}
	return true
}

// Size is roughly the memory the message holds, in bytes.
func (m *Message) Size() int {
	n := len(m.Content) + len(m.Reasoning) + len(m.ToolCallID) + messageOverhead
	for _, p := range m.Parts {
		n += len(p.Text) + len(p.Image) + 32
	}
	for i := range m.ToolCalls {
		c := &m.ToolCalls[i]
		n += len(c.ID) + len(c.Name) + len(c.Arguments) + 48
	}
	return n
}

// messageOverhead is the size of an empty Message with its map entries, about.
const messageOverhead = 200

// AppendCanonical appends the message as canonical JSON: the reference's message object with
// sorted keys (reference session service 2.1 rule 14 and 3.1). Content is a string, or the list
// of the parts.
func (m *Message) AppendCanonical(dst []byte) []byte {
	dst = append(dst, `{"content":`...)
	if m.Parts == nil {
		dst = AppendString(dst, m.Content)
	} else {
		dst = appendParts(dst, m.Parts)
	}
	if m.Reasoning != "" {
		dst = append(dst, `,"reasoning_content":`...)
		dst = AppendString(dst, m.Reasoning)
	}
	dst = append(dst, `,"role":`...)
	dst = AppendString(dst, string(m.Role))
	if m.ToolCallID != "" {
		dst = append(dst, `,"tool_call_id":`...)
		dst = AppendString(dst, m.ToolCallID)
	}
	if len(m.ToolCalls) > 0 {
		dst = append(dst, `,"tool_calls":[`...)
		for i := range m.ToolCalls {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = m.ToolCalls[i].appendCanonical(dst)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

func appendParts(dst []byte, parts []Part) []byte {
	dst = append(dst, '[')
	for i, p := range parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		if p.Image != "" {
			dst = append(dst, `{"image_url":{"url":`...)
			dst = AppendString(dst, p.Image)
			dst = append(dst, `},"type":"image_url"}`...)
			continue
		}
		dst = append(dst, `{"text":`...)
		dst = AppendString(dst, p.Text)
		dst = append(dst, `,"type":"text"}`...)
	}
	return append(dst, ']')
}

func (c *ToolCall) appendCanonical(dst []byte) []byte {
	dst = append(dst, `{"function":{"arguments":`...)
	dst = AppendString(dst, c.Arguments)
	if c.Name != "" {
		dst = append(dst, `,"name":`...)
		dst = AppendString(dst, c.Name)
	}
	dst = append(dst, '}')
	if c.ID != "" {
		dst = append(dst, `,"id":`...)
		dst = AppendString(dst, c.ID)
	}
	return append(dst, `,"type":"function"}`...)
}

// NewToolSpec returns a tool with its identity computed.
func NewToolSpec(name string, description *string, parameters Value) ToolSpec {
	t := ToolSpec{Name: name, Description: description, Parameters: parameters}
	t.hash = sum(t.AppendCanonical)
	return t
}

// AppendCanonical appends the tool as the reference's canonical JSON object, keys sorted.
func (t *ToolSpec) AppendCanonical(dst []byte) []byte {
	dst = append(dst, `{"function":{`...)
	if t.Description != nil {
		dst = append(dst, `"description":`...)
		dst = AppendString(dst, *t.Description)
		dst = append(dst, ',')
	}
	dst = append(dst, `"name":`...)
	dst = AppendString(dst, t.Name)
	dst = append(dst, `,"parameters":`...)
	dst = t.Parameters.AppendCanonical(dst)
	return append(dst, `},"type":"function"}`...)
}

// Value returns the tool as the object chat templates print: type, then function as the client
// wrote it, as Hugging Face prints it. A tool without such an object has the keys in OpenAI's
// order: name, description (only if given), parameters.
func (t *ToolSpec) Value() Value {
	return ObjectOf(Member{"type", StringValue("function")}, Member{"function", t.function()})
}

func (t *ToolSpec) function() Value {
	if t.Function.Kind() == Object {
		return t.Function
	}
	members := []Member{{"name", StringValue(t.Name)}}
	if t.Description != nil {
		members = append(members, Member{"description", StringValue(*t.Description)})
	}
	return ObjectOf(append(members, Member{"parameters", t.Parameters})...)
}

// Hash is the 64-bit xxhash of the tool's canonical bytes.
func (t *ToolSpec) Hash() uint64 {
	if t.hash != 0 {
		return t.hash
	}
	return sum(t.AppendCanonical)
}

// EqualTools reports whether two tool lists are the same for identity: same tools in the same
// order, key order inside schemas apart. Lists that share their memory are equal at once.
func EqualTools(a, b []ToolSpec) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if !a[i].equal(&b[i]) {
			return false
		}
	}
	return true
}

func (t *ToolSpec) equal(o *ToolSpec) bool {
	if t.Name != o.Name || t.Hash() != o.Hash() || (t.Description == nil) != (o.Description == nil) {
		return false
	}
	if t.Description != nil && *t.Description != *o.Description {
		return false
	}
	return t.Parameters.Equal(o.Parameters)
}
