package relax

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// waitLimit bounds every wait of a test; nothing depends on its length.
const waitLimit = 60 * time.Second

// testConfig starts this test binary as the agent.
func testConfig(t testing.TB) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		AgentCommand: "exec " + strconv.Quote(self), AgentCwd: t.TempDir(),
		AgentEnv:       map[string]string{agentVariable: "1"},
		AgentKillGrace: 0.2, RunDir: t.TempDir(),
	}
}

func openEngine(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

// closeEngine ends an engine, and does not mind that a test poisoned it.
func closeEngine(t testing.TB, e *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := e.Close(ctx); err != nil && !errors.Is(err, ErrPanic) {
		t.Errorf("close: %v", err)
	}
}

func task(a agentTask) Task {
	if a.Reward == nil && a.Mode != "unscored" {
		one := 1.0
		a.Reward = &one
	}
	raw, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return Task{Messages: json.RawMessage(`[{"role":"user","content":"Hello"}]`), Metadata: raw}
}

// stepResult is what a rollout brought.
type stepResult struct {
	batch  *Batch
	report StepReport
	logs   []string
	events []Event
}

// runStep polls until the step ends. answer handles events that want a reply.
func runStep(t *testing.T, e *Engine, rollout int64, answer func(Event)) stepResult {
	t.Helper()
	if err := e.StartRollout(rollout); err != nil {
		t.Fatal(err)
	}
	return finishStep(t, e, answer)
}

func finishStep(t *testing.T, e *Engine, answer func(Event)) stepResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	var r stepResult
	for {
		ev, err := e.Poll(ctx)
		if err != nil {
			stats, _ := e.Stats()
			t.Fatalf("poll: %v; stats %s; logs %v", err, stats, r.logs)
		}
		r.events = append(r.events, ev)
		switch ev.Kind {
		case EventBatch:
			r.batch = ev.Batch
		case EventLog:
			var line struct{ Line string }
			if err := json.Unmarshal(ev.Data, &line); err != nil {
				t.Fatalf("log event: %v: %s", err, ev.Data)
			}
			r.logs = append(r.logs, line.Line)
		case EventStepEnd:
			if err := json.Unmarshal(ev.Data, &r.report); err != nil {
				t.Fatal(err)
			}
			checkBooks(t, r)
			checkCarried(t, e, r.report)
			return r
		case EventTasksNeeded, EventScore, EventAdvantage, EventFilter:
			if answer == nil {
				t.Fatalf("an event wants a reply: %s", ev.Data)
			}
			answer(ev)
		}
	}
}

// checkBooks holds the rules of every step: balances, and mask 1 exactly on tokens with a fate.
func checkBooks(t *testing.T, r stepResult) {
	t.Helper()
	for name, b := range map[string]Balance{
		"groups": r.report.Accounting.Groups, "sessions": r.report.Accounting.Sessions, "tokens": r.report.Accounting.Tokens,
	} {
		if b.CarriedIn+b.Started != b.Delivered+b.Dropped+b.Carried || min(b.CarriedIn, b.Started, b.Delivered, b.Dropped, b.Carried) < 0 {
			t.Errorf("%s do not balance: %+v", name, b)
		}
	}
	var dropped Drop
	for _, d := range r.report.Drops {
		dropped.Groups, dropped.Sessions, dropped.Tokens = dropped.Groups+d.Groups, dropped.Sessions+d.Sessions, dropped.Tokens+d.Tokens
	}
	if a := r.report.Accounting; dropped.Tokens != a.Tokens.Dropped || dropped.Groups != a.Groups.Dropped || dropped.Sessions != a.Sessions.Dropped {
		t.Errorf("drops hold %+v, the balances are %+v", dropped, a)
	}
	var trained int64
	if r.batch != nil {
		for _, m := range View[uint8](r.batch, "loss_mask") {
			trained += int64(m)
		}
	}
	delivered := r.report.Accounting.Tokens.Delivered
	oneRowASession := int64(r.report.Rows) == r.report.Accounting.Sessions.Delivered
	if trained < delivered || oneRowASession && trained != delivered {
		t.Errorf("mask marks %d tokens, %d were delivered", trained, delivered)
	}
}

// lastCarried has what each engine's last train step carried out.
var lastCarried sync.Map

// checkCarried holds that a train step begins with what the last one carried.
func checkCarried(t *testing.T, e *Engine, r StepReport) {
	t.Helper()
	if r.Eval {
		return
	}
	last, _ := lastCarried.Swap(e, r.Accounting)
	before, _ := last.(Accounting) // of the first step: nothing
	for name, b := range map[string][2]Balance{
		"groups": {before.Groups, r.Accounting.Groups}, "sessions": {before.Sessions, r.Accounting.Sessions}, "tokens": {before.Tokens, r.Accounting.Tokens},
	} {
		if b[0].Carried != b[1].CarriedIn {
			t.Errorf("%s: %d were carried, %d came in", name, b[0].Carried, b[1].CarriedIn)
		}
	}
}

// checkTokens compares what was recorded with the simulator's own account of it.
func checkTokens(t *testing.T, e *Engine, b *Batch) {
	t.Helper()
	checkTokensOf(t, e.core.simulator.Model(), b)
}

// checkTokensOf compares what was recorded with the model's account of it.
func checkTokensOf(t *testing.T, model *sglangtest.Model, b *Batch) {
	t.Helper()
	tokens, mask := View[int32](b, "tokens"), View[uint8](b, "loss_mask")
	logprobs, offsets := View[float32](b, "logprobs"), View[int64](b, "offsets")
	for row := range b.Seqs {
		start, end := int(offsets[row]), int(offsets[row+1])
		for at := start; at < end; {
			next := at + 1
			for next < end && mask[next] == mask[at] {
				next++
			}
			if mask[at] == 1 {
				want, err := model.TokenLogprobs(tokens[start:at], tokens[at:next])
				if err != nil {
					t.Fatalf("row %d: %v", row, err)
				}
				for i, w := range want {
					if math.Abs(float64(w-logprobs[at+i])) > 1e-5 {
						t.Errorf("row %d token %d: logprob %v, want %v", row, at+i-start, logprobs[at+i], w)
					}
				}
			}
			at = next
		}
	}
}

// readStats reads the engine's own account of itself.
func readStats(t *testing.T, e *Engine) Stats {
	t.Helper()
	raw, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	var s Stats
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// counts is a snapshot of the schedule; zero once the engine is closed.
func counts(e *Engine) (out schedule.Counts) {
	_ = e.core.do(func() error {
		out = e.core.machine.Counts()
		return nil
	})
	return out
}

// passed counts the requests that were let through to the backend and are not back.
func passed(e *Engine) int { return counts(e).Passed }

// until waits for a condition another goroutine brings about.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(waitLimit)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("the condition never came true")
		}
		time.Sleep(time.Millisecond)
	}
}
