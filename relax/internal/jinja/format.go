package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A spec is a format specification, of % or of str.format.
type spec struct {
	fill      string
	align     byte // '<', '>', '^', '=' or 0
	sign      byte
	alt       bool
	group     byte // ',' or '_'
	width     int
	precision int // -1 where absent
	verb      byte
}

// percent is Python's text % values.
func (r *run) percent(text, vals Value) (Value, error) {
	f := &percentFormat{r: r, s: text.text(), vals: vals, markup: text.k == kMarkup}
	for f.i < len(f.s) {
		j := strings.IndexByte(f.s[f.i:], '%')
		if j < 0 {
			break
		}
		f.out = append(f.out, f.s[f.i:f.i+j]...)
		f.i += j + 1
		if err := f.directive(); err != nil {
			return text, err
		}
		if err := r.room(len(f.out)/16, "string formatting"); err != nil {
			return text, err
		}
	}
	f.out = append(f.out, f.s[f.i:]...)
	if f.unused() {
		return text, typeError("not all arguments converted during string formatting")
	}
	return text.like(string(f.out)), r.room(len(f.out), "string formatting")
}

type percentFormat struct {
	r      *run
	s      string
	i      int
	vals   Value
	used   int
	markup bool
	out    []byte
}

func (f *percentFormat) unused() bool {
	if f.vals.k == kTuple {
		return f.used < int(f.vals.n)
	}
	return f.used == 0 && f.vals.k != kDict && f.vals.k != kList
}

func (f *percentFormat) next() (Value, error) {
	f.used++
	if f.vals.k == kTuple {
		if f.used > int(f.vals.n) {
			return Value{}, typeError("not enough arguments for format string")
		}
		return f.vals.items()[f.used-1], nil
	}
	if f.used > 1 {
		return Value{}, typeError("not enough arguments for format string")
	}
	return f.vals, nil
}

func (f *percentFormat) directive() error {
	var key Value
	if f.i < len(f.s) && f.s[f.i] == '(' {
		end := strings.IndexByte(f.s[f.i:], ')')
		if end < 0 {
			return valueError("incomplete format key")
		}
		if f.vals.k != kDict {
			return typeError("format requires a mapping")
		}
		v, ok := f.vals.dict().Get(f.s[f.i+1 : f.i+end])
		if !ok {
			return errorf("KeyError", "'%s'", f.s[f.i+1:f.i+end])
		}
		key = v
		f.used = 1
		f.i += end + 1
	}
	sp := spec{fill: " ", align: '>', precision: -1}
	if err := f.flags(&sp); err != nil {
		return err
	}
	if f.i >= len(f.s) {
		return valueError("incomplete format")
	}
	sp.verb = f.s[f.i]
	f.i++
	if sp.verb == '%' {
		f.out = append(f.out, '%')
		return nil
	}
	v := key
	if v.k == kMissing {
		var err error
		if v, err = f.next(); err != nil {
			return err
		}
	}
	s, err := f.convert(v, &sp)
	f.out = append(f.out, s...)
	return err
}

func (f *percentFormat) flags(sp *spec) error {
	for ; f.i < len(f.s); f.i++ {
		switch f.s[f.i] {
		case '-':
			sp.align = '<'
		case '+':
			sp.sign = '+'
		case ' ':
			if sp.sign == 0 {
				sp.sign = ' '
			}
		case '#':
			sp.alt = true
		case '0':
			if sp.align != '<' {
				sp.align, sp.fill = '=', "0"
			}
		default:
			return f.sizes(sp)
		}
	}
	return nil
}

func (f *percentFormat) sizes(sp *spec) error {
	n, err := f.size()
	if err != nil {
		return err
	}
	if n < 0 {
		sp.align, sp.fill, n = '<', " ", -n
	}
	sp.width = n
	if f.i < len(f.s) && f.s[f.i] == '.' {
		f.i++
		if sp.precision, err = f.size(); err != nil {
			return err
		}
	}
	for f.i < len(f.s) && strings.IndexByte("hlL", f.s[f.i]) >= 0 {
		f.i++
	}
	return nil
}

// size reads a width or precision: digits or "*".
func (f *percentFormat) size() (int, error) {
	if f.i < len(f.s) && f.s[f.i] == '*' {
		f.i++
		v, err := f.next()
		if err != nil {
			return 0, err
		}
		return wantInt("%", v, 0)
	}
	return readDigits(f.s, &f.i), nil
}

// readDigits reads a decimal number, capped far above any limit.
func readDigits(s string, i *int) int {
	n := 0
	for *i < len(s) && isDigit(s[*i]) {
		n = min(n*10+int(s[*i]-'0'), 1<<32)
		*i++
	}
	return n
}

func (f *percentFormat) convert(v Value, sp *spec) (string, error) {
	switch sp.verb {
	case 's', 'r', 'a':
		return f.text(v, sp)
	case 'c':
		if v.isStr() && runeLen(v.text()) == 1 {
			return f.r.fit(v.text(), sp)
		}
		if v.isInt() && v.int() >= 0 && v.int() <= utf8.MaxRune {
			return f.r.fit(string(rune(v.int())), sp)
		}
		return "", typeError("%%c requires int or char")
	case 'd', 'i', 'u':
		if v.k == kFloat {
			w, err := truncFloat(v.float())
			if err != nil {
				return "", err
			}
			v = w
		}
		sp.verb = 'd'
	case 'x', 'X', 'o':
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if isWhole(v) {
			v = Float(toFloat(v))
		}
	default:
		return "", valueError("unsupported format character '%c'", sp.verb)
	}
	if !isNumber(v) {
		return "", typeError("%%%c format: a number is required, not %s", sp.verb, v.typeName())
	}
	return f.r.formatNumber(v, sp, true)
}

