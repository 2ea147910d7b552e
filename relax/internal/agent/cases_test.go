//go:build linux

package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

// The cases of the reference's launcher (reference cases 1.K), each as TestK<number>…; where we
// do something else on purpose the test says why.

// elsewhere names the tests of cases that are another room's matter.
var elsewhere = map[int]string{
	7: "../schedule/schedule_test.go: func TestAgentTimeoutStopsWhilePaused(", // the budget is the schedule's
}

const caseCount = 18

func TestEveryCaseHasATest(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]bool{}
	name := regexp.MustCompile(`(?m)^func TestK(\d+)[A-Z]\w*\(t \*testing\.T\)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllSubmatch(text, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			found[n] = true
		}
	}
	for n, place := range elsewhere {
		file, text, _ := strings.Cut(place, ": ")
		if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), text) {
			t.Errorf("K%d: expected %q in %s (%v); name the test that shows the case", n, text, file, err)
		}
		found[n] = true
	}
	for n := 1; n <= caseCount; n++ {
		if !found[n] {
			t.Errorf("case K%d has no test", n)
		}
	}
}

// The list above is complete if the specification has no more cases.
func TestCasesOfTheSpecification(t *testing.T) {
	shared := os.Getenv("RELAX_SHARED")
	if shared == "" {
		shared = "../../../../shared"
	}
	data, err := os.ReadFile(filepath.Join(shared, "spec", "reference-cases.md"))
	if errors.Is(err, fs.ErrNotExist) {
		absent(t, "no specification here (set RELAX_SHARED): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ids := regexp.MustCompile(`(?m)^\| K(\d+) \|`).FindAllSubmatch(data, -1)
	if len(ids) != caseCount {
		t.Errorf("the specification has %d cases K, this package counts %d", len(ids), caseCount)
	}
}

// Differences: the directory is below run_dir and not in the system's temporary directory, so
// that one place holds what belongs to a run; the shell is no login shell unless LoginShell is
// set (K17); the log is written by the supervisor, because a file the agent writes cannot be
// bounded.
func TestK1Start(t *testing.T) {
	cfg := testConfig(t, `
		echo "$0 $PWD"; cat "$RELAX_INPUT_JSON"; echo; ls "$RELAX_SESSION_IO_DIR"
		read -r line || echo "stdin closed"
		[ "$(ps -o pgid= -p $$ | tr -d ' ')" = $$ ] && echo "own group" >&2`)
	p := start(t, newLauncher(t, cfg))
	wait(t, p)
	want := "/bin/bash " + cfg.Cwd + "\n" + `{"metadata":{"n":1}}` + "\ncommand.log\nsession_input.json\nstdin closed\nown group\n"
	if got := p.LogTail(0); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	if dir := p.IODir(); !strings.HasPrefix(dir, cfg.RunDir+"/sessions/") {
		t.Errorf("IO directory %s, want it below run_dir", dir)
	}
}

// RELAX_ variables of an outer rollout are not inherited; TestEnvironment has the whole order.
func TestK2Environment(t *testing.T) {
	cfg := testConfig(t, "")
	cfg.Environ = []string{"INHERITED=1", "RELAX_GROUP_ID=outer"}
	cfg.Env = map[string]string{"ADDED": "2"}
	env, dir := environOf(t, cfg)
	if want := append([]string{"INHERITED=1", "ADDED=2"}, contract(dir)...); !slices.Equal(env, want) {
		t.Errorf("environment = %q, want %q", env, want)
	}
}

// An entry without "=" cannot be said: agent_env is a mapping.
func TestK3AgentEnvIsChecked(t *testing.T) {
	for name, want := range map[string]string{"": "empty name", "RELAX_BASE_URL": "reserved", "A=B": "may not contain ="} {
		cfg := testConfig(t, "true")
		cfg.Env = map[string]string{name: "x"}
		_, err := New(cfg)
		var opt *OptionError
		if !errors.As(err, &opt) || opt.Option != "agent_env" || !strings.Contains(opt.Problem, want) {
			t.Errorf("agent_env %q: %v, want an OptionError with %q", name, err, want)
		}
	}
}

// A mapping has no duplicates; what is left of the case is that a name given twice, inherited
// and in agent_env, is there once and the later layer wins.
func TestK4LaterLayerWins(t *testing.T) {
	cfg := testConfig(t, "")
	cfg.Environ = []string{"A=inherited", "B=1"}
	cfg.Env = map[string]string{"A": "own"}
	env, _ := environOf(t, cfg)
	if !slices.Contains(env, "A=own") || slices.Contains(env, "A=inherited") {
		t.Errorf("environment = %q", env)
	}
}

// The text for a person is made by package relax; here are its parts.
func TestK5ExitCodeAndLogTail(t *testing.T) {
	p, exit := run(t, `for i in $(seq 2000); do echo "line $i"; done; exit 9`)
	if exit.Code != 9 || exit.Reason != Exited {
		t.Errorf("exit = %+v, want code 9", exit)
	}
	if tail := p.LogTail(0); len(tail) != 8192 || !strings.HasSuffix(tail, "line 1999\nline 2000\n") {
		t.Errorf("tail has %d bytes and ends with %q", len(tail), tail[max(len(tail)-20, 0):])
	}
}

// The clock is the schedule's (K7); when it runs out, Terminate is called.
func TestK6TerminateThenKill(t *testing.T) {
	g := newGang(t)
	cfg := testConfig(t, g.script(`(trap 'echo child told' TERM; echo child >&9; `+forever+`) & trap 'echo leader told' TERM; echo leader >&9; `+forever))
	cfg.KillGrace = 3 * time.Second
	p := start(t, newLauncher(t, cfg))
	g.await(t, "leader", "child")
	p.Terminate()
	exit := wait(t, p)
	if exit.Reason != Terminated || exit.Signal != "SIGKILL" || !g.dead(t) {
		t.Errorf("exit = %+v, want SIGKILL after the grace and nobody left", exit)
	}
	if log := p.LogTail(0); !strings.Contains(log, "leader told") || !strings.Contains(log, "child told") {
		t.Errorf("log = %q, want both to have got TERM", log)
	}
}

func TestK8DescendantsEndBeforeTheExitIsReported(t *testing.T) {
	g := newGang(t)
	p := start(t, newLauncher(t, testConfig(t, g.script("("+forever+") & ("+forever+") & exit 0"))))
	exit := wait(t, p)
	if !g.dead(t) {
		t.Error("reported as over while a descendant lives")
	}
	// Each is a subshell and its sleep, which may be between two sleeps.
	if exit.Code != 0 || exit.LeftBehind < 2 || len(exit.LeftBehindNames) != exit.LeftBehind {
		t.Errorf("exit = %+v, want at least 2 left behind, all named", exit)
	}
}

func TestK9EscapedDescendantsAreReaped(t *testing.T) {
	g, gate := newGang(t), newGang(t)
	p := start(t, newLauncher(t, testConfig(t, g.script(stubborn+"read -r go < "+gate.path+"; exit 0"))))
	g.await(t, "far", "deep")
	fmt.Fprintln(gate.r, "go")
	exit := wait(t, p)
	if !g.dead(t) || exit.LeftBehind < 2 {
		t.Errorf("exit = %+v, want two left behind, and gone", exit)
	}
}

func TestK10OwnerDies(t *testing.T) {
	g := newGang(t)
	o := startOwner(t, "plain", g.script("(echo up >&9; "+forever+") & "+forever))
	dir := o.line(t)
	g.await(t, "up")
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.awaitDeath(t)
	awaitGone(t, dir)
}

// There is no daemon and so no socket in a shared directory that outlives the job: each agent
// has a supervisor and a socket pair, with single bytes one way and JSON lines the other.
func TestK11Protocol(t *testing.T) {
	g := newGang(t)
	raw := startRaw(t, supervisor.Instructions{
		Shell: "/bin/bash", Command: g.script("trap 'exit 6' TERM; echo up >&9; " + forever), Cwd: "/",
		Grace: time.Minute, LogLimit: 1 << 20, OwnerPID: os.Getpid(),
	})
	var started supervisor.Started
	if err := json.Unmarshal(raw.line(t), &started); err != nil || started.PID <= 0 {
		t.Fatalf("started = %+v, %v", started, err)
	}
	g.await(t, "up")
	if _, err := raw.conn.Write([]byte{supervisor.ByteTerminate}); err != nil {
		t.Fatal(err)
	}
	var status supervisor.Status
	if err := json.Unmarshal(raw.line(t), &status); err != nil || status.ExitCode != 6 || status.Reason != supervisor.ReasonTerminated {
		t.Errorf("status = %+v, %v", status, err)
	}
	raw.end(t)
}

func TestK11AnotherVersionIsRefused(t *testing.T) {
	in := supervisor.Instructions{Shell: "/bin/bash", Command: "true", Cwd: "/", OwnerPID: os.Getpid()}
	old := strings.Replace(string(in.Encode()), supervisor.Protocol, "relax-agent-0", 1)
	raw := startRawWith(t, []byte(old))
	raw.end(t) // without a line
}

func TestK12Burst(t *testing.T) {
	const n = 256
	l := newLauncher(t, testConfig(t, "true"))
	var all sync.WaitGroup
	most := 0
	for i := range n {
		all.Go(func() {
			p, err := l.Start(patient(t), testSpec(fmt.Sprint(i)))
			if err != nil {
				t.Error(err)
				return
			}
			if err := p.waitAndClean(t); err != nil {
				t.Error(err)
			}
		})
		most = max(most, l.Stats().Starting)
	}
	all.Wait()
	if got := l.Stats(); got.Started != n || got.Starting != 0 || got.Waiting != 0 || most > got.StartConcurrency {
		t.Errorf("stats = %+v, at most %d starting", got, most)
	}
}

func TestK13CancelWhileTheStartIsInFlight(t *testing.T) {
	cfg := testConfig(t, forever)
	cfg.StartConcurrency = 1
	l := newLauncher(t, cfg)
	if err := l.turns.enter(patient(t)); err != nil { // holds the one place
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("group was dropped")
	got := make(chan error)
	go func() { _, err := l.Start(ctx, testSpec("s1")); got <- err }()
	awaitCond(t, "waiting start", func() bool { return l.Stats().Waiting == 1 })
	cancel(why)
	if err := <-got; !errors.Is(err, why) || !strings.Contains(err.Error(), "agent_start_concurrency") {
		t.Errorf("err = %v, want the cause and the option", err)
	}
	l.turns.leave()
	// Past its turn, a start always gives a process to end; TestTerminateAtOnce ends it at every
	// stage of its start.
	p := start(t, l)
	p.Kill()
	if exit := wait(t, p); exit.Reason != Terminated {
		t.Errorf("exit = %+v", exit)
	}
	if got := l.Stats(); got.Started != 1 || got.Starting != 0 || got.Waiting != 0 {
		t.Errorf("stats = %+v, want one start and none in progress", got)
	}
}

func TestK14DirectoryIsRemoved(t *testing.T) {
	for name, command := range map[string]string{"finished": "true", "failed": "exit 1", "dropped": forever} {
		t.Run(name, func(t *testing.T) {
			p := start(t, newLauncher(t, testConfig(t, `touch "$RELAX_SESSION_IO_DIR/more"; `+command)))
			if name == "dropped" {
				p.Terminate()
			}
			wait(t, p)
			if err := p.Cleanup(""); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(p.IODir()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("IO directory: %v", err)
			}
		})
	}
}

func TestK15TimeForAHandler(t *testing.T) {
	if DefaultKillGrace < 5*time.Second {
		t.Errorf("the default grace is %v; agents call their own abort API for up to 5 s", DefaultKillGrace)
	}
	g := newGang(t)
	cfg := testConfig(t, g.script("trap 'sleep 0.5; echo aborted; exit 3' TERM; echo up >&9; "+forever))
	p := start(t, newLauncher(t, cfg))
	g.await(t, "up")
	p.Terminate()
	if exit := wait(t, p); exit.Code != 3 || !strings.Contains(p.LogTail(0), "aborted") {
		t.Errorf("exit = %+v, log %q, want the handler to have come to its end", exit, p.LogTail(0))
	}
}

func TestK16TermReachesShellAndChild(t *testing.T) {
	g := newGang(t)
	cfg := testConfig(t, g.script(`trap 'echo shell told; wait; exit 4' TERM
		bash -c 'trap "echo child told; exit" TERM; echo child >&9; `+forever+`' & echo shell >&9; wait; wait`))
	cfg.KillGrace = time.Minute
	p := start(t, newLauncher(t, cfg))
	g.await(t, "shell", "child")
	p.Terminate()
	exit := wait(t, p)
	if log := p.LogTail(0); exit.Code != 4 || !strings.Contains(log, "shell told") || !strings.Contains(log, "child told") {
		t.Errorf("exit = %+v, log = %q", exit, log)
	}
}

// The login shell is an option and off, because profile files can override what the contract
// sets, and their proxies swallow requests to the model endpoint (K18).
func TestK17SourcedScript(t *testing.T) {
	home := t.TempDir()
	script := filepath.Join(home, "run_agent_app.sh")
	write(t, script, "echo \"$PROFILE\"; exec bash -c 'exit 11'\n")
	write(t, filepath.Join(home, ".bash_profile"), "PROFILE=loaded\n")
	for login, log := range map[bool]string{false: "none\n", true: "loaded\n"} {
		cfg := testConfig(t, ". "+script)
		cfg.LoginShell = login
		cfg.Environ = []string{"PATH=/usr/bin:/bin"}
		cfg.Env = map[string]string{"HOME": home, "PROFILE": "none"}
		p := start(t, newLauncher(t, cfg))
		if exit := wait(t, p); exit.Code != 11 || !strings.HasSuffix(p.LogTail(0), log) {
			t.Errorf("login %v: exit = %+v, log = %q, want code 11 and %q", login, exit, p.LogTail(0), log)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestK18ProxiesDoNotSwallowTheEndpoint(t *testing.T) {
	tests := []struct {
		name    string
		environ []string
		own     map[string]string
		want    []string // the no_proxy variables
	}{
		{"no proxy", []string{"NO_PROXY=a"}, nil, []string{"NO_PROXY=a"}},
		{"empty proxy", []string{"http_proxy="}, nil, nil},
		{"proxy", []string{"HTTP_PROXY=http://p:1"}, nil, []string{"no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1"}},
		{"proxy in agent_env", nil, map[string]string{"all_proxy": "socks5://p:1"}, []string{"no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1"}},
		{"list goes on", []string{"https_proxy=http://p:1", "no_proxy=a, b"}, nil, []string{"no_proxy=a,b,127.0.0.1", "NO_PROXY=a,b,127.0.0.1"}},
		{"each list", []string{"https_proxy=http://p:1", "no_proxy=a", "NO_PROXY=127.0.0.1"}, nil, []string{"no_proxy=a,127.0.0.1", "NO_PROXY=127.0.0.1"}},
		{"all hosts", []string{"https_proxy=http://p:1", "no_proxy=*"}, nil, []string{"no_proxy=*", "NO_PROXY=*"}},
		{"the user decides", []string{"http_proxy=http://p:1"}, map[string]string{"NO_PROXY": ""}, []string{"NO_PROXY="}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(t, "true")
			cfg.Environ, cfg.Env = append([]string{"PATH=/usr/bin:/bin"}, tt.environ...), tt.own
			l := newLauncher(t, cfg)
			var got []string
			for _, entry := range l.environment(testSpec("s1"), ioDir{"/d"}) {
				if name, _, _ := strings.Cut(entry, "="); strings.EqualFold(name, "no_proxy") {
					got = append(got, entry)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A rawSupervisor is one without a launcher.
type rawSupervisor struct {
	conn *os.File
	in   *bufio.Reader
	pid  int
}

func startRaw(t *testing.T, in supervisor.Instructions) *rawSupervisor {
	t.Helper()
	in.Env = os.Environ()
	return startRawWith(t, in.Encode())
}

func startRawWith(t *testing.T, instructions []byte) *rawSupervisor {
	t.Helper()
	file, err := instructionsFile(t.TempDir(), instructions)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{supervisor.Argv0}, &syscall.ProcAttr{
		Env: supervisorEnv(), Files: []uintptr{null.Fd(), log.Fd(), log.Fd(), uintptr(pair[1]), uintptr(file), null.Fd()},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetNonblock(pair[0], true)
	conn := os.NewFile(uintptr(pair[0]), "supervisor")
	_ = conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { conn.Close() })
	return &rawSupervisor{conn, bufio.NewReader(conn), pid}
}

func (r *rawSupervisor) line(t *testing.T) []byte {
	t.Helper()
	line, err := r.in.ReadBytes('\n')
	if err != nil {
		t.Fatalf("supervisor said %q, then %v", line, err)
	}
	return line
}

// end waits for the supervisor's end, before which it says nothing more.
func (r *rawSupervisor) end(t *testing.T) {
	t.Helper()
	if rest, _ := r.in.ReadString('\n'); rest != "" {
		t.Errorf("supervisor says %q at its end", rest)
	}
	if _, err := unix.Wait4(r.pid, nil, 0, nil); err != nil {
		t.Error(err)
	}
	if left := procfs.Children(os.Getpid()); slices.Contains(left, r.pid) {
		t.Error("supervisor lives")
	}
}
