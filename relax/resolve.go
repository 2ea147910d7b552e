package relax

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/gateway"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// Backends.
const (
	backendSGLang    = "sglang"
	backendSimulator = "simulator"
)

// What becomes of system messages (system_messages).
const (
	systemKeep  = "keep"
	systemHoist = "hoist"
)

// What makes a request a continuation (match_policy), which context is trained when the agent
// names none (implicit_export), and which row trains a shared turn (shared_prefix_loss).
const (
	matchExact     = "exact"
	matchTolerant  = "tolerant"
	implicitUnique = "unique"
	implicitMain   = "main"
	sharedEach     = "each"
	sharedFirst    = "first"
)

// Whose requests wait for room (agentic_admission_scope).
const (
	scopeTrain = "train"
	scopeAll   = "all"
)

// resolved is a Config after checks and defaults.
type resolved struct {
	Config
	schedule  schedule.Config
	credit    credit.Estimator
	sampling  sglang.Sampling
	kwargs    canon.Value
	killGrace time.Duration
	// disconnectGrace is DisconnectGrace with its default.
	disconnectGrace time.Duration
	// admissionWait is AgenticAdmissionMaxWaitS with its default.
	admissionWait time.Duration
	inherit       bool
	sharedLoss    forest.SharedLoss
}

// resolve checks cfg and fills in defaults. Errors are [*OptionError].
func resolve(cfg Config) (resolved, error) {
	r := resolved{Config: cfg}
	setDefaults(&r.Config)
	if err := checkNumbers(&r.Config); err != nil {
		return r, err
	}
	if err := checkBackend(&r.Config); err != nil {
		return r, err
	}
	if err := checkChoices(&r.Config); err != nil {
		return r, err
	}
	var err error
	if r.credit, err = r.estimator(); err != nil {
		return r, err
	}
	if r.SharedPrefixLoss == sharedFirst {
		r.sharedLoss = forest.SharedFirst
	}
	if r.kwargs, err = templateKwargs(r.ApplyChatTemplateKwargs); err != nil {
		return r, err
	}
	r.killGrace = seconds(r.AgentKillGrace)
	if r.disconnectGrace, err = wait("disconnect_grace", valueOr(r.DisconnectGrace, 5)); err != nil {
		return r, err
	}
	if r.admissionWait, err = wait("agentic_admission_max_wait_s", valueOr(r.AgenticAdmissionMaxWaitS, 30)); err != nil {
		return r, err
	}
	r.inherit = valueOr(r.AgentEnvInherit, true)
	r.schedule = r.scheduling()
	if problems := schedule.Validate(r.schedule); len(problems) > 0 {
		return r, scheduleError(problems)
	}
	r.sampling = sglang.Sampling{
		Temperature: valueOr(r.RolloutTemperature, 1), TopP: valueOr(r.RolloutTopP, 1), TopK: valueOr(r.RolloutTopK, -1),
		Stop: r.RolloutStop, StopTokenIDs: r.RolloutStopTokenIDs,
	}
	return r, nil
}

// scheduling is what the schedule must know.
func (r *resolved) scheduling() schedule.Config {
	return schedule.Config{
		BatchSize: r.RolloutBatchSize, GroupSize: r.NSamplesPerPrompt, OverSampling: r.OverSamplingBatchSize,
		Capacity: r.AgenticConcurrency, EvalCapacity: r.AgenticEvalConcurrency, GroupRM: r.GroupRM, NumRollout: r.NumRollout,
		Prelaunch: r.AgenticPrelaunch, PartialRollout: r.PartialRollout, MaxAborted: r.PartialRolloutMaxAbortedCount,
		FullyAsync: r.FullyAsync, MaxStaleness: r.MaxStaleness,
		DynamicBatch: r.UseDynamicGlobalBatchSize, DataParallel: r.DataParallelSize,
		MaxConsecutiveDropped: r.MaxConsecutiveDroppedGroups, AgentRetries: r.AgentRetries,
		FirstRequestTimeout: seconds(r.AgentFirstRequestTimeout), AgentTimeout: seconds(r.AgentTimeout),
		Trainer: schedule.Trainer{AdvantageEstimator: r.AdvantageEstimator, RoutingReplay: r.UseRolloutRoutingReplay},
	}
}

// scheduleError names the options of everything that does not go together.
func scheduleError(problems []schedule.Problem) error {
	err := &OptionError{Option: strings.Join(problems[0].Options, ", "), Problem: problems[0].Reason}
	for _, p := range problems[1:] {
		err.Problem += "; option " + p.String()
	}
	return err
}

