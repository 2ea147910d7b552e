package credit

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestAdvantages(t *testing.T) {
	both := Normalization{Mean: true, Std: true}
	std := math.Sqrt(1.0/3) + 1e-6 // unbiased, of {1,0,0,1}
	for _, tt := range []struct {
		name    string
		n       Normalization
		rewards []float64
		want    []float64
	}{
		{"raw", Normalization{}, []float64{1, 0}, []float64{1, 0}},
		{"mean", Normalization{Mean: true}, []float64{1, 0, 0, 1}, []float64{.5, -.5, -.5, .5}},
		{"mean and std", both, []float64{1, 0, 0, 1}, []float64{.5 / std, -.5 / std, -.5 / std, .5 / std}},
		{"equal rewards stay finite", both, []float64{2, 2, 2}, []float64{0, 0, 0}},
		{"a group of one has no spread", both, []float64{3}, []float64{0}},
		{"std alone does nothing", Normalization{Std: true}, []float64{1, 3}, []float64{1, 3}},
		{"empty", both, nil, nil},
		{"rloo", Normalization{LeaveOneOut: true}, []float64{1, 0, 0.5}, []float64{.75, -.75, 0}},
		{"rloo of nothing", Normalization{LeaveOneOut: true}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.n.Advantages(tt.rewards)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(tt.want) {
				t.Fatalf("got %v, want %v", got, tt.want)
			}
			for i := range got {
				if math.Abs(got[i]-tt.want[i]) > 1e-12 {
					t.Errorf("advantage %d = %v, want %v", i, got[i], tt.want[i])
				}
			}
		})
	}
}

// Leaving one out is centering, stretched by n/(n-1): both say the same of random Groups.
func TestLeaveOneOutAgreesWithCentering(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		rewards := make([]float64, 2+random.IntN(30))
		for i := range rewards {
			rewards[i] = random.NormFloat64()
		}
		got, err := Normalization{LeaveOneOut: true}.Advantages(rewards)
		if err != nil {
			t.Fatal(err)
		}
		centered, _ := Normalization{Mean: true}.Advantages(rewards)
		n := float64(len(rewards))
		for i := range got {
			if math.Abs(got[i]-centered[i]*n/(n-1)) > 1e-9 {
				t.Fatalf("advantage %d of %v = %v", i, rewards, got[i])
			}
		}
	}
}

func TestAdvantagesRefuse(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, n := range []Normalization{{}, {Mean: true}, {LeaveOneOut: true}} {
			if _, err := n.Advantages([]float64{1, bad}); err == nil || !strings.Contains(err.Error(), "session 1") {
				t.Errorf("%v: %v", bad, err)
			}
		}
	}
	if _, err := (Normalization{LeaveOneOut: true}).Advantages([]float64{1}); err == nil || !strings.Contains(err.Error(), "n_samples_per_prompt") {
		t.Errorf("rloo of one: %v", err)
	}
}

