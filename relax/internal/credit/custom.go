package credit

import (
	"fmt"
	"math"
)

// A Value is the training credit of one context, as an advantage hook gave it.
type Value struct {
	// Number holds for the entire context if Turns is nil.
	Number float64
	// Turns has one number for each assistant turn, in order.
	Turns []float64
}

// A Context is what a Value must fit: Turns counts the assistant turns, Trained has the number of
// tokens with loss mask 1 of each.
type Context struct {
	// Session and Name are for error texts. Name is empty for an implicit export.
	Session string
	Name    string
	Trained []int
}

// A Credit is a checked Value, spread over the context.
type Credit struct {
	// Number is the credit of the context as a whole: as given, or the mean of the turns' over the
	// trained tokens.
	Number float32
	// Turns has one number for each turn, also where one was given for all.
	Turns []float32
	// PerTurn: the hook gave one for each turn.
	PerTurn bool
}

// Spread checks a value and lays it out over the turns of a context. Numbers must be finite in
// float32, a list must have one for each turn.
func Spread(v Value, c Context) (Credit, error) {
	out := Credit{Turns: make([]float32, len(c.Trained))}
	if v.Turns == nil {
		n, err := c.float32(v.Number, "a finite float32 number")
		if err != nil {
			return Credit{}, err
		}
		out.Number = n
		for i := range out.Turns {
			out.Turns[i] = n
		}
		return out, nil
	}
	out.PerTurn = true
	if len(v.Turns) != len(c.Trained) {
		return Credit{}, fmt.Errorf("%s: expected one number for each of its %d assistant turns, or one for all, found a list of %d",
			c, len(c.Trained), len(v.Turns))
	}
	for i, given := range v.Turns {
		n, err := c.float32(given, fmt.Sprintf("a finite float32 number for turn %d", i))
		if err != nil {
			return Credit{}, err
		}
		out.Turns[i] = n
	}
	out.Number = weightedMean(out.Turns, c.Trained)
	return out, nil
}

// String names the context for error texts.
func (c Context) String() string {
	if c.Name == "" {
		return fmt.Sprintf("session %s: its only context", c.Session)
	}
	return fmt.Sprintf("session %s: context %q", c.Session, c.Name)
}

func (c Context) float32(v float64, want string) (float32, error) {
	n := float32(v)
	if math.IsNaN(v) || math.IsInf(float64(n), 0) {
		return 0, fmt.Errorf("%s: expected %s, found %v", c, want, v)
	}
	return n, nil
}

// weightedMean is the mean over trained tokens, over turns if there are none.
func weightedMean(turns []float32, trained []int) float32 {
	sum, weight, plain := 0.0, 0.0, 0.0
	for i, v := range turns {
		sum += float64(v) * float64(trained[i])
		weight += float64(trained[i])
		plain += float64(v) / float64(len(turns))
	}
	if weight == 0 {
		return float32(plain)
	}
	return float32(sum / weight)
}
