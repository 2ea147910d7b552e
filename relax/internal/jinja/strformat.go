package jinja

import (
	"strconv"
	"strings"
)

// A braces holds one call of str.format: its arguments and how far they are used.
type braces struct {
	r      *run
	args   args
	dict   *Dict // of format_map
	auto   int
	manual bool
	markup bool
}

func strFormat(r *run, self Value, a args) (Value, error) {
	f := &braces{r: r, args: a, markup: self.k == kMarkup}
	s, err := f.format(self.text(), 2)
	return self.like(s), err
}

func strFormatMap(r *run, self Value, a args) (Value, error) {
	if len(a.pos) != 1 || len(a.kw) > 0 || a.pos[0].k != kDict {
		return self, typeError("format_map() takes exactly one mapping")
	}
	f := &braces{r: r, dict: a.pos[0].dict(), markup: self.k == kMarkup}
	s, err := f.format(self.text(), 2)
	return self.like(s), err
}

func (f *braces) format(s string, depth int) (string, error) {
	if depth == 0 {
		return "", valueError("max string recursion exceeded")
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c != '{' && c != '}':
			b.WriteByte(c)
		case i+1 < len(s) && s[i+1] == c:
			b.WriteByte(c)
			i++
		case c == '}':
			return "", valueError("single '}' encountered in format string")
		default:
			end := fieldEnd(s, i+1)
			if end < 0 {
				return "", valueError("expected '}' before end of string")
			}
			text, err := f.field(s[i+1:end], depth)
			if err != nil {
				return "", err
			}
			b.WriteString(text)
			if err := f.r.room(len(text), "str.format"); err != nil {
				return "", err
			}
			i = end
		}
	}
	return b.String(), f.r.room(b.Len(), "str.format")
}

// fieldEnd finds the "}" that closes a replacement field.
func fieldEnd(s string, i int) int {
	for level := 1; i < len(s); i++ {
		switch s[i] {
		case '{':
			level++
		case '}':
			if level--; level == 0 {
				return i
			}
		}
	}
	return -1
}

func (f *braces) field(s string, depth int) (string, error) {
	name, rest := s, ""
	conv := byte(0)
	if i := strings.IndexAny(s, ":!"); i >= 0 {
		name, rest = s[:i], s[i:]
	}
	if strings.HasPrefix(rest, "!") {
		if len(rest) < 2 || (len(rest) > 2 && rest[2] != ':') {
			return "", valueError("expected ':' after conversion specifier")
		}
		conv, rest = rest[1], rest[2:]
	}
	v, err := f.lookup(name)
	if err != nil {
		return "", err
	}
	format, err := f.format(strings.TrimPrefix(rest, ":"), depth-1)
	if err != nil && rest != "" {
		return "", err
	}
	switch conv {
	case 0:
	case 's', 'r', 'a':
		s, err := f.r.str(v)
		if conv != 's' {
			s, err = f.r.repr(v)
		}
		if err != nil {
			return "", err
		}
		v = String(s)
	default:
		return "", valueError("unknown conversion specifier '%c'", conv)
	}
	return f.one(v, format)
}

func (f *braces) lookup(path string) (Value, error) {
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	v, err := f.base(path[:end])
	for path = path[end:]; err == nil && path != ""; {
		if path[0] == '.' {
			n := strings.IndexAny(path[1:], ".[") + 1
			if n == 0 {
				n = len(path)
			}
			if n == 1 {
				return v, valueError("Empty attribute in format string")
			}
			v, err = f.r.attr(v, path[1:n])
			path = path[n:]
			continue
		}
		if path[0] != '[' {
			return v, valueError("Only '.' or '[' may follow ']' in format field specifier")
		}
		n := strings.IndexByte(path, ']')
		if n < 0 {
			return v, valueError("Missing ']' in format string")
		}
		if n == 1 {
			return v, valueError("Empty attribute in format string")
		}
		key := String(path[1:n])
		if i, aerr := strconv.Atoi(path[1:n]); aerr == nil {
			key = Int(int64(i))
		}
		v, err = f.r.item(v, key)
		path = path[n+1:]
	}
	return v, err
}

