package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// str is Python's str(v).
func (r *run) str(v Value) (string, error) {
	switch v.k {
	case kString, kMarkup:
		return v.text(), nil
	case kNone:
		return "None", nil
	case kUndefined:
		return "", nil
	case kInt:
		return strconv.FormatInt(v.int(), 10), nil
	}
	return r.repr(v)
}

// repr is Python's repr(v).
func (r *run) repr(v Value) (string, error) {
	b, err := r.appendRepr(make([]byte, 0, 64), v, 0)
	if err != nil {
		return "", err
	}
	return string(b), r.room(len(b), "repr")
}

func (r *run) appendRepr(b []byte, v Value, depth int) ([]byte, error) {
	if depth > maxValueDepth {
		return b, errTooDeep()
	}
	if len(b) > r.t.opts.MaxOutput {
		return b, r.limit("MaxOutput", r.t.opts.MaxOutput, "repr")
	}
	switch v.k {
	case kNone:
		return append(b, "None"...), nil
	case kBool:
		if v.n != 0 {
			return append(b, "True"...), nil
		}
		return append(b, "False"...), nil
	case kInt:
		return strconv.AppendInt(b, v.int(), 10), nil
	case kBig:
		return v.big().Append(b, 10), nil
	case kFloat:
		return appendFloat(b, v.float()), nil
	case kString:
		return appendStrRepr(b, v.text()), nil
	case kMarkup:
		return append(appendStrRepr(append(b, "Markup("...), v.text()), ')'), nil
	case kUndefined:
		return append(b, "Undefined"...), nil
	case kList:
		return r.appendItems(b, v.items(), '[', ']', depth)
	case kTuple:
		if v.n == 1 {
			b, err := r.appendRepr(append(b, '('), v.items()[0], depth+1)
			return append(b, ",)"...), err
		}
		return r.appendItems(b, v.items(), '(', ')', depth)
	case kDict:
		return r.appendDictRepr(b, v.dict(), depth)
	case kNamespace:
		b, err := r.appendDictRepr(append(b, "<Namespace "...), v.dict(), depth)
		return append(b, '>'), err
	case kView:
		b = append(append(b, v.typeName()...), '(')
		b, err := r.appendItems(b, viewList(v), '[', ']', depth)
		return append(b, ')'), err
	}
	return append(b, objectRepr(v)...), nil
}

// objectRepr is the text of objects that have no literal. Addresses are not shown.
func objectRepr(v Value) string {
	switch v.k {
	case kRange:
		g := v.rng()
		if g.step == 1 {
			return fmt.Sprintf("range(%d, %d)", g.start, g.stop)
		}
		return fmt.Sprintf("range(%d, %d, %d)", g.start, g.stop, g.step)
	case kMacro:
		return "<Macro '" + v.macro().decl.name + "'>"
	case kLoop:
		l := v.loop()
		n, _ := l.length()
		return fmt.Sprintf("<LoopContext %d/%d>", l.count, n)
	case kGen:
		return "<generator object " + v.gen().name + " at 0x0>"
	case kFunc:
		return "<function " + v.fn().name + " at 0x0>"
	case kBound:
		b := v.bound()
		return "<built-in method " + b.name + " of " + b.self.typeName() + " object at 0x0>"
	}
	return "<" + v.typeName() + " object at 0x0>"
}

func (r *run) appendItems(b []byte, items []Value, left, right byte, depth int) ([]byte, error) {
	b = append(b, left)
	var err error
	for i, v := range items {
		if i > 0 {
			b = append(b, ", "...)
		}
		if b, err = r.appendRepr(b, v, depth+1); err != nil {
			return b, err
		}
	}
	return append(b, right), nil
}

func (r *run) appendDictRepr(b []byte, d *Dict, depth int) ([]byte, error) {
	b = append(b, '{')
	var err error
	for i := range d.ents {
		if i > 0 {
			b = append(b, ", "...)
		}
		if b, err = r.appendRepr(b, d.ents[i].key, depth+1); err != nil {
			return b, err
		}
		if b, err = r.appendRepr(append(b, ": "...), d.ents[i].val, depth+1); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

// appendFloat is Python's repr of a float: the shortest digits, an exponent from 1e16 on and below 1e-4.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	n := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if strings.IndexByte(string(b[n:]), '.') < 0 {
		b = append(b, ".0"...)
	}
	return b
}

// appendStrRepr quotes s as Python does: single quotes unless only those occur inside.
func appendStrRepr(b []byte, s string) []byte {
	q := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		q = '"'
	}
	b = append(b, q)
	for i, c := range s {
		switch {
		case c == rune(q) || c == '\\':
			b = append(b, '\\', byte(c))
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c >= ' ' && c < 0x7f:
			b = append(b, byte(c))
		case c == utf8.RuneError || printable(c):
			b = append(b, s[i:i+runeWidth(s[i:])]...)
		case c < 0x100:
			b = fmt.Appendf(b, `\x%02x`, c)
		case c < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = fmt.Appendf(b, `\U%08x`, c)
		}
	}
	return append(b, q)
}

// printable is Python's str.isprintable for one character: no controls, no separators but the space.
func printable(c rune) bool {
	return c == ' ' || unicode.IsPrint(c)
}

func runeWidth(s string) int {
	if s[0] < utf8.RuneSelf {
		return 1
	}
	_, w := utf8.DecodeRuneInString(s)
	return w
}

func runeLen(s string) int { return utf8.RuneCountInString(s) }

// runeSlice is s[i:j] in characters, with 0 <= i <= j <= len.
func runeSlice(s string, i, j int) string {
	start := runeOffset(s, i)
	return s[start : start+runeOffset(s[start:], j-i)]
}

// runeOffset is the byte position of character n.
func runeOffset(s string, n int) int {
	pos := 0
	for ; n > 0 && pos < len(s); n-- {
		if s[pos] < utf8.RuneSelf {
			pos++
		} else {
			pos += runeWidth(s[pos:])
		}
	}
	return pos
}
