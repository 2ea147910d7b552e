package relax

// A StepReport is the Data of an [EventStepEnd]: what became of everything the step started.
type StepReport struct {
	Rollout int64 `json:"rollout"`
	// Groups and Rows were delivered in the step's batch; Debt is how many Groups are missing
	// from rollout_batch_size because tasks ran out or the step failed.
	Groups int `json:"groups"`
	Rows   int `json:"rows"`
	Debt   int `json:"debt"`
	// Seconds is the step's wall time.
	Seconds float64 `json:"seconds"`
	// Error is set when the step ended on max_consecutive_dropped_groups (it holds the first
	// cause) or its batch could not be built.
	Error string `json:"error,omitempty"`
	// Accounting balances: started = delivered + dropped + carried in every line.
	Accounting Accounting `json:"accounting"`
	// Drops says why Groups were dropped, one entry a reason.
	Drops []Drop `json:"drops"`
	// Metrics are the step's numbers under the reference's names (rollout/raw_reward, …).
	Metrics map[string]float64 `json:"metrics"`
}

// Accounting holds one balance for each thing counted.
type Accounting struct {
	Groups   Balance `json:"groups"`
	Sessions Balance `json:"sessions"`
	// Tokens counts sampled tokens; delivered ones are those with loss mask 1 in the batch.
	Tokens Balance `json:"tokens"`
}

// A Balance says where everything started ended up.
type Balance struct {
	Started   int64 `json:"started"`
	Delivered int64 `json:"delivered"`
	Dropped   int64 `json:"dropped"`
	Carried   int64 `json:"carried"`
}

// A Drop sums what was dropped for one reason: Groups with their Sessions and tokens, or only
// tokens of delivered Groups.
type Drop struct {
	// Reason is a short stable word: agent_exit, agent_timeout, first_request_timeout,
	// no_request, start_failed, invalid_output, export, reward, score, advantage, filtered (the
	// advantage hook wanted the Group out), step_end, memory (the batch could not be built),
	// not_exported (tokens outside the exported contexts).
	Reason   string `json:"reason"`
	Groups   int64  `json:"groups"`
	Sessions int64  `json:"sessions"`
	Tokens   int64  `json:"tokens"`
	// First is the first such Group's cause, with exit code and log tail where there are any.
	First string `json:"first"`
}
