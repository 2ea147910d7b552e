package main

import (
	"path/filepath"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/hf"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// loadHF reads the tokenizer of a checkpoint directory. A binary built without cgo, or with
// the tag relax_nohf, has none and says so.
func loadHF(directory string) (sglangtest.Tokenizer, error) {
	return hf.Load(filepath.Join(directory, "tokenizer.json"), hf.Options{})
}
