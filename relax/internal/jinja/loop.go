package jinja

// A forStmt is a for loop.
type forStmt struct {
	target     target
	single     *nameTarget // target, where it is one name
	iter       node
	test       node   // the filter of "for x in y if test"
	testTarget target // the target again, for the filter's own slots
	body       []stmt
	other      []stmt
	otherScope *scope
	scope      *scope
	fn         *funcScope // set for a recursive loop, whose body has a frame of its own
	loopSlot   int        // slot of the loop object, or -1
	line       int
}

func (s *forStmt) exec(r *run, f *frame) (signal, error) {
	v, err := s.iter.eval(r, f)
	if err != nil {
		return sigNone, at(err, s.line, "for")
	}
	return s.run(r, f, v, 0)
}

// run loops over v; f is the frame the loop stands in.
func (s *forStmt) run(r *run, f *frame, v Value, depth int) (signal, error) {
	src, err := s.source(r, f, v)
	if err != nil {
		return sigNone, at(err, s.line, "for")
	}
	body := f
	if s.fn != nil {
		body = &frame{slots: make([]Value, s.fn.nslots), up: f}
	}
	if s.loopSlot < 0 && src.pull == nil {
		return s.plain(r, f, body, src.items)
	}
	src.stmt, src.frame, src.depth = s, f, depth
	n := 0
	for ; ; n++ {
		ok, err := src.advance()
		if err == nil && ok {
			err = r.step(n+1, "for")
		}
		if err != nil {
			return sigNone, at(err, s.line, "for")
		}
		if !ok {
			break
		}
		clearSlots(body, s.scope)
		if s.loopSlot >= 0 {
			body.slots[s.loopSlot] = loopValue(src)
		}
		stop, err := s.once(r, body, src.cur)
		if err != nil {
			return sigNone, err
		}
		if stop {
			return sigNone, nil
		}
	}
	return s.otherwise(r, f, n)
}

// plain loops over items when no one looks at the loop object.
func (s *forStmt) plain(r *run, f, body *frame, items []Value) (signal, error) {
	for i := range items {
		if err := r.step(i+1, "for"); err != nil {
			return sigNone, at(err, s.line, "for")
		}
		clearSlots(body, s.scope)
		stop, err := s.once(r, body, items[i])
		if err != nil {
			return sigNone, err
		}
		if stop {
			return sigNone, nil
		}
	}
	return s.otherwise(r, f, len(items))
}

// once runs the body for one item and reports whether it broke off the loop.
func (s *forStmt) once(r *run, body *frame, v Value) (bool, error) {
	if s.single != nil {
		body.slots[s.single.slot] = v
	} else if err := s.target.assign(r, body, v); err != nil {
		return false, at(err, s.line, "for")
	}
	sig, err := execAll(r, body, s.body)
	return sig == sigBreak, err
}

func (s *forStmt) otherwise(r *run, f *frame, n int) (signal, error) {
	if n > 0 || s.other == nil {
		return sigNone, nil
	}
	clearSlots(f, s.otherScope)
	return execAll(r, f, s.other)
}

