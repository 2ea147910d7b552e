//go:build !relax_nohf

package relax

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
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

func TestWarningsOfTheBackendsShape(t *testing.T) {
	many := make([]string, 10)
	for i := range many {
		many[i] = "http://w"
	}
	both := Config{AgenticSessionLifecycle: true, AgenticProgramAdmission: true}
	for _, tt := range []struct {
		name string
		info sglang.Info
		cfg  Config
		want []string // one word of each
	}{
		{"a server", sglang.Info{Direct: true}, both, nil},
		{"a router, its workers called directly", sglang.Info{Router: true, Direct: true}, both, nil},
		{"a worker cannot be called", sglang.Info{Router: true, Direct: true, Unreachable: []string{"http://w:1"}}, both, []string{"http://w:1"}},
		{"many", sglang.Info{Router: true, Direct: true, Unreachable: many}, both, []string{"and 2 more"}},
		{"none can be called", sglang.Info{Router: true, Unreachable: []string{"http://w:1"}}, Config{}, []string{"http://w:1", "loses the tokens"}},
		{"none, with KV scheduling", sglang.Info{Router: true}, both, []string{"loses the tokens", "agentic_session_lifecycle", "agentic_program_admission"}},
		{"pairs", sglang.Info{Router: true, Pairs: true}, Config{}, nil},
	} {
		got := backendWarnings(tt.info, &tt.cfg)
		if !slices.EqualFunc(got, tt.want, strings.Contains) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
