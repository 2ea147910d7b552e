package main

/*
#include "internal.h"
#include "batch.h"
*/
import "C"

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unsafe"

	"github.com/relax-rollout/relax-rollout/relax"
)

// handOverEvent writes ev into out. What it cannot hand over it gives back.
func handOverEvent(ev relax.Event, out *C.relax_event) error {
	var batch *C.relax_batch
	if ev.Batch != nil {
		var err error
		if batch, err = handOver(ev.Batch); err != nil {
			return err
		}
	}
	if err := copyOut(ev.Data, &out.json); err != nil {
		release(batch)
		return err
	}
	out.kind = C.uint32_t(ev.Kind)
	out.id = C.uint64_t(ev.ID)
	out.rollout_id = C.int64_t(ev.RolloutID)
	out.batch = batch
	return nil
}

// handOver makes a relax_batch with one reference out of b. From then on the C reference count
// owns the arena, and Go never touches it again.
func handOver(b *relax.Batch) (*C.relax_batch, error) {
	a, ok := b.Arena().(*arena)
	if !ok {
		return nil, fmt.Errorf("relax: batch %d was not built in memory of the C ABI", b.ID)
	}
	return handOverIn(a, b)
}

// handOverIn is handOver for a batch whose columns lie in a.
func handOverIn(a *arena, b *relax.Batch) (*C.relax_batch, error) {
	columns, names, err := describe(b, len(a.mem))
	if err != nil {
		a.Free()
		return nil, err
	}
	if !a.book.take(a) { // the engine was closed in between
		return nil, relax.ErrClosed
	}
	meta := C.relaxc_batch_meta{
		batch_id:   C.uint64_t(b.ID),
		rollout_id: C.int64_t(b.RolloutID),
		n_seqs:     C.int64_t(b.Seqs),
		n_tokens:   C.int64_t(b.Tokens),
		n_segments: C.int64_t(b.Segments),
	}
	batch := C.relaxc_batch_new(a.c, &meta, unsafe.SliceData(columns), C.uint32_t(len(columns)),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(names))), C.size_t(len(names)))
	if batch == nil {
		C.relaxc_arena_free(a.c)
		return nil, &memoryError{what: "a batch header", size: len(names)}
	}
	return batch, nil
}

// release gives one reference back. batch may be nil.
func release(batch *C.relax_batch) { C.relax_batch_release(batch) }

// describe lists the columns of b as plain numbers, and their names in one buffer.
func describe(b *relax.Batch, arenaSize int) ([]C.relaxc_column_spec, []byte, error) {
	columns := make([]C.relaxc_column_spec, len(b.Columns))
	names := make([]byte, 0, 16*len(b.Columns))
	for i, c := range b.Columns {
		if c.Offset < 0 || c.Len < 0 || c.Offset%columnAlign != 0 || c.Offset+c.Size() > arenaSize {
			return nil, nil, fmt.Errorf("relax: column %s of batch %d does not lie in its arena: "+
				"offset %d, %d bytes of %d", c.Name, b.ID, c.Offset, c.Size(), arenaSize)
		}
		columns[i] = C.relaxc_column_spec{
			name_at:     C.uint32_t(len(names)),
			name_len:    C.uint32_t(len(c.Name)),
			byte_offset: C.uint64_t(c.Offset),
			len:         C.int64_t(c.Len),
			domain:      C.uint16_t(c.Domain),
			dl_code:     C.uint8_t(c.Code),
			dl_bits:     C.uint8_t(c.Bits),
		}
		names = append(names, c.Name...)
	}
	return columns, names, nil
}

// columnAlign is the alignment of columns that the header promises, in bytes.
const columnAlign = 64

// memoryInUse reads the C side's counts.
func memoryInUse() memory {
	batches, mapped := C.relaxc_batch_usage(), C.relaxc_arena_usage()
	return memory{
		LiveBatches:   int64(batches.live),
		LiveBytes:     uint64(batches.bytes),
		OldestSeconds: time.Duration(batches.oldest_ns).Seconds(),
		MappedBytes:   uint64(mapped.mapped_bytes),
		IdleBytes:     uint64(mapped.idle_bytes),
	}
}

// addMemory adds the member "memory" at the end of the engine's stats, a JSON object.
func addMemory(stats []byte, use memory) []byte {
	head, ok := bytes.CutSuffix(bytes.TrimSpace(stats), []byte("}"))
	text, err := json.Marshal(use)
	if !ok || err != nil {
		return stats
	}
	out := bytes.Clone(head)
	if !bytes.Equal(bytes.TrimSpace(head), []byte("{")) {
		out = append(out, ',')
	}
	out = append(out, `"memory":`...)
	out = append(out, text...)
	return append(out, '}')
}
