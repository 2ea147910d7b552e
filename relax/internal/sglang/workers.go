package sglang

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bytedance/sonic"
)

// Info is what [Client.Probe] found.
type Info struct {
	// ModelPath and WeightVersion are the backend's own words.
	ModelPath     string
	WeightVersion string
	// Workers are the URLs requests go to: servers, or the router if they cannot be reached.
	Workers []string
	// Router is true when URL is a router; Direct is true when requests skip it. Without
	// Direct an abort loses the partial tokens.
	Router, Direct bool
}

// A fleet is what is known of the workers. The client's mutex guards it.
type fleet struct {
	known      map[string]*worker // every worker the router ever listed
	active     []*worker          // those requests go to, never empty
	model      string             // model_path of the URL itself, "" before it was asked
	isRouter   bool
	listed     bool // the list was read at least once
	refreshing bool
	refreshed  time.Time
}

func (f *fleet) all(root *worker) []*worker {
	out := []*worker{root}
	for _, w := range f.known {
		out = append(out, w)
	}
	return out
}

// Probe asks the backend what it is and reads the list of workers. It is meant for the start
// of an engine: a backend that cannot be reached, or is no SGLang, is a [*ProbeError] within
// ProbeTimeout.
func (c *Client) Probe(ctx context.Context) (Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ProbeTimeout, fmt.Errorf("no answer within %v", c.cfg.ProbeTimeout))
	defer cancel()
	info, err := c.modelInfo(ctx, c.root)
	if err != nil {
		return Info{}, c.probeError(err)
	}
	c.mu.Lock()
	c.fleet.model = info.ModelPath
	c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return Info{}, &ProbeError{URL: c.root.url, Problem: "did not give its list of workers", Err: err}
	}
	out := Info{ModelPath: info.ModelPath, WeightVersion: info.WeightVersion}
	c.mu.Lock()
	defer c.mu.Unlock()
	out.Router = c.fleet.isRouter
	for _, w := range c.fleet.active {
		out.Workers = append(out.Workers, w.url)
		out.Direct = !w.router
	}
	return out, nil
}

func (c *Client) probeError(err error) error {
	var status *StatusError
	if !errors.As(err, &status) {
		return &ProbeError{URL: c.root.url, Problem: "cannot be used", Err: err}
	}
	switch status.Status {
	case 401, 403:
		return &ProbeError{URL: c.root.url, Problem: "refuses the API key: check option sglang_api_key", Err: err}
	case 502, 503, 504:
		return &ProbeError{URL: c.root.url, Problem: "is up but serves no model yet: wait for its workers", Err: err}
	}
	return &ProbeError{URL: c.root.url, Problem: "does not answer like SGLang", Err: err}
}

type modelInfo struct {
	ModelPath     string `json:"model_path"`
	WeightVersion string `json:"weight_version"`
}

// modelInfo asks one worker. /model_info is used because /health generates a token and hangs
// while the server is paused.
func (c *Client) modelInfo(ctx context.Context, w *worker) (modelInfo, error) {
	var info modelInfo
	status, reply, err := c.smallCall(ctx, w, "GET", "/model_info", nil)
	if err == nil && status == 404 {
		status, reply, err = c.smallCall(ctx, w, "GET", "/get_model_info", nil)
	}
	if err != nil {
		return info, fmt.Errorf("GET /model_info: %w", err)
	}
	if status != 200 {
		return info, &StatusError{RID: "GET /model_info", Worker: w.url, Status: status, Message: shorten(errorMessage(reply))}
	}
	if err := sonic.Unmarshal(reply, &info); err != nil || info.ModelPath == "" {
		return info, fmt.Errorf("does not answer like SGLang: expected GET /model_info to give JSON with model_path, got %q", first(reply))
	}
	return info, nil
}

// maybeRefresh reads the list of workers again in the background if it is old.
func (c *Client) maybeRefresh() {
	c.mu.Lock()
	f := &c.fleet
	stale := (f.isRouter || !f.listed) && !f.refreshing && c.cfg.Now().Sub(f.refreshed) >= c.cfg.RefreshEvery
	if stale {
		f.refreshing = true
	}
	c.mu.Unlock()
	if !stale {
		return
	}
	started := c.spawn("sglang-workers", func() {
		// A list that cannot be read now leaves the old one in place; the next use tries again.
		_ = c.refresh(c.ctx)
	})
	if !started {
		c.mu.Lock()
		f.refreshing = false
		c.mu.Unlock()
	}
}

// refresh reads the list of workers and sets where requests go.
func (c *Client) refresh(ctx context.Context) error {
	defer func() {
		c.mu.Lock()
		c.fleet.refreshing = false
		c.fleet.refreshed = c.cfg.Now()
		c.mu.Unlock()
	}()
	list, err := c.listWorkers(ctx)
	if err != nil {
		return err
	}
	itself := !list.pairs && slices.Equal(list.urls, []string{c.root.url})
	if !list.router || itself {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fleet.listed, c.fleet.isRouter = true, false
		c.root.router = false
		c.fleet.active = []*worker{c.root}
		return nil
	}
	var members []*worker
	if !list.pairs {
		members = c.members(list.urls)
		c.probeMembers(ctx, members)
	}
	c.adopt(members)
	return nil
}

