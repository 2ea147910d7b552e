package relax

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// A dumpedLine is a line of a dump as somebody else reads it.
type dumpedLine struct {
	Row     *dumpedDocument
	Session *observe.Trace
}

type dumpedDocument struct {
	RolloutID       int64     `json:"rollout_id"`
	Dataset         string    `json:"dataset"`
	SessionID       string    `json:"session_id"`
	GroupIndex      int64     `json:"group_index"`
	SampleIndex     int64     `json:"sample_index"`
	Prompt          string    `json:"prompt"`
	Response        string    `json:"response"`
	Label           string    `json:"label"`
	Reward          *float64  `json:"reward"`
	Advantage       *float64  `json:"advantage"`
	AgentTurns      int       `json:"agent_turns"`
	Status          string    `json:"status"`
	PromptLength    int       `json:"prompt_length"`
	ResponseLength  int       `json:"response_length"`
	TrainedLength   int64     `json:"effective_response_length"`
	Tokens          []int32   `json:"tokens"`
	LossMask        []uint8   `json:"loss_mask"`
	RolloutLogProbs []float32 `json:"rollout_log_probs"`
	WeightVersions  []struct{ Start, Version int64 }
	Metadata        map[string]any `json:"metadata"`
	Meta            struct {
		Metadata map[string]any       `json:"metadata"`
		Trace    observe.AgenticTrace `json:"agentic_trace"`
	}
}

func readLines[T any](t *testing.T, path string) (out []T) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, v)
	}
	return out
}

func labelled(t *testing.T, a agentTask) Task {
	t.Helper()
	out := task(a)
	var metadata map[string]any
	if err := json.Unmarshal(out.Metadata, &metadata); err != nil {
		t.Fatal(err)
	}
	metadata["label"] = "forty-two"
	raw, err := json.Marshal(metadata)
	if err != nil {
		t.Fatal(err)
	}
	out.Metadata = raw
	return out
}

// All that is known of a step, of what was dropped too, is in one file.
func TestDebugDump(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.SaveDebugRolloutData = filepath.Join(t.TempDir(), "made", "dump-{rollout_id}.jsonl")
	e := openEngine(t, cfg)
	setVersion(t, e, 6)
	submit(t, e, task(agentTask{Mode: "exit"}), labelled(t, agentTask{Turns: 3}))
	r := runStep(t, e, 5, nil)
	lines := readLines[dumpedLine](t, strings.ReplaceAll(cfg.SaveDebugRolloutData, "{rollout_id}", "5"))
	var row *dumpedDocument
	fates := map[string]string{}
	for _, line := range lines {
		switch {
		case line.Row != nil:
			row = line.Row
		case line.Session != nil:
			fates[line.Session.SessionID] = line.Session.Outcome.Status
		}
	}
	if len(lines) != 3 || row == nil || len(fates) != 2 || fates[row.SessionID] != observe.Delivered {
		t.Fatalf("%d lines, row %+v, sessions %v", len(lines), row, fates)
	}
	if !slices.Equal(row.Tokens, View[int32](r.batch, "tokens")) || !slices.Equal(row.LossMask, View[uint8](r.batch, "loss_mask")) ||
		!slices.Equal(row.RolloutLogProbs, View[float32](r.batch, "logprobs")) {
		t.Errorf("row %+v has other columns than the batch", row)
	}
	if row.RolloutID != 5 || *row.Reward != 1 || row.Advantage == nil || row.AgentTurns != 3 || row.Status != "completed" || row.Label != "forty-two" ||
		row.TrainedLength != r.report.Accounting.Tokens.Delivered || row.PromptLength+row.ResponseLength != len(row.Tokens) ||
		row.Meta.Trace.SessionID != row.SessionID || row.Meta.Metadata["turns"] != 3.0 || !strings.Contains(row.Prompt, "Hello") || row.Response == "" {
		t.Errorf("row %+v", row)
	}
}

func TestRolloutResults(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutResultDir = filepath.Join(t.TempDir(), "results")
	e := openEngine(t, cfg)
	submit(t, e, labelled(t, agentTask{Turns: 2}))
	runStep(t, e, 0, nil)
	if err := e.StartEval(0, []EvalDataset{{Name: "aime", NSamples: 2, Tasks: []Task{task(agentTask{})}}}); err != nil {
		t.Fatal(err)
	}
	finishStep(t, e, nil)
	train := readLines[dumpedDocument](t, filepath.Join(cfg.RolloutResultDir, "train", "0.jsonl"))
	eval := readLines[dumpedDocument](t, filepath.Join(cfg.RolloutResultDir, "eval", "0.jsonl"))
	if len(train) != 1 || len(eval) != 2 || eval[0].Dataset != "aime" || train[0].Label != "forty-two" || train[0].AgentTurns != 2 ||
		train[0].Metadata["turns"] != 2.0 || train[0].Response == "" || train[0].Tokens != nil || train[0].SessionID == "" {
		t.Errorf("train %+v, eval %+v", train, eval)
	}
}

