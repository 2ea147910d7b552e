// Package bytetok is a tokenizer without a file and without native code: one id a byte, and
// the chat control tokens behind them. The simulator's built-in model and tests use it.
//
// What may enter: text and ids. What it never does: I/O, cgo, merges.
//
// Ids 0 to 255 are the bytes. The added tokens follow in the order of [Tokens]. As with
// Hugging Face's encode_special_tokens, text that spells a special token is encoded as bytes,
// while text that spells a non-special added token becomes that token.
package bytetok

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// A Token is an added token.
type Token struct {
	Content string
	Special bool // true: only a chat format may write it, [Tokenizer.Encode] never does
}

var added = [...]Token{
	{"<|endoftext|>", true},
	{"<|im_start|>", true},
	{"<|im_end|>", true},
	{"<think>", false},
	{"</think>", false},
	{"<tool_call>", false},
	{"</tool_call>", false},
	{"<tool_response>", false},
	{"</tool_response>", false},
}

const (
	firstAdded = 256
	vocabSize  = firstAdded + len(added)
)

// ErrClosed is the error of calls after Close.
var ErrClosed = errors.New("byte tokenizer: closed")

// A Tokenizer implements tokenizer.Tokenizer. It holds nothing but its closed mark.
type Tokenizer struct {
	closed atomic.Bool
}

// New returns a Tokenizer.
func New() *Tokenizer { return &Tokenizer{} }

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
		if id, size := match(text[at:]); size > 0 {
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
func match(text string) (id int32, size int) {
	if text[0] != '<' { // every added token begins so
		return 0, 0
	}
	for i, token := range added {
		if !token.Special && len(token.Content) > size && strings.HasPrefix(text, token.Content) {
			id, size = firstAdded+int32(i), len(token.Content)
		}
	}
	return id, size
}

// Decode returns the text of ids. Bytes that do not form UTF-8 become U+FFFD, one for each
// maximal broken sequence, as Hugging Face's byte-level decoder does it. An id outside the
// vocabulary is an error.
func (t *Tokenizer) Decode(ids []int32) (string, error) {
	if t.closed.Load() {
		return "", ErrClosed
	}
	text := make([]byte, 0, len(ids))
	for i, id := range ids {
		switch {
		case id < 0 || int(id) >= vocabSize:
			return "", fmt.Errorf("byte tokenizer: decode: id %d at position %d is outside the vocabulary of %d ids", id, i, vocabSize)
		case id < firstAdded:
			text = append(text, byte(id))
		default:
			text = append(text, added[id-firstAdded].Content...)
		}
	}
	if utf8.Valid(text) {
		return string(text), nil
	}
	return replaceBroken(text), nil
}

// TokenID returns the id of an added token, or of a one-byte string. Bytes from 0x80 have no
// spelling of their own in UTF-8 and are found by the raw byte.
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	if len(token) == 1 {
		return int32(token[0]), true
	}
	for i := range added {
		if added[i].Content == token {
			return firstAdded + int32(i), true
		}
	}
	return 0, false
}

// VocabSize returns the number of ids, added tokens included.
func (t *Tokenizer) VocabSize() int { return vocabSize }

// Close makes later calls of Encode and Decode fail. It may be called more than once.
func (t *Tokenizer) Close() error {
	t.closed.Store(true)
	return nil
}

// replaceBroken replaces each maximal broken sequence by U+FFFD (Unicode 3.9, "substitution
// of maximal subparts"). The standard library replaces byte by byte or run by run, neither
// of which agrees with Hugging Face on a text that ends within a character.
func replaceBroken(text []byte) string {
	var out strings.Builder
	out.Grow(len(text) + 8)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			size = brokenLen(text)
			out.WriteRune(utf8.RuneError)
		} else {
			out.Write(text[:size])
		}
		text = text[size:]
	}
	return out.String()
}

// brokenLen returns how many bytes at the start of broken text are the beginning of one
// character, at least 1. FullRune is false for as long as more bytes could complete it.
func brokenLen(text []byte) int {
	n := 1
	for n < len(text) && !utf8.FullRune(text[:n+1]) {
		n++
	}
	return n
}
