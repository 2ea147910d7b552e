package tokenizer

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

// spreadBytes is the size of a batch from which more CPUs pay for starting goroutines: about a
// millisecond of work.
const spreadBytes = 16 << 10

// EncodeAll is the body of an EncodeBatch: it calls encode for each text, on several CPUs when
// there is enough to do, and returns the results in order. Encode must be safe for concurrent
// use. On an error it returns that of the first bad text with its number. A panic of encode in
// another goroutine is an error too.
func EncodeAll(texts []string, encode func(string) ([]int32, error)) ([][]int32, error) {
	out := make([][]int32, len(texts))
	errs := make([]error, len(texts))
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < len(texts); i = int(next.Add(1)) - 1 {
			out[i], errs[i] = encode(texts[i])
		}
	}
	if err := spread(workers(texts), work); err != nil {
		return nil, err
	}
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("text %d of %d: %w", i+1, len(texts), err)
		}
	}
	return out, nil
}

// workers returns how many goroutines a batch is worth.
func workers(texts []string) int {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	return max(1, min(runtime.GOMAXPROCS(0), len(texts), size/spreadBytes))
}

// spread runs work n times at once and waits for all.
func spread(n int, work func()) error {
	if n == 1 {
		work()
		return nil
	}
	var failed atomic.Pointer[error]
	group := safego.New(func(name string, value any, stack []byte) {
		err := fmt.Errorf("panic in %s: %v\n%s", name, value, stack)
		failed.CompareAndSwap(nil, &err)
	})
	for range n {
		group.Go("encode a batch", work)
	}
	if err := group.Wait(context.Background()); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
