package main

import (
	"testing"

	"github.com/relax-rollout/relax-rollout/relax"
)

// Batches of changing sizes, handed over and released 3,000 times: the memory in use stays what
// the first of them needed.
func TestThreeThousandBatchesDoNotGrow(t *testing.T) {
	book := newArenas(relax.Config{})
	defer book.close()
	columns := func(tokens int) []relax.Column {
		return []relax.Column{{Name: "tokens", Bits: 32, Len: tokens}, {Name: "turn_masked", Code: 1, Bits: 8, Domain: 5, Offset: 8 << 20}}
	}
	before := memoryInUse()
	var first memory
	for i := range 3000 {
		tokens := 1 + i%7*250_000
		a := alloc(t, book, 8<<20+1)
		a.Bytes()[4*(tokens-1)] = 1
		b, err := handOverIn(a, &relax.Batch{ID: uint64(i), Tokens: tokens, Columns: columns(tokens)})
		if err != nil {
			t.Fatal(err)
		}
		release(b)
		if i == 0 {
			first = memoryInUse()
		}
	}
	last := memoryInUse()
	if last.MappedBytes != first.MappedBytes || last.LiveBatches != before.LiveBatches {
		t.Errorf("after one batch %+v, after 3,000 %+v", first, last)
	}
}
