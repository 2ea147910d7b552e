// Package wire speaks the HTTP dialects: bytes of a request body to a canonical request, and
// a completion to the bytes of an answer, an SSE stream or an error. One file a dialect; the
// rules all of them share are in rules.go.
//
// What may enter: request bodies, completions, a message cache. What it never does: HTTP
// itself, token ids, decide what a conversation continues.
package wire

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A TokenLogprob is one generated token of an answer that was asked for logprobs.
type TokenLogprob struct {
	// Token is the token's text.
	Token string
	// Logprob is its natural log probability.
	Logprob float32
}

// Finish reasons of a [Completion].
const (
	FinishStop      = "stop"
	FinishLength    = "length"
	FinishToolCalls = "tool_calls"
)

// A Completion is one finished turn, to be spelled in the client's dialect.
type Completion struct {
	// ID is the answer's id without the prefix that dialects give it, such as chatcmpl_.
	ID string
	// Created is the Unix time in seconds.
	Created int64
	// Model is echoed from the request.
	Model   string
	Message *canon.Message
	// FinishReason is one of the Finish constants; each dialect maps it.
	FinishReason string
	// StopSequence is the request's stop string that ended the turn, "" if none did.
	StopSequence string
	// Spelling is that of the request.
	Spelling any
	// PromptTokens, CompletionTokens and CachedTokens count the turn's tokens; cached ones are
	// part of the prompt.
	PromptTokens, CompletionTokens, CachedTokens int
	// Logprobs is nil unless the request asked for them.
	Logprobs []TokenLogprob
	// Divergence says why the turn does not continue the Session's newest one, "" if it does.
	Divergence string
}

// A Dialect is one HTTP protocol. Dialects hold no state.
type Dialect interface {
	// Parse reads a request body. Messages and tools go through cache, which may be nil. Nothing
	// of the result lies in body.
	Parse(body []byte, cache *canon.Cache) (*canon.Request, *Error)
	// AppendAnswer appends the JSON answer.
	AppendAnswer(dst []byte, c *Completion) []byte
	// AppendError appends the JSON body of an error.
	AppendError(dst []byte, e *Error) []byte
	// Connected is the first frame of a stream, Heartbeat keeps it open while a turn is generated.
	Connected() string
	Heartbeat() string
	// AppendStream appends the frames that end a stream well, AppendStreamError those that end it
	// with an error.
	AppendStream(dst []byte, c *Completion) []byte
	AppendStreamError(dst []byte, e *Error) []byte
}

// The dialects.
var (
	Chat      Dialect = chatDialect{}
	Responses Dialect = responsesDialect{}
	Messages  Dialect = messagesDialect{}
)

// validText returns s with U+FFFD for each run of bytes that is not UTF-8.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// objectBody checks that a body without byte order mark is a JSON object by its first byte and
// walks its members with fn, see [canon.WalkMembers]. Errors are about the body.
func objectBody(body []byte, fn func(key string, at int) (end int, err error)) *Error {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 {
		return Invalid("body", "the request body is empty; expected a JSON object")
	}
	if trimmed[0] != '{' {
		v, err := canon.ParseValue(body)
		if err != nil {
			return Invalid("body", "the request body is not JSON: %v", err)
		}
		return Invalid("body", "the request body must be a JSON object, not %s", v.TypeName())
	}
	err := canon.WalkMembers(body, fn)
	if err == nil {
		return nil
	}
	return asError(err, "body")
}

// asError returns the *Error inside err, or a 400 about param.
func asError(err error, param string) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Invalid(param, "%v", err)
}

// SSE frames all streams begin and wait with.
const (
	// connected is the first frame of Chat and Responses streams.
	connected = ": connected\n\n"
	// heartbeat keeps Chat and Responses streams open while a turn is generated.
	heartbeat = ": heartbeat\n\n"
	// doneFrame ends a Chat stream.
	doneFrame = "data: [DONE]\n\n"
)

// appendFrame appends one SSE data frame whose data fill writes. Characters some clients take
// for line ends although SSE does not are escaped: the JSON stays the same.
func appendFrame(dst []byte, fill func(dst []byte) []byte) []byte {
	dst = append(dst, "data: "...)
	start := len(dst)
	dst = fill(dst)
	if data := dst[start:]; hasLooseLineEnd(data) {
		dst = append(dst[:start], looseLineEnds.Replace(string(data))...)
	}
	return append(dst, "\n\n"...)
}

var looseLineEnds = strings.NewReplacer("\u0085", `\u0085`, "\u2028", `\u2028`, "\u2029", `\u2029`)

func hasLooseLineEnd(data []byte) bool {
	return bytes.Contains(data, []byte("\u0085")) || bytes.Contains(data, []byte("\u2028")) ||
		bytes.Contains(data, []byte("\u2029"))
}
