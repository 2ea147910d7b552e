package relax

import (
	"bytes"
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

var expertsOfTests = sglangtest.Experts{Layers: 3, TopK: 2, Count: 8}

func replayConfig(t *testing.T) Config {
	cfg := testConfig(t)
	cfg.UseRolloutRoutingReplay, cfg.MoENumLayers, cfg.MoERouterTopK = true, expertsOfTests.Layers, expertsOfTests.TopK
	return cfg
}

// checkExperts compares the column with what the simulator routed each token to.
func checkExperts(t *testing.T, b *Batch) {
	t.Helper()
	tokens, offsets, got := View[int32](b, "tokens"), View[int64](b, "offsets"), View[int32](b, "routed_experts")
	if shape := View[int32](b, "routed_experts_shape"); !slices.Equal(shape, []int32{3, 2}) {
		t.Fatalf("shape %v", shape)
	}
	at := 0
	for row := range b.Seqs {
		for position, token := range tokens[offsets[row] : offsets[row+1]-1] {
			for layer := range 3 {
				for slot := range 2 {
					if want := expertsOfTests.Routed(position, layer, slot, token); got[at] != want {
						t.Fatalf("row %d position %d layer %d slot %d: expert %d, want %d", row, position, layer, slot, got[at], want)
					}
					at++
				}
			}
		}
	}
	if at != len(got) {
		t.Errorf("%d experts, want %d", len(got), at)
	}
}

func TestRoutedExpertsOfSeveralTurns(t *testing.T) {
	t.Parallel()
	cfg := replayConfig(t)
	cfg.NSamplesPerPrompt = 2
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{Turns: 3}))
	r := runStep(t, e, 0, nil)
	if r.batch == nil || r.batch.Seqs != 2 {
		t.Fatalf("report %+v", r.report)
	}
	checkExperts(t, r.batch)
}

// An aborted turn goes on: the newest attempt reports only what no earlier one did.
func TestRoutedExpertsOfAContinuedTurn(t *testing.T) {
	t.Parallel()
	cfg := replayConfig(t)
	cfg.RolloutMaxResponseLen, cfg.Simulator = 64, longReply(200)
	e := openEngine(t, cfg)
	p := pace(e, "long", 10, 0)
	starts := &startsSeen{generator: e.core.backend}
	e.core.backend = starts
	submit(t, e, asking("long", agentTask{}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return p.held() == 1 })
	p.release()
	r := finishStep(t, e, nil)
	if r.batch == nil || View[int32](r.batch, "aborts")[0] != 1 {
		t.Fatalf("report %+v", r.report)
	}
	checkExperts(t, r.batch)
	prompt := int(View[int32](r.batch, "prompt_len")[0])
	if want := []int{0, prompt + 10 - 1}; !slices.Equal(starts.starts, want) {
		t.Errorf("experts were asked for from %v on, want %v", starts.starts, want)
	}
}

// startsSeen notes from which position on experts are asked for.
type startsSeen struct {
	generator
	starts []int
}

func (g *startsSeen) Generate(ctx context.Context, call sglang.Call) (sglang.Result, error) {
	g.starts = append(g.starts, call.RoutedExpertsStart)
	return g.generator.Generate(ctx, call)
}

// mangled changes the experts of each reply.
type mangled struct {
	generator
	change func(*sglang.Result)
}

func (m *mangled) Generate(ctx context.Context, call sglang.Call) (sglang.Result, error) {
	r, err := m.generator.Generate(ctx, call)
	m.change(&r)
	return r, err
}

