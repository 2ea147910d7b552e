package sglang

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/bytedance/sonic"
)

// A WorkerLoad is one worker's own account of its work. Counts are summed over its
// data-parallel ranks.
type WorkerLoad struct {
	// Worker is its URL.
	Worker string
	// Running and Waiting count requests, 0 if the server does not say.
	Running, Waiting int
	// UsedTokens and MaxTokens are the KV cache's, 0 if the server does not say.
	UsedTokens, MaxTokens int
	// Usage is the highest share of the KV cache in use of any rank, in [0, 1].
	Usage float64
	// Err says why the worker gave no account; the numbers are 0 then.
	Err error
}

// Load asks every worker requests go to for its load, all at one time and each within
// ControlTimeout: one that fails has its Err set and costs the others nothing. The order is
// that of the worker list. It works while servers are paused.
//
// GET /v1/loads is asked first; older servers are read by GET /metrics (if they run with
// --enable-metrics) or GET /get_load with /server_info. What answered is remembered.
func (c *Client) Load(ctx context.Context) []WorkerLoad {
	workers := c.targets()
	out := make([]WorkerLoad, len(workers))
	var asked sync.WaitGroup
	for i, w := range workers {
		out[i] = WorkerLoad{Err: ErrClosed}
		asked.Add(1)
		started := c.spawn("sglang-load", func() {
			defer asked.Done()
			out[i], out[i].Err = c.load(ctx, w)
		})
		if !started {
			asked.Done()
		}
	}
	asked.Wait()
	for i, w := range workers {
		if out[i].Err != nil {
			out[i] = WorkerLoad{Err: fmt.Errorf("load of %s: %w", w.url, out[i].Err)}
		}
		out[i].Worker = w.url
	}
	return out
}

// A loadSource reads a worker's load in one of the ways there are. It returns errNoSource if
// the worker does not have this way.
type loadSource func(c *Client, ctx context.Context, w *worker) (WorkerLoad, error)

var loadSources = []loadSource{(*Client).loadV1, (*Client).loadMetrics, (*Client).loadOld}

var errNoSource = errors.New("it has none of /v1/loads, /metrics and /get_load")

func (c *Client) load(ctx context.Context, w *worker) (WorkerLoad, error) {
	first := int(w.loadSource.Load())
	for i := first; i < len(loadSources); i++ {
		load, err := loadSources[i](c, ctx, w)
		if errors.Is(err, errNoSource) {
			continue
		}
		if err == nil {
			w.loadSource.Store(int32(i))
		}
		return load, err
	}
	w.loadSource.Store(0) // another server may be there by now
	return WorkerLoad{}, errNoSource
}

// fetch is a GET whose 404 means that the server does not have the route.
func (c *Client) fetch(ctx context.Context, w *worker, path string) ([]byte, error) {
	status, reply, err := c.controlCall(ctx, w, "GET", path, nil)
	switch {
	case err != nil:
		return nil, fmt.Errorf("GET %s: %w", path, err)
	case status == 404 || status == 405:
		return nil, errNoSource
	case status != 200:
		return nil, &StatusError{RID: "GET " + path, Worker: w.url, Status: status, Message: shorten(errorMessage(reply))}
	}
	return reply, nil
}

func (c *Client) loadV1(ctx context.Context, w *worker) (WorkerLoad, error) {
	reply, err := c.fetch(ctx, w, "/v1/loads?include=core")
	if err != nil {
		return WorkerLoad{}, err
	}
	return parseLoads(reply)
}

// rankLoad is one rank in /v1/loads.
type rankLoad struct {
	Running    int      `json:"num_running_reqs"`
	Waiting    int      `json:"num_waiting_reqs"`
	UsedTokens int      `json:"num_used_tokens"`
	MaxTokens  int      `json:"max_total_num_tokens"`
	Usage      *float64 `json:"token_usage"`
}

func parseLoads(reply []byte) (WorkerLoad, error) {
	var shape struct {
		Loads *[]rankLoad `json:"loads"`
	}
	if err := sonic.Unmarshal(reply, &shape); err != nil {
		return WorkerLoad{}, fmt.Errorf("GET /v1/loads: %w", err)
	}
	if shape.Loads == nil {
		return WorkerLoad{}, fmt.Errorf("GET /v1/loads: expected a list named loads, got %q", first(reply))
	}
	var sum WorkerLoad
	for _, r := range *shape.Loads {
		if r.Running < 0 || r.Waiting < 0 || r.UsedTokens < 0 || r.MaxTokens < 0 || max(r.UsedTokens, r.MaxTokens) > maxTokens {
			return WorkerLoad{}, errors.New("GET /v1/loads: a count is out of range")
		}
		sum.Running += r.Running
		sum.Waiting += r.Waiting
		sum.UsedTokens += r.UsedTokens
		sum.MaxTokens += r.MaxTokens
		if r.Usage != nil {
			sum.Usage = max(sum.Usage, *r.Usage)
		} else if r.MaxTokens > 0 {
			sum.Usage = max(sum.Usage, float64(r.UsedTokens)/float64(r.MaxTokens))
		}
	}
	sum.Usage = min(sum.Usage, 1)
	return sum, nil
}

