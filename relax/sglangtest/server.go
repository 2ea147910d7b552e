package sglangtest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// A state is what the model is at a moment. It is replaced, never changed.
type state struct {
	model   *Model
	version string
}

// A pauseMode is how a paused server treats what is in flight.
type pauseMode string

const (
	notPaused    pauseMode = ""
	pauseAbort   pauseMode = "abort"
	pauseRetract pauseMode = "retract"
	pauseInPlace pauseMode = "in_place"
)

// A Server is a running stand-in. All methods are safe for concurrent use.
type Server struct {
	cfg     Config
	http    *httpd
	state   atomic.Pointer[state]
	cache   *prefixCache
	records *recorder
	slots   chan struct{} // nil: no bound on running requests
	pace    atomic.Int64  // the token delay in force
	filler  int32
	special map[int32]bool
	image   int32 // −1: the tokenizer has no image token

	mu       sync.Mutex
	live     map[*run]struct{} // everything whose client waits
	byRID    map[string]*run   // the registered ones
	changed  chan struct{}     // closed and renewed when byRID, a pause or an update changes
	pause    pauseMode
	frozen   chan struct{} // closed by Thaw; nil: not frozen
	updates  int           // weight updates that keep new requests out
	closed   bool
	fault    func(*GenerateRequest) *Fault
	plan     *faultPlan
	sessions map[string]bool
	ended    []string // sessions closed
	aborts   []Abort
	workers  []worker
	nextID   uint64
	gone     int // clients that hung up

	modelPath, servedName string // Config's until an update from disk brings another path
}

// New starts a server.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("sglangtest: %w", err)
	}
	model, err := NewModel(cfg.Policy, cfg.Tokenizer, cfg.EOS)
	if err != nil {
		return nil, fmt.Errorf("sglangtest: %w", err)
	}
	s := &Server{
		cfg: cfg, cache: newPrefixCache(), records: newRecorder(cfg.Records), image: -1,
		live: map[*run]struct{}{}, byRID: map[string]*run{}, changed: make(chan struct{}),
		plan: newFaultPlan(slices.Clone(cfg.Faults)), sessions: map[string]bool{}, special: map[int32]bool{},
		modelPath: cfg.ModelPath, servedName: cfg.ServedName,
	}
	s.state.Store(&state{model: model, version: cfg.WeightVersion})
	s.pace.Store(int64(cfg.TokenDelay))
	if cfg.MaxRunning > 0 {
		s.slots = make(chan struct{}, cfg.MaxRunning)
	}
	if err := s.learnTokens(); err != nil {
		return nil, fmt.Errorf("sglangtest: %w", err)
	}
	s.http, err = listen(cfg.Addr, cfg.DisconnectCheck, s.route)
	if err != nil {
		return nil, fmt.Errorf("sglangtest: %w", err)
	}
	for _, url := range cfg.WorkerURLs {
		s.addWorker(url)
	}
	s.http.start()
	return s, nil
}

// learnTokens looks up the ids the server treats apart.
func (s *Server) learnTokens() error {
	tok := s.cfg.Tokenizer
	space, err := tok.Encode(" ")
	if err != nil || len(space) == 0 {
		return fmt.Errorf("the tokenizer cannot encode a space: %w", err)
	}
	s.filler = space[0]
	for _, id := range s.cfg.EOS {
		s.special[id] = true
	}
	for _, spelling := range []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>"} {
		if id, ok := tok.TokenID(spelling); ok {
			s.special[id] = true
		}
	}
	if id, ok := tok.TokenID(s.cfg.ImageToken); ok {
		s.image = id
	}
	return nil
}

// URL is the server's base URL, without a slash at the end.
func (s *Server) URL() string { return s.http.url() }

// Close ends every request without an answer and every connection, and waits until all
// goroutines have ended. It may be called more than once. The error is that of a handler
// that panicked, if one did.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for r := range s.live {
		r.signal(signalClosed)
	}
	s.change()
	s.mu.Unlock()
	return s.http.close()
}

