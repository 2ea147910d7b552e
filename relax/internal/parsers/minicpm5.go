package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// minicpm5 reads <function name="N"> with <param name="K">V</param>, where V may be CDATA.
// It is strict: an unknown function, an unknown or repeated parameter or a missing required
// one leaves the whole block in the content, which is otherwise the text outside the blocks.
type minicpm5 struct{}

func (minicpm5) Find(text string, tools []canon.ToolSpec) Found {
	const opening, closing = "<function ", "</function>"
	if markerAt(text, opening, tools) < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	var content strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, opening)
		content.WriteString(before)
		if !found {
			break
		}
		block, next, closed := cutOutsideCDATA(after, closing)
		if !closed {
			got.fault("a function element is not closed")
			content.WriteString(opening + after)
			break
		}
		rest = next
		header, body, _ := strings.Cut(block, ">")
		name := attr(header, "name")
		arguments, problem := minicpmArguments(body, schemaOf(tools, name))
		if problem == "" {
			if err := got.add(name, "", arguments); err != nil {
				problem = err.Error()
			}
		}
		if problem != "" {
			got.fault("%s", problem)
			content.WriteString(opening + block + closing)
		}
	}
	return got.result(text, content.String())
}

func minicpmArguments(body string, schema canon.Value) (v canon.Value, problem string) {
	var args argList
	for {
		_, after, found := strings.Cut(body, "<param ")
		if !found {
			break
		}
		header, rest, ok := strings.Cut(after, ">")
		value, next, closed := cutOutsideCDATA(rest, "</param>")
		if !ok || !closed {
			return v, "a parameter is not closed"
		}
		body = next
		key := attr(header, "name")
		property, known := propertyOf(schema, key)
		if !known || args.has(key) {
			return v, "a parameter is unknown or repeated"
		}
		args.set(key, minicpmValue(value, typesOf(property, schema)))
	}
	required, _ := schema.Get("required")
	for _, key := range required.Elems() {
		if !args.has(key.Str()) {
			return v, "a required parameter is missing"
		}
	}
	return args.value(), ""
}

func minicpmValue(value string, set typeSet) canon.Value {
	if inner, ok := strings.CutPrefix(pyStrip(value), "<![CDATA["); ok {
		value, _, _ = strings.Cut(inner, "]]>")
	}
	if allowedNull(value, set) {
		return canon.Value{}
	}
	return bySet(value, set)
}

// cutOutsideCDATA is strings.Cut for a tag that does not stand in a CDATA section.
func cutOutsideCDATA(text, tag string) (before, after string, found bool) {
	const opening, closing = "<![CDATA[", "]]>"
	for from := 0; ; {
		at := from + firstOf(text[from:], tag, opening)
		if at == len(text) {
			return text, "", false
		}
		if strings.HasPrefix(text[at:], tag) {
			return text[:at], text[at+len(tag):], true
		}
		end := strings.Index(text[at:], closing)
		if end < 0 {
			return text, "", false
		}
		from = at + end + len(closing)
	}
}
