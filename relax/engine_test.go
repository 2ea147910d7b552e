package relax

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestStepDeliversRows(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutBatchSize, cfg.NSamplesPerPrompt = 2, 3
	e := openEngine(t, cfg)
	if err := e.SetWeightVersion(5); err != nil {
		t.Fatal(err)
	}
	if err := e.Submit([]Task{task(agentTask{Turns: 2}), task(agentTask{Turns: 1})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 3, nil)
	if r.report.Groups != 2 || r.report.Rows != 6 || r.report.Debt != 0 || r.report.Error != "" {
		t.Errorf("report = %+v", r.report)
	}
	b := r.batch
	if b == nil || b.Seqs != 6 || b.RolloutID != 3 {
		t.Fatalf("batch = %+v", b)
	}
	if got, want := View[int32](b, "turns"), []int32{2, 2, 2, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("turns = %v, want %v", got, want)
	}
	if got, want := View[int32](b, "session_seq"), []int32{0, 1, 2, 0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("session_seq = %v, want %v", got, want)
	}
	for _, v := range View[int64](b, "seg_weight_version") {
		if v != 5 {
			t.Errorf("a segment has weight version %d, want 5", v)
		}
	}
	for i, a := range View[float32](b, "advantage") {
		if a != 0 { // equal rewards
			t.Errorf("advantage %d = %v, want 0", i, a)
		}
	}
	checkTokens(t, e, b)
	if !slices.ContainsFunc(r.logs, func(l string) bool {
		return strings.HasPrefix(l, "AGENTIC ROLLOUT event=accounting_end rollout=3 groups=2 rows=6 debt=0")
	}) {
		t.Errorf("no accounting_end line in %q", r.logs)
	}
}

// Acceptance 3.
func TestBadSessionsDropTheirGroupAndTheStepRefills(t *testing.T) {
	for _, tt := range []struct {
		name   string
		task   agentTask
		reason string
		cause  string
		alter  func(*Config)
	}{
		{"exits 7 before any call", agentTask{Mode: "exit"}, "agent_exit", "something went wrong", nil},
		{"names the code", agentTask{Mode: "exit"}, "agent_exit", "code 7", nil},
		{"exits 6 after a turn", agentTask{Mode: "lateexit"}, "agent_exit", "code 6", nil},
		{"never calls", agentTask{Mode: "nocall"}, "no_request", "made no model request", nil},
		{"is refused", agentTask{Mode: "unread"}, "no_request", "refused: 1, the first with 400: messages", nil},
		{"is silent", agentTask{Mode: "silent"}, "first_request_timeout", "agent_first_request_timeout",
			func(c *Config) { c.AgentFirstRequestTimeout = 1 }},
		{"hangs", agentTask{Mode: "hang"}, "agent_timeout", "agent_timeout", func(c *Config) { c.AgentTimeout = 1 }},
		{"writes bad JSON", agentTask{Output: "{oops"}, "invalid_output", "session_output.json", nil},
		{"names no recorded context", agentTask{Output: `{"name":"main","messages":[{"role":"user","content":"x"},` +
			`{"role":"assistant","content":"never said"}],"reward":1}`}, "export", "record", nil},
		{"writes no reward", agentTask{Mode: "unscored"}, "reward", "custom_rm", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			cfg.MaxConsecutiveDroppedGroups = 1000
			if tt.alter != nil {
				tt.alter(&cfg)
			}
			e := openEngine(t, cfg)
			if err := e.Submit([]Task{task(tt.task)}); err != nil {
				t.Fatal(err)
			}
			// On a slow machine a good agent may run into the short timeouts as well: it is
			// replaced until one is fast enough.
			r := runStep(t, e, 0, func(ev Event) { replyTasks(t, e, ev, task(agentTask{})) })
			if r.report.Groups != 1 || r.report.Error != "" {
				t.Errorf("report = %+v", r.report)
			}
			if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != tt.reason || !strings.Contains(r.report.Drops[0].First, tt.cause) {
				t.Errorf("drops = %+v, want one with reason %s and %q", r.report.Drops, tt.reason, tt.cause)
			}
		})
	}
}

func replyTasks(t *testing.T, e *Engine, ev Event, tasks ...Task) {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"tasks": tasks})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Reply(ev.ID, raw); err != nil {
		t.Errorf("reply: %v", err)
	}
}

