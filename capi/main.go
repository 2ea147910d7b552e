// Command capi is the shared library librelax_rollout.so: include/relax_rollout.h on top of
// package relax.
//
// What may enter: calls of the C ABI. What it never does: rollout logic, call back into the
// host, import os/signal, or hand out Go memory.
//
// The way of a call: shim.c refuses forked children and broken pointers, the export of the
// same name runs guarded against panics (guard.go), host.go finds the engine behind the handle.
// Memory of batches is C memory with a C reference count (arena.c, batch.c); releasing it
// never enters Go.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../include -D_GNU_SOURCE -std=gnu11 -Wall
#cgo LDFLAGS: -ldl -lpthread
#include "internal.h"
#include <stdlib.h>
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/relax-rollout/relax-rollout/relax"
)

// version is set by the linker: -X main.version=1.2.3.
var version = "dev"

// theHost is the process's one engine, or the lack of it.
var theHost = newHost(func(cfg relax.Config, alloc relax.Allocator) (engine, error) {
	return relax.Open(cfg, relax.WithAllocator(alloc), relax.WithEnviron(hostEnviron()))
})

// init runs last of all init functions of the library, after the runtime installed its signal
// handlers.
func init() {
	debug.SetTraceback("all")
	C.relaxc_signals_save()
	C.relaxc_loaded_set(C.CString(buildInfo()))
}

// buildInfo is the JSON object of relax_build_info.
func buildInfo() string {
	text, err := json.Marshal(struct {
		Version string `json:"version"`
		Go      string `json:"go"`
		ABI     string `json:"abi"`
	}{version, runtime.Version(), fmt.Sprintf("%d.%d", C.RELAX_ABI_VERSION, C.RELAX_ABI_MINOR)})
	if err != nil {
		panic(err) // three strings always marshal
	}
	return string(text)
}

func main() {}
