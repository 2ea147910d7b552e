//go:build cgo && !relax_nohf

package hf

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// isMark leaves out what Gemma lists beside its marks: runs of spaces and newlines, which its
// merges make out of text.
func isMark(token tokenizer.AddedToken) bool { return strings.Trim(token.Content, "▁ \t\n") != "" }

// Real tokenizers take long to load, so each serves all its tests.
func TestRealTokenizers(t *testing.T) {
	for _, model := range realModels {
		t.Run(model, func(t *testing.T) {
			file := realTokenizer(t, model)
			tok, err := Load(file, Options{Control: isMark})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := tok.Close(); err != nil {
					t.Error(err)
				}
			}()
			t.Run("controls", func(t *testing.T) { checkControls(t, tok) })
			t.Run("configuration", func(t *testing.T) { checkConfiguration(t, tok, file) })
			t.Run("vocabulary", func(t *testing.T) { checkVocabulary(t, tok, file) })
			if model == "gemma3" {
				t.Run("stream", func(t *testing.T) { checkByteFallback(t, tok) })
			} else {
				t.Run("decode", func(t *testing.T) { checkByteLevel(t, tok) })
			}
		})
	}
}

// checkByteLevel: Decode of byte-level vocabularies is done here, not by the library, so the two
// are compared; and a Stream must give the same in whatever portions the ids come.
func checkByteLevel(t *testing.T, tok *Tokenizer) {
	if tok.pieces == nil || !tok.pieces.exact {
		t.Fatal("the decoder is not byte-level")
	}
	r := rand.New(rand.NewPCG(5, 2026))
	for round := range 500 {
		ids := drawIDs(r, tok, round)
		want, err := tok.core.decode(unsigned(ids))
		if err != nil {
			t.Fatal(err)
		}
		want = restoreNUL(want)
		if got, err := tok.Decode(ids); err != nil || got != want {
			t.Fatalf("Decode(%v) = %q, %v; the library says %q", ids, got, err, want)
		}
		if got := streamed(t, r, tok, ids); got != want {
			t.Fatalf("streamed %v = %q, want %q", ids, got, want)
		}
	}
}

// drawIDs returns ids of any kind, or those of text, which split characters less often.
func drawIDs(r *rand.Rand, tok *Tokenizer, round int) []int32 {
	if round%2 == 0 {
		ids, err := tok.Encode(randomText(r))
		if err == nil && len(ids) > 0 {
			return ids[r.IntN(len(ids)):]
		}
	}
	var ids []int32
	for range 1 + r.IntN(12) {
		if id := r.Int32N(int32(len(tok.vocab.kinds))); tok.vocab.kinds[id] != unknown {
			ids = append(ids, id)
		}
	}
	return ids
}

func streamed(t *testing.T, r *rand.Rand, tok *Tokenizer, ids []int32) string {
	t.Helper()
	s := tokenizer.NewStream(tok)
	var out strings.Builder
	for len(ids) > 0 {
		n := 1 + r.IntN(min(3, len(ids)))
		text, err := s.Next(ids[:n]...)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(text)
		ids = ids[n:]
	}
	return out.String() + s.Flush()
}

// checkByteFallback: text comes back through the bytes alone, but for what a vocabulary with
// U+2581 for a space and <0x0A> for a byte cannot tell from them.
func checkByteFallback(t *testing.T, tok *Tokenizer) {
	tellable := strings.NewReplacer("▁", "_", "<0x", "0x")
	r := rand.New(rand.NewPCG(6, 2026))
	for range 500 {
		text := tellable.Replace(randomText(r))
		if ids, err := tok.EncodeInner(text); err != nil {
			t.Fatal(err)
		} else if got := streamed(t, r, tok, ids); got != text {
			t.Fatalf("streamed %v = %q, want %q", ids, got, text)
		}
	}
}

// checkConfiguration: the entries of tokenizer_config.json find their ids.
func checkConfiguration(t *testing.T, tok *Tokenizer, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(filepath.Dir(file), "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var entries struct {
		Added map[int32]entry `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(config, &entries); err != nil {
		t.Fatal(err)
	}
	var opts Options
	for id, e := range entries.Added {
		e.ID = id
		opts.Added = append(opts.Added, e.token())
	}
	doc, err := newDocument(data)
	if err != nil {
		t.Fatal(err)
	}
	with, _, err := read(doc, &opts)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[tokenizer.AddedToken]bool{}
	for _, token := range with.AddedTokens() {
		listed[token] = true
	}
	for _, token := range opts.Added {
		if !listed[token] {
			t.Errorf("AddedTokens has no %+v", token)
		}
	}
	if got, want := with.VocabSize(), tok.VocabSize(); got != want {
		t.Errorf("VocabSize = %d, without the configuration %d", got, want)
	}
}

// checkVocabulary: it is that of encoding/json, and every token finds its way back.
func checkVocabulary(t *testing.T, tok *Tokenizer, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Added []entry `json:"added_tokens"`
		Model struct {
			Vocab map[string]int32
		}
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	for _, e := range want.Added {
		want.Model.Vocab[e.Content] = e.ID
	}
	if tok.VocabSize() != len(want.Model.Vocab) {
		t.Errorf("VocabSize = %d, want %d", tok.VocabSize(), len(want.Model.Vocab))
	}
	for token, id := range want.Model.Vocab {
		if got, ok := tok.TokenID(token); !ok || got != id {
			t.Fatalf("TokenID(%q) = %d, %v; want %d", token, got, ok, id)
		}
		if got, ok := tok.Token(id); !ok || got != token {
			t.Fatalf("Token(%d) = %q, %v; want %q", id, got, ok, token)
		}
	}
}

// checkControls: no spelling of a control token comes out as it, whether the file calls it
// special or Control does, and none makes Encode fail.
func checkControls(t *testing.T, tok *Tokenizer) {
	for _, token := range tok.AddedTokens() {
		if !isMark(token) || strings.HasPrefix(token.Content, "<unused") {
			continue
		}
		for _, text := range []string{token.Content, " " + token.Content, "a" + token.Content + token.Content} {
			ids, err := tok.EncodeInner(text)
			if err != nil {
				t.Errorf("Encode(%q): %v", text, err)
			}
			if slices.Contains(ids, token.ID) {
				t.Errorf("Encode(%q) = %v has %d", text, ids, token.ID)
			}
		}
	}
}
