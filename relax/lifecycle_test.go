package relax

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// files lists a directory; a missing one is empty.
func files(t *testing.T, dir ...string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir...))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// sessionDirs lists the IO directories of all engines in a run_dir.
func sessionDirs(t *testing.T, runDir string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(runDir, "sessions", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// descriptors lists the open ones. Go's poller opens its own with the first socket and keeps
// them, so there has to be one before.
func descriptors(t *testing.T) []string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	return files(t, "/proc/self/fd")
}

// Crediting a Group decides more while the actions before it are still being carried out: here
// the failure drops a Group that is about to be started.
func TestScoringFailureBesideAGroupThatStarts(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutBatchSize, cfg.AgenticConcurrency, cfg.MaxConsecutiveDroppedGroups = 2, 1, 1
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "unscored"}), task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, nil)
	if !strings.Contains(r.report.Error, "custom_rm") || r.report.Accounting.Groups.Dropped != 2 {
		t.Errorf("report = %+v", r.report)
	}
}

func TestOneGroupsFaultDoesNotDisturbAnother(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutBatchSize, cfg.NSamplesPerPrompt = 2, 2
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "lateexit"}), task(agentTask{Turns: 2}), task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, nil)
	if r.report.Groups != 2 || len(r.report.Drops) != 1 || r.report.Drops[0].Sessions != 2 {
		t.Errorf("report = %+v", r.report)
	}
	checkTokens(t, e, r.batch)
}

func TestPauseAndResumeWithSeveralSessions(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutBatchSize, cfg.NSamplesPerPrompt = 2, 2
	cfg.Simulator = json.RawMessage(`{"token_delay_ms": 1, "policy": {"default": [{"text": "` + strings.Repeat("a long reply ", 30) + `"}]}}`)
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{}), task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	until(t, func() bool { return passed(e) > 0 })
	for version := range int64(3) {
		if err := e.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		if n := e.core.simulator.InFlight(); n != 0 {
			t.Errorf("%d requests at the backend in a pause", n)
		}
		if err := e.SetWeightVersion(version); err != nil {
			t.Fatal(err)
		}
		if err := e.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	r := finishStep(t, e, nil)
	if r.report.Rows != 4 || len(r.report.Drops) != 0 {
		t.Errorf("report = %+v", r.report)
	}
	checkTokens(t, e, r.batch)
}

func TestLogsOfFailuresAreKept(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		task  agentTask
		alter func(*Config)
		texts []string
	}{
		{"exit code", agentTask{Mode: "exit"}, nil, []string{"code 7", "something went wrong"}},
		{"time limit", agentTask{Mode: "silent"}, func(c *Config) {
			c.AgentFirstRequestTimeout = 1
			c.AgentCommand = "echo I am waiting; " + c.AgentCommand
		}, []string{"agent_first_request_timeout", "I am waiting"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			cfg.MaxConsecutiveDroppedGroups = 1
			if tt.alter != nil {
				tt.alter(&cfg)
			}
			e := openEngine(t, cfg)
			if err := e.Submit([]Task{task(tt.task)}); err != nil {
				t.Fatal(err)
			}
			r := runStep(t, e, 0, nil)
			closeEngine(t, e)
			kept := files(t, cfg.RunDir, "failed")
			if len(kept) != 1 || len(files(t, cfg.RunDir, "sessions")) != 0 {
				t.Fatalf("kept logs %v, sessions %v", kept, files(t, cfg.RunDir, "sessions"))
			}
			log, err := os.ReadFile(filepath.Join(cfg.RunDir, "failed", kept[0]))
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range tt.texts {
				if !strings.Contains(string(log), text) || !strings.Contains(r.report.Drops[0].First, text) {
					t.Errorf("no %q in the log %q and the drop %q", text, log, r.report.Drops[0].First)
				}
			}
		})
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	before := descriptors(t)
	cfg := testConfig(t)
	cfg.NSamplesPerPrompt, cfg.RunDir = 3, ""
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "silent"})}); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return e.core.launcher.Live() == 3 })
	if kept := files(t, temp); len(kept) != 1 {
		t.Errorf("temporary directory holds %v, want the run directory", kept)
	}
	closeEngine(t, e)
	if left := files(t, temp); len(left) != 0 {
		t.Errorf("left in the temporary directory: %v", left)
	}
	if e.core.launcher.Live() != 0 {
		t.Error("agents are left")
	}
	if after := descriptors(t); len(after) > len(before) {
		t.Errorf("descriptors before %v, after %v", before, after)
	}
}

