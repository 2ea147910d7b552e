package jinja

import "strings"

// expr parses one expression, with or without the inline if.
func (p *parser) expr(withCond bool) (node, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer p.leave()
	if withCond {
		return p.cond()
	}
	return p.or()
}

func (p *parser) cond() (node, error) {
	line, unknown := p.peek().line, len(p.unknown)
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	for i := 0; p.skipName("if"); i++ {
		if err := p.chain(i); err != nil {
			return nil, err
		}
		c := &condNode{then: n, line: line}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.skipName("else") {
			if c.other, err = p.expr(true); err != nil {
				return nil, err
			}
		}
		p.unknown = p.unknown[:unknown]
		n = c
	}
	return n, nil
}

func (p *parser) or() (node, error) {
	n, err := p.and()
	for i := 0; err == nil && p.skipName("or"); i++ {
		if err := p.chain(i); err != nil {
			return nil, err
		}
		var right node
		right, err = p.and()
		n = &orNode{n, right}
	}
	return n, err
}

func (p *parser) and() (node, error) {
	n, err := p.not()
	for i := 0; err == nil && p.skipName("and"); i++ {
		if err := p.chain(i); err != nil {
			return nil, err
		}
		var right node
		right, err = p.not()
		n = &andNode{n, right}
	}
	return n, err
}

func (p *parser) not() (node, error) {
	if !p.skipName("not") {
		return p.compare()
	}
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer p.leave()
	n, err := p.not()
	return &notNode{n}, err
}

// compareOp reads a comparison operator if one is next.
func (p *parser) compareOp() (string, bool) {
	t := p.peek()
	if t.kind == tokOp {
		switch t.text {
		case "==", "!=", "<", "<=", ">", ">=":
			p.pos++
			return t.text, true
		}
		return "", false
	}
	if p.skipName("in") {
		return "in", true
	}
	if p.isName("not") && p.toks[p.pos+1].kind == tokName && p.toks[p.pos+1].text == "in" {
		p.pos += 2
		return "not in", true
	}
	return "", false
}

func (p *parser) compare() (node, error) {
	line := p.peek().line
	n, err := p.sum()
	if err != nil {
		return nil, err
	}
	var c *compareNode
	for {
		op, ok := p.compareOp()
		if !ok {
			break
		}
		right, err := p.sum()
		if err != nil {
			return nil, err
		}
		if c == nil {
			c = &compareNode{left: n, line: line}
		}
		c.ops = append(c.ops, compareOpOf(op))
		c.rights = append(c.rights, right)
	}
	if c == nil {
		return n, nil
	}
	return c, nil
}

func (p *parser) sum() (node, error) {
	n, err := p.concat()
	for i := 0; err == nil && (p.isOp("+") || p.isOp("-")); i++ {
		if err := p.chain(i); err != nil {
			return nil, err
		}
		t := p.next()
		right, err := p.concat()
		if err != nil {
			return nil, err
		}
		if add, ok := n.(*addNode); ok && t.text == "+" {
			add.terms = append(add.terms, right)
			continue
		}
		if t.text == "+" {
			n = &addNode{terms: []node{n, right}, line: t.line}
		} else {
			n = &binNode{op: '-', left: n, right: right, line: t.line}
		}
	}
	return n, err
}

func (p *parser) concat() (node, error) {
	n, err := p.product()
	if err != nil || !p.isOp("~") {
		return n, err
	}
	c := &concatNode{parts: []node{n}, line: p.peek().line}
	for p.skipOp("~") {
		right, err := p.product()
		if err != nil {
			return nil, err
		}
		c.parts = append(c.parts, right)
	}
	return c, nil
}

func (p *parser) product() (node, error) {
	n, err := p.pow()
	for i := 0; err == nil; i++ {
		t := p.peek()
		if t.kind != tokOp || (t.text != "*" && t.text != "/" && t.text != "//" && t.text != "%") {
			break
		}
		if err := p.chain(i); err != nil {
			return nil, err
		}
		p.pos++
		op := t.text[0]
		if t.text == "//" {
			op = 'd'
		}
		var right node
		right, err = p.pow()
		n = &binNode{op: op, left: n, right: right, line: t.line}
	}
	return n, err
}

