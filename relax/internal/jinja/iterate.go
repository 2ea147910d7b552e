package jinja

import "unsafe"

// A generator yields values once, when asked: what map, select and their kin return.
type generator struct {
	name string
	next func() (Value, bool, error)
}

func lazy(name string, next func() (Value, bool, error)) Value {
	return Value{k: kGen, p: unsafe.Pointer(&generator{name, next})}
}

type rangeObj struct{ start, stop, step int64 }

func (g *rangeObj) len() int64 {
	switch {
	case g.step > 0 && g.start < g.stop:
		return int64((uint64(g.stop) - uint64(g.start) + uint64(g.step) - 1) / uint64(g.step))
	case g.step < 0 && g.start > g.stop:
		return int64((uint64(g.start) - uint64(g.stop) + uint64(-g.step) - 1) / uint64(-g.step))
	}
	return 0
}

// The three views of a dict, kept in Value.aux.
const (
	viewKeys uint8 = iota
	viewValues
	viewItems
)

var viewNames = [...]string{"keys", "values", "items"}

func view(d *Dict, which uint8) Value { return Value{k: kView, aux: which, p: unsafe.Pointer(d)} }

func viewList(v Value) []Value {
	switch v.aux {
	case viewKeys:
		return v.dict().keys()
	case viewValues:
		return v.dict().values()
	}
	return v.dict().pairs()
}

func iterable(v Value) bool {
	switch v.k {
	case kList, kTuple, kDict, kView, kString, kMarkup, kRange, kGen, kUndefined, kLoop:
		return true
	}
	return false
}

func notIterable(v Value) error {
	if v.k == kUndefined {
		return undefinedError(v)
	}
	return typeError("'%s' object is not iterable", v.typeName())
}

// collect returns all items of v. The slice may be v's own and must not be changed.
func (r *run) collect(v Value, construct string) ([]Value, error) {
	switch v.k {
	case kList, kTuple:
		return v.items(), nil
	case kDict:
		return v.dict().keys(), nil
	case kView:
		return viewList(v), nil
	case kString, kMarkup:
		s := v.text()
		if err := r.roomItems(len(s), construct); err != nil {
			return nil, err
		}
		out := make([]Value, 0, len(s))
		for i, w := 0, 0; i < len(s); i += w {
			w = runeWidth(s[i:])
			out = append(out, String(s[i:i+w]))
		}
		return out, nil
	case kRange:
		g := v.rng()
		n := g.len()
		out := make([]Value, n)
		for i := range out {
			out[i] = Int(g.start + int64(i)*g.step)
		}
		return out, nil
	case kUndefined:
		return nil, nil
	}
	if v.k != kGen && v.k != kLoop {
		return nil, notIterable(v)
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var out []Value
	for {
		item, ok, err := next()
		if err != nil || !ok {
			return out, err
		}
		if err := r.step(len(out)+1, construct); err != nil {
			return nil, err
		}
		out = append(out, item)
	}
}

// iterate returns a function that yields the items of v one by one.
func (r *run) iterate(v Value) (func() (Value, bool, error), error) {
	switch v.k {
	case kGen:
		return v.gen().next, nil
	case kLoop:
		l := v.loop()
		return func() (Value, bool, error) {
			ok, err := l.advance()
			return l.cur, ok, err
		}, nil
	}
	items, err := r.collect(v, "iteration")
	if err != nil {
		return nil, err
	}
	i := 0
	return func() (Value, bool, error) {
		if i >= len(items) {
			return Value{}, false, nil
		}
		i++
		return items[i-1], true, nil
	}, nil
}

// length is len(v).
func length(v Value) (int, error) {
	switch v.k {
	case kString, kMarkup:
		return runeLen(v.text()), nil
	case kList, kTuple:
		return int(v.n), nil
	case kDict, kView:
		return v.dict().Len(), nil
	case kRange:
		return int(v.rng().len()), nil
	case kLoop:
		return v.loop().length()
	case kUndefined:
		return 0, nil
	}
	return 0, typeError("object of type '%s' has no len()", v.typeName())
}
