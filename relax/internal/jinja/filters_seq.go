package jinja

import (
	"sort"
	"strconv"
	"strings"
)

// A getter takes an item apart by a path such as "function.name", as map(attribute=…) does.
type getter func(Value) (Value, error)

// attrGetter makes a getter; def, where not missing, stands in for what is undefined.
func (r *run) attrGetter(path, def Value) getter {
	var parts []Value
	if path.isStr() {
		for _, p := range strings.Split(path.text(), ".") {
			if n, err := strconv.Atoi(p); err == nil && p[0] != '-' && p[0] != '+' {
				parts = append(parts, Int(int64(n)))
			} else {
				parts = append(parts, String(p))
			}
		}
	} else {
		parts = []Value{path}
	}
	return func(v Value) (Value, error) {
		for _, p := range parts {
			var err error
			if v, err = r.item(v, p); err != nil {
				return v, err
			}
			if v.k == kUndefined && def.k != kMissing {
				v = def
			}
		}
		return v, nil
	}
}

func identity(v Value) (Value, error) { return v, nil }

// ignoreCase folds text for a comparison that is not case sensitive.
func ignoreCase(get getter, sensitive bool) getter {
	if sensitive {
		return get
	}
	return func(v Value) (Value, error) {
		v, err := get(v)
		if v.isStr() {
			v = v.like(strings.ToLower(v.text()))
		}
		return v, err
	}
}

func (r *run) keyGetter(attribute Value, sensitive bool) getter {
	get := getter(identity)
	if attribute.k != kMissing && !attribute.isNone() {
		get = r.attrGetter(attribute, Value{})
	}
	return ignoreCase(get, sensitive)
}

func filterMap(r *run, v Value, a args) (Value, error) {
	a.pos = append([]Value(nil), a.pos...)
	var fn getter
	return r.lazyOver("sync_do_map", v, func(item Value) (Value, bool, error) {
		if fn == nil { // arguments are looked at only when there is an item, as in jinja2
			var err error
			if fn, err = r.mapper(a); err != nil {
				return item, false, err
			}
		}
		out, err := fn(item)
		return out, true, err
	})
}

// mapper reads the arguments of map: attribute=, or a filter with its own arguments.
func (r *run) mapper(a args) (getter, error) {
	if len(a.pos) == 0 {
		var attr, def Value
		for _, k := range a.kw {
			switch k.name {
			case "attribute":
				attr = k.val
			case "default":
				def = k.val
			default:
				return nil, errorf("FilterArgumentError", "unexpected keyword argument '%s'", k.name)
			}
		}
		if attr.k == kMissing {
			return nil, errorf("FilterArgumentError", "map requires a filter argument")
		}
		return r.attrGetter(attr, def), nil
	}
	name, err := r.str(a.pos[0])
	if err != nil {
		return nil, err
	}
	fn := filters[name]
	if fn == nil {
		return nil, errorf("TemplateRuntimeError", "no filter named '%s'", name)
	}
	rest := args{pos: a.pos[1:], kw: a.kw}
	return func(v Value) (Value, error) { return fn(r, v, rest) }, nil
}

// lazyOver is a generator over v: fn turns an item into what is yielded, or drops it.
func (r *run) lazyOver(name string, v Value, fn func(Value) (Value, bool, error)) (Value, error) {
	var next func() (Value, bool, error)
	n := 0
	return lazy(name, func() (Value, bool, error) {
		if next == nil {
			if !truth(v) { // jinja2 looks at the items only where there are any
				return Value{}, false, nil
			}
			var err error
			if next, err = r.iterate(v); err != nil {
				return Value{}, false, err
			}
		}
		for {
			item, ok, err := next()
			if err != nil || !ok {
				return Value{}, false, err
			}
			n++
			if err := r.step(n, "filter"); err != nil {
				return Value{}, false, err
			}
			out, keep, err := fn(item)
			if err != nil || keep {
				return out, keep, err
			}
		}
	}), nil
}

