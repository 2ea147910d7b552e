package admission

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// crowd returns a machine with one full worker that n tickets wait for, and one with room.
func crowd(b *testing.B, n int) *Machine {
	b.Helper()
	cfg := Defaults(1000)
	cfg.MaxWait = time.Hour
	m, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	for _, w := range []string{"full", "free"} {
		m.Reported(t0, Report{Worker: w, MaxTokens: 1_000_000})
	}
	ask := func(i int) {
		r := Request{
			Ticket: fmt.Sprintf("session-%06d-00000001-0001", i), Session: fmt.Sprintf("session-%06d", i), Worker: "full",
			PromptTokens: 2000, RemainingTokens: 4000,
		}
		if i == 0 {
			r.PromptTokens = 899_000
		}
		if _, err := m.Ask(t0.Add(time.Duration(i)), r); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n + 1 {
		ask(i)
	}
	if m.waiting != n {
		b.Fatalf("%d wait, want %d", m.waiting, n)
	}
	return m
}

var sizes = []int{10, 1000, 10_000}

// BenchmarkAdmit is a whole attempt at a worker with room: asked, started, landed.
func BenchmarkAdmit(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint("waiting=", n), func(b *testing.B) {
			m := crowd(b, n)
			r := Request{Ticket: "t", Session: "s", Worker: "free", PromptTokens: 2000, RemainingTokens: 4000}
			b.ReportAllocs()
			for b.Loop() {
				if actions, err := m.Ask(t0, r); err != nil || len(actions) != 1 {
					b.Fatal(actions, err)
				}
				m.Started(t0, "t", "free")
				m.Landed(t0, "t", 500)
				m.Deadline()
			}
		})
	}
}

// BenchmarkHold is a ticket that has to wait behind n others and is withdrawn.
func BenchmarkHold(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint("waiting=", n), func(b *testing.B) {
			m := crowd(b, n)
			r := Request{Ticket: "t", Session: "s", Worker: "full", PromptTokens: 2000, RemainingTokens: 4000}
			now := t0.Add(time.Second)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Ask(now, r); err != nil {
					b.Fatal(err)
				}
				m.Withdraw(now, "t")
				m.Deadline()
			}
		})
	}
}

// BenchmarkHandOver is a landing that lets the next of n in, with a new ticket at the end.
func BenchmarkHandOver(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint("waiting=", n), func(b *testing.B) {
			m := crowd(b, 0)
			m.Landed(t0, "session-000000-00000001-0001", 0)
			names := make([]string, n+2)
			for i := range names {
				names[i] = fmt.Sprint("t", i)
			}
			now := t0
			ask := func(i int) {
				now = now.Add(1)
				r := Request{Ticket: names[i%len(names)], Session: "s", Worker: "full", PromptTokens: 600_000}
				if _, err := m.Ask(now, r); err != nil {
					b.Fatal(err)
				}
			}
			for i := range n + 1 {
				ask(i)
			}
			first := 0
			b.ReportAllocs()
			for b.Loop() {
				ask(first + n + 1)
				if actions := m.Landed(now, names[first%len(names)], 0); len(actions) != 1 {
					b.Fatal(spell(actions))
				}
				first++
			}
		})
	}
}

// BenchmarkHeldMemory reports the bytes of a held ticket, its names included.
func BenchmarkHeldMemory(b *testing.B) {
	const n = 10_000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		m := crowd(b, n)
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(m)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/held")
}
