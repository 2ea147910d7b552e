package observe

import (
	"math"
	"slices"
	"strconv"
)

// rewardGroups are the rewards of the Sessions that have one, Group by Group.
func rewardGroups(samples []RowStat) [][]float64 {
	at := map[int64]int{}
	var groups [][]float64
	for i := range samples {
		r := &samples[i]
		if math.IsNaN(r.Reward) {
			continue
		}
		place, known := at[r.Group]
		if !known {
			place = len(groups)
			at[r.Group] = place
			groups = append(groups, nil)
		}
		groups[place] = append(groups[place], r.Reward)
	}
	return groups
}

// zeroStd counts Groups whose Sessions all have one reward.
func (m metrics) zeroStd(prefix string, samples []RowStat) {
	for _, rewards := range rewardGroups(samples) {
		if slices.Max(rewards) == slices.Min(rewards) {
			m[prefix+"zero_std/count_"+strconv.FormatFloat(rewards[0], 'f', 1, 64)]++
		}
	}
}

// passrate is pass@k for k = 1, 2, 4, … up to the size of the largest Group, each the mean over the
// Groups that have k Sessions: the chance that one of k drawn without replacement has reward 1.
// Groups of one have none.
func (m metrics) passrate(prefix string, samples []RowStat) {
	groups := rewardGroups(samples)
	largest := 0
	for _, rewards := range groups {
		largest = max(largest, len(rewards))
	}
	if largest < 2 {
		return
	}
	for k := 1; k <= largest; k *= 2 {
		var rates []float64
		for _, rewards := range groups {
			if len(rewards) >= k {
				rates = append(rates, passAt(k, rewards))
			}
		}
		m[prefix+"pass@"+strconv.Itoa(k)] = mean(rates)
	}
}

// passAt is 1 - C(n-c, k) / C(n, k), with c of n rewards equal to 1.
func passAt(k int, rewards []float64) float64 {
	n, correct := len(rewards), 0
	for _, r := range rewards {
		if r == 1 {
			correct++
		}
	}
	if n-correct < k {
		return 1
	}
	fail := 1.0
	for i := n - correct + 1; i <= n; i++ {
		fail *= 1 - float64(k)/float64(i)
	}
	return 1 - fail
}

// rloo says how much a leave-one-out baseline has to tell: the mean baseline and advantage, and
// the shares of Sessions without an advantage, of those that sampled nothing, of Groups without any
// advantage, and of Groups that were dropped, of all.
func (m metrics) rloo(samples []RowStat, drops []DropStat) {
	var baselines, sizes []float64
	flat, silent, groups := 0.0, 0.0, rewardGroups(samples)
	for _, rewards := range groups {
		if len(rewards) < 2 {
			continue
		}
		zero := true
		for _, r := range rewards {
			baseline := (sum(rewards) - r) / float64(len(rewards)-1)
			baselines, sizes = append(baselines, baseline), append(sizes, math.Abs(r-baseline))
			if r != baseline {
				zero = false
			} else {
				silent++
			}
		}
		flat += oneIf(zero)
	}
	if len(baselines) == 0 {
		return
	}
	empty := sumOf(samples, func(r *RowStat) float64 { return oneIf(r.ResponseLen == 0) })
	dropped := 0.0
	for _, d := range drops {
		dropped += float64(d.Groups)
	}
	n := float64(len(baselines))
	m["rollout/rloo/baseline_mean"], m["rollout/rloo/adv_abs_mean"] = mean(baselines), mean(sizes)
	m["rollout/rloo/no_signal_frac"] = silent / n
	m["rollout/rloo/empty_response_frac"] = empty / float64(len(samples))
	m["rollout/rloo/zero_adv_group_frac"] = flat / float64(len(groups))
	m["rollout/rloo/dropped_group_frac"] = dropped / (dropped + float64(len(groups)))
}

// perf are the speeds of pipeline 7.3 C, over all tokens from the first response on, and over
// sampled ones ("effective").
func (m metrics) perf(s Step, samples []RowStat) {
	m.meanMax("perf_detail/rollout/generate_time", column(samples, func(r *RowStat) float64 { return r.Seconds }))
	m.meanMax("perf_detail/rollout/barrier_wait_time", column(samples, func(r *RowStat) float64 { return r.BarrierSeconds }))
	m.meanMax("perf_detail/rollout/lease_wait_time", column(samples, func(r *RowStat) float64 { return r.LeaseSeconds }))
	m.meanMax("perf_detail/rollout/queue_wait_time", column(samples, func(r *RowStat) float64 { return r.QueueSeconds }))
	other := column(samples, func(r *RowStat) float64 { return r.OtherSeconds })
	if slices.Max(other) > 0 {
		m.spread("perf/non_generation_time", other)
	}
	if s.Seconds <= 0 {
		return
	}
	m["perf/rollout_time"] = s.Seconds
	m.speed(s, "", column(samples, func(r *RowStat) float64 { return float64(r.TotalLen) }), other)
	m.speed(s, "effective_", column(samples, func(r *RowStat) float64 { return float64(r.ResponseLen) }), other)
}

func (m metrics) speed(s Step, kind string, lengths, other []float64) {
	if s.GPUs > 0 {
		m["perf/"+kind+"tokens_per_gpu_per_sec"] = sum(lengths) / s.Seconds / float64(s.GPUs)
	}
	longest := slices.Max(lengths)
	m["perf/longest_"+kind+"sample_tokens_per_sec"] = longest / s.Seconds
	if slices.Max(other) == 0 {
		return
	}
	var waits []float64
	for i, n := range lengths {
		if n == longest {
			waits = append(waits, other[i])
		}
	}
	wait := mean(waits)
	m["perf/longest_"+kind+"sample_non_generation_time"] = wait
	if s.Seconds > wait {
		m["perf/longest_"+kind+"sample_tokens_per_sec_without_non_generation"] = longest / (s.Seconds - wait)
	}
}
