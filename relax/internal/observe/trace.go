package observe

import (
	"bytes"
	"encoding/json"
)

// A Trace says what happened in one Session and what became of it. Names are the reference's
// where it has them (reference session service 8.4 and 9); times end in _at and are unix
// seconds, durations end in _s. All numbers are finite, long texts are shortened, long lists cut
// (Omitted says by how many entries).
type Trace struct {
	SessionID string `json:"session_id"`
	GroupID   string `json:"group_id"`
	Seq       int    `json:"seq"`
	Mode      string `json:"mode"`
	// RolloutID is the step that was open when the Session's fate was known, null for none;
	// StartRolloutID the one it was leased in, null if it never was.
	RolloutID      *int64         `json:"rollout_id"`
	StartRolloutID *int64         `json:"start_rollout_id"`
	Outcome        Outcome        `json:"outcome"`
	Process        TraceProcess   `json:"process"`
	Counts         TraceCounts    `json:"counts"`
	Divergences    map[string]int `json:"divergences"`
	Events         TraceEvents    `json:"events"`
	Turns          []TraceTurn    `json:"turns"`
	Failed         []TraceFailure `json:"failed_requests"`
	Retries        []TraceRetry   `json:"retries"`
	Nodes          []TraceNode    `json:"nodes"`
	Exports        []TraceExport  `json:"exports"`
	// Side are the conversations an implicit export left out.
	Side    []TraceExport  `json:"side_conversations"`
	Omitted map[string]int `json:"omitted,omitempty"`
}

// Outcome is a Session's fate, which it shares with its Group.
type Outcome struct {
	// Status is "delivered" or "dropped".
	Status string `json:"status"`
	// Reason is a short stable word, Cause a text for people; both "" if delivered.
	Reason string `json:"reason"`
	Cause  string `json:"cause"`
	// AtFault: the Group was dropped because of this Session.
	AtFault bool `json:"at_fault"`
}

// The statuses of an Outcome.
const (
	Delivered = "delivered"
	Dropped   = "dropped"
)

// TraceProcess is the agent's process; ExitCode is null if it has none.
type TraceProcess struct {
	Launched bool    `json:"launched"`
	ExitCode *int    `json:"exit_code"`
	Signal   string  `json:"signal"`
	Reason   string  `json:"reason"`
	Error    string  `json:"error,omitempty"`
	Seconds  float64 `json:"elapsed_s"`
	UserSec  float64 `json:"user_cpu_s"`
	SysSec   float64 `json:"system_cpu_s"`
	MaxRSSKB int64   `json:"max_rss_kb"`
	// LeftBehind counts processes that still ran when the agent had ended, and were ended;
	// LeftBehindNames are the command lines of the first few.
	LeftBehind      int      `json:"left_behind"`
	LeftBehindNames []string `json:"left_behind_names,omitempty"`
	// Log is the file that keeps the output of a failed agent, LogTail the output's end.
	Log     string `json:"log"`
	LogTail string `json:"log_tail"`
}

// TraceCounts sums the Session up. It counts what Omitted left out as well.
type TraceCounts struct {
	Turns       int `json:"turns"`
	Failed      int `json:"failed_requests"`
	Joined      int `json:"joined_retries"`
	Replayed    int `json:"replayed_retries"`
	Aborts      int `json:"aborts"`
	ParseErrors int `json:"parse_errors"`
	Truncated   int `json:"truncated_turns"`
	Tolerated   int `json:"tolerated_messages"`
	Undelivered int `json:"undelivered_turns"`
	Duplicates  int `json:"duplicates"`
	// SampledTokens are all committed ones, the sum of the four below it: ExportedTokens have loss
	// mask 1 in the exports, each counted once; DuplicateTokens repeat a recorded turn,
	// UndeliveredTokens are of turns no client received, UnexportedTokens of those no export holds.
	// LostTokens were never committed.
	SampledTokens     int   `json:"sampled_tokens"`
	ExportedTokens    int   `json:"exported_tokens"`
	DuplicateTokens   int   `json:"duplicate_tokens"`
	UndeliveredTokens int   `json:"undelivered_tokens"`
	UnexportedTokens  int   `json:"unexported_tokens"`
	LostTokens        int64 `json:"lost_tokens"`
	// ParkedSeconds is the time all requests waited for the lease and for the gate.
	ParkedSeconds     float64 `json:"parked_s"`
	GenerationSeconds float64 `json:"generation_elapsed_s"`
}

