package jinja

import (
	"math/big"
	"unsafe"
)

// A method is a function of a builtin type; a fnObj is a global function.
type method func(r *run, self Value, a args) (Value, error)

type fnObj struct {
	name string
	fn   func(r *run, a args) (Value, error)
}

type boundObj struct {
	self Value
	name string
	fn   method
}

func bound(self Value, name string, m method) Value {
	return Value{k: kBound, p: unsafe.Pointer(&boundObj{self, name, m})}
}

func function(name string, fn func(r *run, a args) (Value, error)) Value {
	return Value{k: kFunc, p: unsafe.Pointer(&fnObj{name, fn})}
}

func (v Value) fn() *fnObj         { return (*fnObj)(v.p) }
func (v Value) bound() *boundObj   { return (*boundObj)(v.p) }
func (v Value) macro() *macroObj   { return (*macroObj)(v.p) }
func (v Value) loop() *loopState   { return (*loopState)(v.p) }
func (v Value) gen() *generator    { return (*generator)(v.p) }
func (v Value) rng() *rangeObj     { return (*rangeObj)(v.p) }
func (v Value) cycler() *cyclerObj { return (*cyclerObj)(v.p) }
func (v Value) joiner() *joinerObj { return (*joinerObj)(v.p) }

func loopValue(l *loopState) Value { return Value{k: kLoop, p: unsafe.Pointer(l)} }

// because gives an undefined value its whole message.
func (v Value) because(msg string) Value {
	w := undefined(msg)
	w.aux = v.aux
	return w
}

// ownString makes a string of b, which must not be used again.
func ownString(b []byte) Value { return String(unsafe.String(unsafe.SliceData(b), len(b))) }

// call calls any value.
func (r *run) call(fn Value, a args) (Value, error) {
	switch fn.k {
	case kMacro:
		return fn.macro().call(r, a)
	case kFunc:
		return fn.fn().fn(r, a)
	case kBound:
		b := fn.bound()
		return b.fn(r, b.self, a)
	case kLoop:
		return fn.loop().again(r, a)
	case kJoiner:
		return fn.joiner().next(), nil
	case kUndefined:
		return Value{}, undefinedError(fn)
	}
	return Value{}, typeError("'%s' object is not callable", fn.typeName())
}

func callable(v Value) bool {
	switch v.k {
	case kMacro, kFunc, kBound, kLoop, kJoiner, kUndefined:
		return true
	}
	return false
}

type callNode struct {
	fn   node
	args *callArgs
	line int
}

func (n *callNode) eval(r *run, f *frame) (Value, error) {
	fn, err := n.fn.eval(r, f)
	if err != nil {
		return fn, err
	}
	base := len(r.args)
	a, err := n.args.eval(r, f)
	if err == nil {
		var v Value
		v, err = r.call(fn, a)
		if err == nil {
			r.args = r.args[:base]
			return v, nil
		}
	}
	r.args = r.args[:base]
	return Value{}, at(err, n.line, "call"+n.named())
}

func (n *callNode) named() string {
	if nm, ok := n.fn.(*nameNode); ok {
		return " of '" + nm.name + "'"
	}
	return ""
}

// A methodNode is obj.name(args); methods of builtin types are called without a bound object.
type methodNode struct {
	attr *attrNode
	args *callArgs
	line int
}

func (n *methodNode) eval(r *run, f *frame) (Value, error) {
	obj, err := n.attr.obj.eval(r, f)
	if err != nil {
		return obj, err
	}
	base := len(r.args)
	v, err := n.invoke(r, f, obj)
	r.args = r.args[:base]
	if err != nil {
		return v, at(err, n.line, "call of '"+n.attr.name+"'")
	}
	return v, nil
}

func (n *methodNode) invoke(r *run, f *frame, obj Value) (Value, error) {
	var m method
	switch obj.k {
	case kString, kMarkup:
		m = n.attr.onStr
	case kDict:
		m = n.attr.onDict
	case kList, kTuple:
		m = n.attr.onSeq
	}
	if m != nil {
		a, err := n.args.eval(r, f)
		if err != nil {
			return Value{}, err
		}
		return m(r, obj, a)
	}
	fn, err := r.attr(obj, n.attr.name)
	if err != nil {
		return fn, err
	}
	a, err := n.args.eval(r, f)
	if err != nil {
		return Value{}, err
	}
	return r.call(fn, a)
}

type filterFunc func(r *run, v Value, a args) (Value, error)

type filterNode struct {
	name      string
	fn        filterFunc
	arg       node
	args      *callArgs
	construct string
	line      int
}

func (n *filterNode) eval(r *run, f *frame) (Value, error) {
	v, err := n.arg.eval(r, f)
	if err != nil {
		return v, err
	}
	if n.fn == nil {
		return v, at(errorf("TemplateRuntimeError", "no filter named '%s'", n.name), n.line, n.construct)
	}
	base := len(r.args)
	a, err := n.args.eval(r, f)
	if err == nil {
		v, err = n.fn(r, v, a)
	}
	r.args = r.args[:base]
	if err != nil {
		return v, at(err, n.line, n.construct)
	}
	return v, nil
}

type testFunc func(r *run, v Value, a args) (bool, error)

type testNode struct {
	name      string
	fn        testFunc
	kind      testKind
	arg       node
	args      *callArgs
	construct string
	line      int
}

func (n *testNode) eval(r *run, f *frame) (Value, error) {
	v, err := n.arg.eval(r, f)
	if err != nil {
		return v, err
	}
	switch n.kind {
	case testDefined:
		return Bool(v.k != kUndefined), nil
	case testUndefined:
		return Bool(v.k == kUndefined), nil
	case testNone:
		return Bool(v.k == kNone), nil
	case testString:
		return Bool(v.isStr()), nil
	}
	if n.fn == nil {
		return v, at(errorf("TemplateRuntimeError", "no test named '%s'", n.name), n.line, n.construct)
	}
	base := len(r.args)
	a, err := n.args.eval(r, f)
	ok := false
	if err == nil {
		ok, err = n.fn(r, v, a)
	}
	r.args = r.args[:base]
	if err != nil {
		return v, at(err, n.line, n.construct)
	}
	return Bool(ok), nil
}

// toBig widens an integer.
func toBig(v Value) *big.Int {
	if v.k == kBig {
		return v.big()
	}
	return big.NewInt(v.int())
}
