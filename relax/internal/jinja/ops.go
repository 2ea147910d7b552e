package jinja

import (
	"math"
	"math/big"
	"math/bits"
	"strings"
)

// maxValueDepth bounds recursion over nested values, near where Python's own stack ends.
const maxValueDepth = 900

func errTooDeep() error {
	return errorf("RecursionError", "value nested deeper than %d levels", maxValueDepth)
}

func isNumber(v Value) bool { return v.k == kBool || v.k == kInt || v.k == kBig || v.k == kFloat }

func isWhole(v Value) bool { return v.k == kBool || v.k == kInt || v.k == kBig }

func opName(op byte) string {
	switch op {
	case 'd':
		return "//"
	case '^':
		return "**"
	}
	return string(op)
}

func operandError(op string, a, b Value) error {
	if a.k == kUndefined {
		return undefinedError(a)
	}
	if b.k == kUndefined {
		return undefinedError(b)
	}
	return typeError("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

// add is a + b.
func (r *run) add(a, b Value) (Value, error) {
	switch {
	case isNumber(a) && isNumber(b):
		return r.number('+', a, b)
	case a.isStr() && b.isStr():
		if a.k != b.k { // one is Markup: the other is escaped
			a, b = Markup(escaped(a)), Markup(escaped(b))
		}
		if err := r.room(int(a.n+b.n), "operator '+'"); err != nil {
			return a, err
		}
		return a.like(a.text() + b.text()), nil
	case a.isSeq() && a.k == b.k:
		if err := r.roomItems(int(a.n+b.n), "operator '+'"); err != nil {
			return a, err
		}
		v := List(append(append(make([]Value, 0, a.n+b.n), a.items()...), b.items()...))
		v.k = a.k
		return v, nil
	case a.isStr() && b.k != kUndefined:
		return a, typeError(`can only concatenate str (not "%s") to str`, b.typeName())
	}
	return a, operandError("+", a, b)
}

func (r *run) arith(op byte, a, b Value) (Value, error) {
	switch {
	case op == '%' && a.isStr():
		return r.percent(a, b)
	case isNumber(a) && isNumber(b):
		return r.number(op, a, b)
	case op == '*' && (a.isStr() || a.isSeq()) && b.isInt():
		return r.repeat(a, b.int())
	case op == '*' && (b.isStr() || b.isSeq()) && a.isInt():
		return r.repeat(b, a.int())
	}
	name := opName(op)
	if op == '^' {
		name = "** or pow()"
	}
	return a, operandError(name, a, b)
}

func (r *run) repeat(v Value, n int64) (Value, error) {
	n = max(n, 0)
	hi, total := bits.Mul64(uint64(n), v.n)
	if hi != 0 || total > 1<<40 {
		total = 1 << 40
	}
	if v.isStr() {
		if err := r.room(int(total), "operator '*'"); err != nil {
			return v, err
		}
		return v.like(strings.Repeat(v.text(), int(n)*min(1, int(v.n)))), nil
	}
	if err := r.roomItems(int(total), "operator '*'"); err != nil {
		return v, err
	}
	out := make([]Value, 0, total)
	for i := int64(0); i < n && v.n > 0; i++ {
		out = append(out, v.items()...)
	}
	w := List(out)
	w.k = v.k
	return w, nil
}

func toFloat(v Value) float64 {
	switch v.k {
	case kFloat:
		return v.float()
	case kBig:
		f, _ := new(big.Float).SetInt(v.big()).Float64()
		return f
	}
	return float64(v.int())
}

// number does arithmetic on two numbers by Python's rules.
func (r *run) number(op byte, a, b Value) (Value, error) {
	if a.k == kFloat || b.k == kFloat {
		return floatOp(op, toFloat(a), toFloat(b))
	}
	if a.k != kBig && b.k != kBig {
		if v, ok, err := smallOp(op, a.int(), b.int()); ok || err != nil {
			return v, err
		}
	}
	return r.bigOp(op, toBig(a), toBig(b))
}

var errZero = "division by zero"

func zeroDivision(msg string) error { return errorf("ZeroDivisionError", "%s", msg) }

// smallOp works on machine integers; ok is false where the result may not fit.
func smallOp(op byte, a, b int64) (Value, bool, error) {
	switch op {
	case '+':
		c := a + b
		return Int(c), (c > a) == (b > 0), nil
	case '-':
		c := a - b
		return Int(c), (c < a) == (b > 0), nil
	case '*':
		hi, lo := bits.Mul64(uint64(abs64(a)), uint64(abs64(b)))
		return Int(a * b), hi == 0 && lo < 1<<63 && a != math.MinInt64 && b != math.MinInt64, nil
	case '/':
		if b == 0 {
			return Value{}, false, zeroDivision(errZero)
		}
		return Float(float64(a) / float64(b)), abs64(a) < 1<<53 && abs64(b) < 1<<53 && a != math.MinInt64 && b != math.MinInt64, nil
	case 'd', '%':
		if b == 0 {
			return Value{}, false, zeroDivision("integer division or modulo by zero")
		}
		if a == math.MinInt64 {
			return Value{}, false, nil
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) {
			q, m = q-1, m+b
		}
		if op == 'd' {
			return Int(q), true, nil
		}
		return Int(m), true, nil
	}
	return Value{}, false, nil
}

func abs64(a int64) int64 {
	if a < 0 {
		return -a
	}
	return a
}

// maxIntBits bounds big integers; Python itself refuses to print more than 4300 digits.
const maxIntBits = 1 << 16

func (r *run) bigOp(op byte, a, b *big.Int) (Value, error) {
	c := new(big.Int)
	switch op {
	case '+':
		c.Add(a, b)
	case '-':
		c.Sub(a, b)
	case '*':
		if a.BitLen()+b.BitLen() > maxIntBits {
			return Value{}, r.limit("integer bits", maxIntBits, "operator '*'")
		}
		c.Mul(a, b)
	case '/':
		if b.Sign() == 0 {
			return Value{}, zeroDivision(errZero)
		}
		f, _ := new(big.Rat).SetFrac(a, b).Float64()
		if math.IsInf(f, 0) {
			return Value{}, errorf("OverflowError", "integer division result too large for a float")
		}
		return Float(f), nil
	case 'd', '%':
		if b.Sign() == 0 {
			return Value{}, zeroDivision("integer division or modulo by zero")
		}
		m := new(big.Int)
		c.DivMod(a, b, m) // Euclid: 0 <= m
		if m.Sign() != 0 && b.Sign() < 0 {
			c.Sub(c, big.NewInt(1))
			m.Add(m, b)
		}
		if op == '%' {
			c = m
		}
	case '^':
		return r.bigPow(a, b)
	}
	return BigInt(c), nil
}

func (r *run) bigPow(a, b *big.Int) (Value, error) {
	if b.Sign() < 0 {
		if a.Sign() == 0 {
			return Value{}, zeroDivision("0.0 cannot be raised to a negative power")
		}
		return floatOp('^', toFloat(BigInt(a)), toFloat(BigInt(b)))
	}
	if a.BitLen() > 1 && (!b.IsInt64() || b.Int64() > maxIntBits || int64(a.BitLen())*b.Int64() > maxIntBits) {
		return Value{}, r.limit("integer bits", maxIntBits, "operator '**'")
	}
	if a.BitLen() <= 1 && b.BitLen() > 1 { // -1, 0 and 1: only the parity counts
		b = big.NewInt(2 + int64(b.Bit(0)))
	}
	return BigInt(new(big.Int).Exp(a, b, nil)), nil
}

func floatOp(op byte, a, b float64) (Value, error) {
	switch op {
	case '+':
		return Float(a + b), nil
	case '-':
		return Float(a - b), nil
	case '*':
		return Float(a * b), nil
	case '/':
		if b == 0 {
			return Value{}, zeroDivision("float division by zero")
		}
		return Float(a / b), nil
	case 'd', '%':
		if b == 0 {
			return Value{}, zeroDivision("float floor division or modulo by zero")
		}
		m := math.Mod(a, b)
		div := (a - m) / b
		if m != 0 {
			if (b < 0) != (m < 0) {
				m += b
				div--
			}
		} else {
			m = math.Copysign(0, b)
		}
		if op == '%' {
			return Float(m), nil
		}
		fl := math.Floor(div)
		if div-fl > 0.5 {
			fl++
		}
		return Float(fl), nil
	}
	if a == 0 && b < 0 {
		return Value{}, zeroDivision("0.0 cannot be raised to a negative power")
	}
	if a < 0 && b != math.Trunc(b) {
		return Value{}, typeError("complex numbers are not supported")
	}
	f := math.Pow(a, b)
	if math.IsInf(f, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
		return Value{}, errorf("OverflowError", "numerical result out of range")
	}
	return Float(f), nil
}

func sign(v Value, neg bool) (Value, error) {
	switch v.k {
	case kBool, kInt:
		if !neg {
			return Int(v.int()), nil
		}
		if v.int() == math.MinInt64 {
			return BigInt(new(big.Int).Neg(toBig(v))), nil
		}
		return Int(-v.int()), nil
	case kBig:
		if neg {
			return BigInt(new(big.Int).Neg(v.big())), nil
		}
		return v, nil
	case kFloat:
		if neg {
			return Float(-v.float()), nil
		}
		return v, nil
	case kUndefined:
		return v, undefinedError(v)
	}
	op := "+"
	if neg {
		op = "-"
	}
	return v, typeError("bad operand type for unary %s: '%s'", op, v.typeName())
}
