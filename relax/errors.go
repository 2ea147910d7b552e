package relax

import (
	"errors"
	"fmt"
)

// Errors a caller can test for with errors.Is.
var (
	// ErrClosed: the engine was closed.
	ErrClosed = errors.New("relax: engine is closed")
	// ErrState: the call does not fit the engine's state.
	ErrState = errors.New("relax: call does not fit the engine's state")
	// ErrInvalid: an argument is wrong; an [*OptionError] says which option.
	ErrInvalid = errors.New("relax: invalid argument")
	// ErrBackend: the backend cannot be reached or does not answer as SGLang does.
	ErrBackend = errors.New("relax: backend")
	// ErrNoMemory: the allocator has no memory for a batch now; releasing batches helps.
	ErrNoMemory = errors.New("relax: no memory for a batch")
	// ErrPanic: a goroutine of the engine panicked, so its state is not to be trusted; every
	// later call returns this with the first stack.
	ErrPanic = errors.New("relax: engine is poisoned by a panic")
)

// An OptionError says which option is wrong, why, and what to do.
type OptionError struct {
	// Option is the option's name as in the configuration.
	Option string
	// Problem says what was found and what was expected.
	Problem string
	// Err is the cause, if there is one.
	Err error
}

func (e *OptionError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("option %s: %s: %v", e.Option, e.Problem, e.Err)
	}
	return fmt.Sprintf("option %s: %s", e.Option, e.Problem)
}

// Is makes every OptionError an ErrInvalid.
func (e *OptionError) Is(target error) bool { return target == ErrInvalid }

func (e *OptionError) Unwrap() error { return e.Err }
