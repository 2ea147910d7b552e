// Package batch lays training rows out as columns in one piece of memory, so that a trainer
// can view them without a copy.
//
// What may enter: finished rows (ids, masks, logprobs, credit) and an allocator. What it
// never does: decide which rows are trained, compute credit, allocate by itself.
//
// The layout is one arena: every column starts at a multiple of 64 bytes and is described
// by name, element type and length, so a new column never breaks a reader.
package batch

import (
	"fmt"
	"unsafe"
)

// Align is the alignment in bytes of every column inside the arena.
const Align = 64

// A Domain says what one element of a column belongs to.
type Domain uint16

// The domains. The numbers are part of the C ABI (RELAX_DOM_*).
const (
	PerToken   Domain = 0 // one element a token
	PerSeq     Domain = 1 // one element a row
	PerSeq1    Domain = 2 // rows + 1 elements: ragged boundaries
	PerSegment Domain = 3 // one element a weight-version segment
	PerByte    Domain = 4 // raw bytes
	PerTurn    Domain = 5 // one element a response
	PerRoute   Domain = 6 // layers x top k elements for all tokens of a row but the last
	PerBatch   Domain = 7 // of the batch as a whole
)

// A Code is the kind of number a column holds. The numbers are DLPack's type codes.
type Code uint8

// The element kinds.
const (
	Int   Code = 0
	Uint  Code = 1
	Float Code = 2
)

// A Column describes one column of a batch.
type Column struct {
	Name   string
	Code   Code
	Bits   uint8
	Domain Domain
	// Offset is the column's first byte, counted from the arena's base.
	Offset int
	// Len is the number of elements.
	Len int
}

// Size is the column's size in bytes.
func (c Column) Size() int { return c.Len * int(c.Bits) / 8 }

// An Arena is memory for one batch. The batch owns it until Free.
type Arena interface {
	// Bytes is the memory, 64-byte aligned, at least as long as was asked for.
	Bytes() []byte
	// Free gives the memory back. The batch calls it once.
	Free()
}

// An Allocator hands out arenas. It is injected: C memory under the C ABI, the Go heap in
// Go programs.
type Allocator interface {
	Alloc(size int) (Arena, error)
}

// A Batch is a set of training rows in columns. It is immutable for its builder once
// returned; the consumer may write in place.
type Batch struct {
	// ID counts batches of one engine from 1.
	ID uint64
	// RolloutID is the step the rows were delivered for.
	RolloutID int64
	// Seqs, Tokens and Segments count rows, tokens and weight-version segments.
	Seqs, Tokens, Segments int
	// Columns describes the columns, in arena order.
	Columns []Column

	arena Arena
}

// Arena is the memory the columns lie in.
func (b *Batch) Arena() Arena { return b.arena }

// Release frees the memory. No slice taken from the batch may be used afterwards.
func (b *Batch) Release() {
	if b.arena == nil {
		return
	}
	b.arena.Free()
	b.arena = nil
}

// Column returns the description of a column by name.
func (b *Batch) Column(name string) (Column, bool) {
	for _, c := range b.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return Column{}, false
}

// Bytes returns the memory of a column, nil if there is no such column.
func (b *Batch) Bytes(name string) []byte {
	c, ok := b.Column(name)
	if !ok {
		return nil
	}
	return b.arena.Bytes()[c.Offset : c.Offset+c.Size()]
}

// Number is what a column may hold.
type Number interface {
	~int32 | ~int64 | ~uint8 | ~float32 | ~float64
}

// View returns a column as a slice without copying. It panics if the column does not exist
// or holds another type: both are mistakes of the caller.
func View[T Number](b *Batch, name string) []T {
	c, ok := b.Column(name)
	if !ok {
		panic(fmt.Sprintf("batch: no column %q", name))
	}
	var zero T
	if int(c.Bits) != 8*int(unsafe.Sizeof(zero)) || c.Code != codeOf(zero) {
		panic(fmt.Sprintf("batch: column %q does not hold %T", name, zero))
	}
	return viewAt[T](b.arena.Bytes(), c.Offset, c.Len)
}

func viewAt[T Number](mem []byte, offset, n int) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[offset])), n)
}

func codeOf(v any) Code {
	switch v.(type) {
	case float32, float64:
		return Float
	case uint8:
		return Uint
	}
	return Int
}
