package relax

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/internal/gateway"
	"github.com/relax-rollout/relax-rollout/relax/internal/parsers"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
)

// Option alters how [Open] builds an engine.
type Option func(*settings)

type settings struct {
	alloc   Allocator
	environ []string
}

// WithAllocator sets where batches are built. Default: the Go heap.
func WithAllocator(a Allocator) Option { return func(s *settings) { s.alloc = a } }

// WithEnviron sets the environment agents inherit, as "NAME=value" entries. Default:
// os.Environ(), which in a library is the environment its process was started with: what the
// host program set later is not in it.
func WithEnviron(environ []string) Option { return func(s *settings) { s.environ = environ } }

// Open checks cfg, loads the model's chat format, reaches the backend, and starts the model
// endpoint. Of a failed Open nothing is left behind but directories it may have
// made: run_dir and trace_dir.
func Open(cfg Config, opts ...Option) (*Engine, error) {
	s := settings{alloc: goHeap{}}
	for _, opt := range opts {
		opt(&s)
	}
	r, err := resolve(cfg)
	if err != nil {
		return nil, err
	}
	if r.GoMaxProcs > 0 {
		runtime.GOMAXPROCS(r.GoMaxProcs)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &core{
		cfg: r, alloc: s.alloc, environ: s.environ, ctx: ctx, cancel: cancel,
		events: newEventQueue(), inbox: make(chan func(), 256), closing: make(chan struct{}, 1),
		sessions: map[string]*session{}, groups: map[schedule.GroupID]*group{}, asks: map[uint64]openAsk{},
		tickets: map[schedule.RequestID]*ticket{}, machine: schedule.New(r.schedule), books: newLedger(),
	}
	c.train = rules{mode: modeTrain, sampling: r.sampling, maxResponse: r.RolloutMaxResponseLen, maxContext: r.RolloutMaxContextLen}
	c.goroutines = safego.New(c.poison)
	if err := c.open(); err != nil {
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		_ = c.close(ctx) // the reason it did not open matters more
		return nil, err
	}
	for _, w := range schedule.Warnings(r.schedule) {
		c.warn("option " + w.String())
	}
	c.goroutines.Go("loop", c.loop)
	c.admission.start(c.ctx, c.goroutines)
	return &Engine{core: c}, nil
}

// open builds the rooms in the order in which they need each other.
func (c *core) open() error {
	for _, build := range []func() error{
		c.openRunDir, c.openTraces, c.openLauncher, c.openFormat, c.openExperts, c.openBackend, c.openAdmission, c.openGateway, c.openMetrics,
	} {
		if err := build(); err != nil {
			return err
		}
	}
	return nil
}

func (c *core) openRunDir() error {
	if c.cfg.RunDir != "" {
		if err := os.MkdirAll(c.cfg.RunDir, 0o755); err != nil {
			return &OptionError{Option: "run_dir", Problem: "cannot be made", Err: err}
		}
		c.runDir = runDir{path: c.cfg.RunDir}
		return nil
	}
	path, err := os.MkdirTemp("", "relax-rollout-")
	if err != nil {
		return &OptionError{Option: "run_dir", Problem: "no temporary directory for it; set run_dir", Err: err}
	}
	c.runDir = runDir{path: path, ours: true}
	return nil
}

func (c *core) openFormat() error {
	var err error
	c.format, err = loadFormat(c.cfg.HFCheckpoint, chat.Options{
		ReasoningParser: c.cfg.ReasoningParser, ToolCallParser: c.cfg.ToolCallParser})
	if err != nil {
		return err
	}
	for _, text := range c.format.Warnings() {
		c.warn(text)
	}
	c.stopIDs = slices.Concat(c.format.StopIDs(), c.cfg.RolloutStopTokenIDs)
	c.isStop = make(map[int32]bool, len(c.stopIDs))
	for _, id := range c.stopIDs {
		c.isStop[id] = true
	}
	return nil
}

// loadFormat loads the chat format of a checkpoint directory, the built-in one for "". Errors
// are [*OptionError].
func loadFormat(checkpoint string, opts chat.Options) (format *chat.Format, err error) {
	if err := checkParsers(opts); err != nil {
		return nil, err
	}
	if checkpoint == "" {
		format, err = chat.New(bytetok.New(), opts)
	} else {
		format, err = chat.Load(checkpoint, opts)
	}
	if err != nil {
		return nil, &OptionError{Option: "hf_checkpoint", Problem: "the model's chat format cannot be used", Err: err}
	}
	return format, nil
}

// checkParsers names the option of a parser that does not exist.
func checkParsers(opts chat.Options) error {
	if _, err := parsers.Reasoning(opts.ReasoningParser); err != nil {
		return &OptionError{Option: "agentic_reasoning_parser", Problem: "cannot be used", Err: err}
	}
	if _, err := parsers.ToolCalls(opts.ToolCallParser); err != nil {
		return &OptionError{Option: "agentic_tool_call_parser", Problem: "cannot be used", Err: err}
	}
	return nil
}

func (c *core) openBackend() error {
	url := c.cfg.SGLangURL
	if c.cfg.Backend == backendSimulator {
		simulator, err := openSimulator(c.cfg.Simulator, c.format, c.experts)
		if err != nil {
			return err
		}
		c.simulator, url = simulator, simulator.URL()
	}
	client, err := sglang.New(sglang.Config{
		URL: url, APIKey: c.cfg.SGLangAPIKey, Concurrency: c.cfg.SGLangServerConcurrency, Goroutines: c.goroutines,
		SendSessionID: c.cfg.AgenticSessionLifecycle,
	})
	if err != nil {
		return backendError(err)
	}
	c.backend, c.backendURL = client, url
	if c.backendInfo, err = client.Probe(c.ctx); err != nil {
		return backendError(err)
	}
	c.warnOfBackend(c.backendInfo)
	return nil
}

// backendError names the option behind a backend that cannot be used.
func backendError(err error) error {
	return fmt.Errorf("%w: option sglang_url: %w", ErrBackend, err)
}

func (c *core) openLauncher() error {
	launcher, err := agent.New(agent.Config{
		Supervisor: c.cfg.AgentSupervisor, Command: c.cfg.AgentCommand, Cwd: c.cfg.AgentCwd,
		LoginShell: c.cfg.AgentLoginShell,
		Env:        c.cfg.AgentEnv, Inherit: c.cfg.inherit, Environ: c.environ, KillGrace: c.cfg.killGrace,
		StartConcurrency: c.cfg.AgentStartConcurrency, MaxAgents: c.mostAgents(),
		RunDir: c.runDir.path, PruneRunDir: c.runDir.ours, Goroutines: c.goroutines, Log: c.warn,
	})
	var wrong *agent.OptionError
	if errors.As(err, &wrong) {
		return &OptionError{Option: wrong.Option, Problem: wrong.Problem, Err: wrong.Err}
	}
	if err != nil {
		return fmt.Errorf("relax: agent launcher: %w", err)
	}
	c.launcher = launcher
	return nil
}

func (c *core) openGateway() error {
	gw, err := gateway.New(gateway.Config{
		Host: c.cfg.APIHost, Port: c.cfg.APIPort, AdvertiseURL: c.cfg.APIAdvertiseURL,
		MaxBodyBytes: c.cfg.MaxBodyBytes, Model: c.modelName(), Goroutines: c.goroutines, Handler: c,
		Log: c.warn,
	})
	if err != nil {
		option := "api_host"
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
			option = "api_port"
		}
		return &OptionError{Option: option, Problem: "the model endpoint cannot listen", Err: err}
	}
	c.gateway = gw
	return nil
}

