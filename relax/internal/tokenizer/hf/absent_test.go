//go:build !cgo || relax_nohf

package hf

import (
	"errors"
	"testing"
)

func TestLoadSaysWhatIsMissing(t *testing.T) {
	if _, err := Load("../../../../testdata/checkpoints/tinychat/tokenizer.json", Options{}); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("Load: %v, want ErrNotBuilt", err)
	}
}
