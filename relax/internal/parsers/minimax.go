package parsers

import (
	"errors"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// minimaxM2 reads <minimax:tool_call> blocks of <invoke name="N"> with
// <parameter name="K">V</parameter>. Newlines around V are removed. Content is everything
// outside the blocks as it stands; a block that is not closed stays in it.
//
// "null", "none" and "nil" in any case are null; else V takes the first type the schema
// allows of integer, number, boolean, object, array, string.
//
// Fixed against SGLang (its issue 16057): a nullable parameter keeps its value, SGLang makes
// all of them null.
type minimaxM2 struct{}

const (
	minimaxM2Open  = "<minimax:tool_call>"
	minimaxM2Close = "</minimax:tool_call>"
)

var plainInvoke = invokeTags{call: "invoke", parameter: "parameter"}

func (minimaxM2) Find(text string, tools []canon.ToolSpec) Found {
	if markerAt(text, minimaxM2Open, tools) < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	outside, open := blocks(text, minimaxM2Open, minimaxM2Close, func(block string) {
		whole := plainInvoke.calls(block, func(name, body string) {
			got.take(name, invokeArguments(body, schemaOf(tools, name), m2Null))
		})
		if !whole {
			got.fault("an invoke element is not closed")
		}
	})
	if open {
		got.fault("a %s block is not closed", minimaxM2Open)
	}
	return got.result(text, outside)
}

// m2Null reports whether a value says null, whatever its type.
func m2Null(value string, _ typeSet) bool {
	return oneOf(strings.ToLower(pyStrip(value)), "null", "none", "nil")
}

// invokeArguments types the parameters of a body by the schema; null says which values are
// null.
func invokeArguments(body string, schema canon.Value, null func(string, typeSet) bool) canon.Value {
	var args argList
	plainInvoke.parameters(body, func(key, _, value string) {
		property, _ := propertyOf(schema, key)
		value = strings.Trim(value, "\n")
		set := typesOf(property, schema)
		if null(value, set) {
			args.set(key, canon.Value{})
			return
		}
		if len(set) > 1 {
			delete(set, "null")
		}
		args.set(key, bySet(value, set))
	})
	return args.value()
}

// minimaxM3 reads nested elements whose tags all stand behind a namespace token: a tool_call
// of invoke elements, whose children are the arguments by name. Children make an object, a
// repeated child or <item> children an array; a leaf takes the type of the schema, null only
// where that allows it. Content is everything outside the blocks as it stands. As in SGLang a
// block that breaks the grammar makes the whole turn plain text. Needs special tokens.
type minimaxM3 struct{}

const minimaxNS = "]<]minimax[>["

func (minimaxM3) Find(text string, tools []canon.ToolSpec) Found {
	if markerAt(text, minimaxNS, tools) < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	var content strings.Builder
	p := m3Parser{rest: text}
	seen := false
	for {
		before, tag, ok := p.next()
		content.WriteString(before)
		if !ok {
			break
		}
		if tag != "tool_call" {
			content.WriteString(minimaxNS + "<" + tag + ">")
			continue
		}
		seen = true
		if err := p.block(&got); err != nil {
			return Found{Content: text, ParseError: err.Error()}
		}
	}
	if !seen {
		return Found{Content: text}
	}
	return got.result(text, content.String())
}

// An m3Parser walks over the tags of a text.
type m3Parser struct{ rest string }

// next returns the text up to the next tag and the tag without its angle brackets. Without a
// tag it returns all the text.
func (p *m3Parser) next() (before, tag string, ok bool) {
	from := 0
	for {
		i := strings.Index(p.rest[from:], minimaxNS)
		if i < 0 {
			before, p.rest = p.rest, ""
			return before, "", false
		}
		at := from + i
		from = at + len(minimaxNS)
		body, isTag := strings.CutPrefix(pyTrimLeft(p.rest[from:]), "<")
		if !isTag {
			continue
		}
		end := strings.IndexAny(body, "<>")
		if end < 0 || body[end] != '>' {
			continue
		}
		before, tag, p.rest = p.rest[:at], body[:end], body[end+1:]
		return before, tag, true
	}
}

var errM3 = errors.New("the elements of a tool call do not match")

// block takes the calls up to the end of the tool_call.
func (p *m3Parser) block(got *harvest) error {
	for {
		_, tag, ok := p.next()
		switch {
		case !ok:
			return errors.New("a tool call is not closed")
		case tag == "/tool_call":
			return nil
		case !strings.HasPrefix(tag, "invoke "):
			return errM3
		}
		name := attr(tag, "name")
		schema := schemaOf(got.tools, name)
		v, err := p.element("invoke", schema, 0)
		if err != nil {
			return err
		}
		if v.Kind() != canon.Object {
			v = canon.ObjectOf() // no arguments
		}
		got.take(name, v)
	}
}

// element reads children or text up to the closing tag of name.
func (p *m3Parser) element(name string, schema canon.Value, depth int) (canon.Value, error) {
	if depth >= canon.MaxDepth {
		return canon.Value{}, errM3
	}
	children := map[string][]canon.Value{}
	var order []string
	for {
		before, tag, ok := p.next()
		switch {
		case !ok:
			return canon.Value{}, errors.New("a tool call is not closed")
		case tag == "/"+name && len(order) == 0:
			return m3Leaf(before, schema), nil
		case tag == "/"+name:
			return m3Node(order, children, schema), nil
		case strings.HasPrefix(tag, "/"):
			return canon.Value{}, errM3
		}
		property, _ := propertyOf(schema, tag)
		if tag == "item" {
			if items, ok := schema.Get("items"); ok {
				property = items
			}
		}
		v, err := p.element(tag, property, depth+1)
		if err != nil {
			return canon.Value{}, err
		}
		if _, again := children[tag]; !again {
			order = append(order, tag)
		}
		children[tag] = append(children[tag], v)
	}
}

// m3Node makes an object of the children, or an array if the schema asks for one and they
// are its items.
func m3Node(order []string, children map[string][]canon.Value, schema canon.Value) canon.Value {
	if len(order) == 1 && order[0] == "item" && typesOf(schema, canon.Value{})["array"] {
		return canon.ArrayOf(children["item"]...)
	}
	var args argList
	for _, key := range order {
		values := children[key]
		if property, _ := propertyOf(schema, key); len(values) > 1 {
			if inferredType(property) == "array" {
				values = flattened(values)
			}
			args.set(key, canon.ArrayOf(values...))
			continue
		}
		args.set(key, values[0])
	}
	return args.value()
}

// flattened takes the elements of one-element arrays: a repeated child of an array type was
// read as one array each.
func flattened(values []canon.Value) []canon.Value {
	var out []canon.Value
	for _, v := range values {
		if v.Kind() == canon.Array {
			out = append(out, v.Elems()...)
		} else {
			out = append(out, v)
		}
	}
	return out
}

func m3Leaf(text string, schema canon.Value) canon.Value {
	set := typesOf(schema, canon.Value{})
	if set["null"] {
		if s := pyStrip(text); s == "" || strings.EqualFold(s, "null") {
			return canon.Value{}
		}
		if len(set) > 1 {
			delete(set, "null")
		}
	}
	return bySet(text, set)
}
