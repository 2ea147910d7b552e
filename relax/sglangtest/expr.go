package sglangtest

import (
	"fmt"
	"math/big"
	"strings"
)

const (
	maxExprBytes  = 256  // length of one ${...}
	maxExprDepth  = 32   // nesting of parentheses and signs
	maxIntegerLen = 1000 // digits of a captured integer
)

// A template is a candidate's text with its ${...} parts taken out.
type template []piece

// A piece is literal text, or a value computed from captures: a bare name or an expression.
type piece struct {
	literal string
	name    string
	expr    *expr
}

// parseTemplate splits text at ${...}. $${ stands for a literal ${.
func parseTemplate(text string) (template, error) {
	var t template
	var literal strings.Builder
	for {
		at := strings.Index(text, "${")
		if at < 0 {
			literal.WriteString(text)
			break
		}
		if at > 0 && text[at-1] == '$' {
			literal.WriteString(text[:at-1])
			literal.WriteString("${")
			text = text[at+2:]
			continue
		}
		literal.WriteString(text[:at])
		body, rest, ok := strings.Cut(text[at+2:], "}")
		if !ok {
			return nil, fmt.Errorf("%q has no closing }; write $${ for a literal ${", shorten(text[at:]))
		}
		value, err := parseValue(body)
		if err != nil {
			return nil, fmt.Errorf("${%s}: %w", shorten(body), err)
		}
		if literal.Len() > 0 {
			t = append(t, piece{literal: literal.String()})
			literal.Reset()
		}
		t = append(t, value)
		text = rest
	}
	if literal.Len() > 0 {
		t = append(t, piece{literal: literal.String()})
	}
	return t, nil
}

func parseValue(body string) (piece, error) {
	if len(body) > maxExprBytes {
		return piece{}, fmt.Errorf("longer than %d bytes", maxExprBytes)
	}
	p := exprParser{rest: body}
	e, err := p.sum(0)
	if err != nil {
		return piece{}, err
	}
	if p.skip(); p.rest != "" {
		return piece{}, fmt.Errorf("unexpected %q", p.rest)
	}
	if e.op == 'v' {
		return piece{name: e.name}, nil
	}
	return piece{expr: e}, nil
}

// names calls yield for every capture the template refers to.
func (t template) names(yield func(string)) {
	for _, p := range t {
		if p.name != "" {
			yield(p.name)
		}
		if p.expr != nil {
			p.expr.names(yield)
		}
	}
}

// value is the text of a non-literal piece.
func (p piece) value(captures map[string]string) (string, error) {
	if p.name != "" {
		return captures[p.name], nil
	}
	n, err := p.expr.eval(captures)
	if err != nil {
		return "", err
	}
	return n.String(), nil
}

// An expr is a node of an integer expression: 'i' a number, 'v' a capture, 'n' a negation
// of left, else one of + - *.
type expr struct {
	op          byte
	number      *big.Int
	name        string
	left, right *expr
}

func (e *expr) names(yield func(string)) {
	if e == nil {
		return
	}
	if e.op == 'v' {
		yield(e.name)
	}
	e.left.names(yield)
	e.right.names(yield)
}

func (e *expr) eval(captures map[string]string) (*big.Int, error) {
	switch e.op {
	case 'i':
		return e.number, nil
	case 'v':
		return captureInteger(e.name, captures[e.name])
	}
	left, err := e.left.eval(captures)
	if err != nil {
		return nil, err
	}
	if e.op == 'n' {
		return new(big.Int).Neg(left), nil
	}
	right, err := e.right.eval(captures)
	if err != nil {
		return nil, err
	}
	switch e.op {
	case '+':
		return new(big.Int).Add(left, right), nil
	case '-':
		return new(big.Int).Sub(left, right), nil
	}
	return new(big.Int).Mul(left, right), nil
}

func captureInteger(name, text string) (*big.Int, error) {
	if len(text) > maxIntegerLen {
		return nil, fmt.Errorf("capture %q has %d characters, more than %d", name, len(text), maxIntegerLen)
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return nil, fmt.Errorf("capture %q is %q, not an integer", name, shorten(text))
	}
	return n, nil
}

type exprParser struct{ rest string }

func (p *exprParser) skip() { p.rest = strings.TrimLeft(p.rest, " ") }

func (p *exprParser) peek() byte {
	if p.skip(); p.rest == "" {
		return 0
	}
	return p.rest[0]
}

func (p *exprParser) sum(depth int) (*expr, error) {
	left, err := p.product(depth)
	for err == nil && (p.peek() == '+' || p.peek() == '-') {
		left, err = p.binary(left, depth, p.product)
	}
	return left, err
}

func (p *exprParser) product(depth int) (*expr, error) {
	left, err := p.factor(depth)
	for err == nil && p.peek() == '*' {
		left, err = p.binary(left, depth, p.factor)
	}
	return left, err
}

func (p *exprParser) binary(left *expr, depth int, operand func(int) (*expr, error)) (*expr, error) {
	op := p.rest[0]
	p.rest = p.rest[1:]
	right, err := operand(depth)
	if err != nil {
		return nil, err
	}
	return &expr{op: op, left: left, right: right}, nil
}

func (p *exprParser) factor(depth int) (*expr, error) {
	if depth > maxExprDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxExprDepth)
	}
	switch c := p.peek(); {
	case c == '-':
		p.rest = p.rest[1:]
		inner, err := p.factor(depth + 1)
		if err != nil {
			return nil, err
		}
		return &expr{op: 'n', left: inner}, nil
	case c == '(':
		return p.parenthesis(depth)
	case isDigit(c):
		n, _ := new(big.Int).SetString(p.take(isDigit), 10)
		return &expr{op: 'i', number: n}, nil
	case isNameByte(c):
		return &expr{op: 'v', name: p.take(isNameByte)}, nil
	case c == 0:
		return nil, fmt.Errorf("expected a number, a capture's name or (, found the end")
	default:
		return nil, fmt.Errorf("expected a number, a capture's name or (, found %q", p.rest)
	}
}

func (p *exprParser) parenthesis(depth int) (*expr, error) {
	p.rest = p.rest[1:]
	inner, err := p.sum(depth + 1)
	if err != nil {
		return nil, err
	}
	if p.peek() != ')' {
		return nil, fmt.Errorf("missing )")
	}
	p.rest = p.rest[1:]
	return inner, nil
}

func (p *exprParser) take(in func(byte) bool) string {
	n := 0
	for n < len(p.rest) && in(p.rest[n]) {
		n++
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isNameByte(c byte) bool {
	return c == '_' || isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// shorten keeps an error message readable when it quotes foreign text.
func shorten(s string) string {
	const keep = 60
	if len(s) <= keep {
		return s
	}
	return strings.ToValidUTF8(s[:keep], "") + "..."
}
