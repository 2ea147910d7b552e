// Package credit turns the outcomes of a Group into training credit.
//
// What may enter: numbers of one Group. What it never does: know where a reward came from,
// read a file, or see tokens.
package credit

import (
	"fmt"
	"math"
)

// Normalization says how rewards of a Group become advantages.
type Normalization struct {
	// Mean subtracts the Group's mean.
	Mean bool
	// Std also divides by the Group's unbiased standard deviation + 1e-6. It is off for Groups
	// of one, as in the reference.
	Std bool
}

// stdEpsilon keeps a Group of equal rewards finite (reference pipeline 6.4).
const stdEpsilon = 1e-6

// Advantages returns one advantage for each reward. A reward that is not finite is an error
// naming its index.
func (n Normalization) Advantages(rewards []float64) ([]float64, error) {
	for i, r := range rewards {
		if math.IsNaN(r) || math.IsInf(r, 0) {
			return nil, fmt.Errorf("reward %d is %v: rewards must be finite", i, r)
		}
	}
	out := append([]float64(nil), rewards...)
	if !n.Mean || len(out) == 0 {
		return out, nil
	}
	mean := 0.0
	for _, r := range rewards {
		mean += r / float64(len(rewards))
	}
	for i := range out {
		out[i] -= mean
	}
	if !n.Std || len(out) < 2 {
		return out, nil
	}
	variance := 0.0
	for _, d := range out {
		variance += d * d / float64(len(out)-1)
	}
	for i := range out {
		out[i] /= math.Sqrt(variance) + stdEpsilon
	}
	return out, nil
}
