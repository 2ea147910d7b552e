//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExit(t *testing.T) {
	tests := []struct {
		name, command string
		code          int
		signal, log   string
	}{
		{"zero", "exit 0", 0, "", ""},
		{"three", "echo out; echo err >&2; exit 3", 3, "", "out\nerr\n"},
		{"signal", "kill -SEGV $$", -1, "SIGSEGV", ""},
		{"killed by somebody else", "kill -KILL $$", -1, "SIGKILL", ""},
		{"missing command", "no-such-agent-program --x", 127, "", "no-such-agent-program"},
		{"syntax error", "if then", 2, "", "syntax error"},
		{"closes its output", "exec >&- 2>&-; exec sleep 0.1", 0, "", ""},
		{"output that is not UTF-8", `printf 'a\377b'`, 0, "", "a\uFFFDb"},
		{"no input", "read -r line; echo \"got $? <$line>\"", 0, "", "got 1 <>\n"},
		{"reopens its output", "echo one; echo two > /dev/stderr; echo three", 0, "", "one\ntwo\nthree\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachSupervisor(t, func(t *testing.T, supervisor string) {
				cfg := testConfig(t, tt.command)
				cfg.Supervisor = supervisor
				p := start(t, newLauncher(t, cfg))
				exit := wait(t, p)
				if exit.Code != tt.code || exit.Signal != tt.signal || exit.Reason != Exited || exit.Err != nil {
					t.Errorf("exit = %+v, want code %d signal %q", exit, tt.code, tt.signal)
				}
				if exit.Ended.Before(exit.Started) || exit.MaxRSSKB <= 0 {
					t.Errorf("times or usage missing: %+v", exit)
				}
				if log := p.LogTail(0); !strings.Contains(log, tt.log) || (tt.log == "" && log != "") {
					t.Errorf("log = %q, want %q in it", log, tt.log)
				}
			})
		})
	}
}

func TestUsageCountsDescendants(t *testing.T) {
	_, exit := run(t, "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); true")
	if exit.UserSec+exit.SysSec <= 0.01 {
		t.Errorf("cpu = %v + %v s, want what the subshell used", exit.UserSec, exit.SysSec)
	}
}

func TestFilesOfASession(t *testing.T) {
	l := newLauncher(t, testConfig(t, `
		cat "$RELAX_INPUT_JSON"; stat -c ' %a' "$RELAX_SESSION_IO_DIR"
		printf '{"reward": 0.5, "metadata": {"k": 1}, "extra": 1}' > "$RELAX_OUTPUT_JSON"`))
	p := start(t, l)
	if _, err := p.ReadOutput(); err == nil {
		t.Error("ReadOutput before the end: want an error")
	}
	wait(t, p)
	if got, want := p.LogTail(0), `{"metadata":{"n":1}} 700`+"\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	out, err := p.ReadOutput()
	if err != nil || out.Explicit || out.Reward == nil || out.Reward.Number != 0.5 || string(out.Metadata) != `{"k": 1}` || len(out.Warnings) != 1 {
		t.Errorf("output = %+v, %v", out, err)
	}
	if err := p.Cleanup(""); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.IODir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("IO directory after Cleanup: %v", err)
	}
	if _, err := p.ReadOutput(); err == nil {
		t.Error("ReadOutput after Cleanup: want an error")
	}
	if l.Live() != 0 {
		t.Errorf("Live = %d after Cleanup", l.Live())
	}
}

