package relax

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// A list with one advantage for each turn goes with the row's turns; the row with one number has
// it on all of its tokens.
func TestAdvantagesOfTurns(t *testing.T) {
	t.Parallel()
	cfg := contextsConfig(t)
	cfg.NSamplesPerPrompt, cfg.SharedPrefixLoss = 1, sharedFirst
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "contexts", Turns: 2})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, replyOnce(t, e, `{"advantages":[[[3,-1],0.5]]}`))
	if r.batch == nil {
		t.Fatalf("no batch: %+v", r.report)
	}
	defer r.batch.Release()
	b := r.batch
	turns := View[int64](b, "turn_offsets")
	start, length, advantage := View[int32](b, "turn_start"), View[int32](b, "turn_len"), View[float32](b, "turn_advantage")
	if !slices.Equal(turns, []int64{0, 2, 4}) || !slices.Equal(advantage, []float32{3, -1, 0.5, 0.5}) {
		t.Fatalf("turns %v, advantages %v", turns, advantage)
	}
	if masked := View[uint8](b, "turn_masked"); !slices.Equal(masked, []uint8{0, 0, 1, 0}) {
		t.Errorf("masked turns %v: the second context shares its first turn", masked)
	}
	offsets, mask, tokens := View[int64](b, "offsets"), View[uint8](b, "loss_mask"), View[float32](b, "advantages")
	prompt := int64(View[int32](b, "prompt_len")[1])
	for at := range tokens {
		want := float32(0)
		switch row := int64(at); {
		case row >= offsets[1]+prompt:
			want = 0.5
		case row < offsets[1] && mask[at] == 1:
			want = 3
			if int32(at) >= start[1] {
				want = -1
			}
		}
		if tokens[at] != want {
			t.Fatalf("advantage of token %d = %v, want %v", at, tokens[at], want)
		}
	}
	sums := View[int64](b, "sample_index_mask_sums")
	if want := int64(length[0] + length[1] + length[3]); sums[0] != want || sums[1] != want {
		t.Errorf("mask sums %v, want %d twice", sums, want)
	}
	mean := (3*float64(length[0]) - float64(length[1])) / float64(length[0]+length[1])
	if got := View[float32](b, "advantage")[0]; math.Abs(float64(got)-mean) > 1e-6 {
		t.Errorf("advantage of the row %v, want the turns' mean %v", got, mean)
	}
	metas, metaAt := View[uint8](b, "meta_json"), View[int64](b, "meta_offsets")
	for row, want := range []bool{true, false} {
		var meta struct {
			PerTurn bool `json:"per_turn"`
		}
		if err := json.Unmarshal(metas[metaAt[row]:metaAt[row+1]], &meta); err != nil || meta.PerTurn != want {
			t.Errorf("meta of row %d has per_turn %v, %v; want %v", row, meta.PerTurn, err, want)
		}
	}
	if index := View[int64](b, "sample_indices"); index[0] != index[1] {
		t.Errorf("sample indices %v of one session", index)
	}
	raw := View[float32](b, "raw_reward")
	if raw[0] != raw[1] || math.IsNaN(float64(raw[0])) {
		t.Errorf("raw rewards %v, want the session's twice", raw)
	}
}

func TestEstimatorsWithoutTurnsRefuseLists(t *testing.T) {
	t.Parallel()
	cfg := contextsConfig(t)
	cfg.NSamplesPerPrompt, cfg.AdvantageEstimator = 1, "ppo"
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Mode: "contexts", Turns: 2})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, func(ev Event) {
		err := e.Reply(ev.ID, []byte(`{"advantages":[[[3,-1],0.5]]}`))
		if err == nil || !strings.Contains(err.Error(), "advantage_estimator ppo") {
			t.Errorf("reply: %v", err)
		}
		replyOnce(t, e, `{"advantages":[[1,0.5]]}`)(ev)
	})
	if r.batch == nil {
		t.Fatalf("no batch: %+v", r.report)
	}
	r.batch.Release()
}

// filterConfig is for Groups of two Sessions with the same reward.
func filterConfig(t *testing.T) Config {
	cfg := testConfig(t)
	cfg.NSamplesPerPrompt, cfg.MaxConsecutiveDroppedGroups = 2, 1
	return cfg
}