func (c *Client) loadMetrics(ctx context.Context, w *worker) (WorkerLoad, error) {
	reply, err := c.fetch(ctx, w, "/metrics")
	if err != nil {
		return WorkerLoad{}, err
	}
	return parseMetrics(reply)
}

// parseMetrics reads SGLang's gauges, of each the highest over its label sets (reference
// pipeline 8.5). Text without them is no source.
func parseMetrics(text []byte) (WorkerLoad, error) {
	gauges := map[string]float64{}
	for line := range bytes.Lines(text) {
		name, value, ok := parseGauge(line)
		if !ok {
			continue
		}
		if old, seen := gauges[name]; !seen || value > old {
			gauges[name] = value
		}
	}
	most, ok := gauges["max_total_num_tokens"]
	if !ok {
		return WorkerLoad{}, errNoSource
	}
	out := WorkerLoad{
		Running: int(gauges["num_running_reqs"]), Waiting: int(gauges["num_queue_reqs"]),
		UsedTokens: int(gauges["num_used_tokens"]), MaxTokens: int(most),
	}
	usage, ok := gauges["token_usage"]
	if !ok {
		usage = gauges["full_token_usage"]
	}
	if usage == 0 && most > 0 {
		usage = gauges["num_used_tokens"] / most
	}
	out.Usage = min(usage, 1)
	return out, nil
}

// parseGauge reads a line like sglang:token_usage{model="m"} 0.25.
func parseGauge(line []byte) (name string, value float64, ok bool) {
	line, ok = bytes.CutPrefix(line, []byte("sglang:"))
	if !ok {
		return "", 0, false
	}
	end := bytes.IndexAny(line, "{ ")
	if end < 0 {
		return "", 0, false
	}
	rest := line[end:]
	if brace := bytes.LastIndexByte(rest, '}'); brace >= 0 {
		rest = rest[brace+1:]
	}
	words := bytes.Fields(rest)
	if len(words) == 0 {
		return "", 0, false
	}
	value, err := strconv.ParseFloat(string(words[0]), 64)
	if err != nil || !(value >= 0 && value <= maxTokens) {
		return "", 0, false
	}
	return string(line[:end]), value, true
}

// loadOld reads servers from before /v1/loads, which say how large their cache is elsewhere.
func (c *Client) loadOld(ctx context.Context, w *worker) (WorkerLoad, error) {
	reply, err := c.fetch(ctx, w, "/get_load")
	if err != nil {
		return WorkerLoad{}, err
	}
	load, err := parseOldLoad(reply)
	if err != nil {
		return WorkerLoad{}, err
	}
	most, err := c.cacheSize(ctx, w)
	if err != nil && !errors.Is(err, errNoSource) {
		return WorkerLoad{}, err
	}
	if load.MaxTokens = most; most > 0 {
		load.Usage = min(float64(load.UsedTokens)/float64(most), 1)
	}
	return load, nil
}

// maxTokens bounds what a KV cache is believed to hold, so that sums stay numbers.
const maxTokens = 1 << 40

func parseOldLoad(reply []byte) (WorkerLoad, error) {
	var ranks []struct {
		Requests int `json:"num_reqs"` // running and waiting
		Waiting  int `json:"num_waiting_reqs"`
		Tokens   int `json:"num_tokens"`
		Pending  int `json:"num_pending_tokens"` // of num_tokens, not in the cache yet
	}
	if err := sonic.Unmarshal(reply, &ranks); err != nil {
		return WorkerLoad{}, fmt.Errorf("GET /get_load: %w", err)
	}
	var sum WorkerLoad
	for _, r := range ranks {
		if r.Requests < 0 || r.Waiting < 0 || r.Tokens < 0 || r.Pending < 0 || r.Tokens > maxTokens {
			return WorkerLoad{}, errors.New("GET /get_load: a count is out of range")
		}
		sum.Running += max(r.Requests-r.Waiting, 0)
		sum.Waiting += r.Waiting
		sum.UsedTokens += max(r.Tokens-r.Pending, 0)
	}
	return sum, nil
}

// cacheSize is max_total_num_tokens of /server_info times the data-parallel ranks.
func (c *Client) cacheSize(ctx context.Context, w *worker) (int, error) {
	reply, err := c.fetch(ctx, w, "/server_info")
	if errors.Is(err, errNoSource) {
		reply, err = c.fetch(ctx, w, "/get_server_info")
	}
	if err != nil {
		return 0, err
	}
	var info struct {
		MaxTokens int `json:"max_total_num_tokens"`
		Ranks     int `json:"dp_size"`
	}
	if err := sonic.Unmarshal(reply, &info); err != nil {
		return 0, fmt.Errorf("GET /server_info: %w", err)
	}
	return info.MaxTokens * max(info.Ranks, 1), nil
}
