// Package jinja renders Hugging Face chat templates byte for byte as jinja2 set up by
// transformers does: an immutable sandbox with trim_blocks, lstrip_blocks, loop controls and
// the generation tag.
//
// What may enter: the source of a template and a dictionary of values. What it never does:
// read a file or a clock of its own, start a goroutine, keep state between renders, or run
// past its limits: a template is foreign code and must not be able to take the process down.
//
// A template is compiled once to a tree whose names are already bound to slots; the tree is
// never written to again, so any number of goroutines may render it at once.
package jinja

import (
	"fmt"
	"time"
)

// The limits used where Options leaves a field at zero.
const (
	DefaultMaxDepth  = 200
	DefaultMaxLoop   = 65536
	DefaultMaxSteps  = 1 << 20
	DefaultMaxOutput = 8 << 20
)

// Options are the settings of one template. The zero value is usable.
type Options struct {
	Name      string           // shown in errors; default "template"
	Now       func() time.Time // the clock behind strftime_now; nil makes strftime_now an error
	MaxDepth  int              // nested calls of macros and recursive loops; default DefaultMaxDepth
	MaxLoop   int              // iterations of one loop or one lazy filter; default DefaultMaxLoop
	MaxSteps  int              // iterations of all loops of a render; default DefaultMaxSteps
	MaxOutput int              // bytes of output, and of any one string; default DefaultMaxOutput
}

func (o *Options) fill() {
	if o.Name == "" {
		o.Name = "template"
	}
	if o.MaxDepth <= 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	if o.MaxLoop <= 0 {
		o.MaxLoop = DefaultMaxLoop
	}
	if o.MaxSteps <= 0 {
		o.MaxSteps = DefaultMaxSteps
	}
	if o.MaxOutput <= 0 {
		o.MaxOutput = DefaultMaxOutput
	}
}

// A Template is a compiled template. It never changes: renders may run at the same time.
type Template struct {
	opts   Options
	body   []stmt
	nslots int
	free   []freeName // names looked up in the variables of a render, then in the globals
}

// A freeName is a name the template reads from outside, and the slot of the root frame it is kept in.
type freeName struct {
	name   string
	slot   int
	global Value
}

// Compile parses source. A fault is a *SyntaxError that names the line.
func Compile(source string, opts Options) (t *Template, err error) {
	opts.fill()
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, &SyntaxError{Template: opts.Name, Line: 1, Message: fmt.Sprintf("internal fault while compiling: %v", p)}
		}
	}()
	tokens, err := lex(source)
	if err == nil {
		p := newParser(tokens)
		t, err = p.template()
	}
	if err != nil {
		if se, ok := err.(*SyntaxError); ok {
			se.Template = opts.Name
		}
		return nil, err
	}
	t.opts = opts
	return t, nil
}

// Render returns the text for vars, which may be nil. Faults are a *RaisedError (the template
// called raise_exception), a *LimitError, or an *Error.
func (t *Template) Render(vars *Dict) (string, error) {
	out, err := t.AppendRender(nil, vars)
	if err != nil {
		return "", err
	}
	return string(out), nil
}

// AppendRender is Render that appends to dst. On an error dst is returned as it came.
func (t *Template) AppendRender(dst []byte, vars *Dict) (out []byte, err error) {
	r := &run{t: t, out: dst, base: len(dst)}
	defer func() {
		if p := recover(); p != nil {
			out, err = dst, &Error{Template: t.opts.Name, Line: r.line, Kind: "InternalError", Message: fmt.Sprint(p)}
		}
	}()
	if r.out == nil {
		r.out = make([]byte, 0, 4096)
	}
	f := &frame{slots: make([]Value, t.nslots)}
	for i := range t.free {
		fn := &t.free[i]
		if vars != nil {
			if v, ok := vars.Get(fn.name); ok {
				f.slots[fn.slot] = v
				continue
			}
		}
		f.slots[fn.slot] = fn.global
	}
	if _, err := execAll(r, f, t.body); err != nil {
		return dst, t.named(err)
	}
	return r.out, nil
}

func (t *Template) named(err error) error {
	switch e := err.(type) {
	case *Error:
		e.Template = t.opts.Name
	case *LimitError:
		e.Template = t.opts.Name
	case *RaisedError:
		e.Template = t.opts.Name
	}
	return err
}
