package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// chatFields are the parts of a Chat request that mean something. Messages and tools are read
// while the body is walked; what is wrong with them is kept, because other fields are checked
// first.
type chatFields struct {
	body     []byte
	cache    *canon.Cache
	messages list[*canon.Message]
	tools    list[canon.ToolSpec]
	small    map[string]canon.Value
	ignored  []string
}

// chatSmall names the small fields of a Chat request.
func chatSmall(key string) bool {
	switch key {
	case "model", "chat_template_kwargs", "max_completion_tokens", "max_tokens", "stop", "seed", "logprobs", "stream":
		return true
	}
	return false
}

// read reads one member of the body.
func (f *chatFields) read(key string, at int) (end int, err error) {
	rules := ruler{param: "messages"}
	switch key {
	case "messages":
		l, end, err := rules.messages(f.body, at, f.cache)
		f.messages.replace(l)
		return end, err
	case "tools":
		l, end, err := rules.tools(f.body, at, f.cache)
		f.tools.replace(l)
		return end, err
	}
	end, err = canon.SkipValue(f.body, at)
	if err != nil {
		return 0, err
	}
	v, err := canon.ParseValue(f.body[at:end])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", canon.Shorten(key, 40), err)
	}
	if chatSmall(key) {
		f.small[key] = v
	} else if !v.IsNull() {
		f.ignored = append(f.ignored, key)
	}
	return end, nil
}

// chatDialect is OpenAI's Chat Completions (reference session service 2.6, 7.3, 7.4).
type chatDialect struct{}

func (chatDialect) Connected() string { return connected }
func (chatDialect) Heartbeat() string { return heartbeat }

// Parse implements [Dialect].
func (chatDialect) Parse(body []byte, cache *canon.Cache) (*canon.Request, *Error) {
	body = bytes.TrimPrefix(body, byteOrderMark)
	f := chatFields{body: body, cache: cache, small: make(map[string]canon.Value, 8)}
	if e := objectBody(body, f.read); e != nil {
		return nil, e
	}
	req := &canon.Request{}
	if e := f.settings(req); e != nil {
		return nil, e
	}
	if e := conversation(req, f.messages, f.tools, cache); e != nil {
		return nil, e
	}
	return req, nil
}

// settings fills everything but messages and tools, in the reference's order of checks.
func (f *chatFields) settings(req *canon.Request) *Error {
	var e *Error
	if req.Kwargs, e = kwargs(f.small["chat_template_kwargs"]); e != nil {
		return e
	}
	if req.Logprobs, e = flag("logprobs", f.small["logprobs"]); e != nil {
		return e
	}
	newer, e := turnLimit("max_completion_tokens", f.small["max_completion_tokens"])
	if e != nil {
		return e
	}
	if req.MaxTokens, e = turnLimit("max_tokens", f.small["max_tokens"]); e != nil {
		return e
	}
	if newer > 0 {
		req.MaxTokens = newer
	}
	if req.Stop, e = stopStrings("stop", f.small["stop"]); e != nil {
		return e
	}
	if req.Seed, e = seed("seed", f.small["seed"]); e != nil {
		return e
	}
	if req.Stream, e = flag("stream", f.small["stream"]); e != nil {
		return e
	}
	req.Model, f.ignored = modelName(f.small["model"], f.ignored)
	req.Ignored = sortedNames(f.ignored)
	return nil
}

// ParseRecord reads the messages, tools and template arguments of an explicit export record
// by the same rules as a Chat request; absent ones are nil. Errors begin with the place, such as
// messages[2].content. Of the request's other fields only Ignored is set: it names entries of
// tools that are no function tools.
func ParseRecord(messages, tools, templateKwargs []byte) (*canon.Request, error) {
	rules := ruler{param: "messages"}
	messageList, err := wholeList(messages, rules.messages)
	if err != nil {
		return nil, fmt.Errorf("messages: %w", err)
	}
	toolList, err := wholeList(tools, rules.tools)
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	req := &canon.Request{}
	if messageList.fault == nil && len(messageList.items) == 0 {
		return nil, errors.New("messages hold no message: write the complete conversation with the answer to train")
	}
	if e := conversation(req, messageList, toolList, nil); e != nil {
		return nil, recordError(e)
	}
	var v canon.Value
	if templateKwargs = bytes.TrimSpace(templateKwargs); len(templateKwargs) > 0 {
		if v, err = canon.ParseValue(templateKwargs); err != nil {
			return nil, fmt.Errorf("chat_template_kwargs: %w", err)
		}
	}
	var e *Error
	if req.Kwargs, e = kwargs(v); e != nil {
		return nil, recordError(e)
	}
	return req, nil
}

// wholeList reads a text that is one list, absent if empty.
func wholeList[T any](raw []byte, read func(raw []byte, at int, cache *canon.Cache) (list[T], int, error)) (list[T], error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return list[T]{}, nil
	}
	l, end, err := read(raw, 0, nil)
	if err == nil && end != len(raw) {
		err = fmt.Errorf("invalid JSON at byte %d: unexpected text after the value", end)
	}
	return l, err
}

// recordError drops the HTTP side of an error: a record is no request.
func recordError(e *Error) error { return errors.New(e.Message) }

