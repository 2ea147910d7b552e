//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stubborn is shell code of a process outside the agent's session, twice forked, that ignores
// TERM. The gang's FIFO is inherited.
const stubborn = `(setsid bash -c 'trap "" TERM HUP INT; (trap "" TERM; echo deep >&9; ` + forever + `) & echo far >&9; ` + forever + `' &)
`

func TestTerminate(t *testing.T) {
	tests := []struct {
		name, body string
		ready      []string
		grace      time.Duration
		code       int
		signal     string
	}{
		{"default action", "echo up >&9; " + forever, []string{"up"}, time.Minute, -1, "SIGTERM"},
		{"handler", `trap 'exit 7' TERM; echo up >&9; ` + forever, []string{"up"}, time.Minute, 7, ""},
		{"stopped process", "echo up >&9; kill -STOP $$; exit 1", []string{"up"}, time.Minute, -1, "SIGTERM"},
		{"stopped descendant elsewhere", `(setsid bash -c 'echo far >&9; kill -STOP $$; exit 1' &)
			echo up >&9; ` + forever, []string{"up", "far"}, time.Minute, -1, "SIGTERM"},
		{"TERM ignored", `trap '' TERM; echo up >&9; ` + forever, []string{"up"}, 50 * time.Millisecond, -1, "SIGKILL"},
		{"escaped and stubborn descendants", stubborn + "echo up >&9; " + forever, []string{"up", "far", "deep"}, 50 * time.Millisecond, -1, "SIGTERM"},
		{"child ignores what the leader obeys", `(trap '' TERM; echo child >&9; ` + forever + `) & echo up >&9; ` + forever, []string{"up", "child"}, 50 * time.Millisecond, -1, "SIGTERM"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachSupervisor(t, func(t *testing.T, supervisor string) {
				g := newGang(t)
				cfg := testConfig(t, g.script(tt.body))
				cfg.Supervisor, cfg.KillGrace = supervisor, tt.grace
				p := start(t, newLauncher(t, cfg))
				g.await(t, tt.ready...)
				p.Terminate()
				p.Terminate()
				exit := wait(t, p)
				if !g.dead(t) {
					t.Error("reported as over while a descendant lives")
				}
				if exit.Code != tt.code || exit.Signal != tt.signal || exit.Reason != Terminated || exit.Err != nil {
					t.Errorf("exit = %+v, want code %d signal %q", exit, tt.code, tt.signal)
				}
				p.Terminate() // harmless on one that is over
			})
		})
	}
}

// The descendants of an agent that obeys TERM get the whole grace to end their own work.
func TestDescendantMayCleanUp(t *testing.T) {
	g := newGang(t)
	cfg := testConfig(t, g.script(`setsid bash -c 'trap "sleep 0.2; echo cleaned; exit" TERM; echo far >&9; `+forever+`' & echo up >&9; `+forever))
	cfg.KillGrace = time.Minute
	p := start(t, newLauncher(t, cfg))
	g.await(t, "up", "far")
	p.Terminate()
	wait(t, p)
	if got := p.LogTail(0); !strings.Contains(got, "cleaned") {
		t.Errorf("log = %q, want the descendant's last word", got)
	}
}

func TestKillDoesNotWait(t *testing.T) {
	g := newGang(t)
	cfg := testConfig(t, g.script(stubborn+`trap '' TERM; echo up >&9; `+forever))
	cfg.KillGrace = 24 * time.Hour
	p := start(t, newLauncher(t, cfg))
	g.await(t, "up", "far", "deep")
	p.Terminate()
	p.Kill()
	exit := wait(t, p)
	if exit.Signal != "SIGKILL" || exit.Reason != Terminated || !g.dead(t) {
		t.Errorf("exit = %+v", exit)
	}
}

func TestChildrenLeftBehind(t *testing.T) {
	tests := []struct {
		name, body string
		ready      []string
	}{
		{"in the group", "(echo up >&9; " + forever + ") &\n", []string{"up"}},
		{"in the group, ignoring TERM", "(trap '' TERM; echo up >&9; " + forever + ") &\n", []string{"up"}},
		{"escaped and stubborn", stubborn, []string{"far", "deep"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachSupervisor(t, func(t *testing.T, supervisor string) {
				g := newGang(t)
				gate := newGang(t)
				cfg := testConfig(t, g.script(tt.body+"read -r go < "+gate.path+"; exit 4"))
				cfg.Supervisor, cfg.KillGrace = supervisor, 24*time.Hour
				p := start(t, newLauncher(t, cfg))
				g.await(t, tt.ready...)
				fmt.Fprintln(gate.r, "go")
				exit := wait(t, p)
				if exit.Code != 4 || exit.Signal != "" || exit.Reason != Exited || exit.Err != nil {
					t.Errorf("exit = %+v, want the leader's code 4", exit)
				}
				if !g.dead(t) {
					t.Error("reported as over while a descendant lives")
				}
			})
		})
	}
}

