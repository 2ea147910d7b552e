package relax

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// busySupervisor is a supervisor that cannot be started until the file returned is closed: the
// system executes no file that is being written (ETXTBSY), which counts as a shortage that passes.
func busySupervisor(t *testing.T) (path string, hold func() *os.File) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "supervisor")
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return path, func() *os.File {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if err := exec.Command(path, "-test.run=^$").Run(); !errors.Is(err, syscall.ETXTBSY) {
			if os.Getenv("CI") == "true" {
				t.Fatalf("this kernel executes a file that is being written (%v)", err)
			}
			t.Skipf("SKIPPED LOUDLY: this kernel executes a file that is being written (%v)", err)
		}
		return f
	}
}

// A start that the host cannot make now is made again. It is no broken agent: it counts against no
// budget, and stats say what is waited for.
func TestShortagesOfTheHostPass(t *testing.T) {
	t.Parallel()
	path, hold := busySupervisor(t)
	cfg := testConfig(t)
	cfg.AgentSupervisor, cfg.MaxConsecutiveDroppedGroups, cfg.NSamplesPerPrompt = path, 1, 2
	e := openEngine(t, cfg)
	busy := hold()
	submit(t, e, task(agentTask{}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		st := readStats(t, e)
		return st.Agents.StartFailed > 3 && slices.ContainsFunc(st.Waits, func(w Wait) bool { return w.For == "agent_start" && w.Count == 2 && w.OldestSeconds > 0 })
	})
	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	r := finishStep(t, e, nil)
	if r.report.Groups != 1 || len(r.report.Drops) != 0 || r.report.Error != "" {
		t.Errorf("report %+v", r.report)
	}
	warned := 0
	for _, l := range r.logs {
		if strings.Contains(l, "could not be started for now") && strings.Contains(l, "text file busy") {
			warned++
		}
	}
	if warned != 2 || slices.ContainsFunc(r.logs, func(l string) bool { return regexp.MustCompile("session-[0-9a-f]{32}").MatchString(l) }) {
		t.Errorf("%d warnings, want one a session, without its id, which is a credential: %q", warned, r.logs)
	}
}

// A shortage that does not pass ends with agent_first_request_timeout, whose message has it.
func TestShortagesThatLast(t *testing.T) {
	t.Parallel()
	path, hold := busySupervisor(t)
	cfg := testConfig(t)
	cfg.AgentSupervisor, cfg.MaxConsecutiveDroppedGroups, cfg.AgentFirstRequestTimeout = path, 1, 0.2
	e := openEngine(t, cfg)
	hold()
	submit(t, e, task(agentTask{}))
	r := runStep(t, e, 0, nil)
	if r.report.Groups != 0 || !strings.Contains(r.report.Error, "agent_first_request_timeout") || !strings.Contains(r.report.Drops[0].First, "text file busy") {
		t.Errorf("report %+v", r.report)
	}
	if waits := readStats(t, e).Waits; slices.ContainsFunc(waits, func(w Wait) bool { return w.For == "agent_start" }) {
		t.Errorf("waits %+v", waits)
	}
}

func TestLoginShell(t *testing.T) {
	for _, login := range []bool{true, false} {
		t.Run(map[bool]string{true: "login", false: "plain"}[login], func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			home := t.TempDir()
			if err := os.WriteFile(filepath.Join(home, ".profile"), []byte("export FROM_PROFILE=yes\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg.AgentLoginShell, cfg.AgentEnv["HOME"], cfg.MaxConsecutiveDroppedGroups = login, home, 1
			cfg.AgentCommand = `[ "$FROM_PROFILE" = yes ] || exit 3; ` + cfg.AgentCommand
			e := openEngine(t, cfg)
			submit(t, e, task(agentTask{}))
			if r := runStep(t, e, 0, nil); r.report.Groups == 1 != login {
				t.Errorf("report %+v", r.report)
			}
		})
	}
}

func TestTraceCountsWhatAgentsLeaveBehind(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	cfg.AgentCommand = "sleep 1000 & " + cfg.AgentCommand
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{}))
	runStep(t, e, 0, nil)
	traces := readTraces(t, cfg, "rollout_0.jsonl")
	if p := traces[0].Process; len(traces) != 1 || p.LeftBehind != 1 || len(p.LeftBehindNames) != 1 || !strings.Contains(p.LeftBehindNames[0], "sleep") {
		t.Errorf("traces %+v", traces)
	}
	if n := readStats(t, e).Agents.LeftBehind; n != 1 {
		t.Errorf("stats count %d", n)
	}
}

// The pause after an abort from outside that brought no token grows, and starts anew once there is one.
func TestStallsGrow(t *testing.T) {
	t.Parallel()
	_, s := openIdle(t, nil)
	turn := &turn{session: s}
	k := &ticket{recall: make(chan struct{}, 1)}
	var pauses []time.Duration
	for range 5 {
		k.recall <- struct{}{} // ends it at once
		if !turn.stall(t.Context(), k) {
			t.Fatal("the turn is over")
		}
		pauses = append(pauses, turn.stalled/time.Millisecond)
	}
	if want := []time.Duration{200, 400, 800, 1600, 2000}; !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	turn.take(sglang.Result{IDs: []int32{1}, Logprobs: []float32{0}}, 0)
	if turn.stalled != 0 {
		t.Errorf("the next pause is behind %v", turn.stalled)
	}
}

// An attempt that a pause met before it was sent, as in the queue for a permit, is no abort: nothing of
// it ran, and it goes on under another name.
func TestWhatWasNotSentIsNoAbort(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, nil)
	entered, aborted := make(chan struct{}), make(chan struct{})
	script(e, &scripted{
		generate: func(_ context.Context, call sglang.Call) (sglang.Result, error) {
			if strings.HasSuffix(call.RID, "-0001") {
				return sglang.Result{IDs: []int32{1}, Logprobs: []float32{0}, Finish: sglang.Finish{Type: "stop"}}, nil
			}
			close(entered)
			<-aborted
			return sglang.Result{Finish: sglang.Finish{Type: "abort"}, Unsent: true}, nil
		},
		abort: func([]string) { close(aborted) },
	})
	answered := make(chan answer, 1)
	go func() { answered <- post(t, e, s, map[string]any{}) }()
	<-entered
	if err := e.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.status != 200 {
		t.Errorf("answer %+v", a)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.log[0]
	if n := log.Node.Generation().Aborts; n != 0 || len(log.Attempts) != 2 || log.Attempts[0].Finish != observe.FinishNotSent {
		t.Errorf("%d aborts, attempts %+v", n, log.Attempts)
	}
}

func TestMostAgents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		alter func(*Config)
		want  int
	}{
		{func(*Config) {}, 12},
		{func(c *Config) { c.AgenticEvalConcurrency = 20 }, 20},
		{func(c *Config) { c.AgenticEvalConcurrency, c.AgenticPrelaunch = 20, true }, 32},
	} {
		cfg := Config{AgentCommand: "true", AgentCwd: "/", RolloutBatchSize: 3, NSamplesPerPrompt: 4}
		tt.alter(&cfg)
		r, err := resolve(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if n := (&core{cfg: r}).mostAgents(); n != tt.want {
			t.Errorf("%d agents, want %d", n, tt.want)
		}
	}
}
