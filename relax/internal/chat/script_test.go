package chat

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// marked is a script of pieces; those at odd places are control tokens, numbered from 1.
func marked(pieces ...string) script {
	var s script
	for i, p := range pieces {
		if i%2 == 1 {
			s.marks = append(s.marks, mark{len(s.text), len(s.text) + len(p), int32(i/2 + 1)})
		}
		s.text = append(s.text, p...)
	}
	return s
}

func show(s script) string {
	out, at := "", 0
	for _, m := range s.marks {
		out += fmt.Sprintf("%q[%q=%d]", s.text[at:m.start], s.text[m.start:m.end], m.id)
		at = m.end
	}
	return out + fmt.Sprintf("%q", s.text[at:])
}

func TestScriptCuts(t *testing.T) {
	s := marked("ab", "<x>", "cd", "<y>", "", "<z>", "ef") // <x> 2 to 5, <y> 7 to 10, <z> 10 to 13
	for _, c := range []struct {
		at         int
		upTo, from string
	}{
		{0, `""`, `"ab"["<x>"=1]"cd"["<y>"=2]""["<z>"=3]"ef"`},
		{1, `"a"`, `"b"["<x>"=1]"cd"["<y>"=2]""["<z>"=3]"ef"`},
		{2, `"ab"`, `""["<x>"=1]"cd"["<y>"=2]""["<z>"=3]"ef"`},
		{5, `"ab"["<x>"=1]""`, `"cd"["<y>"=2]""["<z>"=3]"ef"`},
		{6, `"ab"["<x>"=1]"c"`, `"d"["<y>"=2]""["<z>"=3]"ef"`},
		{10, `"ab"["<x>"=1]"cd"["<y>"=2]""`, `""["<z>"=3]"ef"`},
		{13, `"ab"["<x>"=1]"cd"["<y>"=2]""["<z>"=3]""`, `"ef"`},
		{15, `"ab"["<x>"=1]"cd"["<y>"=2]""["<z>"=3]"ef"`, `""`},
	} {
		if got := show(s.upTo(c.at)); got != c.upTo {
			t.Errorf("up to %d: %s, want %s", c.at, got, c.upTo)
		}
		if got := show(s.from(c.at)); got != c.from {
			t.Errorf("from %d: %s, want %s", c.at, got, c.from)
		}
	}
	s.start = true
	if !s.upTo(5).start || s.from(5).start {
		t.Error("the end is taken for the start")
	}
	if cut := s.upTo(5); cap(cut.text) > 5 || cap(cut.marks) > 1 {
		t.Error("appending to a cut would write into the whole")
	}
}

func TestScriptEndsWith(t *testing.T) {
	for _, c := range []struct {
		s    script
		text string
		want bool
	}{
		{marked("ab", "<x>", "cd"), "<x>cd", true},
		{marked("ab", "<x>", ""), "<x>", true},
		{marked("ab", "<x>", "cd"), "cd", false},        // begins with no control token
		{marked("ab<x>cd"), "<x>cd", false},             // a spelling, no token
		{marked("ab<", "x", ">cd"), "<x>cd", false},     // the token begins elsewhere
		{marked("ab", "<x>", "cd"), "", false},          // nothing
		{marked("", "<x>", "cd"), "longer<x>cd", false}, // more than there is
		{marked("", "<x>", "cd"), "<x>cd", true},
		{marked("", "<x>", "cd", "<x>", "c"), "<x>cd", false},
	} {
		if got := c.s.endsWith(c.text); got != c.want {
			t.Errorf("%s ends with %q: %v", show(c.s), c.text, got)
		}
	}
}

func TestScriptCommon(t *testing.T) {
	for _, c := range []struct {
		a, b script
		want int
	}{
		{marked("abc"), marked("abd"), 2},
		{marked("abc"), marked("abc"), 3},
		{marked("abc"), marked("ab"), 2},
		{marked(""), marked("x"), 0},
		{marked("a\u00e9"), marked("a\u00e8"), 1}, // within a character
		{marked("a\u00e9"), marked("a\u00e9"), 3},
		{marked("a", "<x>", "b"), marked("a", "<x>", "c"), 4},
		{marked("a", "<x>", "b"), marked("a<x>b"), 1}, // a token there, text here
		{marked("a<x>b"), marked("a", "<x>", "b"), 1},
		{marked("a", "<x>", ""), marked("a", "<x", "y"), 1}, // another token
		{marked("a", "<x>"), marked("a", "<x>z"), 1},        // a token that takes white space along
		{marked("", "<x>", "", "<y>", "a"), marked("", "<x>", "", "<z>", "a"), 3},
		{marked("a", "<x>", "b", "<y>", ""), marked("a", "<x>", "b"), 5},
	} {
		if got := common(c.a, c.b); got != c.want {
			t.Errorf("%s and %s have %d bytes in common, want %d", show(c.a), show(c.b), got, c.want)
		}
	}
}

