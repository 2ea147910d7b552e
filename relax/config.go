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
	AgentTimeout float64 `json:"agent_timeout"`
	// AgentFirstRequestTimeout bounds the wait for a Session's first model request. Default 600.
	AgentFirstRequestTimeout float64 `json:"agent_first_request_timeout"`
	// AgentKillGrace is the time between TERM and KILL when an agent is ended. Default 5.
	AgentKillGrace float64 `json:"agent_kill_grace"`
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
	// also when the only differences are dropped reasoning_content and white space at an answer's
	// end. The recorded turn then stands in the place of the replayed one.
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
	// SGLangServerConcurrency bounds requests in flight at the backend. Default 512.
	SGLangServerConcurrency int `json:"sglang_server_concurrency"`
	// Simulator configures the embedded simulator: an object with any of "policy" (a
	// sglangtest.Policy document), "seed", "start_delay_ms", "token_delay_ms", "context_len" and
	// "faults" (sglangtest fault rules). Default: a built-in policy that answers any prompt.
	Simulator json.RawMessage `json:"simulator"`

	// RolloutBatchSize is the number of Groups a step delivers. Default 1.
	RolloutBatchSize int `json:"rollout_batch_size"`
	// NSamplesPerPrompt is the number of Sessions of a Group. Default 1.
	NSamplesPerPrompt int `json:"n_samples_per_prompt"`
	// AgenticConcurrency bounds resident Groups. Default RolloutBatchSize.
	AgenticConcurrency int `json:"agentic_concurrency"`
	// MaxConsecutiveDroppedGroups ends a step with the first cause after so many Groups were
	// dropped in a row. Default 8.
	MaxConsecutiveDroppedGroups int `json:"max_consecutive_dropped_groups"`
	// RolloutTemperature (default 1), RolloutTopP (1) and RolloutTopK (-1: off) sample; request values are ignored.
	RolloutTemperature *float64 `json:"rollout_temperature"`
	RolloutTopP        *float64 `json:"rollout_top_p"`
	RolloutTopK        *int     `json:"rollout_top_k"`
	// RolloutMaxResponseLen is a turn's default token limit. Default 1024.
	RolloutMaxResponseLen int `json:"rollout_max_response_len"`
	// RolloutMaxContextLen bounds a lineage in tokens. 0: no limit of ours.
	RolloutMaxContextLen int `json:"rollout_max_context_len"`
	// RolloutStop and RolloutStopTokenIDs are extra stops of every turn; a request's own stop
	// takes the place of RolloutStop.
	RolloutStop         []string `json:"rollout_stop"`
	RolloutStopTokenIDs []int32  `json:"rollout_stop_token_ids"`

	// RewardKey picks the primary reward when rewards are objects.
	RewardKey string `json:"reward_key"`
	// CustomRM makes the engine ask (EventScore) for rewards an agent did not write. Without it
	// a missing reward drops the Group.
	CustomRM bool `json:"custom_rm"`
	// CustomAdvantage makes the engine ask (EventAdvantage) for the training credit of each
	// context. Sessions that export several contexts need it. Rewards are then not normalised and
	// need not exist.
	CustomAdvantage bool `json:"custom_advantage"`
	// RewardsNormalization subtracts the Group's mean (default true); GRPOStdNormalization
	// also divides by its unbiased standard deviation + 1e-6 (default true, off for Groups of one).
	RewardsNormalization *bool `json:"rewards_normalization"`
	GRPOStdNormalization *bool `json:"grpo_std_normalization"`

	// APIHost (default 127.0.0.1), APIPort (default 0: free) and APIAdvertiseURL place the
	// model endpoint.
	APIHost         string `json:"api_host"`
	APIPort         int    `json:"api_port"`
	APIAdvertiseURL string `json:"api_advertise_url"`
	// MaxBodyBytes bounds a request body. Default 256 MiB.
	MaxBodyBytes int `json:"max_body_bytes"`

	// RunDir keeps logs of failed Sessions. Default: a directory under the system's temporary
	// directory, removed at Close.
	RunDir string `json:"run_dir"`
	// TraceDir gets one JSON document for each Session that is over, delivered or dropped: a line
	// in rollout_<id>.jsonl, behind what is there; `python -m relax_rollout trace FILE` prints
	// them. Default: none is written. A file that cannot be written is a warning and fails nothing.
	TraceDir string `json:"trace_dir"`
	// GoMaxProcs bounds the threads running Go code. Default min(8, max(2, CPUs/8)) under the C ABI, untouched in Go programs.
	GoMaxProcs int `json:"go_max_procs"`
	// ArenaPoolBytes (default 1 GiB) bounds idle batch memory kept for reuse, ArenaLimitBytes
	// (default 0: none) all batch memory. Used by the C ABI.
	ArenaPoolBytes  int64 `json:"arena_pool_bytes"`
	ArenaLimitBytes int64 `json:"arena_limit_bytes"`
}
