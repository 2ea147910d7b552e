//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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

// A signal to the supervisor is a request to end, as from a job manager.
func TestSignalToSupervisor(t *testing.T) {
	g := newGang(t)
	p := start(t, newLauncher(t, testConfig(t, g.script("trap 'exit 5' TERM; echo listening; echo up >&9; "+forever))))
	g.await(t, "up")
	// The supervisor copies output only after it listens for signals.
	awaitCond(t, "output", func() bool { return p.LogTail(0) == "listening\n" })
	if err := unix.Kill(p.pid, unix.SIGTERM); err != nil {
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
		if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
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
		p, err := l.Start(testSpec(names[i]))
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
	if _, err := l.Start(testSpec("late")); !errors.Is(err, ErrClosed) {
		t.Errorf("Start after Close: %v", err)
	}
	if err := l.Close(patient(t)); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCloseWithoutTime(t *testing.T) {
	g := newGang(t)
	cfg := testConfig(t, g.script(stubborn+"trap '' TERM; echo up >&9; "+forever))
	cfg.KillGrace = 24 * time.Hour
	l := newLauncher(t, cfg)
	p := start(t, l)
	g.await(t, "up", "far", "deep")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "s1") {
		t.Errorf("Close = %v, want the session's name and the context's error", err)
	}
	wait(t, p)
	g.awaitDeath(t)
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
