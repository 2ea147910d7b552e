package sglangtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// routerFields are the top-level fields of /generate that sgl-model-gateway 0.3.2 knows. It
// reads a body into a struct and writes it anew, so others do not arrive.
var routerFields = []string{"text", "input_ids", "input_embeds", "image_data", "video_data", "audio_data",
	"sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob",
	"return_text_in_logprobs", "stream", "log_metrics", "return_hidden_states", "modalities", "session_params",
	"lora_path", "lora_id", "custom_logit_processor", "bootstrap_host", "bootstrap_port", "bootstrap_room",
	"bootstrap_pair_key", "data_parallel_rank", "background", "conversation_id", "priority", "extra_key",
	"no_logs", "custom_labels", "return_bytes", "return_entropy", "rid"}

// routerSampling are the sampling parameters it knows; routerFloats go through a float32.
var (
	routerSampling = []string{"temperature", "max_new_tokens", "top_p", "top_k", "frequency_penalty", "presence_penalty",
		"repetition_penalty", "stop", "ignore_eos", "skip_special_tokens", "json_schema", "regex", "ebnf", "min_p",
		"min_new_tokens", "stop_token_ids", "no_stop_trim", "n", "sampling_seed"}
	routerFloats = []string{"temperature", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_p"}
	routerPasses = []string{"Authorization", "X-Request-Id", "X-Correlation-Id", "Traceparent", "Tracestate", "X-Smg-Routing-Key"}
)

// A Router stands in for sgl-model-gateway: it lists its workers, passes /generate on to
// them in turn, dropping the fields the real one drops, and knows no abort, pause, weight or
// session route. A worker that cannot be reached or answers 503 is passed over, once for
// each worker.
type Router struct {
	http   *httpd
	client *http.Client

	mu      sync.Mutex
	workers []worker
	turn    int
	old     bool
	nextID  uint64
}

// NewRouter starts a router in front of workers, on a free loopback port.
func NewRouter(urls ...string) (*Router, error) { return NewRouterAt("", urls...) }

// NewRouterAt is NewRouter at an address such as "127.0.0.1:30000".
func NewRouterAt(addr string, urls ...string) (*Router, error) {
	r := &Router{client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 500, DisableCompression: true, IdleConnTimeout: 50 * time.Second}}}
	for _, url := range urls {
		r.addWorker(url)
	}
	var err error
	if r.http, err = listen(addr, 20*time.Millisecond, r.route); err != nil {
		return nil, fmt.Errorf("sglangtest: router: %w", err)
	}
	r.http.start()
	return r, nil
}

// URL is the router's base URL, without a slash at the end.
func (r *Router) URL() string { return r.http.url() }

// Close ends every connection, to clients and to workers, and waits until all goroutines
// have ended. It may be called more than once.
func (r *Router) Close() error {
	err := r.http.close()
	r.client.CloseIdleConnections()
	return err
}

// AddWorker adds a worker, unless it is there.
func (r *Router) AddWorker(url string) { r.addWorker(url) }

func (r *Router) addWorker(url string) worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	url = strings.TrimRight(url, "/")
	for _, w := range r.workers {
		if w.URL == url {
			return w
		}
	}
	r.nextID++
	w := newWorker(url, workerID(r.nextID))
	r.workers = append(r.workers, w)
	return w
}

// RemoveWorker takes a worker off the list; requests it has go on.
func (r *Router) RemoveWorker(url string) {
	r.remove(func(w worker) bool { return w.URL == strings.TrimRight(url, "/") })
}

func (r *Router) remove(which func(worker) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers = slices.DeleteFunc(slices.Clone(r.workers), which)
}

// SetHealthy makes the list call a worker healthy or not. A worker that is not gets requests
// only if no other is.
func (r *Router) SetHealthy(url string, healthy bool) {
	r.change(url, func(w *worker) { w.IsHealthy = healthy })
}

// SetType makes the list call a worker "regular", "prefill" or "decode". The stand-in lets
// decode workers do all of a request.
func (r *Router) SetType(url, kind string) {
	r.change(url, func(w *worker) { w.WorkerType = kind })
}

func (r *Router) change(url string, do func(*worker)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	workers := slices.Clone(r.workers) // lists that were handed out stay as they are
	for i := range workers {
		if workers[i].URL == strings.TrimRight(url, "/") {
			do(&workers[i])
		}
	}
	r.workers = workers
}

// SetOld makes the router list its workers as sglang-router up to 0.2 and the router of slime
// do: GET /list_workers instead of /workers.
func (r *Router) SetOld(old bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.old = old
}

func (r *Router) isOld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.old
}

func (r *Router) list() []worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers
}

// order is the workers in the order in which the next request tries them.
func (r *Router) order() []worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	able := slices.DeleteFunc(slices.Clone(r.workers), func(w worker) bool { return w.WorkerType == "prefill" })
	if slices.ContainsFunc(able, func(w worker) bool { return w.IsHealthy }) {
		able = slices.DeleteFunc(able, func(w worker) bool { return !w.IsHealthy })
	}
	n := len(able)
	if n == 0 {
		return nil
	}
	first := r.turn % n
	r.turn++
	return append(slices.Clone(able[first:]), able[:first]...)
}

