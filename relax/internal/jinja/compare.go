package jinja

import (
	"cmp"
	"math"
	"math/big"
	"strings"
)

type compareOp uint8

const (
	opEq compareOp = iota
	opNe
	opLt
	opLe
	opGt
	opGe
	opIn
	opNotIn
)

var compareOps = []string{"==", "!=", "<", "<=", ">", ">=", "in", "not in"}

func compareOpOf(s string) compareOp {
	for i, n := range compareOps {
		if n == s {
			return compareOp(i)
		}
	}
	return opEq
}

func (r *run) compare(op compareOp, a, b Value) (bool, error) {
	switch op {
	case opEq, opNe:
		ok, err := equal(a, b, 0)
		return ok == (op == opEq), err
	case opIn, opNotIn:
		ok, err := r.contains(b, a)
		return ok == (op == opIn), err
	}
	return ordered(op, a, b)
}

// equal is a == b.
func equal(a, b Value, depth int) (bool, error) {
	if a.k == kString && b.k == kString {
		return a.text() == b.text(), nil
	}
	var c comparison
	return c.equal(a, b, depth)
}

// maxComparisons bounds one comparison: a value that holds another twice, level by level, is
// small in memory but endless to walk.
const maxComparisons = 1 << 20

// A comparison counts the pairs of values it has looked at.
type comparison struct{ pairs int }

func (c *comparison) visit(depth int) error {
	if depth > maxValueDepth {
		return errTooDeep()
	}
	c.pairs++
	if c.pairs > maxComparisons {
		return &LimitError{Limit: "values compared", Max: maxComparisons, Construct: "comparison"}
	}
	return nil
}

func (c *comparison) equal(a, b Value, depth int) (bool, error) {
	if err := c.visit(depth); err != nil {
		return false, err
	}
	switch {
	case isNumber(a) && isNumber(b):
		n, ok := compareNumbers(a, b)
		return ok && n == 0, nil
	case a.isStr() && b.isStr():
		return a.text() == b.text(), nil
	case a.isSeq() && a.k == b.k:
		return c.items(a.items(), b.items(), depth)
	case a.k == kDict && b.k == kDict:
		return c.dicts(a.dict(), b.dict(), depth)
	case a.k == kRange && b.k == kRange:
		x, y := a.rng(), b.rng()
		return x.len() == y.len() && (x.len() == 0 || x.start == y.start && (x.len() == 1 || x.step == y.step)), nil
	case a.k == kUndefined && b.k == kUndefined, a.k == kNone && b.k == kNone:
		return true, nil
	}
	return a.k == b.k && a.p == b.p && a.n == b.n && a.p != nil, nil
}

func (c *comparison) items(a, b []Value, depth int) (bool, error) {
	if len(a) != len(b) {
		return false, nil
	}
	for i := range a {
		if ok, err := c.equal(a[i], b[i], depth+1); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (c *comparison) dicts(a, b *Dict, depth int) (bool, error) {
	if a.Len() != b.Len() {
		return false, nil
	}
	for i := range a.ents {
		v, ok, err := b.get(a.ents[i].key)
		if !ok || err != nil {
			return false, err
		}
		if ok, err := c.equal(a.ents[i].val, v, depth+1); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// compareNumbers orders two numbers exactly; ok is false where one is NaN.
func compareNumbers(a, b Value) (int, bool) {
	if a.isInt() && b.isInt() {
		return cmp.Compare(a.int(), b.int()), true
	}
	if a.k == kFloat && b.k == kFloat {
		x, y := a.float(), b.float()
		return cmp.Compare(x, y), x == x && y == y
	}
	if a.k == kFloat {
		c, ok := compareNumbers(b, a)
		return -c, ok
	}
	if b.k != kFloat {
		return toBig(a).Cmp(toBig(b)), true
	}
	f := b.float()
	switch {
	case f != f:
		return 0, false
	case math.IsInf(f, 0):
		return cmp.Compare(0, f), true
	}
	return new(big.Float).SetInt(toBig(a)).Cmp(big.NewFloat(f)), true
}

// ordered is a < b and its kin.
func ordered(op compareOp, a, b Value) (bool, error) {
	var c comparison
	return c.ordered(op, a, b, 0)
}

func (c *comparison) ordered(op compareOp, a, b Value, depth int) (bool, error) {
	if err := c.visit(depth); err != nil {
		return false, err
	}
	var order int
	switch {
	case isNumber(a) && isNumber(b):
		n, ok := compareNumbers(a, b)
		if !ok {
			return false, nil
		}
		order = n
	case a.isStr() && b.isStr():
		order = strings.Compare(a.text(), b.text())
	case a.isSeq() && a.k == b.k:
		x, y := a.items(), b.items()
		for i := range min(len(x), len(y)) {
			same, err := c.equal(x[i], y[i], depth+1)
			if err != nil {
				return false, err
			}
			if !same {
				return c.ordered(op, x[i], y[i], depth+1)
			}
		}
		order = cmp.Compare(len(x), len(y))
	case a.k == kUndefined || b.k == kUndefined:
		return false, operandError("", a, b)
	default:
		return false, typeError("'%s' not supported between instances of '%s' and '%s'", compareOps[op], a.typeName(), b.typeName())
	}
	switch op {
	case opLt:
		return order < 0, nil
	case opLe:
		return order <= 0, nil
	case opGt:
		return order > 0, nil
	}
	return order >= 0, nil
}

// contains is x in c.
func (r *run) contains(c, x Value) (bool, error) {
	switch c.k {
	case kString, kMarkup:
		if !x.isStr() {
			return false, typeError("'in <string>' requires string as left operand, not %s", x.typeName())
		}
		return strings.Contains(c.text(), x.text()), nil
	case kDict:
		_, ok, err := c.dict().get(x)
		return ok, err
	case kUndefined:
		return false, nil
	case kRange:
		if !isNumber(x) {
			return false, nil
		}
	}
	if !iterable(c) {
		return false, typeError("argument of type '%s' is not iterable", c.typeName())
	}
	next, err := r.iterate(c)
	if err != nil {
		return false, err
	}
	for {
		v, ok, err := next()
		if err != nil || !ok {
			return false, err
		}
		if same, err := equal(v, x, 0); same || err != nil {
			return same, err
		}
	}
}