// What ends by itself when the agent does, as a tee fed by it, may finish and is not blamed.
func TestOutputFilterMayFinish(t *testing.T) {
	l := newLauncher(t, testConfig(t, `exec > >(while read -r line; do echo "seen: $line"; done; echo filter done); echo hello; exit 0`))
	l.windDown = patience
	p := start(t, l)
	exit := wait(t, p)
	if exit.LeftBehind != 0 || exit.Code != 0 {
		t.Errorf("exit = %+v, want nothing left behind", exit)
	}
	if got := p.LogTail(0); got != "seen: hello\nfilter done\n" {
		t.Errorf("log = %q", got)
	}
}

func TestLeftBehindIsNamedAndCounted(t *testing.T) {
	g, gate := newGang(t), newGang(t)
	cfg := testConfig(t, g.script(`for i in $(seq 12); do sleep 1234567 & while [ "$(cat /proc/$!/comm)" != sleep ]; do :; done; done; echo up >&9; read -r go < `+gate.path+"; exit 2"))
	var log warnings
	cfg.Log = log.add
	l := newLauncher(t, cfg)
	p := start(t, l)
	g.await(t, "up")
	fmt.Fprintln(gate.r, "go")
	exit := wait(t, p)
	if exit.Code != 2 || exit.Reason != Exited || exit.LeftBehind != 12 || len(exit.LeftBehindNames) != 8 {
		t.Errorf("exit = %+v, want 12 left behind and 8 named", exit)
	}
	got := log.all()
	if len(got) != 1 || !strings.Contains(got[0], "session s1: the agent exited and left 12 processes running") ||
		!strings.Contains(got[0], "sleep 1234567 (pid ") || !strings.Contains(got[0], "and 4 more") {
		t.Errorf("warnings = %q", got)
	}
	if got := l.Stats().LeftBehind; got != 12 {
		t.Errorf("Stats.LeftBehind = %d", got)
	}
}

type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.text)
}

// Processes that fork faster than they are found, or are many, still end with the agent.
func TestManyAndRunning(t *testing.T) {
	// Each generation is a process of its own and leaves its parent's group.
	const runner = `perl -e '$SIG{TERM} = "IGNORE"; syswrite STDOUT, ""; open F, ">&=", 9; syswrite F, "up\n"; while (1) { exit 0 if fork; setpgrp 0, 0 }' & `
	const crowd = `set -m; for i in $(seq 100); do (trap "" TERM; exec sleep 1000) & done; echo up >&9; `
	const spawner = `for i in 1 2 3; do (trap "" TERM; while :; do (setsid sleep 0.05 &); done) & done; echo up >&9; `
	tests := []struct{ name, body, needs string }{
		{"runs away", runner, "perl"},
		{"a crowd of groups that ignore TERM", crowd, "bash"},
		{"never stop forking", spawner, "setsid"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := exec.LookPath(tt.needs); err != nil {
				absent(t, "no %s here: %v", tt.needs, err)
			}
			g := newGang(t)
			cfg := testConfig(t, g.script(tt.body+forever))
			cfg.KillGrace = 50 * time.Millisecond
			p := start(t, newLauncher(t, cfg))
			g.await(t, "up")
			p.Terminate()
			if exit := wait(t, p); exit.Reason != Terminated || exit.Err != nil || !g.dead(t) {
				t.Errorf("exit = %+v, want everybody gone", exit)
			}
		})
	}
}

func TestStoppedSupervisor(t *testing.T) {
	g := newGang(t)
	p := start(t, newLauncher(t, testConfig(t, g.script("trap 'exit 5' TERM; echo up >&9; "+forever))))
	g.await(t, "up")
	if err := unix.Kill(p.supervisor.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.Terminate()
	if exit := wait(t, p); exit.Reason != Terminated || exit.Code != 5 {
		t.Errorf("exit = %+v, want the handler's code 5", exit)
	}
}

// A supervisor that says nothing after it was told to end its agent is killed.
func TestDeafSupervisor(t *testing.T) {
	cfg := testConfig(t, "true")
	cfg.KillGrace = 10 * time.Millisecond
	l := newLauncher(t, cfg)
	l.deafFor = 10 * time.Millisecond
	if err := l.turns.enter(patient(t)); err != nil {
		t.Fatal(err)
	}
	dir, _, err := l.newIODir(testSpec("s1"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	pidFD := -1
	pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &pidFD}})
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{l: l, session: "s1", dir: dir, done: make(chan struct{}), reaped: make(chan struct{}),
		supervisor: newChild(pid, pidFD), conn: os.NewFile(uintptr(pair[0]), "deaf")}
	cfg.Goroutines.Go("agent.process", p.watch)
	p.Terminate()
	exit := wait(t, p)
	if exit.Reason != SupervisorLost || exit.Err == nil || !strings.Contains(exit.Err.Error(), "did not end its agent when it was told to") {
		t.Errorf("exit = %+v", exit)
	}
	if got := l.Stats().SupervisorsLost; got != 1 {
		t.Errorf("Stats.SupervisorsLost = %d", got)
	}
	if err := p.Cleanup(""); err != nil {
		t.Error(err)
	}
}

