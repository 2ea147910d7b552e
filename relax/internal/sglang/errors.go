package sglang

import (
	"errors"
	"fmt"
	"strings"

	"github.com/bytedance/sonic"
)

// ErrClosed ends calls of a client that was closed.
var ErrClosed = errors.New("sglang: client is closed")

// A ProbeError says why the backend cannot be used.
type ProbeError struct {
	// URL is the value of option sglang_url.
	URL string
	// Problem says what was found and what was expected.
	Problem string
	// Err is the cause, if there is one.
	Err error
}

func (e *ProbeError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("option sglang_url: %q %s: %v", e.URL, e.Problem, e.Err)
	}
	return fmt.Sprintf("option sglang_url: %q %s", e.URL, e.Problem)
}

func (e *ProbeError) Unwrap() error { return e.Err }

// A ContextLengthError: the prompt, or prompt and max_new_tokens, do not fit the model. It is
// never retried.
type ContextLengthError struct {
	RID, Worker string
	// Message is the server's text.
	Message string
}

func (e *ContextLengthError) Error() string {
	return fmt.Sprintf("request %s at %s: context length exceeded: %s", e.RID, e.Worker, e.Message)
}

// A StatusError: the backend answered with an HTTP error, or with a finish that stands for one.
type StatusError struct {
	RID, Worker string
	// Status is the HTTP status.
	Status int
	// Message is the server's text, shortened.
	Message string
	// Code is a router's own reason, such as "no_available_workers", or "".
	Code string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("request %s: %s answered %d: %s", e.RID, e.Worker, e.Status, e.Message)
}

// A ReplyError: the backend answered 200 with something that cannot be trusted: no JSON of
// the expected shape, counts that differ, NaN. The attempt's tokens are dropped.
type ReplyError struct {
	RID, Worker string
	// Problem says what was found and what was expected.
	Problem string
}

func (e *ReplyError) Error() string {
	return fmt.Sprintf("request %s: unusable reply from %s: %s", e.RID, e.Worker, e.Problem)
}

// A TransportError: the connection failed.
type TransportError struct {
	RID, Worker string
	// Sent is true when the whole request had left, so that the backend may have accepted it.
	Sent bool
	// Err is the cause.
	Err error
}

func (e *TransportError) Error() string {
	when := "before the request was sent"
	if e.Sent {
		when = "after the request was sent, so that it may have been accepted"
	}
	return fmt.Sprintf("request %s: connection to %s failed %s: %v", e.RID, e.Worker, when, e.Err)
}

func (e *TransportError) Unwrap() error { return e.Err }

// contextTexts are parts of the messages with which SGLang versions refuse a prompt for its length.
var contextTexts = []string{
	"context length",
	"too long after expanding",
	"maximum allowed length",
}

// statusFailure maps an HTTP error, or an abort that carries a status, to its error.
func statusFailure(rid, worker string, status int, message string) error {
	if status == 400 {
		low := strings.ToLower(message)
		for _, text := range contextTexts {
			if strings.Contains(low, text) {
				return &ContextLengthError{RID: rid, Worker: worker, Message: shorten(message)}
			}
		}
	}
	return &StatusError{RID: rid, Worker: worker, Status: status, Message: shorten(message)}
}

// errorMessage finds the text in an error body; SGLang, its router and proxies use several shapes.
func errorMessage(body []byte) string {
	var shape struct {
		Message any `json:"message"`
		Detail  any `json:"detail"`
		Error   any `json:"error"`
	}
	if sonic.Unmarshal(body, &shape) == nil {
		if object, ok := shape.Error.(map[string]any); ok {
			shape.Error = object["message"]
		}
		for _, v := range []any{shape.Error, shape.Message, shape.Detail} {
			if text, ok := v.(string); ok && text != "" {
				return text
			}
		}
	}
	if text := strings.TrimSpace(string(body)); text != "" {
		return text
	}
	return "empty body"
}

// shorten bounds foreign text in messages.
func shorten(s string) string {
	const limit = 512
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