// wait reads an option in seconds that may be zero.
func wait(option string, value float64) (time.Duration, error) {
	if !(value >= 0) || value > math.MaxInt32 {
		return 0, &OptionError{Option: option, Problem: fmt.Sprintf("expected zero or a positive number of seconds, found %v", value)}
	}
	return seconds(value), nil
}

func setDefaults(c *Config) {
	setDefault(&c.AgenticAdmissionHeadroom, 0.90)
	setDefault(&c.AgenticAdmissionPressureThreshold, 0.92)
	setDefault(&c.AgenticAdmissionScope, scopeTrain)
	setDefault(&c.SystemMessages, systemKeep)
	setDefault(&c.MatchPolicy, matchExact)
	setDefault(&c.ImplicitExport, implicitUnique)
	setDefault(&c.SharedPrefixLoss, sharedEach)
	setDefault(&c.AgentTimeout, 1800)
	setDefault(&c.AgentFirstRequestTimeout, 600)
	setDefault(&c.AgentKillGrace, 5)
	setDefault(&c.SGLangServerConcurrency, 512)
	setDefault(&c.RolloutBatchSize, 1)
	setDefault(&c.NSamplesPerPrompt, 1)
	setDefault(&c.OverSamplingBatchSize, c.RolloutBatchSize)
	setDefault(&c.AgenticConcurrency, c.OverSamplingBatchSize)
	setDefault(&c.DataParallelSize, 1)
	setDefault(&c.MaxConsecutiveDroppedGroups, 8)
	setDefault(&c.RolloutMaxResponseLen, 1024)
	setDefault(&c.AgenticAdmissionExpectedDecodeCap, c.RolloutMaxResponseLen)
	setDefault(&c.EvalMaxContextLen, c.RolloutMaxContextLen)
	setDefault(&c.APIHost, "127.0.0.1")
	setDefault(&c.MaxBodyBytes, 256<<20)
	if c.Backend == "" && c.SGLangURL == "" {
		c.Backend = backendSimulator
	}
	setDefault(&c.Backend, backendSGLang)
}

// checkChoices refuses words that an option does not have.
func checkChoices(c *Config) error {
	for _, o := range []struct{ name, value, a, b string }{
		{"system_messages", c.SystemMessages, systemKeep, systemHoist},
		{"match_policy", c.MatchPolicy, matchExact, matchTolerant},
		{"implicit_export", c.ImplicitExport, implicitUnique, implicitMain},
		{"shared_prefix_loss", c.SharedPrefixLoss, sharedEach, sharedFirst},
		{"agentic_admission_scope", c.AgenticAdmissionScope, scopeTrain, scopeAll},
	} {
		if o.value != o.a && o.value != o.b {
			return &OptionError{Option: o.name, Problem: fmt.Sprintf("expected %s or %s, found %q", o.a, o.b, o.value)}
		}
	}
	return nil
}

func checkNumbers(c *Config) error {
	// An option comes behind the one that is its default, so that the one that was set is named.
	for _, o := range []struct {
		name  string
		value float64
	}{
		{"agent_timeout", c.AgentTimeout},
		{"agent_first_request_timeout", c.AgentFirstRequestTimeout},
		{"agent_kill_grace", c.AgentKillGrace},
		{"sglang_server_concurrency", float64(c.SGLangServerConcurrency)},
		{"rollout_batch_size", float64(c.RolloutBatchSize)},
		{"n_samples_per_prompt", float64(c.NSamplesPerPrompt)},
		{"over_sampling_batch_size", float64(c.OverSamplingBatchSize)},
		{"agentic_concurrency", float64(c.AgenticConcurrency)},
		{"data_parallel_size", float64(c.DataParallelSize)},
		{"max_consecutive_dropped_groups", float64(c.MaxConsecutiveDroppedGroups)},
		{"rollout_max_response_len", float64(c.RolloutMaxResponseLen)},
		{"agentic_admission_expected_decode_cap", float64(c.AgenticAdmissionExpectedDecodeCap)},
		{"max_body_bytes", float64(c.MaxBodyBytes)},
	} {
		if !(o.value > 0) || o.value > math.MaxInt32 {
			return &OptionError{Option: o.name, Problem: fmt.Sprintf("expected a positive number below 2^31, found %v", o.value)}
		}
	}
	for _, o := range []struct {
		name  string
		value float64
	}{
		{"agent_retries", float64(c.AgentRetries)},
		{"agent_start_concurrency", float64(c.AgentStartConcurrency)},
		{"agentic_eval_concurrency", float64(c.AgenticEvalConcurrency)},
		{"partial_rollout_max_aborted_count", float64(c.PartialRolloutMaxAbortedCount)},
		{"max_staleness", float64(c.MaxStaleness)},
		{"num_rollout", float64(c.NumRollout)},
		{"rollout_max_context_len", float64(c.RolloutMaxContextLen)},
		{"eval_max_context_len", float64(c.EvalMaxContextLen)},
		{"moe_num_layers", float64(c.MoENumLayers)},
		{"moe_router_topk", float64(c.MoERouterTopK)},
		{"rollout_num_gpus", float64(c.RolloutNumGPUs)},
		{"go_max_procs", float64(c.GoMaxProcs)},
		{"arena_pool_bytes", float64(valueOr(c.ArenaPoolBytes, 0))},
		{"arena_limit_bytes", float64(c.ArenaLimitBytes)},
	} {
		if o.value < 0 {
			return &OptionError{Option: o.name, Problem: fmt.Sprintf("expected zero or a positive number, found %v", o.value)}
		}
	}
	if c.APIPort < 0 || c.APIPort > 65535 {
		return &OptionError{Option: "api_port", Problem: fmt.Sprintf("expected 0 (a free port) to 65535, found %d", c.APIPort)}
	}
	if p := c.MetricsPort; p != nil && (*p < 0 || *p > 65535) {
		return &OptionError{Option: "metrics_port", Problem: fmt.Sprintf("expected 0 (a free port) to 65535, found %d", *p)}
	}
	if err := gateway.CheckAdvertise(c.APIAdvertiseURL); err != nil {
		return &OptionError{Option: "api_advertise_url", Problem: err.Error()}
	}
	if err := checkAdmission(c); err != nil {
		return err
	}
	return checkSampling(c)
}