// Model is the model in force.
func (s *Server) Model() *Model { return s.state.Load().model }

// WeightVersion is the weight version in force.
func (s *Server) WeightVersion() string { return s.state.Load().version }

// SetPolicy replaces what the model says, from the next token of every request on, and
// flushes the prefix cache. An empty version keeps the old one.
func (s *Server) SetPolicy(p *Policy, version string) error {
	model, err := NewModel(p, s.cfg.Tokenizer, s.cfg.EOS)
	if err != nil {
		return fmt.Errorf("sglangtest: %w", err)
	}
	s.replace(func(old *state) *state { return &state{model: model, version: orOld(version, old)} })
	s.cache.flush()
	return nil
}

// SetWeights replaces logits, as [Policy.WithWeights] does, from the next token of every
// request on, and flushes the prefix cache. An empty version keeps the old one.
func (s *Server) SetWeights(weights map[string][]float64, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.state.Load()
	p, err := old.model.policy.WithWeights(weights)
	if err != nil {
		return fmt.Errorf("sglangtest: %w", err)
	}
	model, err := NewModel(p, s.cfg.Tokenizer, s.cfg.EOS)
	if err != nil {
		return fmt.Errorf("sglangtest: %w", err)
	}
	s.state.Store(&state{model: model, version: orOld(version, old)})
	s.cache.flush()
	return nil
}

// SetWeightVersion replaces the weight version only.
func (s *Server) SetWeightVersion(version string) {
	s.replace(func(old *state) *state { return &state{model: old.model, version: orOld(version, old)} })
}

func (s *Server) replace(next func(old *state) *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Store(next(s.state.Load()))
}

func orOld(version string, old *state) string {
	if version == "" {
		return old.version
	}
	return version
}

// SetTokenDelay replaces Config.TokenDelay, also for requests in flight: a test can hold
// replies with an hour and let them go with 0.
func (s *Server) SetTokenDelay(d time.Duration) {
	s.pace.Store(int64(d))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.byRID {
		r.poke()
	}
}

func (s *Server) delay() time.Duration { return time.Duration(s.pace.Load()) }

// SetFault lets f choose a fault for each /generate that was understood; nil: none. It is
// asked before the rules of [Server.SetFaults] and must be safe for concurrent use.
func (s *Server) SetFault(f func(*GenerateRequest) *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// SetFaults replaces the fault rules.
func (s *Server) SetFaults(rules []FaultRule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = newFaultPlan(slices.Clone(rules))
}

// Requests returns the newest /generate requests, oldest first, at most Config.Records.
func (s *Server) Requests() []Record { return s.records.all() }

// AbortAll ends everything in flight as POST /abort_request with abort_all does: an abort
// that the requests' owners did not ask for.
func (s *Server) AbortAll() { s.abort("", true) }

// Pause does what POST /pause_generation does in a mode: "abort", "retract" or "in_place". In
// mode abort it returns when nothing is in flight.
func (s *Server) Pause(mode string) error {
	return s.pauseIn(s.http.ctx, pauseMode(mode))
}

// Continue ends a pause.
func (s *Server) Continue() { s.resume() }

// Aborts returns every /abort_request that named something, oldest first, at most 10,000.
func (s *Server) Aborts() []Abort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.aborts)
}

// ClosedSessions returns the ids that came to /close_session, in order, at most 10,000.
func (s *Server) ClosedSessions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ended)
}

// InFlight is the number of requests that are waiting or running. Requests held back by a
// pause are not among them.
func (s *Server) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byRID)
}

// Blocked is the number of requests that a pause or a weight update keeps out.
func (s *Server) Blocked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live) - len(s.byRID)
}

// Disconnects is the number of /generate clients that hung up before their answer.
func (s *Server) Disconnects() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// change wakes everyone who waits for a change of the server. The caller holds mu.
func (s *Server) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// decode turns ids into text. Ids of our own making are in the vocabulary; what still fails
// is shown as nothing.
func (s *Server) decode(ids []int32, skipSpecial bool) string {
	if skipSpecial && slices.ContainsFunc(ids, func(id int32) bool { return s.special[id] }) {
		kept := make([]int32, 0, len(ids))
		for _, id := range ids {
			if !s.special[id] {
				kept = append(kept, id)
			}
		}
		ids = kept
	}
	text, err := s.cfg.Tokenizer.Decode(ids)
	if err != nil {
		return ""
	}
	return text
}

