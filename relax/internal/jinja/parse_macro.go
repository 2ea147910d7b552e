package jinja

// signature parses the parameters of a macro after "(" into the current scope.
func (p *parser) signature(m *macroDecl) error {
	for !p.isOp(")") {
		if len(m.params) > 0 {
			if err := p.expectOp(","); err != nil {
				return err
			}
			if p.isOp(")") {
				break
			}
		}
		line := p.peek().line
		name, err := p.expectName()
		if err != nil {
			return err
		}
		if _, dup := p.cur.vars[name]; dup {
			return p.failAt(line, "parameter '%s' appears twice", name)
		}
		par := param{name: name, slot: p.cur.declare(name)}
		if p.skipOp("=") {
			if par.def, err = p.expr(true); err != nil {
				return err
			}
		} else if n := len(m.params); n > 0 && m.params[n-1].def != nil {
			return p.failAt(line, "parameter '%s' without a default follows one with a default", name)
		}
		m.params = append(m.params, par)
	}
	return p.expectOp(")")
}

// macroBody parses the body in the function scope opened for m and closes the scope.
func (p *parser) macroBody(m *macroDecl, end string) error {
	loops := p.loops
	p.loops = 0
	var err error
	m.body, err = p.blockUntil(end)
	p.loops = loops
	p.pop()
	return err
}

func newMacroDecl(name string, line int) *macroDecl {
	return &macroDecl{name: name, line: line, callerSlot: -1, varargsSlot: -1, kwargsSlot: -1}
}

func (p *parser) macroTag(line int) (stmt, error) {
	name, err := p.expectName()
	if err != nil {
		return nil, err
	}
	slot := p.cur.declare(name)
	m := newMacroDecl(name, line)
	m.fn = p.pushFunc(m).fn
	if err := p.expectOp("("); err != nil {
		return nil, err
	}
	if err := p.signature(m); err != nil {
		return nil, err
	}
	if err := p.expectBlockEnd(); err != nil {
		return nil, err
	}
	return &macroStmt{m, slot}, p.macroBody(m, "endmacro")
}

func (p *parser) callTag(line int) (stmt, error) {
	m := newMacroDecl("caller", line)
	outer := p.cur
	m.fn = p.pushFunc(m).fn
	inner := p.cur
	if p.skipOp("(") {
		if err := p.signature(m); err != nil {
			return nil, err
		}
	}
	p.cur = outer
	n, err := p.expr(true)
	p.cur = inner
	if err != nil {
		return nil, err
	}
	s := &callBlockStmt{macro: m, line: line}
	switch c := n.(type) {
	case *callNode:
		s.fn, s.args = c.fn, c.args
	case *methodNode:
		s.fn, s.args = c.attr, c.args
	default:
		return nil, p.failAt(line, "expected a call in the call tag")
	}
	if err := p.expectBlockEnd(); err != nil {
		return nil, err
	}
	return s, p.macroBody(m, "endcall")
}
