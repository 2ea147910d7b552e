package tokenizer_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
)

func byteIDs(raw string) []int32 {
	ids := make([]int32, len(raw))
	for i := range len(raw) {
		ids[i] = int32(raw[i])
	}
	return ids
}

func TestStreamGivesWholeCharacters(t *testing.T) {
	for name, steps := range map[string][][2]string{ // bytes in, text out; the last line is Flush
		"ascii at once":             {{"a", "a"}, {"b", "b"}, {"", ""}},
		"two bytes":                 {{"\xc3", ""}, {"\xa9", "é"}, {"", ""}},
		"four bytes":                {{"x\xf0", "x"}, {"\x9f", ""}, {"\x98", ""}, {"\x80y", "😀y"}, {"", ""}},
		"cut off":                   {{"a\xe4\xbd", "a"}, {"", "\uFFFD"}},
		"broken by the next":        {{"\xe4\xbd", ""}, {"a", "\uFFFDa"}, {"", ""}},
		"another begins":            {{"\xe4\xbd", ""}, {"\xc3", "\uFFFD"}, {"\xa9", "é"}, {"", ""}},
		"cannot become a character": {{"\xed\xa0", "\uFFFD\uFFFD"}, {"\x80", "\uFFFD"}, {"\xc0", "\uFFFD"}, {"", ""}},
		"no ids":                    {{"\xc3", ""}, {"", ""}, {"\xa9", "é"}, {"", ""}},
	} {
		s := tokenizer.NewStream(bytetok.New())
		for i, step := range steps[:len(steps)-1] {
			if got, err := s.Next(byteIDs(step[0])...); err != nil || got != step[1] {
				t.Errorf("%s: step %d: Next(%q) = %q, %v; want %q", name, i, step[0], got, err, step[1])
			}
		}
		if got, want := s.Flush(), steps[len(steps)-1][1]; got != want {
			t.Errorf("%s: Flush = %q, want %q", name, got, want)
		}
		if got := s.Flush(); got != "" {
			t.Errorf("%s: a second Flush = %q", name, got)
		}
	}
}

func TestStreamSurvivesAnError(t *testing.T) {
	s := tokenizer.NewStream(bytetok.New())
	for _, c := range []struct {
		ids  []int32
		want string
		ok   bool
	}{{[]int32{0xc3}, "", true}, {[]int32{0xa9, 9999}, "", false}, {[]int32{0xa9}, "é", true}} {
		if got, err := s.Next(c.ids...); got != c.want || (err == nil) != c.ok {
			t.Errorf("Next(%v) = %q, %v", c.ids, got, err)
		}
	}
}

// FuzzStream: in whatever portions the ids come, the text is that of Decode, never with half a
// character, and nothing waits that is complete.
func FuzzStream(f *testing.F) {
	for _, s := range []string{"", "héllo 你好 😀", "\xe4\xbd", "\xf0\x9f\xe4\xbd\xa0", "\xed\xa0\x80", "a\xc0\xaf\xf5", "\xf0\x8f\xbf"} {
		f.Add(s, uint64(1))
	}
	tok := bytetok.New()
	f.Fuzz(func(t *testing.T, raw string, seed uint64) {
		ids := byteIDs(raw)
		want, err := tok.Decode(ids)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, 1))
		s := tokenizer.NewStream(tok)
		var got strings.Builder
		for rest := ids; len(rest) > 0; {
			n := 1 + r.IntN(min(len(rest), 3))
			text, err := s.Next(rest[:n]...)
			if err != nil || !utf8.ValidString(text) {
				t.Fatalf("Next(%v) = %q, %v", rest[:n], text, err)
			}
			got.WriteString(text)
			rest = rest[n:]
			held := tokenizer.Text([]byte(raw[:len(raw)-len(rest)]))
			if held != got.String() && held != got.String()+"\uFFFD" {
				t.Fatalf("after %d bytes of %q: %q, want %q", len(raw)-len(rest), raw, got.String(), held)
			}
		}
		got.WriteString(s.Flush())
		if got.String() != want {
			t.Fatalf("streamed %q, want %q", got.String(), want)
		}
	})
}

func TestEncodeAllKeepsOrder(t *testing.T) {
	tok := bytetok.New()
	texts := make([]string, 200)
	for i := range texts {
		texts[i] = strings.Repeat(string(rune('a'+i%26)), 1000+i)
	}
	got, err := tok.EncodeBatch(texts)
	if err != nil || len(got) != len(texts) {
		t.Fatalf("%d results, %v", len(got), err)
	}
	for i, ids := range got {
		if len(ids) != 1000+i || ids[0] != int32('a'+i%26) {
			t.Errorf("text %d became %d ids from %d on", i, len(ids), ids[0])
		}
	}
	if got, err := tok.EncodeBatch(nil); err != nil || len(got) != 0 {
		t.Errorf("EncodeBatch(nil) = %v, %v", got, err)
	}
}

func TestEncodeAllReportsTheFirstError(t *testing.T) {
	texts := make([]string, 40)
	for i := range texts {
		texts[i] = strings.Repeat("x", 4000)
	}
	texts[7], texts[31] = "\xff", "\xff"
	if got, err := bytetok.New().EncodeBatch(texts); got != nil || err == nil || !strings.Contains(err.Error(), "text 8 of 40") {
		t.Errorf("EncodeBatch = %v, %v; want an error about text 8", got, err)
	}
	closed := errors.New("closed")
	if _, err := tokenizer.EncodeAll(texts, func(string) ([]int32, error) { return nil, closed }); !errors.Is(err, closed) {
		t.Errorf("EncodeAll: %v, want the cause wrapped", err)
	}
}
