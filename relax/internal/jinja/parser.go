package jinja

import "fmt"

// The bounds on the shape of a source: nesting of expressions and blocks, and the length of
// one chain of operators (which nests to the left).
const (
	maxNesting = 150
	maxChain   = 4000
)

// A parser turns tokens into the tree that is rendered.
type parser struct {
	toks  []token
	pos   int
	cur   *scope
	outer *scope // variables of a render and globals
	uses  []pendingName
	depth int
	// Unknown filters and tests. Inside an if they are an error only when reached, so the
	// end of an if drops those found in it.
	unknown []error
	loops   int // enclosing loops within the function
}

func newParser(toks []token) *parser {
	fn := &funcScope{}
	outer := &scope{fn: fn}
	return &parser{toks: toks, outer: outer, cur: &scope{parent: outer, fn: fn}}
}

func (p *parser) template() (*Template, error) {
	root := p.cur
	body, err := p.block()
	if err != nil {
		return nil, err
	}
	if p.peek().kind != tokEOF {
		return nil, p.unexpected()
	}
	if len(p.unknown) > 0 {
		return nil, p.unknown[0]
	}
	free := bind(p.uses, p.outer)
	return &Template{body: body, free: free, nslots: root.fn.nslots}, nil
}

func (p *parser) peek() token { return p.toks[p.pos] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) failAt(line int, format string, args ...any) error {
	return &SyntaxError{Line: line, Message: fmt.Sprintf(format, args...)}
}

func (p *parser) unexpected() error {
	t := p.peek()
	return p.failAt(t.line, "unexpected %s", t.describe())
}

func (p *parser) isOp(op string) bool {
	t := &p.toks[p.pos]
	return t.kind == tokOp && t.text == op
}

func (p *parser) isName(name string) bool {
	t := &p.toks[p.pos]
	return t.kind == tokName && t.text == name
}

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if p.skipOp(op) {
		return nil
	}
	t := p.peek()
	return p.failAt(t.line, "expected '%s', found %s", op, t.describe())
}

func (p *parser) expectName() (string, error) {
	t := p.next()
	if t.kind != tokName {
		return "", p.failAt(t.line, "expected a name, found %s", t.describe())
	}
	return t.text, nil
}

func (p *parser) expectKeyword(name string) error {
	if p.skipName(name) {
		return nil
	}
	t := p.peek()
	return p.failAt(t.line, "expected '%s', found %s", name, t.describe())
}

func (p *parser) expectBlockEnd() error {
	t := p.next()
	if t.kind != tokBlockEnd {
		return p.failAt(t.line, "expected '%%}', found %s", t.describe())
	}
	return nil
}

// deeper guards the recursion of the parser; leave undoes it.
func (p *parser) deeper() error {
	p.depth++
	if p.depth > maxNesting {
		return p.failAt(p.peek().line, "nested deeper than %d levels", maxNesting)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

func (p *parser) chain(n int) error {
	if n > maxChain {
		return p.failAt(p.peek().line, "more than %d operators in one expression", maxChain)
	}
	return nil
}

// push opens a scope within the current function, pop closes it.
func (p *parser) push() *scope {
	p.cur = &scope{parent: p.cur, fn: p.cur.fn}
	return p.cur
}

func (p *parser) pushFunc(m *macroDecl) *scope {
	p.cur = &scope{parent: p.cur, fn: &funcScope{parent: p.cur.fn, macro: m}}
	return p.cur
}

func (p *parser) pop() { p.cur = p.cur.parent }

// use is a read of a name.
func (p *parser) use(name string, line int) node {
	switch name {
	case "loop":
		p.useLoop()
	case "caller", "varargs", "kwargs":
		p.useMacroArgs(name)
	}
	n := &nameNode{name: name, line: line}
	p.uses = append(p.uses, pendingName{n, p.cur})
	return n
}

// useLoop makes the innermost loop keep its loop object.
func (p *parser) useLoop() {
	for s := p.cur; s != nil; s = s.parent {
		if _, ok := s.vars["loop"]; ok {
			return
		}
		if s.loop != nil {
			s.loop.loopSlot = s.declare("loop")
			return
		}
	}
}

// useMacroArgs makes the innermost macro keep caller, varargs or kwargs.
func (p *parser) useMacroArgs(name string) {
	for s := p.cur; s != nil; s = s.parent {
		if _, ok := s.vars[name]; ok {
			return
		}
		m := s.fn.macro
		if m == nil || s.parent.fn == s.fn {
			continue
		}
		slot := s.declare(name)
		switch name {
		case "caller":
			m.callerSlot = slot
		case "varargs":
			m.varargsSlot = slot
		case "kwargs":
			m.kwargsSlot = slot
		}
		return
	}
}
