package relax

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// traced is a configuration that writes traces.
func traced(t *testing.T) Config {
	t.Helper()
	cfg := testConfig(t)
	cfg.TraceDir = filepath.Join(t.TempDir(), "made", "by the engine")
	return cfg
}

// readTraces reads what a step wrote.
func readTraces(t *testing.T, cfg Config, name string) []observe.Trace {
	t.Helper()
	f, err := os.Open(filepath.Join(cfg.TraceDir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []observe.Trace
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var trace observe.Trace
		if err := json.Unmarshal(lines.Bytes(), &trace); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		out = append(out, trace)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// tracedSession is an open step with one idle agent.
func tracedSession(t *testing.T, alter func(*Config)) (*Engine, *session) {
	t.Helper()
	e, s := openIdle(t, func(c *Config) {
		c.TraceDir, c.MaxConsecutiveDroppedGroups = t.TempDir(), 1
		if alter != nil {
			alter(c)
		}
	})
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.process != nil })
	return e, s
}

// endTraced drops the only Group and returns the trace of its only Session.
func endTraced(t *testing.T, e *Engine) observe.Trace {
	t.Helper()
	e.core.post(func() {
		for id := range e.core.groups {
			e.core.apply(e.core.machine.GroupFailed(time.Now(), id, "test", "dropped by the test"))
		}
	})
	finishStep(t, e, nil)
	traces := readTraces(t, e.core.cfg.Config, "rollout_0.jsonl")
	if len(traces) != 1 {
		t.Fatalf("%d traces, want one", len(traces))
	}
	return traces[0]
}

// Whoever polled a step's end finds its traces, also those of Sessions that never got anywhere.
func TestTraceOfADroppedSession(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	cfg.MaxConsecutiveDroppedGroups, cfg.NSamplesPerPrompt = 1, 2
	cfg.AgentCommand = `test "$(cat once 2>/dev/null)" = x && exec sleep 1000; echo x > once; ` + cfg.AgentCommand
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "exit"})}); err != nil {
		t.Fatal(err)
	}
	runStep(t, e, 5, nil)
	traces := readTraces(t, cfg, "rollout_5.jsonl")
	if len(traces) != 2 {
		t.Fatalf("%d traces, want 2", len(traces))
	}
	guilty := 0
	for _, trace := range traces {
		if trace.Outcome.Status != observe.Dropped || trace.Outcome.Reason != string(reasonExit) || !strings.Contains(trace.Outcome.Cause, "code 7") {
			t.Errorf("outcome = %+v", trace.Outcome)
		}
		if trace.GroupID != "train:group_1" || *trace.RolloutID != 5 || trace.StartRolloutID != nil || trace.Counts.Turns != 0 {
			t.Errorf("trace = %+v", trace)
		}
		if !trace.Outcome.AtFault {
			continue
		}
		guilty++
		if p := trace.Process; !p.Launched || p.ExitCode == nil || *p.ExitCode != 7 || !strings.Contains(p.LogTail, "something went wrong") || p.Seconds <= 0 {
			t.Errorf("process = %+v", p)
		}
		kept, err := os.ReadFile(trace.Process.Log)
		if err != nil || !strings.Contains(string(kept), "something went wrong") {
			t.Errorf("log %q: %v", trace.Process.Log, err)
		}
	}
	if guilty == 0 {
		t.Error("no session is at fault")
	}
}