func TestFailureBudgetEndsTheStepWithTheFirstCause(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.MaxConsecutiveDroppedGroups = 2
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "exit"}), task(agentTask{Mode: "nocall"}), task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, nil)
	if !strings.Contains(r.report.Error, "code 7") || r.report.Debt != 1 || r.batch != nil {
		t.Errorf("report = %+v, batch %v", r.report, r.batch)
	}
	if r := runStep(t, e, 1, nil); r.report.Groups != 1 { // the next step is not affected
		t.Errorf("next step: %+v", r.report)
	}
}

func TestTasksAreAskedFor(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutBatchSize = 3
	e := openEngine(t, cfg)
	asked := 0
	r := runStep(t, e, 0, func(ev Event) {
		asked++
		if err := e.Reply(ev.ID, []byte(`{"tasks": []}`)); !errors.Is(err, ErrInvalid) {
			t.Errorf("an empty reply: err = %v, want ErrInvalid", err)
		}
		if err := e.Reply(ev.ID, []byte(`{"tasks": [{"messages": "no list"}]}`)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a bad task: err = %v, want ErrInvalid", err)
		}
		raw, err := json.Marshal(map[string]any{"tasks": []Task{task(agentTask{})}, "end": asked == 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Reply(ev.ID, raw); err != nil {
			t.Errorf("reply: %v", err)
		}
		if err := e.Reply(ev.ID, raw); !errors.Is(err, ErrState) {
			t.Errorf("a second answer: err = %v, want ErrState", err)
		}
	})
	if asked != 2 || r.report.Groups != 2 || r.report.Debt != 1 {
		t.Errorf("asked %d times, report %+v", asked, r.report)
	}
}

func TestScoreHook(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.CustomRM, cfg.NSamplesPerPrompt, cfg.RewardKey = true, 2, "main"
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "unscored"}), task(agentTask{Mode: "unscored"})}); err != nil {
		t.Fatal(err)
	}
	groups := 0
	r := runStep(t, e, 0, func(ev Event) {
		groups++
		var ask struct {
			Sessions []struct {
				Messages []map[string]any
				Reward   json.RawMessage
			}
		}
		if err := json.Unmarshal(ev.Data, &ask); err != nil || len(ask.Sessions) != 2 || len(ask.Sessions[0].Messages) != 2 {
			t.Errorf("score event %s: %v", ev.Data, err)
		}
		for _, bad := range []string{`{"rewards": [1]}`, `{"rewards": [1, "x"]}`, `{"rewards": [1, null]}`, `{"rewards": [1, 1e999]}`, `[]`} {
			if err := e.Reply(ev.ID, []byte(bad)); !errors.Is(err, ErrInvalid) {
				t.Errorf("reply %s: err = %v, want ErrInvalid", bad, err)
			}
		}
		answer := `{"rewards": [{"main": 1, "length": 7}, 0]}`
		if groups == 1 {
			answer = `{"error": "the judge is away"}`
		}
		if err := e.Reply(ev.ID, []byte(answer)); err != nil {
			t.Errorf("reply: %v", err)
		}
	})
	if got, want := View[float64](r.batch, "reward"), []float64{1, 0}; !slices.Equal(got, want) {
		t.Errorf("rewards = %v, want %v", got, want)
	}
	if a := View[float32](r.batch, "advantage"); !(a[0] > 0.7 && a[1] < -0.7) {
		t.Errorf("advantages = %v, want about ±0.707", a)
	}
	if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != "score" || !strings.Contains(r.report.Drops[0].First, "judge") {
		t.Errorf("drops = %+v", r.report.Drops)
	}
}

func TestExplicitExportPicksABranch(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "branch", Turns: 2})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, nil)
	if r.report.Groups != 1 || View[int32](r.batch, "turns")[0] != 2 {
		t.Fatalf("report = %+v", r.report)
	}
	if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != "not_exported" || r.report.Drops[0].Tokens == 0 {
		t.Errorf("the other branch's tokens have no fate: %+v", r.report.Drops)
	}
	var meta struct{ Name string }
	if err := json.Unmarshal(View[uint8](r.batch, "meta_json"), &meta); err != nil || meta.Name != "main" {
		t.Errorf("meta name = %q, %v", meta.Name, err)
	}
}

