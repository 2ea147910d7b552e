//go:build cgo && !relax_nohf

package hf

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

var _ tokenizer.Tokenizer = (*Tokenizer)(nil)

const (
	checkpoints = "../../../../testdata/checkpoints/"
	tinychat    = checkpoints + "tinychat/tokenizer.json"
)

func open(t testing.TB, file string) *Tokenizer {
	t.Helper()
	tok, err := Load(file, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
	})
	return tok
}

// openJSON loads a tokenizer.json that a test wrote.
func openJSON(t testing.TB, content string, opts Options) (*Tokenizer, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file, opts)
}

func mustEncode(t testing.TB, tok *Tokenizer, text string) []int32 {
	t.Helper()
	ids, err := tok.Encode(text)
	if err != nil {
		t.Fatalf("Encode(%q): %v", text, err)
	}
	return ids
}

// The golden file holds what the Python package makes of the same tokenizer.json.
func TestAgreesWithPython(t *testing.T) {
	data, err := os.ReadFile(checkpoints + "tinychat_golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Texts []struct {
			Text    string
			IDs     []int32
			Decoded string
		}
		Decodes []struct {
			IDs  []int32
			Text string
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Texts) < 60 || len(golden.Decodes) < 60 {
		t.Fatalf("%d texts and %d decodes: the golden file is cut", len(golden.Texts), len(golden.Decodes))
	}
	tok := open(t, tinychat)
	for _, c := range golden.Texts {
		ids := mustEncode(t, tok, c.Text)
		if !slices.Equal(ids, c.IDs) {
			t.Errorf("Encode(%q) = %v, want %v", c.Text, ids, c.IDs)
		}
		if got, err := tok.Decode(c.IDs); err != nil || got != c.Decoded {
			t.Errorf("Decode(%v) = %q, %v; want %q", c.IDs, got, err, c.Decoded)
		}
	}
	for _, c := range golden.Decodes {
		if got, err := tok.Decode(c.IDs); err != nil || got != c.Text {
			t.Errorf("Decode(%v) = %q, %v; want %q", c.IDs, got, err, c.Text)
		}
	}
}

func TestAddedTokens(t *testing.T) {
	tok := open(t, tinychat)
	added := tok.AddedTokens()
	want := []string{
		"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
		"<tool_response>", "</tool_response>", "<think>", "</think>",
	}
	if len(added) != len(want) {
		t.Fatalf("AddedTokens = %v", added)
	}
	for i, token := range added {
		wantID := int32(tok.VocabSize() - len(want) + i)
		if token.Content != want[i] || token.ID != wantID || token.Special != (i < 3) {
			t.Errorf("added token %d = %+v, want %q with id %d", i, token, want[i], wantID)
		}
		if id, ok := tok.TokenID(token.Content); !ok || id != token.ID {
			t.Errorf("TokenID(%q) = %d, %v", token.Content, id, ok)
		}
		ids := mustEncode(t, tok, "x"+token.Content+"y")
		if slices.Contains(ids, token.ID) == token.Special {
			t.Errorf("Encode around %q = %v: special=%v", token.Content, ids, token.Special)
		}
		if text, err := tok.Decode([]int32{token.ID}); err != nil || text != token.Content {
			t.Errorf("Decode([%d]) = %q, %v", token.ID, text, err)
		}
	}
	added[0].Content = "changed"
	if tok.AddedTokens()[0].Content == "changed" {
		t.Error("AddedTokens hands out its own memory")
	}
}

func TestTokenID(t *testing.T) {
	tok := open(t, tinychat)
	if tok.VocabSize() != 2048 {
		t.Errorf("VocabSize = %d, want 2048", tok.VocabSize())
	}
	for token, known := range map[string]bool{"a": true, "Ġthe": true, " the": false, "": false, "<|nope|>": false} {
		id, ok := tok.TokenID(token)
		if ok != known || (!known && id != 0) {
			t.Errorf("TokenID(%q) = %d, %v; want known=%v", token, id, ok, known)
		}
	}
}

