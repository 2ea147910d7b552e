package jinja

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

func filterAbs(_ *run, v Value, _ args) (Value, error) {
	if !isNumber(v) {
		if v.k == kUndefined {
			return v, undefinedError(v)
		}
		return v, typeError("bad operand type for abs(): '%s'", v.typeName())
	}
	if v.k == kFloat {
		return Float(math.Abs(v.float())), nil
	}
	return BigInt(new(big.Int).Abs(toBig(v))), nil
}

func filterAttr(r *run, v Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("attr", p[:], "name"); err != nil {
		return v, err
	}
	name, err := r.str(p[0])
	if err != nil {
		return v, err
	}
	if v.k == kUndefined {
		return v, undefinedError(v)
	}
	x, ok, err := r.pyAttr(v, name)
	if ok || err != nil {
		return x, err
	}
	if isDunder(name) {
		return unsafeAttr(name), nil
	}
	return lacks(v, name), nil
}

func filterBatch(r *run, v Value, a args) (Value, error) {
	var p [2]Value
	if err := a.bind("batch", p[:], "linecount", "fill_with"); err != nil {
		return v, err
	}
	n, err := wantInt("batch", p[0], 0)
	if err != nil {
		return v, err
	}
	items, err := r.collect(v, "filter 'batch'")
	if err != nil {
		return v, err
	}
	if err := r.roomItems(max(n, 0), "filter 'batch'"); err != nil {
		return v, err
	}
	n = max(n, 1)
	var out []Value
	for i := 0; i < len(items); i += n {
		row := append([]Value(nil), items[i:min(i+n, len(items))]...)
		for p[1].k != kMissing && !p[1].isNone() && len(row) < n {
			row = append(row, p[1])
		}
		out = append(out, List(row))
	}
	return lazyList("do_batch", out), nil
}

func filterSlice(r *run, v Value, a args) (Value, error) {
	var p [2]Value
	if err := a.bind("slice", p[:], "slices", "fill_with"); err != nil {
		return v, err
	}
	n, err := wantInt("slice", p[0], 0)
	if err != nil {
		return v, err
	}
	items, err := r.collect(v, "filter 'slice'")
	if err != nil {
		return v, err
	}
	if n <= 0 {
		return v, zeroDivision("integer division or modulo by zero")
	}
	if err := r.roomItems(n, "filter 'slice'"); err != nil {
		return v, err
	}
	per, extra := len(items)/n, len(items)%n
	var out []Value
	for i, start := 0, 0; i < n; i++ {
		end := start + per
		if i < extra {
			end++
		}
		row := append([]Value(nil), items[start:end]...)
		if p[1].k != kMissing && !p[1].isNone() && i >= extra {
			row = append(row, p[1])
		}
		out = append(out, List(row))
		start = end
	}
	return lazyList("do_slice", out), nil
}

// lazyList is a generator over items that are already there.
func lazyList(name string, items []Value) Value {
	i := 0
	return lazy(name, func() (Value, bool, error) {
		if i >= len(items) {
			return Value{}, false, nil
		}
		i++
		return items[i-1], true, nil
	})
}

func filterFloat(r *run, v Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("float", p[:], "default"); err != nil {
		return v, err
	}
	if isNumber(v) {
		return Float(toFloat(v)), nil
	}
	if v.isStr() {
		if f, ok := parseFloat(v.text()); ok {
			return Float(f), nil
		}
	}
	if p[0].k == kMissing {
		return Float(0), nil
	}
	return p[0], nil
}

// parseFloat is Python's float(s).
func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xXpP") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil || math.IsInf(f, 0)
}

func filterInt(r *run, v Value, a args) (Value, error) {
	var p [2]Value
	if err := a.bind("int", p[:], "default", "base"); err != nil {
		return v, err
	}
	base, err := wantInt("int", p[1], 10)
	if err != nil {
		return v, err
	}
	switch {
	case isWhole(v):
		return BigInt(toBig(v)), nil
	case v.k == kFloat:
		if w, err := truncFloat(v.float()); err == nil {
			return w, nil
		}
	case v.isStr():
		s := strings.TrimFunc(v.text(), isSpace)
		if b, ok := parseInt(s, base); ok && len(s) <= 4300 {
			return BigInt(b), nil
		}
		if f, ok := parseFloat(s); ok {
			if w, err := truncFloat(f); err == nil {
				return w, nil
			}
		}
	}
	if p[0].k == kMissing {
		return Int(0), nil
	}
	return p[0], nil
}

func parseInt(s string, base int) (*big.Int, bool) {
	if base < 2 || base > 36 || len(s) > 4300 {
		return nil, false
	}
	low := strings.ToLower(strings.TrimLeft(s, "+-"))
	for b, prefix := range map[int]string{2: "0b", 8: "0o", 16: "0x"} {
		if b == base && strings.HasPrefix(low, prefix) {
			return new(big.Int).SetString(s, 0)
		}
	}
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return nil, false
	}
	return new(big.Int).SetString(strings.ReplaceAll(s, "_", ""), base)
}

