package main

import (
	"testing"

	"github.com/relax-rollout/relax-rollout/relax"
)

// A batch of 32 MB is built and released. Private arenas come from the pool; shared ones are mapped
// and faulted in each time, which is what option arena_shared costs.
func BenchmarkArena(b *testing.B) {
	const size = 32 << 20
	for name, cfg := range map[string]relax.Config{"pooled": {}, "shared": {ArenaShared: true}} {
		b.Run(name, func(b *testing.B) {
			book := newArenas(cfg)
			defer book.close()
			b.SetBytes(size)
			for b.Loop() {
				a, err := book.Alloc(size)
				if err != nil {
					b.Fatal(err)
				}
				mem := a.Bytes()
				for i := range mem {
					mem[i] = byte(i)
				}
				a.Free()
			}
		})
	}
}
