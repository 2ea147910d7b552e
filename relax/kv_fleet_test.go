//go:build !relax_nohf

package relax

import (
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// A kvFleet is an engine in front of several workers behind a router. Its Sessions' agents only
// sleep: the test makes their requests.
type kvFleet struct {
	*Engine
	t       testing.TB
	workers []*sglangtest.Server
	router  *sglangtest.Router
	posts   sync.WaitGroup
}

// oneAtATime leaves room for one attempt at a worker: a prompt of some tokens and the decode cap.
func oneAtATime(c *Config) {
	c.AgenticProgramAdmission, c.AgenticAdmissionExpectedDecodeCap, c.RolloutMaxResponseLen = true, 1000, 1000
}

const roomForOne = 1500

// openKV opens a fleet whose workers take an hour for a token until they are told otherwise.
func openKV(t testing.TB, workers int, alter func(*Config)) *kvFleet {
	t.Helper()
	f := startKV(t, workers)
	cfg := testConfig(t)
	cfg.AgentCommand, cfg.AgentEnv = "exec sleep 1000", nil
	f.open(cfg, alter)
	return f
}

func startKV(t testing.TB, workers int) *kvFleet {
	t.Helper()
	format, err := loadFormat(tinyCheckpoint(), chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = format.Close() })
	policy, err := sglangtest.ParsePolicy([]byte(`{"default": [{"text": "I have thought about it for a long time."}]}`))
	if err != nil {
		t.Fatal(err)
	}
	f := &kvFleet{t: t}
	var urls []string
	for range workers {
		server, err := sglangtest.New(sglangtest.Config{
			Tokenizer: format.Tokenizer(), EOS: format.StopIDs(), Policy: policy, KVTokens: roomForOne,
			TokenDelay: time.Hour, NoWorkers: true, Records: 4096, ModelPath: "tinychat",
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		f.workers, urls = append(f.workers, server), append(urls, server.URL())
	}
	f.routeTo(urls...)
	return f
}

func tinyCheckpoint() string { return filepath.Join("..", "testdata", "checkpoints", "tinychat") }

func (f *kvFleet) routeTo(urls ...string) {
	f.t.Helper()
	router, err := sglangtest.NewRouter(urls...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = router.Close() })
	f.router = router
}

func (f *kvFleet) open(cfg Config, alter func(*Config)) {
	f.t.Helper()
	cfg.Backend, cfg.SGLangURL, cfg.HFCheckpoint = backendSGLang, f.router.URL(), tinyCheckpoint()
	if alter != nil {
		alter(&cfg)
	}
	f.Engine = openEngine(f.t, cfg)
	f.t.Cleanup(func() { f.goOn(); f.posts.Wait() })
}

// start starts a rollout with one Group, and returns its Sessions.
func (f *kvFleet) start() []*session {
	f.t.Helper()
	if err := f.Submit([]Task{task(agentTask{})}); err != nil {
		f.t.Fatal(err)
	}
	if err := f.StartRollout(0); err != nil {
		f.t.Fatal(err)
	}
	f.core.sessionsMu.Lock()
	defer f.core.sessionsMu.Unlock()
	all := slices.Collect(maps.Values(f.core.sessions))
	slices.SortFunc(all, func(a, b *session) int { return a.ref.Seq - b.ref.Seq })
	return all
}

// post makes a request of its own text and hands its answer to then, if there is one.
func (f *kvFleet) post(t *testing.T, s *session, text string, then func(answer)) {
	f.posts.Add(1)
	go func() {
		defer f.posts.Done()
		a := post(t, f.Engine, s, map[string]any{"messages": []chatMessage{{"role": "user", "content": text}}})
		if then != nil {
			then(a)
		}
	}()
}

// goOn lets the workers answer.
func (f *kvFleet) goOn() {
	for _, w := range f.workers {
		w.SetTokenDelay(0)
	}
}

func (f *kvFleet) atWorkers() (n int) {
	for _, w := range f.workers {
		n += w.InFlight()
	}
	return n
}

func (f *kvFleet) admission(t *testing.T) *AdmissionStats { return readStats(t, f.Engine).Admission }

// untilAdmission waits for so many attempts at the workers and held ones.
func (f *kvFleet) untilAdmission(t *testing.T, sent, held int) {
	t.Helper()
	until(t, func() bool { return f.atWorkers() == sent && f.admission(t).Waiting == held })
}

// kv drains the metrics.
func (f *kvFleet) kv(t *testing.T) map[string]float64 {
	t.Helper()
	m := map[string]float64{}
	if err := f.core.do(func() error { f.core.kvMetrics(m, ""); return nil }); err != nil {
		t.Fatal(err)
	}
	return m
}

func wantMetrics(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for name, value := range want {
		if v, ok := got["agentic_kv/"+name]; !ok || v != value {
			t.Errorf("agentic_kv/%s = %v (%v), want %v", name, v, ok, value)
		}
	}
}

func ptr[T any](v T) *T { return &v }
