package relax

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// partialEngine works on two Groups a step and delivers one; conversations with "long" hang after
// chunk tokens, and the others answer once one hangs.
func partialEngine(t *testing.T, chunk int, alter func(*Config)) (*Engine, *paced) {
	t.Helper()
	cfg := testConfig(t)
	cfg.PartialRollout, cfg.OverSamplingBatchSize = true, 2
	cfg.RolloutMaxResponseLen, cfg.Simulator = 64, longReply(200)
	if alter != nil {
		alter(&cfg)
	}
	e := openEngine(t, cfg)
	return e, pace(e, "long", chunk, 1)
}

// Acceptance 7: a request over 5 steps with a weight update each. The agent sees one ordinary answer,
// its row is contiguous, its spans show the versions, and the budget is never exceeded.
func TestPartialRolloutOverFiveSteps(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, nil)
	submit(t, e, asking("long", agentTask{Mode: "tell"}))
	var carried StepReport
	for step := range int64(4) {
		submit(t, e, asking("short", agentTask{}))
		setVersion(t, e, step)
		r := runStep(t, e, step, nil)
		if n := e.core.simulator.InFlight(); n != 0 {
			t.Errorf("step %d: %d requests are left at the backend", step, n)
		}
		a := r.report.Accounting
		if r.report.Groups != 1 || r.report.InterruptedGroups != 1 || a.Groups.Carried != 1 || a.Sessions.Carried != 1 || a.Tokens.Carried != 10*(step+1) {
			t.Errorf("step %d: report %+v", step, r.report)
		}
		if in := carried.Accounting; step > 0 && (a.Groups.CarriedIn != in.Groups.Carried || a.Tokens.CarriedIn != in.Tokens.Carried) {
			t.Errorf("step %d: carried in %+v, carried out before %+v", step, a, in)
		}
		carried = r.report
	}
	p.set(0, 0)
	setVersion(t, e, 4)
	r := runStep(t, e, 4, func(Event) {}) // nobody has further tasks for it
	b := r.batch
	if r.report.Groups != 1 || b == nil || b.Seqs != 1 || r.report.Accounting.Groups.Carried != 0 {
		t.Fatalf("report = %+v", r.report)
	}
	if got := View[int64](b, "seg_weight_version"); !slices.Equal(got, []int64{0, 1, 2, 3, 4}) {
		t.Errorf("weight versions = %v, want one span for each step", got)
	}
	prompt := View[int32](b, "prompt_len")[0]
	var want []int32
	for i := range int32(5) {
		want = append(want, prompt+10*i)
	}
	if got := View[int32](b, "seg_start"); !slices.Equal(got, want) {
		t.Errorf("spans start at %v, want %v", got, want)
	}
	if got := View[int32](b, "aborts")[0]; got != 4 {
		t.Errorf("aborts = %d, want 4", got)
	}
	checkTokens(t, e, b) // the logprobs hold only if the pieces follow each other
	for i, call := range p.calls {
		if call.prefix != int(prompt)+10*i || call.budget != 64-10*i {
			t.Errorf("attempt %d had a prefix of %d and a budget of %d, want %d and %d", i, call.prefix, call.budget, int(prompt)+10*i, 64-10*i)
		}
	}
	if trained := r.report.Accounting.Tokens.Delivered; trained != 64 {
		t.Errorf("%d tokens, want the budget of 64", trained)
	}
	var meta struct {
		StartRollout int64 `json:"start_rollout_id"`
		Metadata     struct {
			Said    string
			Answers int
		}
		Trace observe.AgenticTrace `json:"agentic_trace"`
	}
	if err := json.Unmarshal(View[uint8](b, "meta_json"), &meta); err != nil {
		t.Fatal(err)
	}
	if said := strings.Repeat("0123456789", 7)[:64]; meta.Metadata.Said != said || meta.Metadata.Answers != 1 {
		t.Errorf("the agent had %d answers, %q; want one, %q", meta.Metadata.Answers, meta.Metadata.Said, said)
	}
	if turn := meta.Trace.Turns[0]; turn.AbortCount != 4 || turn.RequestKind != "resumed" || turn.RolloutID != 0 || meta.StartRollout != 0 {
		t.Errorf("start_rollout_id %d, turn %+v", meta.StartRollout, turn)
	}
	if s := r.report.Metrics["rollout/staleness/max"]; s != 4 {
		t.Errorf("staleness = %v, want 4: metrics %v", s, r.report.Metrics)
	}
}

// Acceptance 7: a Session whose request was aborted max-aborted-count times is protected from the
// next step on: it is not aborted any more, and the step waits for it.
func TestMaxAbortedCountProtects(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 5, func(c *Config) {
		c.PartialRolloutMaxAbortedCount, c.TraceDir = 2, t.TempDir()
	})
	submit(t, e, asking("long", agentTask{}))
	for step := range int64(2) {
		submit(t, e, asking("short", agentTask{}))
		runStep(t, e, step, nil)
	}
	submit(t, e, asking("short", agentTask{}))
	if err := e.StartRollout(2); err != nil {
		t.Fatal(err)
	}
	// The short one is delivered and nothing is owed; the protected one hangs at the backend.
	until(t, func() bool { n := counts(e); return n.Debt == 0 && n.Protected == 1 && p.held() == 1 })
	if len(p.calls) != 3 {
		t.Errorf("%d attempts, want 3", len(p.calls))
	}
	if w := findWait(t, e, "backend"); w.Count != 1 || w.Owner == "" {
		t.Errorf("waits for the backend: %+v", w)
	}
	p.release()
	r := finishStep(t, e, nil)
	if r.report.Groups != 1 || r.report.Accounting.Groups.Carried != 1 {
		t.Errorf("report = %+v", r.report)
	}
	r = runStep(t, e, 3, func(Event) {}) // it was finished when nothing owed it
	if r.report.Groups != 1 || r.report.Accounting.Groups.CarriedIn != 1 {
		t.Errorf("report = %+v", r.report)
	}
	var kinds []string
	for _, trace := range readTraces(t, e.core.cfg.Config, "rollout_3.jsonl") {
		for _, turn := range trace.Turns {
			kinds = append(kinds, turn.RequestKind)
		}
	}
	if !slices.Equal(kinds, []string{"protected"}) {
		t.Errorf("request kinds %v, want protected", kinds)
	}
}