// TraceEvents are the Session's moments; one that did not come is left out.
type TraceEvents struct {
	PrepareStart float64 `json:"managed_prepare_start_at,omitempty"`
	ProcessStart float64 `json:"managed_process_start_at,omitempty"`
	FirstRequest float64 `json:"first_request_at,omitempty"`
	Lease        float64 `json:"lease_at,omitempty"`
	ProcessExit  float64 `json:"managed_process_exit_at,omitempty"`
	Finalize     float64 `json:"finalize_start_at,omitempty"`
	FinalizeEnd  float64 `json:"finalize_end_at,omitempty"`
	Reward       float64 `json:"reward_start_at,omitempty"`
	RewardEnd    float64 `json:"reward_end_at,omitempty"`
	Transfer     float64 `json:"transfer_buffer_enter_at,omitempty"`
}

// A TurnRecord is a turn as the reference records it.
type TurnRecord struct {
	// TurnIdx counts the turns above it in its conversation.
	TurnIdx         int    `json:"turn_idx"`
	RespStateHash   string `json:"resp_state_hash"`
	ParentStateHash string `json:"parent_state_hash"`
	RolloutID       int64  `json:"rollout_id"`
	RequestID       string `json:"request_id"`
	// RequestKind is "protected" if its Session could not be aborted any more, else "resumed" if the
	// turn, or one above it, was aborted and continued, else "fresh".
	RequestKind string `json:"request_kind"`
	// BaseStateHash is the state the generation answers.
	BaseStateHash string `json:"base_state_hash"`
	// AbortCount counts the turn's own aborts.
	AbortCount int `json:"abort_count"`
	// Status is "completed" or "truncated".
	Status            string     `json:"status"`
	ResponseLength    int        `json:"response_length"`
	WallSeconds       float64    `json:"wall_elapsed_s"`
	GenerationSeconds float64    `json:"generation_elapsed_s"`
	Events            TurnEvents `json:"events"`
}

// TurnEvents are a turn's moments; those of generation are the last attempt's, as the
// reference's are.
type TurnEvents struct {
	Arrived    float64 `json:"chat_request_arrive_at,omitempty"`
	Created    float64 `json:"ir_created_at,omitempty"`
	Activated  float64 `json:"ir_activated_at,omitempty"`
	Queued     float64 `json:"generation_queue_enter_at,omitempty"`
	Started    float64 `json:"generation_start_at,omitempty"`
	Generated  float64 `json:"generation_end_at,omitempty"`
	Ended      float64 `json:"chat_end_at,omitempty"`
	EncodeTime float64 `json:"tokenizer_encode_elapsed_s,omitempty"`
}

// A TraceTurn is a committed turn.
type TraceTurn struct {
	TurnRecord
	// Node is the response's id in Nodes. Duplicate: an earlier request had committed the same
	// message with the same tokens.
	Node         int    `json:"node"`
	Duplicate    bool   `json:"duplicate,omitempty"`
	FinishReason string `json:"finish_reason"`
	PromptTokens int    `json:"prompt_tokens"`
	CachedTokens int    `json:"cached_tokens"`
	// LeaseSeconds and GateSeconds are the parked time: waiting for the Group's lease, and for
	// the gate a pause or a weight update closes, for admission and for a place at the backend.
	LeaseSeconds float64          `json:"parked_lease_s"`
	GateSeconds  float64          `json:"parked_gate_s"`
	Attempts     []TraceAttempt   `json:"attempts"`
	ParseError   string           `json:"parse_error,omitempty"`
	Divergence   *TraceDivergence `json:"divergence,omitempty"`
	Tolerated    int              `json:"tolerated,omitempty"`
	Forgiven     []string         `json:"tolerated_fields,omitempty"`
	Undelivered  bool             `json:"undelivered,omitempty"`
}

// A TraceAttempt is one request to the backend. Started is its dispatch, the last one if the
// client repeated it; one that never left ("not_sent") has none, and weight version 0.
type TraceAttempt struct {
	RID           string  `json:"rid"`
	Queued        float64 `json:"generation_queue_enter_at"`
	Started       float64 `json:"generation_start_at,omitempty"`
	Ended         float64 `json:"generation_end_at,omitempty"`
	WeightVersion int64   `json:"weight_version"`
	Tokens        int     `json:"tokens"`
	Finish        string  `json:"finish"`
}

