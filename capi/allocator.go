package main

/*
#include "internal.h"
#include "arena.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/relax-rollout/relax-rollout/relax"
)

// defaultPoolBytes is Config.ArenaPoolBytes if it is nil.
const defaultPoolBytes = 1 << 30

// arenas is the relax.Allocator over C memory of one engine. It knows every arena that is
// still Go's: not freed and not handed to the host.
type arenas struct {
	// alloc is Alloc's part in C.
	alloc func(size C.uint64_t, why *C.int) (*C.relaxc_arena, error)

	mu     sync.Mutex
	owned  map[*arena]struct{}
	closed bool
}

// An arena is one piece of C memory. Exactly one of Free, handOver and arenas.close ends Go's
// ownership; the others then do nothing.
type arena struct {
	book *arenas
	c    *C.relaxc_arena
	mem  []byte
}

// newArenas sets the process's pool bounds, in bytes, and returns an empty book.
func newArenas(cfg relax.Config) *arenas {
	pool := int64(defaultPoolBytes)
	if cfg.ArenaPoolBytes != nil {
		pool = *cfg.ArenaPoolBytes
	}
	C.relaxc_arena_configure(C.uint64_t(max(pool, 0)), C.uint64_t(max(cfg.ArenaLimitBytes, 0)))
	return &arenas{alloc: allocIn(cfg), owned: map[*arena]struct{}{}}
}

// allocIn chooses the kind of memory. What it returns has a system error where C said
// RELAXC_ARENA_SYSTEM.
func allocIn(cfg relax.Config) func(size C.uint64_t, why *C.int) (*C.relaxc_arena, error) {
	if cfg.ArenaShared {
		return func(size C.uint64_t, why *C.int) (*C.relaxc_arena, error) {
			c, err := C.relaxc_arena_new_shared(size, why)
			return c, err
		}
	}
	return func(size C.uint64_t, why *C.int) (*C.relaxc_arena, error) {
		c, err := C.relaxc_arena_new(size, why)
		return c, err
	}
}

// Alloc returns an arena of at least size bytes, 64-byte aligned, with bytes of an earlier use or
// zeros.
func (b *arenas) Alloc(size int) (relax.Arena, error) {
	if size < 0 {
		return nil, fmt.Errorf("relax: arena of %d bytes: %w", size, relax.ErrInvalid)
	}
	var why C.int
	c, cause := b.alloc(C.uint64_t(size), &why)
	if c == nil {
		return nil, noArena(size, why, cause)
	}
	a := &arena{book: b, c: c, mem: unsafe.Slice((*byte)(C.relaxc_arena_base(c)), size)}
	if !b.add(a) {
		C.relaxc_arena_free(c)
		return nil, relax.ErrClosed
	}
	return a, nil
}

// noArena says why C gave no arena; only the system's refusal has a cause.
func noArena(size int, why C.int, cause error) error {
	err := &memoryError{what: "a batch", size: size}
	switch why {
	case C.RELAXC_ARENA_LIMIT:
		err.reason = atLimit
	case C.RELAXC_ARENA_TOO_LARGE:
		err.reason = tooLarge
	default:
		err.cause = cause
	}
	return err
}

func (b *arenas) add(a *arena) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.owned[a] = struct{}{}
	return true
}

// take ends Go's ownership and reports whether it was still there.
func (b *arenas) take(a *arena) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.owned[a]; !ok {
		return false
	}
	delete(b.owned, a)
	return true
}

// close frees the arenas of batches nobody polled. The engine must have ended: nothing may
// write to them any more.
func (b *arenas) close() {
	b.mu.Lock()
	left := b.owned
	b.owned, b.closed = nil, true
	b.mu.Unlock()
	for a := range left {
		C.relaxc_arena_free(a.c)
	}
}

// Bytes is the memory.
func (a *arena) Bytes() []byte { return a.mem }

// Free gives the memory back, unless the host owns it.
func (a *arena) Free() {
	if a.book.take(a) {
		C.relaxc_arena_free(a.c)
	}
}

// memory is what batches use in this process.
type memory struct {
	LiveBatches   int64   `json:"live_batches"`
	LiveBytes     uint64  `json:"live_bytes"`
	OldestSeconds float64 `json:"oldest_batch_seconds"`
	MappedBytes   uint64  `json:"mapped_bytes"`
	IdleBytes     uint64  `json:"idle_bytes"`
}