func TestAgentsEndedByCloseAreNotFailures(t *testing.T) {
	t.Parallel()
	e, _ := openIdle(t, nil)
	until(t, func() bool { return e.core.launcher.Live() == 1 })
	closeEngine(t, e)
	if kept := files(t, e.core.cfg.RunDir, "failed"); len(kept) != 0 {
		t.Errorf("kept logs %v of a normal close", kept)
	}
}

func TestFailedOpenLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	before := descriptors(t)
	for _, alter := range []func(*Config){
		func(c *Config) { c.AgentCwd = "/does/not/exist" },
		func(c *Config) { c.ToolCallParser = "nope" },
		func(c *Config) { c.Simulator = json.RawMessage(`{"faults": 1}`) },
		func(c *Config) { c.APIHost = "192.0.2.1" }, // not an address of this machine
	} {
		cfg := testConfig(t)
		cfg.RunDir = ""
		alter(&cfg)
		if _, err := Open(cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("open: %v, want ErrInvalid", err)
		}
	}
	if left := files(t, temp); len(left) != 0 {
		t.Errorf("left in the temporary directory: %v", left)
	}
	if after := descriptors(t); len(after) > len(before) {
		t.Errorf("descriptors before %v, after %v", before, after)
	}
}

func TestCloseThatRanOutOfTimeCanBeRepeated(t *testing.T) {
	t.Parallel()
	e, _ := openIdle(t, func(c *Config) { c.RunDir = "" })
	until(t, func() bool { return e.core.launcher.Live() == 1 })
	release := make(chan struct{})
	e.core.goroutines.Go("straggler", func() { <-release })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "still ending") {
		t.Errorf("close: %v, want the context's error and the agent", err)
	}
	until(t, func() bool { // once the agent is gone
		err := e.Close(ctx)
		return errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "straggler")
	})
	if _, err := os.Stat(e.core.runDir.path); err != nil {
		t.Errorf("the run directory went while something ran: %v", err)
	}
	close(release)
	closeEngine(t, e)
	if _, err := os.Stat(e.core.runDir.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run directory after close: %v", err)
	}
}

func TestChildrenOfAnAgentEndWithIt(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.AgentCommand = "setsid sleep 1000 & echo $! > child.pid; " + cfg.AgentCommand
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	if r := runStep(t, e, 0, nil); r.report.Groups != 1 {
		t.Errorf("report = %+v", r.report)
	}
	raw, err := os.ReadFile(filepath.Join(cfg.AgentCwd, "child.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child %d after its session: %v, want no such process", pid, err)
	}
}

func TestDropBeforeTheStartStartsNothing(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	g := &group{id: 1, leased: make(chan struct{}), rules: &e.core.train}
	s := newSession(e.core, g, 0)
	s.kill("")
	if reason, cause := s.runProcess(); reason != reasonStart || cause == "" {
		t.Errorf("reason %s, cause %q", reason, cause)
	}
	if left := sessionDirs(t, e.core.runDir.path); len(left) != 0 || e.core.launcher.Live() != 0 {
		t.Errorf("something was started: %v", left)
	}
}

