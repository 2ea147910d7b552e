package wire

import "github.com/relax-rollout/relax-rollout/relax/internal/canon"

type responsesDialect struct{}

func (responsesDialect) Connected() string { return connected }
func (responsesDialect) Heartbeat() string { return heartbeat }

// Parse implements [Dialect].
func (responsesDialect) Parse([]byte, *canon.Cache) (*canon.Request, *Error) {
	return nil, Invalid("body", "not yet")
}

// AppendAnswer implements [Dialect].
func (responsesDialect) AppendAnswer(dst []byte, _ *Completion) []byte { return dst }

// AppendError implements [Dialect].
func (responsesDialect) AppendError(dst []byte, e *Error) []byte { return appendOpenAIError(dst, e) }

// AppendStream implements [Dialect].
func (responsesDialect) AppendStream(dst []byte, _ *Completion) []byte { return dst }

// AppendStreamError implements [Dialect].
func (responsesDialect) AppendStreamError(dst []byte, e *Error) []byte {
	return appendOpenAIError(dst, e)
}
