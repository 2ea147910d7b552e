package jinja

import "strings"

// block parses statements up to one of the ending tags, which is left unread after "{%".
func (p *parser) block(ends ...string) ([]stmt, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer p.leave()
	var body []stmt
	for {
		t := p.peek()
		switch t.kind {
		case tokEOF:
			if len(ends) > 0 {
				return nil, p.failAt(t.line, "unexpected end of template, expected '%s'", strings.Join(ends, "' or '"))
			}
			return body, nil
		case tokData:
			p.pos++
			body = append(body, &textStmt{t.text})
		case tokVarBegin:
			p.pos++
			s, err := p.output(t.line)
			if err != nil {
				return nil, err
			}
			body = append(body, s)
		case tokBlockBegin:
			p.pos++
			for _, e := range ends {
				if p.isName(e) {
					return body, nil
				}
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			body = append(body, s)
		default:
			return nil, p.unexpected()
		}
	}
}

func (p *parser) output(line int) (stmt, error) {
	n, err := p.tuple(true, false, "")
	if err != nil {
		return nil, err
	}
	if t := p.next(); t.kind != tokVarEnd {
		return nil, p.failAt(t.line, "expected '}}', found %s", t.describe())
	}
	return &outStmt{n, line}, nil
}

// blockUntil parses a body, its ending tag and the rest of that tag.
func (p *parser) blockUntil(end string) ([]stmt, error) {
	body, err := p.block(end)
	if err != nil {
		return nil, err
	}
	p.pos++
	if end == "endmacro" || end == "endcall" || end == "endblock" {
		if p.peek().kind == tokName {
			p.pos++
		}
	}
	return body, p.expectBlockEnd()
}

func (p *parser) statement() (stmt, error) {
	t := p.next()
	if t.kind != tokName {
		return nil, p.failAt(t.line, "tag name expected, found %s", t.describe())
	}
	switch t.text {
	case "for":
		return p.forTag(t.line)
	case "if":
		return p.ifTag(t.line)
	case "set":
		return p.setTag(t.line)
	case "macro":
		return p.macroTag(t.line)
	case "call":
		return p.callTag(t.line)
	case "filter":
		return p.filterTag(t.line)
	case "with":
		return p.withTag(t.line)
	case "print":
		return p.printTag(t.line)
	case "generation":
		return p.plainBlock("endgeneration")
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.failAt(t.line, "'%s' outside of a loop", t.text)
		}
		sig := sigBreak
		if t.text == "continue" {
			sig = sigContinue
		}
		return &jumpStmt{sig}, p.expectBlockEnd()
	case "include", "import", "from", "extends", "block", "autoescape":
		return nil, p.failAt(t.line, "tag '%s' is not supported: a chat template is one file", t.text)
	}
	return nil, p.failAt(t.line, "unknown tag '%s'", t.text)
}

func (p *parser) printTag(line int) (stmt, error) {
	s := &scopeStmt{scope: p.cur.empty()}
	for p.peek().kind != tokBlockEnd {
		if len(s.body) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		n, err := p.expr(true)
		if err != nil {
			return nil, err
		}
		s.body = append(s.body, &outStmt{n, line})
	}
	return s, p.expectBlockEnd()
}

func (p *parser) plainBlock(end string) (stmt, error) {
	if err := p.expectBlockEnd(); err != nil {
		return nil, err
	}
	s := &scopeStmt{scope: p.push()}
	var err error
	s.body, err = p.blockUntil(end)
	p.pop()
	return s, err
}

func (p *parser) ifTag(line int) (stmt, error) {
	unknown := len(p.unknown)
	defer func() { p.unknown = p.unknown[:unknown] }()
	s := &ifStmt{}
	for {
		cond, err := p.tuple(false, false, "")
		if err == nil && p.isName("if") {
			return nil, p.failAt(line, "inline if needs parentheses in a condition")
		}
		if err == nil {
			err = p.expectBlockEnd()
		}
		if err != nil {
			return nil, err
		}
		body, err := p.block("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.arms = append(s.arms, ifArm{cond, body, line})
		t := p.next()
		line = t.line
		switch t.text {
		case "elif":
			continue
		case "else":
			if err := p.expectBlockEnd(); err != nil {
				return nil, err
			}
			s.other, err = p.blockUntil("endif")
			return s, err
		}
		return s, p.expectBlockEnd()
	}
}

// target parses what is assigned to: a name, names, or ns.attr where namespaces are allowed.
func (p *parser) target(withNamespace bool) (target, error) {
	first, err := p.oneTarget(withNamespace)
	if err != nil || !p.isOp(",") {
		return first, err
	}
	t := &tupleTarget{items: []target{first}}
	for p.skipOp(",") {
		if p.isName("in") || p.isOp("=") || p.isOp(")") || p.peek().kind == tokBlockEnd {
			break
		}
		next, err := p.oneTarget(withNamespace)
		if err != nil {
			return nil, err
		}
		t.items = append(t.items, next)
	}
	return t, nil
}

func (p *parser) oneTarget(withNamespace bool) (target, error) {
	if p.skipOp("(") {
		if err := p.deeper(); err != nil {
			return nil, err
		}
		defer p.leave()
		t, err := p.target(withNamespace)
		if err != nil {
			return nil, err
		}
		return t, p.expectOp(")")
	}
	line := p.peek().line
	name, err := p.expectName()
	if err != nil {
		return nil, err
	}
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return nil, p.failAt(line, "cannot assign to '%s'", name)
	}
	if withNamespace && p.skipOp(".") {
		attr, err := p.expectName()
		return &attrTarget{ns: p.use(name, line), attr: attr, line: line}, err
	}
	return &nameTarget{slot: p.cur.declare(name)}, nil
}