// A starter tells the start of a sequence from its middle, as SentencePiece does.
type starter struct {
	tokenizer.Tokenizer
	fail error
	runs []string
}

const startID = 99

func (s *starter) Encode(text string) ([]int32, error) {
	ids, err := s.EncodeInner(text)
	return append([]int32{startID}, ids...), err
}

func (s *starter) EncodeInner(text string) ([]int32, error) {
	s.runs = append(s.runs, text)
	return []int32{100 + int32(len(text))}, s.fail
}

func (s *starter) EncodeBatch(texts []string) ([][]int32, error) {
	return tokenizer.EncodeAll(texts, s.EncodeInner)
}

func TestScriptIDs(t *testing.T) {
	begin := func(s script) script { s.start = true; return s }
	known := map[string][]int32{"ab": {7, 7}}
	for name, c := range map[string]struct {
		s     script
		known map[string][]int32
		want  []int32
		runs  []string
	}{
		"inner":              {marked("ab", "<x>", "", "<y>", "cde"), nil, []int32{102, 1, 2, 103}, []string{"ab", "cde"}},
		"start":              {begin(marked("ab", "<x>", "cde")), nil, []int32{startID, 102, 1, 103}, []string{"ab", "cde"}},
		"start with control": {begin(marked("", "<x>", "ab", "<y>", "c")), nil, []int32{1, 102, 2, 101}, []string{"ab", "c"}},
		"text alone":         {begin(marked("abc")), nil, []int32{startID, 103}, []string{"abc"}},
		"known":              {marked("ab", "<x>", "cde", "<y>", "ab"), known, []int32{7, 7, 1, 103, 2, 7, 7}, []string{"cde"}},
		"start, known":       {begin(marked("ab", "<x>", "cde", "<y>", "ab")), known, []int32{startID, 102, 1, 103, 2, 7, 7}, []string{"ab", "cde"}},
		"nothing":            {begin(marked("")), nil, []int32{}, nil},
	} {
		tok := &starter{}
		ids, err := c.s.ids(tok, c.known)
		if err != nil || !slices.Equal(ids, c.want) || !slices.Equal(tok.runs, c.runs) {
			t.Errorf("%s: %v of %q, %v; want %v of %q", name, ids, tok.runs, err, c.want, c.runs)
		}
	}
	tok := &starter{fail: errors.New("boom")}
	for _, s := range []script{marked("ab", "<x>"), marked("ab", "<x>", "cd"), begin(marked("ab"))} {
		if _, err := s.ids(tok, nil); !errors.Is(err, tok.fail) {
			t.Errorf("%s: %v", show(s), err)
		}
	}
}

func TestScriptEqual(t *testing.T) {
	a := marked("a", "<x>", "b")
	for _, c := range []struct {
		b    script
		want bool
	}{
		{marked("a", "<x>", "b"), true}, {marked("a<x>b"), false}, {marked("a", "<x>", "c"), false},
		{marked("a", "<x", ">b"), false}, {script{text: a.text, marks: []mark{{1, 4, 9}}}, false},
		{script{text: a.text, marks: a.marks, start: true}, false},
	} {
		if a.equal(&c.b) != c.want {
			t.Errorf("%s equals %s: %v", show(a), show(c.b), !c.want)
		}
	}
}

