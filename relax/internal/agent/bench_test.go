//go:build linux

package agent

import (
	"syscall"
	"testing"
	"time"
)

// BenchmarkStartReap starts and reaps a trivial agent, and in turn the same command bare.
// ForkExec is clone with CLONE_VFORK and CLONE_VM, which is what posix_spawn does. The figures
// to read are ratios of one run: x-bare of wall time, which on a busy machine mostly counts the
// waits for a processor, and x-bare-cpu of processor time of all processes involved.
func BenchmarkStartReap(b *testing.B) {
	const command = ":"
	b.Run("binary", func(b *testing.B) {
		path, err := initBinary()
		if err != nil {
			b.Fatalf("relax-agent-init cannot be built: %v", err)
		}
		benchmarkStart(b, path, command)
	})
	b.Run("reexec", func(b *testing.B) { benchmarkStart(b, "", command) })
}

func benchmarkStart(b *testing.B, supervisor, command string) {
	cfg := testConfig(b, command)
	cfg.Supervisor = supervisor
	l := newLauncher(b, cfg)
	var bare, agent, bareCPU, agentCPU time.Duration
	for b.Loop() {
		t0, c0 := time.Now(), cpuTime(b)
		pid, err := syscall.ForkExec(l.shell, []string{l.shell, "-c", command}, &syscall.ProcAttr{Dir: cfg.Cwd, Env: l.env.entries, Files: []uintptr{0, 1, 2}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			b.Fatal(err)
		}
		t1, c1 := time.Now(), cpuTime(b)
		if err := start(b, l).waitAndClean(b); err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		joinGoroutines(b, l)
		bare, agent = bare+t1.Sub(t0), agent+t2.Sub(t1)
		bareCPU, agentCPU = bareCPU+c1-c0, agentCPU+cpuTime(b)-c1
	}
	b.ReportMetric(float64(bare.Microseconds())/float64(b.N), "bare-µs/op")
	b.ReportMetric(float64(agent)/float64(bare), "x-bare")
	b.ReportMetric(float64(agentCPU)/float64(bareCPU), "x-bare-cpu")
}

// cpuTime is the processor time of this process and of all children reaped so far.
func cpuTime(b *testing.B) time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var ru syscall.Rusage
		if err := syscall.Getrusage(who, &ru); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	return sum
}
