//go:build linux

package agent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// BenchmarkThousandStarts starts 1,000 trivial agents at once, of which the turnstile lets the
// default number through at a time, and waits for their end.
func BenchmarkThousandStarts(b *testing.B) {
	const n = 1000
	l := newLauncher(b, benchConfig(b, "true"))
	most := make([]int, n)
	for b.Loop() {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				_, waiting := l.turns.counts()
				most[i] = max(most[i], waiting)
				p, err := l.Start(context.Background(), testSpec(strconv.Itoa(i)))
				if err == nil {
					err = p.waitAndClean(b)
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
	}
	b.ReportMetric(n/b.Elapsed().Seconds()*float64(b.N), "starts/s")
	b.ReportMetric(float64(slices.Max(most)), "most-waiting")
	b.ReportMetric(float64(l.Stats().StartConcurrency), "at-once")
}

// BenchmarkRunningAgents holds agents, RELAX_BENCH_AGENTS of them (default 200), and says what
// each costs beside the app itself. The supervisor's memory is its proportional share (PSS),
// which counts pages of the binary once for all.
func BenchmarkRunningAgents(b *testing.B) {
	n := 200
	if text := os.Getenv("RELAX_BENCH_AGENTS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	cfg := benchConfig(b, "exec sleep 100000")
	l := newLauncher(b, cfg)
	var pss, private, threads, files, memory float64
	for b.Loop() {
		filesBefore, memoryBefore := openFiles(), heap()
		procs := make([]*Process, n)
		for i := range procs {
			p, err := l.Start(context.Background(), testSpec(strconv.Itoa(i)))
			if err != nil {
				b.Fatal(err)
			}
			procs[i] = p
		}
		awaitCond(b, "end of the starts", func() bool { return l.Stats().Starting == 0 })
		files, memory = float64(openFiles()-filesBefore), float64(heap()-memoryBefore)
		pss, private, threads = 0, 0, 0
		for _, p := range procs {
			pss += smaps(b, p.supervisor.pid, "Pss:")
			private += smaps(b, p.supervisor.pid, "Private_Dirty:")
			tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.supervisor.pid))
			threads += float64(len(tasks))
		}
		for _, p := range procs {
			p.Kill()
		}
		for _, p := range procs {
			if err := p.waitAndClean(b); err != nil {
				b.Fatal(err)
			}
		}
		joinGoroutines(b, l)
	}
	each := float64(n)
	b.ReportMetric(each, "agents")
	b.ReportMetric(pss/each, "supervisor-PSS-KiB")
	b.ReportMetric(private/each, "supervisor-dirty-KiB")
	b.ReportMetric(threads/each, "supervisor-threads")
	b.ReportMetric(files/each, "trainer-fds")
	b.ReportMetric(memory/each/1024, "trainer-heap-KiB")
}

// benchConfig uses relax-agent-init if it can be built, as Python does.
func benchConfig(b *testing.B, command string) Config {
	cfg := testConfig(b, command)
	path, err := initBinary()
	if err != nil {
		b.Logf("relax-agent-init cannot be built here, so this binary is the supervisor: %v", err)
	}
	cfg.Supervisor = path
	return cfg
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// smaps sums one field of a process's memory map, in KiB.
func smaps(b *testing.B, pid int, field string) float64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Skipf("SKIPPED, this kernel does not say: %v", err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if rest, ok := strings.CutPrefix(in.Text(), field); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatalf("no %s for process %d", field, pid)
	return 0
}
