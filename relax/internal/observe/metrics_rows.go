package observe

import (
	"math"
	"strings"
)

// rows are the numbers of pipeline 7.3 B that train steps and Eval have. There is a sample.
func (m metrics) rows(prefix string, samples []RowStat) {
	n := float64(len(samples))
	m.spread(prefix+"response_len", column(samples, func(r *RowStat) float64 { return float64(r.ResponseLen) }))
	m.meanMaxMin(prefix+"image_count", column(samples, func(r *RowStat) float64 { return float64(r.Images) }))
	m.meanMaxMin(prefix+"multimodal_token_count", column(samples, func(r *RowStat) float64 { return float64(r.ImageTokens) }))
	m.rewards(prefix, samples)
	m.cache(prefix, samples)
	m.spec(prefix, samples)
	m[prefix+"repetition_frac"] = sumOf(samples, func(r *RowStat) float64 { return oneIf(r.Repetitive) }) / n
	m[prefix+"truncated_ratio"] = sumOf(samples, func(r *RowStat) float64 { return oneIf(r.Truncated) }) / n
	m[prefix+"parse_errors"] = sumOf(samples, func(r *RowStat) float64 { return float64(r.ParseErrors) })
	m.stopReasons(prefix, samples)
	m.turns(prefix, samples)
}

// rewards are the primary reward of the Sessions that have one, and the shares of
// log_reward_category.
func (m metrics) rewards(prefix string, samples []RowStat) {
	var primary []float64
	categories := map[string]float64{}
	for i := range samples {
		r := &samples[i]
		if math.IsNaN(r.Reward) {
			continue
		}
		primary = append(primary, r.Reward)
		if r.Category != "" {
			categories[r.Category]++
		}
	}
	if len(primary) > 0 {
		m[prefix+"raw_reward"] = mean(primary)
	}
	for name, count := range categories {
		m[prefix+"error_cat/"+name] = count / float64(len(samples))
	}
}

// helpers are the other numbers of reward objects.
func (m metrics) helpers(prefix string, samples []RowStat) {
	values := map[string][]float64{}
	for i := range samples {
		if math.IsNaN(samples[i].Reward) {
			continue
		}
		for name, v := range samples[i].Helpers {
			values[name] = append(values[name], v...)
		}
	}
	m.guests(prefix, values)
}

func (m metrics) cache(prefix string, samples []RowStat) {
	cached := sumOf(samples, func(r *RowStat) float64 { return float64(r.CachedTokens) })
	if prompt := sumOf(samples, func(r *RowStat) float64 { return float64(r.PromptTokens) }); prompt > 0 {
		m[prefix+"prefix_cache_hit_rate"] = cached / prompt
	}
	m[prefix+"avg_cached_tokens_per_sample"] = cached / float64(len(samples))
}

// spec are the ratios of speculative decoding; a zero denominator has none.
func (m metrics) spec(prefix string, samples []RowStat) {
	var s Spec
	for i := range samples {
		s.Add(samples[i].Spec)
	}
	if s.Rated == 0 && s.Verified == 0 {
		return // no speculative algorithm runs
	}
	m[prefix+"spec_accept_rate_coverage"] = float64(s.Rated) / float64(s.Generations)
	m[prefix+"spec_accept_length_coverage"] = float64(s.Verified) / float64(s.Generations)
	if s.Proposed > 0 {
		m[prefix+"spec_accept_rate"] = float64(s.Accepted) / float64(s.Proposed)
	}
	if s.Verifications > 0 {
		m[prefix+"spec_accept_length"] = float64(s.Completion) / float64(s.Verifications)
	}
}

func (m metrics) stopReasons(prefix string, samples []RowStat) {
	counts := map[string]float64{}
	for i := range samples {
		reason := samples[i].StopReason
		if reason == "" {
			reason = "unknown"
		}
		counts[reason]++
	}
	for reason, count := range counts {
		m[prefix+"stop_reason/"+reason+"/count"] = count
		m[prefix+"stop_reason/"+reason+"/ratio"] = count / float64(len(samples))
	}
}

func (m metrics) turns(prefix string, samples []RowStat) {
	turns := sortedCopy(column(samples, func(r *RowStat) float64 { return float64(r.Turns) }))
	name := prefix + "num_turn/"
	m[name+"min"], m[name+"mean"], m[name+"max"] = turns[0], mean(turns), turns[len(turns)-1]
	m[name+"p50"], m[name+"p90"] = quantile(turns, .5), quantile(turns, .9)
	m[name+"p95"], m[name+"p99"] = quantile(turns, .95), quantile(turns, .99)
}

func (m metrics) staleness(samples []RowStat) {
	values := sortedCopy(column(samples, func(r *RowStat) float64 { return float64(r.Staleness) }))
	m["rollout/staleness/avg"], m["rollout/staleness/max"], m["rollout/staleness/min"] = mean(values), values[len(values)-1], values[0]
	spread := sortedCopy(column(samples, func(r *RowStat) float64 { return float64(r.VersionSpread) }))
	m["rollout/version_spread/mean"], m["rollout/version_spread/max"] = mean(spread), spread[len(spread)-1]
	m["rollout/global_batch_size"] = float64(len(samples))
}

// metadata are the numbers agents and datasets wrote. They never take the place of another metric.
func (m metrics) metadata(prefix string, samples []RowStat) {
	values := map[string][]float64{}
	for i := range samples {
		for name, v := range samples[i].Metadata {
			values[name] = append(values[name], v)
		}
	}
	m.guests(prefix, values)
}

// guests are numbers under names that agents and datasets chose. They never join or take the place
// of a metric that is there.
func (m metrics) guests(prefix string, values map[string][]float64) {
	taken := map[string]bool{}
	for name := range m {
		family, _, _ := cutLast(name, "/")
		taken[family] = true
	}
	for name, v := range values {
		if !taken[prefix+name] {
			m.spread(prefix+name, v)
		}
	}
}

// cutLast is [strings.Cut] around the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
