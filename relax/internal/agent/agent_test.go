//go:build linux

package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerRole) != "" {
		ownerMain()
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if initDir != "" {
			os.RemoveAll(initDir)
		}
		os.Exit(code)
	}))
}

// initDir is where initBinary built, "" if it did not.
var initDir string

// patience bounds every wait of a test. It is not a speed: it ends a hang.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var initBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "relax-agent-init-*")
	if err != nil {
		return "", err
	}
	initDir = dir
	out := filepath.Join(dir, "relax-agent-init")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", out, "./agentinit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return out, nil
})

// absent skips a test for want of something, loudly; CI has everything and fails.
func absent(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf("SKIPPED LOUDLY: "+format, args...)
}

// eachSupervisor runs a test with this binary as the supervisor and with relax-agent-init.
func eachSupervisor(t *testing.T, test func(t *testing.T, supervisor string)) {
	t.Run("reexec", func(t *testing.T) { test(t, "") })
	t.Run("binary", func(t *testing.T) {
		path, err := initBinary()
		if err != nil {
			t.Fatalf("relax-agent-init cannot be built: %v", err)
		}
		test(t, path)
	})
}

func testConfig(t testing.TB, command string) Config {
	return Config{
		Command: command,
		Cwd:     t.TempDir(),
		Inherit: true,
		RunDir:  t.TempDir(),
		Goroutines: safego.New(func(name string, v any, stack []byte) {
			panic(fmt.Sprintf("%s: %v\n%s", name, v, stack))
		}),
	}
}

// newLauncher makes a launcher that must have left nothing when the test is over.
func newLauncher(t testing.TB, cfg Config) *Launcher {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.windDown = 10 * time.Millisecond
	t.Cleanup(func() {
		if err := l.Close(patient(t)); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := cfg.Goroutines.Wait(patient(t)); err != nil {
			t.Errorf("goroutines left: %v", cfg.Goroutines.Names())
		}
		if left := procfs.Children(os.Getpid()); len(left) > 0 {
			t.Errorf("children left (zombies too): %v", left)
		}
		if left, _ := filepath.Glob(filepath.Join(cfg.RunDir, sessionsDir, "*")); len(left) > 0 {
			t.Errorf("IO directories left: %v", left)
		}
	})
	return l
}

func testSpec(session string) Spec {
	return Spec{SessionID: session, GroupID: "g1", Mode: "train", BaseURL: "http://127.0.0.1:1/agentic_api/v1", Input: []byte(`{"metadata":{"n":1}}`)}
}

func start(t testing.TB, l *Launcher) *Process {
	t.Helper()
	p, err := l.Start(context.Background(), testSpec("s1"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wait(t testing.TB, p *Process) Exit {
	t.Helper()
	exit, err := p.Wait(patient(t))
	if err != nil {
		t.Fatalf("Wait: %v; log: %s", err, p.LogTail(0))
	}
	return exit
}

// run starts one agent with command and waits for its end.
func run(t testing.TB, command string) (*Process, Exit) {
	t.Helper()
	p := start(t, newLauncher(t, testConfig(t, command)))
	return p, wait(t, p)
}

// A gang is a set of processes that hold the write end of a FIFO as fd 9. Its end of file says
// that all of them are dead, without looking at process ids.
type gang struct {
	path string
	r    *os.File
	in   *bufio.Reader
}

func newGang(t testing.TB) *gang {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gang")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// Open for writing too, so that there is no end of file before the first member came.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.SetReadDeadline(time.Now().Add(patience))
	t.Cleanup(func() { f.Close() })
	return &gang{path, f, bufio.NewReader(f)}
}

// script is shell code: join the gang, then run body, in which "echo name >&9" reports.
func (g *gang) script(body string) string { return "exec 9>" + g.path + "\n" + body }

// await waits until every name was reported.
func (g *gang) await(t testing.TB, names ...string) {
	t.Helper()
	missing := slices.Clone(names)
	for len(missing) > 0 {
		line, err := g.in.ReadString('\n')
		if err != nil {
			t.Fatalf("waiting for %v: %v", missing, err)
		}
		missing = slices.DeleteFunc(missing, func(n string) bool { return n == strings.TrimSpace(line) })
	}
}

// awaitDeath waits until no member lives.
func (g *gang) awaitDeath(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile(g.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g.r.Close()
	f.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, f); err != nil {
		t.Fatalf("processes still alive: %v", err)
	}
}

// dead reports at once whether no member lives.
func (g *gang) dead(t testing.TB) bool {
	t.Helper()
	g.r.Close()
	fd, err := unix.Open(g.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for buf := make([]byte, 512); ; {
		switch n, err := unix.Read(fd, buf); {
		case err == unix.EAGAIN:
			return false
		case err == unix.EINTR:
		case err != nil:
			t.Fatal(err)
		case n == 0:
			return true
		}
	}
}

// forever never ends by itself, and its sleep holds the gang's FIFO as well.
const forever = "while :; do sleep 1; done"

func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
