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
// The native library would replace invalid UTF-8 without a word, which would train on text
// that nobody wrote. So text is checked here first. It travels with its length. What comes back
// from daulet/tokenizers is a C string, which ends at the first NUL byte: in it the shim writes
// a NUL as the two bytes C0 80 (modified UTF-8). Byte C0 is never part of valid UTF-8, so
// nothing else can look like it, and [Tokenizer.Decode] turns it back.
//
// # Added tokens
//
// As with transformers' split_special_tokens, Encode treats the spelling of a special added
// token (special=true) as ordinary text, while a non-special one such as <think> becomes its
// id wherever it is spelled. [Options] makes further tokens controls and takes the entries of
// a tokenizer_config.json.
package hf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
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

// Options are what a checkpoint says of its tokenizer beside tokenizer.json.
type Options struct {
	// Control reports whether an added token that the file lists as ordinary (special=false)
	// must nevertheless never come out of text. Nil means that none is.
	Control func(tokenizer.AddedToken) bool
	// Added are the entries of added_tokens_decoder in tokenizer_config.json. As in
	// transformers they have precedence: an entry whose content is in the file overrides its
	// flags, and another is appended, in the order of the ids. An appended token that does not
	// get the id of its entry is an error.
	Added []tokenizer.AddedToken
}

func (o *Options) isControl(token tokenizer.AddedToken) bool {
	return token.Special || o.Control != nil && o.Control(token)
}

// A Tokenizer implements tokenizer.Tokenizer over one tokenizer.json.
type Tokenizer struct {
	file   string // for errors
	vocab  *vocabulary
	pieces *pieces // nil if the decoder's work cannot be cut into ids

	// mu is held for reading while the native library works, for writing by Close alone: its
	// one purpose is that nothing is freed under a running call.
	mu   sync.RWMutex
	core core // nil once closed
}

// A core is the native tokenizer.
type core interface {
	// encode returns the ids of valid UTF-8, of text within a sequence if inner.
	encode(text string, inner bool) ([]int32, error)
	// decode returns modified UTF-8.
	decode(ids []uint32) (string, error)
	vocabSize() int
	close() error
}

// Load reads a tokenizer.json. The caller owns the result and closes it. Errors name the file;
// without the native library the error wraps [ErrNotBuilt].
func Load(file string, opts Options) (*Tokenizer, error) {
	t, err := load(file, &opts)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", file, err)
	}
	return t, nil
}

func load(file string, opts *Options) (*Tokenizer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, errors.New("the file is empty; want the tokenizer.json of a checkpoint")
	}
	doc, err := newDocument(data)
	if err != nil {
		return nil, err
	}
	t, patched, err := read(doc, opts)
	if err != nil {
		return nil, err
	}
	if uint64(len(patched)) > math.MaxUint32 { // the size that C is told
		return nil, fmt.Errorf("%d bytes are too many for a tokenizer.json", len(patched))
	}
	if t.core, err = openCore(patched); err != nil {
		return nil, err
	}
	if got := t.core.vocabSize(); got != t.vocab.size() {
		err := fmt.Errorf("the native library counts %d ids, the file has %d", got, t.vocab.size())
		return nil, errors.Join(err, t.core.close())
	}
	t.file = file
	return t, nil
}

// read returns a Tokenizer without its core and what the native library is to load: the file,
// with controls marked as special and the flags of the options.
func read(doc *document, opts *Options) (*Tokenizer, []byte, error) {
	file, err := readAdded(doc.fields[addedField])
	if err != nil {
		return nil, nil, err
	}
	list := override(file, opts.Added)
	vocab, err := newVocabulary(doc.fields["model"], list, opts.isControl)
	if err != nil {
		return nil, nil, err
	}
	if err := checkAppended(vocab, file, opts.Added); err != nil {
		return nil, nil, err
	}
	pieces, err := newPieces(doc.fields["decoder"], vocab)
	if err != nil {
		return nil, nil, fmt.Errorf("decoder: %w", err)
	}
	t := &Tokenizer{vocab: vocab, pieces: pieces}
	for i, token := range list {
		list[i].Special = opts.isControl(vocab.withID(token))
	}
	if slices.Equal(list, file) {
		return t, doc.data, nil
	}
	patched, err := doc.withAdded(list)
	return t, patched, err
}