func TestBuiltInFilter(t *testing.T) {
	t.Parallel()
	cfg := filterConfig(t)
	cfg.DynamicSamplingFilter = "check_reward_nonzero_std"
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, replyOnce(t, e, ""))
	if r.batch != nil || len(r.report.Drops) != 1 || r.report.Drops[0].Reason != "filtered:zero_std_1.0" {
		t.Errorf("report %+v", r.report)
	}
}

func TestFilterHook(t *testing.T) {
	t.Parallel()
	cfg := filterConfig(t)
	cfg.CustomFilter, cfg.MaxConsecutiveDroppedGroups = true, 8
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{Turns: 2}), task(agentTask{}), task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	answers := []string{`{"keep":false,"reason":" too  easy "}`, `{"error":"no verdict"}`, `{"keep":true}`}
	r := runStep(t, e, 0, func(ev Event) {
		if ev.Kind != EventFilter {
			replyOnce(t, e, "")(ev)
			return
		}
		var data struct {
			Sessions []struct {
				Reward   float64
				Contexts []filterContext
			}
		}
		if err := json.Unmarshal(ev.Data, &data); err != nil || len(data.Sessions) != 2 {
			t.Fatalf("filter event %s: %v", ev.Data, err)
		}
		if s := data.Sessions[0]; s.Reward != 1 || s.Contexts[0].Advantage != 0 || s.Contexts[0].ResponseLen == 0 || s.Contexts[0].Status != "completed" {
			t.Errorf("filter event %s", ev.Data)
		}
		for _, wrong := range []string{`{}`, `{"keep":1}`, `[]`} {
			if err := e.Reply(ev.ID, []byte(wrong)); !errors.Is(err, ErrInvalid) {
				t.Errorf("reply %s: %v", wrong, err)
			}
		}
		replyOnce(t, e, answers[0])(ev)
		answers = answers[1:]
	})
	if r.batch == nil || r.batch.Seqs != 2 {
		t.Fatalf("report %+v", r.report)
	}
	r.batch.Release()
	var reasons []string
	for _, d := range r.report.Drops {
		reasons = append(reasons, d.Reason)
	}
	if !slices.Equal(reasons, []string{"filter", "filtered:too_easy"}) {
		t.Errorf("drops %v", reasons)
	}
}

// A filter that keeps nothing is heard of, again after every so many Groups; one that is kept starts
// the count anew.
func TestFiltersThatKeepNothingWarn(t *testing.T) {
	t.Parallel()
	cfg := filterConfig(t)
	cfg.CustomFilter = true
	e := openEngine(t, cfg)
	if err := e.core.do(func() error { e.core.filteredRun = filterWarning - 1; return nil }); err != nil {
		t.Fatal(err)
	}
	submit(t, e, task(agentTask{}), task(agentTask{}), task(agentTask{}))
	keep := []string{`{"keep":false}`, `{"keep":false}`, `{"keep":true}`}
	r := runStep(t, e, 0, func(ev Event) {
		replyOnce(t, e, keep[0])(ev)
		keep = keep[1:]
	})
	warnings := 0
	for _, l := range r.logs {
		if strings.Contains(l, "Filters keep no group") {
			warnings++
		}
	}
	run := -1
	if err := e.core.do(func() error { run = e.core.filteredRun; return nil }); err != nil {
		t.Fatal(err)
	}
	if warnings != 1 || run != 0 {
		t.Errorf("%d warnings, a run of %d, report %+v", warnings, run, r.report)
	}
}

// A reward model for Groups judges Sessions that have a reward, too.
func TestGroupRewardModelOverwrites(t *testing.T) {
	t.Parallel()
	for group, want := range map[bool]float64{true: 0.25, false: 1} {
		cfg := testConfig(t)
		cfg.CustomRM, cfg.GroupRM = true, group
		e := openEngine(t, cfg)
		if err := e.Submit([]Task{task(agentTask{})}); err != nil {
			t.Fatal(err)
		}
		r := runStep(t, e, 0, replyOnce(t, e, `{"rewards":[0.25]}`))
		if r.batch == nil || View[float64](r.batch, "reward")[0] != want {
			t.Fatalf("group_rm %v: report %+v", group, r.report)
		}
		r.batch.Release()
	}
}

func TestFilterReasons(t *testing.T) {
	for text, want := range map[string]string{
		"": "filtered", " \n": "filtered", "zero std": "filtered:zero_std", strings.Repeat("é", 60): "filtered:" + strings.Repeat("é", 40),
	} {
		if got := filterReason(text); string(got) != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
