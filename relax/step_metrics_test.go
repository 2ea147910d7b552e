package relax

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// The names a dashboard may rely on: those of the guide ("Metrics and Passrate") and of reference
// pipeline 7.3 and 7.4, and our own. Those of KV scheduling (8.6) are in admission_test.go; the
// phases of images and opd do not exist here.
const dashboardNames = `
perf_detail/rollout/generate_time/mean perf_detail/rollout/generate_time/max
rollout/dynamic_filter/drop_zero_std_1.0
difficulty/mean difficulty/median difficulty/max difficulty/min
rollout/response_len/mean rollout/response_len/median rollout/response_len/max rollout/response_len/min
rollout/image_count/mean rollout/image_count/max rollout/image_count/min
rollout/multimodal_token_count/mean rollout/multimodal_token_count/max rollout/multimodal_token_count/min
rollout/raw_reward rollout/style/mean rollout/style/median rollout/style/max rollout/style/min
rollout/passrate/pass@1 rollout/passrate/pass@2
rollout/rloo/baseline_mean rollout/rloo/adv_abs_mean rollout/rloo/no_signal_frac
rollout/rloo/empty_response_frac rollout/rloo/zero_adv_group_frac rollout/rloo/dropped_group_frac
rollout/spec_accept_rate rollout/spec_accept_length rollout/spec_accept_rate_coverage rollout/spec_accept_length_coverage
rollout/prefix_cache_hit_rate rollout/avg_cached_tokens_per_sample
rollout/error_cat/timeout rollout/repetition_frac rollout/truncated_ratio
rollout/stop_reason/unknown/count rollout/stop_reason/unknown/ratio
rollout/num_turn/min rollout/num_turn/mean rollout/num_turn/max
rollout/num_turn/p50 rollout/num_turn/p90 rollout/num_turn/p95 rollout/num_turn/p99
rollout/staleness/avg rollout/staleness/max rollout/staleness/min rollout/global_batch_size rollout/step
perf/rollout_time perf/non_generation_time/mean perf/non_generation_time/median perf/non_generation_time/max
perf/non_generation_time/min perf/tokens_per_gpu_per_sec perf/longest_sample_tokens_per_sec
perf/longest_sample_non_generation_time perf/longest_sample_tokens_per_sec_without_non_generation
perf/effective_tokens_per_gpu_per_sec perf/longest_effective_sample_tokens_per_sec
perf/longest_effective_sample_non_generation_time perf/longest_effective_sample_tokens_per_sec_without_non_generation
rollout/dropped_groups/filtered:zero_std_1.0 rollout/dropped_tokens/filtered:zero_std_1.0
rollout/wasted_tokens rollout/wasted_token_ratio rollout/parse_errors rollout/divergence/message
rollout/version_spread/mean rollout/version_spread/max
perf_detail/rollout/barrier_wait_time/mean perf_detail/rollout/barrier_wait_time/max
perf_detail/rollout/lease_wait_time/mean perf_detail/rollout/lease_wait_time/max
perf_detail/rollout/queue_wait_time/mean perf_detail/rollout/queue_wait_time/max
`

