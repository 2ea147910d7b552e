package jinja

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A fixtureCase is one render measured with jinja2 set up as transformers does.
type fixtureCase struct {
	Tpl  string          `json:"tpl"`
	Conv string          `json:"conv"`
	Ctx  json.RawMessage `json:"ctx"`
	Out  *string         `json:"out"`
	Err  any             `json:"err"`
}

func fixedNow() time.Time { return time.Date(2025, 3, 7, 9, 5, 2, 0, time.UTC) }

// fixtureDir finds the shared fixtures, or skips.
func fixtureDir(tb testing.TB) string {
	tb.Helper()
	shared := os.Getenv("RELAX_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "..", "shared")
	}
	dir := filepath.Join(shared, "fixtures")
	if _, err := os.Stat(filepath.Join(dir, "chat_template_cases.json.gz")); err != nil {
		tb.Skipf("CHAT TEMPLATE FIXTURES ARE ABSENT: set RELAX_SHARED to the directory that holds fixtures/ (%v)", err)
	}
	return dir
}

func loadCases(tb testing.TB) []fixtureCase {
	tb.Helper()
	f, err := os.Open(filepath.Join(fixtureDir(tb), "chat_template_cases.json.gz"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	var cases []fixtureCase
	if err := json.NewDecoder(z).Decode(&cases); err != nil {
		tb.Fatal(err)
	}
	return cases
}

// loadTemplates compiles every template the cases name.
func loadTemplates(tb testing.TB, cases []fixtureCase) map[string]*Template {
	tb.Helper()
	out := map[string]*Template{}
	for _, c := range cases {
		if _, ok := out[c.Tpl]; ok {
			continue
		}
		path := filepath.Join(fixtureDir(tb), "chat_templates", c.Tpl)
		src, err := os.ReadFile(path)
		if err != nil {
			src, err = os.ReadFile(path + ".jinja")
		}
		if err != nil {
			tb.Fatal(err)
		}
		t, err := Compile(string(src), Options{Name: c.Tpl, Now: fixedNow})
		if err != nil {
			tb.Fatalf("%s: %v", c.Tpl, err)
		}
		out[c.Tpl] = t
	}
	return out
}

func caseVars(tb testing.TB, raw []byte) *Dict {
	tb.Helper()
	v, err := FromJSON(raw)
	if err != nil {
		tb.Fatal(err)
	}
	d, ok := v.AsDict()
	if !ok {
		tb.Fatal("the context is not an object")
	}
	return d
}

func TestFixtures(t *testing.T) {
	cases := loadCases(t)
	templates := loadTemplates(t, cases)
	renders, raises, bad := 0, 0, 0
	for _, c := range cases {
		got, err := templates[c.Tpl].Render(caseVars(t, c.Ctx))
		var limit *LimitError
		switch {
		case c.Out == nil && err == nil:
			t.Errorf("%s / %s: rendered, expected a raise: %v", c.Tpl, c.Conv, c.Err)
		case c.Out != nil && err != nil:
			t.Errorf("%s / %s: %v", c.Tpl, c.Conv, err)
		case c.Out != nil && got != *c.Out:
			i := 0
			for i < len(got) && i < len(*c.Out) && got[i] == (*c.Out)[i] {
				i++
			}
			lo := max(0, i-40)
			t.Errorf("%s / %s: differs at byte %d:\n got %q\nwant %q", c.Tpl, c.Conv, i,
				got[lo:min(len(got), i+60)], (*c.Out)[lo:min(len(*c.Out), i+60)])
		case c.Out != nil:
			renders++
			continue
		default:
			var e *Error
			if errors.As(err, &e) && e.Kind == "InternalError" {
				t.Errorf("%s / %s: %v", c.Tpl, c.Conv, err)
			}
			if errors.As(err, &limit) && limit.Limit != "MaxDepth" {
				t.Errorf("%s / %s: unexpected limit: %v", c.Tpl, c.Conv, err)
			}
			raises++
			continue
		}
		if bad++; bad > 20 {
			t.Fatal("too many differences")
		}
	}
	t.Logf("%d renders byte-equal, %d raises agree, %d cases in all", renders, raises, len(cases))
}

func BenchmarkCorpus(b *testing.B) {
	all := loadCases(b)
	templates := loadTemplates(b, all)
	type job struct {
		t    *Template
		vars *Dict
	}
	var jobs []job
	for _, c := range all {
		if c.Out != nil {
			jobs = append(jobs, job{templates[c.Tpl], caseVars(b, c.Ctx)})
		}
	}
	var buf []byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		j := jobs[i%len(jobs)]
		out, err := j.t.AppendRender(buf[:0], j.vars)
		if err != nil {
			b.Fatal(err)
		}
		buf = out
	}
}

// conversation is n turns of user, assistant with a call, and tool.
func conversation(n int) *Dict {
	text := func(s string) Value { return String(s) }
	var msgs []Value
	for i := range n {
		call := NewDict(2).Set("name", text("search")).
			Set("arguments", FromDict(NewDict(2).Set("query", text("what is \"it\"\n")).Set("limit", Int(int64(i)))))
		msgs = append(msgs,
			FromDict(NewDict(2).Set("role", text("user")).Set("content", text(strings.Repeat("tell me more about it. ", 40)))),
			FromDict(NewDict(4).Set("role", text("assistant")).Set("content", text(strings.Repeat("let me see. ", 60))).
				Set("reasoning_content", text("thinking")).
				Set("tool_calls", List([]Value{FromDict(NewDict(2).Set("type", text("function")).Set("function", FromDict(call)))}))),
			FromDict(NewDict(2).Set("role", text("tool")).Set("content", text(strings.Repeat("a result line\n", 100)))),
		)
	}
	return NewDict(3).Set("messages", List(msgs)).Set("tools", None()).Set("add_generation_prompt", Bool(true))
}

func Benchmark50Turns(b *testing.B) {
	src, err := os.ReadFile(filepath.Join(fixtureDir(b), "chat_templates", "npm__qwen3.jinja"))
	if err != nil {
		b.Fatal(err)
	}
	t, err := Compile(string(src), Options{})
	if err != nil {
		b.Fatal(err)
	}
	vars := conversation(50)
	var buf []byte
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if buf, err = t.AppendRender(buf[:0], vars); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkCompile(b *testing.B) {
	src, err := os.ReadFile(filepath.Join(fixtureDir(b), "chat_templates", "trl__diffusion_gemma_training.jinja"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for range b.N {
		if _, err := Compile(string(src), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
