package relax

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// evalResult is what an Eval brought.
type evalResult struct {
	stepResult
	batches map[string]*Batch
	asks    []Event
}

func runEval(t *testing.T, e *Engine, rollout int64, datasets ...EvalDataset) evalResult {
	t.Helper()
	if err := e.StartEval(rollout, datasets); err != nil {
		t.Fatal(err)
	}
	r := evalResult{batches: map[string]*Batch{}}
	r.stepResult = finishStep(t, e, func(ev Event) {
		r.asks = append(r.asks, ev)
		if err := e.Reply(ev.ID, []byte(`{"rewards": [0.25]}`)); err != nil {
			t.Errorf("reply: %v", err)
		}
	})
	for _, ev := range r.events {
		if ev.Kind != EventBatch {
			continue
		}
		var data struct {
			Eval    bool
			Dataset string
			Rollout int64
		}
		if err := json.Unmarshal(ev.Data, &data); err != nil || !data.Eval || data.Rollout != rollout {
			t.Errorf("data of a batch: %s, %v", ev.Data, err)
		}
		r.batches[data.Dataset] = ev.Batch
	}
	return r
}

func scoreOf(v float64) *float64 { return &v }

// Acceptance 16: samples in order, with the dataset's sampling and the Eval's context limit, scored
// without filter, advantage or normalisation; dropped ones are counted and missing.
func TestEval(t *testing.T) {
	t.Parallel()
	cfg := traced(t)
	cfg.CustomRM, cfg.CustomAdvantage, cfg.CustomFilter, cfg.DynamicSamplingFilter = true, true, true, "check_reward_nonzero_std"
	cfg.RolloutMaxContextLen, cfg.EvalMaxContextLen, cfg.Simulator = 10, 2000, longReply(200)
	cfg.AgenticConcurrency = 2
	e := openEngine(t, cfg)
	zero, topK := 0.0, 5
	r := runEval(t, e, 3,
		EvalDataset{
			Name: "math", NSamples: 2, Temperature: &zero, TopK: &topK, MaxResponseLen: 7,
			Metadata: json.RawMessage(`{"level": 3, "mode": "exit"}`), // the task's mode wins
			Tasks: []Task{
				task(agentTask{Mode: "tell", Reward: scoreOf(1)}),
				task(agentTask{Mode: "nocall"}), // I23: exit code 0 before its first request
				task(agentTask{Mode: "unscored"}),
			},
		},
		EvalDataset{Name: "contexts", Tasks: []Task{task(agentTask{Mode: "contexts", Turns: 2})}},
		EvalDataset{Name: "broken", Tasks: []Task{task(agentTask{Mode: "exit"})}},
	)
	want := []DatasetReport{
		{Name: "math", Samples: 6, Delivered: 4, Dropped: 2, Rewards: []float64{1, 1, 0.25, 0.25}, Truncated: []bool{true, true, true, true}},
		{Name: "contexts", Samples: 1, Delivered: 1, Rewards: []float64{0.25}, Truncated: []bool{false}},
		{Name: "broken", Samples: 1, Dropped: 1, Rewards: []float64{}, Truncated: []bool{}},
	}
	for i, d := range r.report.Datasets {
		if d.Name != want[i].Name || d.Samples != want[i].Samples || d.Delivered != want[i].Delivered || d.Dropped != want[i].Dropped ||
			!slices.Equal(d.Rewards, want[i].Rewards) || !slices.Equal(d.Truncated, want[i].Truncated) {
			t.Errorf("dataset %d = %+v, want %+v", i, d, want[i])
		}
	}
	if !r.report.Eval || r.report.Rollout != 3 || len(r.report.Datasets) != 3 || len(r.batches) != 2 || r.report.Groups != 5 || r.report.Rows != 6 {
		t.Fatalf("report = %+v, batches %v", r.report, r.batches)
	}
	if m := r.report.Metrics; m["eval/math"] != 0.625 || m["eval/math-truncated_ratio"] != 1 || m["eval/contexts"] != 0.25 {
		t.Errorf("metrics = %v", m)
	}
	if n := View[float64](r.batches["contexts"], "reward"); len(n) != 2 {
		t.Errorf("%d rows of a session with two contexts", len(n))
	}
	for _, a := range View[float32](r.batches["math"], "advantage") {
		if a != 0 {
			t.Errorf("an advantage of %v", a)
		}
	}
	checkEvalAgents(t, r.batches["math"])
	for _, ev := range r.asks {
		if ev.Kind != EventScore || !strings.Contains(string(ev.Data), `"dataset":"math"`) {
			t.Errorf("an Eval asks: %d %s", ev.Kind, ev.Data)
		}
	}
	for _, record := range e.core.simulator.Requests()[:4] {
		if s := record.Request.Sampling; s.Temperature != 0 || s.TopK != 5 || *s.MaxNewTokens != 7 {
			t.Errorf("sampling = %+v", s)
		}
	}
	traces := readTraces(t, cfg, "eval_3.jsonl")
	if len(traces) != 8 || traces[0].Mode != modeEval {
		t.Errorf("%d traces, the first %+v", len(traces), traces[0])
	}
	reasons := map[string]int64{}
	for _, d := range r.report.Drops {
		reasons[d.Reason] = d.Groups
	}
	if reasons[string(reasonNoCall)] != 2 || reasons[string(reasonExit)] != 1 {
		t.Errorf("drops = %+v", r.report.Drops)
	}
}

