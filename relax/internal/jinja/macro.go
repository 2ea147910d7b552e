package jinja

import "unsafe"

type param struct {
	name string
	slot int
	def  node
}

// A macroDecl is a macro as written; a macroObj is one made at run time, with the frame it closes over.
type macroDecl struct {
	name        string
	params      []param
	body        []stmt
	fn          *funcScope
	callerSlot  int // slots of the special names, or -1
	varargsSlot int
	kwargsSlot  int
	line        int
}

type macroObj struct {
	decl  *macroDecl
	frame *frame
}

type macroStmt struct {
	decl *macroDecl
	slot int
}

func (s *macroStmt) exec(_ *run, f *frame) (signal, error) {
	f.slots[s.slot] = macroValue(s.decl, f)
	return sigNone, nil
}

func macroValue(d *macroDecl, f *frame) Value {
	return Value{k: kMacro, p: unsafe.Pointer(&macroObj{d, f})}
}

// call renders the macro and returns its text.
func (m *macroObj) call(r *run, a args) (Value, error) {
	d := m.decl
	if err := r.enter("macro '" + d.name + "'"); err != nil {
		return Value{}, at(err, d.line, "")
	}
	defer func() { r.depth-- }()
	f := &frame{slots: make([]Value, d.fn.nslots), up: m.frame}
	if err := d.bind(r, f, a); err != nil {
		return Value{}, err
	}
	text, _, err := r.capture(f, d.body)
	return String(text), err
}

func (d *macroDecl) bind(r *run, f *frame, a args) error {
	n := min(len(a.pos), len(d.params))
	for i := 0; i < n; i++ {
		f.slots[d.params[i].slot] = a.pos[i]
	}
	if err := d.bindExtra(f, a, n); err != nil {
		return err
	}
	if err := d.bindNamed(f, a.kw); err != nil {
		return err
	}
	for i := range d.params {
		p := &d.params[i]
		if f.slots[p.slot].k != kMissing {
			continue
		}
		if p.def == nil {
			v := undefined(p.name)
			v.aux = auxParam
			f.slots[p.slot] = v
			continue
		}
		v, err := p.def.eval(r, f)
		if err != nil {
			return err
		}
		f.slots[p.slot] = v
	}
	return nil
}

func (d *macroDecl) bindExtra(f *frame, a args, n int) error {
	if d.varargsSlot >= 0 {
		f.slots[d.varargsSlot] = Tuple(append([]Value(nil), a.pos[n:]...)...)
	} else if len(a.pos) > n {
		return typeError("macro '%s' takes not more than %d argument(s)", d.name, len(d.params))
	}
	if d.callerSlot >= 0 {
		v := undefined("No caller defined")
		v.aux = auxEmpty
		f.slots[d.callerSlot] = v
	}
	return nil
}

func (d *macroDecl) bindNamed(f *frame, kw []kwArg) error {
	var rest *Dict
	if d.kwargsSlot >= 0 {
		rest = NewDict(len(kw))
		f.slots[d.kwargsSlot] = FromDict(rest)
	}
next:
	for _, k := range kw {
		for i := range d.params {
			p := &d.params[i]
			if p.name != k.name {
				continue
			}
			if f.slots[p.slot].k != kMissing {
				return typeError("macro '%s' got multiple values for argument '%s'", d.name, k.name)
			}
			f.slots[p.slot] = k.val
			continue next
		}
		switch {
		case k.name == "caller" && d.callerSlot >= 0:
			f.slots[d.callerSlot] = k.val
		case rest != nil:
			rest.Set(k.name, k.val)
		default:
			return typeError("macro '%s' takes no keyword argument '%s'", d.name, k.name)
		}
	}
	return nil
}

// A callBlockStmt is {% call %}: the body is handed to the called macro as "caller".
type callBlockStmt struct {
	macro *macroDecl
	fn    node
	args  *callArgs
	line  int
}

func (s *callBlockStmt) exec(r *run, f *frame) (signal, error) {
	base := len(r.args)
	defer func() { r.args = r.args[:base] }()
	fn, err := s.fn.eval(r, f)
	if err != nil {
		return sigNone, at(err, s.line, "call")
	}
	a, err := s.args.eval(r, f)
	if err != nil {
		return sigNone, at(err, s.line, "call")
	}
	a.kw = append(a.kw, kwArg{"caller", macroValue(s.macro, f)})
	v, err := r.call(fn, a)
	if err == nil {
		err = r.print(v)
	}
	if err != nil {
		return sigNone, at(err, s.line, "call")
	}
	return sigNone, nil
}
