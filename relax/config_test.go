package relax

import (
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func TestParseConfigNamesTheOption(t *testing.T) {
	for _, tt := range []struct{ doc, option, text string }{
		{`{"agent_comand": "x"}`, "agent_comand", "did you mean agent_command?"},
		{`{"zzz": 1}`, "zzz", "unknown option"},
		{`{"rollout_batch_size": "4"}`, "rollout_batch_size", `expected an integer, found "4"`},
		{`{"agent_timeout": true}`, "agent_timeout", "expected a number"},
		{`{"agent_env": {"A": 1}}`, "agent_env", "expected an object of string values"},
		{`{"rollout_stop": "x"}`, "rollout_stop", "expected a list of strings"},
		{`[]`, "(configuration)", "one JSON object"},
		{`null`, "(configuration)", "one JSON object"},
		{``, "(configuration)", "one JSON object"},
		{`{"agent_timeout": 1e999}`, "agent_timeout", "expected a number"},
		{`{"rollout_stop_token_ids": [1.5]}`, "rollout_stop_token_ids", "expected a list of integers"},
		{`{"agent_kill_grace": 0}`, "agent_kill_grace", "found 0; leave the option out for its default"},
		{`{"rollout_max_response_len": 0.0}`, "rollout_max_response_len", "found 0"},
		{`{"rollout_batch_size": 1.5}`, "rollout_batch_size", "expected an integer, found 1.5"},
	} {
		_, err := ParseConfig([]byte(tt.doc))
		var wrong *OptionError
		if !errors.As(err, &wrong) || wrong.Option != tt.option || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want option %s and %q", tt.doc, err, tt.option, tt.text)
		}
	}
	cfg, err := ParseConfig([]byte(`{"agent_command": "x", "rollout_temperature": 0, "agent_timeout": null}`))
	if err != nil || cfg.AgentCommand != "x" || cfg.RolloutTemperature == nil || *cfg.RolloutTemperature != 0 {
		t.Errorf("cfg = %+v, err %v", cfg, err)
	}
}

