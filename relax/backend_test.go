//go:build !relax_nohf

package relax

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnreachableBackend(t *testing.T) {
	cfg := testConfig(t)
	cfg.SGLangURL = "http://127.0.0.1:1"
	cfg.HFCheckpoint = filepath.Join("..", "testdata", "checkpoints", "tinychat")
	_, err := Open(cfg)
	if !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "sglang_url") {
		t.Errorf("err = %v, want ErrBackend naming the option and the URL", err)
	}
}
