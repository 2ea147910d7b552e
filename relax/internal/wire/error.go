package wire

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// An Error is what a client is told when its request fails, in any dialect (reference session
// service 1.5). Build it with the functions below; the dialect's Append function spells it.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Type and Code are the error's class and name as the OpenAI dialects show them.
	Type, Code string
	// Param is the request field at fault, "" (null on the wire) if there is none.
	Param   string
	Message string
	// Details is a JSON object with more, for dialects whose errors have one; "" for none.
	Details string
	// Retry is the x-should-retry header's value, nil when the header is not sent.
	Retry *bool
}

func (e *Error) Error() string {
	if e.Param == "" {
		return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Message)
	}
	return fmt.Sprintf("%d %s (%s): %s", e.Status, e.Code, e.Param, e.Message)
}

// Error types and codes.
const (
	typeInvalid  = "invalid_request_error"
	typeAuth     = "authentication_error"
	typeNotFound = "not_found_error"
	typeInternal = "internal_error"

	// CodeContextLength marks a conversation that does not fit the model.
	CodeContextLength = "context_length_exceeded"
	// CodeSessionDiscarded marks a Session that is unknown or over.
	CodeSessionDiscarded = "session_discarded"
)

// noRetry is the value of Retry where a second try cannot help.
func noRetry() *bool { return new(bool) }

// Invalid is a 400 for a request that breaks the contract. param names the top-level field.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: typeInvalid, Param: param,
		Message: fmt.Sprintf(format, args...)}
}

// ContextLength is the 400 for a conversation of got tokens that leaves no room for a turn in
// a context of limit tokens. Harnesses look for the words "maximum context length is".
func ContextLength(limit, got int) *Error {
	return &Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: CodeContextLength, Param: "messages",
		Message: fmt.Sprintf("This model's maximum context length is %d tokens, the conversation has %d. "+
			"Shorten the messages.", limit, got)}
}

// Unauthorized is the 401 for a missing or malformed credential.
func Unauthorized(message string) *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeAuth, Code: typeAuth, Message: message}
}

// SessionDiscarded is the 404 for a Session that is unknown or over. The text does not repeat
// the id, which is a credential.
func SessionDiscarded() *Error {
	return &Error{Status: http.StatusNotFound, Type: typeNotFound, Code: CodeSessionDiscarded,
		Param: "session_id", Retry: noRetry(),
		Message: "the session is unknown or was discarded: its run has ended and takes no more requests"}
}

// BodyTooLarge is the 413 for a body over limit bytes.
func BodyTooLarge(limit int) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "body_too_large", Param: "body",
		Retry:   noRetry(),
		Message: fmt.Sprintf("the request body is larger than the limit of %d bytes", limit)}
}

// Disconnected is the 499 record of a client that went away. Nobody reads it but logs.
func Disconnected() *Error {
	const name = "client_disconnect"
	return &Error{Status: 499, Type: name, Code: name, Message: "the client disconnected before completion"}
}

// Unavailable is a 503 the client may try again.
func Unavailable(code, message string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable_error", Code: code, Message: message}
}

// Internal is the 500 for everything unexpected. The client SDK must not try again: a turn
// may have been sampled.
func Internal(message string) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: typeInternal, Code: typeInternal,
		Message: message, Retry: noRetry()}
}

// appendErrorObject appends the four-field error object of the OpenAI dialects.
func appendErrorObject(dst []byte, e *Error) []byte {
	dst = append(dst, `{"message":`...)
	dst = appendText(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendText(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendTextOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendTextOrNull(dst, e.Code)
	return append(dst, '}')
}

// appendTextOrNull appends s as a JSON string, null if it is empty.
func appendTextOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendText(dst, s)
}

// appendInt appends a key that is ready to use and an int.
func appendInt(dst []byte, key string, n int) []byte {
	dst = append(dst, key...)
	return strconv.AppendInt(dst, int64(n), 10)
}

// appendText appends s as a JSON string; bytes that are not UTF-8 become U+FFFD.
func appendText(dst []byte, s string) []byte { return canon.AppendString(dst, validText(s)) }