// checkSampling applies SGLang's own limits, so that a wrong value fails here and not in
// every request.
func checkSampling(c *Config) error {
	field, problem := samplingProblem(valueOr(c.RolloutTemperature, 1), valueOr(c.RolloutTopP, 1), valueOr(c.RolloutTopK, -1))
	if problem != "" {
		return &OptionError{Option: "rollout_" + field, Problem: problem}
	}
	return nil
}

// samplingProblem names the value that SGLang would refuse, "" if there is none.
func samplingProblem(temperature, topP float64, topK int) (field, problem string) {
	switch {
	case !(temperature >= 0) || math.IsInf(temperature, 0):
		return "temperature", fmt.Sprintf("expected zero or a positive number, found %v", temperature)
	case !(topP > 0 && topP <= 1):
		return "top_p", fmt.Sprintf("expected a number in (0, 1], found %v", topP)
	case topK != -1 && topK < 1:
		return "top_k", fmt.Sprintf("expected -1 (off) or a positive integer, found %d", topK)
	}
	return "", ""
}

// checkAdmission checks shares of a worker's room.
func checkAdmission(c *Config) error {
	for _, o := range []struct {
		name  string
		value float64
	}{
		{"agentic_admission_headroom", c.AgenticAdmissionHeadroom},
		{"agentic_admission_pressure_threshold", c.AgenticAdmissionPressureThreshold},
	} {
		if !(o.value > 0 && o.value <= 1) {
			return &OptionError{Option: o.name, Problem: fmt.Sprintf("expected a number in (0, 1], found %v", o.value)}
		}
	}
	return nil
}

func checkBackend(c *Config) error {
	switch c.Backend {
	case backendSimulator:
		if c.SGLangURL != "" {
			return &OptionError{Option: "backend", Problem: "simulator does not go with sglang_url: leave one of them out"}
		}
	case backendSGLang:
		if c.SGLangURL == "" {
			return &OptionError{Option: "sglang_url", Problem: "is required by backend sglang: the base URL of an SGLang server or router"}
		}
		if !strings.HasPrefix(c.SGLangURL, "http://") && !strings.HasPrefix(c.SGLangURL, "https://") {
			return &OptionError{Option: "sglang_url", Problem: fmt.Sprintf("expected http://host:port, found %q", c.SGLangURL)}
		}
		if c.HFCheckpoint == "" {
			return &OptionError{Option: "hf_checkpoint", Problem: "is required by backend sglang: the directory with the served model's tokenizer.json and chat template"}
		}
	default:
		return &OptionError{Option: "backend", Problem: fmt.Sprintf("expected sglang or simulator, found %q", c.Backend)}
	}
	return nil
}

func templateKwargs(raw json.RawMessage) (canon.Value, error) {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	v, err := canon.ParseValue(raw)
	if err != nil {
		return v, &OptionError{Option: "apply_chat_template_kwargs", Problem: "expected an object", Err: err}
	}
	if v.Kind() != canon.Object {
		return v, &OptionError{Option: "apply_chat_template_kwargs", Problem: "expected an object, found " + string(raw)}
	}
	return v, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func valueOr[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}