// A step that is run again does not add to the file of the first run.
func TestDumpsBeginAnew(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	dir := t.TempDir()
	cfg.SaveDebugRolloutData, cfg.RolloutResultDir = filepath.Join(dir, "{rollout_id}.jsonl"), dir
	e := openEngine(t, cfg)
	for range 2 {
		submit(t, e, task(agentTask{}))
		runStep(t, e, 0, nil)
	}
	if lines := readLines[dumpedLine](t, filepath.Join(dir, "0.jsonl")); len(lines) != 2 {
		t.Errorf("%d lines, want a row and a session", len(lines))
	}
	if lines := readLines[dumpedDocument](t, filepath.Join(dir, "train", "0.jsonl")); len(lines) != 1 {
		t.Errorf("%d results, want one", len(lines))
	}
}

// Of a Parquet dump the rows are the host's; the traces are the engine's.
func TestParquetDumpHasItsTracesBeside(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	dir := t.TempDir()
	cfg.SaveDebugRolloutData = filepath.Join(dir, "{rollout_id}.parquet")
	e := openEngine(t, cfg)
	if err := e.StartEval(2, []EvalDataset{{Name: "d", Tasks: []Task{task(agentTask{})}}}); err != nil {
		t.Fatal(err)
	}
	finishStep(t, e, nil)
	lines := readLines[dumpedLine](t, filepath.Join(dir, "eval_2.parquet.traces.jsonl"))
	if len(lines) != 1 || lines[0].Session == nil {
		t.Errorf("lines %+v", lines)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%v", entries)
	}
}

func TestDumpOptionsAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, alter := range map[string]func(*Config){
		"save_debug_rollout_data: expected {rollout_id}": func(c *Config) { c.SaveDebugRolloutData = "dump.jsonl" },
		"and not in its directory's":                     func(c *Config) { c.SaveDebugRolloutData = "{rollout_id}/{rollout_id}.jsonl" },
		"save_debug_rollout_data: expected a name in":    func(c *Config) { c.SaveDebugRolloutData = "{rollout_id}.pt" },
		"rollout_result_dir: its directory cannot":       func(c *Config) { c.RolloutResultDir = filepath.Join(file, "x") },
		"save_debug_rollout_data: its directory cannot":  func(c *Config) { c.SaveDebugRolloutData = filepath.Join(file, "{rollout_id}.jsonl") },
	} {
		cfg := testConfig(t)
		alter(&cfg)
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The step's report leads to what happened in a dropped Session.
func TestDropsLeadToTheirSessions(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	cfg.MaxConsecutiveDroppedGroups = 7
	e := openEngine(t, cfg)
	for range 7 {
		submit(t, e, task(agentTask{Mode: "exit"}))
	}
	r := runStep(t, e, 2, nil)
	if len(r.report.Drops) != 1 || len(r.report.Drops[0].Examples) != maxExamples {
		t.Fatalf("drops %+v", r.report.Drops)
	}
	traces := readTraces(t, cfg, "rollout_2.jsonl")
	for _, example := range r.report.Drops[0].Examples {
		if example.ExitCode == nil || *example.ExitCode != 7 || example.Trace != filepath.Join(cfg.TraceDir, "rollout_2.jsonl") ||
			!strings.HasPrefix(example.GroupID, "train:group_") || !strings.Contains(example.Cause, "something went wrong") {
			t.Errorf("example %+v", example)
		}
		if log, err := os.ReadFile(example.Log); err != nil || !strings.Contains(string(log), "something went wrong") {
			t.Errorf("log %q: %v", log, err)
		}
		if !slices.ContainsFunc(traces, func(trace observe.Trace) bool { return trace.SessionID == example.SessionID }) {
			t.Errorf("no trace of %s", example.SessionID)
		}
	}
}

// Of several Sessions the example is the one at fault; a Group without one shows its first.
func TestExamplesAreThoseAtFault(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NSamplesPerPrompt, cfg.CustomRM, cfg.MaxConsecutiveDroppedGroups = 2, true, 2
	cfg.AgentCommand = `test "$(cat once 2>/dev/null)" = x && exec sleep 1000; echo x > once; ` + cfg.AgentCommand
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{Mode: "exit"}))
	r := runStep(t, e, 0, func(ev Event) {
		if err := e.Reply(ev.ID, []byte(`{"tasks": [], "end": true}`)); err != nil {
			t.Error(err)
		}
	})
	if len(r.report.Drops) != 1 {
		t.Fatalf("report %+v", r.report)
	}
	for _, example := range r.report.Drops[0].Examples {
		if example.ExitCode == nil || example.Log == "" || example.Trace != "" {
			t.Errorf("example %+v is of a session that was killed", example)
		}
	}
	plain := openEngine(t, func() Config { c := testConfig(t); c.DynamicSamplingFilter = "check_reward_nonzero_std"; return c }())
	submit(t, plain, task(agentTask{}))
	r = runStep(t, plain, 0, func(ev Event) {
		if err := plain.Reply(ev.ID, []byte(`{"tasks": [], "end": true}`)); err != nil {
			t.Error(err)
		}
	})
	if d := r.report.Drops; len(d) != 1 || len(d[0].Examples) != 1 || *d[0].Examples[0].ExitCode != 0 || d[0].Examples[0].Log != "" {
		t.Errorf("drops %+v", d)
	}
}
