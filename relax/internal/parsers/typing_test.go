package parsers

import (
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func TestPyLiteral(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`'a"b'`, `"a\"b"`},
		{`"""a"b
c"""`, `"a\"b\nc"`},
		{`'a' "b"`, `"ab"`},
		{`'\x41\u00e9\U0001F600\101\n\q\'\\'`, `"Aé😀A\n\\q'\\"`},
		{"'a\\\nb'", `"ab"`},
		{`-1_000`, `-1000`},
		{`+ 5`, `5`},
		{`123456789012345678901234567890`, `123456789012345678901234567890`},
		{`0x1F`, `31`}, {`-0b11`, `-3`}, {`0`, `0`}, {`00`, `0`},
		{`1.`, `1.0`}, {`.5`, `0.5`}, {`1e-7`, `1e-07`}, {`1E+3`, `1000.0`}, {`1_0.5`, `10.5`},
		{`True`, `true`}, {` None `, `null`},
		{`[1, (2, 3), (4), (5,), (),]`, `[1,[2,3],4,[5],[]]`},
		{`{'a': {1: None}, True: 2, 'a': 3,}`, `{"a":3,"true":2}`},
	} {
		v, err := pyLiteral(c.text)
		if got := string(v.AppendCompact(nil)); err != nil || got != c.want {
			t.Errorf("%s = %s, %v, want %s", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{
		"", "x", "true", "null", "1 2", "[1 2]", "[,]", "[1,,2]", "(,)", "{1}", "{1:}", "{[1]: 2}", "'a", "'a\nb'", "007", "1__0", "_1", "0x", "1e400",
		"nan", "inf", "1j", "--1", "1+1", "[1", "f()", "b'a'", "'\\", "0x1p3", strings.Repeat("[", 1000), strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000),
	} {
		if v, err := pyLiteral(text); err == nil {
			t.Errorf("%.40q is read as %s", text, v.AppendCompact(nil))
		}
	}
}

func TestInferredType(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"integer"}`:            "integer",
		`{"type":["null","boolean"]}`:   "boolean",
		`{"type":["null"]}`:             "string",
		`{"type":7}`:                    "string",
		`{}`:                            "string",
		`null`:                          "string",
		`{"anyOf":[{"type":"null"}]}`:   "string",
		`{"enum":[1,2]}`:                "integer",
		`{"enum":[1,"a"]}`:              "string",
		`{"properties":{}}`:             "object",
		`{"items":{}}`:                  "array",
		`{"allOf":[{},{"items":{}}]}`:   "array",
		`{"oneOf":[{"type":"number"}]}`: "number",
		`{"anyOf":[{"type":"integer"},{"type":"null"}]}`:   "integer",
		`{"anyOf":[{"type":"integer"},{"type":"string"}]}`: "string",
	} {
		v, err := canon.ParseValue([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		if got := inferredType(v); got != want {
			t.Errorf("%s: %s, want %s", schema, got, want)
		}
	}
}

// TestTypesOfALoop: a schema that refers to itself ends.
func TestTypesOfALoop(t *testing.T) {
	v, err := canon.ParseValue([]byte(`{"$ref":"#/x","x":{"$ref":"#/x","anyOf":[{"$ref":"#/x"},{"$ref":"#/x"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if set := typesOf(v, v); len(set) != 1 || !set["string"] {
		t.Errorf("types %v", set)
	}
}

func TestAttr(t *testing.T) {
	for _, c := range []struct{ header, want string }{
		{`name="a b" x="1"`, "a b"}, {`x="1" name='a"b'`, `a"b`}, {`name=a `, "a"}, {`xname="1"`, ""}, {`name=`, ""}, {`name="open`, "open"},
	} {
		if got := attr(c.header, "name"); got != c.want {
			t.Errorf("attr(%q) = %q, want %q", c.header, got, c.want)
		}
	}
}
