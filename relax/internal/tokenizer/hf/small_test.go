//go:build cgo && !relax_nohf

package hf

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// A smallCase is a tiny tokenizer with what the Python package tokenizers makes of it; see
// testdata/record_small.py, which wrote the file.
type smallCase struct {
	Name    string
	File    json.RawMessage
	Control []string
	Added   []entry
	Texts   []smallText
	Decodes []smallDecode
}

type smallText struct {
	text       string
	ids, inner []int32
	decoded    string
}

func (s *smallText) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&s.text, &s.ids, &s.inner, &s.decoded})
}

type smallDecode struct {
	ids  []int32
	text string
}

func (s *smallDecode) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&s.ids, &s.text})
}

func (c *smallCase) options() Options {
	opts := Options{Control: func(token tokenizer.AddedToken) bool { return slices.Contains(c.Control, token.Content) }}
	for _, e := range c.Added {
		opts.Added = append(opts.Added, e.token())
	}
	return opts
}

func smallCases(t *testing.T) []smallCase {
	t.Helper()
	data, err := os.ReadFile("testdata/small.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []smallCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 20 {
		t.Fatalf("%d cases: the file is cut", len(cases))
	}
	return cases
}

func TestSmallTokenizersAgreeWithPython(t *testing.T) {
	for _, c := range smallCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			tok := openSmall(t, &c)
			var texts []string
			var inner [][]int32
			for _, want := range c.Texts {
				if spellsControl(tok, want.ids) {
					if ids, err := tok.Encode(want.text); err == nil {
						t.Errorf("Encode(%q) = %v; want an error, a control token came out of text", want.text, ids)
					}
					continue
				}
				texts = append(texts, want.text)
				inner = append(inner, want.inner)
				if ids := mustEncode(t, tok, want.text); !slices.Equal(ids, want.ids) {
					t.Errorf("Encode(%q) = %v, want %v", want.text, ids, want.ids)
				}
				if ids, err := tok.EncodeInner(want.text); err != nil || !slices.Equal(ids, want.inner) {
					t.Errorf("EncodeInner(%q) = %v, %v; want %v", want.text, ids, err, want.inner)
				}
				if got, err := tok.Decode(want.ids); err != nil || got != want.decoded {
					t.Errorf("Decode(%v) = %q, %v; want %q", want.ids, got, err, want.decoded)
				}
			}
			batch, err := tok.EncodeBatch(texts)
			if err != nil {
				t.Fatal(err)
			}
			for i, ids := range batch {
				if !slices.Equal(ids, inner[i]) {
					t.Errorf("EncodeBatch(%q) = %v, want %v", texts[i], ids, inner[i])
				}
			}
			for _, want := range c.Decodes {
				if got, err := tok.Decode(want.ids); err != nil || got != want.text {
					t.Errorf("Decode(%v) = %q, %v; want %q", want.ids, got, err, want.text)
				}
			}
		})
	}
}

// spellsControl says whether Python's ids hold a token that must not come out of text: Unigram
// models build one from its letters if it is among their pieces.
func spellsControl(tok *Tokenizer, ids []int32) bool {
	return slices.ContainsFunc(ids, func(id int32) bool { return tok.vocab.kind(uint32(id)) == control })
}

func openSmall(t *testing.T, c *smallCase) *Tokenizer {
	t.Helper()
	tok, err := openJSON(t, string(c.File), c.options())
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

// The bytes of a sequence are those of its ids, and they are what Decode says up to the space
// that some decoders drop at the start and what was broken.
func TestDecodeBytesOfSmallTokenizers(t *testing.T) {
	joined := map[string]bool{"no decoder": true, "word pieces": true} // these join tokens by rules of their own
	for _, c := range smallCases(t) {
		tok := openSmall(t, &c)
		if joined[c.Name] != (tok.pieces == nil) {
			t.Errorf("%s: cut into pieces = %v", c.Name, tok.pieces != nil)
		}
		for _, d := range c.Decodes {
			raw, err := tok.DecodeBytes(d.ids)
			if err != nil {
				t.Fatal(err)
			}
			if joined[c.Name] {
				if string(raw) != d.text {
					t.Errorf("%s: DecodeBytes(%v) = %q, want %q", c.Name, d.ids, raw, d.text)
				}
				continue
			}
			var single []byte
			for _, id := range d.ids {
				piece, err := tok.DecodeBytes([]int32{id})
				if err != nil {
					t.Fatal(err)
				}
				single = append(single, piece...)
			}
			if string(single) != string(raw) {
				t.Errorf("%s: DecodeBytes(%v) = %q, the ids alone %q", c.Name, d.ids, raw, single)
			}
			text := tokenizer.Text(raw)
			if !strings.Contains(text, "\uFFFD") && strings.TrimLeft(text, " ") != strings.TrimLeft(d.text, " ") {
				t.Errorf("%s: DecodeBytes(%v) = %q, Decode is %q", c.Name, d.ids, text, d.text)
			}
		}
	}
}

func TestOptionsDecideWhatIsControl(t *testing.T) {
	for _, c := range smallCases(t) {
		tok := openSmall(t, &c)
		for _, token := range tok.AddedTokens() {
			special := token.Special || slices.Contains(c.Control, token.Content)
			for _, text := range []string{token.Content, "a " + token.Content + " b"} {
				ids, err := tok.Encode(text) // some Unigram models cannot help but report an error
				if special && err == nil && slices.Contains(ids, token.ID) {
					t.Errorf("%s: Encode(%q) = %v: the control token %d came out of text", c.Name, text, ids, token.ID)
				}
			}
		}
	}
}

func TestAddedTokensOfTheConfiguration(t *testing.T) {
	cases := smallCases(t)
	c := cases[slices.IndexFunc(cases, func(c smallCase) bool { return len(c.Added) > 0 })]
	tok := openSmall(t, &c)
	listed := tok.AddedTokens()
	for _, e := range c.Added {
		if !slices.Contains(listed, e.token()) {
			t.Errorf("AddedTokens = %+v has no %+v", listed, e)
		}
		if spelling, ok := tok.Token(e.ID); !ok || spelling != e.Content {
			t.Errorf("Token(%d) = %q, %v; want %q", e.ID, spelling, ok, e.Content)
		}
	}
	opts := c.options()
	opts.Added[len(opts.Added)-1].ID += 5
	if _, err := openJSON(t, string(c.File), opts); err == nil || !strings.Contains(err.Error(), `"<end>" the id`) {
		t.Errorf("an appended token with another id: %v", err)
	}
}

// What a control is does not change what the file says of it.
func TestControlIsNotSpecial(t *testing.T) {
	opts := Options{Control: func(token tokenizer.AddedToken) bool {
		if token.ID != 2044 && token.Content == "<tool_response>" {
			t.Errorf("Control was asked about %+v", token)
		}
		return token.Content == "<think>"
	}}
	tok, err := Load(tinychat, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
	}()
	plain := open(t, tinychat)
	if !slices.Equal(tok.AddedTokens(), plain.AddedTokens()) {
		t.Errorf("AddedTokens = %+v, want %+v", tok.AddedTokens(), plain.AddedTokens())
	}
	id, _ := tok.TokenID("<think>")
	if ids := mustEncode(t, tok, "<think>"); slices.Contains(ids, id) {
		t.Errorf("Encode = %v: the control came out of text", ids)
	}
	if ids := mustEncode(t, tok, "</think>"); len(ids) != 1 {
		t.Errorf("Encode of an ordinary added token = %v", ids)
	}
}
