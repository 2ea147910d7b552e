package jinja

import "slices"

// postfix parses .name, [..] and (..) after a value.
func (p *parser) postfix(n node) (node, error) {
	for i := 0; ; i++ {
		if err := p.chain(i); err != nil {
			return nil, err
		}
		t := p.peek()
		if t.kind != tokOp {
			return n, nil
		}
		var err error
		switch t.text {
		case ".":
			p.pos++
			n, err = p.attribute(n, t.line)
		case "[":
			p.pos++
			n, err = p.subscript(n, t.line)
		case "(":
			p.pos++
			n, err = p.call(n, t.line)
		default:
			return n, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) attribute(n node, line int) (node, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		return newAttrNode(n, t.text, line), nil
	case tokInt:
		return &itemNode{obj: n, key: &constNode{intLiteral(t.text)}, line: line}, nil
	}
	return nil, p.failAt(t.line, "expected a name or a number after '.', found %s", t.describe())
}

func (p *parser) subscript(n node, line int) (node, error) {
	var parts []node
	for !p.isOp("]") {
		if len(parts) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		part, err := p.subscribed(line)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	if err := p.expectOp("]"); err != nil {
		return nil, err
	}
	switch {
	case len(parts) == 0:
		return nil, p.failAt(line, "empty subscript: expected an index")
	case len(parts) > 1 && slices.ContainsFunc(parts, isSlice):
		return nil, p.failAt(line, "subscript: a slice among several indices is not supported")
	case len(parts) > 1:
		return &itemNode{obj: n, key: &listNode{items: parts, tuple: true}, line: line}, nil
	}
	if s, ok := parts[0].(*sliceNode); ok {
		s.obj = n
		return s, nil
	}
	return &itemNode{obj: n, key: parts[0], line: line}, nil
}

func isSlice(n node) bool {
	_, ok := n.(*sliceNode)
	return ok
}

// subscribed parses an index or a slice without its object.
func (p *parser) subscribed(line int) (node, error) {
	var bounds [3]node
	slice := false
	for i := 0; i < 3; i++ {
		if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
			n, err := p.expr(true)
			if err != nil {
				return nil, err
			}
			bounds[i] = n
		}
		if !p.isOp(":") || i == 2 {
			break
		}
		p.pos++
		slice = true
	}
	if slice {
		return &sliceNode{start: bounds[0], stop: bounds[1], step: bounds[2], line: line}, nil
	}
	if bounds[0] == nil {
		return nil, p.failAt(line, "subscript: expected an index before the next \",\" or \"]\"")
	}
	return bounds[0], nil
}

// arguments parses a call's arguments after "(".
func (p *parser) arguments() (*callArgs, error) {
	a := &callArgs{}
	for first := true; !p.isOp(")"); first = false {
		if !first {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.isOp(")") {
				break
			}
		}
		if err := p.argument(a); err != nil {
			return nil, err
		}
	}
	return a, p.expectOp(")")
}

func (p *parser) argument(a *callArgs) error {
	line := p.peek().line
	misplaced := func() error { return p.failAt(line, "invalid order of arguments in a call") }
	var err error
	switch {
	case p.skipOp("*"):
		if a.star != nil || a.dstar != nil {
			return misplaced()
		}
		a.star, err = p.expr(true)
	case p.skipOp("**"):
		if a.dstar != nil {
			return misplaced()
		}
		a.dstar, err = p.expr(true)
	case p.peek().kind == tokName && p.toks[p.pos+1].kind == tokOp && p.toks[p.pos+1].text == "=":
		if a.dstar != nil {
			return misplaced()
		}
		name := p.next().text
		p.pos++
		var v node
		v, err = p.expr(true)
		a.kw = append(a.kw, kwNode{name, v})
	default:
		if a.star != nil || a.dstar != nil || len(a.kw) > 0 {
			return misplaced()
		}
		var v node
		v, err = p.expr(true)
		a.pos = append(a.pos, v)
	}
	return err
}

func (p *parser) call(n node, line int) (node, error) {
	a, err := p.arguments()
	if err != nil {
		return nil, err
	}
	if at, ok := n.(*attrNode); ok {
		return &methodNode{attr: at, args: a, line: line}, nil
	}
	return &callNode{fn: n, args: a, line: line}, nil
}

// filtered parses "|filter", "is test" and further calls.
func (p *parser) filtered(n node) (node, error) {
	for i := 0; ; i++ {
		if err := p.chain(i); err != nil {
			return nil, err
		}
		var err error
		switch {
		case p.isOp("|"):
			p.pos++
			n, err = p.filter(n)
		case p.isName("is"):
			p.pos++
			n, err = p.test(n)
		case p.isOp("("):
			line := p.next().line
			n, err = p.call(n, line)
		default:
			return n, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) dotted() (string, error) {
	name, err := p.expectName()
	for err == nil && p.skipOp(".") {
		var more string
		more, err = p.expectName()
		name += "." + more
	}
	return name, err
}

func (p *parser) filter(n node) (node, error) {
	line := p.peek().line
	name, err := p.dotted()
	if err != nil {
		return nil, err
	}
	f := &filterNode{name: name, arg: n, args: noArgs, line: line, construct: "filter '" + name + "'"}
	if f.fn = filters[name]; f.fn == nil {
		p.unknown = append(p.unknown, p.failAt(line, "no filter named '%s'", name))
	}
	if p.skipOp("(") {
		f.args, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(n node) (node, error) {
	line := p.peek().line
	negated := p.skipName("not")
	name, err := p.dotted()
	if err != nil {
		return nil, err
	}
	t := &testNode{name: name, arg: n, args: noArgs, line: line, construct: "test '" + name + "'"}
	if t.fn = tests[name]; t.fn == nil {
		p.unknown = append(p.unknown, p.failAt(line, "no test named '%s'", name))
	}
	if p.skipOp("(") {
		t.args, err = p.arguments()
	} else if p.startsTestArgument() {
		if p.isName("is") {
			return nil, p.failAt(line, "tests cannot be chained with 'is'")
		}
		var arg node
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		t.args = &callArgs{pos: []node{arg}}
	}
	if err != nil {
		return nil, err
	}
	t.kind = quickTest(name, t.args)
	if negated {
		return &notNode{t}, nil
	}
	return t, nil
}

func (p *parser) startsTestArgument() bool {
	t := p.peek()
	switch t.kind {
	case tokName:
		return t.text != "else" && t.text != "or" && t.text != "and"
	case tokString, tokInt, tokFloat:
		return true
	case tokOp:
		return t.text == "[" || t.text == "{"
	}
	return false
}