func TestTraceOfADeliveredSession(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	e := openEngine(t, cfg)
	if err := e.SetWeightVersion(3); err != nil {
		t.Fatal(err)
	}
	if err := e.Submit([]Task{task(agentTask{Turns: 3})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 2, nil)
	traces := readTraces(t, cfg, "rollout_2.jsonl")
	if len(traces) != 1 {
		t.Fatalf("%d traces, want one", len(traces))
	}
	trace := traces[0]
	if trace.Outcome != (observe.Outcome{Status: observe.Delivered}) || *trace.StartRolloutID != 2 || *trace.Process.ExitCode != 0 {
		t.Errorf("trace = %+v", trace)
	}
	if len(trace.Turns) != 3 || len(trace.Nodes) != 6 || len(trace.Exports) != 1 || trace.Exports[0].TurnCount != 3 {
		t.Fatalf("trace = %+v", trace)
	}
	if trace.Counts.ExportedTokens != int(r.report.Accounting.Tokens.Delivered) {
		t.Errorf("%d tokens exported, %d delivered", trace.Counts.ExportedTokens, r.report.Accounting.Tokens.Delivered)
	}
	for i, turn := range trace.Turns {
		if turn.TurnIdx != i || turn.RolloutID != 2 || turn.Status != "completed" || len(turn.Attempts) != 1 ||
			turn.Attempts[0].WeightVersion != 3 || turn.Attempts[0].Tokens != turn.ResponseLength || turn.WallSeconds < turn.GenerationSeconds {
			t.Errorf("turn %d = %+v", i, turn)
		}
	}
	v := trace.Events
	for i, at := range []float64{v.PrepareStart, v.ProcessStart, v.FirstRequest, v.Lease, v.ProcessExit, v.Finalize, v.FinalizeEnd, v.Reward, v.RewardEnd} {
		// Wall-clock stamps of one machine; a clock that is set back is no fault of ours.
		if at == 0 {
			t.Errorf("event %d is missing: %+v", i, v)
		}
	}
	var meta struct {
		Trace observe.AgenticTrace `json:"agentic_trace"`
	}
	if err := json.Unmarshal(View[uint8](r.batch, "meta_json"), &meta); err != nil {
		t.Fatal(err)
	}
	if meta.Trace.LeafStateHash != trace.Exports[0].LeafStateHash || meta.Trace.TurnCount != 3 || meta.Trace.SessionID != trace.SessionID {
		t.Errorf("the row's trace = %+v", meta.Trace)
	}
	for i, turn := range meta.Trace.Turns {
		if turn != trace.Turns[i].TurnRecord {
			t.Errorf("turn %d of the row = %+v, of the session %+v", i, turn, trace.Turns[i].TurnRecord)
		}
	}
}

// Without trace_dir a row has its trace all the same, and its hashes are the reference's.
func TestRowsHaveATraceWithoutTraceDir(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, nil)
	var meta struct {
		Trace observe.AgenticTrace `json:"agentic_trace"`
	}
	if err := json.Unmarshal(View[uint8](r.batch, "meta_json"), &meta); err != nil {
		t.Fatal(err)
	}
	asked := askFor("Hello", canon.Retry{})
	if want := canon.ReferenceHash(asked.Messages, nil, asked.Kwargs); len(meta.Trace.Turns) != 1 || meta.Trace.Turns[0].ParentStateHash != want {
		t.Errorf("trace = %+v, want a turn below %s", meta.Trace, want)
	}
}

func TestTraceNamesSideConversations(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	cfg.ImplicitExport = implicitMain
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "title", Turns: 2})}); err != nil {
		t.Fatal(err)
	}
	runStep(t, e, 0, nil)
	trace := readTraces(t, cfg, "rollout_0.jsonl")[0]
	if len(trace.Exports) != 1 || trace.Exports[0].TurnCount != 2 || len(trace.Side) != 1 || trace.Side[0].TurnCount != 1 || trace.Side[0].LeafStateHash == "" {
		t.Errorf("exports = %+v, side = %+v", trace.Exports, trace.Side)
	}
}

