package main

/*
#include <stdlib.h>
*/
import "C"

import (
	"bytes"
	"encoding/json"

	"github.com/relax-rollout/relax-rollout/relax"
)

// panicHook turns on panics on request, so that tests can prove the guard. It is read once, at
// load, from the C environment: Go's own copy is the one the process was started with, and
// lacks what the host has set since.
var panicHook = C.GoString(C.getenv(hookVariable)) == "1"

var hookVariable = C.CString("RELAX_TEST_PANIC")

// panicOnRequest panics in relax_submit for a task whose metadata has "__panic__": true, and
// dereferences nil for "__panic__": "nil", which proves that Go's SIGSEGV handler is in place.
func panicOnRequest(tasks []relax.Task) {
	if !panicHook {
		return
	}
	for _, t := range tasks {
		var metadata struct {
			Panic json.RawMessage `json:"__panic__"`
		}
		if json.Unmarshal(t.Metadata, &metadata) != nil {
			continue
		}
		switch {
		case bytes.Equal(metadata.Panic, []byte("true")):
			panic("asked for by RELAX_TEST_PANIC")
		case bytes.Equal(metadata.Panic, []byte(`"nil"`)):
			_ = *nowhere()
		}
	}
}

func nowhere() *int { return nil }
