package jinja

import (
	"strings"
	"unsafe"
)

// An attrNode is obj.name. What the builtin types know under the name is looked up at compile time.
type attrNode struct {
	obj    node
	name   string
	onStr  method
	onDict method
	onSeq  method
	line   int
}

func newAttrNode(obj node, name string, line int) *attrNode {
	return &attrNode{obj: obj, name: name, line: line,
		onStr: strMethods[name], onDict: dictMethods[name], onSeq: seqMethods[name]}
}

func (n *attrNode) eval(r *run, f *frame) (Value, error) {
	obj, err := n.obj.eval(r, f)
	if err != nil {
		return obj, err
	}
	if obj.k == kDict && n.onDict == nil && !mutators[n.name] && n.name[0] != '_' {
		if v, ok := obj.dict().Get(n.name); ok {
			return v, nil
		}
		return lacks(obj, n.name), nil
	}
	v, err := r.attr(obj, n.name)
	if err != nil {
		return v, at(err, n.line, "attribute '"+n.name+"'")
	}
	return v, nil
}

// mutators are the methods that change a list or a dict: the sandbox hands out an undefined value for them.
var mutators = map[string]bool{}

func init() {
	for _, m := range strings.Fields("append clear pop reverse insert sort extend remove popitem setdefault update") {
		mutators[m] = true
	}
}

func mutates(obj Value, name string) bool {
	if !mutators[name] {
		return false
	}
	isDict := name == "clear" || name == "pop" || name == "popitem" || name == "setdefault" || name == "update"
	isList := name != "popitem" && name != "setdefault" && name != "update"
	return obj.k == kDict && isDict || obj.k == kList && isList
}

func unsafeAttr(name string) Value {
	v := undefined(name)
	v.aux = auxUnsafe
	return v
}

func isDunder(name string) bool {
	return len(name) > 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}

// pyAttr is Python's getattr: methods and fields, not items.
func (r *run) pyAttr(obj Value, name string) (Value, bool, error) {
	if mutates(obj, name) {
		return unsafeAttr(name), true, nil
	}
	var m method
	switch obj.k {
	case kString, kMarkup:
		m = strMethods[name]
	case kDict:
		m = dictMethods[name]
	case kList, kTuple:
		if obj.aux == auxGroup && name == "grouper" {
			return obj.items()[0], true, nil
		}
		if obj.aux == auxGroup && name == "list" {
			return obj.items()[1], true, nil
		}
		m = seqMethods[name]
	case kNamespace:
		v, ok := obj.dict().Get(name)
		return v, ok, nil
	case kLoop:
		return obj.loop().attr(name)
	case kCycler:
		v, ok := obj.cycler().attr(obj, name)
		return v, ok, nil
	case kMacro:
		if name == "name" {
			return String(obj.macro().decl.name), true, nil
		}
	case kBool, kInt, kBig:
		if name == "real" || name == "numerator" {
			return obj, true, nil
		}
	}
	if m == nil {
		return Value{}, false, nil
	}
	return bound(obj, name, m), true, nil
}

// attr is obj.name by jinja2's rule: Python's attribute first, then the item.
func (r *run) attr(obj Value, name string) (Value, error) {
	if obj.k == kUndefined {
		return Value{}, undefinedError(obj)
	}
	v, ok, err := r.pyAttr(obj, name)
	if err != nil || ok {
		return v, err
	}
	if isDunder(name) && obj.k != kNamespace {
		return unsafeAttr(name), nil
	}
	if obj.k == kDict {
		if v, ok := obj.dict().Get(name); ok {
			return v, nil
		}
	}
	return lacks(obj, name), nil
}

// item is obj[key] by jinja2's rule: the item first, then Python's attribute.
func (r *run) item(obj, key Value) (Value, error) {
	switch obj.k {
	case kUndefined:
		return Value{}, undefinedError(obj)
	case kDict:
		v, ok, err := obj.dict().get(key)
		if ok && err == nil {
			return v, nil
		}
	case kList, kTuple, kString, kMarkup, kRange:
		if key.isInt() {
			v, ok := index(obj, key.int())
			if ok {
				return v, nil
			}
		}
	}
	if key.isStr() {
		v, ok, err := r.pyAttr(obj, key.text())
		if err != nil || ok {
			return v, err
		}
		if isDunder(key.text()) {
			return unsafeAttr(key.text()), nil
		}
		return lacks(obj, key.text()), nil
	}
	name, err := r.repr(key)
	return lacks(obj, name), err
}

