package canon

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// MaxDepth is how deep arrays and objects may be nested.
const MaxDepth = 200

// ParseValue reads one JSON value. Where an object repeats a key the last value wins and
// keeps the first one's place. It refuses what has no faithful value here: invalid UTF-8,
// lone surrogates, raw control characters in strings, NaN and infinities, numbers beyond a
// float64, nesting deeper than [MaxDepth]. Errors name the byte offset.
func ParseValue(raw []byte) (Value, error) { return parseText(string(raw), false) }

// ParseOwned is [ParseValue] without a copy: strings of the value may lie in raw, which must
// never change afterwards.
func ParseOwned(raw []byte) (Value, error) {
	return parseText(unsafe.String(unsafe.SliceData(raw), len(raw)), false)
}

// parseText reads one value; unique makes a repeated key an error.
func parseText(s string, unique bool) (Value, error) {
	p := parser{text: s, unique: unique}
	p.space()
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	p.space()
	if p.pos != len(s) {
		return Value{}, p.fail("unexpected text after the value")
	}
	return v, nil
}

// A parser walks over JSON text. Its own scanner instead of a library's because the text
// decides over the identity of a state: libraries repair bad UTF-8 and lone surrogates in
// silence, which would make two different requests equal.
type parser struct {
	text   string
	pos    int
	unique bool
}

func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("invalid JSON at byte %d: %s", p.pos, fmt.Sprintf(format, args...))
}

func (p *parser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\n', '\r', '\t':
			p.pos++
		default:
			return
		}
	}
}

// peek is the next byte, 0 at the end.
func (p *parser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func (p *parser) value(depth int) (Value, error) {
	if depth > MaxDepth {
		return Value{}, p.fail("nested deeper than %d levels", MaxDepth)
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, err := p.string()
		return Value{kind: String, text: s}, err
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	case c == 't':
		return Value{kind: Bool, truth: true}, p.word("true")
	case c == 'f':
		return Value{kind: Bool}, p.word("false")
	case c == 'n':
		return Value{}, p.word("null")
	case p.pos >= len(p.text):
		return Value{}, p.fail("the text ends where a value should be")
	default:
		return Value{}, p.fail("expected a value")
	}
}

func (p *parser) word(w string) error {
	if !strings.HasPrefix(p.text[p.pos:], w) {
		return p.fail("expected %q", w)
	}
	p.pos += len(w)
	return nil
}

func (p *parser) array(depth int) (Value, error) {
	p.pos++
	elems := []Value{}
	p.space()
	if p.peek() == ']' {
		p.pos++
		return Value{kind: Array, elems: elems}, nil
	}
	for {
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		elems = append(elems, v)
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
		case ']':
			p.pos++
			return Value{kind: Array, elems: elems}, nil
		default:
			return Value{}, p.fail("expected ',' or ']'")
		}
	}
}

func (p *parser) object(depth int) (Value, error) {
	p.pos++
	o := objectBuilder{unique: p.unique}
	p.space()
	if p.peek() == '}' {
		p.pos++
		return o.value(), nil
	}
	for {
		p.space()
		if p.peek() != '"' {
			return Value{}, p.fail("expected a key")
		}
		key, err := p.string()
		if err != nil {
			return Value{}, err
		}
		p.space()
		if p.peek() != ':' {
			return Value{}, p.fail("expected ':'")
		}
		p.pos++
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		if !o.add(key, v) {
			return Value{}, p.fail("the key %q is repeated", key)
		}
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
		case '}':
			p.pos++
			return o.value(), nil
		default:
			return Value{}, p.fail("expected ',' or '}'")
		}
	}
}

// indexFrom is the number of members from which keys are looked up in a map, so that an
// object of many keys is not read in quadratic time.
const indexFrom = 16

// An objectBuilder collects members and settles repeated keys.
type objectBuilder struct {
	members []Member
	index   map[string]int
	unique  bool
}

// add appends a member or replaces the one of the same key. It reports false for a repeated
// key if keys must be unique.
func (o *objectBuilder) add(key string, v Value) bool {
	if at := o.find(key); at >= 0 {
		o.members[at].Value = v
		return !o.unique
	}
	if o.index != nil {
		o.index[key] = len(o.members)
	}
	o.members = append(o.members, Member{key, v})
	return true
}

func (o *objectBuilder) find(key string) int {
	if len(o.members) < indexFrom {
		for i := range o.members {
			if o.members[i].Key == key {
				return i
			}
		}
		return -1
	}
	if o.index == nil {
		o.index = make(map[string]int, 2*len(o.members))
		for i := range o.members {
			o.index[o.members[i].Key] = i
		}
	}
	if at, ok := o.index[key]; ok {
		return at
	}
	return -1
}

