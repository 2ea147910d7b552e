package sglangtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// version is what the server says it is, so that nobody takes it for a real one.
const version = "sglangtest"

// health answers at once, but hangs while the server is paused, as the real one does.
func (s *Server) health(ctx *fasthttp.RequestCtx) {
	left := make(chan struct{})
	defer s.http.gone.add(ctx.Conn(), func() { close(left) })()
	for {
		s.mu.Lock()
		paused, changed, closed := s.pause != notPaused, s.changed, s.closed
		s.mu.Unlock()
		if closed {
			ctx.SetStatusCode(503)
			return
		}
		if !paused {
			return
		}
		select {
		case <-changed:
		case <-left:
			return
		}
	}
}

// names are what the model is called now.
func (s *Server) names() (path, served string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.modelPath, s.servedName
}

func (s *Server) setModelPath(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.modelPath, s.servedName = path, path
}

func (s *Server) modelInfo(ctx *fasthttp.RequestCtx) {
	path, served := s.names()
	answerJSON(ctx, 200, map[string]any{
		"model_path": path, "served_model_name": served, "tokenizer_path": s.cfg.ModelPath,
		"is_generation": true, "preferred_sampling_params": nil, "weight_version": s.WeightVersion(),
		"load_format": "simulator", "reasoning_parser": nil, "tool_call_parser": nil,
		"has_image_understanding": s.image >= 0, "has_audio_understanding": false,
		"model_type": "simulator", "architectures": []string{"Simulator"},
	})
}

func (s *Server) models(ctx *fasthttp.RequestCtx) {
	_, served := s.names()
	answerJSON(ctx, 200, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": served, "object": "model", "owned_by": "sglangtest", "root": served, "max_model_len": s.cfg.ContextLen}}})
}

func (s *Server) serverInfo(ctx *fasthttp.RequestCtx) {
	path, served := s.names()
	answerJSON(ctx, 200, map[string]any{
		"model_path": path, "served_model_name": served, "context_length": s.cfg.ContextLen,
		"max_req_input_len": s.cfg.ContextLen - 1, "max_total_num_tokens": s.cfg.KVTokens, "max_running_requests": s.cfg.MaxRunning,
		"dp_size": 1, "tp_size": 1, "version": version, "weight_version": s.WeightVersion(),
		"internal_states": []any{map[string]any{"last_gen_throughput": 0, "effective_max_running_requests_per_dp": s.cfg.MaxRunning}},
	})
}

func (s *Server) noWeightVersion(ctx *fasthttp.RequestCtx) {
	answerJSON(ctx, 404, map[string]string{"detail": "This endpoint was removed. Use /model_info and read weight_version."})
}

// A loadReport is a snapshot of what is in flight.
type loadReport struct{ running, waiting, used, uncached int }

func (s *Server) loadNow() loadReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l loadReport
	for _, r := range s.byRID {
		if r.running {
			l.running++
			l.used += len(r.prompt) + int(r.produced.Load())
			continue
		}
		l.waiting++
		l.uncached += len(r.prompt)
	}
	return l
}

func (s *Server) loads(ctx *fasthttp.RequestCtx) {
	l := s.loadNow()
	answerJSON(ctx, 200, map[string]any{
		"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "version": version, "accelerator": "none", "num_accelerators": 0,
		"loads": []any{map[string]any{
			"dp_rank": 0, "num_running_reqs": l.running, "num_waiting_reqs": l.waiting, "num_waiting_uncached_tokens": l.uncached,
			"num_used_tokens": l.used, "num_total_tokens": l.used + l.uncached, "max_total_num_tokens": s.cfg.KVTokens,
			"max_running_requests": s.cfg.MaxRunning, "token_usage": min(1, float64(l.used)/float64(s.cfg.KVTokens)), "gen_throughput": 0.0, "cache_hit_rate": 0.0,
		}},
	})
}

func (s *Server) load(ctx *fasthttp.RequestCtx) {
	l := s.loadNow()
	answerJSON(ctx, 200, []any{map[string]any{"dp_rank": 0, "num_reqs": l.running + l.waiting, "num_waiting_reqs": l.waiting,
		"num_tokens": l.used + l.uncached, "num_pending_tokens": l.uncached, "ts_tic": float64(time.Now().UnixMicro()) / 1e6}})
}

