package jinja

// A funcScope is a piece of template with a frame of its own: the root, a macro, the body
// of a call block, the body of a recursive loop.
type funcScope struct {
	parent *funcScope
	nslots int
	macro  *macroDecl // nil for the root and for recursive loops
}

// A scope is a region of names. Names are declared while parsing and bound when the whole
// source is known, so that a use may come before the declaration in the same scope.
type scope struct {
	parent *scope
	fn     *funcScope
	vars   map[string]int
	slots  []int    // in order of declaration
	loop   *forStmt // set for the body of a loop
}

func (s *scope) declare(name string) int {
	if i, ok := s.vars[name]; ok {
		return i
	}
	if s.vars == nil {
		s.vars = make(map[string]int)
	}
	i := s.fn.nslots
	s.fn.nslots++
	s.vars[name] = i
	s.slots = append(s.slots, i)
	return i
}

// empty is a scope that declares nothing, within the same function.
func (s *scope) empty() *scope { return &scope{parent: s, fn: s.fn} }

// A slotRef is a place of a name: so many frames up, that slot.
type slotRef struct{ up, slot int }

// A pendingName is a use of a name that waits for all declarations.
type pendingName struct {
	node  *nameNode
	scope *scope
}

// bind gives each use the slots of every scope that declares the name, innermost first. A
// slot may still be empty when it is read: then the next one counts, as in jinja2.
func bind(uses []pendingName, outer *scope) []freeName {
	var free []freeName
	seen := map[string]bool{}
	for _, u := range uses {
		up, fn := 0, u.scope.fn
		for s := u.scope; s != nil; s = s.parent {
			for fn != s.fn {
				fn = fn.parent
				up++
			}
			name := u.node.name
			if s == outer && !seen[name] {
				seen[name] = true
				free = append(free, freeName{name: name, slot: outer.declare(name), global: globals[name]})
			}
			if i, ok := s.vars[name]; ok {
				u.node.refs = append(u.node.refs, slotRef{up, i})
			}
		}
		u.node.first = u.node.refs[0]
	}
	return free
}
