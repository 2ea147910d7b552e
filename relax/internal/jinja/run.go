package jinja

// A run is the state of one render.
type run struct {
	t     *Template
	out   []byte
	base  int // where the output of this render starts in out
	line  int
	depth int
	steps int
	work  int     // bytes of strings made, to bound the time spent on copying
	args  []Value // a stack for the arguments of calls under way
}

// A frame holds the slots of one call of a funcScope.
type frame struct {
	slots []Value
	up    *frame
}

// workFactor bounds the bytes all string operations of a render may make, as a multiple of MaxOutput.
const workFactor = 32

func (r *run) limit(name string, max int, construct string) error {
	return &LimitError{Limit: name, Max: max, Construct: construct}
}

func (r *run) write(s string) error {
	r.out = append(r.out, s...)
	return r.checkOut()
}

func (r *run) checkOut() error {
	if len(r.out)-r.base > r.t.opts.MaxOutput {
		return r.limit("MaxOutput", r.t.opts.MaxOutput, "output")
	}
	return nil
}

// room asks for n bytes of a new string.
func (r *run) room(n int, construct string) error {
	max := r.t.opts.MaxOutput
	r.work += n
	if n < 0 || n > max || r.work > max*workFactor {
		return r.limit("MaxOutput", max, construct)
	}
	return nil
}

// roomItems asks for n items of a new list.
func (r *run) roomItems(n int, construct string) error {
	if n < 0 || n > r.t.opts.MaxSteps {
		return r.limit("MaxSteps", r.t.opts.MaxSteps, construct)
	}
	return r.room(n, construct)
}

// step counts one iteration; n is its number within its loop.
func (r *run) step(n int, construct string) error {
	if n > r.t.opts.MaxLoop {
		return r.limit("MaxLoop", r.t.opts.MaxLoop, construct)
	}
	r.steps++
	if r.steps > r.t.opts.MaxSteps {
		return r.limit("MaxSteps", r.t.opts.MaxSteps, construct)
	}
	return nil
}

// callSteps is what a call costs in steps: calls are bounded too, or two calls a level
// would double with each level.
const callSteps = 8

// enter opens a nested call.
func (r *run) enter(construct string) error {
	r.depth++
	if r.depth > r.t.opts.MaxDepth {
		return r.limit("MaxDepth", r.t.opts.MaxDepth, construct)
	}
	r.steps += callSteps - 1
	return r.step(0, construct)
}

// capture runs body with its output taken aside.
func (r *run) capture(f *frame, body []stmt) (string, signal, error) {
	start := len(r.out)
	sig, err := execAll(r, f, body)
	if err != nil {
		return "", sig, err
	}
	text := string(r.out[start:])
	r.out = r.out[:start]
	return text, sig, r.room(len(text), "block")
}

// A kwArg is a named argument.
type kwArg struct {
	name string
	val  Value
}

// args are the arguments of a call. pos lies on the stack of the run: who keeps it must copy.
type args struct {
	pos []Value
	kw  []kwArg
}

// callArgs are the argument expressions of a call.
type callArgs struct {
	pos   []node
	kw    []kwNode
	star  node
	dstar node
}

type kwNode struct {
	name string
	val  node
}

var noArgs = &callArgs{}

// eval evaluates the arguments onto the stack of r; the caller cuts the stack back.
func (c *callArgs) eval(r *run, f *frame) (args, error) {
	base := len(r.args)
	for _, n := range c.pos {
		v, err := n.eval(r, f)
		if err != nil {
			return args{}, err
		}
		r.args = append(r.args, v)
	}
	if c.star != nil {
		v, err := c.star.eval(r, f)
		if err != nil {
			return args{}, err
		}
		items, err := r.collect(v, "*arguments")
		if err != nil {
			return args{}, err
		}
		r.args = append(r.args, items...)
	}
	top := len(r.args)
	a := args{pos: r.args[base:top:top]}
	if c.kw == nil && c.dstar == nil {
		return a, nil
	}
	err := c.evalNamed(r, f, &a)
	return a, err
}

func (c *callArgs) evalNamed(r *run, f *frame, a *args) error {
	a.kw = make([]kwArg, 0, len(c.kw))
	for _, k := range c.kw {
		v, err := k.val.eval(r, f)
		if err != nil {
			return err
		}
		a.kw = append(a.kw, kwArg{k.name, v})
	}
	if c.dstar == nil {
		return nil
	}
	v, err := c.dstar.eval(r, f)
	if err != nil {
		return err
	}
	if v.k != kDict {
		return typeError("argument after ** must be a mapping, not %s", v.typeName())
	}
	for _, e := range v.dict().ents {
		if !e.key.isStr() {
			return typeError("keywords must be strings")
		}
		a.kw = append(a.kw, kwArg{e.key.text(), e.val})
	}
	return nil
}

// bind sorts arguments into out by the names of the parameters; what was not given stays missing.
func (a args) bind(fn string, out []Value, names ...string) error {
	if len(a.pos) > len(out) {
		return typeError("%s() takes at most %d arguments (%d given)", fn, len(out), len(a.pos))
	}
	copy(out, a.pos)
next:
	for _, k := range a.kw {
		for i, n := range names {
			if n != k.name {
				continue
			}
			if out[i].k != kMissing {
				return typeError("%s() got multiple values for argument '%s'", fn, n)
			}
			out[i] = k.val
			continue next
		}
		return typeError("%s() got an unexpected keyword argument '%s'", fn, k.name)
	}
	return nil
}
