package jinja

import (
	"strings"
	"testing"
	"unicode/utf8"
)

var fuzzSeeds = []string{
	"{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% if not loop.last %}\n{% endif %}{% endfor %}",
	"{%- macro show(x, d=0) -%}{% if x is mapping %}{% for k, v in x|items %}{{ k }}{{ show(v, d + 1) }}{% endfor %}{% else %}{{ x | tojson(indent=2) }}{% endif %}{%- endmacro -%}{{ show(d) }}",
	"{% set ns = namespace(i=0, s='') %}{% for c in s[::-1] if c != 'l' %}{% set ns.i = ns.i + 1 %}{% set ns.s = ns.s ~ c %}{% else %}none{% endfor %}{{ ns.i ** 2 // 3 % 7 }}{{ ns.s }}",
	"{% raw %}{{ x }}{% endraw %}{# c #}{{ 'a\\n\\x41\\u00e9' 'b' }}{{ {'a': (1,), 'b': [1.5e3, none]} }}",
	"{% call(a) m(1, *l, **d) %}{{ a }}{% endcall %}{% filter upper %}x{% endfilter %}{% set y | trim %} y {% endset %}{% with a = 1 %}{{ a }}{% endwith %}",
	"{{ '%5.2f|%-3s|%(a)s' % (1.5, 'x') }}{{ '{:>5}{!r}{0[1]}'.format(1, l) }}",
	"{{ l|map('string')|select('in', ['1'])|join(',')|default('x', true) }}{{ users|groupby('a')|list }}",
	"{% for i in l recursive %}{{ loop.index }}{{ loop(l) }}{% break %}{% endfor %}{{ s.split(',', 1)[-1].lstrip('\\n')[1:-1] }}",
	"{{ a.b.c is defined and not 1 in x or 2 < 3 <= 4 if x is not none else y }}",
	"{% generation %}{{ raise_exception('x') }}{% endgeneration %}{{ strftime_now('%d %b %Y %-d') }}",
}

func FuzzCompile(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		_, err := Compile(src, Options{})
		if err != nil && strings.Contains(err.Error(), "internal fault") {
			t.Fatal(err)
		}
	})
}

func FuzzRender(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add(s, `{"messages":[{"role":"user","content":" hi "}],"s":"hello","l":[1,2],"d":{"a":{"b":null}},"users":[{"a":1}]}`)
	}
	f.Fuzz(func(t *testing.T, src, ctx string) {
		tpl, err := Compile(src, Options{Now: fixedNow, MaxSteps: 2000, MaxLoop: 500, MaxOutput: 1 << 16})
		if err != nil {
			return
		}
		vars := NewDict(0)
		if v, err := FromJSON([]byte(ctx)); err == nil {
			if d, ok := v.AsDict(); ok {
				vars = d
			}
		}
		out, err := tpl.Render(vars)
		if err != nil {
			if strings.Contains(err.Error(), "InternalError") {
				t.Fatal(err)
			}
			return
		}
		if utf8.ValidString(src) && !utf8.ValidString(out) {
			t.Fatalf("output is not UTF-8: %q", out)
		}
		if again, err := tpl.Render(vars); err != nil || again != out {
			t.Fatalf("a second render differs: %q, %v", again, err)
		}
	})
}

func FuzzFromJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,2.5,"x\u00e9",null,true,12345678901234567890]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := FromJSON(raw)
		if err != nil {
			return
		}
		r := &run{t: &Template{}}
		r.t.opts.fill()
		out, err := filterToJSON(r, v, args{})
		if err != nil {
			return
		}
		if _, err := FromJSON([]byte(out.text())); err != nil {
			t.Fatalf("%q: what tojson wrote cannot be read: %v", out.text(), err)
		}
	})
}
