package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// maxRange is the sandbox's bound on range().
const maxRange = 100000

var globals = map[string]Value{}

func init() {
	for name, fn := range map[string]func(r *run, a args) (Value, error){
		"range": newRange, "namespace": newNamespace, "dict": newDict, "cycler": newCycler,
		"joiner": newJoiner, "raise_exception": raise, "strftime_now": strftimeNow,
	} {
		globals[name] = function(name, fn)
	}
}

func newRange(r *run, a args) (Value, error) {
	if len(a.kw) > 0 {
		return Value{}, typeError("range() takes no keyword arguments")
	}
	if len(a.pos) < 1 || len(a.pos) > 3 {
		return Value{}, typeError("range expected 1 to 3 arguments, got %d", len(a.pos))
	}
	var n [3]int64
	for i, v := range a.pos {
		if !v.isInt() {
			if v.k == kUndefined {
				return Value{}, undefinedError(v)
			}
			return Value{}, typeError("'%s' object cannot be interpreted as an integer", v.typeName())
		}
		n[i] = v.int()
	}
	g := &rangeObj{start: n[0], stop: n[1], step: 1}
	switch len(a.pos) {
	case 1:
		g.start, g.stop = 0, n[0]
	case 3:
		g.step = n[2]
	}
	if g.step == 0 {
		return Value{}, valueError("range() arg 3 must not be zero")
	}
	if l := g.len(); l > maxRange || l < 0 {
		return Value{}, errorf("OverflowError", "range too big: the sandbox allows at most %d items", maxRange)
	}
	return Value{k: kRange, p: unsafe.Pointer(g)}, nil
}

// newDict is dict(): a mapping or pairs, then keywords.
func newDict(r *run, a args) (Value, error) {
	d := NewDict(len(a.kw))
	if len(a.pos) > 1 {
		return Value{}, typeError("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if len(a.pos) == 1 {
		if err := fillDict(r, d, a.pos[0]); err != nil {
			return Value{}, err
		}
	}
	for _, k := range a.kw {
		d.Set(k.name, k.val)
	}
	return FromDict(d), nil
}

func fillDict(r *run, d *Dict, v Value) error {
	if v.k == kDict {
		for _, e := range v.dict().ents {
			if err := d.put(e.key, e.val); err != nil {
				return err
			}
		}
		return nil
	}
	items, err := r.collect(v, "dict")
	if err != nil {
		return err
	}
	for i, it := range items {
		pair, err := r.collect(it, "dict")
		if err != nil {
			return err
		}
		if len(pair) != 2 {
			return valueError("dictionary update sequence element #%d has length %d; 2 is required", i, len(pair))
		}
		if err := d.put(pair[0], pair[1]); err != nil {
			return err
		}
	}
	return nil
}

func newNamespace(r *run, a args) (Value, error) {
	v, err := newDict(r, a)
	v.k = kNamespace
	return v, err
}

type cyclerObj struct {
	items []Value
	pos   int
}

func newCycler(_ *run, a args) (Value, error) {
	if len(a.pos) == 0 {
		return Value{}, errorf("RuntimeError", "at least one item has to be provided")
	}
	return Value{k: kCycler, p: unsafe.Pointer(&cyclerObj{items: append([]Value(nil), a.pos...)})}, nil
}

func (c *cyclerObj) attr(self Value, name string) (Value, bool) {
	switch name {
	case "current":
		return c.items[c.pos], true
	case "next":
		return bound(self, name, func(_ *run, self Value, _ args) (Value, error) {
			c := self.cycler()
			v := c.items[c.pos]
			c.pos = (c.pos + 1) % len(c.items)
			return v, nil
		}), true
	case "reset":
		return bound(self, name, func(_ *run, self Value, _ args) (Value, error) {
			self.cycler().pos = 0
			return None(), nil
		}), true
	}
	return Value{}, false
}

type joinerObj struct {
	sep  Value
	used bool
}

func newJoiner(_ *run, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("joiner", p[:], "sep"); err != nil {
		return Value{}, err
	}
	j := &joinerObj{sep: p[0]}
	if j.sep.k == kMissing {
		j.sep = String(", ")
	}
	return Value{k: kJoiner, p: unsafe.Pointer(j)}, nil
}

func (j *joinerObj) next() Value {
	if !j.used {
		j.used = true
		return String("")
	}
	return j.sep
}

func raise(r *run, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("raise_exception", p[:], "message"); err != nil {
		return Value{}, err
	}
	if p[0].k == kMissing {
		return Value{}, typeError("raise_exception() missing 1 required positional argument: 'message'")
	}
	msg, err := r.str(p[0])
	if err != nil {
		return Value{}, err
	}
	return Value{}, &RaisedError{Message: msg}
}

func strftimeNow(r *run, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("strftime_now", p[:], "format"); err != nil {
		return Value{}, err
	}
	if !p[0].isStr() {
		return Value{}, typeError("strftime() argument 1 must be str, not %s", p[0].typeName())
	}
	if r.t.opts.Now == nil {
		return Value{}, errorf("RuntimeError", "strftime_now needs a clock: set Options.Now")
	}
	return String(strftime(r.t.opts.Now(), p[0].text())), nil
}

// strftime formats t by C's directives in the C locale; an unknown directive stays as it is.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 >= len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		flag := byte(0)
		if strings.IndexByte("-_0^#", format[i]) >= 0 && i+1 < len(format) {
			flag = format[i]
			i++
		}
		s, ok := directive(t, format[i])
		if !ok {
			s = format[i-1 : i+1]
		}
		b.WriteString(flagged(s, flag))
	}
	return b.String()
}

func flagged(s string, flag byte) string {
	switch flag {
	case '-':
		if t := strings.TrimLeft(s, "0 "); t != "" {
			return t
		}
		return "0"
	case '_':
		t := strings.TrimLeft(s[:len(s)-1], "0")
		return strings.Repeat(" ", len(s)-1-len(t)) + t + s[len(s)-1:]
	case '0':
		return strings.ReplaceAll(s, " ", "0")
	case '^', '#':
		return strings.ToUpper(s)
	}
	return s
}

// layouts are the directives that Go's own layouts can express.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'H': "15",
	'I': "03", 'm': "01", 'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'j': "002", 'D': "01/02/06",
	'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'r': "03:04:05 PM", 'c': "Mon Jan _2 15:04:05 2006",
	'x': "01/02/06", 'X': "15:04:05", 'Y': "2006",
}

func directive(t time.Time, c byte) (string, bool) {
	if l, ok := layouts[c]; ok {
		return t.Format(l), true
	}
	year, week := t.ISOWeek()
	monday := (int(t.Weekday()) + 6) % 7
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'w':
		return strconv.Itoa(int(t.Weekday())), true
	case 'u':
		return strconv.Itoa(monday + 1), true
	case 's':
		return strconv.FormatInt(t.Unix(), 10), true
	case 'G':
		return strconv.Itoa(year), true
	case 'V':
		return fmt.Sprintf("%02d", week), true
	case 'C':
		return fmt.Sprintf("%02d", t.Year()/100), true
	case 'U':
		return fmt.Sprintf("%02d", (t.YearDay()+6-int(t.Weekday()))/7), true
	case 'W':
		return fmt.Sprintf("%02d", (t.YearDay()+6-monday)/7), true
	case 'k', 'l':
		h := t.Hour()
		if c == 'l' {
			h = (h+11)%12 + 1
		}
		return fmt.Sprintf("%2d", h), true
	case 'z', 'Z':
		return "", true // transformers uses a naive datetime
	}
	return "", false
}