// TestScan holds the flags of added tokens to the tokenizers library, 0.22: a token is found
// leftmost, then longest; lstrip and rstrip take white space along; single_word keeps a token
// from being found where a word character touches it.
func TestScan(t *testing.T) {
	tokens := []tokenizer.AddedToken{
		{ID: 1, Content: "<a>"}, {ID: 2, Content: "<a><b>"}, {ID: 3, Content: "<b>"},
		{ID: 4, Content: "<l>", LStrip: true}, {ID: 5, Content: "<r>", RStrip: true},
		{ID: 6, Content: "<lr>", LStrip: true, RStrip: true}, {ID: 7, Content: "word", SingleWord: true},
		{ID: 8, Content: "<a", SingleWord: false},
	}
	for _, c := range []struct {
		text string
		cuts []int
		want string
	}{
		{"", nil, `""`},
		{"x<a>y", nil, `"x"["<a>"=1]"y"`},
		{"<a><b>", nil, `""["<a><b>"=2]""`}, // the longest
		{"<a<b>", nil, `""["<a"=8]""["<b>"=3]""`},
		{"<<a>>", nil, `"<"["<a>"=1]">"`},
		{"x \n\t<l> y", nil, `"x"[" \n\t<l>"=4]" y"`},
		{"x <r> \n y", nil, `"x "["<r> \n "=5]"y"`},
		{"x\u3000<lr>\u00a0y", nil, `"x"["\u3000<lr>\u00a0"=6]"y"`}, // white space beyond ASCII
		{"<r> <l>", nil, `""["<r> "=5]""["<l>"=4]""`},               // taken once
		{"<a> <l>", nil, `""["<a>"=1]""[" <l>"=4]""`},
		{"  <l>", nil, `""["  <l>"=4]""`},
		{"<r>  ", nil, `""["<r>  "=5]""`},
		{"word", nil, `""["word"=7]""`},
		{"a word.", nil, `"a "["word"=7]"."`},
		{"sword word", nil, `"sword "["word"=7]""`},
		{"words _word word_ 1word wordé é" + "word", nil, `"words _word word_ 1word wordé éword"`},
		{"word\u200d word\u0301 \u203fword", nil, `"word\u200d word́ ‿word"`}, // joiners and marks belong to words
		{"-word-", nil, `"-"["word"=7]"-"`},
		{"x<a>y<a>", []int{2}, `"x<a>y"["<a>"=1]""`},           // a message's text goes on within
		{"x<a>y", []int{1}, `"x"["<a>"=1]"y"`},                 // it ends before
		{"x<a>y", []int{4}, `"x"["<a>"=1]"y"`},                 // it begins behind
		{"<a><b>", []int{3}, `"<a>"["<b>"=3]""`},               // text, then the template's own
		{"<a><b><b>", []int{1}, `"<a>"["<b>"=3]""["<b>"=3]""`}, //
		{"<a><a><a>", []int{1, 4, 7}, `"<a><a><a>"`},
	} {
		text := []byte(c.text)
		s := script{text: text, marks: newControls(tokens).scan(text, c.cuts)}
		if got := show(s); got != c.want {
			t.Errorf("%q cut at %v: %s, want %s", c.text, c.cuts, got, c.want)
		}
	}
}

func TestHazard(t *testing.T) {
	c := newControls([]tokenizer.AddedToken{{ID: 1, Content: "<|im_end|>"}, {ID: 2, Content: "<|im_start|>"}, {ID: 3, Content: "<｜User｜>"}})
	for text, want := range map[string]int{
		"": -1, "abc": -1, "<": 1, "<|": 2, "a<|im_": 6, "<|im_end|>": 1, "x <|im_end|> y": 3, "<|im_x": -1, "<|im_ end|>": -1,
		"<｜User": 8, "<｜User｜>": 1, "a < b": -1, "a <": 3, "<<|im_end|>": 2, "é<|im_start|>": 3,
	} {
		if got := c.hazard(text); got != want {
			t.Errorf("hazard of %q at %d, want %d", text, got, want)
		}
	}
}

func TestIsControl(t *testing.T) {
	const template = "{{ '<｜User｜>' }}<think>[MARK]\n\n<tool_call>"
	for _, c := range []struct {
		token tokenizer.AddedToken
		want  bool
	}{
		{tokenizer.AddedToken{Content: "<think>", Special: true}, true}, // the file says so
		{tokenizer.AddedToken{Content: "<think>"}, false},               // a plain tag
		{tokenizer.AddedToken{Content: "</think>"}, false},
		{tokenizer.AddedToken{Content: "<tool_call>"}, false},
		{tokenizer.AddedToken{Content: "<｜User｜>"}, true}, // the template writes it
		{tokenizer.AddedToken{Content: "<｜Other｜>"}, false},
		{tokenizer.AddedToken{Content: "[MARK]"}, true},
		{tokenizer.AddedToken{Content: "\n\n"}, false}, // white space
		{tokenizer.AddedToken{Content: "{{"}, false},   // no letters
	} {
		if got := isControl(c.token, template); got != c.want {
			t.Errorf("%+v is a control token: %v", c.token, got)
		}
	}
}
