package relax

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		{"parser", func(c *Config) { c.ToolCallParser = "nope" }, "agentic_tool_call_parser", "qwen25"},
		{"kwargs", func(c *Config) { c.ApplyChatTemplateKwargs = json.RawMessage("[]") }, "apply_chat_template_kwargs", "object"},
		{"simulator", func(c *Config) { c.Simulator = json.RawMessage(`{"polcy": 1}`) }, "simulator", "polcy"},
		{"port", func(c *Config) { c.APIPort = 70000 }, "api_port", "65535"},
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

func TestUnreachableBackend(t *testing.T) {
	cfg := testConfig(t)
	cfg.SGLangURL = "http://127.0.0.1:1"
	cfg.HFCheckpoint = filepath.Join("..", "testdata", "checkpoints", "tinychat")
	_, err := Open(cfg)
	if !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "sglang_url") {
		t.Errorf("err = %v, want ErrBackend naming the option and the URL", err)
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