// endsRecursive looks ahead to the end of a for tag.
func (p *parser) endsRecursive() bool {
	i := p.pos
	for p.toks[i].kind != tokBlockEnd && p.toks[i].kind != tokEOF {
		i++
	}
	return p.toks[i-1].kind == tokName && p.toks[i-1].text == "recursive"
}

func (p *parser) forTag(line int) (stmt, error) {
	s := &forStmt{loopSlot: -1, line: line}
	recursive := p.endsRecursive()
	targetAt := p.pos
	p.push()
	_, err := p.target(false)
	p.pop()
	if err == nil {
		err = p.expectKeyword("in")
	}
	if err == nil {
		s.iter, err = p.tuple(false, false, "recursive")
	}
	if err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if err := p.forFilter(s, targetAt); err != nil {
			return nil, err
		}
	}
	p.skipName("recursive")
	if err := p.expectBlockEnd(); err != nil {
		return nil, err
	}
	if recursive {
		s.scope = p.pushFunc(nil)
		s.fn = s.scope.fn
	} else {
		s.scope = p.push()
	}
	s.scope.loop = s
	bodyAt := p.pos
	p.pos = targetAt
	s.target, _ = p.target(false)
	p.pos = bodyAt
	if nt, ok := s.target.(*nameTarget); ok {
		s.single = nt
	}
	return p.forBody(s)
}

func (p *parser) forFilter(s *forStmt, targetAt int) error {
	p.push()
	testAt := p.pos
	p.pos = targetAt
	s.testTarget, _ = p.target(false)
	p.pos = testAt
	var err error
	s.test, err = p.expr(true)
	p.pop()
	return err
}

func (p *parser) forBody(s *forStmt) (stmt, error) {
	var err error
	p.loops++
	s.body, err = p.block("else", "endfor")
	p.loops--
	p.pop()
	if err != nil {
		return nil, err
	}
	if p.next().text == "endfor" {
		return s, p.expectBlockEnd()
	}
	if err := p.expectBlockEnd(); err != nil {
		return nil, err
	}
	s.otherScope = p.push()
	s.other, err = p.blockUntil("endfor")
	p.pop()
	return s, err
}

func (p *parser) setTag(line int) (stmt, error) {
	// The value is parsed before the target is declared for good: both orders bind alike,
	// since an empty slot falls through to the outer name.
	t, err := p.target(true)
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		v, err := p.tuple(true, false, "")
		if err != nil {
			return nil, err
		}
		return &setStmt{t, v, line}, p.expectBlockEnd()
	}
	s := &setBlockStmt{target: t, line: line}
	if s.filters, err = p.filterChain(p.skipOp("|")); err != nil {
		return nil, err
	}
	s.scope = p.push()
	s.body, err = p.blockUntil("endset")
	p.pop()
	return s, err
}

// filterChain parses "name(args)|name…" up to the end of the tag. The filters work on blockText.
func (p *parser) filterChain(present bool) (node, error) {
	var n node = &blockText{}
	for present {
		var err error
		if n, err = p.filter(n); err != nil {
			return nil, err
		}
		present = p.skipOp("|")
	}
	return n, p.expectBlockEnd()
}

func (p *parser) filterTag(line int) (stmt, error) {
	s := &setBlockStmt{line: line}
	var err error
	if s.filters, err = p.filterChain(true); err != nil {
		return nil, err
	}
	s.scope = p.push()
	s.body, err = p.blockUntil("endfilter")
	p.pop()
	return s, err
}

func (p *parser) withTag(line int) (stmt, error) {
	s := &withStmt{line: line}
	outer := p.cur
	inner := p.push()
	for p.peek().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		t, err := p.target(false)
		if err != nil {
			return nil, err
		}
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		p.cur = outer
		v, err := p.expr(true)
		p.cur = inner
		if err != nil {
			return nil, err
		}
		s.targets, s.values = append(s.targets, t), append(s.values, v)
	}
	p.pos++
	s.scope = inner
	var err error
	s.body, err = p.blockUntil("endwith")
	p.pop()
	return s, err
}