// metrics answers the gauges a client reads for admission, in Prometheus' text format.
func (s *Server) metrics(ctx *fasthttp.RequestCtx) {
	if !s.cfg.Metrics {
		answerJSON(ctx, 404, map[string]string{"detail": "Not Found"})
		return
	}
	l := s.loadNow()
	ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
	for _, g := range []struct {
		name  string
		value float64
	}{
		{"max_total_num_tokens", float64(s.cfg.KVTokens)},
		{"num_used_tokens", float64(l.used)},
		{"token_usage", min(1, float64(l.used)/float64(s.cfg.KVTokens))},
		{"num_running_reqs", float64(l.running)},
		{"num_queue_reqs", float64(l.waiting)},
	} {
		fmt.Fprintf(ctx, "# TYPE sglang:%s gauge\nsglang:%s{model_name=%q} %g\n", g.name, g.name, s.cfg.ServedName, g.value)
	}
}

func (s *Server) openSession(ctx *fasthttp.RequestCtx) {
	var body struct {
		Capacity  *int   `json:"capacity_of_str_len"`
		SessionID string `json:"session_id"`
	}
	if !readBody(ctx, &body) {
		return
	}
	if body.Capacity == nil {
		refuse(ctx, badBody("capacity_of_str_len is required"), false)
		return
	}
	id, err := s.newSession(body.SessionID)
	if err != nil {
		refuse(ctx, err, false)
		return
	}
	answerJSON(ctx, 200, id)
}

func (s *Server) newSession(id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" {
		s.nextID++
		id = fmt.Sprintf("session%016x", mix(s.nextID))
	}
	if s.sessions[id] {
		return "", badValue("session %q exists", shorten(id))
	}
	if len(s.sessions) >= maxListed {
		return "", badValue("%d sessions are open; close some", len(s.sessions))
	}
	s.sessions[id] = true
	return id, nil
}

func (s *Server) closeSession(ctx *fasthttp.RequestCtx) {
	var body struct {
		SessionID *string `json:"session_id"`
	}
	if !readBody(ctx, &body) {
		return
	}
	if body.SessionID == nil {
		refuse(ctx, badBody("session_id is required"), false)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, *body.SessionID)
	if len(s.ended) < maxListed {
		s.ended = append(s.ended, *body.SessionID)
	}
}

// A worker is a line of /workers.
type worker struct {
	ID             string `json:"id"`
	URL            string `json:"url"`
	ModelID        string `json:"model_id"`
	Priority       int    `json:"priority"`
	WorkerType     string `json:"worker_type"`
	IsHealthy      bool   `json:"is_healthy"`
	Load           int    `json:"load"`
	ConnectionMode string `json:"connection_mode"`
}

// newWorker is the line of a healthy worker that does all by itself.
func newWorker(url, id string) worker {
	return worker{ID: id, URL: url, ModelID: "unknown", Priority: 50, WorkerType: "regular", IsHealthy: true, ConnectionMode: "http"}
}

// addWorker lists a worker; one that is listed keeps its id. The caller holds mu.
func (s *Server) addWorker(url string) worker {
	url = strings.TrimRight(url, "/")
	for _, w := range s.workers {
		if w.URL == url {
			return w
		}
	}
	s.nextID++
	w := newWorker(url, workerID(s.nextID))
	s.workers = append(s.workers, w)
	return w
}

// workerID makes an id of the shape of a UUID.
func workerID(n uint64) string {
	h := fmt.Sprintf("%016x%016x", mix(n), mix(mix(n)))
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// workersAnswer is the router's list.
func workersAnswer(workers []worker) map[string]any {
	if workers == nil {
		workers = []worker{}
	}
	stats := map[string]int{"prefill_count": 0, "decode_count": 0, "regular_count": 0}
	for _, w := range workers {
		stats[w.WorkerType+"_count"]++
	}
	return map[string]any{"workers": workers, "total": len(workers), "stats": stats}
}

func (s *Server) listWorkers() []worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cfg.WorkerURLs) == 0 && len(s.workers) == 0 {
		return []worker{newWorker(s.URL(), workerID(0))}
	}
	return slices.Clone(s.workers)
}

func (s *Server) workersRoute(ctx *fasthttp.RequestCtx) {
	if !ctx.IsPost() {
		answerJSON(ctx, 200, workersAnswer(s.listWorkers()))
		return
	}
	acceptWorker(ctx, func(url string) worker {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.addWorker(url)
	})
}

