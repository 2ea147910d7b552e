//go:build linux

package agent

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// environOf runs an agent that reports the environment it was executed with, before the shell
// added to it.
func environOf(t *testing.T, cfg Config) (env []string, dir string) {
	t.Helper()
	cfg.Command = "cat /proc/$$/environ; true"
	p := start(t, newLauncher(t, cfg))
	wait(t, p)
	return strings.Split(strings.TrimSuffix(p.LogTail(0), "\x00"), "\x00"), p.IODir()
}

func contract(dir string) []string {
	return []string{
		"RELAX_INPUT_JSON=" + dir + "/session_input.json",
		"RELAX_OUTPUT_JSON=" + dir + "/session_output.json",
		"RELAX_SESSION_IO_DIR=" + dir,
		"RELAX_BASE_URL=http://127.0.0.1:1/agentic_api/v1",
		"RELAX_SESSION_ID=s1",
		"RELAX_ROLLOUT_MODE=train",
		"RELAX_GROUP_ID=g1",
	}
}

func TestEnvironment(t *testing.T) {
	outer := []string{
		"PATH=/usr/bin:/bin", "HOME=/nowhere", "EMPTY=", "LINES=a\nb", "EQ=a=b",
		"RELAX_SESSION_ID=outer", "RELAX_LAUNCHER_NAMESPACE=x", "no equals sign", "=nameless",
		"GOMEMLIMIT=not a limit", "GODEBUG=gctrace=1",
	}
	agentEnv := map[string]string{"HOME": "/agent", "NEW": "1", "PATH": "/bin"}
	t.Run("inherit, then agent_env, then the contract", func(t *testing.T) {
		cfg := testConfig(t, "")
		cfg.Environ, cfg.Env = outer, agentEnv
		env, dir := environOf(t, cfg)
		want := append([]string{"EMPTY=", "LINES=a\nb", "EQ=a=b", "GOMEMLIMIT=not a limit", "GODEBUG=gctrace=1", "HOME=/agent", "NEW=1", "PATH=/bin"}, contract(dir)...)
		if !slices.Equal(env, want) {
			t.Errorf("environment\n got %q\nwant %q", env, want)
		}
	})
	t.Run("nothing inherited", func(t *testing.T) {
		cfg := testConfig(t, "")
		cfg.Environ, cfg.Env, cfg.Inherit = outer, agentEnv, false
		env, dir := environOf(t, cfg)
		if want := append([]string{"HOME=/agent", "NEW=1", "PATH=/bin"}, contract(dir)...); !slices.Equal(env, want) {
			t.Errorf("environment\n got %q\nwant %q", env, want)
		}
	})
	t.Run("this process's own", func(t *testing.T) {
		t.Setenv("AGENT_TEST_MARK", "m")
		t.Setenv("RELAX_SESSION_ID", "outer")
		env, dir := environOf(t, testConfig(t, ""))
		if !slices.Contains(env, "AGENT_TEST_MARK=m") || !slices.Equal(env[len(env)-7:], contract(dir)) || slices.Contains(env, "RELAX_SESSION_ID=outer") {
			t.Errorf("environment = %q", env)
		}
	})
	t.Run("longer than a socket buffer", func(t *testing.T) {
		cfg := testConfig(t, `echo ${#A0} ${#A9}`)
		cfg.Env = map[string]string{}
		for _, d := range "0123456789" {
			cfg.Env["A"+string(d)] = strings.Repeat("x", 100_000)
		}
		p := start(t, newLauncher(t, cfg))
		wait(t, p)
		if got := p.LogTail(0); got != "100000 100000\n" {
			t.Errorf("log = %q", got)
		}
	})
	t.Run("longer than the system allows", func(t *testing.T) {
		cfg := testConfig(t, "true")
		cfg.Env = map[string]string{"A": strings.Repeat("x", 1<<20)}
		p := start(t, newLauncher(t, cfg))
		exit := wait(t, p)
		if exit.Reason != StartFailed || !strings.Contains(exit.Err.Error(), "longer than the system allows") {
			t.Errorf("exit = %+v", exit)
		}
	})
}

func TestCwdAndSession(t *testing.T) {
	cfg := testConfig(t, `pwd -P; ps -o pid=,pgid=,sid= -p $$ | tr -s ' ' '\n' | sort -u | grep -c .`)
	p := start(t, newLauncher(t, cfg))
	wait(t, p)
	if got, want := p.LogTail(0), cfg.Cwd+"\n1\n"; got != want {
		t.Errorf("log = %q, want %q: its directory, and one id for process, group and session", got, want)
	}
}

// An inheritable descriptor of the trainer must reach neither the agent nor stay open in the
// supervisor, or ports and pipes live as long as agents.
func TestDescriptorsDoNotLeak(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], 0); err != nil { // inheritable on purpose
		t.Fatal(err)
	}
	r := os.NewFile(uintptr(ends[0]), "r")
	defer r.Close()
	high, err := unix.FcntlInt(uintptr(ends[1]), unix.F_DUPFD, 200)
	if err != nil {
		t.Fatal(err)
	}
	g := newGang(t)
	l := newLauncher(t, testConfig(t, "ls /proc/$$/fd; true\n"+g.script("echo up >&9\n"+forever)))
	p := start(t, l)
	g.await(t, "up")
	unix.Close(ends[1])
	unix.Close(high)
	eof := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, r); eof <- err }()
	select {
	case err := <-eof:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the supervisor or the agent holds an inherited descriptor")
	}
	p.Kill()
	wait(t, p)
	if got := p.LogTail(0); got != "0\n1\n2\n" {
		t.Errorf("the agent sees descriptors %q, want 0 1 2", got)
	}
}
