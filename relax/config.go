package relax

import "encoding/json"

// Config is everything an engine can be told. Names are the guide's in snake_case; every
// field has a usable zero value unless its comment says required. Durations are in seconds.
type Config struct {
	// AgentCommand starts the agent app of one Session: a shell command line. Required.
	AgentCommand string `json:"agent_command"`
	// AgentCwd is the agent's working directory. Required, must exist.
	AgentCwd string `json:"agent_cwd"`
	// AgentEnv is added to the agent's environment. Names starting with RELAX_ are refused.
	AgentEnv map[string]string `json:"agent_env"`
	// AgentEnvInherit passes the trainer's environment on below AgentEnv. Default true.
	AgentEnvInherit *bool `json:"agent_env_inherit"`
	// AgentTimeout bounds a Session's active time in Runtime; waiting for a lease and paused
	// time do not count. Default 1800.
	AgentTimeout float64 `json:"agent_timeout,omitzero"`
	// AgentFirstRequestTimeout bounds the wait for a Session's first model request. Default 600.
	AgentFirstRequestTimeout float64 `json:"agent_first_request_timeout,omitzero"`
	// AgentKillGrace is the time between TERM and KILL when an agent is ended. Default 5.
	AgentKillGrace float64 `json:"agent_kill_grace,omitzero"`
	// AgentRetries is how often a failed Session is run again from scratch in its Group before the
	// Group is dropped. Default 0.
	AgentRetries int `json:"agent_retries"`
	// AgentStartConcurrency bounds agents that are being started at the same moment. Default: twice
	// the processors, at least 8.
	AgentStartConcurrency int `json:"agent_start_concurrency"`
	// AgentLoginShell runs AgentCommand by a login shell (sh -lc), as the reference does: profile files
	// are read then, and may override AgentEnv. Default false.
	AgentLoginShell bool `json:"agent_login_shell"`
	// AgentSupervisor is the relax-agent-init binary. Empty: the running program starts itself
	// as the supervisor, which works in Go programs; Python sets it.
	AgentSupervisor string `json:"agent_supervisor"`

	// HFCheckpoint is a directory with tokenizer.json and a chat template. Required with the
	// sglang backend; with the simulator, empty means the built-in byte tokenizer.
	HFCheckpoint string `json:"hf_checkpoint"`
	// ReasoningParser and ToolCallParser are SGLang parser names, empty for none.
	ReasoningParser string `json:"agentic_reasoning_parser"`
	ToolCallParser  string `json:"agentic_tool_call_parser"`
	// ApplyChatTemplateKwargs is the base layer of every request's chat_template_kwargs.
	ApplyChatTemplateKwargs json.RawMessage `json:"apply_chat_template_kwargs"`

	// DisconnectGrace is how long a turn goes on in seconds after its client left, in case a retry
	// joins it; then it is cancelled and nothing is committed. Default 5; 0 cancels at once.
	DisconnectGrace *float64 `json:"disconnect_grace"`
	// SystemMessages says what becomes of system messages behind the first place: "keep" (default)
	// leaves them where they are, and renders them as user messages if the model's template
	// cannot print them there; "hoist" joins all to one at the beginning, as the reference does,
	// which makes a new history of every request that adds one.
	SystemMessages string `json:"system_messages"`

	// MatchPolicy says when a request continues a recorded turn: "exact" (default), or "tolerant":
	// also when the only differences are dropped reasoning_content, white space at an answer's end
	// and arguments of tool calls, which Claude Code writes anew (the call's id must be the engine's).
	// The recorded turn then stands in the place of the replayed one.
	MatchPolicy string `json:"match_policy"`
	// ImplicitExport says which context is trained when the agent names none: "unique" (default)
	// takes the only one and refuses several; "main" leaves side conversations out, such as a
	// title call: it takes the one with most turns, then most tools, then the latest.
	ImplicitExport string `json:"implicit_export"`
	// SharedPrefixLoss says what becomes of turns that several exported contexts share: "each"
	// (default) trains them in every row, "first" in the first row only; a context exported twice
	// is then a row with loss mask 0 throughout the second time.
	SharedPrefixLoss string `json:"shared_prefix_loss"`

	// Backend is "sglang" or "simulator". Default: sglang if SGLangURL is set, else simulator.
	Backend string `json:"backend"`
	// SGLangURL is the base URL of an SGLang server or router.
	SGLangURL string `json:"sglang_url"`
	// SGLangAPIKey is sent to it as a bearer token if set.
	SGLangAPIKey string `json:"sglang_api_key"`
	// SGLangServerConcurrency times the backend's workers in use bounds requests in flight. That is so
	// many at each on average: one worker may have a quarter more, so that Sessions keep the worker
	// whose cache knows them. Default 512.
	SGLangServerConcurrency int `json:"sglang_server_concurrency,omitzero"`
	// SGLangDeterministicInference says that the backend runs with
	// --enable-deterministic-inference: requests then carry a sampling seed, RolloutSeed plus the
	// Session's place among the samples of its task. Without RolloutSeed only seeds that requests
	// bring are sent.
	SGLangDeterministicInference bool   `json:"sglang_enable_deterministic_inference"`
	RolloutSeed                  *int64 `json:"rollout_seed"`
	// Simulator configures the embedded simulator: an object with any of "policy" (a
	// sglangtest.Policy document), "seed", "start_delay_ms", "token_delay_ms", "context_len", "experts" and
	// "faults" (sglangtest fault rules). Default: a built-in policy that answers any prompt.
	Simulator json.RawMessage `json:"simulator"`

	// UseRolloutRoutingReplay has the backend report to which experts its mixture-of-experts model
	// routed each token, for the batch column routed_experts. SGLang must run with
	// --enable-return-routed-experts and be called directly: routers drop the wish. Training only;
	// not together with PartialRollout.
	UseRolloutRoutingReplay bool `json:"use_rollout_routing_replay"`
	// MoENumLayers and MoERouterTopK are the shape of those reports. Default: num_hidden_layers and
	// num_experts_per_tok of the checkpoint's config.json.
	MoENumLayers  int `json:"moe_num_layers"`
	MoERouterTopK int `json:"moe_router_topk"`

	// RolloutBatchSize is the number of Groups a step delivers. Default 1.
	RolloutBatchSize int `json:"rollout_batch_size,omitzero"`
	// NSamplesPerPrompt is the number of Sessions of a Group. Default 1.
	NSamplesPerPrompt int `json:"n_samples_per_prompt,omitzero"`
	// OverSamplingBatchSize is the number of Groups a step works on, of which it delivers
	// RolloutBatchSize. Default RolloutBatchSize.
	OverSamplingBatchSize int `json:"over_sampling_batch_size,omitzero"`
	// AgenticConcurrency bounds resident train Groups. Default OverSamplingBatchSize.
	AgenticConcurrency int `json:"agentic_concurrency,omitzero"`
	// AgenticEvalConcurrency bounds resident prompt Groups of an Eval dataset. Default 0: as many as
	// hold the agents of training, T / n_samples rounded up.
	AgenticEvalConcurrency int `json:"agentic_eval_concurrency"`
	// AgenticPrelaunch starts agents of later steps while capacity is free; their first requests wait.
	AgenticPrelaunch bool `json:"agentic_prelaunch"`
	// PartialRollout carries unfinished Groups into the next step: at a step's end their requests
	// are aborted and parked, and go on from the tokens they have.
	PartialRollout bool `json:"partial_rollout"`
	// PartialRolloutMaxAbortedCount protects a Session once a request of it, with the turns that it
	// goes on from, was aborted so often: from the next step on it is not aborted, and steps wait for
	// it. Default 0: never.
	PartialRolloutMaxAbortedCount int `json:"partial_rollout_max_aborted_count"`
	// FullyAsync carries unfinished Groups and, with MaxStaleness, debt: each rollout owes a
	// partition, which the next one may complete. Rows name their partition. Needs NumRollout; the
	// last partition is completed by StartRollout(NumRollout), the final backfill.
	FullyAsync bool `json:"fully_async"`
	// MaxStaleness bounds how many rollouts the oldest partition that the trainer has not taken
	// (Engine.Consumed) may lie behind the open one. Default 0.
	MaxStaleness int64 `json:"max_staleness"`
	// NumRollout is the number of steps of the run. Default 0: not known.
	NumRollout int64 `json:"num_rollout"`
	// UseDynamicGlobalBatchSize delivers finished surplus with the step, as much as keeps the number
	// of Groups a multiple of DataParallelSize (default 1). Needs PartialRollout.
	UseDynamicGlobalBatchSize bool `json:"use_dynamic_global_batch_size"`
	DataParallelSize          int  `json:"data_parallel_size,omitzero"`
	// MaxConsecutiveDroppedGroups ends a step with the first cause after so many Groups were
	// dropped in a row. Default 8.
	MaxConsecutiveDroppedGroups int `json:"max_consecutive_dropped_groups,omitzero"`
	// RolloutTemperature (default 1), RolloutTopP (1) and RolloutTopK (-1: off) sample; request values are ignored.
	RolloutTemperature *float64 `json:"rollout_temperature"`
	RolloutTopP        *float64 `json:"rollout_top_p"`
	RolloutTopK        *int     `json:"rollout_top_k"`
	// RolloutMaxResponseLen is a turn's default token limit. Default 1024.
	RolloutMaxResponseLen int `json:"rollout_max_response_len,omitzero"`
	// RolloutMaxContextLen bounds a lineage in tokens. 0: no limit of ours.
	RolloutMaxContextLen int `json:"rollout_max_context_len"`
	// EvalMaxContextLen is the same for Eval. Default RolloutMaxContextLen.
	EvalMaxContextLen int `json:"eval_max_context_len"`
	// RolloutStop and RolloutStopTokenIDs are extra stops of every turn; a request's own stop
	// takes the place of RolloutStop.
	RolloutStop         []string `json:"rollout_stop"`
	RolloutStopTokenIDs []int32  `json:"rollout_stop_token_ids"`

	// AgenticSessionLifecycle sends session ids to the backend and ends them there with their
	// Sessions. Needs SGLang with --enable-session-radix-cache and the radix eviction policy priority.
	AgenticSessionLifecycle bool `json:"agentic_session_lifecycle"`
	// AgenticProgramAdmission delays requests for which a worker is predicted to have no room in its
	// KV cache. Its room is AgenticAdmissionHeadroom (default 0.90) of its tokens; above the usage
	// AgenticAdmissionPressureThreshold (default 0.92) nothing is admitted. A request counts its
	// prompt and at most AgenticAdmissionExpectedDecodeCap new tokens (default
	// RolloutMaxResponseLen), and waits at most AgenticAdmissionMaxWaitS seconds (default 30).
	// AgenticAdmissionScope is "train" (default) or "all", which includes Eval.
	AgenticProgramAdmission           bool     `json:"agentic_program_admission"`
	AgenticAdmissionHeadroom          float64  `json:"agentic_admission_headroom,omitzero"`
	AgenticAdmissionPressureThreshold float64  `json:"agentic_admission_pressure_threshold,omitzero"`
	AgenticAdmissionExpectedDecodeCap int      `json:"agentic_admission_expected_decode_cap,omitzero"`
	AgenticAdmissionMaxWaitS          *float64 `json:"agentic_admission_max_wait_s"`
	AgenticAdmissionScope             string   `json:"agentic_admission_scope"`

	// RewardKey picks the primary reward when rewards are objects.
	RewardKey string `json:"reward_key"`
	// CustomRM makes the engine ask (EventScore) for rewards an agent did not write. Without it
	// a missing reward drops the Group.
	CustomRM bool `json:"custom_rm"`
	// GroupRM makes it ask for the rewards of every Group, and take them in the place of those the
	// agents wrote. Needs CustomRM.
	GroupRM bool `json:"group_rm"`
	// CustomAdvantage makes the engine ask (EventAdvantage) for the training credit of each
	// context. Sessions that export several contexts need it. Rewards are then not normalised and
	// need not exist; they are asked for only if GroupRM is set. A Group it filters is made up for,
	// unbounded by design as with DynamicSamplingFilter.
	CustomAdvantage bool `json:"custom_advantage"`
	// DynamicSamplingFilter is a built-in filter of Groups whose credit is known, empty for none:
	// "check_reward_nonzero_std" takes out those whose Sessions all have one reward. The step makes
	// up for a Group that was filtered: one whose Groups are all filtered goes on until tasks run out,
	// unbounded by design, with a warning after every 100 in a row.
	DynamicSamplingFilter string `json:"dynamic_sampling_filter"`
	// CustomFilter makes the engine ask (EventFilter) whether to train on a Group; what is filtered is
	// made up for as with DynamicSamplingFilter.
	CustomFilter bool `json:"custom_filter"`
	// SampleDetails adds to the events of hooks what the reference's samples have and most hooks do
	// not need: each context's token ids, logprobs and turn table for rewards and filters (about 11
	// bytes a token), its tools and chat_template_kwargs for all of them and the rows' meta_json. See
	// [EventScore]. Default off.
	SampleDetails bool `json:"sample_details"`
	// AdvantageEstimator is the trainer's; it says how rewards are normalised within a Group and
	// whether credit for each turn is allowed: "grpo" (default), "gspo", "sapo" and "cispo" subtract
	// the mean and divide by the deviation, "reinforce_plus_plus_baseline" subtracts the mean,
	// "rloo" the mean of the other Sessions, "reinforce_plus_plus", "m2po" and "ppo" nothing. Lists
	// of one advantage a turn go with grpo, gspo, sapo, cispo, m2po and rloo.
	AdvantageEstimator string `json:"advantage_estimator"`
	// RewardsNormalization normalises rewards as AdvantageEstimator says (default true);
	// GRPOStdNormalization also divides by the Group's unbiased standard deviation + 1e-6 where it
	// does (default true, off for Groups of one).
	RewardsNormalization *bool `json:"rewards_normalization"`
	GRPOStdNormalization *bool `json:"grpo_std_normalization"`
	// LogPassrate adds pass@k to the metrics: the chance that one of k Sessions of a Group has
	// reward 1. LogRewardCategory is a member of reward objects whose values are counted as
	// rollout/error_cat/<value>. RolloutNumGPUs is the number the backend runs on, for
	// perf/tokens_per_gpu_per_sec; 0: not known.
	LogPassrate       bool   `json:"log_passrate"`
	LogRewardCategory string `json:"log_reward_category"`
	RolloutNumGPUs    int    `json:"rollout_num_gpus"`

	// APIHost (default 127.0.0.1), APIPort (default 0: free) and APIAdvertiseURL place the
	// model endpoint.
	APIHost         string `json:"api_host"`
	APIPort         int    `json:"api_port"`
	APIAdvertiseURL string `json:"api_advertise_url"`
	// MaxBodyBytes bounds a request body. Default 256 MiB.
	MaxBodyBytes int `json:"max_body_bytes,omitzero"`

	// RunDir keeps logs of failed Sessions. Default: a directory under the system's temporary
	// directory, removed at Close.
	RunDir string `json:"run_dir"`
	// TraceDir gets one JSON document for each Session that is over, delivered or dropped: a line
	// in rollout_<id>.jsonl, behind what is there; `python -m relax_rollout trace FILE` prints
	// them. Default: none is written. A file that cannot be written is a warning and fails nothing.
	TraceDir string `json:"trace_dir"`
	// SaveDebugRolloutData is a file name with {rollout_id} in it (of an Eval that becomes
	// eval_<id>). A name in .jsonl gets all that is known of a step: a line {"row": ...} for each
	// delivered row with its tokens, and a line {"session": ...} with the trace of each Session,
	// also of those dropped. Of a name in .parquet the engine writes the traces only, to the same
	// name with .traces.jsonl behind it; the rows are the host's to write, as the Python package
	// does. A file of an earlier run is overwritten. Default: none.
	SaveDebugRolloutData string `json:"save_debug_rollout_data"`
	// RolloutResultDir gets a line for people for each delivered row: prompt, response, reward, in
	// train/<id>.jsonl or eval/<id>.jsonl. Default: none.
	RolloutResultDir string `json:"rollout_result_dir"`
	// MetricsPort serves GET /metrics at APIHost as Prometheus text: the last step's metrics, live
	// gauges and counters. 0 takes a free port, which Stats tells. Default: off.
	MetricsPort *int `json:"metrics_port"`
	// GoMaxProcs bounds the threads running Go code. Default min(8, max(2, CPUs/8)) under the C ABI, untouched in Go programs.
	GoMaxProcs int `json:"go_max_procs"`
	// ArenaPoolBytes (default 1 GiB) bounds idle batch memory kept for reuse, ArenaLimitBytes
	// (default 0: none) all batch memory. Used by the C ABI.
	ArenaPoolBytes  *int64 `json:"arena_pool_bytes"`
	ArenaLimitBytes int64  `json:"arena_limit_bytes"`
	// ArenaShared puts each batch into memory that other processes of this machine can map
	// (a memfd): relax_batch_export_fd gives its descriptor. Such memory is not used again, so a
	// batch costs its page faults anew, and one descriptor as long as it lives; forked children see
	// what this process writes to it later. Default off. Used by the C ABI.
	ArenaShared bool `json:"arena_shared"`
}
