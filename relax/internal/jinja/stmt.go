package jinja

type signal uint8

const (
	sigNone signal = iota
	sigBreak
	sigContinue
)

// A stmt is a statement bound to its slots.
type stmt interface {
	exec(r *run, f *frame) (signal, error)
}

func execAll(r *run, f *frame, body []stmt) (signal, error) {
	for _, s := range body {
		if sig, err := s.exec(r, f); err != nil || sig != sigNone {
			return sig, err
		}
	}
	return sigNone, nil
}

type textStmt struct{ text string }

func (s *textStmt) exec(r *run, _ *frame) (signal, error) {
	return sigNone, r.write(s.text)
}

type outStmt struct {
	val  node
	line int
}

func (s *outStmt) exec(r *run, f *frame) (signal, error) {
	r.line = s.line
	if err := s.print(r, f); err != nil {
		return sigNone, at(err, s.line, "output")
	}
	return sigNone, nil
}

func (s *outStmt) print(r *run, f *frame) error {
	switch n := s.val.(type) {
	case *addNode:
		return n.print(r, f)
	case *concatNode:
		return n.print(r, f)
	}
	v, err := s.val.eval(r, f)
	if err != nil {
		return err
	}
	return r.print(v)
}

// print appends str(v) to the output.
func (r *run) print(v Value) error {
	switch v.k {
	case kString, kMarkup:
		return r.write(v.text())
	case kUndefined:
		return nil
	}
	s, err := r.str(v)
	if err != nil {
		return err
	}
	return r.write(s)
}

type ifArm struct {
	cond node
	body []stmt
	line int
}

type ifStmt struct {
	arms  []ifArm
	other []stmt
}

func (s *ifStmt) exec(r *run, f *frame) (signal, error) {
	for i := range s.arms {
		arm := &s.arms[i]
		v, err := arm.cond.eval(r, f)
		if err != nil {
			return sigNone, at(err, arm.line, "if")
		}
		if truth(v) {
			return execAll(r, f, arm.body)
		}
	}
	return execAll(r, f, s.other)
}

type setStmt struct {
	target target
	val    node
	line   int
}

func (s *setStmt) exec(r *run, f *frame) (signal, error) {
	v, err := s.val.eval(r, f)
	if err == nil {
		err = s.target.assign(r, f, v)
	}
	if err != nil {
		return sigNone, at(err, s.line, "set")
	}
	return sigNone, nil
}

// blockText stands for the text of the block in a chain of filters; it is handed over
// through the run's argument stack.
type blockText struct{}

func (*blockText) eval(r *run, _ *frame) (Value, error) { return r.args[len(r.args)-1], nil }

// A setBlockStmt is a set block, or a filter block where target is nil.
type setBlockStmt struct {
	target  target
	filters node
	scope   *scope
	body    []stmt
	line    int
}

func (s *setBlockStmt) exec(r *run, f *frame) (signal, error) {
	clearSlots(f, s.scope)
	text, sig, err := r.capture(f, s.body)
	if err != nil || sig != sigNone {
		return sig, err
	}
	// Arguments of the outermost filter are evaluated after the innermost value, so the text
	// is on top of the stack whenever blockText is reached.
	r.args = append(r.args, String(text))
	v, err := s.filters.eval(r, f)
	r.args = r.args[:len(r.args)-1]
	if err == nil && s.target != nil {
		err = s.target.assign(r, f, v)
	} else if err == nil {
		err = r.print(v)
	}
	if err != nil {
		return sigNone, at(err, s.line, "block")
	}
	return sigNone, nil
}

func clearSlots(f *frame, s *scope) {
	for _, i := range s.slots {
		f.slots[i] = Value{}
	}
}

// A scopeStmt is a block with names of its own: generation.
type scopeStmt struct {
	scope *scope
	body  []stmt
}

func (s *scopeStmt) exec(r *run, f *frame) (signal, error) {
	clearSlots(f, s.scope)
	return execAll(r, f, s.body)
}

type withStmt struct {
	targets []target
	values  []node
	scope   *scope
	body    []stmt
	line    int
}

func (s *withStmt) exec(r *run, f *frame) (signal, error) {
	clearSlots(f, s.scope)
	vals := make([]Value, len(s.values))
	for i, n := range s.values {
		v, err := n.eval(r, f)
		if err != nil {
			return sigNone, at(err, s.line, "with")
		}
		vals[i] = v
	}
	for i, t := range s.targets {
		if err := t.assign(r, f, vals[i]); err != nil {
			return sigNone, at(err, s.line, "with")
		}
	}
	return execAll(r, f, s.body)
}

type jumpStmt struct{ sig signal }

func (s *jumpStmt) exec(*run, *frame) (signal, error) { return s.sig, nil }

// A target is what a value is assigned to.
type target interface {
	assign(r *run, f *frame, v Value) error
}

type nameTarget struct{ slot int }

func (t *nameTarget) assign(_ *run, f *frame, v Value) error {
	f.slots[t.slot] = v
	return nil
}

type tupleTarget struct{ items []target }

func (t *tupleTarget) assign(r *run, f *frame, v Value) error {
	items, err := r.collect(v, "unpacking")
	if err != nil {
		if v.k != kUndefined && !iterable(v) {
			return typeError("cannot unpack non-iterable %s object", v.typeName())
		}
		return err
	}
	if len(items) > len(t.items) {
		return valueError("too many values to unpack (expected %d)", len(t.items))
	}
	if len(items) < len(t.items) {
		return valueError("not enough values to unpack (expected %d, got %d)", len(t.items), len(items))
	}
	for i, it := range t.items {
		if err := it.assign(r, f, items[i]); err != nil {
			return err
		}
	}
	return nil
}

type attrTarget struct {
	ns   node
	attr string
	line int
}

func (t *attrTarget) assign(r *run, f *frame, v Value) error {
	ns, err := t.ns.eval(r, f)
	if err != nil {
		return err
	}
	if ns.k != kNamespace {
		return &Error{Kind: "TemplateRuntimeError", Line: t.line, Message: "cannot assign attribute '" + t.attr + "' on an object that is not a namespace"}
	}
	return ns.dict().put(String(t.attr), v)
}
