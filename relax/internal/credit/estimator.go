package credit

import (
	"fmt"
	"slices"
	"strings"
)

// An estimator is the trainer's way to make token advantages of credit, as far as credit depends
// on it (reference pipeline 6.3, 6.4 and 9.2).
type estimator struct {
	name string
	// mean: the Group's mean is subtracted; std: it can also be divided by the deviation.
	mean, std bool
	// perTurn: it takes credit for each turn.
	perTurn bool
}

var estimators = []estimator{
	{name: "grpo", mean: true, std: true, perTurn: true},
	{name: "gspo", mean: true, std: true, perTurn: true},
	{name: "sapo", mean: true, std: true, perTurn: true},
	{name: "cispo", mean: true, std: true, perTurn: true},
	{name: "m2po", perTurn: true},
	{name: rloo, perTurn: true},
	{name: "reinforce_plus_plus"},
	{name: plusPlusBaseline, mean: true},
	{name: "ppo"},
}

const (
	rloo             = "rloo"
	plusPlusBaseline = "reinforce_plus_plus_baseline"
)

// An Estimator is a checked advantage_estimator with what else the options say about credit.
type Estimator struct {
	Name          string
	Normalization Normalization
	// PerTurn: it takes credit for each turn of a context, not just one number.
	PerTurn bool
}

// Options are what decides on an [Estimator].
type Options struct {
	// Estimator is advantage_estimator, "" for grpo.
	Estimator string
	// Normalize is rewards_normalization, Std grpo_std_normalization.
	Normalize, Std bool
	// GroupSize is n_samples_per_prompt.
	GroupSize int
	// Custom: custom_advantage is set, so that rewards are not normalised.
	Custom bool
}

// NewEstimator checks options. Its errors do not name the option: it is always
// advantage_estimator.
func NewEstimator(o Options) (Estimator, error) {
	if o.Estimator == "" {
		o.Estimator = "grpo"
	}
	at := slices.IndexFunc(estimators, func(e estimator) bool { return e.name == o.Estimator })
	if at < 0 {
		return Estimator{}, fmt.Errorf("expected one of %s, found %q", names(), o.Estimator)
	}
	e := estimators[at]
	out := Estimator{Name: e.name, PerTurn: e.perTurn}
	switch {
	case e.name == plusPlusBaseline && o.Custom:
		return out, fmt.Errorf("%s does not go with custom_advantage: its baseline is the group's mean reward", e.name)
	case e.name == rloo && o.GroupSize < 2 && !o.Custom:
		return out, fmt.Errorf("rloo compares a session with the others of its group: set n_samples_per_prompt to 2 or more, found %d", o.GroupSize)
	case !o.Normalize:
	case e.name == rloo:
		out.Normalization.LeaveOneOut = true
	default:
		out.Normalization = Normalization{Mean: e.mean, Std: e.std && o.Std}
	}
	return out, nil
}

func names() string {
	var all []string
	for _, e := range estimators {
		all = append(all, e.name)
	}
	return strings.Join(all, ", ")
}