// A route is a path's handler and the methods it takes.
type route struct {
	methods []string
	handle  func(*Server, *fasthttp.RequestCtx)
}

var (
	get     = []string{"GET", "HEAD"}
	post    = []string{"POST"}
	getPost = []string{"GET", "HEAD", "POST"}
)

var routes = map[string]route{
	"/generate":                        {[]string{"POST", "PUT"}, (*Server).generate},
	"/abort_request":                   {post, (*Server).abortRequest},
	"/pause_generation":                {post, (*Server).pauseGeneration},
	"/continue_generation":             {post, (*Server).continueGeneration},
	"/health":                          {get, (*Server).health},
	"/health_generate":                 {get, (*Server).health},
	"/model_info":                      {get, (*Server).modelInfo},
	"/get_model_info":                  {get, (*Server).modelInfo},
	"/server_info":                     {get, (*Server).serverInfo},
	"/get_server_info":                 {get, (*Server).serverInfo},
	"/weight_version":                  {get, (*Server).noWeightVersion},
	"/get_weight_version":              {get, (*Server).noWeightVersion},
	"/update_weight_version":           {post, (*Server).updateWeightVersion},
	"/v1/models":                       {get, (*Server).models},
	"/v1/loads":                        {get, (*Server).loads},
	"/get_load":                        {get, (*Server).load},
	"/metrics":                         {get, (*Server).metrics},
	"/flush_cache":                     {getPost, (*Server).flushCache},
	"/open_session":                    {getPost, (*Server).openSession},
	"/close_session":                   {getPost, (*Server).closeSession},
	updateFromDisk:                     {post, (*Server).updateWeights},
	"/update_weights_from_tensor":      {post, (*Server).updateWeights},
	"/update_weights_from_distributed": {post, (*Server).updateWeights},
	"/update_weights_from_ipc":         {post, (*Server).updateWeights},
	"/init_weights_update_group":       {post, (*Server).acceptNothing},
	"/destroy_weights_update_group":    {post, (*Server).acceptNothing},
	"/workers":                         {getPost, (*Server).workersRoute},
	"/simulator/policy":                {[]string{"GET", "PUT", "POST"}, (*Server).simulatorPolicy},
	"/simulator/weights":               {[]string{"GET", "PUT", "POST"}, (*Server).simulatorWeights},
	"/simulator/faults":                {[]string{"PUT", "POST"}, (*Server).simulatorFaults},
	"/simulator/distribution":          {post, (*Server).simulatorDistribution},
}

func (s *Server) route(ctx *fasthttp.RequestCtx) {
	if !s.awaitThaw() {
		ctx.SetConnectionClose()
		return
	}
	path := string(ctx.Path())
	if !s.authorized(ctx, path) {
		answerJSON(ctx, 401, map[string]string{"error": "Unauthorized"})
		return
	}
	if id, ok := workerPath(path); ok && !s.cfg.NoWorkers {
		s.workerRoute(ctx, id)
		return
	}
	r, ok := routes[path]
	if !ok || path == "/workers" && s.cfg.NoWorkers {
		answerJSON(ctx, 404, map[string]string{"detail": "Not Found"})
		return
	}
	if !slices.Contains(r.methods, string(ctx.Method())) {
		answerJSON(ctx, 405, map[string]string{"detail": "Method Not Allowed"})
		return
	}
	r.handle(s, ctx)
}

func (s *Server) authorized(ctx *fasthttp.RequestCtx, path string) bool {
	if s.cfg.APIKey == "" || path == "/health" || path == "/health_generate" {
		return true
	}
	return string(ctx.Request.Header.Peek("Authorization")) == "Bearer "+s.cfg.APIKey
}
