package jinja

import "strings"

// A testKind marks the tests that are answered in place.
type testKind uint8

const (
	testOther testKind = iota
	testDefined
	testUndefined
	testNone
	testString
)

func quickTest(name string, a *callArgs) testKind {
	if a != noArgs {
		return testOther
	}
	switch name {
	case "defined":
		return testDefined
	case "undefined":
		return testUndefined
	case "none":
		return testNone
	case "string":
		return testString
	}
	return testOther
}

var tests map[string]testFunc

func init() {
	tests = map[string]testFunc{
		"defined":   plainTest(func(v Value) bool { return v.k != kUndefined }),
		"undefined": plainTest(func(v Value) bool { return v.k == kUndefined }),
		"none":      plainTest(Value.isNone),
		"string":    plainTest(Value.isStr),
		"boolean":   plainTest(func(v Value) bool { return v.k == kBool }),
		"true":      plainTest(func(v Value) bool { return v.k == kBool && v.n == 1 }),
		"false":     plainTest(func(v Value) bool { return v.k == kBool && v.n == 0 }),
		"integer":   plainTest(func(v Value) bool { return v.k == kInt || v.k == kBig }),
		"float":     plainTest(func(v Value) bool { return v.k == kFloat }),
		"number":    plainTest(isNumber),
		"mapping":   plainTest(func(v Value) bool { return v.k == kDict }),
		"iterable":  plainTest(iterable),
		"sequence":  plainTest(isSequence),
		"callable":  plainTest(callable),
		"escaped":   plainTest(func(v Value) bool { return v.k == kMarkup }),
		"filter":    plainTest(func(v Value) bool { return v.isStr() && filters[v.text()] != nil }),
		"test":      plainTest(func(v Value) bool { return v.isStr() && tests[v.text()] != nil }),
		"lower":     textTest(isLower), "upper": textTest(isUpper),
		"odd": parity(1), "even": parity(0), "divisibleby": divisibleBy,
		"sameas": func(_ *run, v Value, a args) (bool, error) {
			return len(a.pos) == 1 && v == a.pos[0], nil
		},
	}
	for names, op := range map[string]compareOp{
		"eq == equalto": opEq, "ne !=": opNe, "lt < lessthan": opLt, "le <=": opLe,
		"gt > greaterthan": opGt, "ge >=": opGe, "in": opIn,
	} {
		for _, n := range strings.Fields(names) {
			tests[n] = compareTest(n, op)
		}
	}
}

func plainTest(fn func(Value) bool) testFunc {
	return func(_ *run, v Value, a args) (bool, error) {
		if len(a.pos)+len(a.kw) > 0 {
			return false, typeError("the test takes no arguments (%d given)", len(a.pos)+len(a.kw))
		}
		return fn(v), nil
	}
}

func isSequence(v Value) bool {
	switch v.k {
	case kString, kMarkup, kList, kTuple, kDict, kRange, kUndefined:
		return true
	}
	return false
}

func textTest(fn func(string) bool) testFunc {
	return func(r *run, v Value, _ args) (bool, error) {
		s, err := r.str(v)
		return fn(s), err
	}
}

func compareTest(name string, op compareOp) testFunc {
	return func(r *run, v Value, a args) (bool, error) {
		var p [1]Value
		if err := a.bind(name, p[:]); err != nil {
			return false, err
		}
		if p[0].k == kMissing {
			return false, typeError("the test needs one argument")
		}
		return r.compare(op, v, p[0])
	}
}

func parity(want int64) testFunc {
	return func(r *run, v Value, _ args) (bool, error) {
		m, err := r.arith('%', v, Int(2))
		if err != nil {
			return false, err
		}
		return equal(m, Int(want), 0)
	}
}

func divisibleBy(r *run, v Value, a args) (bool, error) {
	if len(a.pos) != 1 {
		return false, typeError("the test needs one argument")
	}
	m, err := r.arith('%', v, a.pos[0])
	if err != nil {
		return false, err
	}
	return equal(m, Int(0), 0)
}
