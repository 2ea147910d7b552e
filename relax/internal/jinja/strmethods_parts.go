package jinja

import "strings"

// window cuts s to the characters [start:end] that a method's optional arguments name, and
// returns how many characters were cut off in front.
func window(fn string, s string, start, end Value) (string, int, bool, error) {
	if start.k == kMissing && end.k == kMissing {
		return s, 0, true, nil
	}
	b := [3]Value{start, end, None()}
	for i := range b {
		if b[i].k == kMissing {
			b[i] = None()
		}
		if !b[i].isNone() && !b[i].isInt() {
			return "", 0, false, typeError("%s(): slice indices must be integers or None", fn)
		}
	}
	n := runeLen(s)
	if b[0].isInt() && b[0].int() > int64(n) {
		return "", 0, false, nil
	}
	i, j, _, err := sliceBounds(b, n)
	if err != nil || j < i {
		return "", 0, false, err
	}
	return runeSlice(s, i, j), i, true, nil
}

func affix(fn string, has func(s, x string) bool) method {
	return func(_ *run, self Value, a args) (Value, error) {
		var p [3]Value
		if err := a.bind(fn, p[:]); err != nil {
			return self, err
		}
		s, _, ok, err := window(fn, self.text(), p[1], p[2])
		if err != nil {
			return self, err
		}
		options := []Value{p[0]}
		if p[0].k == kTuple {
			options = p[0].items()
		}
		for _, o := range options {
			if !o.isStr() {
				return self, typeError("%s first arg must be str or a tuple of str, not %s", fn, o.typeName())
			}
			if ok && has(s, o.text()) {
				return Bool(true), nil
			}
		}
		return Bool(false), nil
	}
}

func trimAffix(fn string, trim func(s, x string) string) method {
	return func(_ *run, self Value, a args) (Value, error) {
		var p [1]Value
		if err := a.bind(fn, p[:]); err != nil {
			return self, err
		}
		x, err := wantStr(fn, p[0])
		return self.like(trim(self.text(), x)), err
	}
}

func finder(fn string, last, must bool) method {
	return func(_ *run, self Value, a args) (Value, error) {
		var p [3]Value
		if err := a.bind(fn, p[:]); err != nil {
			return self, err
		}
		sub, err := wantStr(fn, p[0])
		if err != nil {
			return self, err
		}
		s, skipped, ok, err := window(fn, self.text(), p[1], p[2])
		if err != nil {
			return self, err
		}
		i := -1
		if ok && last {
			i = strings.LastIndex(s, sub)
		} else if ok {
			i = strings.Index(s, sub)
		}
		if i < 0 {
			if must {
				return self, valueError("substring not found")
			}
			return Int(-1), nil
		}
		return Int(int64(runeLen(s[:i]) + skipped)), nil
	}
}

func strCount(_ *run, self Value, a args) (Value, error) {
	var p [3]Value
	if err := a.bind("count", p[:]); err != nil {
		return self, err
	}
	sub, err := wantStr("count", p[0])
	if err != nil {
		return self, err
	}
	s, _, ok, err := window("count", self.text(), p[1], p[2])
	if err != nil || !ok {
		return Int(0), err
	}
	return Int(int64(strings.Count(s, sub))), nil
}

func strReplace(r *run, self Value, a args) (Value, error) {
	var p [3]Value
	if err := a.bind("replace", p[:], "", "", "count"); err != nil {
		return self, err
	}
	old, err := wantStr("replace", p[0])
	if err != nil {
		return self, err
	}
	if _, err := wantStr("replace", p[1]); err != nil {
		return self, err
	}
	repl := p[1].text()
	if self.k == kMarkup {
		repl = escaped(p[1])
	}
	n, err := wantInt("replace", p[2], -1)
	if err != nil {
		return self, err
	}
	s, err := r.replace(self.text(), old, repl, n)
	return self.like(s), err
}

// replace is str.replace, checked for size before it is done.
func (r *run) replace(s, old, repl string, n int) (string, error) {
	hits := strings.Count(s, old)
	if n >= 0 {
		hits = min(hits, n)
	}
	if hits > 0 {
		grow := len(repl) - len(old)
		if grow > 0 && hits > (1<<40)/grow {
			return "", r.room(1<<40, "replace")
		}
		if err := r.room(len(s)+hits*grow, "replace"); err != nil {
			return "", err
		}
	}
	return strings.Replace(s, old, repl, n), nil
}

