package bytetok

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

var _ tokenizer.Tokenizer = (*Tokenizer)(nil)

func TestEncode(t *testing.T) {
	cases := []struct {
		name, text string
		want       []int32
	}{
		{"empty", "", []int32{}},
		{"ascii", "ab", []int32{'a', 'b'}},
		{"nul", "a\x00b", []int32{'a', 0, 'b'}},
		{"two bytes", "é", []int32{0xC3, 0xA9}},
		{"added", "<think>x</think>", []int32{259, 'x', 260}},
		{"prefix of an added token", "<tool_c", []int32{'<', 't', 'o', 'o', 'l', '_', 'c'}},
		{"next to each other", "<tool_call></tool_call>", []int32{261, 262}},
		{"response", "<tool_response></tool_response>", []int32{263, 264}},
		{"doubled bracket", "<<think>", []int32{'<', 259}},
		{"replacement character is text", "\uFFFD", []int32{0xEF, 0xBF, 0xBD}},
	}
	tok := New()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := tok.Encode(c.text)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Fatalf("Encode(%q) = %v, %v; want %v", c.text, got, err, c.want)
			}
			back, err := tok.Decode(got)
			if err != nil || back != c.text {
				t.Fatalf("Decode = %q, %v; want %q", back, err, c.text)
			}
		})
	}
}

func TestSpecialSpellingsAreText(t *testing.T) {
	tok := New()
	for _, token := range tok.AddedTokens() {
		id, ok := tok.TokenID(token.Content)
		if !ok || id < 256 {
			t.Fatalf("TokenID(%q) = %d, %v", token.Content, id, ok)
		}
		ids, err := tok.Encode(token.Content)
		if err != nil {
			t.Fatal(err)
		}
		if token.Special && len(ids) != len(token.Content) {
			t.Errorf("Encode(%q) = %v: a special token came out of text", token.Content, ids)
		}
		if !token.Special && !reflect.DeepEqual(ids, []int32{id}) {
			t.Errorf("Encode(%q) = %v, want [%d]", token.Content, ids, id)
		}
		if back, err := tok.Decode([]int32{id}); err != nil || back != token.Content {
			t.Errorf("Decode([%d]) = %q, %v; want %q", id, back, err, token.Content)
		}
	}
}

func TestEncodeRefusesInvalidUTF8(t *testing.T) {
	for text, at := range map[string]string{
		"\xff":           "byte 0 (0xff)",
		"ab\uFFFD\x80":   "byte 5 (0x80)",
		"x\xed\xa0\x80y": "byte 1 (0xed)", // a surrogate
		"\xc0\x80":       "byte 0 (0xc0)",
	} {
		if _, err := New().Encode(text); err == nil || !strings.Contains(err.Error(), at) {
			t.Errorf("Encode(%q): %v, want an error with %q", text, err, at)
		}
	}
}

func TestDecodeReplacesBrokenBytes(t *testing.T) {
	cases := map[string]string{ // as Rust's String::from_utf8_lossy
		"\xe4\xbd":                 "\uFFFD",
		"\xe4\xbd\xa0\xe4":         "你\uFFFD",
		"\xe4\xbda":                "\uFFFDa",
		"\x80\x80":                 "\uFFFD\uFFFD",
		"\xf0\x9f\x98":             "\uFFFD",
		"\xf0\x9f\xe4\xbd\xa0":     "\uFFFD你",
		"\xed\xa0\x80":             "\uFFFD\uFFFD\uFFFD",
		"\xc0\xaf":                 "\uFFFD\uFFFD",
		"\xf5a":                    "\uFFFDa",
		"\xf0\x8f\xbf":             "\uFFFD\uFFFD\uFFFD",
		"\xc3\xc3\xa9":             "\uFFFDé",
		"ok\x00\xf4\x90\x80\x80!":  "ok\x00\uFFFD\uFFFD\uFFFD\uFFFD!",
		"\xf0\x9f\x98\x80\xf0\x9f": "😀\uFFFD",
	}
	for raw, want := range cases {
		if got, err := New().Decode(bytesAsIDs(raw)); err != nil || got != want {
			t.Errorf("Decode(%q) = %q, %v; want %q", raw, got, err, want)
		}
	}
}