// acceptWorker answers POST /workers.
func acceptWorker(ctx *fasthttp.RequestCtx, add func(url string) worker) {
	var body struct {
		URL string `json:"url"`
	}
	if !readBody(ctx, &body) {
		return
	}
	if body.URL == "" {
		refuse(ctx, badBody("url is required"), false)
		return
	}
	w := add(body.URL)
	ctx.Response.Header.Set("Location", "/workers/"+w.ID)
	answerJSON(ctx, 202, map[string]string{"status": "accepted", "worker_id": w.ID, "url": w.URL, "location": "/workers/" + w.ID})
}

// workerPath finds the id in /workers/{id}.
func workerPath(path string) (id string, ok bool) {
	id, ok = strings.CutPrefix(path, "/workers/")
	return id, ok && id != "" && !strings.Contains(id, "/")
}

func (s *Server) workerRoute(ctx *fasthttp.RequestCtx, id string) {
	oneWorker(ctx, id, s.listWorkers(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.workers = slices.DeleteFunc(s.workers, func(w worker) bool { return w.ID == id })
	})
}

// oneWorker answers GET and DELETE /workers/{id}.
func oneWorker(ctx *fasthttp.RequestCtx, id string, workers []worker, remove func()) {
	at := slices.IndexFunc(workers, func(w worker) bool { return w.ID == id })
	switch {
	case at < 0:
		answerJSON(ctx, 404, map[string]any{"error": map[string]string{"code": "worker_not_found", "message": "no worker " + id}})
	case ctx.IsGet():
		answerJSON(ctx, 200, workers[at])
	case ctx.IsDelete():
		remove()
		answerJSON(ctx, 202, map[string]string{"status": "accepted", "worker_id": id})
	default:
		answerJSON(ctx, 405, map[string]string{"detail": "Method Not Allowed"})
	}
}

// A policyMessage is the body of /simulator/policy.
type policyMessage struct {
	WeightVersion string          `json:"weight_version,omitempty"`
	Policy        json.RawMessage `json:"policy"`
}

func (s *Server) simulatorPolicy(ctx *fasthttp.RequestCtx) {
	st := s.state.Load()
	if ctx.IsGet() {
		answerJSON(ctx, 200, policyMessage{st.version, st.model.policy.Document()})
		return
	}
	var body policyMessage
	if !readBody(ctx, &body) {
		return
	}
	p, err := ParsePolicy(body.Policy)
	if err == nil {
		err = s.SetPolicy(p, body.WeightVersion)
	}
	s.answerVersion(ctx, err)
}

// A weightsMessage is the body of /simulator/weights.
type weightsMessage struct {
	WeightVersion string               `json:"weight_version,omitempty"`
	Weights       map[string][]float64 `json:"weights"`
}

func (s *Server) simulatorWeights(ctx *fasthttp.RequestCtx) {
	st := s.state.Load()
	if ctx.IsGet() {
		answerJSON(ctx, 200, weightsMessage{st.version, st.model.policy.Weights()})
		return
	}
	var body weightsMessage
	if !readBody(ctx, &body) {
		return
	}
	s.answerVersion(ctx, s.SetWeights(body.Weights, body.WeightVersion))
}

func (s *Server) answerVersion(ctx *fasthttp.RequestCtx, err error) {
	if err != nil {
		refuse(ctx, badValue("%v", err), false)
		return
	}
	answerJSON(ctx, 200, map[string]any{"success": true, "weight_version": s.WeightVersion()})
}

func (s *Server) simulatorFaults(ctx *fasthttp.RequestCtx) {
	rules, err := ParseFaults(ctx.PostBody())
	if err != nil {
		refuse(ctx, badValue("%v", err), false)
		return
	}
	s.SetFaults(rules)
	answerJSON(ctx, 200, map[string]any{"success": true, "rules": len(rules)})
}

// simulatorDistribution tells a trainer what a prompt's replies are and how likely.
func (s *Server) simulatorDistribution(ctx *fasthttp.RequestCtx) {
	var body struct {
		InputIDs    []int32  `json:"input_ids"`
		Temperature *float64 `json:"temperature"`
	}
	if !readBody(ctx, &body) {
		return
	}
	temperature := 1.0
	if body.Temperature != nil {
		temperature = *body.Temperature
	}
	st := s.state.Load()
	candidates, err := st.model.DistributionAt(body.InputIDs, temperature)
	if err != nil {
		refuse(ctx, badValue("%v", err), false)
		return
	}
	answerJSON(ctx, 200, map[string]any{"weight_version": st.version, "candidates": candidates})
}
