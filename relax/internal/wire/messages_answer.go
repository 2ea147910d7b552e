package wire

import (
	"fmt"
	"net/http"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// ping opens a Messages stream and keeps it open: a comment would not count as life to some
// Anthropic clients.
const ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"

func (messagesDialect) Connected() string { return ping }
func (messagesDialect) Heartbeat() string { return ping }

// AppendAnswer implements [Dialect].
func (messagesDialect) AppendAnswer(dst []byte, c *Completion) []byte {
	dst = appendMessageHead(dst, c)
	dst = append(dst, `"content":[`...)
	for i, b := range messageBlocks(c.Message) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = b.appendWhole(dst)
	}
	dst = append(dst, `],`...)
	dst = appendStop(dst, c)
	return appendMessageTail(dst, c, c.CompletionTokens)
}

// AppendStream appends the events from message_start to message_stop. Each block comes in one
// delta, thinking in two.
func (messagesDialect) AppendStream(dst []byte, c *Completion) []byte {
	dst = appendEvent(dst, "message_start", func(dst []byte) []byte {
		dst = append(dst, `,"message":`...)
		dst = appendMessageHead(dst, c)
		dst = append(dst, `"content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,`...)
		return appendMessageTail(dst, c, 0)
	})
	for i, b := range messageBlocks(c.Message) {
		dst = appendBlockEvents(dst, i, b)
	}
	dst = appendEvent(dst, "message_delta", func(dst []byte) []byte {
		dst = append(dst, `,"delta":{`...)
		dst = appendStop(dst, c)
		dst = append(dst, `"container":null},"usage":`...)
		return appendMessageUsage(dst, c, c.CompletionTokens)
	})
	return appendEvent(dst, "message_stop", func(dst []byte) []byte { return dst })
}

// appendEvent appends one event with its type; fill appends the other members of its object,
// each behind a comma.
func appendEvent(dst []byte, name string, fill func(dst []byte) []byte) []byte {
	dst = append(dst, "event: "...)
	dst = append(dst, name...)
	dst = append(dst, '\n')
	return appendFrame(dst, func(dst []byte) []byte {
		dst = append(dst, `{"type":"`...)
		dst = append(dst, name...)
		dst = append(dst, '"')
		dst = fill(dst)
		return append(dst, '}')
	})
}

// A messageBlock is one content block of an answer: thinking, text, or the call of a tool.
type messageBlock struct {
	thinking, signature string
	text                string
	call                *canon.ToolCall
}

// messageBlocks are the blocks of a message in Anthropic's order. An empty message has none.
func messageBlocks(m *canon.Message) []messageBlock {
	blocks := make([]messageBlock, 0, 2+len(m.ToolCalls))
	if m.Reasoning != "" {
		// Clients refuse a block without signature; ours only has to be the same each time.
		blocks = append(blocks, messageBlock{thinking: m.Reasoning, signature: fmt.Sprintf("sig_%016x", m.Hash())})
	}
	if m.Content != "" {
		blocks = append(blocks, messageBlock{text: m.Content})
	}
	for i := range m.ToolCalls {
		blocks = append(blocks, messageBlock{call: &m.ToolCalls[i]})
	}
	return blocks
}

func (b *messageBlock) appendWhole(dst []byte) []byte {
	switch {
	case b.call != nil:
		return b.appendCall(dst, b.call.Arguments)
	case b.thinking != "":
		return appendThinking(dst, b.thinking, b.signature)
	default:
		return appendTextBlock(dst, b.text)
	}
}

// appendCall appends a tool_use block whose input is the JSON text of an object.
func (b *messageBlock) appendCall(dst []byte, input string) []byte {
	dst = append(dst, `{"type":"tool_use","id":`...)
	dst = appendText(dst, b.call.ID)
	dst = append(dst, `,"name":`...)
	dst = appendText(dst, b.call.Name)
	dst = append(dst, `,"input":`...)
	dst = append(dst, input...)
	return append(dst, '}')
}

func appendThinking(dst []byte, thinking, signature string) []byte {
	dst = append(dst, `{"type":"thinking","thinking":`...)
	dst = appendText(dst, thinking)
	dst = append(dst, `,"signature":`...)
	dst = appendText(dst, signature)
	return append(dst, '}')
}

func appendTextBlock(dst []byte, text string) []byte {
	dst = append(dst, `{"type":"text","text":`...)
	dst = appendText(dst, text)
	return append(dst, '}')
}