// A TraceDivergence says why a request did not go on from the newest state of its Session.
type TraceDivergence struct {
	// Reason is tools, chat_template_kwargs, message, shorter or longer.
	Reason string `json:"reason"`
	// Node is the response compared with, Message the first differing message (-1 for tools
	// and arguments), Field its field.
	Node     int    `json:"node"`
	Message  int    `json:"message"`
	Field    string `json:"field"`
	Recorded string `json:"recorded"`
	Sent     string `json:"sent"`
	// Text says the same in one line.
	Text string `json:"text"`
}

// A TraceFailure is a request that got an error.
type TraceFailure struct {
	RequestID  string           `json:"request_id"`
	Arrived    float64          `json:"chat_request_arrive_at"`
	Ended      float64          `json:"chat_end_at"`
	Status     int              `json:"http_status"`
	Code       string           `json:"code"`
	Message    string           `json:"message"`
	LostTokens int              `json:"lost_tokens"`
	Attempts   []TraceAttempt   `json:"attempts"`
	Divergence *TraceDivergence `json:"divergence,omitempty"`
}

// A TraceRetry is a request that got another one's answer.
type TraceRetry struct {
	// Kind is "joined" (in flight) or "replayed" (committed before).
	Kind string  `json:"kind"`
	Of   string  `json:"request_id"`
	At   float64 `json:"chat_request_arrive_at"`
}

// A TraceNode is a node of the tree.
type TraceNode struct {
	ID     int    `json:"id"`
	Kind   string `json:"kind"`
	Parent int    `json:"parent"`
	State  string `json:"state_hash"`
	// Messages is how many the node adds, Summary the beginning of the last one.
	Messages int    `json:"messages"`
	Summary  string `json:"summary"`
	// Tokens is what the node adds, PromptTokens how many of them are a generation prompt,
	// Length the lineage's.
	Tokens       int `json:"tokens"`
	PromptTokens int `json:"prompt_tokens,omitempty"`
	Length       int `json:"length"`
	// Tools counts those of a first observation; Duplicates the generations equal to this one.
	Tools      int `json:"tools,omitempty"`
	Duplicates int `json:"duplicates,omitempty"`
}

// A TraceExport is a context that was exported, or left out.
type TraceExport struct {
	// Name is "" for an implicit export.
	Name           string `json:"name"`
	Node           int    `json:"node"`
	LeafStateHash  string `json:"leaf_state_hash"`
	TerminalStatus string `json:"terminal_status"`
	TurnCount      int    `json:"turn_count"`
	// Tokens is the row's length; Summary the beginning of the context's first user message.
	Tokens  int    `json:"tokens"`
	Summary string `json:"summary"`
}

// AgenticTrace is what a row's metadata holds of its Session (reference session service 8.4).
type AgenticTrace struct {
	SessionID      string       `json:"session_id"`
	LeafStateHash  string       `json:"leaf_state_hash"`
	TerminalStatus string       `json:"terminal_status"`
	TurnCount      int          `json:"turn_count"`
	Turns          []TurnRecord `json:"turns"`
	Events         TraceEvents  `json:"events"`
	// SpecGenerations are the counts of speculative decoding, of turns that have any (pipeline 7.4).
	SpecGenerations []SpecRecord `json:"spec_generations,omitempty"`
}

// A SpecRecord has the counts of one turn that the backend gave, over all its attempts.
type SpecRecord struct {
	RequestID     string `json:"request_id"`
	RespStateHash string `json:"resp_state_hash"`
	Accepted      *int   `json:"spec_accept_token_num,omitempty"`
	Proposed      *int   `json:"spec_draft_token_num,omitempty"`
	Verifications *int   `json:"spec_verify_ct,omitempty"`
	Completion    *int   `json:"completion_token_num,omitempty"`
}

// AppendLine appends the trace as one line of JSON, with its end of line.
func (t *Trace) AppendLine(dst []byte) ([]byte, error) {
	b := bytes.NewBuffer(dst)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(t); err != nil {
		return dst, err
	}
	return b.Bytes(), nil
}