func filterPprint(r *run, v Value, _ args) (Value, error) {
	s, err := r.repr(v)
	return String(s), err
}

func filterRound(r *run, v Value, a args) (Value, error) {
	var p [2]Value
	if err := a.bind("round", p[:], "precision", "method"); err != nil {
		return v, err
	}
	prec, err := wantInt("round", p[0], 0)
	if err != nil {
		return v, err
	}
	method := "common"
	if p[1].isStr() {
		method = p[1].text()
	}
	if !isNumber(v) {
		if v.k == kUndefined {
			return v, undefinedError(v)
		}
		return v, typeError("type %s doesn't define __round__ method", v.typeName())
	}
	if method == "common" {
		if isWhole(v) && prec >= 0 {
			return BigInt(toBig(v)), nil
		}
		if isWhole(v) {
			return truncFloat(roundHalfEven(toFloat(v), prec))
		}
		return Float(roundHalfEven(toFloat(v), prec)), nil
	}
	scale := math.Pow(10, float64(prec))
	switch method {
	case "ceil":
		return Float(math.Ceil(toFloat(v)*scale) / scale), nil
	case "floor":
		return Float(math.Floor(toFloat(v)*scale) / scale), nil
	}
	return v, errorf("FilterArgumentError", "method must be common, ceil or floor")
}

// roundHalfEven rounds the exact value of f to prec decimals.
func roundHalfEven(f float64, prec int) float64 {
	if prec > 308 || math.IsInf(f, 0) || f != f {
		return f
	}
	if prec < 0 {
		scale := math.Pow(10, float64(-max(prec, -400)))
		return math.RoundToEven(f/scale) * scale
	}
	out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', prec, 64), 64)
	return out
}

func filterTruncate(r *run, v Value, a args) (Value, error) {
	var p [4]Value
	if err := a.bind("truncate", p[:], "length", "killwords", "end", "leeway"); err != nil {
		return v, err
	}
	n, err := wantInt("truncate", p[0], 255)
	if err != nil {
		return v, err
	}
	leeway := 5
	if p[3].isInt() {
		leeway = int(p[3].int())
	}
	end := "..."
	if p[2].isStr() {
		end = p[2].text()
	}
	s, err := r.str(v)
	if err != nil {
		return v, err
	}
	if n < runeLen(end) || leeway < 0 {
		return v, errorf("AssertionError", "truncate: expected length >= %d and leeway >= 0", runeLen(end))
	}
	if runeLen(s) <= n+leeway {
		return v, nil
	}
	s = runeSlice(s, 0, n-runeLen(end))
	if !truth(p[1]) {
		if i := strings.LastIndexByte(s, ' '); i >= 0 {
			s = s[:i]
		}
	}
	return String(s + end), nil
}

func filterWordCount(r *run, v Value, _ args) (Value, error) {
	s, err := r.str(v)
	words := strings.FieldsFunc(s, func(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.IsNumber(c) })
	return Int(int64(len(words))), err
}

// jinjaTitle capitalises after whitespace, hyphens and opening brackets, as the filter does.
func jinjaTitle(s string) string {
	start := true
	return strings.Map(func(c rune) rune {
		if c == '-' || isSpace(c) || strings.ContainsRune("({[<", c) {
			start = true
			return c
		}
		if start {
			start = false
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

var (
	htmlComments = regexp.MustCompile(`(?s)<!--.*?-->`)
	htmlTags     = regexp.MustCompile(`(?s)<.*?>`)
)

func striptags(s string) string {
	s = htmlTags.ReplaceAllString(htmlComments.ReplaceAllString(s, ""), "")
	s = strings.Join(pySplit(s, -1), " ")
	return strings.NewReplacer("&lt;", "<", "&gt;", ">", "&#39;", "'", "&#34;", `"`, "&quot;", `"`, "&amp;", "&").Replace(s)
}

func quoteURL(s string, keepSlash bool) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if isDigit(c) || (c|32 >= 'a' && c|32 <= 'z') || strings.IndexByte("_.-~", c) >= 0 || (c == '/' && keepSlash) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(strings.ToUpper(hexDigits)[c>>4])
		b.WriteByte(strings.ToUpper(hexDigits)[c&15])
	}
	return b.String()
}

func filterURLEncode(r *run, v Value, _ args) (Value, error) {
	if v.isStr() || !iterable(v) {
		s, err := r.str(v)
		return String(quoteURL(s, true)), err
	}
	items, err := r.collect(v, "filter 'urlencode'")
	if v.k == kDict {
		items = v.dict().pairs()
	}
	var parts []string
	for _, it := range items {
		if !it.isSeq() || it.n != 2 {
			return v, valueError("urlencode needs pairs")
		}
		k, err1 := r.str(it.items()[0])
		x, err2 := r.str(it.items()[1])
		if err1 != nil || err2 != nil {
			return v, valueError("urlencode needs text")
		}
		parts = append(parts, strings.ReplaceAll(quoteURL(k, false), "%20", "+")+"="+strings.ReplaceAll(quoteURL(x, false), "%20", "+"))
	}
	return String(strings.Join(parts, "&")), err
}