func (r *Router) route(ctx *fasthttp.RequestCtx) {
	path := string(ctx.Path())
	if r.isOld() && (path == "/list_workers" || strings.HasPrefix(path, "/workers")) {
		r.oldList(ctx, path)
		return
	}
	if id, ok := workerPath(path); ok {
		oneWorker(ctx, id, r.list(), func() { r.remove(func(w worker) bool { return w.ID == id }) })
		return
	}
	switch method := string(ctx.Method()); {
	case path == "/generate" && method == "POST":
		r.generate(ctx)
	case path == "/workers" && method == "POST":
		acceptWorker(ctx, r.addWorker)
	case path == "/workers" && method == "GET":
		answerJSON(ctx, 200, workersAnswer(r.list()))
	case (path == "/health" || path == "/liveness" || path == "/readiness") && method == "GET":
		ctx.SetBodyString("OK")
	case slices.Contains([]string{"/model_info", "/get_model_info", "/server_info", "/v1/models", "/health_generate"}, path) && method == "GET":
		r.forward(ctx, method, path, nil)
	case path == "/flush_cache" && method == "POST":
		r.flushAll(ctx)
	default:
		ctx.SetStatusCode(404)
	}
}

func (r *Router) oldList(ctx *fasthttp.RequestCtx, path string) {
	if path != "/list_workers" || !ctx.IsGet() {
		ctx.SetStatusCode(404)
		return
	}
	urls := []string{}
	for _, w := range r.list() {
		urls = append(urls, w.URL)
	}
	answerJSON(ctx, 200, map[string][]string{"urls": urls})
}

func (r *Router) generate(ctx *fasthttp.RequestCtx) {
	body, err := rewrite(ctx.PostBody())
	if err != nil {
		routerError(ctx, 400, "invalid_request", err.Error())
		return
	}
	r.forward(ctx, "POST", "/generate", body)
}

// forward tries the workers one after the other and passes the first answer on.
func (r *Router) forward(ctx *fasthttp.RequestCtx, method, path string, body []byte) {
	workers := r.order()
	if len(workers) == 0 {
		routerError(ctx, 503, "no_available_workers", "no workers are available")
		return
	}
	alive, cancel := context.WithCancel(r.http.ctx)
	unwatch := r.http.gone.add(ctx.Conn(), cancel)
	end := func() { unwatch(); cancel() }
	var last error
	for i, w := range workers {
		resp, err := r.call(alive, ctx, method, w.URL+path, body)
		if err != nil {
			last = err
			continue
		}
		if resp.StatusCode == 503 && i < len(workers)-1 {
			resp.Body.Close()
			continue
		}
		pass(ctx, resp, end)
		return
	}
	end()
	if errors.Is(last, context.Canceled) {
		_ = ctx.Conn().Close()
		return
	}
	routerError(ctx, 500, "call_upstream_connection_failed", last.Error())
}

func (r *Router) call(alive context.Context, ctx *fasthttp.RequestCtx, method, url string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(alive, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, name := range routerPasses {
		if v := ctx.Request.Header.Peek(name); len(v) > 0 {
			req.Header.Set(name, string(v))
		}
	}
	return r.client.Do(req)
}

// pass answers with a worker's answer, as it comes.
func pass(ctx *fasthttp.RequestCtx, resp *http.Response, end func()) {
	ctx.SetStatusCode(resp.StatusCode)
	ctx.SetContentType(resp.Header.Get("Content-Type"))
	size := int(resp.ContentLength)
	ctx.Response.ImmediateHeaderFlush = true
	ctx.SetBodyStream(&passedBody{ReadCloser: resp.Body, conn: ctx.Conn(), end: end}, size)
}

// A passedBody ends the client's connection if the worker's breaks.
type passedBody struct {
	io.ReadCloser
	conn io.Closer
	end  func()
}

func (b *passedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		_ = b.conn.Close()
	}
	return n, err
}

func (b *passedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

func (r *Router) flushAll(ctx *fasthttp.RequestCtx) {
	failed := 0
	for _, w := range r.list() {
		resp, err := r.call(r.http.ctx, ctx, "POST", w.URL+"/flush_cache", nil)
		if err != nil {
			failed++
			continue
		}
		if resp.Body.Close(); resp.StatusCode != 200 {
			failed++
		}
	}
	answerJSON(ctx, 200, map[string]int{"failed": failed})
}

func routerError(ctx *fasthttp.RequestCtx, status int, code, message string) {
	ctx.Response.Header.Set("X-SMG-Error-Code", code)
	answerJSON(ctx, status, map[string]any{"error": map[string]string{"type": http.StatusText(status), "code": code, "message": message}})
}

// rewrite drops what the gateway does not know.
func rewrite(body []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, fmt.Errorf("the body does not parse: %w", err)
	}
	keep(fields, routerFields)
	if raw := fields["sampling_params"]; given(raw) {
		var params map[string]json.RawMessage
		if err := json.Unmarshal(raw, &params); err != nil {
			return nil, fmt.Errorf("sampling_params: %w", err)
		}
		keep(params, routerSampling)
		for _, name := range routerFloats {
			narrow(params, name)
		}
		again, err := json.Marshal(params)
		if err != nil {
			return nil, err
		}
		fields["sampling_params"] = again
	}
	return json.Marshal(fields)
}

func keep(fields map[string]json.RawMessage, known []string) {
	for name := range fields {
		if !slices.Contains(known, name) {
			delete(fields, name)
		}
	}
}

// narrow takes a number through a float32.
func narrow(fields map[string]json.RawMessage, name string) {
	v, err := strconv.ParseFloat(string(fields[name]), 32)
	if err == nil {
		fields[name] = strconv.AppendFloat(nil, v, 'g', -1, 64)
	}
}