func TestTraceOfBranchesRetriesAndFailures(t *testing.T) {
	t.Parallel()
	e, s := tracedSession(t, func(c *Config) { c.RolloutMaxContextLen = 400 })
	ctx := context.Background()
	out, fault := s.Complete(ctx, askFor("u", canon.Retry{}))
	if fault != nil {
		t.Fatal(fault)
	}
	edited := askFor("u", canon.Retry{})
	edited.Messages = append(edited.Messages,
		canon.NewMessage(canon.Message{Role: canon.Assistant, Content: "I never said this"}),
		canon.NewMessage(canon.Message{Role: canon.User, Content: "v"}))
	if _, fault := s.Complete(ctx, edited); fault != nil {
		t.Fatal(fault)
	}
	if _, fault := s.Complete(ctx, askFor("u", canon.Retry{Attempt: 1})); fault != nil {
		t.Fatal(fault)
	}
	if _, fault := s.Complete(ctx, askFor(strings.Repeat("long ", 100), canon.Retry{})); fault == nil || fault.Code != wire.CodeContextLength {
		t.Fatalf("fault = %v", fault)
	}
	if a := post(t, e, s, map[string]any{"messages": "none"}); a.status != http.StatusBadRequest {
		t.Fatalf("%+v", a)
	}
	s.Undelivered(out) // too late: a retry has it

	trace := endTraced(t, e)
	if trace.Outcome.Reason != "test" || trace.Outcome.AtFault || !trace.Process.Launched || trace.Process.Reason != string(agent.Terminated) {
		t.Errorf("outcome = %+v, process = %+v", trace.Outcome, trace.Process)
	}
	if len(trace.Turns) != 2 || trace.Turns[0].Divergence != nil || trace.Turns[0].Undelivered {
		t.Fatalf("turns = %+v", trace.Turns)
	}
	d := trace.Turns[1].Divergence
	if d == nil || d.Reason != "message" || d.Message != 1 || d.Field != "content" || !strings.Contains(d.Sent, "never said") || d.Node != trace.Turns[0].Node {
		t.Errorf("divergence = %+v", d)
	}
	if len(trace.Retries) != 1 || trace.Retries[0].Kind != "replayed" || trace.Retries[0].Of != out.ID {
		t.Errorf("retries = %+v", trace.Retries)
	}
	if len(trace.Failed) != 2 || trace.Failed[0].Code != wire.CodeContextLength || trace.Failed[1].Status != http.StatusBadRequest || trace.Failed[1].RequestID != "" {
		t.Errorf("failed = %+v", trace.Failed)
	}
	if c := trace.Counts; c.Turns != 2 || c.Failed != 2 || c.Replayed != 1 || trace.Divergences["message"] != 2 {
		t.Errorf("counts = %+v, divergences %v", c, trace.Divergences)
	}
}

// What a turn's flags say: an answer nobody received, one that could not be parsed, and a replay
// that dropped its reasoning.
func TestTraceOfFlaggedTurns(t *testing.T) {
	t.Parallel()
	e, s := tracedSession(t, func(c *Config) {
		c.MatchPolicy, c.ReasoningParser, c.ToolCallParser = matchTolerant, "qwen3", "qwen25"
		c.Simulator = json.RawMessage(`{"policy":{"default":[{"text":"<think>hm</think>yes<tool_call>\n{nonsense\n</tool_call>"}]}}`)
	})
	ctx := context.Background()
	tools := []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.ObjectOf())}
	asked := askFor("u", canon.Retry{})
	asked.Tools = tools
	out, fault := s.Complete(ctx, asked)
	if fault != nil {
		t.Fatal(fault)
	}
	if out.Message.Reasoning == "" {
		t.Fatalf("message %+v", out.Message)
	}
	replay := askFor("u", canon.Retry{})
	replay.Tools = tools
	replay.Messages = append(replay.Messages,
		canon.NewMessage(canon.Message{Role: canon.Assistant, Content: out.Message.Content}),
		canon.NewMessage(canon.Message{Role: canon.User, Content: "sure?"}))
	last, fault := s.Complete(ctx, replay)
	if fault != nil {
		t.Fatal(fault)
	}
	s.Undelivered(last)
	trace := endTraced(t, e)
	if len(trace.Turns) != 2 {
		t.Fatalf("trace = %+v", trace)
	}
	first, second := trace.Turns[0], trace.Turns[1]
	if first.ParseError == "" || first.Tolerated != 0 || first.Undelivered || second.Tolerated != 1 || !second.Undelivered || second.Divergence != nil {
		t.Errorf("turns = %+v", trace.Turns)
	}
	if len(first.Forgiven) != 0 || len(second.Forgiven) != 1 {
		t.Errorf("forgiven fields %q, then %q; want none, then one", first.Forgiven, second.Forgiven)
	}
	if c := trace.Counts; c.ParseErrors != 2 || c.Tolerated != 1 || c.Undelivered != 1 {
		t.Errorf("counts = %+v", c)
	}
}

