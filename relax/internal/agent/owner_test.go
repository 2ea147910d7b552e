//go:build linux

package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

// These tests run this binary as a trainer in a process of its own, so that it can be killed or
// have odd signal dispositions.
const (
	ownerRole    = "AGENT_TEST_OWNER"
	ownerCommand = "AGENT_TEST_COMMAND"
	ownerRunDir  = "AGENT_TEST_RUNDIR"
)

// ownerMain is the trainer. It prints its agent's IO directory, then how the agent ended.
func ownerMain() {
	role := os.Getenv(ownerRole)
	switch role {
	case "ignores SIGCHLD":
		signal.Ignore(syscall.SIGCHLD)
	case "ignores signals":
		signal.Ignore(syscall.SIGXFSZ, syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP, syscall.SIGUSR1)
	case "blocks signals":
		blockAndRestart()
	case "forks":
		leakEverything()
	}
	grace := 50 * time.Millisecond
	if role == "is patient" {
		grace = patience
	}
	l, err := New(Config{
		Command:   os.Getenv(ownerCommand),
		Cwd:       "/",
		RunDir:    os.Getenv(ownerRunDir),
		Inherit:   true,
		KillGrace: grace,

		PruneRunDir: role == "owns run_dir",
		Goroutines:  safego.New(func(name string, v any, _ []byte) { panic(v) }),
	})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	if role == "few descriptors" {
		startShort(l)
		return
	}
	p, err := l.Start(context.Background(), Spec{SessionID: "s1", Input: []byte("{}")})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Println(p.IODir())
	exit, _ := p.Wait(context.Background())
	fmt.Printf("%d %q %s %v\n%s", exit.Code, exit.Signal, exit.Reason, exit.Err, p.LogTail(0))
	_ = l.Close(context.Background())
}

// startShort starts agents with one more descriptor to be had each time, until one does its work.
// It prints why the others could not start, then what is left of their files.
func startShort(l *Launcher) {
	for limit := uint64(1); limit < 1<<10; limit++ {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: 1 << 10}); err != nil {
			fmt.Println("error:", err)
			return
		}
		err := startAndEnd(l)
		if err == nil {
			break
		}
		fmt.Println(Transient(err), err)
	}
	left, err := os.ReadDir(l.owners[0].path)
	fmt.Println("left:", left, err)
}

func startAndEnd(l *Launcher) error {
	p, err := l.Start(context.Background(), Spec{SessionID: "s1", Input: []byte("{}")})
	if err != nil {
		return err
	}
	exit, _ := p.Wait(context.Background())
	return alongside(exit.Err, p.Cleanup(""))
}

// blockAndRestart makes this a process that was started with signals blocked, as a library in a
// thread with a mask is.
func blockAndRestart() {
	runtime.LockOSThread()
	set := unix.Sigset_t{}
	set.Val[0] = 1<<(unix.SIGTERM-1) | 1<<(unix.SIGUSR1-1) | 1<<(unix.SIGINT-1)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &set, nil); err != nil {
		fmt.Println("error:", err)
	}
	os.Setenv(ownerRole, "blocked")
	fmt.Println("error:", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// leakEverything is what a forked child of the trainer does: it keeps copies of all descriptors
// the trainer had, here by passing them to a process that stays. A thread cannot fork in Go, so
// the descriptors are found and passed as soon as they exist.
func leakEverything() {
	pid := os.Getpid()
	go func() {
		for {
			for fd := 3; fd < 64; fd++ {
				link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
				if err != nil || !strings.HasPrefix(link, "socket:") {
					continue
				}
				dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 100)
				if err != nil {
					continue
				}
				cmd := exec.Command("sleep", "1000")
				cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(dup), "copy")}
				if err := cmd.Start(); err != nil {
					fmt.Println("error:", err)
				}
				fmt.Println("holder", cmd.Process.Pid)
				return
			}
			runtime.Gosched()
		}
	}()
}