func TestEncodeRefusesInvalidUTF8(t *testing.T) {
	tok := open(t, tinychat)
	for text, want := range map[string]string{
		"\xff":           "byte 0 (0xff)",
		"ab\uFFFD\x80":   "byte 5 (0x80)",
		"\xc0\x80":       "byte 0 (0xc0)", // modified UTF-8 is ours alone
		"a\x00\xc0\x80":  "byte 2 (0xc0)",
		"x\xed\xa0\x80y": "byte 1 (0xed)",
		"你\xe4\xbd":      "byte 3 (0xe4)",
	} {
		ids, err := tok.Encode(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), tinychat) {
			t.Errorf("Encode(%q) = %v, %v; want an error with %q and the file", text, ids, err, want)
		}
	}
}

func TestNULIsText(t *testing.T) {
	tok := open(t, tinychat)
	nul := mustEncode(t, tok, "\x00")
	if len(nul) != 1 {
		t.Fatalf("Encode(NUL) = %v, want one byte token", nul)
	}
	for _, text := range []string{"a\x00b", "\x00<think>\x00", strings.Repeat("\x00", 100), "end\x00", "é\x00\u00c0\u0080"} {
		ids := mustEncode(t, tok, text)
		if got, want := strings.Count(text, "\x00"), count(ids, nul[0]); got != want {
			t.Errorf("Encode(%q) = %v: %d NULs, want %d", text, ids, got, want)
		}
		if back, err := tok.Decode(ids); err != nil || back != text {
			t.Errorf("Decode = %q, %v; want %q", back, err, text)
		}
	}
}

func count(ids []int32, id int32) int {
	n := 0
	for _, v := range ids {
		if v == id {
			n++
		}
	}
	return n
}

func TestDecodeRefusesForeignIDs(t *testing.T) {
	tok := open(t, tinychat)
	for _, id := range []int32{-1, -1 << 31, int32(tok.VocabSize()), 1<<31 - 1} {
		if text, err := tok.Decode([]int32{5, id}); err == nil || !strings.Contains(err.Error(), "position 1") {
			t.Errorf("Decode with id %d = %q, %v", id, text, err)
		}
	}
	if text, err := tok.Decode(nil); err != nil || text != "" {
		t.Errorf("Decode(nil) = %q, %v", text, err)
	}
	if ids, err := tok.Encode(""); err != nil || len(ids) != 0 {
		t.Errorf("Encode of nothing = %v, %v", ids, err)
	}
}

func TestLoadErrors(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"empty":      {"", "empty"},
		"garbage":    {"\x00\xff not json", "not a tokenizer.json"},
		"other json": {`{"hello": 1}`, "model.vocab: missing"},
		"list":       {`[1, 2]`, "not a tokenizer.json"},
		"bad vocab":  {`{"model": {"vocab": 3}}`, "model.vocab"},
		"negative":   {`{"model": {"vocab": {"a": -1}}}`, `token "a" has id -1`},
		"huge":       {`{"model": {"vocab": {"a": 2000000000}}}`, `token "a" has id 2000000000`},
		"no type":    {`{"model": {"vocab": {"a": 0}}}`, "tokenizer"},
		// The library slices the second half of a merge by the length of this prefix.
		"a panic": {`{"version":"1.0","added_tokens":[],"model":{"type":"BPE","continuing_subword_prefix":"###",
			"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`, "panic in the tokenizers crate"},
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := openJSON(t, c.content, Options{})
			if err == nil || tok != nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "tokenizer.json") {
				t.Fatalf("Load = %v, %v; want an error with the file and %q", tok, err, c.want)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.json"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of a missing file: %v", err)
	}
	if _, err := Load(t.TempDir(), Options{}); err == nil {
		t.Error("Load of a directory gives no error")
	}
}

