package relax

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
)

// The acceptance list of the reference pipeline (its section 12). A test that shows one of its checks
// says so: "Acceptance <number>" in the comment above it, in any language.
const acceptanceCount = 20

// acceptanceElsewhere names the tests of checks that carry no such comment, because they show more than
// that, or belong to the trainer's side of the fence.
var acceptanceElsewhere = map[int]struct{ file, text, what string }{
	1:  {"engine_test.go", "func TestStepDeliversRows(", "rows, masks and the accounting_end line"},
	11: {"credit_test.go", "func TestEachContextHasItsAdvantage(", "the trainer's side; also python/tests/test_credit.py"},
	12: {"internal/batch/credit_test.go", "sample_index_mask_sums", "the trainer's side; also python/tests/test_transfer_queue.py"},
	13: {"../python/tests/test_credit.py", "def test_advantages_equal_numpys(", "the trainer's side"},
	14: {"filter_test.go", "func TestBuiltInFilter(", "the trainer's side"},
	15: {"filter_test.go", "func TestGroupRewardModelOverwrites(", "the trainer's side"},
	20: {"../python/tests/test_transfer_queue.py", "\"sample_index_mask_sums\": \"int64\"", "the trainer's side: the drop-in's columns"},
}

// TestEveryAcceptanceCheckHasATest lists where each is (with -v).
func TestEveryAcceptanceCheckHasATest(t *testing.T) {
	found := map[int][]string{}
	for _, root := range []string{".", filepath.Join("..", "python", "tests")} {
		findAcceptance(t, root, found)
	}
	for n, e := range acceptanceElsewhere {
		text, err := os.ReadFile(filepath.FromSlash(e.file))
		if err != nil || !strings.Contains(string(text), e.text) {
			t.Errorf("check %d: expected %q in %s (%v); name the test that shows it", n, e.text, e.file, err)
		}
		found[n] = append(found[n], fmt.Sprintf("%s %s (%s)", e.file, e.text, e.what))
	}
	for n := 1; n <= acceptanceCount; n++ {
		if len(found[n]) == 0 {
			t.Errorf("check %d of the acceptance list has no test", n)
		}
		t.Logf("check %d: %s", n, strings.Join(found[n], ", "))
	}
}

var acceptanceMark = regexp.MustCompile(`Acceptance (\d+)[.:]`)