func (p *parser) pow() (node, error) {
	n, err := p.unary(true)
	for i := 0; err == nil && p.isOp("**"); i++ {
		if err := p.chain(i); err != nil {
			return nil, err
		}
		t := p.next()
		var right node
		right, err = p.unary(true)
		n = &binNode{op: '^', left: n, right: right, line: t.line}
	}
	return n, err
}

// unary parses a sign and what follows. Filters and tests bind to the signed value as a
// whole, postfixes to the value under the sign.
func (p *parser) unary(withFilter bool) (node, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer p.leave()
	t := p.peek()
	var n node
	var err error
	if t.kind == tokOp && (t.text == "-" || t.text == "+") {
		p.pos++
		n, err = p.unary(false)
		n = &signNode{neg: t.text == "-", arg: n, line: t.line}
	} else {
		n, err = p.primary()
	}
	if err == nil {
		n, err = p.postfix(n)
	}
	if err == nil && withFilter {
		n, err = p.filtered(n)
	}
	return n, err
}

func (p *parser) primary() (node, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &constNode{Bool(true)}, nil
		case "false", "False":
			return &constNode{Bool(false)}, nil
		case "none", "None":
			return &constNode{None()}, nil
		}
		return p.use(t.text, t.line), nil
	case tokString:
		text := t.text
		if p.peek().kind == tokString {
			var b strings.Builder
			b.WriteString(text)
			for p.peek().kind == tokString {
				b.WriteString(p.next().text)
			}
			text = b.String()
		}
		return &constNode{String(text)}, nil
	case tokInt:
		return &constNode{intLiteral(t.text)}, nil
	case tokFloat:
		return &constNode{floatLiteral(t.text)}, nil
	case tokOp:
		switch t.text {
		case "(":
			n, err := p.tuple(true, true, "")
			if err != nil {
				return nil, err
			}
			return n, p.expectOp(")")
		case "[":
			items, err := p.list("]")
			return &listNode{items: items}, err
		case "{":
			return p.dict(t.line)
		}
	}
	return nil, p.failAt(t.line, "unexpected %s, expected an expression", t.describe())
}

// list parses expressions up to the closing bracket.
func (p *parser) list(closing string) ([]node, error) {
	var items []node
	for !p.isOp(closing) {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		if p.isOp(closing) {
			break
		}
		n, err := p.expr(true)
		if err != nil {
			return nil, err
		}
		items = append(items, n)
	}
	return items, p.expectOp(closing)
}

func (p *parser) dict(line int) (node, error) {
	d := &dictNode{line: line}
	for !p.isOp("}") {
		if len(d.keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		if p.isOp("}") {
			break
		}
		k, err := p.expr(true)
		if err != nil {
			return nil, err
		}
		if err := p.expectOp(":"); err != nil {
			return nil, err
		}
		v, err := p.expr(true)
		if err != nil {
			return nil, err
		}
		d.keys, d.vals = append(d.keys, k), append(d.vals, v)
	}
	return d, p.expectOp("}")
}

// tuple parses one expression, or several as a tuple. stop is a name that ends it.
func (p *parser) tuple(withCond, parens bool, stop string) (node, error) {
	var items []node
	isTuple := false
	for {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		t := p.peek()
		if t.kind == tokVarEnd || t.kind == tokBlockEnd || p.isOp(")") || (stop != "" && p.isName(stop)) {
			break
		}
		n, err := p.expr(withCond)
		if err != nil {
			return nil, err
		}
		items = append(items, n)
		if !p.isOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) == 1 {
			return items[0], nil
		}
		if !parens {
			return nil, p.failAt(p.peek().line, "expected an expression, found %s", p.peek().describe())
		}
	}
	return &listNode{items: items, tuple: true}, nil
}
