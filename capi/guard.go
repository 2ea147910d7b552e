package main

/*
#include "internal.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/relax-rollout/relax-rollout/relax"
)

// poison is the text of the first panic, nil while there was none. A panic, in an export or in a
// goroutine of the engine, means that state of this process is not to be trusted, so every later
// call fails with that text.
var poison atomic.Pointer[string]

// run is the body of every export: it refuses a poisoned process, runs fn guarded, and turns
// its error into a status and text.
func run(call string, cerr *C.relax_error, fn func() error) (status C.relax_status) {
	defer guard(call, cerr, &status)
	if first := poison.Load(); first != nil {
		return fail(cerr, C.RELAX_ERR_PANIC, *first)
	}
	if err := fn(); err != nil {
		poisonBy(err)
		return fail(cerr, statusOf(err), err.Error())
	}
	return C.RELAX_OK
}

// poisonBy keeps the panic of an engine's goroutine that err tells of, if it does.
func poisonBy(err error) {
	if text := err.Error(); errors.Is(err, relax.ErrPanic) {
		poison.CompareAndSwap(nil, &text)
	}
}

// guard is deferred: it catches a panic of call and poisons the process.
func guard(call string, cerr *C.relax_error, status *C.relax_status) {
	v := recover()
	if v == nil {
		return
	}
	*status = fail(cerr, C.RELAX_ERR_PANIC, poisonWith(call, v, debug.Stack()))
	theHost.wake()
}

// poisonWith keeps the first panic and returns its text. The text is cut to fit relax_error, so
// the whole stack goes to file descriptor 2 once.
func poisonWith(call string, value any, stack []byte) string {
	text := fmt.Sprintf("relax: panic in %s: %v; the engine cannot go on, restart the process\n%s",
		call, value, framesBelowPanic(stack))
	if !poison.CompareAndSwap(nil, &text) {
		return *poison.Load()
	}
	fmt.Fprintf(os.Stderr, "relax: panic in %s: %v\n%s", call, value, stack)
	return text
}

// framesBelowPanic drops the frames of the recovery from a stack, so that the frame that
// panicked comes first.
func framesBelowPanic(stack []byte) []byte {
	at := bytes.LastIndex(stack, []byte("\npanic("))
	if at < 0 {
		return stack
	}
	rest := stack[at+1:]
	for range 2 { // the call and its position
		if _, after, ok := bytes.Cut(rest, []byte("\n")); ok {
			rest = after
		}
	}
	return rest
}

// endIfPoisoned ends the agents of a poisoned engine as well as that still works, and never
// takes longer than the grace: the panic may have left a lock held for ever.
func endIfPoisoned(handle uintptr, graceMS int32) {
	if poison.Load() == nil || graceMS < 0 {
		return
	}
	done := make(chan struct{})
	time.AfterFunc(0, func() {
		defer close(done)
		defer func() { _ = recover() }() // the first panic is the one that counts
		_ = theHost.closeEngine(handle, graceMS)
	})
	select {
	case <-done:
	case <-time.After(time.Duration(graceMS) * time.Millisecond):
	}
}

// fail writes text into the host's error and returns code.
func fail(cerr *C.relax_error, code C.relax_status, text string) C.relax_status {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return C.relaxc_error_set(cerr, code, (*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
}
