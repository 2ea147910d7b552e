package relax

import (
	"encoding/json"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// simulatorOptions is the document of Config.Simulator. All of it is optional.
type simulatorOptions struct {
	// Policy is a sglangtest.Policy: what the model says.
	Policy json.RawMessage `json:"policy"`
	// Seed makes sampling repeatable.
	Seed uint64 `json:"seed"`
	// StartDelayMs and TokenDelayMs slow replies down, in milliseconds.
	StartDelayMs float64 `json:"start_delay_ms"`
	TokenDelayMs float64 `json:"token_delay_ms"`
	// ContextLen is the context length in tokens.
	ContextLen int `json:"context_len"`
	// Experts is the shape of a mixture-of-experts model. Default: what use_rollout_routing_replay
	// asks for, with 8 experts a layer, or as many as a token sees.
	Experts *sglangtest.Experts `json:"experts"`
	// Drafts makes answers carry the counts of speculative decoding with so many draft tokens a step.
	Drafts int `json:"drafts"`
	// Faults are sglangtest fault rules.
	Faults json.RawMessage `json:"faults"`
}

// openSimulator starts the embedded backend with the engine's own tokenizer.
func openSimulator(document json.RawMessage, format *chat.Format, shape expertShape) (*sglangtest.Server, error) {
	var o simulatorOptions
	if len(document) > 0 {
		if err := decodeStrict(document, &o); err != nil {
			return nil, &OptionError{Option: "simulator", Problem: "expected an object with policy, seed, start_delay_ms, token_delay_ms, context_len, experts, drafts, faults", Err: err}
		}
	}
	cfg := sglangtest.Config{
		Tokenizer: format.Tokenizer(), EOS: format.StopIDs(), Seed: o.Seed, ContextLen: o.ContextLen,
		StartDelay: milliseconds(o.StartDelayMs), TokenDelay: milliseconds(o.TokenDelayMs), ModelPath: "simulator", Drafts: o.Drafts,
	}
	if shape != (expertShape{}) {
		cfg.Experts = sglangtest.Experts{Layers: shape.layers, TopK: shape.topK, Count: max(8, shape.topK)}
	}
	if o.Experts != nil {
		cfg.Experts = *o.Experts
	}
	var err error
	if len(o.Policy) > 0 {
		if cfg.Policy, err = sglangtest.ParsePolicy(o.Policy); err != nil {
			return nil, &OptionError{Option: "simulator", Problem: "policy", Err: err}
		}
	}
	if len(o.Faults) > 0 {
		if cfg.Faults, err = sglangtest.ParseFaults(o.Faults); err != nil {
			return nil, &OptionError{Option: "simulator", Problem: "faults", Err: err}
		}
	}
	server, err := sglangtest.New(cfg)
	if err != nil {
		return nil, &OptionError{Option: "simulator", Problem: "does not start", Err: err}
	}
	return server, nil
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