func bytesAsIDs(raw string) []int32 {
	ids := make([]int32, 0, len(raw))
	for _, b := range []byte(raw) {
		ids = append(ids, int32(b))
	}
	return ids
}

func TestDecodeRefusesForeignIDs(t *testing.T) {
	tok := New()
	for _, id := range []int32{-1, int32(tok.VocabSize()), 1 << 30} {
		if _, err := tok.Decode([]int32{'a', id}); err == nil || !strings.Contains(err.Error(), "position 1") {
			t.Errorf("Decode with id %d: %v", id, err)
		}
	}
}

func TestNewWith(t *testing.T) {
	tok := NewWith([]tokenizer.AddedToken{
		{ID: 7, Content: "[INST]", Special: true},
		{Content: "[THINK]"},
		{Content: "<｜User｜>", Special: true, LStrip: true},
		{Content: "[THINK]!"},
	})
	if tok.VocabSize() != 260 {
		t.Errorf("VocabSize = %d, want 260", tok.VocabSize())
	}
	ids, err := tok.EncodeInner("[INST][THINK][THINK]!<｜User｜>")
	if want := append(append(bytesAsIDs("[INST]"), 257, 259), bytesAsIDs("<｜User｜>")...); err != nil || !reflect.DeepEqual(ids, want) {
		t.Errorf("EncodeInner = %v, %v; want %v", ids, err, want)
	}
	for i, token := range tok.AddedTokens() {
		if token.ID != 256+int32(i) {
			t.Errorf("added token %d has the id %d", i, token.ID)
		}
		if got, ok := tok.Token(token.ID); !ok || got != token.Content {
			t.Errorf("Token(%d) = %q, %v; want %q", token.ID, got, ok, token.Content)
		}
	}
	if !tok.AddedTokens()[2].LStrip {
		t.Error("AddedTokens lost a flag")
	}
	if got, ok := tok.Token(0x80); !ok || got != "\x80" {
		t.Errorf("Token(0x80) = %q, %v", got, ok)
	}
	for _, id := range []int32{-1, 260} {
		if got, ok := tok.Token(id); ok {
			t.Errorf("Token(%d) = %q", id, got)
		}
	}
}

func TestNewWithRefusesMistakes(t *testing.T) {
	for name, added := range map[string][]tokenizer.AddedToken{
		"empty": {{Content: ""}},
		"twice": {{Content: "<a>"}, {Content: "<a>", Special: true}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			NewWith(added)
		}()
	}
}

func TestDecodeBytes(t *testing.T) {
	tok := New()
	if got, err := tok.DecodeBytes([]int32{0xe4, 0xbd, 259}); err != nil || string(got) != "\xe4\xbd<think>" {
		t.Errorf("DecodeBytes = %q, %v", got, err)
	}
	if _, err := tok.DecodeBytes([]int32{9999}); err == nil {
		t.Error("DecodeBytes of a foreign id gives no error")
	}
}

func TestClose(t *testing.T) {
	tok := New()
	for range 2 {
		if err := tok.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tok.Encode("a"); !errors.Is(err, ErrClosed) {
		t.Errorf("Encode after Close: %v", err)
	}
	if _, err := tok.Decode(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Decode after Close: %v", err)
	}
}

// FuzzRoundTrip checks that valid text survives and that decoded text is always valid.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "a\x00<think>", "<|im_end|>", "\xe4\xbd", "<tool_call><tool", "\xf0\x9f\x98\x80"} {
		f.Add(s)
	}
	tok := New()
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := tok.Encode(text)
		if (err == nil) != utf8.ValidString(text) {
			t.Fatalf("Encode(%q): %v", text, err)
		}
		if err == nil {
			if back, err := tok.Decode(ids); err != nil || back != text {
				t.Fatalf("Decode(Encode(%q)) = %q, %v", text, back, err)
			}
		}
		if got, err := tok.Decode(bytesAsIDs(text)); err != nil || !utf8.ValidString(got) {
			t.Fatalf("Decode of the bytes of %q = %q, %v", text, got, err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	text := strings.Repeat("The quick brown fox <think> 123 </think>\n", 100)
	tok := New()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tok.Encode(text); err != nil {
			b.Fatal(err)
		}
	}
}
