package jinja

import (
	"math"
	"strconv"
	"strings"
)

// A Dict is a dictionary that keeps the order in which keys came. Two keys are the same
// where Python calls them equal: 1, 1.0 and True are one key.
type Dict struct {
	ents  []entry
	index map[dictKey]int32 // only above smallDict entries
}

type entry struct{ key, val Value }

// smallDict is the size up to which a scan beats a map.
const smallDict = 8

// A dictKey is a key in a form Go can compare: equal for keys Python holds equal.
type dictKey struct {
	k kind
	n uint64
	s string
}

// NewDict returns an empty dict with room for n entries.
func NewDict(n int) *Dict { return &Dict{ents: make([]entry, 0, n)} }

// Len returns the number of entries.
func (d *Dict) Len() int { return len(d.ents) }

// Set stores v under key; a key that is there keeps its place. Not for use once a render may see d.
func (d *Dict) Set(key string, v Value) *Dict {
	d.put(String(key), v)
	return d
}

// Get returns the value under a string key.
func (d *Dict) Get(key string) (Value, bool) {
	if d.index != nil {
		i, ok := d.index[dictKey{k: kString, s: key}]
		if !ok {
			return Value{}, false
		}
		return d.ents[i].val, true
	}
	for i := range d.ents {
		if e := &d.ents[i]; e.key.isStr() && e.key.text() == key {
			return e.val, true
		}
	}
	return Value{}, false
}

// At returns entry i in insertion order.
func (d *Dict) At(i int) (key, val Value) { return d.ents[i].key, d.ents[i].val }

func (d *Dict) findKey(hk dictKey) int {
	if d.index != nil {
		if i, ok := d.index[hk]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.ents {
		if ek, _ := hashKey(d.ents[i].key, 0); ek == hk {
			return i
		}
	}
	return -1
}

// get looks key up; an unhashable key is a TypeError as in Python.
func (d *Dict) get(key Value) (Value, bool, error) {
	if key.isStr() {
		v, ok := d.Get(key.text())
		return v, ok, nil
	}
	hk, err := hashKey(key, 0)
	if err != nil {
		return Value{}, false, err
	}
	if i := d.findKey(hk); i >= 0 {
		return d.ents[i].val, true, nil
	}
	return Value{}, false, nil
}

// put stores v under any hashable key.
func (d *Dict) put(key, v Value) error {
	hk, err := hashKey(key, 0)
	if err != nil {
		return err
	}
	if i := d.findKey(hk); i >= 0 {
		d.ents[i].val = v
		return nil
	}
	d.ents = append(d.ents, entry{key, v})
	switch {
	case d.index != nil:
		d.index[hk] = int32(len(d.ents) - 1)
	case len(d.ents) > smallDict:
		d.index = make(map[dictKey]int32, 2*len(d.ents))
		for i := range d.ents {
			ek, _ := hashKey(d.ents[i].key, 0)
			d.index[ek] = int32(i)
		}
	}
	return nil
}

func (d *Dict) keys() []Value {
	out := make([]Value, len(d.ents))
	for i := range d.ents {
		out[i] = d.ents[i].key
	}
	return out
}

func (d *Dict) values() []Value {
	out := make([]Value, len(d.ents))
	for i := range d.ents {
		out[i] = d.ents[i].val
	}
	return out
}

// pairs returns the items as tuples, all in one piece of memory.
func (d *Dict) pairs() []Value {
	flat := make([]Value, 3*len(d.ents))
	out := flat[2*len(d.ents):]
	for i := range d.ents {
		flat[2*i], flat[2*i+1] = d.ents[i].key, d.ents[i].val
		out[i] = Tuple(flat[2*i : 2*i+2 : 2*i+2]...)
	}
	return out
}

func hashKey(v Value, depth int) (dictKey, error) {
	switch v.k {
	case kString, kMarkup:
		return dictKey{k: kString, s: v.text()}, nil
	case kBool, kInt:
		return dictKey{k: kInt, n: v.n}, nil
	case kFloat:
		f := v.float()
		if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return dictKey{k: kInt, n: uint64(int64(f))}, nil
		}
		return dictKey{k: kFloat, n: v.n}, nil
	case kBig:
		return dictKey{k: kBig, s: v.big().String()}, nil
	case kNone, kUndefined:
		return dictKey{k: v.k}, nil
	case kTuple:
		if depth > maxValueDepth {
			return dictKey{}, errTooDeep()
		}
		var b strings.Builder
		for _, it := range v.items() {
			hk, err := hashKey(it, depth+1)
			if err != nil {
				return dictKey{}, err
			}
			if b.Len() > 1<<20 {
				return dictKey{}, &LimitError{Limit: "bytes of a tuple as key", Max: 1 << 20, Construct: "dict key"}
			}
			b.WriteString(strconv.Itoa(int(hk.k)) + ":" + strconv.FormatUint(hk.n, 16) + ":" + strconv.Quote(hk.s) + ",")
		}
		return dictKey{k: kTuple, s: b.String()}, nil
	case kList, kDict, kView:
		return dictKey{}, typeError("unhashable type: '%s'", v.typeName())
	}
	return dictKey{k: v.k, n: uint64(uintptr(v.p))}, nil
}
