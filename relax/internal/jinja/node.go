package jinja

// A node is an expression bound to its slots.
type node interface {
	eval(r *run, f *frame) (Value, error)
}

type constNode struct{ val Value }

func (n *constNode) eval(*run, *frame) (Value, error) { return n.val, nil }

type nameNode struct {
	name  string
	first slotRef
	refs  []slotRef
	line  int
}

func (f *frame) at(ref slotRef) Value {
	for i := ref.up; i > 0; i-- {
		f = f.up
	}
	return f.slots[ref.slot]
}

func (n *nameNode) eval(_ *run, f *frame) (Value, error) {
	v := f.at(n.first)
	for i := 1; v.k == kMissing && i < len(n.refs); i++ {
		v = f.at(n.refs[i])
	}
	if v.k == kMissing {
		return undefined(n.name), nil
	}
	return v, nil
}

type listNode struct {
	items []node
	tuple bool
}

func (n *listNode) eval(r *run, f *frame) (Value, error) {
	out := make([]Value, len(n.items))
	for i, it := range n.items {
		v, err := it.eval(r, f)
		if err != nil {
			return Value{}, err
		}
		out[i] = v
	}
	if n.tuple {
		return Tuple(out...), nil
	}
	return List(out), nil
}

type dictNode struct {
	keys, vals []node
	line       int
}

func (n *dictNode) eval(r *run, f *frame) (Value, error) {
	d := NewDict(len(n.keys))
	for i := range n.keys {
		k, err := n.keys[i].eval(r, f)
		if err != nil {
			return Value{}, err
		}
		v, err := n.vals[i].eval(r, f)
		if err != nil {
			return Value{}, err
		}
		if err := d.put(k, v); err != nil {
			return Value{}, at(err, n.line, "dict")
		}
	}
	return FromDict(d), nil
}

type condNode struct {
	then, test, other node
	line              int
}

func (n *condNode) eval(r *run, f *frame) (Value, error) {
	ok, err := evalTruth(r, f, n.test)
	if err != nil {
		return Value{}, err
	}
	if ok {
		return n.then.eval(r, f)
	}
	if n.other == nil {
		v := undefined("the inline if-expression evaluated to false and no else section was defined.")
		v.aux = auxEmpty
		return v, nil
	}
	return n.other.eval(r, f)
}

func evalTruth(r *run, f *frame, n node) (bool, error) {
	v, err := n.eval(r, f)
	if err != nil {
		return false, err
	}
	return truth(v), nil
}

type orNode struct{ left, right node }

func (n *orNode) eval(r *run, f *frame) (Value, error) {
	v, err := n.left.eval(r, f)
	if err != nil {
		return v, err
	}
	if truth(v) {
		return v, nil
	}
	return n.right.eval(r, f)
}

type andNode struct{ left, right node }

func (n *andNode) eval(r *run, f *frame) (Value, error) {
	v, err := n.left.eval(r, f)
	if err != nil {
		return v, err
	}
	if !truth(v) {
		return v, nil
	}
	return n.right.eval(r, f)
}

type notNode struct{ arg node }

func (n *notNode) eval(r *run, f *frame) (Value, error) {
	ok, err := evalTruth(r, f, n.arg)
	return Bool(!ok), err
}

// An addNode is a chain of "+": texts are joined once instead of pair by pair.
type addNode struct {
	terms []node
	line  int
}

// operands evaluates the terms onto the stack and reports whether all are plain text.
func (n *addNode) operands(r *run, f *frame) ([]Value, bool, error) {
	base := len(r.args)
	plain := true
	for _, t := range n.terms {
		v, err := t.eval(r, f)
		if err != nil {
			return nil, false, err
		}
		plain = plain && v.k == kString
		r.args = append(r.args, v)
	}
	return r.args[base:], plain, nil
}

