// Package canon holds the canonical conversation: what a model request says once the
// dialect it came in is forgotten. Ordered JSON values, messages, tools, template
// arguments, and the identity of a conversation state live here.
//
// What may enter: JSON values and plain text. What it never does: I/O, HTTP shapes,
// token ids, clocks.
package canon

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
	// spaces, integral floats as ints (reference session service 2.3).
	Arguments string
}

// A Message is one canonical message. It is immutable once built with [NewMessage] and may
// be shared by any number of requests, states and goroutines.
type Message struct {
	Role Role
	// Content is the message's text. Text-only content lists collapse to one string.
	Content string
	// Reasoning is the assistant's reasoning_content, "" if none.
	Reasoning string
	// ToolCalls are the assistant's calls, in order.
	ToolCalls []ToolCall
	// ToolCallID names the call a tool message answers, "" if not given.
	ToolCallID string

	hash uint64
}

// A ToolSpec is one function tool offered to the model.
type ToolSpec struct {
	Name        string
	Description *string
	// Parameters is the JSON schema with the client's key order, which templates print.
	Parameters Value
}

// A Request is a complete-history model request after its dialect was read.
type Request struct {
	// Model is only echoed; it selects nothing.
	Model    string
	Messages []*Message
	Tools    []ToolSpec
	// Kwargs are the chat_template_kwargs, an object (never the zero Value).
	Kwargs Value
	// MaxTokens is the turn limit, 0 when the client gave none.
	MaxTokens int
	Stop      []string
	Seed      *int64
	Logprobs  bool
	Stream    bool
	// Ignored names the request's fields that do not alter generation, sorted.
	Ignored []string
}