// One run whose step report has all of them. The first Group has equal rewards and is filtered, the
// agents of the second branch off.
func TestEveryMetricNameInOneRun(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NSamplesPerPrompt, cfg.AdvantageEstimator, cfg.RewardKey = 2, "rloo", "score"
	cfg.LogPassrate, cfg.LogRewardCategory, cfg.RolloutNumGPUs = true, "kind", 2
	cfg.CustomRM, cfg.GroupRM, cfg.DynamicSamplingFilter = true, true, "check_reward_nonzero_std"
	e := openEngine(t, cfg)
	e.core.backend = &mangled{e.core.backend, speculate}
	first := task(agentTask{Mode: "unscored", Turns: 2})
	var metadata map[string]any
	if err := json.Unmarshal(first.Metadata, &metadata); err != nil {
		t.Fatal(err)
	}
	metadata["difficulty"] = 3
	first.Metadata, _ = json.Marshal(metadata)
	metadata["mode"] = "branch"
	second := first
	second.Metadata, _ = json.Marshal(metadata)
	submit(t, e, first, second)
	rewards := []string{
		`{"rewards": [{"score": 1, "style": 0.5, "kind": "timeout"}, {"score": 1, "style": 0.5, "kind": "timeout"}]}`,
		`{"rewards": [{"score": 1, "style": 0.5, "kind": "timeout"}, {"score": 0, "style": 1, "kind": "timeout"}]}`,
	}
	r := runStep(t, e, 4, func(ev Event) {
		if ev.Kind != EventScore || len(rewards) == 0 {
			t.Fatalf("event %d %s", ev.Kind, ev.Data)
		}
		if err := e.Reply(ev.ID, []byte(rewards[0])); err != nil {
			t.Fatal(err)
		}
		rewards = rewards[1:]
	})
	m := r.report.Metrics
	for _, name := range strings.Fields(dashboardNames) {
		if v, ok := m[name]; !ok || math.IsNaN(v) || math.IsInf(v, 0) {
			t.Errorf("%s = %v (there: %v)", name, v, ok)
		}
	}
	sampled := m["rollout/response_len/mean"] * 2
	turns := m["rollout/num_turn/mean"] * 2
	for name, want := range map[string]float64{
		"rollout/spec_accept_rate": 0.75, "rollout/spec_accept_length": sampled / (turns * 2),
		"rollout/spec_accept_rate_coverage": 1, "rollout/spec_accept_length_coverage": 1, "rollout/prefix_cache_hit_rate": 0.25,
		"rollout/avg_cached_tokens_per_sample": turns * 10 / 2, "rollout/step": 4, "rollout/raw_reward": 0.5,
	} {
		if math.Abs(m[name]-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, m[name], want)
		}
	}
	if m["perf_detail/rollout/barrier_wait_time/mean"] <= 0 {
		t.Error("agents came without a wait")
	}
}

// speculate lays counts of speculative decoding and of the prefix cache over a reply.
func speculate(r *sglang.Result) {
	r.Spec = sglang.Spec{
		Accepted: sglang.Count{N: 3, Known: true}, Proposed: sglang.Count{N: 4, Known: true}, Verified: sglang.Count{N: 2, Known: true},
	}
	r.PromptTokens, r.CachedTokens = 40, 10
}

// Counts of a continued turn are those of all its attempts; the client is told the first one's.
func TestCountsOfAContinuedTurn(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.RolloutMaxResponseLen, cfg.Simulator = 64, longReply(200)
	e := openEngine(t, cfg)
	p := pace(e, "long", 10, 0)
	e.core.backend = &mangled{e.core.backend, speculate}
	submit(t, e, asking("long", agentTask{}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return p.held() == 1 })
	p.release()
	r := finishStep(t, e, nil)
	if meta := string(View[uint8](r.batch, "meta_json")); !strings.Contains(meta,
		`"spec_accept_token_num":6,"spec_draft_token_num":8,"spec_verify_ct":4,"completion_token_num":64}]`) {
		t.Errorf("meta %s", meta)
	}
	m := r.report.Metrics
	if m["rollout/avg_cached_tokens_per_sample"] != 20 || m["rollout/spec_accept_length"] != 64.0/4 || m["rollout/spec_accept_rate_coverage"] != 1 {
		t.Errorf("metrics %v", m)
	}
}

// Each step tells its own departures.
func TestDivergencesAreCountedByStep(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	for step, want := range []float64{1, 0} {
		submit(t, e, task(agentTask{Mode: []string{"branch", ""}[step], Turns: 2}))
		if got := runStep(t, e, int64(step), nil).report.Metrics["rollout/divergence/message"]; got != want {
			t.Errorf("step %d: %v divergences, want %v", step, got, want)
		}
	}
}
