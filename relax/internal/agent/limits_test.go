//go:build linux

package agent

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

func TestDescriptorBudget(t *testing.T) {
	tests := []struct {
		agents, used int
		limit        uint64
		warning, err string
	}{
		{100, 50, 1024, "", ""},
		{100, 50, 370, "", ""}, // 50 + 100·3 + 4·5 exactly
		{100, 50, 369, "100 agents need 370 descriptors", ""},
		{100, 50, 270, "RLIMIT_NOFILE allows 270", ""},
		{100, 50, 269, "", "100 agents need 270 descriptors"},
		{2000, 300, 1024, "", "RLIMIT_NOFILE allows 1024; raise it with ulimit -n or lower it"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d of %d", tt.agents, tt.limit), func(t *testing.T) {
			warning, err := checkFiles(Config{MaxAgents: tt.agents, StartConcurrency: 4}, tt.limit, tt.used)
			if (warning == "") != (tt.warning == "") || !strings.Contains(warning, tt.warning) {
				t.Errorf("warning = %q, want %q in it", warning, tt.warning)
			}
			var opt *OptionError
			if tt.err == "" && err != nil || tt.err != "" && (!errors.As(err, &opt) || opt.Option != "agentic_concurrency" || !strings.Contains(opt.Problem, tt.err)) {
				t.Errorf("err = %v, want %q in it", err, tt.err)
			}
		})
	}
}

func TestTooManyAgentsAreRefusedAtNew(t *testing.T) {
	cfg := testConfig(t, "true")
	cfg.MaxAgents = 1 << 40
	_, err := New(cfg)
	var opt *OptionError
	if !errors.As(err, &opt) || opt.Option != "agentic_concurrency" {
		t.Errorf("err = %v", err)
	}
}

// What filesPerAgent says is what an agent takes.
func TestDescriptorsOfAnAgent(t *testing.T) {
	g := newGang(t)
	l := newLauncher(t, testConfig(t, g.script("echo $RELAX_SESSION_ID >&9; "+forever)))
	first := start(t, l) // what is opened once is open now
	g.await(t, "s1")
	before := openFiles()
	spec := testSpec("s2")
	second, err := l.Start(patient(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	g.await(t, "s2")
	if got := openFiles() - before; got != filesPerAgent {
		t.Errorf("an agent takes %d descriptors, want %d", got, filesPerAgent)
	}
	for _, p := range []*Process{first, second} {
		p.Kill()
		wait(t, p)
	}
}

func TestClassify(t *testing.T) {
	for _, errno := range []syscall.Errno{
		syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC, syscall.EDQUOT, syscall.EIO,
		syscall.ESTALE, syscall.ETXTBSY, syscall.EINTR,
	} {
		err := error(startError("s1", "supervisor", fmt.Errorf("x: %w", errno)))
		if !Transient(fmt.Errorf("wrapped: %w", err)) || !errors.Is(err, errno) {
			t.Errorf("%v is not transient: %v", errno, err)
		}
	}
	for _, errno := range []syscall.Errno{
		syscall.ENOENT, syscall.ENOTDIR, syscall.EACCES, syscall.EPERM, syscall.ENOEXEC, syscall.E2BIG, syscall.EROFS, syscall.ELOOP, 0,
	} {
		if err := startError("s1", "agent", startFailure{"text", errno}); err.Transient {
			t.Errorf("%v is transient: %v", errno, err)
		}
	}
	for errno, want := range map[syscall.Errno]string{
		syscall.EAGAIN: "RLIMIT_NPROC ", syscall.EMFILE: "RLIMIT_NOFILE soft ", syscall.ENOSPC: "set run_dir",
		syscall.ENOENT: "put it back", syscall.E2BIG: "agent_env_inherit", syscall.EACCES: "noexec",
	} {
		text := startError("s7", "agent", errno).Error()
		if !strings.Contains(text, want) || !strings.Contains(text, "session s7: start failed at agent: "+errno.Error()) {
			t.Errorf("%v: %q, want %q in it", errno, text, want)
		}
	}
	if Transient(nil) || Transient(ErrClosed) {
		t.Error("what is no start failure is transient")
	}
}