// appendBlockEvents appends the start, the deltas and the stop of block i.
func appendBlockEvents(dst []byte, i int, b messageBlock) []byte {
	dst = appendEvent(dst, "content_block_start", func(dst []byte) []byte {
		dst = appendInt(dst, `,"index":`, i)
		dst = append(dst, `,"content_block":`...)
		switch {
		case b.call != nil:
			return b.appendCall(dst, "{}")
		case b.thinking != "":
			return appendThinking(dst, "", "")
		default:
			return appendTextBlock(dst, "")
		}
	})
	switch {
	case b.call != nil:
		dst = appendDelta(dst, i, "input_json_delta", "partial_json", b.call.Arguments)
	case b.thinking != "":
		dst = appendDelta(dst, i, "thinking_delta", "thinking", b.thinking)
		dst = appendDelta(dst, i, "signature_delta", "signature", b.signature)
	default:
		dst = appendDelta(dst, i, "text_delta", "text", b.text)
	}
	return appendEvent(dst, "content_block_stop", func(dst []byte) []byte { return appendInt(dst, `,"index":`, i) })
}

func appendDelta(dst []byte, i int, kind, key, text string) []byte {
	return appendEvent(dst, "content_block_delta", func(dst []byte) []byte {
		dst = appendInt(dst, `,"index":`, i)
		dst = append(dst, `,"delta":{"type":"`...)
		dst = append(dst, kind...)
		dst = append(dst, `","`...)
		dst = append(dst, key...)
		dst = append(dst, `":`...)
		dst = appendText(dst, text)
		return append(dst, '}')
	})
}

func appendMessageHead(dst []byte, c *Completion) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendText(dst, "msg_"+c.ID)
	dst = append(dst, `,"type":"message","role":"assistant","model":`...)
	// The SDKs want a string here, so a request without model is told "".
	dst = appendText(dst, c.Model)
	return append(dst, ',')
}

// appendStop appends the members that say why the turn ended. A turn with calls ends for them
// whatever stop string ended the text.
func appendStop(dst []byte, c *Completion) []byte {
	reason, sequence := "end_turn", ""
	switch {
	case c.FinishReason == FinishLength:
		reason = "max_tokens"
	case c.FinishReason == FinishToolCalls:
		reason = "tool_use"
	case c.StopSequence != "":
		reason, sequence = "stop_sequence", c.StopSequence
	}
	dst = append(dst, `"stop_reason":"`...)
	dst = append(dst, reason...)
	dst = append(dst, `","stop_sequence":`...)
	dst = appendTextOrNull(dst, sequence)
	return append(dst, `,"stop_details":null,`...)
}

func appendMessageTail(dst []byte, c *Completion, outputTokens int) []byte {
	dst = append(dst, `"container":null,"usage":`...)
	dst = appendMessageUsage(dst, c, outputTokens)
	return append(dst, '}')
}

// appendMessageUsage appends the token counts. Anthropic's input_tokens are those that were not
// cached: clients add the three kinds up to know how full the context is.
func appendMessageUsage(dst []byte, c *Completion, outputTokens int) []byte {
	dst = appendInt(dst, `{"input_tokens":`, c.PromptTokens-c.CachedTokens)
	dst = append(dst, `,"cache_creation_input_tokens":0`...)
	dst = appendInt(dst, `,"cache_read_input_tokens":`, c.CachedTokens)
	dst = appendInt(dst, `,"output_tokens":`, outputTokens)
	return append(dst, '}')
}

// AppendError implements [Dialect].
func (messagesDialect) AppendError(dst []byte, e *Error) []byte {
	dst = append(dst, `{"type":"error",`...)
	dst = appendMessagesError(dst, e)
	return append(dst, '}')
}

// AppendStreamError appends one error event; nothing comes after it.
func (messagesDialect) AppendStreamError(dst []byte, e *Error) []byte {
	return appendEvent(dst, "error", func(dst []byte) []byte {
		dst = append(dst, ',')
		return appendMessagesError(dst, e)
	})
}

func appendMessagesError(dst []byte, e *Error) []byte {
	message := e.Message
	if e.Code == CodeContextLength {
		// The words by which Claude Code knows that it must compact its history.
		message = "prompt is too long: " + message
	}
	dst = append(dst, `"error":{"type":"`...)
	dst = append(dst, messagesErrorType(e.Status)...)
	dst = append(dst, `","message":`...)
	dst = appendText(dst, message)
	if e.Details != "" {
		dst = append(dst, `,"details":`...)
		dst = append(dst, e.Details...)
	}
	return append(dst, `},"request_id":null`...)
}

// statusOverloaded is Anthropic's own status for a server that is too busy.
const statusOverloaded = 529

// messagesErrorType is Anthropic's error type of an HTTP status.
func messagesErrorType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return typeAuth
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return typeNotFound
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, statusOverloaded:
		return "overloaded_error"
	}
	if status >= http.StatusInternalServerError {
		return "api_error"
	}
	return typeInvalid
}
