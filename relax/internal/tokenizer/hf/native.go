//go:build cgo && !relax_nohf

package hf

// -L is relative to this file, so that a module with a replace directive finds the library
// too. --as-needed drops libstdc++, which daulet/tokenizers names and the shim does not use.

// #cgo LDFLAGS: -L${SRCDIR}/../../../../.cache/lib
// #cgo linux LDFLAGS: -Wl,--as-needed
import "C"

import (
	"github.com/daulet/tokenizers"
)

// A native is a core over daulet/tokenizers.
type native struct {
	tokenizer *tokenizers.Tokenizer
}

func openCore(data []byte) (core, error) {
	// The option's name is upside down: it means that special spellings are encoded as text.
	tokenizer, err := tokenizers.FromBytes(data, tokenizers.WithEncodeSpecialTokens())
	if err != nil {
		return nil, err
	}
	return native{tokenizer}, nil
}

func (n native) encode(text string) ([]uint32, error) {
	// No option: ids alone. EncodeErr would copy every token's spelling as well.
	encoding, err := n.tokenizer.EncodeWithOptionsErr(text, false)
	return encoding.IDs, err
}

func (n native) decode(ids []uint32) (string, error) {
	return n.tokenizer.DecodeErr(ids, false)
}

func (n native) vocabSize() int { return int(n.tokenizer.VocabSize()) }

func (n native) close() error { return n.tokenizer.Close() }