// A pause in the middle of a turn: two attempts, the time between them parked, and each with its
// weight version.
func TestTraceOfAPausedTurn(t *testing.T) {
	t.Parallel()
	e, s := tracedSession(t, func(c *Config) {
		c.Simulator = json.RawMessage(`{"token_delay_ms": 1, "policy": {"default": [{"text": "` + strings.Repeat("a long reply ", 30) + `"}]}}`)
	})
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	done := make(chan *wire.Error)
	go func() {
		_, fault := s.Complete(ctx, askFor("u", canon.Retry{}))
		done <- fault
	}()
	until(t, func() bool { return e.core.simulator.InFlight() > 0 })
	if err := e.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := e.SetWeightVersion(9); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Millisecond)
	resumed := observe.UnixSeconds(time.Now())
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	if fault := <-done; fault != nil {
		t.Fatal(fault)
	}
	trace := endTraced(t, e)
	if len(trace.Turns) != 1 {
		t.Fatalf("trace = %+v", trace)
	}
	turn := trace.Turns[0]
	if turn.AbortCount != 1 || turn.RequestKind != "resumed" || trace.Counts.Aborts != 1 || len(turn.Attempts) != 2 {
		t.Fatalf("turn = %+v", turn)
	}
	first, second := turn.Attempts[0], turn.Attempts[1]
	if first.Finish != "abort" || first.WeightVersion != 0 || second.WeightVersion != 9 || first.Tokens+second.Tokens != turn.ResponseLength || first.RID == second.RID {
		t.Errorf("attempts = %+v", turn.Attempts)
	}
	// It was in the gate when the gate was opened, or came later.
	if second.Queued < first.Ended || second.Started < second.Queued || second.Started < resumed-1e-3 {
		t.Errorf("attempts = %+v, resumed at %v", turn.Attempts, resumed)
	}
	if trace.Counts.ParkedSeconds < turn.GateSeconds || trace.Counts.GenerationSeconds != turn.GenerationSeconds || turn.WallSeconds < turn.GenerationSeconds {
		t.Errorf("times do not add up: %+v, counts %+v", turn, trace.Counts)
	}
}