// Cases I8.2 and S11: the Session is refused and says why; the trainer goes on.
func TestRoutedExpertsThatDoNotFit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		alter  func(*Config)
		change func(*sglang.Result)
		want   string
	}{
		"none":              {nil, func(r *sglang.Result) { r.RoutedExperts = nil }, "found 0; does SGLang run with"},
		"another model's":   {func(c *Config) { c.MoENumLayers = 5 }, nil, "(5 layers x top 2 x 4 bytes), found"},
		"a position less":   {nil, func(r *sglang.Result) { r.RoutedExperts = cutBase64(r.RoutedExperts, 24) }, "found 1;"},
		"no base64":         {nil, func(r *sglang.Result) { r.RoutedExperts = []byte("abc") }, "padded base64"},
		"a position beyond": {nil, func(r *sglang.Result) { r.RoutedExperts = slices.Concat(zeros(24), r.RoutedExperts) }, "expected "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := replayConfig(t)
			cfg.MaxConsecutiveDroppedGroups = 1
			cfg.Simulator = []byte(`{"experts": {"layers": 3, "top_k": 2, "count": 8}}`)
			if c.alter != nil {
				c.alter(&cfg)
			}
			e := openEngine(t, cfg)
			if c.change != nil {
				e.core.backend = &mangled{e.core.backend, c.change}
			}
			submit(t, e, task(agentTask{}))
			r := runStep(t, e, 0, nil)
			if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != string(reasonExport) {
				t.Fatalf("report %+v", r.report)
			}
			for _, want := range []string{"session 0 of group train:group_1", "routed experts: ", c.want} {
				if text := r.report.Drops[0].First; !strings.Contains(text, want) {
					t.Errorf("%q does not say %q", text, want)
				}
			}
		})
	}
}

// zeros is base64 of n zero bytes, a multiple of 3.
func zeros(n int) []byte { return bytes.Repeat([]byte("A"), n/3*4) }

// A server that verifies several drafts at once samples beyond the budget, and reports on all of it.
func TestRoutedExpertsBehindTheBudgetAreCut(t *testing.T) {
	t.Parallel()
	cfg := replayConfig(t)
	cfg.RolloutMaxResponseLen, cfg.Simulator = 8, longReply(100)
	e := openEngine(t, cfg)
	e.core.backend = &mangled{e.core.backend, func(r *sglang.Result) {
		raw, err := base64.StdEncoding.DecodeString(string(r.RoutedExperts))
		if err != nil {
			t.Error(err)
		}
		r.RoutedExperts = []byte(base64.StdEncoding.EncodeToString(append(raw, make([]byte, 48)...)))
	}}
	submit(t, e, task(agentTask{}))
	r := runStep(t, e, 0, nil)
	if r.batch == nil {
		t.Fatalf("report %+v", r.report)
	}
	checkExperts(t, r.batch)
}

func TestCutBase64(t *testing.T) {
	raw := []byte("0123456789abcdef")
	text := []byte(base64.StdEncoding.EncodeToString(raw))
	for size := range len(raw) {
		if got, err := base64.StdEncoding.DecodeString(string(cutBase64(text, size))); err != nil || !bytes.Equal(got, raw[:size]) {
			t.Errorf("%d bytes: %q, %v", size, got, err)
		}
	}
}

func TestEvalAsksForNoRoutedExperts(t *testing.T) {
	t.Parallel()
	e := openEngine(t, replayConfig(t))
	if err := e.StartEval(0, []EvalDataset{{Name: "d", Tasks: []Task{task(agentTask{})}}}); err != nil {
		t.Fatal(err)
	}
	r := finishStep(t, e, nil)
	if r.batch == nil {
		t.Fatalf("report %+v", r.report)
	}
	if _, ok := r.batch.Column("routed_experts"); ok {
		t.Error("an eval batch has routed experts")
	}
}

func TestExpertShapeOfACheckpoint(t *testing.T) {
	for text, want := range map[string]expertShape{
		`{"num_hidden_layers": 48, "num_experts_per_tok": 8}`:                {48, 8},
		`{"num_hidden_layers": 24, "experts_per_token": 4}`:                  {24, 4},
		`{"text_config": {"num_hidden_layers": 6, "num_experts_per_tok":2}}`: {6, 2},
		`{"num_hidden_layers": 12}`:                                          {12, 0},
	} {
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readExpertShape(path); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	if _, err := readExpertShape(filepath.Join(t.TempDir(), "config.json")); err == nil {
		t.Error("a file that is not there has a shape")
	}
}

func TestRoutingReplayOptions(t *testing.T) {
	for want, alter := range map[string]func(*Config){
		"option moe_router_topk":            func(c *Config) { c.MoERouterTopK = 0 },
		"option moe_num_layers":             func(c *Config) { c.MoENumLayers = 0 },
		"option moe_num_layers: expected z": func(c *Config) { c.MoENumLayers = -1 },
		"partial_rollout":                   func(c *Config) { c.PartialRollout = true },
	} {
		cfg := replayConfig(t)
		alter(&cfg)
		if e, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
			if e != nil {
				_ = e.Close(context.Background())
			}
		}
	}
}