// source readies what is looped over: all items at once where that cannot be told apart
// from jinja2's one at a time, else a function that yields the next.
func (s *forStmt) source(r *run, f *frame, v Value) (*loopState, error) {
	if s.test == nil && v.k != kGen {
		items, err := r.collect(v, "for")
		return &loopState{items: items, r: r}, err
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	st := &loopState{r: r, pull: next}
	if s.test == nil {
		return st, nil
	}
	st.pull = func() (Value, bool, error) {
		for n := 1; ; n++ {
			item, ok, err := next()
			if err != nil || !ok {
				return item, ok, err
			}
			if err := r.step(n, "for"); err != nil {
				return item, false, err
			}
			if err := s.testTarget.assign(r, f, item); err != nil {
				return item, false, err
			}
			t, err := s.test.eval(r, f)
			if err != nil {
				return item, false, err
			}
			if truth(t) {
				return item, true, nil
			}
		}
	}
	return st, nil
}

// A loopState is one run through a loop, seen by the template as "loop".
type loopState struct {
	items []Value // all items, or those pulled ahead
	pull  func() (Value, bool, error)
	next  int // index into items of what comes next
	count int // items given out
	cur   Value
	prev  Value
	last  []Value // arguments of the last loop.changed
	r     *run
	stmt  *forStmt
	frame *frame
	depth int
}

func (l *loopState) advance() (bool, error) {
	ok, err := l.peek()
	if err != nil || !ok {
		return false, err
	}
	l.prev, l.cur = l.cur, l.items[l.next]
	l.count++
	if l.pull != nil {
		l.items = l.items[1:]
	} else {
		l.next++
	}
	return true, nil
}

// peek makes sure that the next item is in items.
func (l *loopState) peek() (bool, error) {
	if l.next < len(l.items) {
		return true, nil
	}
	if l.pull == nil {
		return false, nil
	}
	v, ok, err := l.pull()
	if err != nil || !ok {
		return false, err
	}
	l.items = append(l.items, v)
	return true, nil
}

func (l *loopState) length() (int, error) {
	if l.pull == nil {
		return len(l.items), nil
	}
	for {
		v, ok, err := l.pull()
		if err != nil {
			return 0, err
		}
		if !ok {
			return l.count + len(l.items), nil
		}
		l.items = append(l.items, v)
	}
}

// attr is loop.name; ok is false for a name the loop object does not have.
func (l *loopState) attr(name string) (v Value, ok bool, err error) {
	switch name {
	case "index":
		return Int(int64(l.count)), true, nil
	case "index0":
		return Int(int64(l.count - 1)), true, nil
	case "first":
		return Bool(l.count == 1), true, nil
	case "last":
		more, err := l.peek()
		return Bool(!more), true, err
	case "previtem":
		if l.count == 1 {
			return Value{k: kUndefined, aux: auxEmpty}.because("there is no previous item"), true, nil
		}
		return l.prev, true, nil
	case "nextitem":
		more, err := l.peek()
		if err != nil || !more {
			return Value{k: kUndefined, aux: auxEmpty}.because("there is no next item"), true, err
		}
		return l.items[l.next], true, nil
	case "length", "revindex", "revindex0":
		n, err := l.length()
		switch name {
		case "revindex":
			n -= l.count - 1
		case "revindex0":
			n -= l.count
		}
		return Int(int64(n)), true, err
	case "depth":
		return Int(int64(l.depth + 1)), true, nil
	case "depth0":
		return Int(int64(l.depth)), true, nil
	case "cycle", "changed":
		return bound(loopValue(l), name, loopMethods[name]), true, nil
	}
	return Value{}, false, nil
}

var loopMethods = map[string]method{
	"cycle": func(_ *run, self Value, a args) (Value, error) {
		if len(a.pos) == 0 {
			return Value{}, typeError("no items for cycling given")
		}
		return a.pos[(self.loop().count-1)%len(a.pos)], nil
	},
	"changed": func(_ *run, self Value, a args) (Value, error) {
		l := self.loop()
		if l.last != nil && len(l.last) == len(a.pos) {
			same := true
			for i := range a.pos {
				ok, err := equal(l.last[i], a.pos[i], 0)
				if err != nil {
					return Value{}, err
				}
				same = same && ok
			}
			if same {
				return Bool(false), nil
			}
		}
		l.last = append(make([]Value, 0, len(a.pos)+1), a.pos...)
		return Bool(true), nil
	},
}

// again is loop(items) in a recursive loop.
func (l *loopState) again(r *run, a args) (Value, error) {
	if l.stmt.fn == nil {
		return Value{}, typeError("the loop must have the 'recursive' marker to be called recursively")
	}
	if len(a.pos) != 1 || len(a.kw) > 0 {
		return Value{}, typeError("loop() takes exactly one argument")
	}
	if err := r.enter("recursive loop"); err != nil {
		return Value{}, err
	}
	defer func() { r.depth-- }()
	start := len(r.out)
	if _, err := l.stmt.run(r, l.frame, a.pos[0], l.depth+1); err != nil {
		return Value{}, err
	}
	text := string(r.out[start:])
	r.out = r.out[:start]
	return String(text), nil
}