// A Group is dropped at any moment of its Sessions' start.
func TestDropWhileStarting(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NSamplesPerPrompt, cfg.MaxConsecutiveDroppedGroups = 2, 1
	e := openEngine(t, cfg)
	for rollout := range int64(3) {
		if err := e.Submit([]Task{task(agentTask{Mode: "silent"})}); err != nil {
			t.Fatal(err)
		}
		if err := e.StartRollout(rollout); err != nil {
			t.Fatal(err)
		}
		e.core.post(func() {
			for id := range e.core.groups {
				e.core.apply(e.core.machine.GroupFailed(time.Now(), id, "test", "dropped by the test"))
			}
		})
		if r := finishStep(t, e, nil); len(r.report.Drops) != 1 || r.report.Drops[0].Reason != "test" {
			t.Errorf("report = %+v", r.report)
		}
	}
	if left := sessionDirs(t, cfg.RunDir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestABatchThatCannotBeBuilt(t *testing.T) {
	t.Parallel()
	allocator := &countingAllocator{before: func() error { return errors.New("the disk of the memory is full") }}
	e := openWith(t, testConfig(t), allocator)
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 4, nil)
	if !strings.Contains(r.report.Error, "disk of the memory") || r.report.Debt != 1 || r.batch != nil {
		t.Errorf("report = %+v", r.report)
	}
	if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != string(reasonMemory) || r.report.Drops[0].Groups != 1 {
		t.Errorf("drops = %+v", r.report.Drops)
	}
}

func openWith(t *testing.T, cfg Config, a Allocator) *Engine {
	t.Helper()
	e, err := Open(cfg, WithAllocator(a))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func TestABatchWaitsForMemory(t *testing.T) {
	t.Parallel()
	var refused atomic.Int32
	e := openWith(t, testConfig(t), &countingAllocator{before: func() error {
		if refused.Add(1) < 3 {
			return ErrNoMemory
		}
		return nil
	}})
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	if r := runStep(t, e, 0, nil); r.report.Rows != 1 {
		t.Errorf("report = %+v", r.report)
	}
}

func TestCloseWhileABatchIsBuilt(t *testing.T) {
	t.Parallel()
	t.Run("and waits for memory", func(t *testing.T) {
		t.Parallel()
		asked := make(chan struct{})
		var once sync.Once
		e := openWith(t, testConfig(t), &countingAllocator{before: func() error {
			once.Do(func() { close(asked) })
			return ErrNoMemory
		}})
		startOne(t, e)
		<-asked
		closeEngine(t, e)
	})
	t.Run("and is finished too late", func(t *testing.T) {
		t.Parallel()
		asked, release := make(chan struct{}), make(chan struct{})
		allocator := &countingAllocator{before: func() error {
			close(asked)
			<-release
			return nil
		}}
		e := openWith(t, testConfig(t), allocator)
		startOne(t, e)
		<-asked
		closed := make(chan struct{})
		go func() { defer close(closed); closeEngine(t, e) }()
		<-e.core.ctx.Done()
		close(release)
		<-closed
		if live, made := allocator.counts(); live != 0 || made != 1 {
			t.Errorf("%d of %d arenas were not freed", live, made)
		}
	})
}

func startOne(t *testing.T, e *Engine) {
	t.Helper()
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
}

func TestSilentStepsSayThatTheyWait(t *testing.T) {
	e := openEngine(t, testConfig(t))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	err := e.core.do(func() error {
		c := e.core
		c.heard = time.Now().Add(-heartbeat)
		if wait := c.nextWake(); wait != 0 {
			t.Errorf("next wake in %s, want at once", wait)
		}
		before, _ := c.events.pending()
		c.beat(time.Now())
		c.beat(time.Now()) // has spoken just now
		if after, _ := c.events.pending(); after != before+1 {
			t.Errorf("%d events, want one heartbeat", after-before)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if w := findWait(t, e, "tasks"); w.Count != 1 { // being looked at is not a sign of life
		t.Errorf("waits = %+v", w)
	}
	ctx := waitContext(t)
	for {
		ev, err := e.Poll(ctx)
		if err != nil {
			t.Fatal("no heartbeat: ", err)
		}
		if text := string(ev.Data); strings.Contains(text, `"event":"idle_heartbeat"`) {
			if !strings.Contains(text, "tasks: 1 for") || !strings.Contains(text, `"warming_prepare_group_count":0`) {
				t.Errorf("heartbeat %s does not say what it waits for", text)
			}
			return
		}
	}
}