// Acceptance 8: without partial rollout what is unfinished at a step's end is killed, and nothing is
// left at the backend.
func TestLeftoversAreKilledAtStepEnd(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, func(c *Config) { c.PartialRollout = false })
	submit(t, e, asking("long", agentTask{}), asking("short", agentTask{}))
	r := runStep(t, e, 0, nil)
	a := r.report.Accounting
	if r.report.Groups != 1 || a.Groups.Dropped != 1 || a.Groups.Carried != 0 || a.Tokens.Dropped != 10 {
		t.Errorf("report = %+v", r.report)
	}
	if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != string(schedule.ReasonStepEnd) {
		t.Errorf("drops = %+v", r.report.Drops)
	}
	if n := p.held(); n != 0 || e.core.simulator.InFlight() != 0 {
		t.Errorf("%d requests hang, %d are at the backend", n, e.core.simulator.InFlight())
	}
	if n := e.core.launcher.Live(); n != 0 {
		t.Errorf("%d agents are left", n)
	}
	if !slices.ContainsFunc(r.logs, func(l string) bool { return strings.Contains(l, "over_sampling_batch_size") }) {
		t.Errorf("no warning that the surplus is thrown away: %q", r.logs)
	}
}

// Acceptance 10: the finished surplus of a dynamic batch is delivered with the step, as much as keeps
// the number of Groups a multiple of the data-parallel size.
func TestDynamicBatch(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, func(c *Config) {
		c.UseDynamicGlobalBatchSize, c.DataParallelSize = true, 2
		c.RolloutBatchSize, c.OverSamplingBatchSize = 2, 6
	})
	p.set(10, 0)
	// Nothing is delivered before the scores are in: then the schedule has five to choose from.
	submit(t, e, asking("long", agentTask{}))
	for range 5 {
		submit(t, e, asking("short", agentTask{}))
	}
	e.core.cfg.CustomFilter = true
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	ctx := waitContext(t)
	var asked []uint64
	for len(asked) < 5 {
		ev, err := e.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == EventFilter {
			asked = append(asked, ev.ID)
		}
	}
	until(t, func() bool { return p.held() == 1 })
	err := e.core.do(func() error { // at once: the step must not close in between
		for _, id := range asked {
			if err := e.core.asks[id].reply([]byte(`{"keep": true}`)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r := finishStep(t, e, nil)
	if r.report.Groups != 4 || r.report.Debt != 0 || r.report.Accounting.Groups.Carried != 2 {
		t.Errorf("report = %+v, want 4 of 5 finished Groups delivered and one carried with the unfinished", r.report)
	}
	indices := map[int64]bool{}
	for _, i := range View[int64](r.batch, "sample_indices") {
		indices[i] = true
	}
	if len(indices) != 4 {
		t.Errorf("%d distinct sample indices, want 4", len(indices))
	}
}

// Aborts add up down a conversation: partial_rollout_max_aborted_count is for all its turns, though each
// of them is aborted once only (reference cases H15, L16). Other branches of the Session do not count.
func TestAbortsOfEarlierTurnsProtect(t *testing.T) {
	for _, tt := range []struct {
		limit, turns int
		branches     bool
		protected    int
	}{
		{limit: 3, turns: 2}, {limit: 3, turns: 3, protected: 1}, {limit: 3, turns: 5, protected: 1},
		{limit: 3, turns: 5, branches: true}, {limit: 1, turns: 1, protected: 1},
	} {
		t.Run(fmt.Sprintf("%d aborts of %d, branches %t", tt.turns, tt.limit, tt.branches), func(t *testing.T) {
			t.Parallel()
			e, s := openIdle(t, func(c *Config) { c.PartialRollout, c.PartialRolloutMaxAbortedCount = true, tt.limit })
			var attempts atomic.Int64
			e.core.simulator.SetFault(func(*sglangtest.GenerateRequest) *sglangtest.Fault {
				if attempts.Add(1)%2 == 1 { // each turn is aborted once
					return &sglangtest.Fault{AbortAfter: 1}
				}
				return nil
			})
			messages := []chatMessage{{"role": "user", "content": "Hello"}}
			for i := range tt.turns {
				if tt.branches {
					messages[0] = chatMessage{"role": "user", "content": fmt.Sprint("Hello ", i)}
				}
				a := post(t, e, s, map[string]any{"messages": messages})
				if a.status != 200 {
					t.Fatalf("turn %d: %+v", i, a)
				}
				if !tt.branches {
					messages = append(messages, a.Choices[0].Message, chatMessage{"role": "user", "content": "and then?"})
				}
			}
			if err := e.Pause(waitContext(t)); err != nil { // what was armed is protected from the next resume on
				t.Fatal(err)
			}
			if err := e.Resume(); err != nil {
				t.Fatal(err)
			}
			if n := counts(e).Protected; n != tt.protected || attempts.Load() != int64(2*tt.turns) {
				t.Errorf("%d sessions are protected after %d attempts, want %d after %d", n, attempts.Load(), tt.protected, 2*tt.turns)
			}
		})
	}
}
