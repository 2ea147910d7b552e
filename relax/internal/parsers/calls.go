package parsers

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// shortest is about how many bytes of a model's text an error text quotes.
const shortest = 60

// A harvest gathers the calls of one turn and what was wrong with it.
type harvest struct {
	calls  []Call
	faults []string
}

func (h *harvest) fault(text string) { h.faults = append(h.faults, text) }

// found closes the harvest. first is where the first marker begins in text.
func (h *harvest) found(text string, first int) Found {
	problem := strings.Join(h.faults, "; ")
	if len(h.calls) > 0 {
		return Found{Content: pyStrip(text[:first]), Calls: h.calls, ParseError: problem}
	}
	if problem == "" {
		problem = "a tool-call marker without a call"
	}
	return Found{Content: text, ParseError: problem}
}

// block reads the JSON between two markers: one call or a list of calls. An error means
// that none of the block's calls is taken. Calls of unknown functions are left out and noted.
func (h *harvest) block(text string, tools []canon.ToolSpec) error {
	v, err := canon.ParseValue([]byte(pyStrip(text)))
	if err != nil {
		return fmt.Errorf("a tool call is not valid JSON: %w", err)
	}
	acts := []canon.Value{v}
	if v.Kind() == canon.Array {
		acts = v.Elems()
	}
	calls := h.calls
	var faults []string
	for _, act := range acts {
		call, err := readCall(act, tools)
		if errors.Is(err, errUnknownFunction) {
			faults = append(faults, err.Error())
			continue
		}
		if err != nil {
			return err
		}
		call.Index = len(calls)
		calls = append(calls, call)
	}
	h.calls = calls
	h.faults = append(h.faults, faults...)
	return nil
}

var errUnknownFunction = errors.New("call of a function that was not offered")

func readCall(act canon.Value, tools []canon.ToolSpec) (Call, error) {
	if act.Kind() != canon.Object {
		return Call{}, fmt.Errorf("a tool call is not a JSON object but %s", act.TypeName())
	}
	name, _ := act.Get("name")
	if name.Kind() != canon.String || !offered(name.Str(), tools) {
		return Call{}, fmt.Errorf("%w: %s", errUnknownFunction, canon.Shorten(string(name.AppendCompact(nil)), shortest))
	}
	arguments, err := canon.CanonicalArguments(argumentsOf(act))
	if err != nil {
		return Call{}, fmt.Errorf("call of %q: %w", name.Str(), err)
	}
	return Call{Name: name.Str(), Arguments: arguments}, nil
}

func offered(name string, tools []canon.ToolSpec) bool {
	if name == "" {
		return false
	}
	for i := range tools {
		if tools[i].Name == name {
			return true
		}
	}
	return false
}

// argumentsOf takes "parameters" if it holds anything, else "arguments", else none, which is
// SGLang's order. An object spelled inside a string stays a string; the canonical form
// unwraps it.
func argumentsOf(act canon.Value) canon.Value {
	v, _ := act.Get("parameters")
	if falsy(v) {
		v, _ = act.Get("arguments")
	}
	if v.IsNull() {
		return canon.ObjectOf()
	}
	return v
}

// falsy is Python's idea of an empty value.
func falsy(v canon.Value) bool {
	switch v.Kind() {
	case canon.Bool:
		return !v.Bool()
	case canon.Number:
		f, ok := v.Float64()
		return ok && f == 0
	case canon.String:
		return v.Str() == ""
	case canon.Array:
		return len(v.Elems()) == 0
	case canon.Object:
		return len(v.Members()) == 0
	default:
		return true
	}
}

// pyStrip is Python's str.strip(): Go's white space and the four separators U+001C to U+001F.
func pyStrip(s string) string {
	return strings.TrimFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || (r >= 0x1c && r <= 0x1f)
	})
}