// AppendAnswer implements [Dialect].
func (chatDialect) AppendAnswer(dst []byte, c *Completion) []byte {
	dst = appendChatHead(dst, c, "chat.completion")
	dst = append(dst, `"message":`...)
	dst = appendChatMessage(dst, c.Message, false)
	dst = append(dst, `,"logprobs":`...)
	dst = appendChatLogprobs(dst, c.Logprobs)
	return appendChatTail(dst, c)
}

// AppendStream appends one chunk with the entire message, one with the finish reason and usage,
// then [DONE]. The reference has one chunk for both; but the SDKs' accumulators look at the
// finish reason before they take the chunk's calls, and would never call the last one done.
func (chatDialect) AppendStream(dst []byte, c *Completion) []byte {
	dst = appendFrame(dst, func(dst []byte) []byte {
		dst = appendChatHead(dst, c, "chat.completion.chunk")
		dst = append(dst, `"delta":`...)
		dst = appendChatMessage(dst, c.Message, true)
		dst = append(dst, `,"logprobs":`...)
		dst = appendChatLogprobs(dst, c.Logprobs)
		return append(dst, `,"finish_reason":null}],"usage":null}`...)
	})
	dst = appendFrame(dst, func(dst []byte) []byte {
		dst = appendChatHead(dst, c, "chat.completion.chunk")
		dst = append(dst, `"delta":{},"logprobs":null`...)
		return appendChatTail(dst, c)
	})
	return append(dst, doneFrame...)
}

// AppendError implements [Dialect].
func (chatDialect) AppendError(dst []byte, e *Error) []byte { return appendOpenAIError(dst, e) }

// appendOpenAIError appends the error body of the OpenAI dialects.
func appendOpenAIError(dst []byte, e *Error) []byte {
	dst = append(dst, `{"error":`...)
	dst = appendErrorObject(dst, e)
	return append(dst, '}')
}

// AppendStreamError appends the error, then [DONE].
func (chatDialect) AppendStreamError(dst []byte, e *Error) []byte {
	dst = appendFrame(dst, func(dst []byte) []byte { return appendOpenAIError(dst, e) })
	return append(dst, doneFrame...)
}

func appendChatHead(dst []byte, c *Completion, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendText(dst, "chatcmpl_"+c.ID)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, c.Created, 10)
	dst = append(dst, `,"model":`...)
	dst = appendTextOrNull(dst, c.Model)
	return append(dst, `,"choices":[{"index":0,`...)
}

func appendChatTail(dst []byte, c *Completion) []byte {
	dst = append(dst, `,"finish_reason":`...)
	dst = appendTextOrNull(dst, c.FinishReason)
	dst = append(dst, `}],"usage":{`...)
	dst = appendInt(dst, `"prompt_tokens":`, c.PromptTokens)
	dst = appendInt(dst, `,"completion_tokens":`, c.CompletionTokens)
	dst = appendInt(dst, `,"total_tokens":`, c.PromptTokens+c.CompletionTokens)
	dst = appendInt(dst, `,"prompt_tokens_details":{"cached_tokens":`, c.CachedTokens)
	return append(dst, `}}}`...)
}

// appendChatMessage appends a message or, indexed, a stream delta, whose calls are numbered.
func appendChatMessage(dst []byte, m *canon.Message, indexed bool) []byte {
	dst = append(dst, `{"role":`...)
	dst = appendText(dst, string(m.Role))
	dst = append(dst, `,"content":`...)
	dst = appendText(dst, m.Content)
	if m.Reasoning != "" {
		dst = append(dst, `,"reasoning_content":`...)
		dst = appendText(dst, m.Reasoning)
	}
	if len(m.ToolCalls) == 0 {
		return append(dst, '}')
	}
	dst = append(dst, `,"tool_calls":[`...)
	for i := range m.ToolCalls {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		if indexed {
			dst = appendInt(dst, `"index":`, i)
			dst = append(dst, ',')
		}
		dst = appendChatCall(dst, &m.ToolCalls[i])
	}
	return append(dst, `]}`...)
}

// appendChatCall appends the members of a tool call. A call without id has none on the wire:
// an empty id would not be accepted back.
func appendChatCall(dst []byte, c *canon.ToolCall) []byte {
	if c.ID != "" {
		dst = append(dst, `"id":`...)
		dst = appendText(dst, c.ID)
		dst = append(dst, ',')
	}
	dst = append(dst, `"type":"function","function":{"name":`...)
	dst = appendText(dst, c.Name)
	dst = append(dst, `,"arguments":`...)
	dst = appendText(dst, c.Arguments)
	return append(dst, `}}`...)
}

// noLogprob stands for a probability of zero, which JSON cannot spell as a logarithm; OpenAI
// uses the same number.
const noLogprob = -9999

func appendChatLogprobs(dst []byte, logprobs []TokenLogprob) []byte {
	if logprobs == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, `{"content":[`...)
	for i, t := range logprobs {
		if i > 0 {
			dst = append(dst, ',')
		}
		text := validText(t.Token)
		dst = append(dst, `{"token":`...)
		dst = canon.AppendString(dst, text)
		dst = append(dst, `,"logprob":`...)
		value := float64(t.Logprob)
		if math.IsNaN(value) || math.IsInf(value, 0) {
			value = noLogprob
		}
		dst = strconv.AppendFloat(dst, value, 'g', -1, 32)
		dst = append(dst, `,"bytes":[`...)
		for j := 0; j < len(text); j++ {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendUint(dst, uint64(text[j]), 10)
		}
		dst = append(dst, `],"top_logprobs":[]}`...)
	}
	return append(dst, `]}`...)
}