func findAcceptance(t *testing.T, root string, found map[int][]string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "test_") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			for _, m := range acceptanceMark.FindAllSubmatch(line, -1) {
				n, _ := strconv.Atoi(string(m[1]))
				found[n] = append(found[n], fmt.Sprintf("%s:%d", path, i+1))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The list above is complete if the specification has no more checks.
func TestAcceptanceListOfTheSpecification(t *testing.T) {
	shared := os.Getenv("RELAX_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "shared")
	}
	text, err := os.ReadFile(filepath.Join(shared, "spec", "reference-pipeline.md"))
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") != "true" {
		t.Skipf("SKIPPED, no specification here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "\n## 12. Acceptance list")
	if n := len(regexp.MustCompile(`(?m)^\d+\. `).FindAllString(list, -1)); n != acceptanceCount {
		t.Errorf("the specification has %d checks, this package counts %d", n, acceptanceCount)
	}
}

// runFailingAgent fails in ways that the agent of the other tests does not.
func runFailingAgent() int {
	var input struct {
		Messages []chatMessage `json:"messages"`
		Metadata agentTask     `json:"metadata"`
	}
	if !readInput(&input) {
		return 9
	}
	if input.Metadata.Mode != "no response" {
		return runAgent()
	}
	// A request that is refused for its length: there is a request, but no response.
	long := chatMessage{"role": "user", "content": strings.Repeat("long ", 2000)}
	if _, err := complete([]chatMessage{long}); err == nil {
		return 9
	}
	if writeOutput(input.Metadata, nil) != nil {
		return 9
	}
	return 0
}

// Acceptance 3: all of it in one step, which still fills. Each bad Session costs its own Group, and
// an ERROR line with a bounded tail of its log.
func TestEveryKindOfDropInOneStep(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.AgentEnv = map[string]string{roleVariable: "failing agent"}
	cfg.AgentCommand = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo the end of the log; " + cfg.AgentCommand
	cfg.RolloutBatchSize, cfg.AgenticConcurrency, cfg.MaxConsecutiveDroppedGroups = 3, 10, 1000
	cfg.AgentFirstRequestTimeout, cfg.AgentTimeout, cfg.RolloutMaxContextLen = 8, 5, 4096
	e := openEngine(t, cfg)
	bad := map[string]Task{
		"agent_exit":            task(agentTask{Mode: "exit"}),
		"agent_timeout":         task(agentTask{Mode: "hang"}),
		"first_request_timeout": task(agentTask{Mode: "silent"}),
		"invalid_output":        task(agentTask{Output: "{oops"}),
		"no_request":            task(agentTask{Mode: "nocall"}),
		"export": task(agentTask{Output: `{"name":"main","messages":[{"role":"user","content":"x"},` +
			`{"role":"assistant","content":"never said"}],"reward":1}`}),
		"reward": task(agentTask{Mode: "unscored"}),
	}
	tasks := []Task{task(agentTask{Mode: "no response"})}
	for _, bad := range bad {
		tasks = append(tasks, bad)
	}
	if err := e.Submit(tasks); err != nil {
		t.Fatal(err)
	}
	// The good ones wait for the bad: a step that is full drops what is unfinished.
	over := func() bool { n := counts(e); return n.Preparing+n.Ready+n.Running+n.Scoring == 0 }
	r := runStep(t, e, 0, func(ev Event) {
		until(t, over)
		replyTasks(t, e, ev, task(agentTask{}), task(agentTask{}), task(agentTask{}))
	})
	if r.report.Groups != 3 || r.report.Rows != 3 || r.report.Error != "" {
		t.Errorf("report = %+v", r.report)
	}
	for _, d := range r.report.Drops {
		// An agent that ended well and wrote no reward has nothing of interest in its log.
		if len(d.First) > logTail+1024 || d.Reason != "reward" && !strings.Contains(d.First, "the end of the log") {
			t.Errorf("%s: the cause has %d bytes: %.300q", d.Reason, len(d.First), d.First)
		}
		want := int64(1)
		if d.Reason == "export" {
			want = 2 // also the one without a response
		}
		if _, ok := bad[d.Reason]; !ok || d.Groups < want {
			t.Errorf("drop %s of %d groups, want %d", d.Reason, d.Groups, want)
		}
		delete(bad, d.Reason)
	}
	if len(bad) > 0 {
		t.Errorf("no drop for %v", bad)
	}
	checkErrorLines(t, r.events, r.report.Drops)
}

// checkErrorLines: there is one for each dropped Group, and none is long.
func checkErrorLines(t *testing.T, events []Event, drops []Drop) {
	t.Helper()
	var groups, lines int64
	for _, d := range drops {
		groups += d.Groups
	}
	for _, ev := range events {
		var line struct{ Level, Line string }
		if ev.Kind == EventLog && json.Unmarshal(ev.Data, &line) == nil && strings.EqualFold(line.Level, "error") {
			lines++
			if len(line.Line) > 2*logTail {
				t.Errorf("an ERROR line has %d bytes", len(line.Line))
			}
		}
	}
	if lines != groups {
		t.Errorf("%d ERROR lines for %d dropped groups", lines, groups)
	}
}

// stubbornFamily is a shell command that leaves children behind: one in the background, one that left
// session and group, both deaf to SIGTERM, each with a child of its own.
const stubbornFamily = `trap '' TERM; (sh -c 'trap "" TERM HUP; sleep 1000; sleep 1000') & setsid sh -c 'trap "" TERM HUP; sleep 1000; sleep 1000' & `

// markedConfig marks the agents of a test, so that they and all their descendants are known from all
// other processes.
func markedConfig(t *testing.T) (cfg Config, marker string) {
	t.Helper()
	cfg = testConfig(t)
	value := strconv.Itoa(os.Getpid()) + "-" + t.Name()
	cfg.AgentEnv["RELAXTEST_MARKER"] = value
	return cfg, "RELAXTEST_MARKER=" + value
}

// Acceptance 4: children left in the background are gone within 10 s of their leader's exit, also
// those that ignore SIGTERM; so is a leader that ignores it.
func TestChildrenLeftInTheBackgroundAreKilled(t *testing.T) {
	t.Parallel()
	cfg, marker := markedConfig(t)
	cfg.NSamplesPerPrompt = 2
	cfg.AgentCommand = stubbornFamily + cfg.AgentCommand
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{}), task(agentTask{Mode: "silent"})}); err != nil {
		t.Fatal(err)
	}
	if r := runStep(t, e, 0, nil); r.report.Groups != 1 || r.report.Rows != 2 {
		t.Errorf("report = %+v", r.report)
	}
	awaitNone(t, marker)
	if err := e.StartRollout(1); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return len(agents(marker)) >= 2*5 }) // two leaders and their families
	closeEngine(t, e)
	awaitNone(t, marker)
}

