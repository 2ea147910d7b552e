package credit

import (
	"math"
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

func TestAdvantagesRefuseWhatIsNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if _, err := (Normalization{Mean: true}).Advantages([]float64{1, bad}); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}
