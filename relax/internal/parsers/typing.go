package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Grammars that write arguments as bare text leave their types to the tool's schema. Here is
// what those families share; what each makes of a text stands in its own file.

// schemaOf returns the schema of a function's parameters.
func schemaOf(tools []canon.ToolSpec, name string) canon.Value {
	for i := range tools {
		if tools[i].Name == name {
			return tools[i].Parameters
		}
	}
	return canon.Value{}
}

// propertyOf returns the schema of one parameter; known is false for a parameter that the
// schema does not name.
func propertyOf(schema canon.Value, key string) (property canon.Value, known bool) {
	properties, _ := schema.Get("properties")
	return properties.Get(key)
}

// jsonOr is the value of JSON text, or otherwise.
func jsonOr(text string, otherwise canon.Value) canon.Value {
	if v, err := canon.ParseValue([]byte(text)); err == nil {
		return v
	}
	return otherwise
}

// jsonOrPython is the value of text as JSON, else as a Python literal, else the text.
func jsonOrPython(text string) canon.Value {
	if v, err := canon.ParseValue([]byte(text)); err == nil {
		return v
	}
	return pythonOr(text, textValue(text))
}

// pythonOr is the value of a Python literal, or otherwise.
func pythonOr(text string, otherwise canon.Value) canon.Value {
	if v, err := pyLiteral(text); err == nil {
		return v
	}
	return otherwise
}

// declaredType is the schema's "type" if it is one word, else "".
func declaredType(property canon.Value) string {
	v, _ := property.Get("type")
	if v.Kind() != canon.String {
		return ""
	}
	return v.Str()
}

// inferredType is the one type SGLang settles on for a schema: its type, else what its
// unions, enum, allOf, properties or items tell, else "string".
func inferredType(property canon.Value) string {
	return inferType(property, 0)
}

func inferType(property canon.Value, depth int) string {
	if depth > 8 {
		return "string" // a union nested deeper says nothing useful
	}
	if v, ok := property.Get("type"); ok {
		if v.Kind() == canon.String {
			return v.Str()
		}
		for _, e := range v.Elems() {
			if e.Kind() == canon.String && e.Str() != "null" {
				return e.Str()
			}
		}
		return "string"
	}
	for _, union := range [...]string{"anyOf", "oneOf"} {
		if v, ok := property.Get(union); ok && len(v.Elems()) > 0 {
			return unionType(v.Elems(), depth)
		}
	}
	if v, ok := property.Get("enum"); ok && len(v.Elems()) > 0 {
		return enumType(v.Elems())
	}
	if v, ok := property.Get("allOf"); ok {
		for _, e := range v.Elems() {
			if t := inferType(e, depth+1); t != "string" {
				return t
			}
		}
		return "string"
	}
	if _, ok := property.Get("properties"); ok {
		return "object"
	}
	if _, ok := property.Get("items"); ok {
		return "array"
	}
	return "string"
}

// unionType is the single type of a union, the other one of a union with null, else
// "string" if that is among them, else the first.
func unionType(members []canon.Value, depth int) string {
	var types []string
	for _, m := range members {
		t := inferType(m, depth+1)
		if t == "string" {
			return t
		}
		if t != "null" {
			types = append(types, t)
		}
	}
	if len(types) == 0 {
		return "string"
	}
	return types[0]
}

func enumType(values []canon.Value) string {
	first := ""
	for _, v := range values {
		t := jsonType(v)
		if first == "" {
			first = t
		}
		if t != first {
			return "string"
		}
	}
	return first
}

// jsonType is a value's type in a schema's words.
func jsonType(v canon.Value) string {
	switch v.Kind() {
	case canon.Bool:
		return "boolean"
	case canon.Number:
		if v.IsInt() {
			return "integer"
		}
		return "number"
	case canon.String:
		return "string"
	case canon.Array:
		return "array"
	case canon.Object:
		return "object"
	default:
		return "null"
	}
}

// A typeSet holds every type a schema allows.
type typeSet map[string]bool

// typesOf gathers the types of a schema and its unions. A schema without any is what its
// shape tells, else a string. root is where "#/…" references lead.
func typesOf(property, root canon.Value) typeSet {
	set := typeSet{}
	steps := 256 // a schema may refer to itself
	set.gather(property, root, &steps)
	if len(set) == 0 {
		set[inferredType(property)] = true
	}
	return set
}

func (set typeSet) gather(property, root canon.Value, steps *int) {
	if *steps--; *steps < 0 || len(property.Members()) == 0 {
		return
	}
	if ref, ok := property.Get("$ref"); ok && ref.Kind() == canon.String {
		set.gather(resolve(ref.Str(), root), root, steps)
	}
	if v, ok := property.Get("type"); ok {
		if v.Kind() == canon.String {
			set[v.Str()] = true
		}
		for _, e := range v.Elems() {
			if e.Kind() == canon.String {
				set[e.Str()] = true
			}
		}
	}
	for _, union := range [...]string{"anyOf", "oneOf", "allOf"} {
		v, _ := property.Get(union)
		for _, e := range v.Elems() {
			set.gather(e, root, steps)
		}
	}
	if v, ok := property.Get("enum"); ok && len(set) == 0 {
		for _, e := range v.Elems() {
			set[jsonType(e)] = true
		}
	}
}

// allowedNull reports whether a value says null and may.
func allowedNull(value string, set typeSet) bool { return set["null"] && pyStrip(value) == "null" }

// resolve follows a "#/a/b" reference.
func resolve(ref string, root canon.Value) canon.Value {
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return canon.Value{}
	}
	v := root
	for _, key := range strings.Split(path, "/") {
		v, _ = v.Get(strings.NewReplacer("~1", "/", "~0", "~").Replace(key))
	}
	return v
}

// bySet reads text as the first type of the set that takes it, in the order integer, number,
// boolean, object, array, string; else as JSON, else as text. Null is the caller's to see.
func bySet(text string, set typeSet) canon.Value {
	trimmed := pyStrip(text)
	if set["integer"] {
		if v, ok := pyInt(trimmed); ok {
			return v
		}
	}
	if set["number"] {
		if v, ok := floatOrInt(trimmed); ok {
			return v
		}
	}
	if set["boolean"] {
		switch strings.ToLower(trimmed) {
		case "true", "1", "yes", "on":
			return canon.BoolValue(true)
		case "false", "0", "no", "off":
			return canon.BoolValue(false)
		}
	}
	for typ, kind := range map[string]canon.Kind{"object": canon.Object, "array": canon.Array} {
		if set[typ] {
			if v, err := canon.ParseValue([]byte(text)); err == nil && v.Kind() == kind {
				return v
			}
		}
	}
	if set["string"] {
		return textValue(text)
	}
	return jsonOr(text, textValue(text))
}

// floatOrInt is float(text), as an int if it is integral: what the canonical arguments do
// too.
func floatOrInt(text string) (canon.Value, bool) {
	if v, ok := pyInt(text); ok {
		return v, true
	}
	return pyFloat(text)
}