// selecting makes select, reject, selectattr and rejectattr.
func selecting(name string, byAttr, want bool) filterFunc {
	return func(r *run, v Value, a args) (Value, error) {
		a.pos = append([]Value(nil), a.pos...)
		var check getter
		return r.lazyOver("select_or_reject", v, func(item Value) (Value, bool, error) {
			if check == nil {
				var err error
				if check, err = r.selector(name, byAttr, a); err != nil {
					return item, false, err
				}
			}
			ok, err := check(item)
			return item, truth(ok) == want, err
		})
	}
}

// selector reads the arguments of a selecting filter: an attribute, then a test and its arguments.
func (r *run) selector(name string, byAttr bool, a args) (getter, error) {
	get := getter(identity)
	if byAttr {
		if len(a.pos) == 0 {
			return nil, errorf("FilterArgumentError", "%s: missing parameter for attribute name", name)
		}
		get = r.attrGetter(a.pos[0], Value{})
		a.pos = a.pos[1:]
	}
	if len(a.pos) == 0 {
		return get, nil
	}
	test, err := r.str(a.pos[0])
	if err != nil {
		return nil, err
	}
	check := tests[test]
	if check == nil {
		return nil, errorf("TemplateRuntimeError", "no test named '%s'", test)
	}
	a.pos = a.pos[1:]
	return func(item Value) (Value, error) {
		x, err := get(item)
		if err != nil {
			return x, err
		}
		ok, err := check(r, x, a)
		return Bool(ok), err
	}, nil
}

func filterJoin(r *run, v Value, a args) (Value, error) {
	var p [2]Value
	if err := a.bind("join", p[:], "d", "attribute"); err != nil {
		return v, err
	}
	get := getter(identity)
	if p[1].k != kMissing && !p[1].isNone() {
		get = r.attrGetter(p[1], Value{})
	}
	items, err := r.collect(v, "filter 'join'")
	if err != nil {
		return v, err
	}
	parts := make([]string, len(items))
	for i, it := range items {
		x, err := get(it)
		if err == nil {
			parts[i], err = r.str(x)
		}
		if err != nil {
			return v, err
		}
	}
	sep := ""
	if p[0].k != kMissing {
		if sep, err = r.str(p[0]); err != nil {
			return v, err
		}
	}
	s, err := r.joinParts(parts, sep)
	return String(s), err
}

// sortBy sorts items by a key; mixed types that Python cannot order are a TypeError.
func sortBy(items []Value, get getter, desc bool) ([]Value, error) {
	type keyed struct{ key, val Value }
	ks := make([]keyed, len(items))
	for i, it := range items {
		k, err := get(it)
		if err != nil {
			return nil, err
		}
		ks[i] = keyed{k, it}
	}
	var fault error
	sort.SliceStable(ks, func(i, j int) bool {
		if desc {
			i, j = j, i
		}
		less, err := ordered(opLt, ks[i].key, ks[j].key)
		if err != nil && fault == nil {
			fault = err
		}
		return less
	})
	out := make([]Value, len(ks))
	for i := range ks {
		out[i] = ks[i].val
	}
	return out, fault
}

func filterSort(r *run, v Value, a args) (Value, error) {
	var p [3]Value
	if err := a.bind("sort", p[:], "reverse", "case_sensitive", "attribute"); err != nil {
		return v, err
	}
	items, err := r.collect(v, "filter 'sort'")
	if err != nil {
		return v, err
	}
	get := r.keyGetter(p[2], truth(p[1]))
	if p[2].isStr() && strings.Contains(p[2].text(), ",") {
		var gets []getter
		for _, path := range strings.Split(p[2].text(), ",") {
			gets = append(gets, r.keyGetter(String(path), truth(p[1])))
		}
		get = func(v Value) (Value, error) {
			out := make([]Value, len(gets))
			for i, g := range gets {
				var err error
				if out[i], err = g(v); err != nil {
					return v, err
				}
			}
			return List(out), nil
		}
	}
	out, err := sortBy(items, get, truth(p[0]))
	return List(out), err
}

