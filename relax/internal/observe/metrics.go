package observe

import (
	"maps"
	"math"
	"strings"
)

// A RowStat is what metrics need to know of one delivered row. Rows of one Session (Group and
// Session) are put together before anything is averaged: a Session counts once, however many
// contexts it exports. A turn that several rows of it hold is to be counted in the first only.
type RowStat struct {
	// Group and Session name the logical Session: its Group and its place in it.
	Group   int64
	Session int
	// Reward is the primary reward the row carries, NaN if it carries none.
	Reward float64
	// Helpers are the other numbers of a reward object, see [RewardHelpers]; Category is the value
	// that log_reward_category picks of it, "" for none.
	Helpers  map[string][]float64
	Category string
	// Metadata are the numbers of the row's metadata, see [NumericFields]; StopReason is the
	// agent's, see [StopReason].
	Metadata   map[string]float64
	StopReason string
	// ResponseLen counts tokens with loss mask 1, TotalLen those from the first response on.
	ResponseLen, TotalLen int
	Turns                 int
	Truncated             bool
	// Repetitive: see [Repetitive].
	Repetitive bool
	// Images and ImageTokens count media of the row.
	Images, ImageTokens int
	// PromptTokens and CachedTokens are what the backend prefilled and found in its cache.
	PromptTokens, CachedTokens int
	// Spec are the counters of speculative decoding.
	Spec Spec
	// Staleness is the step's rollout id minus the one of the row's first response.
	Staleness int64
	// VersionSpread is the newest weight version of the row's tokens minus the oldest.
	VersionSpread int64
	// Seconds is the time the turns spent in the backend, OtherSeconds the rest of their wall time.
	Seconds, OtherSeconds float64
	// BarrierSeconds is the time from the Group's start until all its Sessions had made a request,
	// LeaseSeconds the time from there to its lease: both are the Session's, not a context's.
	// QueueSeconds is the turns' wait for gate, admission and a place at the backend after the lease.
	BarrierSeconds, LeaseSeconds, QueueSeconds float64
	// ParseErrors counts turns that kept their raw text.
	ParseErrors int
}

// Spec are the counters of speculative decoding over generations, each counted once (reference
// pipeline 7.4). A generation without both counters of a ratio takes no part in it.
type Spec struct {
	// Generations counts all, Rated those with accepted and proposed draft tokens, Verified those
	// with completion tokens and verification steps.
	Generations, Rated, Verified int
	Accepted, Proposed           int64
	Completion, Verifications    int64
}

// Add counts other generations.
func (s *Spec) Add(o Spec) {
	s.Generations += o.Generations
	s.Rated += o.Rated
	s.Verified += o.Verified
	s.Accepted += o.Accepted
	s.Proposed += o.Proposed
	s.Completion += o.Completion
	s.Verifications += o.Verifications
}

// A DropStat is what was dropped for one reason.
type DropStat struct {
	Reason         string
	Groups, Tokens int64
}

// Filtered begins the drop reason of a Group a dynamic sampling filter took out; the filter's own
// word follows.
const Filtered = "filtered:"

// A Step is what metrics need to know of a step beside its rows.
type Step struct {
	Rollout int64
	// Seconds is the step's wall time, GPUs the number the backend runs on (rollout_num_gpus), 0 if
	// unknown.
	Seconds float64
	GPUs    int
	// Passrate asks for pass@k (log_passrate).
	Passrate bool
	// Estimator is advantage_estimator, Custom says that custom_advantage is set.
	Estimator string
	Custom    bool
	Drops     []DropStat
	// Divergences counts requests that did not go on from their Session's newest turn, by reason.
	Divergences map[string]int64
}

// Metrics are the numbers of a step under the reference's names (pipeline 7.3 A to C), and drops
// and waste, which it does not have. Metrics of nothing are absent.
func (s Step) Metrics(rows []RowStat) map[string]float64 {
	m, samples := metrics{}, merge(rows)
	m["rollout/step"] = float64(s.Rollout)
	m.drops(s.Drops, samples)
	for reason, n := range s.Divergences {
		m["rollout/divergence/"+reason] = float64(n)
	}
	if len(samples) == 0 {
		return m
	}
	m.rows("rollout/", samples)
	m.staleness(samples)
	if s.Passrate {
		m.passrate("rollout/passrate/", samples)
	}
	if s.Estimator != "ppo" {
		m.zeroStd("rollout/", samples)
	}
	if s.Estimator == "rloo" && !s.Custom {
		m.rloo(samples, s.Drops)
	}
	m.perf(s, samples)
	m.helpers("rollout/", samples)
	m.metadata("", samples)
	return m.finite()
}