// Encode returns the ids of text at the start of a sequence; see the package comment on added
// tokens. Invalid UTF-8 is an error that names the offset of the first bad byte.
func (t *Tokenizer) Encode(text string) ([]int32, error) { return t.named(text, false) }

// EncodeInner is [Tokenizer.Encode] for text that follows other tokens: a Metaspace
// pre-tokenizer with prepend_scheme "first" puts nothing before it.
func (t *Tokenizer) EncodeInner(text string) ([]int32, error) { return t.named(text, true) }

// EncodeBatch encodes each text as [Tokenizer.EncodeInner] does and returns the results in
// order. A large batch is spread over the CPUs.
func (t *Tokenizer) EncodeBatch(texts []string) ([][]int32, error) {
	return tokenizer.EncodeAll(texts, t.EncodeInner)
}

// named encodes and names the file in an error.
func (t *Tokenizer) named(text string, inner bool) ([]int32, error) {
	ids, err := t.encode(text, inner)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: encode %d bytes: %w", t.file, len(text), err)
	}
	return ids, nil
}

func (t *Tokenizer) encode(text string, inner bool) ([]int32, error) {
	if at := tokenizer.InvalidAt(text); at >= 0 {
		return nil, fmt.Errorf("byte %d (%#02x) is not valid UTF-8", at, text[at])
	}
	ids, err := t.encodeNative(text, inner)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		switch t.vocab.kind(uint32(id)) {
		case ordinary:
		case control:
			// Only models that can build a control token from its letters come here.
			return nil, fmt.Errorf("the text spells the special token %q, which this model's vocabulary "+
				"does not keep apart from text", t.vocab.tokens[id])
		default:
			return nil, fmt.Errorf("the native library returned id %d, which the file does not have", uint32(id))
		}
	}
	return ids, nil
}

func (t *Tokenizer) encodeNative(text string, inner bool) ([]int32, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.core == nil {
		return nil, ErrClosed
	}
	return t.core.encode(text, inner)
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
	if err := t.vocab.check(ids); err != nil {
		return "", err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.core == nil {
		return "", ErrClosed
	}
	if t.pieces != nil && t.pieces.exact {
		return tokenizer.Text(t.pieces.join(ids)), nil
	}
	text, err := t.core.decode(unsigned(ids))
	return restoreNUL(text), err
}

// DecodeBytes returns the bytes that ids stand for. For the decoders of today's language models
// (byte-level; byte fallback; Metaspace) they are exact and the bytes of a sequence are those
// of its parts put together. Other decoders (WordPiece, CTC, none) know no bytes and join
// tokens by rules of their own: what is returned is then the text of [Tokenizer.Decode].
func (t *Tokenizer) DecodeBytes(ids []int32) ([]byte, error) {
	if t.pieces == nil {
		text, err := t.Decode(ids)
		return []byte(text), err
	}
	err := t.vocab.check(ids)
	if err == nil && t.closed() {
		err = ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: decode %d ids: %w", t.file, len(ids), err)
	}
	return t.pieces.join(ids), nil
}

func (t *Tokenizer) closed() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.core == nil
}

// TokenID returns the id of a token by its spelling in the file: for byte-level vocabularies
// that is "Ġhello", not " hello".
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	id, ok := t.vocab.ids[token]
	return id, ok
}

// Token returns the file's spelling of an id.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if t.vocab.kind(uint32(id)) == unknown {
		return "", false
	}
	return t.vocab.tokens[id], true
}

// VocabSize returns the number of ids, added tokens included. The model's embedding may be
// larger.
func (t *Tokenizer) VocabSize() int { return t.vocab.size() }

// AddedTokens returns the added tokens, lowest id first, with the flags of the file or of
// [Options]. Special does not say what Options.Control says.
func (t *Tokenizer) AddedTokens() []tokenizer.AddedToken { return slices.Clone(t.vocab.added) }

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

func restoreNUL(text string) string { return strings.ReplaceAll(text, nulSpelling, "\x00") }

// unsigned views ids, known not to be negative, as unsigned numbers in place.
func unsigned(ids []int32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(ids))), len(ids))
}