func TestPauseParksAndResumeContinues(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	text := strings.Repeat("a long reply ", 40)
	cfg.Simulator = json.RawMessage(fmt.Sprintf(`{"token_delay_ms": 2, "policy": {"default": [{"text": %q}]}}`, text))
	e := openEngine(t, cfg)
	if err := e.SetWeightVersion(1); err != nil {
		t.Fatal(err)
	}
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return passed(e) == 1 && e.core.simulator.InFlight() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	time.Sleep(20 * time.Millisecond) // some tokens, however many; the assertions hold for none as well
	if err := e.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if n := passed(e); n != 0 {
		t.Errorf("%d requests at the backend after pause", n)
	}
	if err := e.SetWeightVersion(2); err != nil {
		t.Fatal(err)
	}
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	r := finishStep(t, e, nil)
	if got := View[int32](r.batch, "aborts")[0]; got != 1 {
		t.Errorf("aborts = %d, want 1", got)
	}
	if v := View[int64](r.batch, "seg_weight_version"); v[len(v)-1] != 2 || len(v) > 2 {
		t.Errorf("weight versions = %v, want them to end with 2", v)
	}
	checkTokens(t, e, r.batch)
}

func TestCloseEndsAgentsAndPolls(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NSamplesPerPrompt = 3
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "silent"})}); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	polled := make(chan error)
	go func() {
		for {
			if _, err := e.Poll(context.Background()); err != nil {
				polled <- err
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-polled; !errors.Is(err, ErrClosed) {
		t.Errorf("poll: %v, want ErrClosed", err)
	}
	for name, err := range map[string]error{
		"submit": e.Submit(nil), "start": e.StartRollout(1), "version": e.SetWeightVersion(1), "resume": e.Resume(), "close": e.Close(ctx),
	} {
		if name == "close" && err != nil || name != "close" && !errors.Is(err, ErrClosed) {
			t.Errorf("%s after close: %v", name, err)
		}
	}
	if n := e.core.goroutines.Names(); len(n) != 0 {
		t.Errorf("goroutines after close: %v", n)
	}
}

func TestPanicPoisonsTheEngine(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	e.core.post(func() { panic("boom") })
	_, err := e.Poll(context.Background())
	if !errors.Is(err, ErrPanic) || !strings.Contains(err.Error(), "boom") {
		t.Errorf("poll: %v, want ErrPanic with the cause", err)
	}
	if err := e.Submit(nil); !errors.Is(err, ErrPanic) {
		t.Errorf("submit: %v, want ErrPanic", err)
	}
}

// An idle host that calls nothing but Close must hear of a panic.
func TestCloseTellsOfAPanic(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	e.core.goroutines.Go("bad", func() { panic("boom") })
	<-e.core.ctx.Done()
	for range 2 {
		if err := e.Close(waitContext(t)); !errors.Is(err, ErrPanic) || !strings.Contains(err.Error(), "boom") {
			t.Errorf("close: %v, want ErrPanic with the cause", err)
		}
	}
}

func TestOneStepAtATime(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(1); !errors.Is(err, ErrState) {
		t.Errorf("a second step: %v, want ErrState", err)
	}
}

// A reply with tasks is read as strictly as Submit: a misspelt member is no task without messages.
func TestRepliesWithTasksAreChecked(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	r := runStep(t, e, 0, func(ev Event) {
		for reply, want := range map[string]string{
			`{"tasks":[{"mesages":[]}]}`:         `unknown field "mesages"`,
			`{"tasks":[],"end":false}`:           "send at least one task",
			`{"tasks":[{"metadata":7}]}`:         "task 0",
			`{"tasks":[{}],"over":true}`:         `unknown field "over"`,
			`{"tasks":[],"end":true} {}`:         "text after the value",
			`{"tasks":[{"messages":"no list"}]}`: "task 0",
		} {
			if err := e.Reply(ev.ID, []byte(reply)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("reply %s: %v, want %q", reply, err, want)
			}
		}
		if err := e.Reply(ev.ID, []byte(`{"tasks":[],"end":true}`)); err != nil {
			t.Error(err)
		}
	})
	if r.report.Groups != 0 || r.report.Debt != 1 {
		t.Errorf("report %+v", r.report)
	}
}
