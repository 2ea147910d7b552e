package jinja

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLimits renders templates that would never end, or never fit, without limits.
func TestLimits(t *testing.T) {
	deep := strings.Repeat("[", 50) + strings.Repeat("]", 50)
	tests := []struct{ name, src, limit string }{
		{"recursive macro", "\n{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "MaxDepth"},
		{"mutual recursion", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "MaxDepth"},
		{"recursive caller", "{% macro m() %}{% call m() %}x{% endcall %}{{ caller }}{% endmacro %}{{ m() }}", "MaxDepth"},
		{"recursive loop", "{% set ns = namespace() %}{% set ns.l = [1] %}{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "MaxDepth"},
		{"doubling macro calls", "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(100) }}", "MaxSteps"},
		{"shared value compared", "{% set ns = namespace(l=[], m=[]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}", "values compared"},
		{"output", "{% for i in range(60000) %}{{ 'x' * 1000 }}{% endfor %}", "MaxOutput"},
		{"one string", "{{ 'x' * 1000000000000 }}", "MaxOutput"},
		{"string without bytes", "{{ ('' * 1000000000000) ~ ('x' * 100000000) }}", "MaxOutput"},
		{"doubling", "{% set ns = namespace(s='xxxx') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "MaxOutput"},
		{"doubling by plus", "{% set ns = namespace(s='xxxx') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "MaxOutput"},
		{"doubling a list", "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "MaxSteps"},
		{"list times", "{{ ([0] * 1000000000)|length }}", "MaxSteps"},
		{"one loop", "{% for i in range(100000) %}{% endfor %}", "MaxLoop"},
		{"lazy filter", "{{ range(100000)|select('odd')|list|length }}", "MaxLoop"},
		{"all loops", "{% for i in range(5000) %}{% for j in range(5000) %}{% endfor %}{% endfor %}", "MaxSteps"},
		{"padding", "{{ 'x'.center(1000000000) }}", "MaxOutput"},
		{"percent width", "{{ '%1000000000d' % 1 }}", "MaxOutput"},
		{"percent precision", "{{ '%.1000000000f' % 1 }}", "precision"},
		{"format width", "{{ '{:1000000000}'.format(1) }}", "MaxOutput"},
		{"indent width", "{{ 'a\nb'|indent(1000000000) }}", "MaxOutput"},
		{"tojson indent", "{{ [1]|tojson(indent=1000000000) }}", "MaxOutput"},
		{"replace", "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}", "MaxOutput"},
		{"join", "{{ (range(50000)|map('string')|join('x' * 100000)) }}", "MaxOutput"},
		{"power", "{{ 10 ** 1000000000 }}", "integer bits"},
		{"shared value", "{% set ns = namespace(l=" + deep + ") %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "MaxOutput"},
		{"shared value as json", "{% set ns = namespace(l=[]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}", "MaxOutput"},
	}
	for _, tt := range tests {
		_, err := renderOnce(tt.src, nil)
		var le *LimitError
		if !errors.As(err, &le) {
			t.Errorf("%s: got %v, want a LimitError", tt.name, err)
			continue
		}
		if le.Limit != tt.limit || le.Line == 0 || le.Construct == "" || le.Template != "template" {
			t.Errorf("%s: got %+v, want limit %s with line and construct", tt.name, *le, tt.limit)
		}
	}
}

func TestDeepValues(t *testing.T) {
	for _, out := range []string{"{{ ns.l }}", "{{ ns.l|tojson }}", "{{ ns.l == ns.m }}", "{{ ns.l < ns.m }}"} {
		src := "{% set ns = namespace(l=[], m=[]) %}{% for i in range(60000) %}{% set ns.l = [ns.l] %}{% set ns.m = [ns.m] %}{% endfor %}" + out
		var e *Error
		if _, err := renderOnce(src, nil); !errors.As(err, &e) || e.Kind != "RecursionError" {
			t.Errorf("%s: got %v, want a RecursionError", out, err)
		}
	}
	if _, err := FromJSON([]byte(strings.Repeat("[", 100000))); err == nil {
		t.Error("deep JSON was read")
	}
}

func TestDeepSource(t *testing.T) {
	n := 100000
	for _, src := range []string{
		"{{ " + strings.Repeat("(", n) + "1" + strings.Repeat(")", n) + " }}",
		"{{ " + strings.Repeat("[", n) + strings.Repeat("]", n) + " }}",
		"{{ " + strings.Repeat("{1:", n) + "1" + strings.Repeat("}", n) + " }}",
		"{{ " + strings.Repeat("not ", n) + "1 }}",
		"{{ " + strings.Repeat("-", n) + "1 }}",
		"{{ 1" + strings.Repeat(" if 1 else 1", n) + " }}",
		"{{ 1" + strings.Repeat(" - 1", n) + " }}",
		"{{ 1" + strings.Repeat("|string", n) + " }}",
		"{{ x" + strings.Repeat(".x", n) + " }}",
		"{{ 1" + strings.Repeat(" and 1", n) + " }}",
		strings.Repeat("{% if 1 %}", n) + strings.Repeat("{% endif %}", n),
		"{% set " + strings.Repeat("(", n) + "a" + strings.Repeat(")", n) + " = 1 %}",
	} {
		var se *SyntaxError
		if _, err := Compile(src, Options{}); !errors.As(err, &se) || se.Line != 1 {
			t.Errorf("%.30s…: got %v, want a SyntaxError on line 1", src, err)
		}
	}
}

func TestErrorPlaces(t *testing.T) {
	tests := []struct{ src, want string }{
		{"a\n{{ raise_exception('no ' ~ 1) }}", "template line 2: the template raised: no 1"},
		{"\n\n{{ x.y.z }}", "template line 3: attribute 'z': UndefinedError: 'dict object' has no attribute 'y'"},
		{"{{ nope.y }}", "template line 1: attribute 'y': UndefinedError: 'nope' is undefined"},
		{"\n{{ 1 + 'a' }}", "template line 2: operator '+': TypeError: unsupported operand type(s) for +: 'int' and 'str'"},
		{"\n{{ {}|tojson|length + nope }}", "template line 2: operator '+': UndefinedError: 'nope' is undefined"},
		{"\n{% for i in 5 %}{% endfor %}", "template line 2: for: TypeError: 'int' object is not iterable"},
		{"\n\n{{ range|tojson }}", "template line 3: filter 'tojson': TypeError: Object of type function is not JSON serializable"},
		{"\n{% include 'x' %}", "template line 2: tag 'include' is not supported: a chat template is one file"},
		{"\n{% if x %}", "template line 2: unexpected end of template, expected 'elif' or 'else' or 'endif'"},
		{"\n{{ x.append(1) }}", ""},
		{"{{ [].append(1) }}", "template line 1: call of 'append': SecurityError: access to attribute 'append' is unsafe"},
	}
	vars := NewDict(1).Set("x", FromDict(NewDict(0)))
	for _, tt := range tests {
		_, err := renderOnce(tt.src, vars)
		if err == nil || (tt.want != "" && err.Error() != tt.want) {
			t.Errorf("%q: got %v\n want %s", tt.src, err, tt.want)
		}
	}
	var re *RaisedError
	if _, err := renderOnce("{{ raise_exception('why') }}", nil); !errors.As(err, &re) || re.Message != "why" {
		t.Errorf("raise_exception: got %v", err)
	}
	tpl, err := Compile("{{ strftime_now('%Y') }}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tpl.Render(nil); err == nil {
		t.Error("strftime_now without a clock did not fail")
	}
}

// TestAppendRender checks that dst is kept in front, and handed back untouched on an error.
func TestAppendRender(t *testing.T) {
	tpl, err := Compile("{{ a }}{% if bad %}{{ a.b.c }}{% endif %}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := tpl.AppendRender([]byte("pre:"), NewDict(1).Set("a", String("x")))
	if err != nil || string(out) != "pre:x" {
		t.Errorf("got %q, %v", out, err)
	}
	out, err = tpl.AppendRender([]byte("pre:"), NewDict(2).Set("a", String("x")).Set("bad", Bool(true)))
	if err == nil || string(out) != "pre:" {
		t.Errorf("on an error: got %q, %v", out, err)
	}
}

func TestConcurrentRenders(t *testing.T) {
	tpl, err := Compile("{% macro m(x) %}{{ x|upper }}{% endmacro %}{% for k, v in d.items() %}{{ m(k) }}={{ v|tojson }};{% endfor %}{{ strftime_now('%H') }}", Options{Now: func() time.Time { return fixedNow() }})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDict(0)
	for _, k := range strings.Fields("a b c d e f g h i j k l") {
		d.Set(k, List([]Value{Int(1), Float(2)}))
	}
	vars := NewDict(1).Set("d", FromDict(d))
	want, err := tpl.Render(vars)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 200 {
				if got, err := tpl.Render(vars); err != nil || got != want {
					t.Errorf("got %q, %v", got, err)
					return
				}
			}
		}()
	}
	wg.Wait()
}

func TestFromJSON(t *testing.T) {
	tests := []struct{ in, repr string }{
		{`{"b":1,"a":1.0,"b":2}`, `{'b': 2, 'a': 1.0}`},
		{`[1e5, 1E400, -0, -0.0, 12345678901234567890, NaN, -Infinity]`, `[100000.0, inf, 0, -0.0, 12345678901234567890, nan, -inf]`},
		{` "a\u00e9\ud83d\ude00\n\/" `, `'aé😀\n/'`},
		{`[]`, `[]`}, {`{}`, `{}`}, {`null`, `None`}, {`true`, `True`},
	}
	r := &run{t: &Template{}}
	r.t.opts.fill()
	for _, tt := range tests {
		v, err := FromJSON([]byte(tt.in))
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
			continue
		}
		if got, _ := r.repr(v); got != tt.repr {
			t.Errorf("%s: got %s, want %s", tt.in, got, tt.repr)
		}
	}
	for _, bad := range []string{``, `{`, `[1,]`, `{"a"}`, `{"a":1,}`, `01`, `"a`, "\"\n\"", `1 2`, `nul`, `"\x"`, `"\u12"`, `{1:2}`} {
		if v, err := FromJSON([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, v)
		}
	}
}
