package credit

import (
	"math"
	"slices"
	"strconv"
)

// NonzeroStd is the name of the built-in filter (reference pipeline 5.1).
const NonzeroStd = "check_reward_nonzero_std"

// A Verdict is what a dynamic sampling filter says about a Group.
type Verdict struct {
	Keep bool
	// Reason is the word the Group is counted under if it is not kept.
	Reason string
}

// CheckNonzeroStd keeps a Group if some reward differs from the first and their unbiased standard
// deviation is above 0 in float32: a Group of equal rewards teaches nothing. It looks at logical
// Sessions, so contexts without a reward of their own do no harm.
func CheckNonzeroStd(rewards []float64) Verdict {
	if len(rewards) == 0 {
		return Verdict{Reason: "no_rewards"}
	}
	first := rewards[0]
	if slices.ContainsFunc(rewards, func(r float64) bool { return r != first }) && float32Std(rewards) > 0 {
		return Verdict{Keep: true}
	}
	return Verdict{Reason: "zero_std_" + Round1(first)}
}

func float32Std(rewards []float64) float32 {
	rounded := make([]float64, len(rewards))
	for i, r := range rewards {
		rounded[i] = float64(float32(r))
	}
	return float32(math.Sqrt(variance(rounded)))
}

// Round1 spells a number with one decimal as metric names have it, such as 0.0 or -1.5.
func Round1(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
