package observe

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func check(t *testing.T, m map[string]float64, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		if got, ok := m[name]; !ok || math.Abs(got-v) > 1e-9 {
			t.Errorf("%s = %v (there: %v), want %v", name, got, ok, v)
		}
	}
}

func TestMetrics(t *testing.T) {
	m := Step{}.Metrics([]RowStat{
		{Session: 0, Reward: 1, ResponseLen: 10, Turns: 2, PromptTokens: 30, CachedTokens: 15, Staleness: 1},
		{Session: 1, Reward: 0, ResponseLen: 20, Turns: 1, Truncated: true},
		{Session: 2, Reward: math.NaN(), ResponseLen: 60, Turns: 3},
	})
	check(t, m, map[string]float64{
		"rollout/raw_reward": 0.5, "rollout/response_len/mean": 30, "rollout/response_len/median": 20,
		"rollout/response_len/max": 60, "rollout/response_len/min": 10, "rollout/num_turn/mean": 2,
		"rollout/truncated_ratio": 1.0 / 3, "rollout/prefix_cache_hit_rate": 0.5, "rollout/staleness/max": 1,
		"rollout/avg_cached_tokens_per_sample": 5,
	})
}

// The figures of the reference's own test (cases O5).
func TestTurnQuantiles(t *testing.T) {
	var rows []RowStat
	for i, turns := range []int{2, 4, 10, 1} {
		rows = append(rows, RowStat{Session: i, Turns: turns})
	}
	check(t, Step{}.Metrics(rows), map[string]float64{
		"rollout/num_turn/min": 1, "rollout/num_turn/mean": 4.25, "rollout/num_turn/max": 10, "rollout/num_turn/p50": 3,
		"rollout/num_turn/p90": 8.2, "rollout/num_turn/p95": 9.1, "rollout/num_turn/p99": 9.82,
	})
}

// Two Sessions, one with a main and two searcher contexts: it counts once.
func TestASessionCountsOnce(t *testing.T) {
	none := math.NaN()
	m := Step{Rollout: 3, Passrate: true}.Metrics([]RowStat{
		{Group: 1, Session: 0, Reward: 1, ResponseLen: 10, Turns: 2, Metadata: map[string]float64{"outcome": 1}},
		{Group: 1, Session: 0, Reward: none, ResponseLen: 5, Turns: 1, Metadata: map[string]float64{"useful": 0.2}, Truncated: true},
		{Group: 1, Session: 0, Reward: none, ResponseLen: 5, Turns: 1, Metadata: map[string]float64{"useful": 0.6}},
		{Group: 1, Session: 1, Reward: 0, ResponseLen: 40, Turns: 1, Metadata: map[string]float64{"outcome": 0}},
	})
	check(t, m, map[string]float64{
		"rollout/raw_reward": 0.5, "rollout/response_len/mean": 30, "rollout/num_turn/max": 4, "rollout/truncated_ratio": 0.5,
		"rollout/passrate/pass@1": 0.5, "rollout/passrate/pass@2": 1, "outcome/mean": 0.5, "outcome/max": 1,
		"useful/mean": 0.4, "useful/median": 0.4, "rollout/global_batch_size": 2, "rollout/step": 3,
	})
}

func TestPassAtK(t *testing.T) {
	group := func(id int64, rewards ...float64) (rows []RowStat) {
		for i, r := range rewards {
			rows = append(rows, RowStat{Group: id, Session: i, Reward: r})
		}
		return rows
	}
	rows := append(group(1, 1, 0, 0, 0), group(2, 1, 1, 0, 0.5)...)
	check(t, Step{Passrate: true}.Metrics(rows), map[string]float64{
		"rollout/passrate/pass@1": (0.25 + 0.5) / 2,
		"rollout/passrate/pass@2": ((1 - 3.0/6) + (1 - 1.0/6)) / 2,
		"rollout/passrate/pass@4": 1,
	})
	for _, m := range []map[string]float64{
		Step{}.Metrics(rows), Step{Passrate: true}.Metrics(append(group(1, 1), group(2, 0)...)),
	} {
		if _, ok := m["rollout/passrate/pass@1"]; ok {
			t.Error("pass@1 of single samples, or without log_passrate")
		}
	}
}

func TestZeroStd(t *testing.T) {
	rows := []RowStat{
		{Group: 1, Session: 0, Reward: 1}, {Group: 1, Session: 1, Reward: 1}, {Group: 2, Session: 0, Reward: 0},
		{Group: 2, Session: 1, Reward: 1}, {Group: 3, Session: 0, Reward: 0}, {Group: 3, Session: 1, Reward: 0},
	}
	m := Step{}.Metrics(rows)
	check(t, m, map[string]float64{"rollout/zero_std/count_1.0": 1, "rollout/zero_std/count_0.0": 1})
	if _, ok := (Step{Estimator: "ppo"}).Metrics(rows)["rollout/zero_std/count_1.0"]; ok {
		t.Error("zero_std for ppo")
	}
	check(t, Step{Estimator: "rloo", Drops: []DropStat{{Reason: "filtered:x", Groups: 1}}}.Metrics(rows), map[string]float64{
		"rollout/rloo/baseline_mean": 0.5, "rollout/rloo/adv_abs_mean": 2.0 / 6, "rollout/rloo/no_signal_frac": 4.0 / 6,
		"rollout/rloo/zero_adv_group_frac": 2.0 / 3, "rollout/rloo/empty_response_frac": 1, "rollout/rloo/dropped_group_frac": 0.25,
	})
}