// checkEvalAgents checks what the agents of an Eval were told.
func checkEvalAgents(t *testing.T, b *Batch) {
	t.Helper()
	var meta struct {
		GroupID  string `json:"group_id"`
		Metadata struct {
			Mode, Group string
			Level       int
		}
	}
	offsets := View[int64](b, "meta_offsets")
	if err := json.Unmarshal(View[uint8](b, "meta_json")[:offsets[1]], &meta); err != nil {
		t.Fatal(err)
	}
	if m := meta.Metadata; m.Mode != modeEval || !strings.HasPrefix(m.Group, "eval:math:3:group_") || m.Group != meta.GroupID || m.Level != 3 {
		t.Errorf("meta = %+v", meta)
	}
}

// Acceptance 16: train Sessions that are carried live through an Eval.
func TestTrainSessionsSurviveAnEval(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 10, nil)
	submit(t, e, asking("long", agentTask{}), asking("short", agentTask{}))
	runStep(t, e, 0, nil)
	p.set(10, 0)
	r := runEval(t, e, 0, EvalDataset{Name: "d", Tasks: []Task{task(agentTask{}), task(agentTask{})}})
	if r.report.Groups != 2 || r.report.Accounting.Groups.Started != 2 || r.report.Accounting.Groups.CarriedIn != 0 {
		t.Errorf("report = %+v", r.report)
	}
	if len(p.calls) != 1 {
		t.Errorf("the train request was at the backend %d times, want once", len(p.calls))
	}
	p.set(0, 0)
	r.stepResult = runStep(t, e, 1, func(Event) {})
	if a := r.report.Accounting; r.report.Groups != 1 || a.Groups.CarriedIn != 1 || a.Tokens.CarriedIn != 10 || View[int32](r.batch, "aborts")[0] != 1 {
		t.Errorf("report = %+v", r.report)
	}
}

func TestEvalAndTrainingDoNotOverlap(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	dataset := EvalDataset{Name: "d", Tasks: []Task{task(agentTask{})}}
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	if err := e.StartEval(0, []EvalDataset{dataset}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "rollout 0") {
		t.Errorf("eval while a rollout is open: %v", err)
	}
	submit(t, e, task(agentTask{}))
	finishStep(t, e, func(Event) {})
	if err := e.StartEval(0, []EvalDataset{dataset}); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(1); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "eval") {
		t.Errorf("rollout while an eval is open: %v", err)
	}
	if s := readStats(t, e); !s.Eval {
		t.Errorf("stats = %+v", s)
	}
	finishStep(t, e, nil)
}

func TestWrongDatasetsAreNamed(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	tasks := []Task{task(agentTask{})}
	hot, p := -1.0, 1.5
	for _, tt := range []struct {
		name     string
		datasets []EvalDataset
		text     string
	}{
		{"none", nil, "at least one"},
		{"no name", []EvalDataset{{Tasks: tasks}}, "datasets[0].name"},
		{"twice", []EvalDataset{{Name: "d", Tasks: tasks}, {Name: "d"}}, `datasets[1].name: "d"`},
		{"samples", []EvalDataset{{Name: "d", NSamples: -1}}, `dataset "d": n_samples`},
		{"temperature", []EvalDataset{{Name: "d", Temperature: &hot}}, `dataset "d": temperature`},
		{"top_p", []EvalDataset{{Name: "d", TopP: &p}}, `dataset "d": top_p`},
		{"length", []EvalDataset{{Name: "d", MaxResponseLen: -1}}, `dataset "d": max_response_len`},
		{"metadata", []EvalDataset{{Name: "d", Tasks: tasks, Metadata: json.RawMessage(`[1]`)}}, `dataset "d": task 0: metadata`},
		{"task", []EvalDataset{{Name: "d", Tasks: []Task{{Messages: json.RawMessage(`{}`)}}}}, `dataset "d": task 0: messages`},
	} {
		if err := e.StartEval(0, tt.datasets); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want ErrInvalid and %q", tt.name, err, tt.text)
		}
	}
	if r := runEval(t, e, 0, EvalDataset{Name: "empty"}); r.report.Datasets[0].Samples != 0 || len(r.batches) != 0 {
		t.Errorf("an empty dataset: %+v", r.report)
	}
}

func TestAnEvalBatchThatCannotBeBuilt(t *testing.T) {
	t.Parallel()
	e := openWith(t, testConfig(t), &countingAllocator{before: func() error { return errors.New("the disk of the memory is full") }})
	r := runEval(t, e, 0, EvalDataset{Name: "d", Tasks: []Task{task(agentTask{})}})
	if d := r.report.Datasets[0]; d.Delivered != 0 || d.Dropped != 1 || len(d.Rewards) != 0 || !strings.Contains(r.report.Error, "dataset d") {
		t.Errorf("report = %+v", r.report)
	}
	if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != string(reasonMemory) {
		t.Errorf("drops = %+v", r.report.Drops)
	}
}
