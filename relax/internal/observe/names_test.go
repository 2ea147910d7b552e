package observe

import (
	"testing"
)

// The names of the guide ("Metrics and Passrate") and of reference pipeline 7.3 and 7.4, except
// those of phases this engine does not have (process_vision_info, image_processor, mm_encode,
// opd) and of KV scheduling, which its own room counts.
var published = []string{
	"perf_detail/rollout/generate_time/mean", "perf_detail/rollout/generate_time/max",
	"rollout/dynamic_filter/drop_zero_std_0.0",
	"my_field/mean", "my_field/median", "my_field/max", "my_field/min",
	"rollout/response_len/mean", "rollout/response_len/median", "rollout/response_len/max", "rollout/response_len/min",
	"rollout/image_count/mean", "rollout/image_count/max", "rollout/image_count/min",
	"rollout/multimodal_token_count/mean", "rollout/multimodal_token_count/max", "rollout/multimodal_token_count/min",
	"rollout/raw_reward",
	"rollout/helper/mean", "rollout/helper/median", "rollout/helper/max", "rollout/helper/min",
	"rollout/passrate/pass@1", "rollout/passrate/pass@2",
	"rollout/rloo/baseline_mean", "rollout/rloo/adv_abs_mean", "rollout/rloo/no_signal_frac",
	"rollout/rloo/empty_response_frac", "rollout/rloo/zero_adv_group_frac", "rollout/rloo/dropped_group_frac",
	"rollout/zero_std/count_1.0",
	"rollout/spec_accept_rate", "rollout/spec_accept_length", "rollout/spec_accept_rate_coverage", "rollout/spec_accept_length_coverage",
	"rollout/prefix_cache_hit_rate", "rollout/avg_cached_tokens_per_sample",
	"rollout/error_cat/timeout", "rollout/repetition_frac", "rollout/truncated_ratio",
	"rollout/stop_reason/unknown/count", "rollout/stop_reason/unknown/ratio",
	"rollout/num_turn/min", "rollout/num_turn/mean", "rollout/num_turn/max", "rollout/num_turn/p50",
	"rollout/num_turn/p90", "rollout/num_turn/p95", "rollout/num_turn/p99",
	"rollout/staleness/avg", "rollout/staleness/max", "rollout/staleness/min", "rollout/global_batch_size", "rollout/step",
	"perf/rollout_time", "perf/non_generation_time/mean", "perf/non_generation_time/median", "perf/non_generation_time/max",
	"perf/non_generation_time/min", "perf/tokens_per_gpu_per_sec", "perf/longest_sample_tokens_per_sec",
	"perf/longest_sample_non_generation_time", "perf/longest_sample_tokens_per_sec_without_non_generation",
	"perf/effective_tokens_per_gpu_per_sec", "perf/longest_effective_sample_tokens_per_sec",
	"perf/longest_effective_sample_non_generation_time", "perf/longest_effective_sample_tokens_per_sec_without_non_generation",
	// Not the reference's: drops, waste, waits, departures.
	"rollout/dropped_groups/filtered:zero_std_0.0", "rollout/dropped_tokens/filtered:zero_std_0.0",
	"rollout/wasted_tokens", "rollout/wasted_token_ratio", "rollout/divergence/message", "rollout/parse_errors",
	"rollout/version_spread/mean", "rollout/version_spread/max",
	"perf_detail/rollout/barrier_wait_time/mean", "perf_detail/rollout/barrier_wait_time/max",
	"perf_detail/rollout/lease_wait_time/mean", "perf_detail/rollout/lease_wait_time/max",
	"perf_detail/rollout/queue_wait_time/mean", "perf_detail/rollout/queue_wait_time/max",
}

func TestPublishedNames(t *testing.T) {
	row := func(group int64, session int, reward float64) RowStat {
		return RowStat{
			Group: group, Session: session, Reward: reward, Helpers: map[string][]float64{"helper": {1}}, Category: "timeout",
			Metadata: map[string]float64{"my_field": 1}, ResponseLen: 5, TotalLen: 7, Turns: 1, PromptTokens: 4,
			Spec:    Spec{Generations: 1, Rated: 1, Verified: 1, Proposed: 1, Verifications: 1},
			Seconds: 1, OtherSeconds: 1,
		}
	}
	step := Step{Seconds: 9, GPUs: 1, Passrate: true, Estimator: "rloo", Drops: []DropStat{{"filtered:zero_std_0.0", 1, 3}},
		Divergences: map[string]int64{"message": 2}}
	got := step.Metrics([]RowStat{row(1, 0, 1), row(1, 1, 1), row(2, 0, 1), row(2, 1, 0)})
	for _, name := range published {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}
