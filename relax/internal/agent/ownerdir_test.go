//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

func TestTwoEnginesShareARunDir(t *testing.T) {
	cfg := testConfig(t, forever)
	first := newLauncher(t, cfg)
	p := start(t, first)
	var log warnings
	cfg.Log = log.add
	second := newLauncher(t, cfg)
	if _, err := os.Stat(p.IODir()); err != nil {
		t.Errorf("IO directory of the first engine after the second one's start: %v", err)
	}
	if got := log.all(); len(got) != 0 {
		t.Errorf("warnings = %q", got)
	}
	if err := first.Close(patient(t)); err != nil {
		t.Error(err)
	}
	q := start(t, second)
	q.Kill()
	wait(t, q)
}

func TestSweepTakesOnlyWhatIsProvablyDead(t *testing.T) {
	cfg := testConfig(t, "true")
	sessions := filepath.Join(cfg.RunDir, sessionsDir)
	dead := filepath.Join(sessions, ownerPrefix()+"dead")
	held := filepath.Join(sessions, ownerPrefix()+"held")
	spared := []string{held, filepath.Join(sessions, "owner-0123456789ab-x"), filepath.Join(sessions, "mine")}
	for _, dir := range append([]string{dead}, spared...) {
		if err := os.MkdirAll(filepath.Join(dir, "s1-1", "locked"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 { // only root can make something of another user
		foreign := filepath.Join(sessions, ownerPrefix()+"foreign")
		spared = append(spared, foreign)
		if err := errors.Join(os.MkdirAll(filepath.Join(foreign, "s1-1"), 0o700), os.Chown(foreign, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(sessions, ownerPrefix()+"file"), "")
	link := filepath.Join(sessions, ownerPrefix()+"link")
	if err := os.Symlink(filepath.Join(sessions, "mine"), link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dead, "s1-1", "locked"), 0); err != nil {
		t.Fatal(err)
	}
	lock, err := tryLock(held)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	var log warnings
	cfg.Log = log.add
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead owner's directory: %v", err)
	}
	for _, dir := range append(spared, link) {
		if _, err := os.Stat(filepath.Join(dir, "s1-1")); err != nil {
			t.Errorf("somebody else's directory: %v", err)
		}
	}
	if got := log.all(); len(got) != 1 || !strings.Contains(got[0], "1 dead engines left behind: 1 session directories; killed 0") {
		t.Errorf("warnings = %q", got)
	}
}

func TestSweepKillsProcessesOfADeadOwner(t *testing.T) {
	cfg := testConfig(t, "true")
	dead := filepath.Join(cfg.RunDir, sessionsDir, ownerPrefix()+"dead")
	if err := os.MkdirAll(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(dir string) *exec.Cmd {
		cmd := exec.CommandContext(patient(t), "sleep", "1000")
		cmd.Env = []string{EnvIODir + "=" + dir}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	theirs, other := run(filepath.Join(dead, "s1-1")), run(dead+"er/s1-1")
	var log warnings
	cfg.Log = log.add
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	if got := log.all(); len(got) != 1 || !strings.Contains(got[0], "killed 1 processes") {
		t.Errorf("warnings = %q", got)
		theirs.Process.Kill()
	}
	if err := theirs.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the dead owner's process: %v", err)
	}
	if st, ok := procfs.ReadStat(other.Process.Pid); !ok || st.State == 'Z' {
		t.Error("another process was killed too")
	}
	other.Process.Kill()
	_ = other.Wait()
}

func TestDirectoriesAreMadeAnewWhenTidiedUp(t *testing.T) {
	cfg := testConfig(t, `touch "$RELAX_OUTPUT_JSON"`)
	l := newLauncher(t, cfg)
	if err := os.RemoveAll(filepath.Join(cfg.RunDir, sessionsDir)); err != nil {
		t.Fatal(err)
	}
	p := start(t, l)
	if exit := wait(t, p); exit.Code != 0 {
		t.Errorf("exit = %+v, log = %q", exit, p.LogTail(0))
	}
	if len(l.owners) != 2 || !l.owners[1].canLock() {
		t.Errorf("owners = %v, want a second one, locked", l.owners)
	}
}

func TestSupervisorThatMayNotBeExecuted(t *testing.T) {
	path, err := initBinary()
	if err != nil {
		t.Fatalf("relax-agent-init cannot be built: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, "echo works; exit 3")
	cfg.Supervisor = filepath.Join(t.TempDir(), "relax-agent-init")
	if err := os.WriteFile(cfg.Supervisor, data, 0o600); err != nil { // as on a noexec mount: EACCES
		t.Fatal(err)
	}
	var log warnings
	cfg.Log = log.add
	p := start(t, newLauncher(t, cfg))
	if exit := wait(t, p); exit.Code != 3 || p.LogTail(0) != "works\n" {
		t.Errorf("exit = %+v, log = %q", exit, p.LogTail(0))
	}
	if got := log.all(); len(got) != 1 || !strings.Contains(got[0], "supervisors run from a copy in memory") {
		t.Errorf("warnings = %q", got)
	}
}

// An upgrade of the package during a run changes nothing for the run.
func TestSupervisorIsReplacedDuringTheRun(t *testing.T) {
	path, err := initBinary()
	if err != nil {
		t.Fatalf("relax-agent-init cannot be built: %v", err)
	}
	cfg := testConfig(t, "exit 3")
	cfg.Supervisor = filepath.Join(t.TempDir(), "relax-agent-init")
	if err := os.Link(path, cfg.Supervisor); err != nil {
		absent(t, "no hard links here: %v", err)
	}
	l := newLauncher(t, cfg)
	if err := os.Remove(cfg.Supervisor); err != nil {
		t.Fatal(err)
	}
	write(t, cfg.Supervisor, "something else")
	if exit := wait(t, start(t, l)); exit.Code != 3 {
		t.Errorf("exit = %+v", exit)
	}
}

func TestSupervisorsThatAreNone(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	write(t, script, "#!/bin/sh\necho '{\"protocol\":\"relax-agent-0\"}'\n")
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	before := openFiles()
	for path, want := range map[string]string{
		"/bin/true":                           `it said ""`,
		"/bin/echo":                           `it said "check"`,
		script:                                "", // a script is closed before its interpreter opens it
		filepath.Join(t.TempDir(), "missing"): "expected the relax-agent-init binary",
	} {
		cfg := testConfig(t, "true")
		cfg.Supervisor = path
		_, err := New(cfg)
		var opt *OptionError
		if !errors.As(err, &opt) || opt.Option != "agent_supervisor" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an OptionError with %q", path, err, want)
		}
		if left, _ := filepath.Glob(filepath.Join(cfg.RunDir, sessionsDir, "*")); len(left) > 0 {
			t.Errorf("%s: left %v", path, left)
		}
	}
	if after := openFiles(); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func TestJudgeCheck(t *testing.T) {
	all := supervisor.Check{Protocol: supervisor.Protocol, Subreaper: true, Proc: true, PidFD: true, CloseRange: true}
	tests := []struct {
		name          string
		change        func(*supervisor.Check)
		warning, fail string
	}{
		{"all", func(*supervisor.Check) {}, "", ""},
		{"no close_range", func(c *supervisor.Check) { c.CloseRange = false }, "", ""},
		{"no pidfd", func(c *supervisor.Check) { c.PidFD = false }, "no pidfd_open", ""},
		{"no subreaper", func(c *supervisor.Check) { c.Subreaper = false }, "", "PR_SET_CHILD_SUBREAPER"},
		{"no /proc", func(c *supervisor.Check) { c.Proc = false }, "", "/proc cannot be read"},
		{"version", func(c *supervisor.Check) { c.Protocol = "relax-agent-1" }, "", "make lib"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			can := all
			tt.change(&can)
			said, err := json.Marshal(can)
			if err != nil {
				t.Fatal(err)
			}
			warnings, err := judgeCheck("x", said)
			if text := strings.Join(warnings, "\n"); (text == "") != (tt.warning == "") || !strings.Contains(text, tt.warning) {
				t.Errorf("warnings = %q, want %q", warnings, tt.warning)
			}
			if (err == nil) != (tt.fail == "") || err != nil && !strings.Contains(err.Error(), tt.fail) {
				t.Errorf("err = %v, want %q in it", err, tt.fail)
			}
		})
	}
}

// Where memfd_create is forbidden the instructions are a file without a name.
func TestUnlinkedFile(t *testing.T) {
	dir := t.TempDir()
	fd, err := unlinkedFile(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "x")
	defer f.Close()
	if _, err := f.WriteString("text"); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

func TestLeaversAreNotAllNamed(t *testing.T) {
	var c counters
	said := 0
	for range 300 {
		if c.worthSaying() {
			said++
		}
	}
	if said != 8 {
		t.Errorf("said %d times of 300, want the first 5 and each hundredth", said)
	}
}

func TestStatsNameTheLimit(t *testing.T) {
	cfg := testConfig(t, "true")
	cfg.StartConcurrency = 5
	if got := newLauncher(t, cfg).Stats(); got != (Stats{StartConcurrency: 5}) {
		t.Errorf("stats = %+v", got)
	}
	if got := newLauncher(t, testConfig(t, "true")).Stats().StartConcurrency; got != defaultStarts() {
		t.Errorf("default = %d, want %d", got, defaultStarts())
	}
}
