package wire

import "github.com/relax-rollout/relax-rollout/relax/internal/canon"

type messagesDialect struct{}

func (messagesDialect) Connected() string { return connected }
func (messagesDialect) Heartbeat() string { return heartbeat }

// Parse implements [Dialect].
func (messagesDialect) Parse([]byte, *canon.Cache) (*canon.Request, *Error) {
	return nil, Invalid("body", "not yet")
}

// AppendAnswer implements [Dialect].
func (messagesDialect) AppendAnswer(dst []byte, _ *Completion) []byte { return dst }

// AppendError implements [Dialect].
func (messagesDialect) AppendError(dst []byte, e *Error) []byte { return appendOpenAIError(dst, e) }

// AppendStream implements [Dialect].
func (messagesDialect) AppendStream(dst []byte, _ *Completion) []byte { return dst }

// AppendStreamError implements [Dialect].
func (messagesDialect) AppendStreamError(dst []byte, e *Error) []byte {
	return appendOpenAIError(dst, e)
}