func (n *addNode) eval(r *run, f *frame) (Value, error) {
	base := len(r.args)
	vals, plain, err := n.operands(r, f)
	if err == nil {
		var v Value
		if plain {
			v, err = r.joinTexts(vals)
		} else {
			v, err = r.sum(vals)
		}
		r.args = r.args[:base]
		if err == nil {
			return v, nil
		}
	}
	r.args = r.args[:base]
	return Value{}, at(err, n.line, "operator '+'")
}

func (n *addNode) print(r *run, f *frame) error {
	base := len(r.args)
	defer func() { r.args = r.args[:base] }()
	vals, plain, err := n.operands(r, f)
	if err != nil {
		return at(err, n.line, "operator '+'")
	}
	if !plain {
		v, err := r.sum(vals)
		if err != nil {
			return at(err, n.line, "operator '+'")
		}
		return r.print(v)
	}
	for _, v := range vals {
		r.out = append(r.out, v.text()...)
	}
	return r.checkOut()
}

func (r *run) joinTexts(vals []Value) (Value, error) {
	size := 0
	for _, v := range vals {
		size += int(v.n)
	}
	if err := r.room(size, "operator '+'"); err != nil {
		return Value{}, err
	}
	b := make([]byte, 0, size)
	for _, v := range vals {
		b = append(b, v.text()...)
	}
	return ownString(b), nil
}

func (r *run) sum(vals []Value) (Value, error) {
	acc := vals[0]
	for _, v := range vals[1:] {
		var err error
		if acc, err = r.add(acc, v); err != nil {
			return acc, err
		}
	}
	return acc, nil
}

// A concatNode is a chain of "~".
type concatNode struct {
	parts []node
	line  int
}

func (n *concatNode) eval(r *run, f *frame) (Value, error) {
	start := len(r.out)
	if err := n.print(r, f); err != nil {
		return Value{}, err
	}
	text := string(r.out[start:])
	r.out = r.out[:start]
	return String(text), r.room(len(text), "operator '~'")
}

func (n *concatNode) print(r *run, f *frame) error {
	base := len(r.args)
	defer func() { r.args = r.args[:base] }()
	for _, p := range n.parts {
		v, err := p.eval(r, f)
		if err != nil {
			return at(err, n.line, "operator '~'")
		}
		r.args = append(r.args, v)
	}
	for i := base; i < base+len(n.parts); i++ {
		if err := r.print(r.args[i]); err != nil {
			return at(err, n.line, "operator '~'")
		}
	}
	return nil
}

type binNode struct {
	op          byte
	left, right node
	line        int
}

func (n *binNode) eval(r *run, f *frame) (Value, error) {
	a, err := n.left.eval(r, f)
	if err != nil {
		return a, err
	}
	b, err := n.right.eval(r, f)
	if err != nil {
		return b, err
	}
	v, err := r.arith(n.op, a, b)
	if err != nil {
		return v, at(err, n.line, "operator '"+opName(n.op)+"'")
	}
	return v, nil
}

type signNode struct {
	neg  bool
	arg  node
	line int
}

func (n *signNode) eval(r *run, f *frame) (Value, error) {
	v, err := n.arg.eval(r, f)
	if err != nil {
		return v, err
	}
	w, err := sign(v, n.neg)
	if err != nil {
		return v, at(err, n.line, "unary operator")
	}
	return w, nil
}

type compareNode struct {
	left   node
	ops    []compareOp
	rights []node
	line   int
}

func (n *compareNode) eval(r *run, f *frame) (Value, error) {
	a, err := n.left.eval(r, f)
	if err != nil {
		return a, err
	}
	for i, op := range n.ops {
		b, err := n.rights[i].eval(r, f)
		if err != nil {
			return b, err
		}
		ok, err := r.compare(op, a, b)
		if err != nil {
			return a, at(err, n.line, "comparison")
		}
		if !ok {
			return Bool(false), nil
		}
		a = b
	}
	return Bool(true), nil
}
