package jinja

import "fmt"

// A SyntaxError is a fault in the source of a template.
type SyntaxError struct {
	Template string
	Line     int
	Message  string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s line %d: %s", e.Template, e.Line, e.Message)
}

// An Error is a fault while rendering. Kind is the name Python gives it, such as TypeError
// or UndefinedError; Construct is what failed, such as "filter 'join'".
type Error struct {
	Template  string
	Line      int
	Construct string
	Kind      string
	Message   string
}

func (e *Error) Error() string {
	if e.Construct == "" {
		return fmt.Sprintf("%s line %d: %s: %s", e.Template, e.Line, e.Kind, e.Message)
	}
	return fmt.Sprintf("%s line %d: %s: %s: %s", e.Template, e.Line, e.Construct, e.Kind, e.Message)
}

// A RaisedError is the template's own refusal through raise_exception.
type RaisedError struct {
	Template string
	Line     int
	Message  string // the template's text, unchanged
}

func (e *RaisedError) Error() string {
	return fmt.Sprintf("%s line %d: the template raised: %s", e.Template, e.Line, e.Message)
}

// A LimitError says that a template went past a limit of Options.
type LimitError struct {
	Template  string
	Line      int
	Construct string
	Limit     string // the field of Options, such as "MaxOutput"
	Max       int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s line %d: %s: limit %s of %d exceeded; raise it in Options if the template is right",
		e.Template, e.Line, e.Construct, e.Limit, e.Max)
}

func errorf(kind, format string, args ...any) error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

func typeError(format string, args ...any) error { return errorf("TypeError", format, args...) }

func valueError(format string, args ...any) error { return errorf("ValueError", format, args...) }

func undefinedError(v Value) error {
	if v.aux == auxUnsafe {
		return errorf("SecurityError", "access to attribute '%s' is unsafe", v.undefName())
	}
	return &Error{Kind: "UndefinedError", Message: undefMessage(v)}
}

// at fills the place of err where it is still unknown.
func at(err error, line int, construct string) error {
	switch e := err.(type) {
	case *Error:
		if e.Line == 0 {
			e.Line = line
		}
		if e.Construct == "" {
			e.Construct = construct
		}
	case *LimitError:
		if e.Line == 0 {
			e.Line = line
		}
		if e.Construct == "" {
			e.Construct = construct
		}
	case *RaisedError:
		if e.Line == 0 {
			e.Line = line
		}
	}
	return err
}
