package parsers

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

const (
	// shortest is about how many bytes of a model's text an error text quotes.
	shortest = 60
	// faultsNamed is how many faults of one turn are spelled out; the rest is counted.
	faultsNamed = 4
)

// A harvest gathers the calls of one turn and what was wrong with it.
type harvest struct {
	tools []canon.ToolSpec
	// anyName lets calls of functions that were not offered through.
	anyName bool
	calls   []Call
	faults  []string
	unnamed int // faults beyond faultsNamed
}

func (h *harvest) fault(format string, args ...any) {
	if len(h.faults) == faultsNamed {
		h.unnamed++
		return
	}
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// result closes the harvest. Without a usable call the whole text is the content and the
// turn is flagged, whatever the family makes of the rest.
func (h *harvest) result(text, content string) Found {
	problem := strings.Join(h.faults, "; ")
	if h.unnamed > 0 {
		problem += fmt.Sprintf("; and %d more", h.unnamed)
	}
	if len(h.calls) > 0 {
		return Found{Content: content, Calls: h.calls, ParseError: problem}
	}
	if problem == "" {
		problem = "a tool-call marker without a call"
	}
	return Found{Content: text, ParseError: problem}
}

// found is result for the families whose content is the stripped text before the first
// marker, which begins at first.
func (h *harvest) found(text string, first int) Found {
	return h.result(text, pyStrip(text[:first]))
}

// take adds a call of name with an arguments object, or notes why it cannot.
func (h *harvest) take(name string, arguments canon.Value) {
	if err := h.add(name, "", arguments); err != nil {
		h.fault("%v", err)
	}
}

// add adds a call or returns why it cannot. id is the model's own id, "" if the family has
// none.
func (h *harvest) add(name, id string, arguments canon.Value) error {
	name = strings.ToValidUTF8(name, "\uFFFD")
	if name == "" || !h.anyName && !offered(name, h.tools) {
		return fmt.Errorf("%w: %q", errUnknownFunction, canon.Shorten(name, shortest))
	}
	if deeper(arguments, canon.MaxDepth) {
		return fmt.Errorf("call of %q: arguments nested deeper than %d levels", canon.Shorten(name, shortest), canon.MaxDepth)
	}
	text, err := canon.CanonicalArguments(arguments)
	if err != nil {
		return fmt.Errorf("call of %q: %w", canon.Shorten(name, shortest), err)
	}
	h.calls = append(h.calls, Call{Index: len(h.calls), Name: name, Arguments: text, ID: id})
	return nil
}

// block reads the JSON between two markers: one call or a list of calls. An error means
// that none of the block's calls is taken. Calls of unknown functions are left out and noted.
func (h *harvest) block(text string) error {
	v, err := canon.ParseValue([]byte(pyStrip(text)))
	if err != nil {
		return fmt.Errorf("a tool call is not valid JSON: %w", err)
	}
	return h.acts(v)
}

// acts takes a call object or a list of them, all or none.
func (h *harvest) acts(v canon.Value) error {
	list := []canon.Value{v}
	if v.Kind() == canon.Array {
		list = v.Elems()
	}
	had := len(h.calls)
	for _, act := range list {
		err := h.act(act)
		if errors.Is(err, errUnknownFunction) {
			h.fault("%v", err)
			continue
		}
		if err != nil {
			h.calls = h.calls[:had]
			return err
		}
	}
	return nil
}

var errUnknownFunction = errors.New("call of a function that was not offered")

// act adds one {"name", "parameters" or "arguments"} object.
func (h *harvest) act(act canon.Value) error {
	if act.Kind() != canon.Object {
		return fmt.Errorf("a tool call is not a JSON object but %s", act.TypeName())
	}
	name, _ := act.Get("name")
	if name.Kind() != canon.String {
		return fmt.Errorf("%w: %s", errUnknownFunction, canon.Shorten(string(name.AppendCompact(nil)), shortest))
	}
	return h.add(name.Str(), "", argumentsOf(act))
}

func offered(name string, tools []canon.ToolSpec) bool {
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
	if v.Falsy() {
		v, _ = act.Get("arguments")
	}
	if v.IsNull() {
		return canon.ObjectOf()
	}
	return v
}

// deeper reports whether v is nested deeper than limit, which its text could not be read
// back from.
func deeper(v canon.Value, limit int) bool {
	if limit < 0 {
		return true
	}
	for _, e := range v.Elems() {
		if deeper(e, limit-1) {
			return true
		}
	}
	for _, m := range v.Members() {
		if deeper(m.Value, limit-1) {
			return true
		}
	}
	return false
}

// textValue is a string value of any text a model wrote.
func textValue(s string) canon.Value {
	return canon.StringValue(strings.ToValidUTF8(s, "\uFFFD"))
}

// An argList collects arguments given one by one. Of a repeated key the last value wins.
type argList struct {
	members []canon.Member
	index   map[string]int
}

func (a *argList) set(key string, v canon.Value) {
	key = strings.ToValidUTF8(key, "\uFFFD")
	if at, ok := a.index[key]; ok {
		a.members[at].Value = v
		return
	}
	if a.index == nil {
		a.index = make(map[string]int)
	}
	a.index[key] = len(a.members)
	a.members = append(a.members, canon.Member{Key: key, Value: v})
}

func (a *argList) has(key string) bool {
	_, ok := a.index[key]
	return ok
}

func (a *argList) value() canon.Value { return canon.ObjectOf(a.members...) }

// pySpace is Python's str.isspace: Go's white space and the four separators U+001C to U+001F.
func pySpace(r rune) bool { return unicode.IsSpace(r) || (r >= 0x1c && r <= 0x1f) }

// pyStrip is Python's str.strip().
func pyStrip(s string) string { return strings.TrimFunc(s, pySpace) }

// pyTrimLeft is Python's str.lstrip().
func pyTrimLeft(s string) string { return strings.TrimLeftFunc(s, pySpace) }