func (f *percentFormat) text(v Value, sp *spec) (string, error) {
	s, err := f.r.str(v)
	if sp.verb != 's' {
		s, err = f.r.repr(v)
	}
	if err != nil {
		return "", err
	}
	if f.markup {
		s = escaped(v.like(s))
	}
	if sp.precision >= 0 && sp.precision < runeLen(s) {
		s = runeSlice(s, 0, sp.precision)
	}
	if sp.align == '=' {
		sp.align, sp.fill = '>', " "
	}
	return f.r.fit(s, sp)
}

// fit pads s to the width of sp.
func (r *run) fit(s string, sp *spec) (string, error) {
	how := "rjust"
	switch sp.align {
	case '<', 0:
		how = "ljust"
	case '^':
		n := sp.width - runeLen(s)
		if n > 0 {
			s, err := r.pad(s, sp.width-n+n/2, sp.fill, "rjust")
			if err != nil {
				return s, err
			}
			return r.pad(s, sp.width, sp.fill, "ljust")
		}
	}
	return r.pad(s, sp.width, sp.fill, how)
}

// formatNumber writes a number by sp; old is the style of %, which pads precision with zeros.
func (r *run) formatNumber(v Value, sp *spec, old bool) (string, error) {
	if sp.precision > 1<<16 {
		return "", r.limit("precision", 1<<16, "string formatting")
	}
	neg, digits, prefix := false, "", ""
	if isWhole(v) && strings.IndexByte("dxXobn", sp.verb) >= 0 {
		b := toBig(v)
		neg = b.Sign() < 0
		digits, prefix = intDigits(new(big.Int).Abs(b), sp)
		if old && sp.precision > len(digits) {
			digits = strings.Repeat("0", sp.precision-len(digits)) + digits
		}
	} else {
		f := toFloat(v)
		neg = math.Signbit(f) && f == f
		digits = floatDigits(math.Abs(f), sp)
	}
	if sp.group != 0 {
		digits = grouped(digits, sp.group)
	}
	switch {
	case neg:
		prefix = "-" + prefix
	case sp.sign == '+' || sp.sign == ' ':
		prefix = string(sp.sign) + prefix
	}
	if sp.align == '=' {
		digits, err := r.pad(digits, sp.width-len(prefix), sp.fill, "rjust")
		return prefix + digits, err
	}
	return r.fit(prefix+digits, sp)
}

func intDigits(b *big.Int, sp *spec) (digits, prefix string) {
	switch sp.verb {
	case 'x', 'X':
		digits, prefix = b.Text(16), "0x"
	case 'o':
		digits, prefix = b.Text(8), "0o"
	case 'b':
		digits, prefix = b.Text(2), "0b"
	default:
		return b.Text(10), ""
	}
	if sp.verb == 'X' {
		digits, prefix = strings.ToUpper(digits), "0X"
	}
	if !sp.alt {
		prefix = ""
	}
	return digits, prefix
}

// floatDigits writes the digits of a float that is not negative.
func floatDigits(f float64, sp *spec) string {
	verb, prec := sp.verb, sp.precision
	if prec < 0 && verb != 0 {
		prec = 6
	}
	lower := verb | 32
	if verb == '%' {
		f, lower = f*100, 'f'
	}
	var s string
	switch {
	case math.IsInf(f, 0) || f != f:
		s = strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(f, 'g', -1, 64)), "+")
	case verb == 0 && prec < 0:
		s = string(appendFloat(nil, f))
	case verb == 0 || lower == 'g' || lower == 'n':
		s = generalFloat(f, max(prec, 1), sp.alt)
		if verb == 0 && !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
	default:
		s = strconv.FormatFloat(f, lower, prec, 64)
	}
	if verb >= 'A' && verb <= 'Z' {
		s = strings.ToUpper(s)
	}
	if verb == '%' {
		s += "%"
	}
	return s
}

// generalFloat is C's %g with prec significant digits.
func generalFloat(f float64, prec int, keepZeros bool) string {
	e := strconv.FormatFloat(f, 'e', prec-1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	if exp >= -4 && exp < prec {
		s := strconv.FormatFloat(f, 'f', prec-1-exp, 64)
		if !keepZeros && strings.IndexByte(s, '.') >= 0 {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	mant, tail, _ := strings.Cut(e, "e")
	if !keepZeros && strings.IndexByte(mant, '.') >= 0 {
		mant = strings.TrimRight(strings.TrimRight(mant, "0"), ".")
	}
	return mant + "e" + tail
}

func grouped(digits string, sep byte) string {
	end := strings.IndexAny(digits, ".e%")
	if end < 0 {
		end = len(digits)
	}
	var b strings.Builder
	for i := 0; i < end; i++ {
		if i > 0 && (end-i)%3 == 0 {
			b.WriteByte(sep)
		}
		b.WriteByte(digits[i])
	}
	return b.String() + digits[end:]
}

// truncFloat is int(f).
func truncFloat(f float64) (Value, error) {
	switch {
	case f != f:
		return Value{}, valueError("cannot convert float NaN to integer")
	case math.IsInf(f, 0):
		return Value{}, errorf("OverflowError", "cannot convert float infinity to integer")
	}
	b, _ := big.NewFloat(f).Int(nil)
	return BigInt(b), nil
}