func strJoin(r *run, self Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("join", p[:]); err != nil {
		return self, err
	}
	if p[0].k == kMissing {
		return self, typeError("str.join() takes exactly one argument (0 given)")
	}
	items, err := r.collect(p[0], "join")
	if err != nil {
		return self, err
	}
	parts := make([]string, len(items))
	for i, it := range items {
		if self.k == kMarkup && it.k != kUndefined {
			s, err := r.str(it)
			if err != nil {
				return self, err
			}
			parts[i] = escaped(it.like(s))
			continue
		}
		if !it.isStr() {
			return self, typeError("sequence item %d: expected str instance, %s found", i, it.typeName())
		}
		parts[i] = it.text()
	}
	s, err := r.joinParts(parts, self.text())
	return self.like(s), err
}

// joinParts is strings.Join within the limits.
func (r *run) joinParts(parts []string, sep string) (string, error) {
	size := len(sep) * max(0, len(parts)-1)
	for _, p := range parts {
		size += len(p)
	}
	if err := r.room(size, "join"); err != nil {
		return "", err
	}
	return strings.Join(parts, sep), nil
}

func partition(index func(s, sep string) int) method {
	return func(_ *run, self Value, a args) (Value, error) {
		s, sep, err := partitionArgs(self, a)
		if err != nil {
			return self, err
		}
		i := index(s, sep)
		if i < 0 {
			return Tuple(self, self.like(""), self.like("")), nil
		}
		return Tuple(self.like(s[:i]), self.like(sep), self.like(s[i+len(sep):])), nil
	}
}

func rpartition(_ *run, self Value, a args) (Value, error) {
	s, sep, err := partitionArgs(self, a)
	if err != nil {
		return self, err
	}
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return Tuple(self.like(""), self.like(""), self), nil
	}
	return Tuple(self.like(s[:i]), self.like(sep), self.like(s[i+len(sep):])), nil
}

func partitionArgs(self Value, a args) (s, sep string, err error) {
	var p [1]Value
	if err := a.bind("partition", p[:]); err != nil {
		return "", "", err
	}
	if sep, err = wantStr("partition", p[0]); err == nil && sep == "" {
		err = valueError("empty separator")
	}
	return self.text(), sep, err
}

func padder(fn string) method {
	return func(r *run, self Value, a args) (Value, error) {
		var p [2]Value
		if err := a.bind(fn, p[:]); err != nil {
			return self, err
		}
		width, err := wantInt(fn, p[0], 0)
		if err != nil {
			return self, err
		}
		fill := " "
		if p[1].k != kMissing {
			if fill, err = wantStr(fn, p[1]); err != nil {
				return self, err
			}
			if runeLen(fill) != 1 {
				return self, typeError("the fill character must be exactly one character long")
			}
		}
		s, err := r.pad(self.text(), width, fill, fn)
		return self.like(s), err
	}
}

// pad fills s up to width characters as ljust, rjust or center do.
func (r *run) pad(s string, width int, fill, how string) (string, error) {
	n := width - runeLen(s)
	if n <= 0 {
		return s, nil
	}
	if err := r.room(min(n, 1<<40)*len(fill), "padding"); err != nil {
		return "", err
	}
	left := 0
	switch how {
	case "rjust":
		left = n
	case "center":
		left = n/2 + n&width&1
	}
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left), nil
}

func strZfill(r *run, self Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("zfill", p[:]); err != nil {
		return self, err
	}
	width, err := wantInt("zfill", p[0], 0)
	if err != nil {
		return self, err
	}
	s, sign := self.text(), ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	s, err = r.pad(s, width-len(sign), "0", "rjust")
	return self.like(sign + s), err
}

func strExpandtabs(r *run, self Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("expandtabs", p[:], "tabsize"); err != nil {
		return self, err
	}
	size, err := wantInt("expandtabs", p[0], 8)
	if err != nil {
		return self, err
	}
	size = max(size, 0)
	if err := r.room(int(self.n)+strings.Count(self.text(), "\t")*min(size, 1<<30), "expandtabs"); err != nil {
		return self, err
	}
	var b strings.Builder
	col := 0
	for _, c := range self.text() {
		if c == '\t' {
			if size > 0 {
				n := size - col%size
				b.WriteString(strings.Repeat(" ", n))
				col += n
			}
			continue
		}
		b.WriteRune(c)
		col++
		if c == '\n' || c == '\r' {
			col = 0
		}
	}
	return self.like(b.String()), nil
}