// members returns the workers of the URLs, new ones marked down until they answered. A URL
// that cannot be called (grpc, broken) is left out: the router can reach it.
func (c *Client) members(urls []string) []*worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*worker
	for _, u := range urls {
		w := c.fleet.known[u]
		if w == nil {
			var err error
			if w, err = newWorker(u, &c.cfg); err != nil {
				continue
			}
			w.down = true
			c.fleet.known[u] = w
		}
		out = append(out, w)
	}
	return out
}

// probeMembers asks the workers that are down whether they are back.
func (c *Client) probeMembers(ctx context.Context, members []*worker) {
	now := c.cfg.Now()
	var due []*worker
	c.mu.Lock()
	model := c.fleet.model
	for _, w := range members {
		if w.down && !now.Before(w.nextProbe) {
			due = append(due, w)
		}
	}
	c.mu.Unlock()
	var asked sync.WaitGroup
	for _, w := range due {
		asked.Add(1)
		if !c.spawn("sglang-probe", func() { defer asked.Done(); c.probeMember(ctx, w, model) }) {
			asked.Done()
		}
	}
	asked.Wait()
}

func (c *Client) probeMember(ctx context.Context, w *worker, model string) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ControlTimeout)
	defer cancel()
	info, err := c.modelInfo(ctx, w)
	// An address that means another machine here than at the router may well answer.
	ok := err == nil && (model == "" || info.ModelPath == model)
	c.mu.Lock()
	defer c.mu.Unlock()
	w.down = !ok
	w.nextProbe = c.cfg.Now().Add(c.cfg.RefreshEvery)
}

// adopt sends requests to the members that are up, or through the router if none is.
func (c *Client) adopt(members []*worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.fleet
	f.listed, f.isRouter = true, true
	c.root.router = true
	var up []*worker
	for _, w := range members {
		if !w.down {
			up = append(up, w)
		}
	}
	if len(up) == 0 {
		up = []*worker{c.root}
	}
	f.active = up
	for u, w := range f.known {
		if w.load == 0 && !slices.Contains(members, w) {
			delete(f.known, u)
			w.pool.close()
		}
	}
}

type workerList struct {
	router bool
	pairs  bool // prefill/decode pairs, which only the router can put together
	urls   []string
}

// listWorkers asks the URL for its workers. Only routers have the route.
func (c *Client) listWorkers(ctx context.Context) (workerList, error) {
	for _, path := range []string{"/workers", "/list_workers"} {
		status, reply, err := c.controlCall(ctx, c.root, "GET", path, nil)
		if err != nil {
			return workerList{}, fmt.Errorf("GET %s: %w", path, err)
		}
		switch status {
		case 200:
			return parseWorkers(path, reply)
		case 404, 405:
			continue
		}
		return workerList{}, &StatusError{RID: "GET " + path, Worker: c.root.url, Status: status, Message: shorten(errorMessage(reply))}
	}
	return workerList{}, nil
}

func parseWorkers(path string, reply []byte) (workerList, error) {
	var shape struct {
		Workers *[]struct {
			URL  string `json:"url"`
			Type string `json:"worker_type"`
		} `json:"workers"`
		URLs *[]string `json:"urls"`
	}
	if err := sonic.Unmarshal(reply, &shape); err != nil {
		return workerList{}, fmt.Errorf("GET %s: %w", path, err)
	}
	list := workerList{router: true}
	switch {
	case shape.Workers != nil:
		for _, w := range *shape.Workers {
			list.add(w.URL)
			list.pairs = list.pairs || (w.Type != "" && w.Type != "regular")
		}
	case shape.URLs != nil:
		for _, u := range *shape.URLs {
			list.add(u)
		}
	default:
		return workerList{}, fmt.Errorf("GET %s: expected workers or urls, got %q", path, first(reply))
	}
	return list, nil
}

// add strips the @rank of data-parallel routers, several of which are one server.
func (l *workerList) add(u string) {
	if at := strings.LastIndexByte(u, '@'); at >= 0 && strings.Trim(u[at+1:], "0123456789") == "" {
		u = u[:at]
	}
	u = strings.TrimRight(u, "/")
	if !slices.Contains(l.urls, u) {
		l.urls = append(l.urls, u)
	}
}

// place picks and charges the worker for key. avoid is the worker that just failed, used
// only if there is no other.
func (c *Client) place(key string, avoid *worker) (w *worker, router bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	candidates := c.fleet.active
	if len(candidates) > 1 {
		up := make([]*worker, 0, len(candidates))
		for _, w := range candidates {
			if !w.down && w != avoid {
				up = append(up, w)
			}
		}
		if len(up) > 0 {
			candidates = up
		}
	}
	w = pick(candidates, key)
	w.load++
	return w, w.router
}

func (c *Client) unplace(w *worker) {
	c.mu.Lock()
	w.load--
	c.mu.Unlock()
}

// refused marks a worker that does not take connections and reports whether another one is up.
func (c *Client) refused(w *worker) (others bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.down = w != c.root
	for _, other := range c.fleet.active {
		if other != w && !other.down {
			others = true
		}
	}
	c.fleet.refreshed = time.Time{} // the list is due now
	return others
}
