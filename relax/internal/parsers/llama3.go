package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// llama3 reads JSON objects, one after another with one character between them, behind
// <|python_tag|> (a special token) or from the very beginning of the turn. Where JSON fails
// a Python dict is tried, then the next {"name":. Content is the text before the tag and the
// stripped text after the last object.
//
// Fixed against SGLang: an answer that is JSON but no call is content, SGLang drops it.
type llama3 struct{}

const (
	pythonTag   = "<|python_tag|>"
	llamaObject = `{"name":`
)

func (llama3) Find(text string, tools []canon.ToolSpec) Found {
	if len(tools) == 0 {
		return Found{Content: text}
	}
	content, action, tagged := strings.Cut(text, pythonTag)
	if !tagged {
		if !strings.HasPrefix(text, "{") {
			return Found{Content: text}
		}
		content, action = "", text
	}
	got := harvest{tools: tools}
	acts, rest := llamaObjects(action)
	named := false
	for _, act := range acts {
		if name, ok := act.Get("name"); !ok || name.IsNull() {
			continue
		}
		named = true
		if err := got.act(act); err != nil {
			got.fault("%v", err)
		}
	}
	if !tagged && !named && !strings.HasPrefix(text, llamaObject) {
		return Found{Content: text} // an answer in JSON, or text that only begins like it
	}
	return got.result(text, content+pyStrip(rest))
}

// llamaObjects reads the objects of text and returns what stands after the last one.
func llamaObjects(text string) (acts []canon.Value, rest string) {
	scan := newJSONScanner(text)
	after := 0
	for i := 0; i < len(text); {
		v, end, ok := scan.at(i)
		if !ok {
			v, end, ok = scan.pythonAt(i)
		}
		if ok {
			if v.Kind() == canon.Array {
				acts = append(acts, v.Elems()...)
			} else {
				acts = append(acts, v)
			}
			i = end + 1
			after = min(i, len(text))
			continue
		}
		next := strings.Index(text[i+1:], llamaObject)
		if next < 0 || scan.budget < 0 {
			break
		}
		i += 1 + next
	}
	return acts, text[after:]
}

// pythonAt reads the Python dict that begins at index i.
func (s *jsonScanner) pythonAt(i int) (v canon.Value, end int, ok bool) {
	if s.budget < 0 || s.raw[i] != '{' {
		return v, 0, false
	}
	p := pyParser{text: s.text, pos: i}
	v, err := p.value(0)
	if err != nil {
		s.budget -= p.pos - i
		return v, 0, false
	}
	return v, p.pos, true
}
