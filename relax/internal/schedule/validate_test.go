package schedule

import (
	"slices"
	"strings"
	"testing"
)

// combinations are configurations with at most one problem.
var combinations = []struct {
	name   string
	change func(*Config)
	option string // the first one named, "" if all is well
	reason string
}{
	{"plain", func(*Config) {}, "", ""},
	{"partial", func(c *Config) { c.PartialRollout, c.MaxAborted = true, 2 }, "", ""},
	{"async", func(c *Config) { c.FullyAsync, c.NumRollout, c.MaxStaleness = true, 9, 1 }, "", ""},
	{"dynamic", func(c *Config) { c.PartialRollout, c.DynamicBatch, c.DataParallel, c.OverSampling = true, true, 2, 3 }, "", ""},
	{"rloo", func(c *Config) { c.Trainer.AdvantageEstimator = "rloo" }, "", ""},
	{"small capacity", func(c *Config) { c.Capacity = 1 }, "", ""},

	{"no batch", func(c *Config) { c.BatchSize = 0 }, "rollout_batch_size", "at least 1, found 0"},
	{"no samples", func(c *Config) { c.GroupSize = -1 }, "n_samples_per_prompt", "found -1"},
	{"capacity", func(c *Config) { c.Capacity = -1 }, "agentic_concurrency", "found -1"},
	{"eval capacity", func(c *Config) { c.EvalCapacity = -1 }, "agentic_eval_concurrency", "found -1"},
	{"retries", func(c *Config) { c.AgentRetries = -1 }, "agent_retries", "found -1"},
	{"drops", func(c *Config) { c.MaxConsecutiveDropped = 0 }, "max_consecutive_dropped_groups", "found 0"},
	{"aborts", func(c *Config) { c.PartialRollout, c.MaxAborted = true, -1 }, "partial_rollout_max_aborted_count", "found -1"},
	{"staleness", func(c *Config) { c.MaxStaleness = -1 }, "max_staleness", "found -1"},
	{"permits", func(c *Config) { c.Permits = -1 }, "sglang_server_concurrency", "found -1"},
	{"rollouts", func(c *Config) { c.NumRollout = -1 }, "num_rollout", "found -1"},
	{"first request", func(c *Config) { c.FirstRequestTimeout = 0 }, "agent_first_request_timeout", "positive"},
	{"agent timeout", func(c *Config) { c.AgentTimeout = -1 }, "agent_timeout", "positive"},
	{"under-sampling", func(c *Config) { c.OverSampling = 1 }, "over_sampling_batch_size", "rollout_batch_size (2), found 1"},

	{"both modes", func(c *Config) { c.PartialRollout, c.FullyAsync, c.NumRollout = true, true, 9 }, "partial_rollout", "exclude each other"},
	{"async without an end", func(c *Config) { c.FullyAsync = true }, "num_rollout", "required by fully_async"},
	{"async rloo", func(c *Config) { c.FullyAsync, c.NumRollout, c.Trainer.AdvantageEstimator = true, 9, "rloo" }, "advantage_estimator", "rloo and fully_async"},
	{"async reinforce++", func(c *Config) {
		c.FullyAsync, c.NumRollout, c.Trainer.AdvantageEstimator = true, 9, "reinforce_plus_plus_baseline"
	}, "advantage_estimator", "reinforce_plus_plus_baseline and fully_async"},
	{"partial rloo", func(c *Config) { c.PartialRollout, c.Trainer.AdvantageEstimator = true, "rloo" }, "advantage_estimator", "partial_rollout"},
	{"partial routing replay", func(c *Config) { c.PartialRollout, c.Trainer.RoutingReplay = true, true }, "use_rollout_routing_replay", "partial_rollout"},
	{"lonely rloo", func(c *Config) { c.GroupSize, c.Trainer.AdvantageEstimator = 1, "rloo" }, "n_samples_per_prompt", "at least 2, found 1"},
	{"stale rloo", func(c *Config) { c.MaxStaleness, c.Trainer.AdvantageEstimator = 1, "rloo" }, "max_staleness", "rloo needs 0"},

	{"dynamic alone", func(c *Config) { c.DynamicBatch, c.OverSampling = true, 3 }, "use_dynamic_global_batch_size", "needs partial_rollout"},
	{"dynamic without surplus", func(c *Config) { c.PartialRollout, c.DynamicBatch = true, true }, "over_sampling_batch_size", "more than rollout_batch_size (2)"},
	{"dynamic size", func(c *Config) { c.PartialRollout, c.DynamicBatch, c.OverSampling, c.DataParallel = true, true, 3, -1 },
		"use_dynamic_global_batch_size", "found -1"},
}

func TestValidate(t *testing.T) {
	for _, row := range combinations {
		cfg := testConfig()
		row.change(&cfg)
		problems := Validate(cfg)
		if row.option == "" {
			if len(problems) > 0 {
				t.Errorf("%s: %v", row.name, problems)
			}
			continue
		}
		if len(problems) != 1 || problems[0].Options[0] != row.option || !strings.Contains(problems[0].String(), row.reason) {
			t.Errorf("%s: %v, want one problem of %s: %q", row.name, problems, row.option, row.reason)
		}
	}
}

func TestValidateNamesEveryProblem(t *testing.T) {
	cfg := testConfig()
	cfg.DynamicBatch, cfg.FullyAsync, cfg.NumRollout = true, true, 9
	var options []string
	for _, p := range Validate(cfg) {
		options = append(options, p.Options...)
	}
	for _, want := range []string{"partial_rollout", "fully_async", "over_sampling_batch_size"} {
		if !slices.Contains(options, want) {
			t.Errorf("%v: %s is missing", options, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"":                                  func(*Config) {},
		"over_sampling_batch_size":          func(c *Config) { c.OverSampling, c.Capacity = 3, 3 },
		"partial_rollout_max_aborted_count": func(c *Config) { c.MaxAborted = 1 },
		"agentic_concurrency":               func(c *Config) { c.Capacity = 1 },
	} {
		cfg := testConfig()
		change(&cfg)
		got := Warnings(cfg)
		if len(got) > 1 || (option != "") != (len(got) == 1) || option != "" && got[0].Options[0] != option {
			t.Errorf("%s: warnings %v", option, got)
		}
	}
	cfg := testConfig()
	cfg.MaxStaleness = 1
	if got := Warnings(cfg); len(got) != 1 || got[0].Options[0] != "max_staleness" {
		t.Errorf("max_staleness without fully_async: %v", got)
	}
	cfg.MaxStaleness, cfg.FullyAsync, cfg.NumRollout = 0, true, 3
	if got := Warnings(cfg); len(got) != 1 || got[0].Options[0] != "max_staleness" {
		t.Errorf("fully_async without max_staleness: %v", got)
	}
}
