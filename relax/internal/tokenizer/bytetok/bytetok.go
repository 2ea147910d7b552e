// Package bytetok is a tokenizer without a file and without native code: one id a byte, and
// the chat control tokens behind them. The simulator's built-in model and tests use it.
//
// What may enter: text and ids. What it never does: I/O, cgo, merges.
//
// Ids 0 to 255 are the bytes. The added tokens follow in their order. As with Hugging Face's
// encode_special_tokens, text that spells a special token is encoded as bytes, while text that
// spells a non-special added token becomes that token. The other flags of an added token are
// reported and have no effect.
package bytetok

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// standard are the added tokens of [New].
var standard = []tokenizer.AddedToken{
	{Content: "<|endoftext|>", Special: true},
	{Content: "<|im_start|>", Special: true},
	{Content: "<|im_end|>", Special: true},
	{Content: "<think>"},
	{Content: "</think>"},
	{Content: "<tool_call>"},
	{Content: "</tool_call>"},
	{Content: "<tool_response>"},
	{Content: "</tool_response>"},
}

const firstAdded = 256

// ErrClosed is the error of calls after Close.
var ErrClosed = errors.New("byte tokenizer: closed")

// A Tokenizer implements tokenizer.Tokenizer.
type Tokenizer struct {
	added  []tokenizer.AddedToken
	ids    map[string]int32
	starts [256]bool // bytes that a non-special added token begins with
	closed atomic.Bool
}

// New returns a Tokenizer with the control tokens of a ChatML model.
func New() *Tokenizer { return NewWith(standard) }

// NewWith returns a Tokenizer with the given added tokens. Their ids are numbered from 256 in
// order, whatever their ID field says. It panics if a content is empty or comes twice, which is
// a mistake of the caller's code.
func NewWith(added []tokenizer.AddedToken) *Tokenizer {
	t := &Tokenizer{added: slices.Clone(added), ids: make(map[string]int32, len(added))}
	for i := range t.added {
		token := &t.added[i]
		if _, twice := t.ids[token.Content]; twice || token.Content == "" {
			panic(fmt.Sprintf("byte tokenizer: added token %d, %q, is empty or comes twice", i, token.Content))
		}
		token.ID = firstAdded + int32(i)
		t.ids[token.Content] = token.ID
		if !token.Special {
			t.starts[token.Content[0]] = true
		}
	}
	return t
}

// Encode returns the ids of text. Text that is not valid UTF-8 is an error that names the
// offset of the first bad byte.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	if t.closed.Load() {
		return nil, ErrClosed
	}
	if at := tokenizer.InvalidAt(text); at >= 0 {
		return nil, fmt.Errorf("byte tokenizer: encode: byte %d (%#02x) is not valid UTF-8", at, text[at])
	}
	ids := make([]int32, 0, len(text))
	for at := 0; at < len(text); {
		if id, size := t.match(text[at:]); size > 0 {
			ids = append(ids, id)
			at += size
			continue
		}
		ids = append(ids, int32(text[at]))
		at++
	}
	return ids, nil
}

// match returns the longest non-special added token that text begins with, size 0 if none.
func (t *Tokenizer) match(text string) (id int32, size int) {
	if !t.starts[text[0]] {
		return 0, 0
	}
	for i := range t.added {
		token := &t.added[i]
		if !token.Special && len(token.Content) > size && strings.HasPrefix(text, token.Content) {
			id, size = token.ID, len(token.Content)
		}
	}
	return id, size
}

// EncodeInner is [Tokenizer.Encode]: the start of a sequence is nothing special here.
func (t *Tokenizer) EncodeInner(text string) ([]int32, error) { return t.Encode(text) }

// EncodeBatch encodes each text and returns the results in order.
func (t *Tokenizer) EncodeBatch(texts []string) ([][]int32, error) {
	return tokenizer.EncodeAll(texts, t.EncodeInner)
}

// Decode returns the text of ids. Bytes that do not form UTF-8 become U+FFFD, one for each
// maximal broken sequence, as Hugging Face's byte-level decoder does it. An id outside the
// vocabulary is an error.
func (t *Tokenizer) Decode(ids []int32) (string, error) {
	raw, err := t.DecodeBytes(ids)
	return tokenizer.Text(raw), err
}

// DecodeBytes returns the bytes of ids. An id outside the vocabulary is an error.
func (t *Tokenizer) DecodeBytes(ids []int32) ([]byte, error) {
	if t.closed.Load() {
		return nil, ErrClosed
	}
	raw := make([]byte, 0, len(ids))
	for i, id := range ids {
		switch {
		case id < 0 || int(id) >= t.VocabSize():
			return nil, fmt.Errorf("byte tokenizer: decode: id %d at position %d is outside the vocabulary of %d ids",
				id, i, t.VocabSize())
		case id < firstAdded:
			raw = append(raw, byte(id))
		default:
			raw = append(raw, t.added[id-firstAdded].Content...)
		}
	}
	return raw, nil
}

// TokenID returns the id of an added token, or of a one-byte string. Bytes from 0x80 have no
// spelling of their own in UTF-8 and are found by the raw byte.
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	if id, ok := t.ids[token]; ok {
		return id, true
	}
	if len(token) == 1 {
		return int32(token[0]), true
	}
	return 0, false
}

// Token returns the content of an added token, or the one byte.
func (t *Tokenizer) Token(id int32) (string, bool) {
	switch {
	case id < 0 || int(id) >= t.VocabSize():
		return "", false
	case id < firstAdded:
		return string([]byte{byte(id)}), true
	}
	return t.added[id-firstAdded].Content, true
}

// AddedTokens returns the added tokens, lowest id first.
func (t *Tokenizer) AddedTokens() []tokenizer.AddedToken { return slices.Clone(t.added) }

// VocabSize returns the number of ids, added tokens included.
func (t *Tokenizer) VocabSize() int { return firstAdded + len(t.added) }

// Close makes later calls of Encode and Decode fail. It may be called more than once.
func (t *Tokenizer) Close() error {
	t.closed.Store(true)
	return nil
}