func TestEstimators(t *testing.T) {
	both := Normalization{Mean: true, Std: true}
	for _, tt := range []struct {
		options Options
		want    Normalization
		perTurn bool
	}{
		{Options{Normalize: true, Std: true, GroupSize: 4}, both, true},
		{Options{Estimator: "gspo", Normalize: true, Std: true}, both, true},
		{Options{Estimator: "grpo", Normalize: true}, Normalization{Mean: true}, true},
		{Options{Estimator: "grpo", Std: true}, Normalization{}, true},
		{Options{Estimator: "reinforce_plus_plus_baseline", Normalize: true, Std: true}, Normalization{Mean: true}, false},
		{Options{Estimator: "reinforce_plus_plus", Normalize: true, Std: true}, Normalization{}, false},
		{Options{Estimator: "ppo", Normalize: true, Std: true}, Normalization{}, false},
		{Options{Estimator: "m2po", Normalize: true, Std: true}, Normalization{}, true},
		{Options{Estimator: "rloo", Normalize: true, Std: true, GroupSize: 2}, Normalization{LeaveOneOut: true}, true},
		{Options{Estimator: "rloo", GroupSize: 2}, Normalization{}, true},
	} {
		got, err := NewEstimator(tt.options)
		if err != nil || got.Normalization != tt.want || got.PerTurn != tt.perTurn {
			t.Errorf("%+v = %+v, %v; want %+v, per turn %v", tt.options, got, err, tt.want, tt.perTurn)
		}
	}
	for want, o := range map[string]Options{
		`found "grop"`:                    {Estimator: "grop"},
		"n_samples_per_prompt to 2":       {Estimator: "rloo", GroupSize: 1},
		"does not go with custom_advanta": {Estimator: "reinforce_plus_plus_baseline", Custom: true},
	} {
		if _, err := NewEstimator(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

func TestSpread(t *testing.T) {
	three := Context{Session: "session-1", Name: "main", Trained: []int{2, 0, 6}}
	for _, tt := range []struct {
		name    string
		value   Value
		context Context
		want    Credit
	}{
		{"one number", Value{Number: 0.5}, three, Credit{Number: 0.5, Turns: []float32{.5, .5, .5}}},
		{"zero keeps the context", Value{}, three, Credit{Turns: []float32{0, 0, 0}}},
		{"a list", Value{Turns: []float64{4, 9, -4}}, three, Credit{Number: -2, Turns: []float32{4, 9, -4}, PerTurn: true}},
		{"a list for nothing trained", Value{Turns: []float64{1, 3}}, Context{Trained: []int{0, 0}}, Credit{Number: 2, Turns: []float32{1, 3}, PerTurn: true}},
	} {
		got, err := Spread(tt.value, tt.context)
		if err != nil || got.Number != tt.want.Number || got.PerTurn != tt.want.PerTurn || !slices.Equal(got.Turns, tt.want.Turns) {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
}

func TestSpreadRefuses(t *testing.T) {
	main := Context{Session: "session-1", Name: "main", Trained: []int{2, 6}}
	for want, v := range map[string]Value{
		"found a list of 1":  {Turns: []float64{1}},
		"found a list of 3":  {Turns: []float64{1, 2, 3}},
		"found a list of 0":  {Turns: []float64{}},
		"for turn 1":         {Turns: []float64{1, math.NaN()}},
		"float32 number, fo": {Number: math.Inf(1)},
		"found 1e+39":        {Number: 1e39}, // above float32
	} {
		_, err := Spread(v, main)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `session session-1: context "main"`) {
			t.Errorf("%+v: %v, want %q with session and context", v, err, want)
		}
	}
	_, err := Spread(Value{Number: math.NaN()}, Context{Session: "session-1", Trained: []int{1}})
	if err == nil || !strings.Contains(err.Error(), "session-1: its only context") {
		t.Errorf("implicit export: %v", err)
	}
}

func TestCheckNonzeroStd(t *testing.T) {
	for _, tt := range []struct {
		rewards []float64
		want    Verdict
	}{
		{[]float64{0, 1}, Verdict{Keep: true}},
		{[]float64{0, 0, 0, 0.001}, Verdict{Keep: true}},
		{[]float64{0, 0}, Verdict{Reason: "zero_std_0.0"}},
		{[]float64{1, 1}, Verdict{Reason: "zero_std_1.0"}},
		{[]float64{0.25, 0.25}, Verdict{Reason: "zero_std_0.2"}}, // Python rounds half to even
		{[]float64{-0.04, -0.04}, Verdict{Reason: "zero_std_-0.0"}},
		{[]float64{3}, Verdict{Reason: "zero_std_3.0"}},
		{[]float64{1, 1 + 1e-12}, Verdict{Reason: "zero_std_1.0"}}, // equal in float32
		{nil, Verdict{Reason: "no_rewards"}},
	} {
		if got := CheckNonzeroStd(tt.rewards); got != tt.want {
			t.Errorf("%v = %+v, want %+v", tt.rewards, got, tt.want)
		}
	}
}
