// Package hf is the engine's Hugging Face tokenizer: daulet/tokenizers (cgo) over the small
// Rust library in shim/.
//
// What may enter: one tokenizer.json, text, ids. What it never does: network, chat formats,
// truncation or padding (the file's settings for both are ignored, as transformers does),
// BOS or EOS.
//
// # Linking
//
// The package links libtokenizers.a from .cache/lib at the root of this repository, where
// the Makefile puts it; CGO_LDFLAGS=-L<dir> adds another place. With the build tag relax_nohf,
// or without cgo, the package builds without it and [Load] returns [ErrNotBuilt].
//
// # Text at the boundary
//
// daulet/tokenizers hands text to C as a string that ends at the first NUL byte, and the
// native side of its own would replace invalid UTF-8 without a word. Both would train on text
// that nobody wrote. So text is checked here first, and a NUL travels as the two bytes C0 80
// (modified UTF-8). Byte C0 is never part of valid UTF-8, so nothing else can look like it.
// The shim turns it back before encoding, and does the reverse for [Tokenizer.Decode].
//
// # Added tokens
//
// As with transformers' split_special_tokens, Encode treats the spelling of a special added
// token (special=true) as ordinary text, while a non-special one such as <think> becomes its
// id wherever it is spelled. Flags that only tokenizer_config.json has are not read.
package hf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// ErrClosed is the error of calls after Close.
var ErrClosed = errors.New("the tokenizer is closed")

// ErrNotBuilt is the error of Load in a build without the native library.
var ErrNotBuilt = errors.New("this build has no Hugging Face tokenizer: " +
	"build with cgo and without the tag relax_nohf, after making libtokenizers.a (see the Makefile)")

// An AddedToken is a token that the file lists beside the model's vocabulary.
type AddedToken struct {
	ID      int32
	Content string
	Special bool // true: Encode never produces it from text
}

// A Tokenizer implements tokenizer.Tokenizer over one tokenizer.json.
type Tokenizer struct {
	file  string // for errors
	vocab *vocabulary

	// mu is held for reading while the native library works, for writing by Close alone: its
	// one purpose is that nothing is freed under a running call.
	mu   sync.RWMutex
	core core // nil once closed
}

// A core is the native tokenizer. It gets and returns text in modified UTF-8.
type core interface {
	encode(text string) ([]uint32, error)
	decode(ids []uint32) (string, error)
	vocabSize() int
	close() error
}

// Load reads a tokenizer.json. The caller owns the result and closes it. Errors name the file;
// without the native library the error wraps [ErrNotBuilt].
func Load(file string) (*Tokenizer, error) {
	t, err := load(file)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", file, err)
	}
	return t, nil
}

func load(file string) (*Tokenizer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, errors.New("the file is empty; want the tokenizer.json of a checkpoint")
	}
	if uint64(len(data)) > math.MaxUint32 { // the size that C is told
		return nil, fmt.Errorf("%d bytes are too many for a tokenizer.json", len(data))
	}
	vocab, err := parseVocabulary(data)
	if err != nil {
		return nil, err
	}
	core, err := openCore(data)
	if err != nil {
		return nil, err
	}
	if got := core.vocabSize(); got != vocab.size() {
		err := fmt.Errorf("the native library counts %d ids, the file has %d", got, vocab.size())
		return nil, errors.Join(err, core.close())
	}
	return &Tokenizer{file: file, vocab: vocab, core: core}, nil
}

// Encode returns the ids of text; see the package comment on added tokens. Invalid UTF-8 is an
// error that names the offset of the first bad byte.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	ids, err := t.encode(text)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: encode %d bytes: %w", t.file, len(text), err)
	}
	return ids, nil
}

func (t *Tokenizer) encode(text string) ([]int32, error) {
	if at := tokenizer.InvalidAt(text); at >= 0 {
		return nil, fmt.Errorf("byte %d (%#02x) is not valid UTF-8", at, text[at])
	}
	raw, err := t.encodeNative(spellNUL(text))
	if err != nil {
		return nil, err
	}
	for _, id := range raw {
		switch t.vocab.kind(id) {
		case ordinary:
		case control:
			// Only models that can build a control token from its letters come here.
			return nil, fmt.Errorf("the text spells the special token %q, which this model's vocabulary "+
				"does not keep apart from text", t.vocab.spelling(int32(id)))
		default:
			return nil, fmt.Errorf("the native library returned id %d, which the file does not have", id)
		}
	}
	return signed(raw), nil
}

func (t *Tokenizer) encodeNative(text string) ([]uint32, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.core == nil {
		return nil, ErrClosed
	}
	return t.core.encode(text)
}

// Decode returns the text of ids with special tokens spelled out. Bytes that do not form UTF-8
// become U+FFFD. An id that the file does not have is an error, also one within the padded
// part of an embedding matrix.
func (t *Tokenizer) Decode(ids []int32) (string, error) {
	text, err := t.decode(ids)
	if err != nil {
		return "", fmt.Errorf("tokenizer %s: decode %d ids: %w", t.file, len(ids), err)
	}
	return text, nil
}

func (t *Tokenizer) decode(ids []int32) (string, error) {
	// The native library leaves ids out that it does not know, so they are refused here.
	for at, id := range ids {
		if id < 0 || t.vocab.kind(uint32(id)) == unknown {
			return "", fmt.Errorf("id %d at position %d is outside the vocabulary of %d ids", id, at, t.vocab.size())
		}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.core == nil {
		return "", ErrClosed
	}
	text, err := t.core.decode(unsigned(ids))
	return restoreNUL(text), err
}

// TokenID returns the id of a token by its spelling in the file: for byte-level vocabularies
// that is "Ġhello", not " hello".
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	id, ok := t.vocab.ids[token]
	return id, ok
}

// VocabSize returns the number of ids, added tokens included. The model's embedding may be
// larger.
func (t *Tokenizer) VocabSize() int { return t.vocab.size() }

// AddedTokens returns the added tokens, lowest id first.
func (t *Tokenizer) AddedTokens() []AddedToken {
	return append([]AddedToken(nil), t.vocab.added...)
}

// Close waits for running calls and frees the tokenizer. Later calls of Encode and Decode
// return [ErrClosed]; closing again does nothing.
func (t *Tokenizer) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.core == nil {
		return nil
	}
	core := t.core
	t.core = nil
	return core.close()
}

// nulSpelling is a NUL byte in modified UTF-8.
const nulSpelling = "\xC0\x80"

func spellNUL(text string) string { return strings.ReplaceAll(text, "\x00", nulSpelling) }

func restoreNUL(text string) string { return strings.ReplaceAll(text, nulSpelling, "\x00") }

// signed views ids as signed numbers in place: they are known to lie within the vocabulary.
func signed(ids []uint32) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(ids))), len(ids))
}

// unsigned views ids, known not to be negative, as unsigned numbers in place.
func unsigned(ids []int32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(ids))), len(ids))
}
