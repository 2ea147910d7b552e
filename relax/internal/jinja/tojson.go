package jinja

import (
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A jsonStyle is how json.dumps is asked to write.
type jsonStyle struct {
	item, key string
	indent    string // one level; used only where multi is set
	multi     bool
	ascii     bool
	sorted    bool
}

// filterToJSON is the tojson transformers sets up: json.dumps without HTML escapes.
func filterToJSON(r *run, v Value, a args) (Value, error) {
	st := jsonStyle{item: ", ", key: ": "}
	if len(a.pos) > 0 || len(a.kw) > 0 {
		if err := st.read(r, a); err != nil {
			return v, err
		}
	}
	b, err := r.appendJSON(make([]byte, 0, 256), v, &st, 0)
	if err != nil {
		return v, err
	}
	return ownString(b), r.room(len(b), "filter 'tojson'")
}

func (st *jsonStyle) read(r *run, a args) error {
	var p [4]Value
	if err := a.bind("tojson", p[:], "ensure_ascii", "indent", "separators", "sort_keys"); err != nil {
		return err
	}
	st.ascii, st.sorted = truth(p[0]), truth(p[3])
	switch indent := p[1]; indent.k {
	case kMissing, kNone:
	case kBool, kInt:
		st.multi, st.item = true, ","
		n := max(indent.int(), 0)
		if err := r.room(int(min(n, 1<<40)), "tojson indent"); err != nil {
			return err
		}
		st.indent = strings.Repeat(" ", int(n))
	case kString, kMarkup:
		st.multi, st.item, st.indent = true, ",", indent.text()
	default:
		return typeError("tojson: indent must be a number or a string, not %s", indent.typeName())
	}
	if p[2].k == kMissing || p[2].isNone() {
		return nil
	}
	sep, err := r.collect(p[2], "tojson separators")
	if err != nil {
		return err
	}
	if len(sep) != 2 || !sep[0].isStr() || !sep[1].isStr() {
		return typeError("tojson: separators must be a pair of strings")
	}
	st.item, st.key = sep[0].text(), sep[1].text()
	return nil
}

func (r *run) appendJSON(b []byte, v Value, st *jsonStyle, depth int) ([]byte, error) {
	if depth > maxValueDepth {
		return b, errTooDeep()
	}
	if len(b) > r.t.opts.MaxOutput {
		return b, r.limit("MaxOutput", r.t.opts.MaxOutput, "filter 'tojson'")
	}
	switch v.k {
	case kNone:
		return append(b, "null"...), nil
	case kBool:
		return strconv.AppendBool(b, v.n != 0), nil
	case kInt:
		return strconv.AppendInt(b, v.int(), 10), nil
	case kBig:
		return v.big().Append(b, 10), nil
	case kFloat:
		return appendJSONFloat(b, v.float()), nil
	case kString, kMarkup:
		return appendJSONString(b, v.text(), st.ascii), nil
	case kList, kTuple:
		return r.appendJSONList(b, v.items(), st, depth)
	case kDict:
		return r.appendJSONDict(b, v.dict(), st, depth)
	}
	return b, typeError("Object of type %s is not JSON serializable", v.typeName())
}

func appendJSONFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	return appendFloat(b, f)
}

func (st *jsonStyle) newline(b []byte, depth int) []byte {
	if !st.multi {
		return b
	}
	b = append(b, '\n')
	for ; depth > 0; depth-- {
		b = append(b, st.indent...)
	}
	return b
}

func (r *run) appendJSONList(b []byte, items []Value, st *jsonStyle, depth int) ([]byte, error) {
	if len(items) == 0 {
		return append(b, "[]"...), nil
	}
	b = append(b, '[')
	var err error
	for i, v := range items {
		if i > 0 {
			b = append(b, st.item...)
		}
		b = st.newline(b, depth+1)
		if b, err = r.appendJSON(b, v, st, depth+1); err != nil {
			return b, err
		}
	}
	return append(st.newline(b, depth), ']'), nil
}

func (r *run) appendJSONDict(b []byte, d *Dict, st *jsonStyle, depth int) ([]byte, error) {
	if len(d.ents) == 0 {
		return append(b, "{}"...), nil
	}
	ents := d.ents
	if st.sorted {
		var err error
		if ents, err = sortedEntries(ents); err != nil {
			return b, err
		}
	}
	b = append(b, '{')
	var err error
	for i := range ents {
		if i > 0 {
			b = append(b, st.item...)
		}
		b = st.newline(b, depth+1)
		if b, err = r.appendJSONKey(b, ents[i].key, st); err != nil {
			return b, err
		}
		b = append(b, st.key...)
		if b, err = r.appendJSON(b, ents[i].val, st, depth+1); err != nil {
			return b, err
		}
	}
	return append(st.newline(b, depth), '}'), nil
}

func sortedEntries(ents []entry) ([]entry, error) {
	out := append([]entry(nil), ents...)
	var fault error
	sort.SliceStable(out, func(i, j int) bool {
		less, err := ordered(opLt, out[i].key, out[j].key)
		if err != nil && fault == nil {
			fault = err
		}
		return less
	})
	return out, fault
}

func (r *run) appendJSONKey(b []byte, k Value, st *jsonStyle) ([]byte, error) {
	switch k.k {
	case kString, kMarkup:
		return appendJSONString(b, k.text(), st.ascii), nil
	case kNone, kBool, kInt, kBig, kFloat:
		b, err := r.appendJSON(append(b, '"'), k, st, 0)
		return append(b, '"'), err
	}
	return b, typeError("keys must be str, int, float, bool or None, not %s", k.typeName())
}

const hexDigits = "0123456789abcdef"

func appendU(b []byte, c rune) []byte {
	return append(b, '\\', 'u', hexDigits[c>>12&15], hexDigits[c>>8&15], hexDigits[c>>4&15], hexDigits[c&15])
}

func appendJSONString(b []byte, s string, ascii bool) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && (!ascii || c < 0x7f) {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		w := 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		default:
			var ch rune
			ch, w = utf8.DecodeRuneInString(s[i:])
			if ch >= 0x10000 {
				b = appendU(b, 0xd800+(ch-0x10000)>>10)
				ch = 0xdc00 + (ch-0x10000)&0x3ff
			}
			b = appendU(b, ch)
		}
		i += w
		start = i
	}
	return append(append(b, s[start:]...), '"')
}
