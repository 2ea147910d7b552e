package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/relax-rollout/relax-rollout/relax"
)

func alloc(t *testing.T, book *arenas, size int) *arena {
	t.Helper()
	a, err := book.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	return a.(*arena)
}

func TestHandOver(t *testing.T) {
	book := newArenas(relax.Config{})
	a := alloc(t, book, 80)
	copy(a.Bytes(), []byte{1, 0, 0, 0, 2})
	b, err := handOverIn(a, &relax.Batch{ID: 4, RolloutID: 5, Seqs: 1, Tokens: 2, Segments: 3,
		Columns: []relax.Column{
			{Name: "tokens", Code: 0, Bits: 32, Domain: 0, Offset: 0, Len: 2},
			{Name: "loss_mask", Code: 1, Bits: 8, Domain: 0, Offset: 64, Len: 2},
		}})
	if err != nil {
		t.Fatal(err)
	}
	if b.batch_id != 4 || b.rollout_id != 5 || b.n_seqs != 1 || b.n_tokens != 2 || b.n_segments != 3 ||
		b.nbytes != 80 || b.n_columns != 2 || b.fd != -1 {
		t.Errorf("header: %+v", b)
	}
	mask := unsafe.Slice(b.columns, 2)[1]
	if mask.len != 2 || mask.byte_offset != 64 || mask.dl_code != 1 || mask.dl_bits != 8 ||
		mask.data != unsafe.Pointer(&a.mem[64]) {
		t.Errorf("column: %+v", mask)
	}
	a.Free() // C owns it: nothing happens
	book.close()
	if got := memoryInUse(); got.LiveBatches != 1 || got.LiveBytes != 80 {
		t.Errorf("after Free and close: %+v", got)
	}
	if tokens := unsafe.Slice((*int32)(b.base), 2); tokens[1] != 2 {
		t.Errorf("tokens: %v", tokens)
	}
	release(b)
	if got := memoryInUse(); got.LiveBatches != 0 || got.OldestSeconds != 0 {
		t.Errorf("after release: %+v", got)
	}
}

func TestUnpolledArenasAreFreed(t *testing.T) {
	before := memoryInUse()
	book := newArenas(relax.Config{})
	a := alloc(t, book, 3<<20)
	if busy := busyBytes() - (before.MappedBytes - before.IdleBytes); busy != 4<<20 {
		t.Fatalf("%d bytes in use", busy)
	}
	book.close()
	if busy := busyBytes() - (before.MappedBytes - before.IdleBytes); busy != 0 {
		t.Errorf("%d bytes in use after close", busy)
	}
	a.Free() // late: nothing happens
	if _, err := book.Alloc(1); !errors.Is(err, relax.ErrClosed) {
		t.Errorf("Alloc after close: %v, want ErrClosed", err)
	}
	if _, err := handOverIn(a, &relax.Batch{}); !errors.Is(err, relax.ErrClosed) {
		t.Errorf("handOver after close: %v, want ErrClosed", err)
	}
}

func busyBytes() uint64 {
	use := memoryInUse()
	return use.MappedBytes - use.IdleBytes
}

func TestLimit(t *testing.T) {
	book := newArenas(relax.Config{ArenaLimitBytes: 1 << 20})
	a := alloc(t, book, 10)
	_, err := book.Alloc(10)
	if !errors.Is(err, relax.ErrNoMemory) || !strings.Contains(err.Error(), "would exceed option arena_limit_bytes") {
		t.Errorf("Alloc at the limit: %v; the engine waits for ErrNoMemory only", err)
	}
	_, err = book.Alloc(1<<20 + 1)
	if errors.Is(err, relax.ErrNoMemory) || err == nil || !strings.Contains(err.Error(), "more than option arena_limit_bytes") {
		t.Errorf("Alloc of what never fits: %v; waiting does not help", err)
	}
	a.Free()
	alloc(t, book, 10)
	book.close()
	newArenas(relax.Config{})
}

func TestNoPool(t *testing.T) {
	none := int64(0)
	before := memoryInUse().IdleBytes
	book := newArenas(relax.Config{ArenaPoolBytes: &none})
	if idle := memoryInUse().IdleBytes; idle != 0 {
		t.Errorf("%d bytes idle, %d before the pool was closed", idle, before)
	}
	alloc(t, book, 10).Free()
	if idle := memoryInUse().IdleBytes; idle != 0 {
		t.Errorf("%d bytes are kept with arena_pool_bytes 0", idle)
	}
	newArenas(relax.Config{})
}

func TestSystemRefusal(t *testing.T) {
	_, err := newArenas(relax.Config{}).Alloc(1 << 62)
	if !errors.Is(err, relax.ErrNoMemory) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("Alloc of more than there is: %v", err)
	}
}

func TestSharedBatchHasADescriptor(t *testing.T) {
	book := newArenas(relax.Config{ArenaShared: true})
	a := alloc(t, book, 80)
	b, err := handOverIn(a, &relax.Batch{})
	if err != nil {
		t.Fatal(err)
	}
	if b.fd < 0 {
		t.Errorf("fd = %d", b.fd)
	}
	release(b)
	book.close()
}

func TestColumnOutsideItsArena(t *testing.T) {
	for name, c := range map[string]relax.Column{
		"too long":   {Name: "x", Bits: 64, Offset: 64, Len: 3},
		"misaligned": {Name: "x", Bits: 8, Offset: 8, Len: 1},
		"negative":   {Name: "x", Bits: 8, Offset: 0, Len: -1},
	} {
		book := newArenas(relax.Config{})
		a := alloc(t, book, 80)
		if _, err := handOverIn(a, &relax.Batch{Columns: []relax.Column{c}}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if len(book.owned) != 0 {
			t.Errorf("%s: the arena was not freed", name)
		}
	}
}

func TestAddMemory(t *testing.T) {
	use := memory{LiveBatches: 2}
	const tail = `"memory":{"live_batches":2,"live_bytes":0,"oldest_batch_seconds":0,"mapped_bytes":0,"idle_bytes":0}}`
	for in, want := range map[string]string{
		`{}`:           `{` + tail,
		"{\"a\":1} \n": `{"a":1,` + tail,
		``:             ``,
		`[]`:           `[]`,
	} {
		if got := string(addMemory([]byte(in), use)); got != want {
			t.Errorf("addMemory(%q) = %s, want %s", in, got, want)
		}
	}
}
