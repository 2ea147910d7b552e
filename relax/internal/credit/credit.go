// Package credit turns the outcomes of a Group into training credit.
//
// What may enter: numbers of one Group, one reward for each of its logical Sessions, however many
// contexts a Session exports. What it never does: know where a reward came from, read a file, or
// see tokens. Sessions that failed never get here: an infrastructure failure is not a zero.
package credit

import (
	"fmt"
	"math"
)

// Normalization says how rewards of a Group become advantages. Its zero value leaves them as they
// are.
type Normalization struct {
	// Mean subtracts the Group's mean.
	Mean bool
	// Std also divides by the Group's unbiased standard deviation + 1e-6. It is off for Groups
	// of one, as in the reference.
	Std bool
	// LeaveOneOut subtracts the mean of the other Sessions from each (RLOO); it excludes the others.
	LeaveOneOut bool
}

// stdEpsilon keeps a Group of equal rewards finite (reference pipeline 6.4).
const stdEpsilon = 1e-6

// Advantages returns one advantage for each reward of a Group. A reward that is not finite is an
// error naming its Session, and so is a Group of one if others are to be the baseline.
func (n Normalization) Advantages(rewards []float64) ([]float64, error) {
	for i, r := range rewards {
		if math.IsNaN(r) || math.IsInf(r, 0) {
			return nil, fmt.Errorf("reward of session %d is %v: rewards must be finite", i, r)
		}
	}
	switch {
	case n.LeaveOneOut:
		return leaveOneOut(rewards)
	case n.Mean:
		return n.centered(rewards), nil
	}
	return append([]float64(nil), rewards...), nil
}

func (n Normalization) centered(rewards []float64) []float64 {
	out := append([]float64(nil), rewards...)
	middle := Mean(rewards)
	for i := range out {
		out[i] -= middle
	}
	if !n.Std || len(out) < 2 {
		return out
	}
	spread := math.Sqrt(variance(rewards)) + stdEpsilon
	for i := range out {
		out[i] /= spread
	}
	return out
}

func leaveOneOut(rewards []float64) ([]float64, error) {
	if len(rewards) == 0 {
		return nil, nil
	}
	if len(rewards) == 1 {
		return nil, fmt.Errorf("rloo compares a session with the others of its group, which has one: set n_samples_per_prompt to 2 or more")
	}
	out := make([]float64, len(rewards))
	others := float64(len(rewards) - 1)
	for i, r := range rewards {
		baseline := 0.0
		for j, other := range rewards {
			if j != i {
				baseline += other / others
			}
		}
		out[i] = r - baseline
	}
	return out, nil
}

// Mean is the mean of values, 0 of none.
func Mean(values []float64) float64 {
	mean := 0.0
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean
}

// variance is the unbiased variance. There are at least two values.
func variance(values []float64) float64 {
	middle, sum := Mean(values), 0.0
	for _, v := range values {
		sum += (v - middle) * (v - middle) / float64(len(values)-1)
	}
	return sum
}