type owner struct {
	cmd    *exec.Cmd
	out    *bufio.Scanner
	runDir string
}

func startOwner(t *testing.T, role, command string) *owner {
	t.Helper()
	o := &owner{runDir: t.TempDir()}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	o.cmd = exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^$")
	o.cmd.Env = append(os.Environ(), ownerRole+"="+role, ownerCommand+"="+command, ownerRunDir+"="+o.runDir)
	o.cmd.Stderr = os.Stderr
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); o.cmd.Wait() })
	o.out = bufio.NewScanner(out)
	return o
}

func (o *owner) line(t *testing.T) string {
	t.Helper()
	if !o.out.Scan() {
		t.Fatalf("owner ended early: %v", o.out.Err())
	}
	if strings.HasPrefix(o.out.Text(), "error:") {
		t.Fatal(o.out.Text())
	}
	return o.out.Text()
}

func TestOwnerKilled(t *testing.T) {
	g := newGang(t)
	o := startOwner(t, "plain", g.script(stubborn+"trap '' TERM; echo up >&9; "+forever))
	dir := o.line(t)
	g.await(t, "up", "far", "deep")
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.awaitDeath(t)
	awaitGone(t, dir)
	awaitGone(t, filepath.Join(o.runDir, sessionsDir))
	if _, err := os.Stat(o.runDir); err != nil {
		t.Errorf("run_dir, which somebody else made: %v", err)
	}
}

func TestOwnerKilledThatMadeItsRunDir(t *testing.T) {
	g := newGang(t)
	o := startOwner(t, "owns run_dir", g.script("echo up >&9; "+forever))
	o.line(t)
	g.await(t, "up")
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, o.runDir)
	g.awaitDeath(t)
}

// When the trainer and the supervisor are killed together nobody is left to clean up; the next
// engine does it.
func TestOwnerAndSupervisorKilled(t *testing.T) {
	g := newGang(t)
	o := startOwner(t, "plain", g.script(stubborn+"echo up >&9; "+forever))
	dir := o.line(t)
	g.await(t, "up", "far", "deep")
	owner := o.cmd.Process.Pid
	supervisors := procfs.Children(owner)
	if len(supervisors) != 1 {
		t.Fatalf("children of the owner: %v, want its supervisor", supervisors)
	}
	for _, kill := range []struct {
		pid int
		sig unix.Signal
	}{{owner, unix.SIGSTOP}, {supervisors[0], unix.SIGKILL}, {owner, unix.SIGKILL}} {
		if err := unix.Kill(kill.pid, kill.sig); err != nil {
			t.Fatal(err)
		}
	}
	_ = o.cmd.Wait()
	awaitCond(t, "end of the supervisor", func() bool {
		st, ok := procfs.ReadStat(supervisors[0])
		return !ok || st.State == 'Z'
	})
	if _, err := os.Stat(dir); err != nil || g.stillAlive(t) == 0 {
		t.Fatalf("nothing is left behind (%v), so the test shows nothing", err)
	}
	cfg := testConfig(t, "true")
	cfg.RunDir = o.runDir
	var log warnings
	cfg.Log = log.add
	newLauncher(t, cfg)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("IO directory of the dead owner: %v", err)
	}
	g.awaitDeath(t)
	if got := log.all(); len(got) != 1 || !strings.Contains(got[0], "1 dead engines left behind: 1 session directories; killed") {
		t.Errorf("warnings = %q", got)
	}
}

