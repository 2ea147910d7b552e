package sglangtest

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
)

// SamplingParams are a request's sampling parameters after defaults.
type SamplingParams struct {
	MaxNewTokens      *int // nil: up to the context length
	MinNewTokens      int
	Temperature       float64
	TopP              float64
	TopK              int // -1: all
	MinP              float64
	Stop              []string
	StopTokenIDs      []int32
	IgnoreEOS         bool
	NoStopTrim        bool
	SkipSpecialTokens bool
	SamplingSeed      *int64
}

// parseSampling reads sampling_params. An unknown key is what the real server's constructor
// makes of it: an exception, so a plain 500.
func parseSampling(raw json.RawMessage, sp *SamplingParams) error {
	limit := 128
	*sp = SamplingParams{MaxNewTokens: &limit, Temperature: 1, TopP: 1, TopK: -1, SkipSpecialTokens: true}
	if !given(raw) {
		return nil
	}
	if raw[0] == '[' {
		return badValue("sampling_params is a list; the simulator takes one prompt a request")
	}
	var fields map[string]json.RawMessage
	if err := bodyJSON.Unmarshal(raw, &fields); err != nil {
		return badBody("sampling_params: %s", firstLine(err.Error()))
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names) // the same body gives the same refusal
	for _, name := range names {
		read, known := samplingFields[name]
		if !known {
			return &refusal{status: 500, message: "Internal Server Error", plain: true}
		}
		value := fields[name]
		if !given(value) {
			if name == "max_new_tokens" {
				sp.MaxNewTokens = nil
			}
			continue
		}
		if err := read(value, sp); err != nil {
			var r *refusal
			if errors.As(err, &r) {
				return r
			}
			return badBody("sampling_params.%s: %s", name, firstLine(err.Error()))
		}
	}
	return sp.check()
}

type samplingField func(raw json.RawMessage, sp *SamplingParams) error

func into[T any](field func(*SamplingParams) *T) samplingField {
	return func(raw json.RawMessage, sp *SamplingParams) error { return json.Unmarshal(raw, field(sp)) }
}

// between accepts a number that has no effect here.
func between(name string, above, low, high float64) samplingField {
	return func(raw json.RawMessage, _ *SamplingParams) error {
		var v float64
		if err := json.Unmarshal(raw, &v); err != nil {
			return err
		}
		if v < low || v > high || v <= above {
			return badValue("%s must be between %v and %v, got %v.", name, low, high, v)
		}
		return nil
	}
}

func ignored(json.RawMessage, *SamplingParams) error { return nil }

// refused takes only what means "unset".
func refused(name string, unset ...string) samplingField {
	return func(raw json.RawMessage, _ *SamplingParams) error {
		if slices.Contains(unset, string(raw)) {
			return nil
		}
		return badValue("sampling_params.%s is not supported by the simulator; leave it out", name)
	}
}

// samplingFields are the keys SGLang knows.
var samplingFields = map[string]samplingField{
	"max_new_tokens": func(raw json.RawMessage, sp *SamplingParams) error {
		sp.MaxNewTokens = new(int)
		return json.Unmarshal(raw, sp.MaxNewTokens)
	},
	"min_new_tokens":                into(func(sp *SamplingParams) *int { return &sp.MinNewTokens }),
	"temperature":                   into(func(sp *SamplingParams) *float64 { return &sp.Temperature }),
	"top_p":                         into(func(sp *SamplingParams) *float64 { return &sp.TopP }),
	"top_k":                         readTopK,
	"min_p":                         into(func(sp *SamplingParams) *float64 { return &sp.MinP }),
	"frequency_penalty":             between("frequency_penalty", math.Inf(-1), -2, 2),
	"presence_penalty":              between("presence_penalty", math.Inf(-1), -2, 2),
	"repetition_penalty":            between("repetition_penalty", 0, 0, 2),
	"n":                             readN,
	"stop":                          readStop,
	"stop_token_ids":                readStopIDs,
	"stop_regex":                    refused("stop_regex", `""`, "[]"),
	"ignore_eos":                    into(func(sp *SamplingParams) *bool { return &sp.IgnoreEOS }),
	"skip_special_tokens":           into(func(sp *SamplingParams) *bool { return &sp.SkipSpecialTokens }),
	"spaces_between_special_tokens": ignored,
	"no_stop_trim":                  into(func(sp *SamplingParams) *bool { return &sp.NoStopTrim }),
	"stream_interval":               ignored,
	"json_schema":                   refused("json_schema", `""`),
	"regex":                         refused("regex", `""`),
	"ebnf":                          refused("ebnf", `""`),
	"structural_tag":                refused("structural_tag", `""`),
	"logit_bias":                    refused("logit_bias", "{}"),
	"custom_params":                 ignored,
	"sampling_seed": func(raw json.RawMessage, sp *SamplingParams) error {
		sp.SamplingSeed = new(int64)
		return json.Unmarshal(raw, sp.SamplingSeed)
	},
}

func readTopK(raw json.RawMessage, sp *SamplingParams) error {
	if string(raw) == `"all"` {
		sp.TopK = -1
		return nil
	}
	return json.Unmarshal(raw, &sp.TopK)
}

func readN(raw json.RawMessage, _ *SamplingParams) error {
	n := 0
	if err := json.Unmarshal(raw, &n); err != nil {
		return err
	}
	if n != 1 {
		return badValue("sampling_params.n is %d; the simulator samples one reply a request", n)
	}
	return nil
}

func readStop(raw json.RawMessage, sp *SamplingParams) error {
	if raw[0] != '"' {
		return json.Unmarshal(raw, &sp.Stop)
	}
	one := ""
	err := json.Unmarshal(raw, &one)
	sp.Stop = []string{one}
	return err
}

func readStopIDs(raw json.RawMessage, sp *SamplingParams) error {
	var ids []*int32
	if err := json.Unmarshal(raw, &ids); err != nil {
		return err
	}
	for _, id := range ids {
		if id != nil {
			sp.StopTokenIDs = append(sp.StopTokenIDs, *id)
		}
	}
	return nil
}

// check refuses values out of range.
func (sp *SamplingParams) check() error {
	switch {
	case sp.Temperature < 0:
		return badValue("temperature must be non-negative, got %v.", sp.Temperature)
	case sp.TopP <= 0 || sp.TopP > 1:
		return badValue("top_p must be in (0, 1], got %v.", sp.TopP)
	case sp.MinP < 0 || sp.MinP > 1:
		return badValue("min_p must be in [0, 1], got %v.", sp.MinP)
	case sp.TopK == 0 || sp.TopK < -1:
		return badValue("top_k must be -1 (all) or at least 1, got %d.", sp.TopK)
	case sp.MaxNewTokens != nil && *sp.MaxNewTokens < 0:
		return badValue("max_new_tokens must be at least 0, got %d.", *sp.MaxNewTokens)
	case sp.MinNewTokens < 0 || sp.MaxNewTokens != nil && sp.MinNewTokens > *sp.MaxNewTokens:
		return badValue("min_new_tokens must be between 0 and max_new_tokens, got %d.", sp.MinNewTokens)
	}
	sp.Stop = slices.DeleteFunc(sp.Stop, func(s string) bool { return s == "" })
	return nil
}