// Every option whose zero is refused in a document is refused below zero by Open, and a Config makes a
// document that can be read.
func TestOptionsThatAreNeverZero(t *testing.T) {
	if n := len(neverZero()); n < 10 {
		t.Fatalf("%d options, so the test shows nothing", n)
	}
	for _, name := range neverZero() {
		cfg := testConfig(t)
		field := optionFields(reflect.ValueOf(&cfg).Elem())[name]
		if err := setOption(field, json.RawMessage("-1")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var wrong *OptionError
		if _, err := Open(cfg); !errors.As(err, &wrong) || !strings.Contains(wrong.Option, name) {
			t.Errorf("%s -1: %v", name, err)
		}
	}
}

func TestAConfigCanBeWrittenAndRead(t *testing.T) {
	cfg := testConfig(t)
	cfg.RolloutBatchSize = 3
	doc, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if read, err := ParseConfig(doc); err != nil || read.RolloutBatchSize != 3 || read.AgentTimeout != cfg.AgentTimeout {
		t.Errorf("%+v, %v", read, err)
	}
}

func TestATakenPort(t *testing.T) {
	first := openEngine(t, testConfig(t))
	cfg := testConfig(t)
	at, err := url.Parse(first.BaseURL())
	if err != nil {
		t.Fatal(err)
	}
	if cfg.APIPort, err = strconv.Atoi(at.Port()); err != nil {
		t.Fatal(err)
	}
	var wrong *OptionError
	if _, err := Open(cfg); !errors.As(err, &wrong) || wrong.Option != "api_port" {
		t.Errorf("open: %v, want option api_port", err)
	}
}

func TestOpenNamesTheOption(t *testing.T) {
	noTemplate := filepath.Join("..", "testdata", "checkpoints", "notemplate")
	for _, tt := range []struct {
		name         string
		alter        func(*Config)
		option, text string
	}{
		{"no command", func(c *Config) { c.AgentCommand = " " }, "agent_command", ""},
		{"no cwd", func(c *Config) { c.AgentCwd = "/does/not/exist" }, "agent_cwd", "/does/not/exist"},
		{"reserved variable", func(c *Config) { c.AgentEnv = map[string]string{"RELAX_X": "1"} }, "agent_env", "RELAX_X"},
		{"supervisor", func(c *Config) { c.AgentSupervisor = "/does/not/exist" }, "agent_supervisor", ""},
		{"negative", func(c *Config) { c.RolloutBatchSize = -1 }, "rollout_batch_size", "positive"},
		{"top_p", func(c *Config) { p := 1.5; c.RolloutTopP = &p }, "rollout_top_p", "(0, 1]"},
		{"backend", func(c *Config) { c.Backend = "vllm" }, "backend", "sglang or simulator"},
		{"both", func(c *Config) { c.Backend, c.SGLangURL = "simulator", "http://127.0.0.1:1" }, "backend", "sglang_url"},
		{"url", func(c *Config) { c.SGLangURL, c.HFCheckpoint = "localhost:1", "x" }, "sglang_url", "http://"},
		{"no checkpoint", func(c *Config) { c.SGLangURL = "http://127.0.0.1:1" }, "hf_checkpoint", "required"},
		{"checkpoint", func(c *Config) { c.HFCheckpoint = "/does/not/exist" }, "hf_checkpoint", "/does/not/exist"},
		{"no template", func(c *Config) { c.HFCheckpoint = noTemplate }, "hf_checkpoint", "chat template"},
		{"system messages", func(c *Config) { c.SystemMessages = "drop" }, "system_messages", "keep or hoist"},
		{"parser", func(c *Config) { c.ToolCallParser = "nope" }, "agentic_tool_call_parser", "qwen25"},
		{"kwargs", func(c *Config) { c.ApplyChatTemplateKwargs = json.RawMessage("[]") }, "apply_chat_template_kwargs", "object"},
		{"simulator", func(c *Config) { c.Simulator = json.RawMessage(`{"polcy": 1}`) }, "simulator", "polcy"},
		{"port", func(c *Config) { c.APIPort = 70000 }, "api_port", "65535"},
		{"advertised URL", func(c *Config) { c.APIAdvertiseURL = "example:80" }, "api_advertise_url", "http://host:port"},
		{"not a number", func(c *Config) { c.AgentTimeout = math.NaN() }, "agent_timeout", "positive"},
		{"temperature", func(c *Config) { v := -1.0; c.RolloutTemperature = &v }, "rollout_temperature", "zero or a positive"},
		{"top_k", func(c *Config) { v := 0; c.RolloutTopK = &v }, "rollout_top_k", "-1"},
		{"context", func(c *Config) { c.RolloutMaxContextLen = -1 }, "rollout_max_context_len", "zero or a positive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(t)
			tt.alter(&cfg)
			e, err := Open(cfg)
			if err == nil {
				t.Fatal("it opened", e)
			}
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("err = %v, want ErrInvalid", err)
			}
			var wrong *OptionError
			if tt.option != "" && (!errors.As(err, &wrong) || wrong.Option != tt.option) {
				t.Errorf("err = %v, want option %s", err, tt.option)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("err = %v, want it to say %q", err, tt.text)
			}
		})
	}
}