// index is obj[i] for a sequence; ok is false out of range.
func index(obj Value, i int64) (Value, bool) {
	switch obj.k {
	case kList, kTuple:
		n := int64(obj.n)
		if i < 0 {
			i += n
		}
		if i < 0 || i >= n {
			return Value{}, false
		}
		return obj.items()[i], true
	case kRange:
		rg := obj.rng()
		n := rg.len()
		if i < 0 {
			i += n
		}
		if i < 0 || i >= n {
			return Value{}, false
		}
		return Int(rg.start + i*rg.step), true
	}
	s := obj.text()
	n := int64(runeLen(s))
	if i < 0 {
		i += n
	}
	if i < 0 || i >= n {
		return Value{}, false
	}
	return obj.like(runeSlice(s, int(i), int(i)+1)), true
}

type itemNode struct {
	obj, key node
	line     int
}

func (n *itemNode) eval(r *run, f *frame) (Value, error) {
	obj, err := n.obj.eval(r, f)
	if err != nil {
		return obj, err
	}
	key, err := n.key.eval(r, f)
	if err != nil {
		return key, err
	}
	if obj.k == kDict && key.k == kString {
		if v, ok := obj.dict().Get(key.text()); ok {
			return v, nil
		}
	}
	v, err := r.item(obj, key)
	if err != nil {
		return v, at(err, n.line, "subscript")
	}
	return v, nil
}

type sliceNode struct {
	obj               node
	start, stop, step node
	line              int
}

func (n *sliceNode) eval(r *run, f *frame) (Value, error) {
	obj, err := n.obj.eval(r, f)
	if err != nil {
		return obj, err
	}
	var b [3]Value
	for i, e := range [3]node{n.start, n.stop, n.step} {
		b[i] = None()
		if e != nil {
			if b[i], err = e.eval(r, f); err != nil {
				return obj, err
			}
		}
	}
	v, err := r.slice(obj, b)
	if err != nil {
		return v, at(err, n.line, "slice")
	}
	return v, nil
}

// slice is obj[start:stop:step]. Unlike an index it fails on what cannot be sliced.
func (r *run) slice(obj Value, b [3]Value) (Value, error) {
	if obj.k == kUndefined {
		return Value{}, undefinedError(obj)
	}
	var n int
	switch obj.k {
	case kList, kTuple:
		n = int(obj.n)
	case kString, kMarkup:
		n = runeLen(obj.text())
	case kRange:
		n = int(obj.rng().len())
	case kDict:
		return obj, typeError("unhashable type: 'slice'")
	default:
		return obj, typeError("'%s' object is not subscriptable", obj.typeName())
	}
	for _, v := range b {
		if !v.isInt() && !v.isNone() {
			return obj, typeError("slice indices must be integers or None, not %s", v.typeName())
		}
	}
	start, stop, step, err := sliceBounds(b, n)
	if err != nil {
		return obj, err
	}
	if obj.k == kRange {
		g := obj.rng()
		sub := &rangeObj{g.start + int64(start)*g.step, g.start + int64(stop)*g.step, g.step * int64(step)}
		return Value{k: kRange, p: unsafe.Pointer(sub)}, nil
	}
	if step == 1 {
		if obj.isStr() {
			return obj.like(runeSlice(obj.text(), start, max(start, stop))), nil
		}
		v := List(obj.items()[start:max(start, stop)])
		v.k = obj.k
		return v, nil
	}
	return stepped(obj, start, stop, step), nil
}

func sliceBounds(b [3]Value, n int) (start, stop, step int, err error) {
	step = 1
	if b[2].isInt() {
		step = int(max(min(b[2].int(), 1<<40), -(1 << 40)))
		if step == 0 {
			return 0, 0, 0, valueError("slice step cannot be zero")
		}
	}
	lo, hi := 0, n
	if step < 0 {
		lo, hi = -1, n-1
	}
	clamp := func(v Value, unset int) int {
		if v.isNone() {
			return unset
		}
		i := v.int()
		if i < 0 {
			i += int64(n)
		}
		return int(max(int64(lo), min(int64(hi), i)))
	}
	if step > 0 {
		return clamp(b[0], lo), clamp(b[1], hi), step, nil
	}
	return clamp(b[0], hi), clamp(b[1], lo), step, nil
}

func stepped(obj Value, start, stop, step int) Value {
	if obj.isStr() {
		rs := []rune(obj.text())
		var out []rune
		for i := start; (step > 0 && i < stop) || (step < 0 && i > stop); i += step {
			out = append(out, rs[i])
		}
		return obj.like(string(out))
	}
	items := obj.items()
	out := make([]Value, 0, max(0, (stop-start)/step+1))
	for i := start; (step > 0 && i < stop) || (step < 0 && i > stop); i += step {
		out = append(out, items[i])
	}
	v := List(out)
	v.k = obj.k
	return v
}