// awaitNone fails if processes with an environment entry are there after [goneWithin].
func awaitNone(t *testing.T, marker string) {
	t.Helper()
	deadline := time.Now().Add(goneWithin)
	for len(agents(marker)) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, pid := range agents(marker) {
		t.Errorf("process %d is left: %s", pid, procfs.CommandLine(pid, 200))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// trainerVariable has the configuration of a trainer process.
const trainerVariable = "RELAXTEST_TRAINER"

// runTrainer is a trainer in a process of its own: it opens an engine, starts a step whose agents do not
// end, says so, and waits to be killed.
func runTrainer() int {
	cfg, err := ParseConfig([]byte(os.Getenv(trainerVariable)))
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	e, err := Open(cfg)
	if err == nil {
		err = errors.Join(e.Submit([]Task{{}}), e.StartRollout(0))
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("started")
	_, _ = io.Copy(io.Discard, os.Stdin) // the lifeline to the tests
	ctx, cancel := context.WithTimeout(context.Background(), goneWithin)
	defer cancel()
	_ = e.Close(ctx)
	return 0
}

// startTrainer starts a trainer process and waits for its agents.
func startTrainer(t *testing.T, cfg Config, marker string, agentsOf int) *exec.Cmd {
	t.Helper()
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=trainer", trainerVariable+"="+string(raw), "TMPDIR="+cfg.AgentCwd)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	until(t, func() bool { return len(agents(marker)) >= agentsOf })
	return cmd
}

// Acceptance 5: the owner is killed. Its agents are gone with all their children, and so are their
// directories, at once, or if the supervisors died as well at the next start.
func TestOwnerCrash(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("supervisors too=%v", both), func(t *testing.T) {
			t.Parallel()
			cfg, marker := markedConfig(t)
			cfg.NSamplesPerPrompt = 2
			cfg.AgentCommand = stubbornFamily + "sleep 1000; sleep 1000"
			if !both {
				cfg.RunDir = "" // one of its own, below TMPDIR
			}
			trainer := startTrainer(t, cfg, marker, 2*6)
			supervisors := procfs.Children(trainer.Process.Pid)
			if len(supervisors) != 2 {
				t.Fatalf("children of the trainer: %v, want two supervisors", supervisors)
			}
			if both { // none of them sees the trainer die
				for _, pid := range supervisors {
					_ = syscall.Kill(pid, syscall.SIGSTOP)
				}
			}
			_ = trainer.Process.Kill()
			if both {
				for _, pid := range supervisors {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				_ = trainer.Wait()
				checkNextStart(t, cfg)
			}
			awaitNone(t, marker)
			until(t, func() bool {
				return !slices.ContainsFunc(files(t, cfg.AgentCwd), func(name string) bool { return strings.HasPrefix(name, "relax-rollout-") })
			})
		})
	}
}

// checkNextStart: the next engine of a run_dir removes what a dead one left.
func checkNextStart(t *testing.T, cfg Config) {
	t.Helper()
	if len(sessionDirs(t, cfg.RunDir)) != 2 {
		t.Errorf("session directories %v, want those of the dead engine", sessionDirs(t, cfg.RunDir))
	}
	e := openEngine(t, cfg)
	if left := sessionDirs(t, cfg.RunDir); len(left) != 0 {
		t.Errorf("left by the dead engine: %v", left)
	}
	closeEngine(t, e)
}