// Options that do not go together are refused at the start, each with its reason.
func TestInvalidCombinationsAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name         string
		alter        func(*Config)
		option, text string
	}{
		{"over-sampling below the batch", func(c *Config) { c.RolloutBatchSize, c.OverSamplingBatchSize = 4, 2 },
			"over_sampling_batch_size, rollout_batch_size", "could never have all its Groups"},
		{"partial and async", func(c *Config) { c.PartialRollout, c.FullyAsync, c.NumRollout = true, true, 3 },
			"partial_rollout, fully_async", "exclude each other"},
		{"async without an end", func(c *Config) { c.FullyAsync = true }, "num_rollout, fully_async", "required by fully_async"},
		{"dynamic batch without partial", func(c *Config) { c.UseDynamicGlobalBatchSize, c.OverSamplingBatchSize = true, 2 },
			"use_dynamic_global_batch_size, partial_rollout", "needs partial_rollout"},
		{"dynamic batch without surplus", func(c *Config) { c.UseDynamicGlobalBatchSize, c.PartialRollout = true, true },
			"over_sampling_batch_size, use_dynamic_global_batch_size", "no surplus"},
		{"rloo and partial", func(c *Config) { c.AdvantageEstimator, c.PartialRollout, c.NSamplesPerPrompt = "rloo", true, 2 },
			"advantage_estimator, partial_rollout", "one policy"},
		{"rloo and async", func(c *Config) {
			c.AdvantageEstimator, c.FullyAsync, c.NumRollout, c.NSamplesPerPrompt = "rloo", true, 3, 2
		}, "advantage_estimator, fully_async", "whole step"},
		{"rloo alone", func(c *Config) { c.AdvantageEstimator = "rloo" }, "", "n_samples_per_prompt"},
		{"rloo and staleness", func(c *Config) { c.AdvantageEstimator, c.NSamplesPerPrompt, c.MaxStaleness = "rloo", 2, 1 },
			"max_staleness, advantage_estimator", "needs 0"},
		{"two at once", func(c *Config) { c.FullyAsync, c.UseDynamicGlobalBatchSize = true, true },
			"num_rollout, fully_async", "option use_dynamic_global_batch_size"},
		{"negative GPUs", func(c *Config) { c.RolloutNumGPUs = -1 }, "rollout_num_gpus", "zero or a positive"},
		{"negative retries", func(c *Config) { c.AgentRetries = -1 }, "agent_retries", "zero or a positive"},
		{"negative staleness", func(c *Config) { c.MaxStaleness = -1 }, "max_staleness", "zero or a positive"},
		{"negative capacity", func(c *Config) { c.AgenticEvalConcurrency = -1 }, "agentic_eval_concurrency", "zero or a positive"},
		{"headroom", func(c *Config) { c.AgenticAdmissionHeadroom = 1.5 }, "agentic_admission_headroom", "(0, 1]"},
		{"pressure", func(c *Config) { c.AgenticAdmissionPressureThreshold = -1 }, "agentic_admission_pressure_threshold", "(0, 1]"},
		{"decode cap", func(c *Config) { c.AgenticAdmissionExpectedDecodeCap = -1 }, "agentic_admission_expected_decode_cap", "positive"},
		{"admission wait", func(c *Config) { v := -1.0; c.AgenticAdmissionMaxWaitS = &v }, "agentic_admission_max_wait_s", "zero or a positive"},
		{"scope", func(c *Config) { c.AgenticAdmissionScope = "eval" }, "agentic_admission_scope", "train or all"},
	} {
		cfg := testConfig(t)
		tt.alter(&cfg)
		_, err := resolve(cfg)
		var wrong *OptionError
		if !errors.As(err, &wrong) || tt.option != "" && wrong.Option != tt.option || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want option %q and %q", tt.name, err, tt.option, tt.text)
		}
	}
}

func TestGoStatementsHaveAnOwner(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, filepath.Join("internal", "safego")) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "go ") {
				t.Errorf("%s:%d: a bare go statement: give the goroutine an owner with safego", path, i+1)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDefaults(t *testing.T) {
	one, off := 0.5, false
	r, err := resolve(Config{RolloutBatchSize: 3, RolloutTemperature: &one, GRPOStdNormalization: &off})
	if err != nil {
		t.Fatal(err)
	}
	if r.Backend != backendSimulator || r.AgenticConcurrency != 3 || r.schedule.Capacity != 3 || r.schedule.GroupSize != 1 {
		t.Errorf("resolved %+v", r)
	}
	if r.schedule.AgentTimeout != 30*time.Minute || r.killGrace != 5*time.Second || !r.inherit {
		t.Errorf("times %+v, %s", r.schedule, r.killGrace)
	}
	if r.sampling.Temperature != 0.5 || r.sampling.TopP != 1 || r.sampling.TopK != -1 || !r.credit.Normalization.Mean || r.credit.Normalization.Std {
		t.Errorf("sampling %+v, credit %+v", r.sampling, r.credit)
	}
	if r.kwargs.Kind() != canon.Object {
		t.Errorf("kwargs are %v", r.kwargs.Kind())
	}
	if r, err := resolve(Config{SGLangURL: "http://x", HFCheckpoint: "y"}); err != nil || r.Backend != backendSGLang {
		t.Errorf("with a URL: %v, %v", r.Backend, err)
	}
}

func TestSuggestions(t *testing.T) {
	var cfg Config
	fields := optionFields(reflect.ValueOf(&cfg).Elem())
	for name, want := range map[string]string{
		"agent_cmd": "agent_cwd", "n_sample_per_prompt": "n_samples_per_prompt", "sglang_uri": "sglang_url", "colour": "",
	} {
		if got := suggest(name, "Config", fields); (want == "") != strings.Contains(got, "relax.Config") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"agent_command": "x", "agent_env": {"A": "b"}, "rollout_top_p": 0.5}`))
	f.Add([]byte(`{"rollout_stop_token_ids": [1, 2], "custom_rm": null}`))
	f.Add([]byte(`{"x":`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		cfg, err := ParseConfig(doc)
		var wrong *OptionError
		if err != nil && !errors.As(err, &wrong) {
			t.Errorf("%v is no OptionError", err)
		}
		if err == nil {
			_, _ = resolve(cfg)
		}
	})
}
