package observe

import (
	"math"
	"slices"
)

// A RowStat is what metrics need to know of one delivered row.
type RowStat struct {
	// Reward is the primary reward, NaN if unset.
	Reward float64
	// ResponseLen counts tokens with loss mask 1.
	ResponseLen int
	Turns       int
	Truncated   bool
	// PromptTokens and CachedTokens are what the backend prefilled and found in its cache.
	PromptTokens, CachedTokens int
	// Staleness is the step's rollout id minus the one of the row's first response.
	Staleness int64
}

// StepMetrics are the numbers of a step under the reference's names (pipeline 7.3 B).
func StepMetrics(rows []RowStat) map[string]float64 {
	m := map[string]float64{}
	if len(rows) == 0 {
		return m
	}
	var rewards, lengths, turns, staleness []float64
	truncated, prompt, cached := 0.0, 0.0, 0.0
	for _, r := range rows {
		if !math.IsNaN(r.Reward) {
			rewards = append(rewards, r.Reward)
		}
		lengths = append(lengths, float64(r.ResponseLen))
		turns = append(turns, float64(r.Turns))
		staleness = append(staleness, float64(r.Staleness))
		if r.Truncated {
			truncated++
		}
		prompt += float64(r.PromptTokens)
		cached += float64(r.CachedTokens)
	}
	if len(rewards) > 0 {
		m["rollout/raw_reward"] = mean(rewards)
	}
	spread(m, "rollout/response_len", lengths)
	m["rollout/num_turn/min"], m["rollout/num_turn/mean"], m["rollout/num_turn/max"] = slices.Min(turns), mean(turns), slices.Max(turns)
	m["rollout/staleness/avg"], m["rollout/staleness/max"], m["rollout/staleness/min"] = mean(staleness), slices.Max(staleness), slices.Min(staleness)
	m["rollout/truncated_ratio"] = truncated / float64(len(rows))
	if prompt > 0 {
		m["rollout/prefix_cache_hit_rate"] = cached / prompt
	}
	return m
}

func spread(m map[string]float64, name string, values []float64) {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	m[name+"/mean"], m[name+"/median"], m[name+"/max"], m[name+"/min"] = mean(sorted), median, sorted[len(sorted)-1], sorted[0]
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
