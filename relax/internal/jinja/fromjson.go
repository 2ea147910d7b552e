package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// FromJSON reads one JSON document as Python's json.loads does: the order of keys is kept
// (of equal keys the last value wins), integers of any size stay integers, 1.0 stays a float,
// NaN and Infinity are known. An error names the byte at fault.
func FromJSON(raw []byte) (Value, error) {
	d := &jsonReader{s: string(raw)}
	v, err := d.value(0)
	if err != nil {
		return Value{}, err
	}
	d.space()
	if d.i < len(d.s) {
		return Value{}, d.fail("extra data after the document")
	}
	return v, nil
}

type jsonReader struct {
	s string
	i int
}

func (d *jsonReader) fail(msg string) error { return fmt.Errorf("json: byte %d: %s", d.i, msg) }

func (d *jsonReader) space() {
	for d.i < len(d.s) && (d.s[d.i] == ' ' || d.s[d.i] == '\n' || d.s[d.i] == '\t' || d.s[d.i] == '\r') {
		d.i++
	}
}

func (d *jsonReader) peek() byte {
	d.space()
	if d.i < len(d.s) {
		return d.s[d.i]
	}
	return 0
}

var jsonWords = []struct {
	word string
	val  Value
}{
	{"null", None()}, {"true", Bool(true)}, {"false", Bool(false)}, {"NaN", Float(math.NaN())},
	{"Infinity", Float(math.Inf(1))}, {"-Infinity", Float(math.Inf(-1))},
}

func (d *jsonReader) value(depth int) (Value, error) {
	if depth > maxValueDepth {
		return Value{}, d.fail("nested too deep")
	}
	switch c := d.peek(); c {
	case '{':
		return d.object(depth)
	case '[':
		return d.array(depth)
	case '"':
		s, err := d.str()
		return String(s), err
	}
	for _, w := range jsonWords {
		if strings.HasPrefix(d.s[d.i:], w.word) {
			d.i += len(w.word)
			return w.val, nil
		}
	}
	return d.number()
}

func (d *jsonReader) object(depth int) (Value, error) {
	d.i++
	obj := NewDict(4)
	if d.peek() == '}' {
		d.i++
		return FromDict(obj), nil
	}
	for {
		if d.peek() != '"' {
			return Value{}, d.fail("expected a key in double quotes")
		}
		k, err := d.str()
		if err != nil {
			return Value{}, err
		}
		if d.peek() != ':' {
			return Value{}, d.fail("expected ':'")
		}
		d.i++
		v, err := d.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		obj.Set(k, v)
		switch d.peek() {
		case ',':
			d.i++
		case '}':
			d.i++
			return FromDict(obj), nil
		default:
			return Value{}, d.fail("expected ',' or '}'")
		}
	}
}

func (d *jsonReader) array(depth int) (Value, error) {
	d.i++
	var items []Value
	if d.peek() == ']' {
		d.i++
		return List(nil), nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		items = append(items, v)
		switch d.peek() {
		case ',':
			d.i++
		case ']':
			d.i++
			return List(items), nil
		default:
			return Value{}, d.fail("expected ',' or ']'")
		}
	}
}

func (d *jsonReader) number() (Value, error) {
	start, float := d.i, false
	if d.i < len(d.s) && d.s[d.i] == '-' {
		d.i++
	}
	first := d.i
	d.digits()
	if d.i == first || (d.s[first] == '0' && d.i > first+1) {
		d.i = start
		return Value{}, d.fail("expected a value")
	}
	if d.i+1 < len(d.s) && d.s[d.i] == '.' && isDigit(d.s[d.i+1]) {
		d.i++
		d.digits()
		float = true
	}
	if e := exponent(d.s, d.i); e > d.i {
		d.i, float = e, true
	}
	text := d.s[start:d.i]
	if float {
		f, _ := strconv.ParseFloat(text, 64) // out of range gives an infinity, as in Python
		return Float(f), nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Int(n), nil
	}
	if len(text) > 4300 {
		return Value{}, d.fail("integer of more than 4300 digits")
	}
	b, _ := new(big.Int).SetString(text, 10)
	return BigInt(b), nil
}

func (d *jsonReader) digits() {
	for d.i < len(d.s) && isDigit(d.s[d.i]) {
		d.i++
	}
}

func (d *jsonReader) str() (string, error) {
	d.i++
	start := d.i
	for d.i < len(d.s) {
		switch c := d.s[d.i]; {
		case c == '"':
			d.i++
			return strings.ToValidUTF8(d.s[start:d.i-1], "\uFFFD"), nil
		case c == '\\':
			return d.escaped(start)
		case c < ' ':
			return "", d.fail("control character in a string")
		}
		d.i++
	}
	return "", d.fail("string is not closed")
}

func (d *jsonReader) escaped(start int) (string, error) {
	b := []byte(d.s[start:d.i])
	for d.i < len(d.s) {
		c := d.s[d.i]
		d.i++
		switch {
		case c == '"':
			return strings.ToValidUTF8(string(b), "\uFFFD"), nil
		case c < ' ':
			return "", d.fail("control character in a string")
		case c != '\\':
			b = append(b, c)
			continue
		}
		if d.i >= len(d.s) {
			break
		}
		e := d.s[d.i]
		d.i++
		if j := strings.IndexByte(`"\/bfnrt`, e); j >= 0 {
			b = append(b, "\"\\/\b\f\n\r\t"[j])
			continue
		}
		if e != 'u' {
			return "", d.fail("invalid escape")
		}
		ch, err := d.hex4()
		if err != nil {
			return "", err
		}
		if utf16.IsSurrogate(ch) && strings.HasPrefix(d.s[d.i:], `\u`) {
			back := d.i
			d.i += 2
			low, err := d.hex4()
			if err != nil {
				return "", err
			}
			if pair := utf16.DecodeRune(ch, low); pair != utf8.RuneError {
				ch = pair
			} else {
				d.i = back
			}
		}
		b = utf8.AppendRune(b, ch)
	}
	return "", d.fail("string is not closed")
}

func (d *jsonReader) hex4() (rune, error) {
	if d.i+4 > len(d.s) {
		return 0, d.fail("escape is cut off")
	}
	n, err := strconv.ParseUint(d.s[d.i:d.i+4], 16, 32)
	if err != nil {
		return 0, d.fail("invalid \\u escape")
	}
	d.i += 4
	return rune(n), nil
}

// filterFromJSON is json.loads as a filter: not of transformers, but community templates use it.
func filterFromJSON(_ *run, v Value, a args) (Value, error) {
	if !v.isStr() {
		return v, typeError("the JSON object must be str, not %s", v.typeName())
	}
	w, err := FromJSON([]byte(v.text()))
	if err != nil {
		return v, valueError("%v", err)
	}
	return w, a.bind("from_json", nil)
}
