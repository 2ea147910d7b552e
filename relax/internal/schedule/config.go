package schedule

import "time"

// Config holds the limits and modes the machine keeps. The comments name the options they come
// from. See [Validate] for what goes together.
type Config struct {
	// BatchSize is the number of Groups a step owes (rollout_batch_size).
	BatchSize int
	// GroupSize is the number of Sessions in a train Group (n_samples_per_prompt).
	GroupSize int
	// OverSampling is the number of Groups a step keeps leased or finished, of which it
	// delivers BatchSize (over_sampling_batch_size). 0: BatchSize.
	OverSampling int
	// Capacity bounds resident train Groups: started, with a process that is not gone
	// (agentic_concurrency). 0: OverSampling.
	Capacity int
	// EvalCapacity is the number of resident prompt Groups of an Eval dataset
	// (agentic_eval_concurrency). 0: derived for each dataset, see [Config.EvalGroups].
	EvalCapacity int
	// GroupRM: Eval scores whole prompt Groups; otherwise each Eval sample is a Group (group_rm).
	GroupRM bool
	// NumRollout is the number of steps of the run, 0 if unknown (num_rollout). Rollouts count
	// from 0; a fully-async run has one more, the final backfill with this number.
	NumRollout int64

	// Prelaunch starts Groups of later steps while capacity is free (agentic_prelaunch).
	Prelaunch bool
	// PartialRollout carries unfinished Groups into the next step (partial_rollout).
	PartialRollout bool
	// MaxAborted protects a Session once a request of it, with the turns it goes on from, was
	// aborted so often: from the next resume on none of its requests is aborted and steps wait for
	// it (partial_rollout_max_aborted_count). 0: never.
	MaxAborted int
	// FullyAsync carries unfinished Groups, and debt which parked ones cover (fully_async).
	FullyAsync bool
	// MaxStaleness bounds how many rollouts the oldest partition the trainer has not taken may
	// lie behind the open one (max_staleness). With 0 a step never closes with debt.
	MaxStaleness int64
	// DynamicBatch delivers finished surplus with the step, so that the number of its Groups is
	// a multiple of DataParallel (use_dynamic_global_batch_size, the trainer's data-parallel
	// size, 0: 1).
	DynamicBatch bool
	DataParallel int

	// MaxConsecutiveDropped ends the step after so many drops in a row
	// (max_consecutive_dropped_groups).
	MaxConsecutiveDropped int
	// AgentRetries is how often a failed Session is run again in its Group (agent_retries).
	AgentRetries int
	// FirstRequestTimeout bounds the wait for a Session's first request
	// (agent_first_request_timeout).
	FirstRequestTimeout time.Duration
	// AgentTimeout bounds a Session's active time after its lease; paused time does not count
	// (agent_timeout).
	AgentTimeout time.Duration
	// Permits bounds requests that were let through to the backend. 0: the backend's client
	// bounds them itself.
	Permits int

	// Backoff is the wait before the next Group starts when three in a row died before their
	// barrier; it doubles with each further one up to BackoffMax. 0: 100 ms and 10 s.
	Backoff, BackoffMax time.Duration

	// Trainer holds options of the trainer that exclude some of the above. Its zero value
	// excludes nothing.
	Trainer Trainer
}

// A Trainer is what [Validate] must know of the training side.
type Trainer struct {
	AdvantageEstimator string // advantage_estimator
	RoutingReplay      bool   // use_rollout_routing_replay
}

// backoffFree is how many Groups in a row may die before their barrier without a wait.
const backoffFree = 2

func (c Config) withDefaults() Config {
	if c.OverSampling == 0 {
		c.OverSampling = c.BatchSize
	}
	if c.Capacity == 0 {
		c.Capacity = c.OverSampling
	}
	if !c.PartialRollout {
		c.MaxAborted = 0
	}
	if c.DataParallel == 0 {
		c.DataParallel = 1
	}
	if c.Backoff == 0 {
		c.Backoff = 100 * time.Millisecond
	}
	if c.BackoffMax == 0 {
		c.BackoffMax = 10 * time.Second
	}
	return c
}

// retains says whether running Groups outlive a step that is not the last.
func (c *Config) retains() bool { return c.PartialRollout || c.FullyAsync }
