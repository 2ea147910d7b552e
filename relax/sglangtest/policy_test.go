package sglangtest

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

func TestTemplates(t *testing.T) {
	captures := map[string]string{"a": "12", "b": "-30", "w": "word"}
	for _, c := range []struct{ text, want string }{
		{"plain", "plain"},
		{"", ""},
		{"${a}", "12"},
		{"<${w}>", "<word>"},
		{"${a+b}", "-18"},
		{"${a-b}", "42"},
		{"${a*b}", "-360"},
		{"${a+b*2}", "-48"},
		{"${(a+b)*2}", "-36"},
		{"${-a}", "-12"},
		{"${ a - - b }", "-18"},
		{"${a-b-1}", "41"},
		{"${a*100000000000000000000}", "1200000000000000000000"},
		{"$${a}", "${a}"},
		{"$${${a}}", "${12}"},
		{"$5 { } ${7}", "$5 { } 7"},
		{`{"x": "${a} + ${b}"}`, `{"x": "12 + -30"}`},
	} {
		tpl, err := parseTemplate(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		var got strings.Builder
		for _, p := range tpl {
			if p.literal != "" {
				got.WriteString(p.literal)
				continue
			}
			v, err := p.value(captures)
			if err != nil {
				t.Errorf("%q: %v", c.text, err)
			}
			got.WriteString(v)
		}
		if got.String() != c.want {
			t.Errorf("%q: got %q, want %q", c.text, got.String(), c.want)
		}
	}
}

func TestTemplateErrors(t *testing.T) {
	for _, text := range []string{"${", "${}", "${a", "${a+}", "${+a}", "${a b}", "${(a}", "${a)}", "${a/b}", "${a.b}",
		"${" + strings.Repeat("(", 100) + "a" + strings.Repeat(")", 100) + "}", "${" + strings.Repeat("1", 300) + "}"} {
		if _, err := parseTemplate(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestPolicyErrors(t *testing.T) {
	for name, c := range map[string]struct{ document, want string }{
		"not JSON":         {`{`, "EOF"},
		"unknown field":    {`{"default":[{"text":"a"}],"defaults":1}`, "unknown field"},
		"trailing":         {`{"default":[{"text":"a"}]} x`, "after the end"},
		"no default":       {`{"classes":[]}`, "no candidates"},
		"no name":          {`{"default":[{"text":"a"}],"classes":[{"candidates":[{"text":"a"}]}]}`, "no name"},
		"default's name":   {`{"default":[{"text":"a"}],"classes":[{"name":"default","candidates":[{"text":"a"}]}]}`, "taken"},
		"twice":            {`{"default":[{"text":"a"}],"classes":[{"name":"x","candidates":[{"text":"a"}]},{"name":"x","candidates":[{"text":"a"}]}]}`, "taken"},
		"regex":            {`{"default":[{"text":"a"}],"classes":[{"name":"x","match":{"regex":"("},"candidates":[{"text":"a"}]}]}`, "regex"},
		"no capture":       {`{"default":[{"text":"a"}],"classes":[{"name":"x","match":{"regex":"(?P<b>1)"},"candidates":[{"text":"${a}"}]}]}`, `captures "a"`},
		"weight":           {`{"default":[{"text":"a","weight":1e7}]}`, "weight"},
		"turn":             {`{"default":[{"text":"a"}],"classes":[{"name":"x","match":{"turn":-1},"candidates":[{"text":"a"}]}]}`, "turn"},
		"empty class":      {`{"default":[{"text":"a"}],"classes":[{"name":"x"}]}`, "no candidates"},
		"negative tail":    {`{"default":[{"text":"a"}],"tail_tokens":-1}`, "tail_tokens"},
		"default template": {`{"default":[{"text":"${a}"}]}`, "captures"},
	} {
		_, err := ParsePolicy([]byte(c.document))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestModelErrors(t *testing.T) {
	for name, document := range map[string]string{
		"unknown stop": `{"default":[{"text":"a","stop":"<none>"}]}`,
		"stop inside":  `{"default":[{"text":"a<|im_end|>b"}]}`,
		"other stop":   `{"default":[{"text":"a","stop":"x"},{"text":"axb","stop":"y"}]}`,
	} {
		if _, err := NewModel(policyOf(t, document), ByteTokenizer(), []int32{258}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewModel(&Policy{}, ByteTokenizer(), []int32{258}); err == nil {
		t.Error("a policy that was not compiled: no error")
	}
}

func TestPolicyClass(t *testing.T) {
	p := policyOf(t, `{
	  "classes": [
	    {"name":"third","match":{"turn":3},"candidates":[{"text":"3"}]},
	    {"name":"tool","match":{"role":"tool"},"candidates":[{"text":"t"}]},
	    {"name":"both","match":{"contains_all":["red","blue"]},"candidates":[{"text":"b"}]},
	    {"name":"sum","match":{"last_regex":"(?P<a>\\d+)\\+(?P<b>\\d+)"},"candidates":[{"text":"${a+b}"}]},
	    {"name":"last","match":{"last_contains":"hello"},"candidates":[{"text":"l"}]},
	    {"name":"whole","match":{"last_regex":"^user\\nyes$"},"candidates":[{"text":"w"}]},
	    {"name":"any","match":{"contains":"hello","regex":"x(?P<n>\\d)"},"candidates":[{"text":"${n}"}]}
	  ],
	  "default": [{"text":"d"}]}`)
	m, err := NewModel(p, ByteTokenizer(), []int32{258})
	if err != nil {
		t.Fatal(err)
	}
	turn := func(role, text string) string { return "<|im_start|>" + role + "\n" + text + "<|im_end|>\n" }
	const ask = "<|im_start|>assistant\n"
	for name, c := range map[string]struct {
		prompt, class string
		captures      map[string]string
	}{
		"default":            {turn("user", "hi") + ask, "default", nil},
		"empty":              {"", "default", nil},
		"last match wins":    {turn("user", "1+2 or 3+4") + ask, "sum", map[string]string{"a": "3", "b": "4"}},
		"only last message":  {turn("user", "1+2") + turn("user", "hi") + ask, "default", nil},
		"partial reply":      {turn("user", "hi") + ask + "1+2 hello", "default", nil},
		"last message":       {turn("user", "oh hello") + ask, "last", map[string]string{}},
		"whole message":      {turn("user", "yes") + ask, "whole", map[string]string{}},
		"tail":               {turn("user", "hello x7") + turn("user", "hi") + ask, "any", map[string]string{"n": "7"}},
		"regex missing":      {turn("user", "hello x") + turn("user", "hi") + ask, "default", nil},
		"contains all":       {turn("user", "blue") + turn("user", "red") + ask, "both", map[string]string{}},
		"role":               {turn("user", "blue") + turn("tool", "red") + ask, "tool", map[string]string{}},
		"second turn":        {turn("user", "a") + turn("assistant", "b") + turn("user", "c") + ask, "default", nil},
		"third turn":         {turn("user", "a") + turn("assistant", "b") + turn("assistant", "b") + turn("user", "c") + ask, "third", map[string]string{}},
		"third, no header":   {turn("user", "a") + turn("assistant", "b") + turn("assistant", "b") + turn("user", "c"), "third", map[string]string{}},
		"third, with prefix": {turn("assistant", "b") + turn("assistant", "b") + turn("user", "c") + ask + "<think>\n\n</think>\n\n3", "third", map[string]string{}},
		"no chat":            {"say 5+6", "sum", map[string]string{"a": "5", "b": "6"}},
	} {
		class, captures := p.Class(c.prompt)
		if class != c.class || !maps.Equal(captures, c.captures) {
			t.Errorf("%s: got %s %v, want %s %v", name, class, captures, c.class, c.captures)
		}
		ids := tokens(t, m, c.prompt)
		place, err := m.locate(ids)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := p.classes[place.class].name; got != c.class {
			t.Errorf("%s: in tokens %s, in text %s", name, got, c.class)
		}
	}
}

func TestWithWeights(t *testing.T) {
	p := policyOf(t, `{"classes":[{"name":"x","match":{"contains":"x"},"candidates":[{"text":"a","weight":1},{"text":"b"}]}],"default":[{"text":"d"}]}`)
	next, err := p.WithWeights(map[string][]float64{"x": {3, 4}})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Weights()["x"]; got[0] != 1 || got[1] != 0 {
		t.Errorf("the old policy changed: %v", got)
	}
	if got := next.Weights(); got["x"][0] != 3 || got["x"][1] != 4 || got["default"][0] != 0 {
		t.Errorf("weights are %v", got)
	}
	for name, w := range map[string]map[string][]float64{
		"unknown class": {"y": {1}}, "count": {"x": {1}}, "size": {"x": {1, 1e300}},
	} {
		if _, err := p.WithWeights(w); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if next, err = next.WithWeights(map[string][]float64{"default": {5}}); err != nil || next.Weights()["default"][0] != 5 {
		t.Errorf("default: %v %v", next, err)
	}
	again := policyOf(t, string(next.Document()))
	if got := again.Weights(); got["x"][1] != 4 || got["default"][0] != 5 {
		t.Errorf("after a round trip weights are %v", got)
	}
}

func TestDefaultPolicy(t *testing.T) {
	m, err := NewModel(DefaultPolicy(), ByteTokenizer(), []int32{258, 256})
	if err != nil {
		t.Fatal(err)
	}
	const system = "<|im_start|>system\n<tools>{\"name\": \"calculator\"}</tools><|im_end|>\n"
	const ask = "<|im_end|>\n<|im_start|>assistant\n"
	for _, c := range []struct{ prompt, class, want string }{
		{"<|im_start|>user\nHi" + ask, "default", "OK."},
		{"<|im_start|>user\nWhat is 12 + 30?" + ask, "add", "The answer is 42."},
		{"<|im_start|>user\nWhat is 12 minus 30?" + ask, "subtract", "The answer is -18."},
		{"<|im_start|>user\nWhat is 12 × 3?" + ask, "multiply", "The answer is 36."},
		{system + "<|im_start|>user\n12 plus 30" + ask, "add-tool", "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"expression\": \"12 + 30\"}}\n</tool_call>"},
		{system + "<|im_start|>user\n12 - 30" + ask, "subtract-tool", "The answer is -18."},
		{system + "<|im_start|>user\n12*3" + ask, "multiply-tool", "The answer is 46."},
		{system + "<|im_start|>user\n1+1" + ask + "x<|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response>" + ask, "tool-number", "The answer is 42."},
		{"<|im_start|>user\n<tool_response>\n42.0\n</tool_response>" + ask, "tool-number", "The answer is 43."},
		{"<|im_start|>user\n<tool_response>\nerror 1+1\n</tool_response>" + ask, "tool-other", "I do not know."},
	} {
		d, err := m.Distribution(tokens(t, m, c.prompt))
		if err != nil {
			t.Fatalf("%q: %v", c.prompt, err)
		}
		found := false
		for _, candidate := range d {
			found = found || candidate.Text == c.want
		}
		if d[0].Class != c.class || !found {
			t.Errorf("%q: got %s %+v, want %s with %q", c.prompt, d[0].Class, d, c.class, c.want)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(defaultPolicy))
	f.Add([]byte(`{"default":[{"text":"${a}"}]}`))
	f.Add([]byte(`{"classes":[{"name":"x","match":{"regex":"(?P<a>.*)","turn":1},"candidates":[{"text":"${a*a}<|im_end|>","stop":"x"}]}],"default":[{"text":""}]}`))
	f.Add([]byte(`{"default":[{"text":"\ud800"}],"format":{"reply_header":"x","reply_skip":[""]}}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		p, err := ParsePolicy(document)
		if err != nil {
			return
		}
		if !json.Valid(p.Document()) {
			t.Fatalf("document is not JSON: %s", p.Document())
		}
		m, err := NewModel(p, ByteTokenizer(), []int32{258, 256})
		if err != nil {
			return
		}
		for _, text := range []string{"", "a12", "<|im_start|>user\n1+2<|im_end|>\n<|im_start|>assistant\nx"} {
			ids, err := m.markup(text)
			if err != nil {
				t.Fatal(err)
			}
			d, err := m.Distribution(ids)
			if err != nil {
				continue // a capture that is no integer
			}
			if len(d) == 0 {
				t.Fatal("nothing to say")
			}
		}
	})
}