func filterDictSort(r *run, v Value, a args) (Value, error) {
	var p [3]Value
	if err := a.bind("dictsort", p[:], "case_sensitive", "by", "reverse"); err != nil {
		return v, err
	}
	pos := 0
	if p[1].isStr() && p[1].text() == "value" {
		pos = 1
	} else if p[1].k != kMissing && !(p[1].isStr() && p[1].text() == "key") {
		return v, errorf("FilterArgumentError", `you can only sort by either "key" or "value"`)
	}
	if v.k != kDict {
		if v.k == kUndefined {
			return v, undefinedError(v)
		}
		return v, errorf("AttributeError", "'%s' object has no attribute 'items'", v.typeName())
	}
	get := func(v Value) (Value, error) { return v.items()[pos], nil }
	out, err := sortBy(v.dict().pairs(), ignoreCase(get, truth(p[0])), truth(p[2]))
	return List(out), err
}

func filterUnique(r *run, v Value, a args) (Value, error) {
	var p [2]Value
	if err := a.bind("unique", p[:], "case_sensitive", "attribute"); err != nil {
		return v, err
	}
	get := r.keyGetter(p[1], truth(p[0]))
	seen := map[dictKey]bool{}
	return r.lazyOver("sync_do_unique", v, func(item Value) (Value, bool, error) {
		k, err := get(item)
		if err != nil {
			return item, false, err
		}
		hk, err := hashKey(k, 0)
		if err != nil || seen[hk] {
			return item, false, err
		}
		seen[hk] = true
		return item, true, nil
	})
}

func extreme(name string, op compareOp) filterFunc {
	return func(r *run, v Value, a args) (Value, error) {
		var p [2]Value
		if err := a.bind(name, p[:], "case_sensitive", "attribute"); err != nil {
			return v, err
		}
		items, err := r.collect(v, "filter '"+name+"'")
		if err != nil {
			return v, err
		}
		if len(items) == 0 {
			return Value{k: kUndefined, aux: auxEmpty}.because("no aggregated item, sequence was empty"), nil
		}
		get := r.keyGetter(p[1], truth(p[0]))
		best := items[0]
		top, err := get(best)
		if err != nil {
			return v, err
		}
		for _, it := range items[1:] {
			k, err := get(it)
			if err != nil {
				return v, err
			}
			better, err := ordered(op, k, top)
			if err != nil {
				return v, err
			}
			if better {
				best, top = it, k
			}
		}
		return best, nil
	}
}

func filterSum(r *run, v Value, a args) (Value, error) {
	var p [2]Value
	if err := a.bind("sum", p[:], "attribute", "start"); err != nil {
		return v, err
	}
	get := r.keyGetter(p[0], true)
	acc := p[1]
	if acc.k == kMissing {
		acc = Int(0)
	}
	if acc.isStr() {
		return v, typeError("sum() can't sum strings")
	}
	items, err := r.collect(v, "filter 'sum'")
	for _, it := range items {
		if it, err = get(it); err == nil {
			acc, err = r.add(acc, it)
		}
		if err != nil {
			break
		}
	}
	return acc, err
}

func filterGroupBy(r *run, v Value, a args) (Value, error) {
	var p [3]Value
	if err := a.bind("groupby", p[:], "attribute", "default", "case_sensitive"); err != nil {
		return v, err
	}
	raw := r.attrGetter(p[0], p[1])
	get := ignoreCase(raw, truth(p[2]))
	items, err := r.collect(v, "filter 'groupby'")
	if err == nil {
		items, err = sortBy(items, get, false)
	}
	if err != nil {
		return v, err
	}
	var out []Value
	for i := 0; i < len(items); {
		k, _ := get(items[i])
		j := i + 1
		for ; j < len(items); j++ {
			next, _ := get(items[j])
			if same, err := equal(k, next, 0); err != nil || !same {
				break
			}
		}
		name, _ := raw(items[i])
		group := Tuple(name, List(items[i:j:j]))
		group.aux = auxGroup
		out = append(out, group)
		i = j
	}
	return List(out), nil
}