func (f *braces) base(name string) (Value, error) {
	i, err := strconv.Atoi(name)
	switch {
	case name == "":
		if f.manual {
			return Value{}, valueError("cannot switch from manual field specification to automatic field numbering")
		}
		i = f.auto
		f.auto++
	case err == nil:
		if f.auto > 0 {
			return Value{}, valueError("cannot switch from automatic field numbering to manual field specification")
		}
		f.manual = true
	default:
		if f.dict != nil {
			if v, ok := f.dict.Get(name); ok {
				return v, nil
			}
		}
		for _, k := range f.args.kw {
			if k.name == name {
				return k.val, nil
			}
		}
		return Value{}, errorf("KeyError", "'%s'", name)
	}
	if i < 0 || i >= len(f.args.pos) {
		return Value{}, errorf("IndexError", "replacement index %d out of range for positional args tuple", i)
	}
	return f.args.pos[i], nil
}

// one formats a value by a specification.
func (f *braces) one(v Value, format string) (string, error) {
	if format == "" || !(v.isStr() || isNumber(v)) {
		if format != "" {
			return "", typeError("unsupported format string passed to %s.__format__", v.typeName())
		}
		s, err := f.r.str(v)
		if err == nil && f.markup {
			s = escaped(v.like(s))
		}
		return s, err
	}
	sp, err := parseSpec(format)
	if err != nil {
		return "", err
	}
	if v.isStr() {
		return f.text(v, sp)
	}
	if v.k == kBool && sp.verb == 0 {
		v = Int(v.int())
	}
	if sp.align == 0 {
		sp.align = '>'
	}
	if isWhole(v) {
		switch sp.verb {
		case 0:
			sp.verb = 'd'
		case 'c':
			return f.r.fit(string(rune(v.int())), sp)
		}
		if sp.precision >= 0 && strings.IndexByte("dxXobn", sp.verb) >= 0 {
			return "", valueError("precision not allowed in integer format specifier")
		}
	}
	if strings.IndexByte("dxXobneEfFgG%\x00", sp.verb) < 0 || (v.k == kFloat && strings.IndexByte("dxXob", sp.verb) >= 0) {
		return "", valueError("unknown format code '%c' for object of type '%s'", sp.verb, v.typeName())
	}
	return f.r.formatNumber(v, sp, false)
}

func (f *braces) text(v Value, sp *spec) (string, error) {
	if sp.verb != 0 && sp.verb != 's' {
		return "", valueError("unknown format code '%c' for object of type 'str'", sp.verb)
	}
	if sp.align == '=' {
		return "", valueError("'=' alignment not allowed in string format specifier")
	}
	s := v.text()
	if f.markup {
		s = escaped(v)
	}
	if sp.precision >= 0 && sp.precision < runeLen(s) {
		s = runeSlice(s, 0, sp.precision)
	}
	return f.r.fit(s, sp)
}

// parseSpec reads [[fill]align][sign][#][0][width][grouping][.precision][type].
func parseSpec(s string) (*spec, error) {
	sp := &spec{fill: " ", precision: -1}
	whole := s
	if w := runeWidth(s); w < len(s) && strings.IndexByte("<>^=", s[w]) >= 0 {
		sp.fill, sp.align, s = s[:w], s[w], s[w+1:]
	} else if strings.IndexByte("<>^=", s[0]) >= 0 {
		sp.align, s = s[0], s[1:]
	}
	i := 0
	next := func(set string) byte {
		if i < len(s) && strings.IndexByte(set, s[i]) >= 0 {
			i++
			return s[i-1]
		}
		return 0
	}
	sp.sign = next("+- ")
	sp.alt = next("#") != 0
	if next("0") != 0 && sp.align == 0 {
		sp.fill, sp.align = "0", '='
	}
	sp.width = readDigits(s, &i)
	sp.group = next(",_")
	if next(".") != 0 {
		before := i
		if sp.precision = readDigits(s, &i); i == before {
			return nil, valueError("format specifier missing precision")
		}
	}
	if i < len(s) {
		sp.verb = s[i]
		i++
	}
	if i < len(s) {
		return nil, valueError("invalid format specifier '%s'", whole)
	}
	return sp, nil
}