const wordLevel = `{"version":"1.0","added_tokens":[{"id":3,"content":"<x>","single_word":false,"lstrip":false,
	"rstrip":false,"normalized":false,"special":true},{"id":0,"content":"<unk>","single_word":false,"lstrip":false,
	"rstrip":false,"normalized":false,"special":true}],
	"truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
	"padding":{"strategy":{"Fixed":9},"direction":"Right","pad_to_multiple_of":null,"pad_id":1,"pad_type_id":0,"pad_token":"a"},
	"pre_tokenizer":{"type":"WhitespaceSplit"},
	"model":{"type":"WordLevel","vocab":{"<unk>":0,"a":1,"b":2,"<x>":3},"unk_token":"<unk>"}}`

func TestTruncationAndPaddingAreIgnored(t *testing.T) {
	tok, err := openJSON(t, wordLevel, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := mustEncode(t, tok, "a b a c"), []int32{1, 2, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("Encode = %v, want %v", got, want)
	}
	if err := tok.Close(); err != nil {
		t.Error(err)
	}
}

// A vocabulary whose plain model holds a special token would hand it out for its spelling.
func TestSpecialTokenOfTheModelIsRefused(t *testing.T) {
	tok, err := openJSON(t, wordLevel, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode("a <x>")
	if err == nil || !strings.Contains(err.Error(), `"<x>"`) {
		t.Errorf("Encode = %v, %v; want an error that names the token", ids, err)
	}
	if err := tok.Close(); err != nil {
		t.Error(err)
	}
}

func TestManyGoroutines(t *testing.T) {
	tok := open(t, tinychat)
	texts := []string{"What is 12 * 34?", "<think>\x00</think>", "今天天气很好", "def f(x):\n    return x\n"}
	want := make([][]int32, len(texts))
	for i, text := range texts {
		want[i] = mustEncode(t, tok, text)
	}
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 200 {
				k := (g + i) % len(texts)
				ids, err := tok.Encode(texts[k])
				if err != nil || !slices.Equal(ids, want[k]) {
					t.Errorf("Encode(%q) = %v, %v", texts[k], ids, err)
					return
				}
				if back, err := tok.Decode(ids); err != nil || back != texts[k] {
					t.Errorf("Decode = %q, %v; want %q", back, err, texts[k])
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestCloseWhileEncoding(t *testing.T) {
	tok, err := Load(tinychat, Options{})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("Let me think about this step by step. ", 50)
	started := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for first := true; ; first = false {
				ids, err := tok.Encode(text)
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil || len(ids) == 0 {
					t.Errorf("Encode = %d ids, %v", len(ids), err)
					return
				}
				if first {
					started <- struct{}{}
				}
			}
		})
	}
	for range 16 {
		<-started
	}
	if err := tok.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if _, err := tok.Decode([]int32{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("Decode after Close: %v", err)
	}
	if err := tok.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if tok.VocabSize() != 2048 {
		t.Error("VocabSize changed with Close")
	}
}

func TestNotemplateLoads(t *testing.T) {
	tok := open(t, checkpoints+"notemplate/tokenizer.json")
	if ids := mustEncode(t, tok, "añ<|endoftext|>"); len(ids) != len("añ<|endoftext|>") {
		t.Errorf("Encode = %v, want one id a byte", ids)
	}
}

// FuzzRoundTrip: what is valid text and in normal form comes back, byte for byte.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "a\x00<think>", "<|im_end|>", "\xe4\xbd", "<tool_call><tool", "\xc0\x80", "e\u0301", "😀"} {
		f.Add(s)
	}
	tok := open(f, tinychat)
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := tok.Encode(text)
		if (err == nil) != utf8.ValidString(text) {
			t.Fatalf("Encode(%q): %v", text, err)
		}
		if err != nil {
			return
		}
		back, err := tok.Decode(ids)
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) > 0 && !utf8.ValidString(back) {
			t.Fatalf("Decode = %q", back)
		}
		// The NFC normaliser may change the text once, never twice.
		again := mustEncode(t, tok, back)
		if !reflect.DeepEqual(again, ids) {
			t.Fatalf("Encode(Decode(%v)) = %v for %q", ids, again, text)
		}
	})
}