// The first request of a Group waits for the other Session's, and its trace says how long.
func TestTraceOfAParkedRequest(t *testing.T) {
	t.Parallel()
	e, _ := tracedSession(t, func(c *Config) { c.NSamplesPerPrompt = 2 })
	var sessions []*session
	if err := e.core.do(func() error {
		for _, g := range e.core.groups {
			sessions = g.sessions
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	early, late := sessions[0], sessions[1]
	done := make(chan *wire.Error)
	go func() {
		_, fault := early.Complete(context.Background(), askFor("u", canon.Retry{}))
		done <- fault
	}()
	until(t, func() bool { early.mu.Lock(); defer early.mu.Unlock(); return early.forest.Stats().Nodes == 1 })
	const atLeast = 5 * time.Millisecond
	time.Sleep(atLeast)
	if _, fault := late.Complete(context.Background(), askFor("u", canon.Retry{})); fault != nil {
		t.Fatal(fault)
	}
	if fault := <-done; fault != nil {
		t.Fatal(fault)
	}
	closeEngine(t, e)
	traces := readTraces(t, e.core.cfg.Config, "rollout_0.jsonl")
	first := slices.IndexFunc(traces, func(trace observe.Trace) bool { return trace.Seq == 0 })
	if first < 0 || len(traces) != 2 || len(traces[first].Turns) != 1 {
		t.Fatalf("traces = %+v", traces)
	}
	if trace := traces[first]; trace.Turns[0].LeaseSeconds < atLeast.Seconds() || trace.Counts.ParkedSeconds < atLeast.Seconds() {
		t.Errorf("parked for %v s, counts %+v", trace.Turns[0].LeaseSeconds, trace.Counts)
	}
}

// A Session that a Close ends has a trace, and only one.
func TestTraceOfAClosedEngine(t *testing.T) {
	t.Parallel()
	e, s := tracedSession(t, nil)
	if _, fault := s.Complete(context.Background(), askFor("u", canon.Retry{})); fault != nil {
		t.Fatal(fault)
	}
	closeEngine(t, e)
	closeEngine(t, e)
	traces := readTraces(t, e.core.cfg.Config, "rollout_0.jsonl")
	if len(traces) != 1 || traces[0].Outcome.Reason != reasonClosed || traces[0].Counts.Turns != 1 || traces[0].Outcome.AtFault {
		t.Errorf("traces = %+v", traces)
	}
}

func TestABatchThatCannotBeBuiltIsInTheTraces(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	e := openWith(t, cfg, &countingAllocator{before: func() error { return errors.New("the disk of the memory is full") }})
	startOne(t, e)
	finishStep(t, e, nil)
	trace := readTraces(t, cfg, "rollout_0.jsonl")[0]
	if trace.Outcome.Reason != string(reasonMemory) || !strings.Contains(trace.Outcome.Cause, "disk of the memory") || trace.Outcome.AtFault {
		t.Errorf("outcome = %+v", trace.Outcome)
	}
}

// A trace that cannot be written is a warning that names the path, once, and fails nothing.
func TestTracesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	e := openEngine(t, cfg)
	if err := os.RemoveAll(cfg.TraceDir); err != nil {
		t.Fatal(err)
	}
	warnings := 0
	for rollout := range int64(3) {
		if rollout == 2 { // it is there again
			if err := os.MkdirAll(cfg.TraceDir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Submit([]Task{task(agentTask{})}); err != nil {
			t.Fatal(err)
		}
		r := runStep(t, e, rollout, nil)
		if r.report.Groups != 1 {
			t.Errorf("report = %+v", r.report)
		}
		for _, line := range r.logs {
			if strings.Contains(line, "trace_dir") && strings.Contains(line, cfg.TraceDir) {
				warnings++
			}
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings, want one", warnings)
	}
	raw, err := os.ReadFile(filepath.Join(cfg.TraceDir, "rollout_2.jsonl"))
	if err != nil || !json.Valid(raw) {
		t.Errorf("the third step's traces: %v: %s", err, raw)
	}
}

func TestTraceDirIsChecked(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.TraceDir = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(cfg.TraceDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var wrong *OptionError
	if _, err := Open(cfg); !errors.As(err, &wrong) || wrong.Option != "trace_dir" {
		t.Errorf("err = %v, want one that names trace_dir", err)
	}
}

// A Session can be refused without end: what it writes down is bounded.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	e, s := tracedSession(t, nil)
	for range maxFaults + 5 {
		s.Refused(wire.Invalid("messages", "no"))
	}
	if len(s.log) != maxFaults {
		t.Errorf("%d entries", len(s.log))
	}
	if trace := endTraced(t, e); trace.Counts.Failed != maxFaults+5 {
		t.Errorf("counts = %+v", trace.Counts)
	}
}