func TestDropsAndWaste(t *testing.T) {
	m := Step{Drops: []DropStat{
		{"filtered:zero_std_0.0", 2, 30}, {"agent_exit", 1, 10}, {"not_exported", 0, 5},
	}}.Metrics([]RowStat{{ResponseLen: 55}})
	check(t, m, map[string]float64{
		"rollout/dynamic_filter/drop_zero_std_0.0": 2, "rollout/dropped_groups/agent_exit": 1,
		"rollout/dropped_tokens/not_exported": 5, "rollout/wasted_tokens": 45, "rollout/wasted_token_ratio": 0.45,
	})
	if _, ok := m["rollout/dropped_groups/not_exported"]; ok {
		t.Error("a group was dropped as not_exported")
	}
	if m := (Step{Rollout: 1}).Metrics(nil); len(m) != 2 || m["rollout/step"] != 1 {
		t.Errorf("metrics of an empty step: %v", m)
	}
}

func TestPerf(t *testing.T) {
	m := Step{Seconds: 10, GPUs: 2}.Metrics([]RowStat{
		{Session: 0, TotalLen: 100, ResponseLen: 80, Seconds: 3, OtherSeconds: 2},
		{Session: 1, TotalLen: 300, ResponseLen: 60, Seconds: 5, OtherSeconds: 4},
	})
	check(t, m, map[string]float64{
		"perf/rollout_time": 10, "perf/tokens_per_gpu_per_sec": 20, "perf/effective_tokens_per_gpu_per_sec": 7,
		"perf/longest_sample_tokens_per_sec": 30, "perf/longest_effective_sample_tokens_per_sec": 8,
		"perf/longest_sample_non_generation_time": 4, "perf/longest_sample_tokens_per_sec_without_non_generation": 50,
		"perf/longest_effective_sample_non_generation_time": 2, "perf/non_generation_time/median": 3,
		"perf_detail/rollout/generate_time/max": 5,
	})
}

// Case O8.
func TestSpeculation(t *testing.T) {
	m := Step{}.Metrics([]RowStat{
		{Session: 0, Spec: Spec{Generations: 1, Rated: 1, Accepted: 1, Proposed: 2}},
		{Session: 1, Spec: Spec{Generations: 3, Rated: 1, Accepted: 9, Proposed: 10, Verified: 2, Completion: 30, Verifications: 10}},
	})
	check(t, m, map[string]float64{
		"rollout/spec_accept_rate": 10.0 / 12, "rollout/spec_accept_length": 3,
		"rollout/spec_accept_rate_coverage": 0.5, "rollout/spec_accept_length_coverage": 0.5,
	})
	if _, ok := (Step{}).Metrics([]RowStat{{}})["rollout/spec_accept_rate"]; ok {
		t.Error("a rate without speculation")
	}
}

func TestEvalMetrics(t *testing.T) {
	rows := []RowStat{{Group: 1, Session: 0, Reward: 1, Truncated: true, Metadata: map[string]float64{"hard": 1}}, {Group: 1, Session: 1, Reward: 0}}
	m := Eval{Rollout: 4, Dataset: "aime", Passrate: true}.Metrics(rows)
	check(t, m, map[string]float64{
		"eval/aime": 0.5, "eval/aime/raw_reward": 0.5, "eval/aime-truncated_ratio": 0.5, "eval/aime-pass@1": 0.5,
		"eval/aime-pass@2": 1, "eval/step": 4, "eval/aime/hard/mean": 1, "eval/aime/num_turn/p99": 0,
	})
	if _, ok := m["eval/aime/staleness/avg"]; ok {
		t.Error("staleness of an Eval")
	}
	if len((Eval{}).Metrics(nil)) != 0 {
		t.Error("metrics of an empty result")
	}
}

func object(t *testing.T, text string) (out map[string]json.RawMessage) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Cases O1 and O2.
func TestNumericFields(t *testing.T) {
	got := NumericFields(object(t, `{"a": 1, "b/c": -2.5e1, "yes": true, "no": false, "text": "1", "none": null, "list": [1],
		"nested": {"x": 1}, "_private": 1, "": 1, "id": 1, "index": 1, "sample_index": 1, "group_index": 1,
		"start_rollout_id": 1, "rollout_turns": 1, "agentic_trace": 1}`))
	if len(got) != 4 {
		t.Errorf("fields %v", got)
	}
	check(t, got, map[string]float64{"a": 1, "b/c": -25, "yes": 1, "no": 0})
	if NumericFields(nil) != nil {
		t.Error("fields of nothing")
	}
}

