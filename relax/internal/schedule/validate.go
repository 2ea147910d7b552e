package schedule

import (
	"fmt"
	"strings"
)

// A Problem is a rule a configuration breaks.
type Problem struct {
	// Options are the options at fault, as users write them, the one to change first.
	Options []string
	// Reason says what is wrong, why, and what to do.
	Reason string
}

func (p Problem) String() string { return strings.Join(p.Options, ", ") + ": " + p.Reason }

// A rule is one thing a configuration must not do.
type rule struct {
	broken  bool
	options string // with spaces in between
	reason  string
}

// Validate returns everything that is wrong with a configuration, nothing if it can be used. The
// rules are the guide's and those of section 9 of the reference pipeline, with those the
// reference does not check. Unset options take their defaults first.
func Validate(cfg Config) []Problem {
	rules := ranges(cfg)
	cfg = cfg.withDefaults()
	rules = append(rules, modes(&cfg)...)
	rules = append(rules, estimators(&cfg)...)
	return broken(rules)
}

// Warnings returns what a configuration asks for in vain.
func Warnings(raw Config) []Problem {
	cfg := raw.withDefaults()
	return broken([]rule{
		{cfg.OverSampling > cfg.BatchSize && !cfg.retains(), "over_sampling_batch_size",
			"is larger than rollout_batch_size without partial_rollout or fully_async: surplus Groups are thrown away at each step end"},
		{raw.MaxAborted > 0 && !cfg.PartialRollout, "partial_rollout_max_aborted_count partial_rollout",
			"has no effect without partial_rollout: nothing is aborted and carried over"},
		{cfg.MaxStaleness > 0 && !cfg.FullyAsync, "max_staleness fully_async",
			"has no effect without fully_async: a step's batch is complete before the next step"},
		{cfg.FullyAsync && cfg.MaxStaleness == 0, "max_staleness fully_async",
			"0 makes every step pay its whole debt: with 1 or more a step can leave what parked Groups cover to the next one"},
		{cfg.Capacity < cfg.OverSampling, "agentic_concurrency over_sampling_batch_size",
			fmt.Sprintf("%d resident Groups are fewer than the %d a step works on: it takes longer", cfg.Capacity, cfg.OverSampling)},
	})
}

func broken(rules []rule) []Problem {
	var out []Problem
	for _, r := range rules {
		if r.broken {
			out = append(out, Problem{Options: strings.Fields(r.options), Reason: r.reason})
		}
	}
	return out
}

func ranges(c Config) []rule {
	var out []rule
	atLeast := func(option string, least, found int64) {
		out = append(out, rule{found < least, option, fmt.Sprintf("expected at least %d, found %d", least, found)})
	}
	atLeast("rollout_batch_size", 1, int64(c.BatchSize))
	atLeast("n_samples_per_prompt", 1, int64(c.GroupSize))
	atLeast("agentic_concurrency", 0, int64(c.Capacity))
	atLeast("agentic_eval_concurrency", 0, int64(c.EvalCapacity))
	atLeast("num_rollout", 0, c.NumRollout)
	atLeast("partial_rollout_max_aborted_count", 0, int64(c.MaxAborted))
	atLeast("max_staleness", 0, c.MaxStaleness)
	atLeast("max_consecutive_dropped_groups", 1, int64(c.MaxConsecutiveDropped))
	atLeast("agent_retries", 0, int64(c.AgentRetries))
	atLeast("sglang_server_concurrency", 0, int64(c.Permits))
	return append(out,
		rule{c.OverSampling != 0 && c.OverSampling < c.BatchSize, "over_sampling_batch_size rollout_batch_size",
			fmt.Sprintf("expected at least rollout_batch_size (%d), found %d: a step could never have all its Groups", c.BatchSize, c.OverSampling)},
		rule{c.FirstRequestTimeout <= 0, "agent_first_request_timeout",
			fmt.Sprintf("expected a positive time, found %s", c.FirstRequestTimeout)},
		rule{c.AgentTimeout <= 0, "agent_timeout", fmt.Sprintf("expected a positive time, found %s", c.AgentTimeout)},
		rule{c.DataParallel < 0, "use_dynamic_global_batch_size",
			fmt.Sprintf("expected a positive data-parallel size, found %d", c.DataParallel)})
}

func modes(c *Config) []rule {
	t := &c.Trainer
	return []rule{
		{c.PartialRollout && c.FullyAsync, "partial_rollout fully_async",
			"exclude each other: both carry unfinished Groups over step ends, partial_rollout in steps that are complete, fully_async with debt; choose one"},
		{c.FullyAsync && c.NumRollout == 0, "num_rollout fully_async",
			"is required by fully_async: the last partition is completed in one more rollout with this number"},
		{c.DynamicBatch && !c.PartialRollout, "use_dynamic_global_batch_size partial_rollout",
			"needs partial_rollout: otherwise there is no surplus that could be delivered or kept"},
		{c.DynamicBatch && c.FullyAsync, "use_dynamic_global_batch_size fully_async",
			"exclude each other: a fully_async partition has a fixed size"},
		{c.DynamicBatch && c.OverSampling <= c.BatchSize, "over_sampling_batch_size use_dynamic_global_batch_size",
			fmt.Sprintf("expected more than rollout_batch_size (%d) with use_dynamic_global_batch_size, found %d: there would be no surplus",
				c.BatchSize, c.OverSampling)},
		{c.PartialRollout && t.RoutingReplay, "use_rollout_routing_replay partial_rollout",
			"exclude each other: the experts of a response's first part are gone when it is resumed"},
	}
}

func estimators(c *Config) []rule {
	name := c.Trainer.AdvantageEstimator
	rloo := name == "rloo"
	return []rule{
		{rloo && c.PartialRollout, "advantage_estimator partial_rollout",
			"rloo and partial_rollout exclude each other: its samples must come from one policy"},
		{(rloo || strings.HasPrefix(name, "reinforce_plus_plus")) && c.FullyAsync, "advantage_estimator fully_async",
			name + " and fully_async exclude each other: it works on a whole step"},
		{rloo && c.GroupSize < 2, "n_samples_per_prompt advantage_estimator",
			fmt.Sprintf("rloo compares a sample with its siblings: expected at least 2, found %d", c.GroupSize)},
		{rloo && c.MaxStaleness > 0, "max_staleness advantage_estimator",
			fmt.Sprintf("rloo needs 0, found %d: its samples must come from the current policy", c.MaxStaleness)},
	}
}
