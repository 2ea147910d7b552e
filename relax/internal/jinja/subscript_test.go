package jinja

import (
	"errors"
	"testing"
)

// Subscripts that jinja2 refuses to compile, and the tuples of slices that only numpy would take.
func TestBadSubscripts(t *testing.T) {
	for _, s := range []string{"(1)[,none]", "x[,]", "x[1,]", "x[1:2,]", "x[,1:2]", "x[]", "x[:,1]", "x[1,2:3]"} {
		_, err := Compile("{{ "+s+" }}", Options{})
		var wrong *SyntaxError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: %v, want a SyntaxError", s, err)
		}
	}
	for _, s := range []string{"x[1,2]", "x[1:2]", "x[:]", "x[::2]"} {
		if _, err := Compile("{{ "+s+" }}", Options{}); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}
