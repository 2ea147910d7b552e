package jinja

var dictMethods = map[string]method{
	"items":  dictView(viewItems),
	"keys":   dictView(viewKeys),
	"values": dictView(viewValues),
	"copy": func(_ *run, self Value, a args) (Value, error) {
		return self, a.bind("copy", nil)
	},
	"get": func(_ *run, self Value, a args) (Value, error) {
		if len(a.kw) > 0 || len(a.pos) < 1 || len(a.pos) > 2 {
			return self, typeError("get expected 1 or 2 positional arguments, got %d", len(a.pos))
		}
		v, ok, err := self.dict().get(a.pos[0])
		switch {
		case ok || err != nil:
			return v, err
		case len(a.pos) == 2:
			return a.pos[1], nil
		}
		return None(), nil
	},
	"fromkeys": func(r *run, _ Value, a args) (Value, error) {
		var p [2]Value
		if err := a.bind("fromkeys", p[:]); err != nil {
			return Value{}, err
		}
		if p[1].k == kMissing {
			p[1] = None()
		}
		keys, err := r.collect(p[0], "fromkeys")
		d := NewDict(len(keys))
		for _, k := range keys {
			if err := d.put(k, p[1]); err != nil {
				return Value{}, err
			}
		}
		return FromDict(d), err
	},
}

func dictView(which uint8) method {
	return func(_ *run, self Value, a args) (Value, error) {
		return view(self.dict(), which), a.bind(viewNames[which], nil)
	}
}

var seqMethods = map[string]method{
	"count": func(_ *run, self Value, a args) (Value, error) {
		var p [1]Value
		if err := a.bind("count", p[:]); err != nil {
			return self, err
		}
		n := 0
		for _, it := range self.items() {
			ok, err := equal(it, p[0], 0)
			if err != nil {
				return self, err
			}
			if ok {
				n++
			}
		}
		return Int(int64(n)), nil
	},
	"index": func(_ *run, self Value, a args) (Value, error) {
		var p [1]Value
		if err := a.bind("index", p[:]); err != nil {
			return self, err
		}
		for i, it := range self.items() {
			ok, err := equal(it, p[0], 0)
			if ok || err != nil {
				return Int(int64(i)), err
			}
		}
		return self, valueError("value is not in the %s", self.typeName())
	},
	"copy": func(_ *run, self Value, a args) (Value, error) {
		if self.k == kTuple {
			return self, errorf("UndefinedError", "'tuple object' has no attribute 'copy'")
		}
		return self, a.bind("copy", nil)
	},
}
