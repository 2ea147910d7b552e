package main

/*
#include "internal.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"

	"github.com/relax-rollout/relax-rollout/relax"
)

// errAlready: an engine is already open in this process.
var errAlready = errors.New("relax: an engine is already open in this process; close it first")

// A memoryError says that memory for the host could not be had.
type memoryError struct {
	what   string
	size   int
	reason memoryReason
	cause  error // the system's, if it gave one
}

// memoryReason is why there was no memory.
type memoryReason uint8

const (
	refused  memoryReason = iota // by the system
	atLimit                      // arena_limit_bytes is reached for now
	tooLarge                     // arena_limit_bytes can never hold it
)

func (e *memoryError) Error() string {
	switch e.reason {
	case atLimit:
		return fmt.Sprintf("relax: %s of %d bytes would exceed option arena_limit_bytes; "+
			"release batches, raise it, or lower rollout_batch_size", e.what, e.size)
	case tooLarge:
		return fmt.Sprintf("relax: %s of %d bytes, taken as the next power of two from 1 MiB, is more than option "+
			"arena_limit_bytes allows in all; raise it, or lower rollout_batch_size", e.what, e.size)
	}
	text := fmt.Sprintf("relax: no memory for %s of %d bytes", e.what, e.size)
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Is tells the engine whether waiting until the host releases a batch can help.
func (e *memoryError) Is(target error) bool {
	return target == relax.ErrNoMemory && e.reason != tooLarge
}

func (e *memoryError) Unwrap() error { return e.cause }

// errStillEnding: its close ran out of time.
var errStillEnding = errors.New("relax: the engine before it is still ending in this process (agents have " +
	"their agent_kill_grace); try again, or wait with relax_close")

// statuses maps errors to the contract, first match first. A deadline is last among the
// engine's own errors, because those may wrap one.
var statuses = []struct {
	err    error
	status C.relax_status
}{
	{relax.ErrPanic, C.RELAX_ERR_PANIC},
	{relax.ErrClosed, C.RELAX_CLOSED},
	{errAlready, C.RELAX_ERR_ALREADY},
	{errStillEnding, C.RELAX_ERR_ALREADY},
	{relax.ErrState, C.RELAX_ERR_STATE},
	{relax.ErrInvalid, C.RELAX_ERR_INVALID},
	{relax.ErrBackend, C.RELAX_ERR_BACKEND},
	{context.DeadlineExceeded, C.RELAX_TIMEOUT},
}

// statusOf is the status of an error; one that nothing else claims is the system's.
func statusOf(err error) C.relax_status {
	var noMemory *memoryError
	if errors.As(err, &noMemory) {
		return C.RELAX_ERR_NOMEM
	}
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return s.status
		}
	}
	return C.RELAX_ERR_IO
}
