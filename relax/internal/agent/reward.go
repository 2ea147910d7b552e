//go:build linux

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A Reward is what an agent, or a reward function, gave a Session: a number, or an object with
// a primary number and helper metrics.
type Reward struct {
	// Number is the reward if Object is nil. true is 1, false is 0. A float32, the trainer's type,
	// holds it.
	Number float64
	// Object holds the members of a reward object. Numbers in it are finite.
	Object map[string]json.RawMessage
	// Raw is the JSON text.
	Raw json.RawMessage
}

// ParseReward reads a JSON reward. It is nil for null. An error says what was expected and
// found; field is the member at fault, "" for the reward as such.
func ParseReward(raw json.RawMessage) (r *Reward, field string, err error) {
	const want = "expected null, a finite number or an object"
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil, "", errors.New(want + ", found nothing")
	}
	if string(raw) == "null" {
		return nil, "", nil
	}
	if raw[0] != '{' {
		n, ok := number(raw)
		if !ok {
			return nil, "", fmt.Errorf("%s, found %s", want, describe(raw))
		}
		if err := trainable(n); err != nil {
			return nil, "", err
		}
		return &Reward{Number: n, Raw: raw}, "", nil
	}
	r = &Reward{Raw: raw}
	if err := json.Unmarshal(raw, &r.Object); err != nil {
		return nil, "", fmt.Errorf("%s: %w", want, err)
	}
	for _, key := range slices.Sorted(maps.Keys(r.Object)) {
		v := r.Object[key]
		if v[0] == '-' || (v[0] >= '0' && v[0] <= '9') {
			if _, ok := number(v); !ok {
				return nil, shorten(key, 64), fmt.Errorf("expected a finite number, found %s", describe(v))
			}
		}
	}
	return r, "", nil
}

// Value is the number to train on: the reward itself, or the member of the object called key.
// key is ignored for a number.
func (r *Reward) Value(key string) (float64, error) {
	if r.Object == nil {
		return r.Number, nil
	}
	if key == "" {
		return 0, fmt.Errorf("reward is an object with %s; option reward_key must name the one to train on", r.keys())
	}
	raw, ok := r.Object[key]
	if !ok {
		return 0, fmt.Errorf("reward has no member %q (option reward_key); it has %s", key, r.keys())
	}
	n, ok := number(raw)
	if !ok {
		return 0, fmt.Errorf("reward member %q (option reward_key): expected a finite number, found %s", key, describe(raw))
	}
	if err := trainable(n); err != nil {
		return 0, fmt.Errorf("reward member %q (option reward_key): %w", key, err)
	}
	return n, nil
}

func (r *Reward) keys() string {
	if len(r.Object) == 0 {
		return "no members"
	}
	return "members " + shorten(strings.Join(slices.Sorted(maps.Keys(r.Object)), ", "), 200)
}

// trainable refuses numbers that would be infinite in a float32 column.
func trainable(n float64) error {
	if math.Abs(n) > math.MaxFloat32 {
		return fmt.Errorf("expected a number that a float32 holds (at most 3.4e38), found %g", n)
	}
	return nil
}

// number reads a JSON number or boolean.
func number(raw []byte) (float64, bool) {
	switch string(raw) {
	case "true":
		return 1, true
	case "false":
		return 0, true
	}
	if len(raw) == 0 || (raw[0] != '-' && (raw[0] < '0' || raw[0] > '9')) {
		return 0, false
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	return n, err == nil && !math.IsInf(n, 0) && !math.IsNaN(n)
}
