package parsers

import (
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A pyParser reads Python literals, what ast.literal_eval takes: strings, numbers, True,
// False, None, lists, tuples (as lists) and dicts. Sets, bytes and complex numbers have no
// JSON value and are refused.
type pyParser struct {
	text string
	pos  int
	// jsonNames also takes true, false and null.
	jsonNames bool
}

var errNotLiteral = errors.New("not a Python literal")

// pyLiteral reads text as one Python literal.
func pyLiteral(text string) (canon.Value, error) {
	p := pyParser{text: pyStrip(text)}
	v, err := p.value(0)
	if err != nil {
		return v, err
	}
	if p.space(); p.pos < len(p.text) {
		return canon.Value{}, errNotLiteral
	}
	return v, nil
}

func (p *pyParser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\n', '\r', '\t', '\f':
			p.pos++
		default:
			return
		}
	}
}

func (p *pyParser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

// eat skips white space and then c if it is next.
func (p *pyParser) eat(c byte) bool {
	p.space()
	if p.peek() != c || p.pos == len(p.text) {
		return false
	}
	p.pos++
	return true
}

func (p *pyParser) value(depth int) (canon.Value, error) {
	if depth > canon.MaxDepth {
		return canon.Value{}, errNotLiteral
	}
	p.space()
	switch c := p.peek(); {
	case c == '"' || c == '\'':
		s, err := p.strings()
		return textValue(s), err
	case c == '[':
		p.pos++
		elems, _, err := p.list(']', depth)
		return canon.ArrayOf(elems...), err
	case c == '(':
		return p.tuple(depth)
	case c == '{':
		return p.dict(depth)
	case c == '-' || c == '+' || c == '.' || c >= '0' && c <= '9':
		return p.number()
	default:
		return p.word()
	}
}

func (p *pyParser) word() (canon.Value, error) {
	name := p.name()
	switch {
	case name == "True" || p.jsonNames && name == "true":
		return canon.BoolValue(true), nil
	case name == "False" || p.jsonNames && name == "false":
		return canon.BoolValue(false), nil
	case name == "None" || p.jsonNames && name == "null":
		return canon.Value{}, nil
	}
	return canon.Value{}, errNotLiteral
}

// name reads an identifier, "" if there is none.
func (p *pyParser) name() string {
	start := p.pos
	for p.pos < len(p.text) {
		r, n := utf8.DecodeRuneInString(p.text[p.pos:])
		if r != '_' && !unicode.IsLetter(r) && (p.pos == start || !unicode.IsDigit(r)) {
			break
		}
		p.pos += n
	}
	return p.text[start:p.pos]
}

// list reads elements up to the closing bracket; comma tells whether one stood after the
// last or between them.
func (p *pyParser) list(closing byte, depth int) (elems []canon.Value, comma bool, err error) {
	elems = []canon.Value{}
	for {
		if p.eat(closing) {
			return elems, comma, nil
		}
		if len(elems) > 0 && !comma {
			return nil, false, errNotLiteral
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, false, err
		}
		elems = append(elems, v)
		comma = p.eat(',')
		if !comma {
			if !p.eat(closing) {
				return nil, false, errNotLiteral
			}
			return elems, len(elems) > 1, nil
		}
	}
}

func (p *pyParser) tuple(depth int) (canon.Value, error) {
	p.pos++
	elems, comma, err := p.list(')', depth)
	if err != nil {
		return canon.Value{}, err
	}
	if len(elems) == 1 && !comma {
		return elems[0], nil
	}
	return canon.ArrayOf(elems...), nil
}

func (p *pyParser) dict(depth int) (canon.Value, error) {
	p.pos++
	var members argList
	for {
		if p.eat('}') {
			return members.value(), nil
		}
		k, err := p.value(depth + 1)
		if err != nil {
			return canon.Value{}, err
		}
		key, ok := pyKey(k)
		if !ok || !p.eat(':') {
			return canon.Value{}, errNotLiteral
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return canon.Value{}, err
		}
		members.set(key, v)
		if !p.eat(',') {
			if !p.eat('}') {
				return canon.Value{}, errNotLiteral
			}
			return members.value(), nil
		}
	}
}

// pyKey is the object key json.dumps makes of a dict key.
func pyKey(v canon.Value) (string, bool) {
	switch v.Kind() {
	case canon.String:
		return v.Str(), true
	case canon.Array, canon.Object:
		return "", false
	default:
		return string(v.AppendCompact(nil)), true
	}
}

// number reads an int in any base or a float, with one sign.
func (p *pyParser) number() (canon.Value, error) {
	sign := ""
	if c := p.peek(); c == '-' || c == '+' {
		if c == '-' {
			sign = "-"
		}
		p.pos++
		p.space()
	}
	start := p.pos
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		exponent := (c == '+' || c == '-') && p.pos > start && p.text[p.pos-1]|0x20 == 'e' && !strings.HasPrefix(strings.ToLower(p.text[start:min(start+2, len(p.text))]), "0x")
		if !exponent && c != '.' && c != '_' && !isAlnum(c) {
			break
		}
		p.pos++
	}
	v, ok := pyNumber(sign, p.text[start:p.pos])
	if !ok {
		return canon.Value{}, errNotLiteral
	}
	return v, nil
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// pyNumber makes a number of an unsigned Python literal.
func pyNumber(sign, literal string) (canon.Value, bool) {
	if v, ok := pyInt(sign + literal); ok {
		if len(literal) > 1 && literal[0] == '0' && strings.Trim(literal, "0_") != "" {
			return canon.Value{}, false // 007 is no literal
		}
		return v, true
	}
	if len(literal) > 2 && literal[0] == '0' && strings.IndexByte("xXoObB", literal[1]) >= 0 {
		n, err := strconv.ParseInt(sign+literal, 0, 64)
		return canon.IntValue(n), err == nil
	}
	return pyFloat(sign + literal)
}

// pyInt is Python's int(text) for decimal text: white space around, a sign, underscores
// between digits.
func pyInt(text string) (canon.Value, bool) {
	digits := pyStrip(text)
	sign := ""
	if digits != "" && (digits[0] == '-' || digits[0] == '+') {
		if digits[0] == '-' {
			sign = "-"
		}
		digits = digits[1:]
	}
	if !underscored(digits) {
		return canon.Value{}, false
	}
	digits = strings.TrimLeft(strings.ReplaceAll(digits, "_", ""), "0")
	if digits == "" {
		return canon.IntValue(0), true
	}
	if strings.Trim(digits, "0123456789") != "" || strings.ContainsFunc(digits, func(r rune) bool { return r < '0' || r > '9' }) {
		return canon.Value{}, false
	}
	v, err := canon.ParseValue([]byte(sign + digits))
	return v, err == nil
}

// underscored reports whether s is not empty and its underscores stand between other
// characters.
func underscored(s string) bool {
	return s != "" && s[0] != '_' && s[len(s)-1] != '_' && !strings.Contains(s, "__")
}

// pyFloat is Python's float(text) for finite numbers.
func pyFloat(text string) (canon.Value, bool) {
	s := pyStrip(text)
	if !underscored(s) || strings.ContainsAny(s, "xXpPnN") {
		return canon.Value{}, false // Go also reads hex floats; inf and nan are no JSON
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil {
		return canon.Value{}, false
	}
	return canon.FloatValue(f), true
}

// strings reads one string literal or several in a row, which Python joins.
func (p *pyParser) strings() (string, error) {
	var out strings.Builder
	for {
		if err := p.string(&out); err != nil {
			return "", err
		}
		p.space()
		if c := p.peek(); c != '"' && c != '\'' {
			return out.String(), nil
		}
	}
}

func (p *pyParser) string(out *strings.Builder) error {
	quote := p.text[p.pos : p.pos+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(p.text[p.pos:], triple) {
		quote = triple
	}
	p.pos += len(quote)
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case strings.HasPrefix(p.text[p.pos:], quote):
			p.pos += len(quote)
			return nil
		case c == '\\':
			p.escape(out)
		case c == '\n' && len(quote) == 1:
			return errNotLiteral
		default:
			out.WriteByte(c)
			p.pos++
		}
	}
	return errNotLiteral
}

// escape decodes one escape sequence; an unknown one stands for itself.
func (p *pyParser) escape(out *strings.Builder) {
	p.pos++
	c := p.peek()
	if p.pos < len(p.text) {
		p.pos++
	}
	if at := strings.IndexByte(`\'"abfnrtv`, c); at >= 0 && c != 0 {
		out.WriteByte("\\'\"\a\b\f\n\r\t\v"[at])
		return
	}
	digits, base := 0, 16
	switch {
	case c == '\n':
		return
	case c == 'x':
		digits = 2
	case c == 'u':
		digits = 4
	case c == 'U':
		digits = 8
	case c >= '0' && c <= '7':
		p.pos--
		base = 8
		for digits < 3 && p.pos+digits < len(p.text) && p.text[p.pos+digits] >= '0' && p.text[p.pos+digits] <= '7' {
			digits++
		}
	}
	if digits > 0 && p.pos+digits <= len(p.text) {
		if n, err := strconv.ParseUint(p.text[p.pos:p.pos+digits], base, 32); err == nil {
			out.WriteRune(rune(n))
			p.pos += digits
			return
		}
	}
	out.WriteByte('\\')
	if c != 0 {
		out.WriteByte(c)
	}
}

// A pyCall is one f(a=1) of a Python expression.
type pyCall struct {
	name string // may be dotted
	args canon.Value
}

// call reads NAME(KEY=LITERAL, …).
func (p *pyParser) call() (pyCall, error) {
	p.space()
	name := p.name()
	for name != "" && p.peek() == '.' {
		p.pos++
		part := p.name()
		if part == "" {
			return pyCall{}, errNotLiteral
		}
		name += "." + part
	}
	if name == "" || !p.eat('(') {
		return pyCall{}, errNotLiteral
	}
	var args argList
	for {
		if p.eat(')') {
			return pyCall{name, args.value()}, nil
		}
		p.space()
		key := p.name()
		if key == "" || !p.eat('=') {
			return pyCall{}, errNotLiteral
		}
		v, err := p.value(0)
		if err != nil {
			return pyCall{}, err
		}
		args.set(key, v)
		if !p.eat(',') {
			if !p.eat(')') {
				return pyCall{}, errNotLiteral
			}
			return pyCall{name, args.value()}, nil
		}
	}
}
