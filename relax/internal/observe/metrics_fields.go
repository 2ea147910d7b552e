package observe

import (
	"bytes"
	"compress/zlib"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// reserved are metadata members that are no metrics (reference pipeline 7.3 A).
var reserved = []string{"agentic_trace", "id", "index", "sample_index", "group_index", "start_rollout_id", "rollout_turns"}

// NumericFields are the top-level numbers of a metadata object, true and false among them, that
// become metrics. Names that are empty or begin with _ are private.
func NumericFields(metadata map[string]json.RawMessage) map[string]float64 {
	var out map[string]float64
	for name, raw := range metadata {
		if private(name) || slices.Contains(reserved, name) {
			continue
		}
		if v, ok := number(raw); ok {
			if out == nil {
				out = map[string]float64{}
			}
			out[name] = v
		}
	}
	return out
}

// RewardHelpers are the numbers of a reward object beside the primary one, which key names. Lists
// of numbers count number by number. A reward that is no object has none.
func RewardHelpers(reward json.RawMessage, key string) map[string][]float64 {
	var object map[string]json.RawMessage
	if !isObject(reward) || json.Unmarshal(reward, &object) != nil {
		return nil
	}
	out := map[string][]float64{}
	for name, raw := range object {
		if private(name) || name == key || name == "raw_reward" {
			continue
		}
		if values := numbers(raw); len(values) > 0 {
			out[name] = values
		}
	}
	return out
}

// RewardCategory is the member of a reward object that log_reward_category names, as text; "" if
// there is none.
func RewardCategory(reward json.RawMessage, key string) string {
	var object map[string]json.RawMessage
	if key == "" || !isObject(reward) || json.Unmarshal(reward, &object) != nil {
		return ""
	}
	return text(object[key])
}

// StopReason is why an agent stopped, as its metadata says: rollout_stop_reason, else stop_reason
// up to the first colon, else "".
func StopReason(metadata map[string]json.RawMessage) string {
	if reason := text(metadata["rollout_stop_reason"]); reason != "" {
		return reason
	}
	reason, _, _ := strings.Cut(text(metadata["stop_reason"]), ":")
	return reason
}

// repetitionTail is how much of a text's end is looked at, in characters.
const repetitionTail = 10000

// Repetitive reports whether the last 10,000 characters of a longer text compress to less than a
// tenth: the model went round in circles.
func Repetitive(text string) bool {
	if !LongEnough(len(text)) || utf8.RuneCountInString(text) <= repetitionTail {
		return false
	}
	start := len(text)
	for range repetitionTail {
		_, size := utf8.DecodeLastRuneInString(text[:start])
		start -= size
	}
	tail := text[start:]
	var packed counter
	w := zlib.NewWriter(&packed)
	if _, err := io.WriteString(w, tail); err != nil || w.Close() != nil {
		return false
	}
	return float64(len(tail)) > 10*float64(packed)
}

// LongEnough reports whether a text of so many bytes can be [Repetitive].
func LongEnough(bytes int) bool { return bytes > repetitionTail }

// counter counts what is written to it.
type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func private(name string) bool { return name == "" || name[0] == '_' }

func isObject(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && raw[0] == '{'
}

func number(raw json.RawMessage) (float64, bool) {
	switch s := string(bytes.TrimSpace(raw)); s {
	case "true":
		return 1, true
	case "false":
		return 0, true
	default:
		v, err := strconv.ParseFloat(s, 64)
		return v, err == nil && !math.IsInf(v, 0) && !math.IsNaN(v)
	}
}

func numbers(raw json.RawMessage) []float64 {
	if v, ok := number(raw); ok {
		return []float64{v}
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	var out []float64
	for _, item := range list {
		out = append(out, numbers(item)...)
	}
	return out
}

// text is a JSON string, or a number or boolean as it is written; "" for anything else.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if _, ok := number(raw); ok {
		return string(bytes.TrimSpace(raw))
	}
	return ""
}
