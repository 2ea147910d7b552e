package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// The shared pieces of the tag grammars. They are scanners, not regular expressions, and
// every step moves on, so that a text of markers alone is read in linear time.

// firstOf returns where the first of the marks begins in text, len(text) if none does. All
// marks begin with "<".
func firstOf(text string, marks ...string) int {
	for i := 0; i < len(text); i++ {
		j := strings.IndexByte(text[i:], '<')
		if j < 0 {
			break
		}
		i += j
		for _, m := range marks {
			if strings.HasPrefix(text[i:], m) {
				return i
			}
		}
	}
	return len(text)
}

// blocks calls fn with what stands between each pair of markers, and returns the text outside
// of all pairs. An opening marker that is never closed counts as outside; open says so.
func blocks(text, opening, closing string, fn func(inside string)) (outside string, open bool) {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, opening)
		if !found {
			out.WriteString(text)
			return out.String(), false
		}
		inside, next, closed := strings.Cut(after, closing)
		if !closed {
			out.WriteString(text)
			return out.String(), true
		}
		out.WriteString(before)
		fn(inside)
		text = next
	}
}

// invokeTags is the grammar of named elements: <invoke name="N"> with
// <parameter name="K"> elements, under the tag names of a family.
type invokeTags struct {
	call, parameter string // "invoke", "parameter", with the family's prefix
}

// calls calls fn with the name and body of every call element of text and reports whether
// all were well formed. <call name="N"/> has no body.
func (g invokeTags) calls(text string, fn func(name, body string)) bool {
	return elements(text, g.call, func(header, body string) { fn(attr(header, "name"), body) })
}

// parameters calls fn with the header and value of every parameter element of body.
func (g invokeTags) parameters(body string, fn func(key, header, value string)) bool {
	return elements(body, g.parameter, func(header, value string) { fn(attr(header, "name"), header, value) })
}

// elements calls fn with the header (the text between the tag's name and its ">") and the
// body of every element <tag …>body</tag>. It reports false if one was not closed, and does
// not read on from there.
func elements(text, tag string, fn func(header, body string)) bool {
	closing := "</" + strings.TrimPrefix(tag, "<") + ">"
	opening := "<" + tag + " "
	for {
		_, after, found := strings.Cut(text, opening)
		if !found {
			return true
		}
		header, body, ok := strings.Cut(after, ">")
		if !ok {
			return false
		}
		if h, single := strings.CutSuffix(header, "/"); single {
			fn(h, "")
			text = body
			continue
		}
		inside, next, closed := strings.Cut(body, closing)
		if !closed {
			return false
		}
		fn(header, inside)
		text = next
	}
}

// attr returns the value of an attribute in a tag's header: name="v", name='v' or name=v.
func attr(header, name string) string {
	_, v, ok := strings.Cut(" "+header, " "+name+"=")
	if !ok || v == "" {
		return ""
	}
	if q := v[:1]; q == `"` || q == "'" {
		v, _, _ = strings.Cut(v[1:], q)
		return v
	}
	return pyStrip(v)
}

// argPairs reads <arg_key>K</arg_key> <arg_value>V</arg_value> pairs.
func argPairs(body string, fn func(key, value string)) {
	for {
		_, after, found := strings.Cut(body, "<arg_key>")
		if !found {
			return
		}
		key, rest, ok := strings.Cut(after, "</arg_key>")
		if !ok {
			return
		}
		body = rest
		rest, ok = strings.CutPrefix(pyTrimLeft(rest), "<arg_value>")
		if !ok {
			continue
		}
		value, next, ok := strings.Cut(rest, "</arg_value>")
		if !ok {
			return
		}
		body = next
		fn(key, value)
	}
}

// trimNewline removes one newline at each end.
func trimNewline(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, "\n"), "\n")
}

// A jsonScanner reads JSON values in the midst of text. What failed attempts cost is bounded
// by a multiple of the text, so that hostile text is given up instead of read in quadratic
// time.
type jsonScanner struct {
	text   string
	raw    []byte // text
	budget int
}

func newJSONScanner(text string) *jsonScanner {
	return &jsonScanner{text: text, raw: []byte(text), budget: 8 * len(text)}
}

// at reads the value that begins at index i and returns the index after it.
func (s *jsonScanner) at(i int) (v canon.Value, end int, ok bool) {
	if s.budget < 0 {
		return v, 0, false
	}
	end, err := canon.SkipValue(s.raw, i)
	if err != nil {
		s.budget -= len(s.raw) - i
		return v, 0, false
	}
	if v, err = canon.ParseValue(s.raw[i:end]); err != nil {
		s.budget -= end - i
		return v, 0, false
	}
	return v, end, true
}