// The file is read once nobody can write any more, so it may be renamed into place, or written in
// pieces by a process that the agent left behind.
func TestOutputIsReadAfterTheLastWrite(t *testing.T) {
	for name, command := range map[string]string{
		"renamed":   `echo '{"reward": 2}' > "$RELAX_OUTPUT_JSON.tmp" && mv "$RELAX_OUTPUT_JSON.tmp" "$RELAX_OUTPUT_JSON"`,
		"in pieces": `printf '{"reward"' > "$RELAX_OUTPUT_JSON"; (sleep 0.1; echo ': 2}' >> "$RELAX_OUTPUT_JSON") & exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLauncher(t, testConfig(t, command))
			l.windDown = patience
			p := start(t, l)
			wait(t, p)
			out, err := p.ReadOutput()
			if err != nil || out.Reward == nil || out.Reward.Number != 2 {
				t.Errorf("output = %+v, %v; log %q", out, err, p.LogTail(0))
			}
		})
	}
}

func TestOutputThatIsNoFile(t *testing.T) {
	tests := []struct{ name, command, want string }{
		{"fifo", `mkfifo "$RELAX_OUTPUT_JSON"`, "expected a regular file"},
		{"device", `ln -s /dev/zero "$RELAX_OUTPUT_JSON"`, "expected a regular file"},
		{"directory", `mkdir "$RELAX_OUTPUT_JSON"`, "expected a regular file"},
		{"too long", `truncate -s 2000 "$RELAX_OUTPUT_JSON"`, "2000 bytes, more than the limit of 1000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(t, tt.command)
			cfg.MaxOutputBytes = 1000
			p := start(t, newLauncher(t, cfg))
			wait(t, p)
			if _, err := p.ReadOutput(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestLogIsBounded(t *testing.T) {
	const limit = 64 << 10
	cfg := testConfig(t, `echo the first line; for i in $(seq 1 20000); do echo "line $i of many"; done; echo the last line`)
	cfg.LogLimit = limit
	p := start(t, newLauncher(t, cfg))
	wait(t, p)
	data, err := os.ReadFile(filepath.Join(p.IODir(), logFile))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if len(text) > limit || len(text) < limit/2 {
		t.Errorf("log has %d bytes, limit %d", len(text), limit)
	}
	if !strings.HasPrefix(text, "the first line\n") || !strings.HasSuffix(text, "line 20000 of many\nthe last line\n") {
		t.Errorf("log lost its beginning or its end: %.40q … %.40q", text, text[len(text)-40:])
	}
	if n := strings.Count(text, "bytes of output left out"); n != 1 {
		t.Errorf("log says %d times that something is missing, want once", n)
	}
	if got := p.LogTail(100); len(got) != 100 || !strings.HasSuffix(text, got) {
		t.Errorf("LogTail(100) = %q", got)
	}
	if got := p.LogTail(1 << 20); len(got) != maxLogTail {
		t.Errorf("LogTail gives %d bytes, want at most %d", len(got), maxLogTail)
	}
}

func TestKeptLogsAreBounded(t *testing.T) {
	cfg := testConfig(t, `echo "log of $RELAX_SESSION_ID"; exit 1`)
	cfg.KeptLogs = 2
	l := newLauncher(t, cfg)
	for _, id := range []string{"a", "b", "../c/d", "b"} {
		p, err := l.Start(context.Background(), testSpec(id))
		if err != nil {
			t.Fatal(err)
		}
		wait(t, p)
		if err := p.Cleanup("exit code 1"); err != nil {
			t.Fatal(err)
		}
	}
	entries, _ := os.ReadDir(filepath.Join(cfg.RunDir, failedDir))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"___c_d.log", "b.log"}; !slices.Equal(names, want) {
		t.Errorf("kept %v, want %v", names, want)
	}
	text, _ := os.ReadFile(filepath.Join(cfg.RunDir, failedDir, "b.log"))
	if want := "# session b: exit code 1\nlog of b\n"; string(text) != want {
		t.Errorf("kept log = %q, want %q", text, want)
	}
	// A later launcher finds what is there and goes on counting.
	if got := newKeptLogs(filepath.Join(cfg.RunDir, failedDir), 2).admit("new.log"); len(got) != 1 {
		t.Errorf("a later launcher removes %v, want one log", got)
	}
}

func TestCleanupOfALockedDirectory(t *testing.T) {
	p, _ := run(t, `mkdir -p "$RELAX_SESSION_IO_DIR/a/b"; touch "$RELAX_SESSION_IO_DIR/a/b/c"; chmod 0 "$RELAX_SESSION_IO_DIR/a/b" "$RELAX_SESSION_IO_DIR/a"`)
	if err := p.Cleanup(""); err != nil {
		t.Error(err)
	}
}

func TestMissingCwdAtStart(t *testing.T) {
	cfg := testConfig(t, "true")
	l := newLauncher(t, cfg)
	if err := os.Remove(cfg.Cwd); err != nil {
		t.Fatal(err)
	}
	_, err := l.Start(context.Background(), testSpec("s1"))
	var opt *OptionError
	if !errors.As(err, &opt) || opt.Option != "agent_cwd" {
		t.Errorf("err = %v, want an OptionError about agent_cwd", err)
	}
}

// The directory can also go between the check and the start; the supervisor says so.
func TestStartFailureFoundBySupervisor(t *testing.T) {
	cfg := testConfig(t, "true")
	l := newLauncher(t, cfg)
	l.cfg.Cwd = cfg.Cwd + "/gone"
	dir, owner, err := l.newIODir(testSpec("s1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.turns.enter(patient(t)); err != nil {
		t.Fatal(err)
	}
	p := &Process{l: l, session: "s1", dir: dir, done: make(chan struct{}), reaped: make(chan struct{})}
	if err := p.spawn(nil, owner); err != nil {
		t.Fatal(err)
	}
	p.watch()
	exit := wait(t, p)
	var failed *StartError
	if exit.Reason != StartFailed || !errors.As(exit.Err, &failed) || !strings.Contains(failed.Error(), "agent_cwd "+cfg.Cwd+"/gone") {
		t.Fatalf("exit = %+v", exit)
	}
	if failed.Step != "agent" || failed.Transient || !errors.Is(failed, unix.ENOENT) || Transient(exit.Err) {
		t.Errorf("failure = %+v, want a lasting one with the cause ENOENT", failed)
	}
	if got := l.Stats(); got.StartFailed != 1 || got.Starting != 0 {
		t.Errorf("stats = %+v, want one failed start and none in progress", got)
	}
	if err := p.Cleanup(""); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(*Config)
		option string
	}{
		{"no command", func(c *Config) { c.Command = " \n" }, "agent_command"},
		{"NUL in command", func(c *Config) { c.Command = "a\x00b" }, "agent_command"},
		{"no cwd", func(c *Config) { c.Cwd = "" }, "agent_cwd"},
		{"cwd missing", func(c *Config) { c.Cwd += "/gone" }, "agent_cwd"},
		{"cwd is a file", func(c *Config) { c.Cwd = file }, "agent_cwd"},
		{"reserved name", func(c *Config) { c.Env = map[string]string{"RELAX_X": "1"} }, "agent_env"},
		{"empty name", func(c *Config) { c.Env = map[string]string{"": "1"} }, "agent_env"},
		{"= in name", func(c *Config) { c.Env = map[string]string{"A=B": "1"} }, "agent_env"},
		{"NUL in value", func(c *Config) { c.Env = map[string]string{"A": "\x00"} }, "agent_env"},
		{"supervisor missing", func(c *Config) { c.Supervisor = file + "x" }, "agent_supervisor"},
		{"supervisor is a directory", func(c *Config) { c.Supervisor = filepath.Dir(file) }, "agent_supervisor"},
		{"supervisor not executable", func(c *Config) { c.Supervisor = file }, "agent_supervisor"},
		{"no run dir", func(c *Config) { c.RunDir = "" }, "run_dir"},
		{"run dir below a file", func(c *Config) { c.RunDir = file + "/x" }, "run_dir"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(t, "true")
			tt.change(&cfg)
			_, err := New(cfg)
			var opt *OptionError
			if !errors.As(err, &opt) || opt.Option != tt.option {
				t.Errorf("err = %v, want an OptionError about %s", err, tt.option)
			}
		})
	}
	if _, err := New(Config{Command: "true", Cwd: t.TempDir(), RunDir: t.TempDir()}); err == nil {
		t.Error("New without Goroutines: want an error")
	}
}

func TestSpecIsChecked(t *testing.T) {
	l := newLauncher(t, testConfig(t, "true"))
	for _, spec := range []Spec{{}, {SessionID: "a\x00"}, {SessionID: "a", BaseURL: "\x00"}} {
		if _, err := l.Start(context.Background(), spec); err == nil {
			t.Errorf("Start(%+q): want an error", spec)
		}
	}
}

func TestNothingIsLeft(t *testing.T) {
	l := newLauncher(t, testConfig(t, "sleep 0.01 & exit 1"))
	if err := start(t, l).waitAndClean(t); err != nil { // what is opened once is open now
		t.Fatal(err)
	}
	joinGoroutines(t, l)
	before := openFDs(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			p, err := l.Start(context.Background(), testSpec(fmt.Sprint(i)))
			if err != nil {
				t.Error(err)
				return
			}
			if err := p.waitAndClean(t); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	joinGoroutines(t, l)
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("wait4 = %v, want no children", err)
	}
}

// joinGoroutines waits until all supervisors are reaped too, which comes after Wait.
func joinGoroutines(t testing.TB, l *Launcher) {
	t.Helper()
	if err := l.cfg.Goroutines.Wait(patient(t)); err != nil {
		t.Fatalf("goroutines left: %v", l.cfg.Goroutines.Names())
	}
}

func (p *Process) waitAndClean(t testing.TB) error {
	if _, err := p.Wait(patient(t)); err != nil {
		return err
	}
	return p.Cleanup("")
}