// A signal to the supervisor is a request to end, as from a job manager.
func TestSignalToSupervisor(t *testing.T) {
	g := newGang(t)
	p := start(t, newLauncher(t, testConfig(t, g.script("trap 'exit 5' TERM; echo up >&9; "+forever))))
	g.await(t, "up")
	if err := unix.Kill(p.supervisor.pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Reason != Terminated || exit.Code != 5 || exit.Err != nil {
		t.Errorf("exit = %+v, want the handler's code 5", exit)
	}
	if !g.dead(t) {
		t.Error("reported as over while a descendant lives")
	}
}

func TestSupervisorKilled(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, supervisor string) {
		g := newGang(t)
		cfg := testConfig(t, g.script(stubborn+"trap '' TERM; echo up >&9; "+forever))
		cfg.Supervisor = supervisor
		p := start(t, newLauncher(t, cfg))
		g.await(t, "up", "far", "deep")
		if err := unix.Kill(p.supervisor.pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		exit := wait(t, p)
		if exit.Reason != SupervisorLost || exit.Code != -1 || !errors.Is(exit.Err, errNoStatus) || !strings.Contains(exit.Err.Error(), "session s1") {
			t.Errorf("exit = %+v", exit)
		}
		g.awaitDeath(t)
	})
}

func TestCloseTerminatesAll(t *testing.T) {
	g := newGang(t)
	cfg := testConfig(t, g.script("trap '' TERM; echo $RELAX_SESSION_ID >&9; "+forever))
	cfg.KillGrace = 20 * time.Millisecond
	l := newLauncher(t, cfg)
	var procs []*Process
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("s%d", i))
		p, err := l.Start(context.Background(), testSpec(names[i]))
		if err != nil {
			t.Fatal(err)
		}
		procs = append(procs, p)
	}
	g.await(t, names...)
	if err := l.Close(patient(t)); err != nil {
		t.Fatal(err)
	}
	if !g.dead(t) {
		t.Error("an agent outlived Close")
	}
	for _, p := range procs {
		if exit := wait(t, p); exit.Reason != Terminated || exit.Signal != "SIGKILL" {
			t.Errorf("%s: %+v", p.SessionID(), exit)
		}
		if _, err := os.Stat(p.IODir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("IO directory after Close: %v", err)
		}
	}
	if _, err := l.Start(context.Background(), testSpec("late")); !errors.Is(err, ErrClosed) {
		t.Errorf("Start after Close: %v", err)
	}
	if err := l.Close(patient(t)); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// A close that has no time left takes nothing of agents' grace away, and another one waits on.
func TestCloseWithoutTime(t *testing.T) {
	g := newGang(t)
	gate := filepath.Join(t.TempDir(), "gate")
	cfg := testConfig(t, g.script("trap 'echo told >&9; until [ -e "+gate+" ]; do sleep 0.02; done; echo clean >&9; exit 3' TERM; echo up >&9; while :; do sleep 0.02; done"))
	cfg.KillGrace = patience
	l := newLauncher(t, cfg)
	p := start(t, l)
	g.await(t, "up")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 3 {
		if err := l.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "s1") {
			t.Errorf("Close = %v, want the session's name and the context's error", err)
		}
	}
	g.await(t, "told")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(patient(t)); err != nil {
		t.Error(err)
	}
	if exit := wait(t, p); exit.Code != 3 || exit.Signal != "" {
		t.Errorf("exit %+v, want the agent's own after its clean-up", exit)
	}
	g.await(t, "clean")
	if _, err := os.Stat(p.IODir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("IO directory after Close: %v", err)
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	g := newGang(t)
	cfg := testConfig(t, g.script("echo up >&9; "+forever))
	p := start(t, newLauncher(t, cfg))
	g.await(t, "up")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v", err)
	}
	if err := p.Cleanup(""); err == nil {
		t.Error("Cleanup of a running process: want an error")
	}
}

// Terminate right after Start finds the agent at any stage of its start.
func TestTerminateAtOnce(t *testing.T) {
	cfg := testConfig(t, forever)
	l := newLauncher(t, cfg)
	for range 20 {
		p := start(t, l)
		p.Terminate()
		if exit := wait(t, p); exit.Reason != Terminated || exit.Signal != "SIGTERM" || exit.Err != nil {
			t.Errorf("exit = %+v", exit)
		}
		if err := p.Cleanup(""); err != nil {
			t.Error(err)
		}
	}
}