// A supervisor that is still at work keeps its dead owner's directory from the next engine.
func TestOwnerKilledAndSupervisorAtWork(t *testing.T) {
	g := newGang(t)
	o := startOwner(t, "is patient", g.script("trap 'echo told >&9' TERM; echo $$ >&9; while :; do sleep 0.05; done"))
	dir := o.line(t)
	line, err := g.in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	agent, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = o.cmd.Wait()
	g.await(t, "told") // the supervisor has begun
	cfg := testConfig(t, "true")
	cfg.RunDir = o.runDir
	var log warnings
	cfg.Log = log.add
	newLauncher(t, cfg)
	if _, err := os.Stat(dir); err != nil || len(log.all()) != 0 {
		t.Errorf("IO directory: %v, warnings %q; want it untouched", err, log.all())
	}
	if err := unix.Kill(agent, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.awaitDeath(t)
	awaitGone(t, filepath.Dir(dir))
}

// stillAlive counts the gang's members that hold its FIFO, without ending it.
func (g *gang) stillAlive(t *testing.T) (n int) {
	t.Helper()
	for _, pid := range procfs.All() {
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/9", pid)); err == nil && link == g.path {
			n++
		}
	}
	return n
}

func TestOutOfDescriptors(t *testing.T) {
	o := startOwner(t, "few descriptors", "true")
	failed := 0
	for line := o.line(t); !strings.HasPrefix(line, "left:"); line = o.line(t) {
		failed++
		for _, want := range []string{"true agent: session s1: start failed at ", "RLIMIT_NOFILE soft ", "ulimit -n", "agentic_concurrency"} {
			if !strings.Contains(line, want) {
				t.Errorf("start: %q, want %q in it", line, want)
			}
		}
	}
	if got := o.out.Text(); got != "left: [] <nil>" {
		t.Errorf("IO directories: %q", got)
	}
	if failed < 5 {
		t.Errorf("%d starts failed; expected one at each descriptor a start needs", failed)
	}
}

// A fork of the trainer holds the socket open; the supervisor watches the process too.
func TestOwnerKilledWhileAForkHoldsItsDescriptors(t *testing.T) {
	g := newGang(t)
	o := startOwner(t, "forks", g.script("echo up >&9; "+forever))
	var dir string
	holder := 0
	for dir == "" || holder == 0 {
		if line := o.line(t); !strings.HasPrefix(line, "holder") {
			dir = line
		} else if _, err := fmt.Sscanf(line, "holder %d", &holder); err != nil {
			t.Fatal(err)
		}
	}
	defer unix.Kill(holder, unix.SIGKILL)
	g.await(t, "up")
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.awaitDeath(t)
	awaitGone(t, dir)
	if err := unix.Kill(holder, 0); err != nil {
		t.Errorf("the holder is gone too (%v), so the test shows nothing", err)
	}
}

func awaitGone(t *testing.T, path string) {
	t.Helper()
	awaitCond(t, "removal of "+path, func() bool {
		_, err := os.Stat(path)
		return errors.Is(err, os.ErrNotExist)
	})
}

// awaitCond waits for something that nothing signals.
func awaitCond(t testing.TB, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
	}
}

func TestOwnerIgnoresSIGCHLD(t *testing.T) {
	o := startOwner(t, "ignores SIGCHLD", "exit 3")
	o.line(t)
	if got, want := o.line(t), `3 "" exit <nil>`; got != want {
		t.Errorf("exit = %s, want %s", got, want)
	}
}

func TestAgentSignalsAreDefault(t *testing.T) {
	for _, role := range []string{"plain", "ignores signals", "blocks signals"} {
		t.Run(role, func(t *testing.T) {
			o := startOwner(t, role, "exec grep -E 'Sig(Blk|Ign)' /proc/self/status")
			o.line(t)
			if got, want := o.line(t), `0 "" exit <nil>`; got != want {
				t.Fatalf("exit = %s, want %s", got, want)
			}
			for _, name := range []string{"SigBlk", "SigIgn"} {
				if got, want := o.line(t), name+":\t0000000000000000"; got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
		})
	}
}

func TestTerminateWorksWithBlockedSignals(t *testing.T) {
	g := newGang(t)
	o := startOwner(t, "blocks signals", g.script("(echo up >&9; "+forever+") & exit 0"))
	o.line(t)
	if got, want := o.line(t), `0 "" exit <nil>`; got != want {
		t.Errorf("exit = %s, want %s", got, want)
	}
	g.awaitDeath(t)
}