// An Eval is what metrics need to know of one Eval dataset's result.
type Eval struct {
	Rollout int64
	Dataset string
	Seconds float64
	GPUs    int
	// Passrate asks for pass@k (log_passrate), on the Sessions of each prompt.
	Passrate bool
}

// Metrics are the numbers of one Eval dataset (reference pipeline 7.3 D). An empty result has none.
func (e Eval) Metrics(rows []RowStat) map[string]float64 {
	m, samples := metrics{}, merge(rows)
	if len(samples) == 0 {
		return m
	}
	name := "eval/" + e.Dataset
	m["eval/step"] = float64(e.Rollout)
	m.rows(name+"/", samples)
	m.zeroStd(name+"/", samples)
	if reward, ok := m[name+"/raw_reward"]; ok {
		m[name] = reward
	}
	m[name+"-truncated_ratio"] = m[name+"/truncated_ratio"]
	if e.Passrate {
		m.passrate(name+"-", samples)
	}
	m.helpers(name+"/", samples)
	m.metadata(name+"/", samples)
	return m.finite()
}

// merge puts the rows of each Session together, in order of first appearance.
func merge(rows []RowStat) []RowStat {
	type key struct {
		group   int64
		session int
	}
	at := map[key]int{}
	contexts := map[key]map[string]int{} // how many contexts a metadata mean is of
	var out []RowStat
	for _, r := range rows {
		k := key{r.Group, r.Session}
		i, known := at[k]
		if !known {
			at[k] = len(out)
			contexts[k] = map[string]int{}
			first := r
			first.Metadata = map[string]float64{}
			out = append(out, first)
			i = len(out) - 1
		} else {
			out[i].add(r)
		}
		for name, v := range r.Metadata {
			contexts[k][name]++
			n := float64(contexts[k][name])
			out[i].Metadata[name] += (v - out[i].Metadata[name]) / n
		}
	}
	return out
}

// add joins another context of the same Session; metadata is the caller's.
func (r *RowStat) add(o RowStat) {
	if math.IsNaN(r.Reward) {
		r.Reward, r.Helpers, r.Category = o.Reward, o.Helpers, o.Category
	}
	if r.StopReason == "" {
		r.StopReason = o.StopReason
	}
	r.ResponseLen += o.ResponseLen
	r.TotalLen += o.TotalLen
	r.Turns += o.Turns
	r.Truncated = r.Truncated || o.Truncated
	r.Repetitive = r.Repetitive || o.Repetitive
	r.Images += o.Images
	r.ImageTokens += o.ImageTokens
	r.PromptTokens += o.PromptTokens
	r.CachedTokens += o.CachedTokens
	r.Spec.Add(o.Spec)
	r.Staleness = max(r.Staleness, o.Staleness)
	r.VersionSpread = max(r.VersionSpread, o.VersionSpread)
	r.Seconds += o.Seconds
	r.OtherSeconds += o.OtherSeconds
	r.QueueSeconds += o.QueueSeconds
	r.ParseErrors += o.ParseErrors
}

// metrics are numbers by name.
type metrics map[string]float64

// finite leaves out what numbers of agents overflowed: their sum can be too large for a float64
// though each is not, and JSON has no infinity.
func (m metrics) finite() metrics {
	maps.DeleteFunc(m, func(_ string, v float64) bool { return math.IsInf(v, 0) || math.IsNaN(v) })
	return m
}

// drops counts what was dropped, by reason.
func (m metrics) drops(drops []DropStat, samples []RowStat) {
	wasted := 0.0
	for _, d := range drops {
		wasted += float64(d.Tokens)
		m["rollout/dropped_tokens/"+d.Reason] = float64(d.Tokens)
		if d.Groups == 0 {
			continue
		}
		m["rollout/dropped_groups/"+d.Reason] = float64(d.Groups)
		if reason, ok := strings.CutPrefix(d.Reason, Filtered); ok && reason != "" {
			m["rollout/dynamic_filter/drop_"+reason] = float64(d.Groups)
		}
	}
	m["rollout/wasted_tokens"] = wasted
	if kept := sumOf(samples, func(r *RowStat) float64 { return float64(r.ResponseLen) }); wasted+kept > 0 {
		m["rollout/wasted_token_ratio"] = wasted / (wasted + kept)
	}
}