func TestRewardHelpers(t *testing.T) {
	reward := json.RawMessage(`{"score": 1, "format": 0.5, "ok": true, "parts": [1, 3], "_x": 1, "raw_reward": 2, "why": "no", "kind": "timeout"}`)
	got := RewardHelpers(reward, "score")
	if len(got) != 3 {
		t.Errorf("helpers %v", got)
	}
	m := Step{}.Metrics([]RowStat{{Session: 0, Reward: 1, Helpers: got, Category: RewardCategory(reward, "kind")}, {Session: 1, Reward: 0}})
	check(t, m, map[string]float64{
		"rollout/format/mean": 0.5, "rollout/ok/max": 1, "rollout/parts/mean": 2, "rollout/parts/median": 2, "rollout/error_cat/timeout": 0.5,
	})
	if RewardHelpers(json.RawMessage("1.5"), "") != nil || RewardCategory(json.RawMessage("null"), "kind") != "" || RewardCategory(reward, "") != "" {
		t.Error("helpers of a number, or a category nobody asked for")
	}
	if got := RewardCategory(json.RawMessage(`{"kind": 3}`), "kind"); got != "3" {
		t.Errorf("category %q", got)
	}
}

// Case O4.
func TestStopReason(t *testing.T) {
	for text, want := range map[string]string{
		`{"rollout_stop_reason": "a:b", "stop_reason": "c"}`: "a:b", `{"stop_reason": "env_error:timeout"}`: "env_error", `{}`: "", `{"stop_reason": null}`: "",
	} {
		if got := StopReason(object(t, text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	check(t, Step{}.Metrics([]RowStat{{Session: 0, StopReason: "done"}, {Session: 1}}), map[string]float64{
		"rollout/stop_reason/done/count": 1, "rollout/stop_reason/done/ratio": 0.5, "rollout/stop_reason/unknown/count": 1,
	})
}

// Names that agents choose never change a metric of ours, nor join its family.
func TestGuestsKeepOut(t *testing.T) {
	r := RowStat{ResponseLen: 10, Helpers: map[string][]float64{"response_len": {77}, "image_count": {77}, "num_turn": {77}, "acc": {0.5}},
		Metadata: map[string]float64{"rollout/response_len": 99, "perf_detail/rollout/lease_wait_time": 5, "tries": 3}}
	m := Step{Rollout: 1, Seconds: 1}.Metrics([]RowStat{r})
	check(t, m, map[string]float64{"rollout/response_len/mean": 10, "rollout/response_len/max": 10, "rollout/image_count/max": 0,
		"rollout/num_turn/mean": 0, "perf_detail/rollout/lease_wait_time/max": 0, "rollout/acc/median": 0.5, "tries/max": 3})
	for _, name := range []string{"rollout/image_count/median", "perf_detail/rollout/lease_wait_time/min", "rollout/num_turn/median"} {
		if v, ok := m[name]; ok {
			t.Errorf("%s = %v, which an agent wrote", name, v)
		}
	}
	e := Eval{Dataset: "d"}.Metrics([]RowStat{r})
	check(t, e, map[string]float64{"eval/d/response_len/mean": 10, "eval/d/acc/mean": 0.5})
}

// Two finite numbers can have a sum that is not. JSON has no infinity, and one agent must not cost
// the step its report.
func TestOverflowsAreLeftOut(t *testing.T) {
	huge := RowStat{Reward: math.MaxFloat64, Metadata: map[string]float64{"best": math.MaxFloat64},
		Helpers: map[string][]float64{"cost": {math.MaxFloat64, math.MaxFloat64}}}
	other := huge
	other.Session, other.Metadata = 1, map[string]float64{"best": -math.MaxFloat64}
	third := huge
	third.Session = 2
	rows := []RowStat{huge, third, other}
	for _, m := range []map[string]float64{
		Step{Passrate: true, Estimator: "rloo"}.Metrics(rows), Eval{Dataset: "d", Passrate: true}.Metrics(rows),
	} {
		if raw, err := json.Marshal(m); err != nil {
			t.Errorf("%v: %s", err, raw)
		}
	}
	check(t, Step{}.Metrics(rows), map[string]float64{"best/max": math.MaxFloat64, "best/min": -math.MaxFloat64})
}

func TestRepetitive(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	noise := make([]byte, 20000)
	for i := range noise {
		noise[i] = byte('a' + random.IntN(26))
	}
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"a circle":            {strings.Repeat("and so on ", 2000), true},
		"a circle at the end": {string(noise) + strings.Repeat("日本", 5000), true},
		"short":               {strings.Repeat("a", repetitionTail), false},
		"noise":               {string(noise), false},
		"short in characters": {strings.Repeat("日", repetitionTail), false},
	} {
		if got := Repetitive(c.text); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