func (o *objectBuilder) value() Value { return Value{kind: Object, members: o.members} }

func (p *parser) number() (Value, error) {
	start := p.pos
	if p.peek() == '-' {
		p.pos++
	}
	switch c := p.peek(); {
	case c == '0':
		p.pos++
	case c >= '1' && c <= '9':
		p.digits()
	default:
		return Value{}, p.fail("expected a digit")
	}
	isInt := true
	if p.peek() == '.' {
		isInt = false
		p.pos++
		if p.digits() == 0 {
			return Value{}, p.fail("expected a digit after the point")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		isInt = false
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if p.digits() == 0 {
			return Value{}, p.fail("expected a digit in the exponent")
		}
	}
	literal := p.text[start:p.pos]
	if !isInt {
		if _, err := strconv.ParseFloat(literal, 64); err != nil {
			p.pos = start
			return Value{}, p.fail("the number %s does not fit a float64", Shorten(literal, 40))
		}
	}
	return Value{kind: Number, truth: isInt, text: literal}, nil
}

func (p *parser) digits() int {
	start := p.pos
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.pos++
	}
	return p.pos - start
}

// string reads a string literal. Text without escapes is not copied.
func (p *parser) string() (string, error) {
	start := p.pos + 1
	ascii := true
	for i := start; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '"':
			s := p.text[start:i]
			if !ascii && !utf8.ValidString(s) {
				p.pos = start
				return "", p.fail("the string is not valid UTF-8")
			}
			p.pos = i + 1
			return s, nil
		case c == '\\':
			return p.escaped(start, i)
		case c < 0x20:
			p.pos = i
			return "", p.fail("raw control character 0x%02x in a string", c)
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	p.pos = len(p.text)
	return "", p.fail("the string is not closed")
}

// escaped reads the rest of a string whose first escape is at i. No escape is shorter than
// what it means, so the literal's length is room enough.
func (p *parser) escaped(start, i int) (string, error) {
	out := make([]byte, 0, p.closing(i)-start)
	run := start
	for i < len(p.text) {
		c := p.text[i]
		switch {
		case c == '"':
			out = append(out, p.text[run:i]...)
			if !utf8.Valid(out) {
				p.pos = start
				return "", p.fail("the string is not valid UTF-8")
			}
			p.pos = i + 1
			return unsafe.String(unsafe.SliceData(out), len(out)), nil
		case c < 0x20:
			p.pos = i
			return "", p.fail("raw control character 0x%02x in a string", c)
		case c != '\\':
			i++
			continue
		}
		out = append(out, p.text[run:i]...)
		p.pos = i
		var err error
		if out, err = p.escape(out); err != nil {
			return "", err
		}
		i, run = p.pos, p.pos
	}
	p.pos = len(p.text)
	return "", p.fail("the string is not closed")
}

// closing is the index of the quote that closes a string, seen from inside it, or the text's
// end.
func (p *parser) closing(i int) int {
	for i < len(p.text) && p.text[i] != '"' {
		if p.text[i] == '\\' {
			i++
		}
		i++
	}
	return min(i, len(p.text))
}

// escape decodes one escape sequence at pos.
func (p *parser) escape(out []byte) ([]byte, error) {
	if p.pos+1 >= len(p.text) {
		return nil, p.fail("the string is not closed")
	}
	c := p.text[p.pos+1]
	if c == 'u' {
		return p.unicodeEscape(out)
	}
	at := strings.IndexByte(`"\/bfnrt`, c)
	if at < 0 {
		return nil, p.fail("unknown escape \\%c", c)
	}
	p.pos += 2
	return append(out, "\"\\/\b\f\n\r\t"[at]), nil
}

func (p *parser) unicodeEscape(out []byte) ([]byte, error) {
	r, ok := hex4(p.text, p.pos+2)
	if !ok {
		return nil, p.fail("expected four hex digits after \\u")
	}
	if !utf16.IsSurrogate(r) {
		p.pos += 6
		return utf8.AppendRune(out, r), nil
	}
	low, ok := rune(0), false
	if strings.HasPrefix(p.text[p.pos+6:], `\u`) {
		low, ok = hex4(p.text, p.pos+8)
	}
	pair := utf16.DecodeRune(r, low)
	if !ok || pair == utf8.RuneError {
		return nil, p.fail("lone surrogate \\u%04x", r)
	}
	p.pos += 12
	return utf8.AppendRune(out, pair), nil
}

func hex4(s string, at int) (rune, bool) {
	if at+4 > len(s) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s[at : at+4]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// Shorten cuts s to at most about limit bytes for an error text, at a rune's edge, and marks
// the cut.
func Shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}