// modelName is what GET /models lists: the checkpoint's base name.
func (c *core) modelName() string {
	if c.cfg.HFCheckpoint == "" {
		return backendSimulator
	}
	return filepath.Base(filepath.Clean(c.cfg.HFCheckpoint))
}

// Session finds the Session of a bearer token for the gateway.
func (c *core) Session(token string) (gateway.Session, bool) {
	c.sessionsMu.Lock()
	defer c.sessionsMu.Unlock()
	s, ok := c.sessions[token]
	if !ok {
		return nil, false
	}
	return s, true
}

func (c *core) remember(s *session) {
	c.sessionsMu.Lock()
	defer c.sessionsMu.Unlock()
	c.sessions[s.id] = s
}

func (c *core) forget(s *session) {
	c.sessionsMu.Lock()
	defer c.sessionsMu.Unlock()
	delete(c.sessions, s.id)
}

// runDir is where logs of failed Sessions are kept.
type runDir struct {
	path string
	ours bool // made by us, so removed by us
}

func (d runDir) remove() error {
	if !d.ours {
		return nil
	}
	return os.RemoveAll(filepath.Clean(d.path))
}

// goHeap builds batches in Go memory, for Go programs.
type goHeap struct{}

type heapArena []byte

func (goHeap) Alloc(size int) (Arena, error) {
	raw := make([]byte, size+batch.Align)
	shift := int(-uintptr(unsafe.Pointer(&raw[0])) % batch.Align)
	return heapArena(raw[shift : shift+size]), nil
}

func (a heapArena) Bytes() []byte { return a }
func (heapArena) Free()           {} // the garbage collector does
