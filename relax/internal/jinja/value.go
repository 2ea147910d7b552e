package jinja

import (
	"math"
	"math/big"
	"unsafe"
)

type kind uint8

// The kinds of values. missing is the empty slot and never leaves the evaluator.
const (
	kMissing kind = iota
	kUndefined
	kNone
	kBool
	kInt
	kBig
	kFloat
	kString
	kMarkup
	kList
	kTuple
	kDict
	kView
	kRange
	kGen
	kNamespace
	kFunc
	kMacro
	kBound
	kLoop
	kCycler
	kJoiner
)

// What an undefined value stands for, kept in Value.aux: a variable, or the kind of the
// value that lacked the attribute.
const (
	auxName   uint8 = 0
	auxUnsafe uint8 = 255
	auxParam  uint8 = 254
	auxEmpty  uint8 = 253
)

// auxGroup marks a tuple made by groupby, which has the fields grouper and list.
const auxGroup uint8 = 1

// A Value is one value of a template: what Python calls an object. Values are immutable
// but for namespaces, cyclers, joiners and generators, which live inside one render only.
// The zero Value is an empty slot; pass None() where Python has None.
//
// Strings, lists and tuples are kept as pointer and length, the rest as a number or as a
// pointer to the type that belongs to the kind, so that passing values never allocates.
type Value struct {
	k   kind
	aux uint8
	n   uint64
	p   unsafe.Pointer
}

// None returns Python's None.
func None() Value { return Value{k: kNone} }

// Bool returns Python's True or False.
func Bool(b bool) Value {
	if b {
		return Value{k: kBool, n: 1}
	}
	return Value{k: kBool}
}

// Int returns an integer.
func Int(i int64) Value { return Value{k: kInt, n: uint64(i)} }

// BigInt returns an integer of any size. b must not be changed afterwards.
func BigInt(b *big.Int) Value {
	if b.IsInt64() {
		return Int(b.Int64())
	}
	return Value{k: kBig, p: unsafe.Pointer(b)}
}

// Float returns a float, which stays apart from an integer of the same value.
func Float(f float64) Value { return Value{k: kFloat, n: math.Float64bits(f)} }

// String returns a str. s must be UTF-8.
func String(s string) Value {
	return Value{k: kString, n: uint64(len(s)), p: unsafe.Pointer(unsafe.StringData(s))}
}

// Markup returns text marked as safe, as the filter "safe" does.
func Markup(s string) Value {
	v := String(s)
	v.k = kMarkup
	return v
}

// List returns a list. The slice is taken over and must not be changed afterwards.
func List(items []Value) Value {
	return Value{k: kList, n: uint64(len(items)), p: unsafe.Pointer(unsafe.SliceData(items))}
}

// Tuple returns a tuple. The slice is taken over and must not be changed afterwards.
func Tuple(items ...Value) Value {
	v := List(items)
	v.k = kTuple
	return v
}

// FromDict returns d as a value. d must not be changed afterwards.
func FromDict(d *Dict) Value { return Value{k: kDict, p: unsafe.Pointer(d)} }

func undefined(name string) Value {
	v := String(name)
	v.k = kUndefined
	return v
}

// lacks is the undefined value of a missing attribute or item of owner.
func lacks(owner Value, name string) Value {
	v := undefined(name)
	v.aux = uint8(owner.k)
	return v
}

func (v Value) isNone() bool { return v.k == kNone }

func (v Value) isStr() bool { return v.k == kString || v.k == kMarkup }

func (v Value) isInt() bool { return v.k == kInt || v.k == kBool }

func (v Value) undefName() string { return v.text() }

// text is the content of a string (or of the name of an undefined value).
func (v Value) text() string { return unsafe.String((*byte)(v.p), int(v.n)) }

func (v Value) int() int64 { return int64(v.n) }

func (v Value) float() float64 { return math.Float64frombits(v.n) }

func (v Value) items() []Value { return unsafe.Slice((*Value)(v.p), int(v.n)) }

func (v Value) dict() *Dict { return (*Dict)(v.p) }

func (v Value) big() *big.Int { return (*big.Int)(v.p) }

func (v Value) isSeq() bool { return v.k == kList || v.k == kTuple }

// IsNone reports whether v is None; IsDict whether it is a dict.
func (v Value) IsNone() bool { return v.k == kNone }

// AsString returns the content of a str and whether v is one.
func (v Value) AsString() (string, bool) {
	if !v.isStr() {
		return "", false
	}
	return v.text(), true
}

// AsDict returns the dict behind v and whether v is one.
func (v Value) AsDict() (*Dict, bool) {
	if v.k != kDict {
		return nil, false
	}
	return v.dict(), true
}

// AsList returns the items of a list or tuple and whether v is one. They must not be changed.
func (v Value) AsList() ([]Value, bool) {
	if !v.isSeq() {
		return nil, false
	}
	return v.items(), true
}

// like gives s the kind of v: text made from Markup stays Markup.
func (v Value) like(s string) Value {
	w := String(s)
	if v.k == kMarkup {
		w.k = kMarkup
	}
	return w
}

// The names Python gives to the types.
var typeNames = [...]string{
	kMissing: "Undefined", kUndefined: "Undefined", kNone: "NoneType", kBool: "bool", kInt: "int",
	kBig: "int", kFloat: "float", kString: "str", kMarkup: "Markup", kList: "list", kTuple: "tuple",
	kDict: "dict", kView: "dict_items", kRange: "range", kGen: "generator", kNamespace: "Namespace",
	kFunc: "function", kMacro: "Macro", kBound: "builtin_function_or_method", kLoop: "LoopContext",
	kCycler: "Cycler", kJoiner: "Joiner",
}

func (v Value) typeName() string {
	if v.k == kView {
		return "dict_" + viewNames[v.aux]
	}
	return typeNames[v.k]
}

func undefMessage(v Value) string {
	name := v.undefName()
	switch v.aux {
	case auxName:
		return "'" + name + "' is undefined"
	case auxParam:
		return "parameter '" + name + "' was not provided"
	case auxEmpty:
		return name
	}
	if kind(v.aux) == kNone {
		return "'None' has no attribute '" + name + "'"
	}
	return "'" + typeNames[kind(v.aux)] + " object' has no attribute '" + name + "'"
}

// truth is Python's bool().
func truth(v Value) bool {
	switch v.k {
	case kMissing, kUndefined, kNone:
		return false
	case kBool, kInt, kString, kMarkup, kList, kTuple:
		return v.n != 0
	case kFloat:
		return v.float() != 0
	case kDict, kView:
		return v.dict().Len() > 0
	case kRange:
		return v.rng().len() > 0
	}
	return true
}
