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
	// Direct an abort loses the partial tokens, unless Pairs is true and every worker can be reached.
	Router, Direct bool
	// Pairs is true when the router puts prefill and decode workers together.
	Pairs bool
	// Unreachable are workers the router lists and this process cannot call, or that serve
	// another model. While others can be called these get no requests.
	Unreachable []string
}

// A fleet is what is known of the workers. The client's mutex guards it.
type fleet struct {
	known      map[string]*worker // every worker the router lists, and those with requests
	active     []*worker          // those requests go to, never empty
	behind     []*worker          // behind a router of pairs, if all of them can be called
	unreached  []string           // listed and not callable
	list       workerList         // the last one that could be read
	listError  string             // why the list could not be read, "" if it could
	pairs      bool
	model      string // model_path of the URL itself at the start, "" before it was asked
	newest     string // model_path it named last, "" if it was not asked again
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
	out.Router, out.Pairs = c.fleet.isRouter, c.fleet.pairs
	out.Unreachable = slices.Clone(c.fleet.unreached)
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
func (c *Client) refresh(ctx context.Context) (err error) {
	defer func() {
		c.mu.Lock()
		c.fleet.refreshing = false
		c.fleet.refreshed = c.cfg.Now()
		if c.fleet.listError = ""; err != nil {
			c.fleet.listError = shorten(err.Error())
		}
		c.mu.Unlock()
	}()
	list, err := c.listWorkers(ctx)
	last := c.lastList()
	if err == nil && !list.router && last.router {
		err = errNoRouter
	}
	if err != nil {
		if last.router {
			c.follow(ctx, last) // the workers go on without it; one that restarted must be found
		}
		return err
	}
	itself := !list.pairs && len(list.members) == 1 && list.members[0].url == c.root.url
	if !list.router || itself {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fleet.listed, c.fleet.isRouter, c.fleet.list = true, false, workerList{}
		c.root.router = false
		c.fleet.active = []*worker{c.root}
		return nil
	}
	c.follow(ctx, list)
	return nil
}

// follow asks the listed workers that are down and sends requests to those that are up.
func (c *Client) follow(ctx context.Context, list workerList) {
	members := c.members(list)
	c.probeMembers(ctx, members)
	c.adopt(list, members)
}

// errNoRouter: an address that was a router has no list of workers any more, as when a proxy
// answers for one that restarts.
var errNoRouter = errors.New("the router gives no list of workers any more")

func (c *Client) lastList() workerList {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fleet.list
}

// members returns the listed workers, new ones marked down until they answered. A URL that
// cannot be called (grpc, broken) is left out: the router can reach it.
func (c *Client) members(list workerList) []*worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*worker
	for _, m := range list.members {
		w := c.fleet.known[m.url]
		if w == nil {
			var err error
			if w, err = newWorker(m.url, &c.cfg); err != nil {
				continue
			}
			w.down = true
			c.fleet.known[m.url] = w
		}
		w.ailing = m.ailing
		out = append(out, w)
	}
	return out
}

// probeMembers asks the workers that are down whether they are back.
func (c *Client) probeMembers(ctx context.Context, members []*worker) {
	now := c.cfg.Now()
	var due []*worker
	c.mu.Lock()
	for _, w := range members {
		if w.down && !now.Before(w.nextProbe) {
			due = append(due, w)
		}
	}
	c.mu.Unlock()
	var asked sync.WaitGroup
	for _, w := range due {
		asked.Add(1)
		if !c.spawn("sglang-probe", func() { defer asked.Done(); c.probeMember(ctx, w) }) {
			asked.Done()
		}
	}
	asked.Wait()
}

// probeMember asks one of them. An address that means another machine here than at the router may
// well answer, so one that never was up has to serve the router's model. After that its model_path
// says nothing any more: POST /update_weights_from_disk changes it (spec sglang 4).
func (c *Client) probeMember(ctx context.Context, w *worker) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ControlTimeout)
	defer cancel()
	info, err := c.modelInfo(ctx, w)
	c.mu.Lock()
	proven := w.proven
	c.mu.Unlock()
	ok := err == nil && (proven || c.isOurs(ctx, info.ModelPath))
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.down = !ok; ok {
		w.quiet, w.proven = 0, true
	}
	w.nextProbe = c.cfg.Now().Add(c.cfg.RefreshEvery)
}

// isOurs says whether a worker that serves model serves what the URL does: what it named at the
// start, or names now, after a weight update from disk.
func (c *Client) isOurs(ctx context.Context, model string) bool {
	known := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.fleet.model == "" || model == c.fleet.model || model == c.fleet.newest
	}
	if known() {
		return true
	}
	if info, err := c.modelInfo(ctx, c.root); err == nil {
		c.mu.Lock()
		c.fleet.newest = info.ModelPath
		c.mu.Unlock()
	}
	return known()
}

// adopt sends requests to the members that are up, or through the router if none is, and
// always through it if it makes pairs of them.
func (c *Client) adopt(list workerList, members []*worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.fleet
	f.listed, f.isRouter, f.pairs, f.list = true, true, list.pairs, list
	c.root.router = true
	var up []*worker
	var callable []member
	f.unreached = nil
	for _, m := range list.members {
		if w := f.known[m.url]; w != nil && !w.down {
			up, callable = append(up, w), append(callable, m)
			continue
		}
		f.unreached = append(f.unreached, m.url)
	}
	f.active, f.behind = up, nil
	if list.pairs || len(up) == 0 {
		f.active = []*worker{c.root}
	}
	if list.pairs && len(f.unreached) == 0 {
		f.behind = up
	}
	c.slots.setLimit(c.cfg.Concurrency * max(1, list.places(callable)))
	for u, w := range f.known {
		if w.load == 0 && w.errands.senders == 0 && !slices.Contains(members, w) {
			delete(f.known, u)
			w.pool.close()
		}
	}
}

// A member is a line of a router's list.
type member struct {
	url    string
	decode bool // a decode worker of a pair
	ailing bool // the router calls it unhealthy
}

type workerList struct {
	router  bool
	pairs   bool // prefill/decode pairs, which only the router can put together
	members []member
}

// places is how many workers share the requests that are let through at one time: those that get
// some now, which the router's ailing ones do only if there are no others. Each request of a pair
// sits in a decode worker, and a router without callable workers serves for all it has.
func (l *workerList) places(callable []member) int {
	sharing := callable
	if l.pairs || len(callable) == 0 {
		sharing = l.members
	}
	fit, all := 0, 0
	for _, m := range sharing {
		if l.pairs && !m.decode {
			continue
		}
		if all++; !m.ailing {
			fit++
		}
	}
	if fit > 0 {
		return fit
	}
	return all
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
			URL     string `json:"url"`
			Type    string `json:"worker_type"`
			Healthy *bool  `json:"is_healthy"`
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
			list.add(member{url: w.URL, decode: w.Type == "decode", ailing: w.Healthy != nil && !*w.Healthy})
			list.pairs = list.pairs || (w.Type != "" && w.Type != "regular")
		}
	case shape.URLs != nil:
		for _, u := range *shape.URLs {
			list.add(member{url: u})
		}
	default:
		return workerList{}, fmt.Errorf("GET %s: expected workers or urls, got %q", path, first(reply))
	}
	return list, nil
}

// add strips the @rank of data-parallel routers, several of which are one server.
func (l *workerList) add(m member) {
	u := m.url
	if at := strings.LastIndexByte(u, '@'); at >= 0 && strings.Trim(u[at+1:], "0123456789") == "" {
		u = u[:at]
	}
	m.url = strings.TrimRight(u, "/")
	if m.url == "" {
		return
	}
	same := func(other member) bool { return other.url == m.url }
	if i := slices.IndexFunc(l.members, same); i >= 0 {
		l.members[i].ailing = l.members[i].ailing && m.ailing
		return
	}
	l.members = append(l.members, m)
}

// place picks and charges the worker for a call. avoid is the worker that just failed, used
// only if there is no other.
func (c *Client) place(call *Call, avoid *worker) (w *worker, router bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w = pick(c.fleet.active, call.key(), avoid)
	if w.load == 0 {
		w.heard = c.cfg.Now() // from here on it owes answers
	}
	w.load++
	w.stats.Requests++
	if c.cfg.SendSessionID && call.Session != "" && !w.router {
		c.servedBy(call.Session, w)
	}
	return w, w.router
}

// unplace ends an attempt at w and notes what came of it, unless it was cancelled.
func (c *Client) unplace(ctx context.Context, w *worker, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.load--
	var transport *TransportError
	if !errors.As(err, &transport) {
		w.hear(c.cfg.Now())
	}
	cause := context.Cause(ctx)
	if err == nil || cause != nil && !errors.Is(cause, ErrStalled) {
		return
	}
	w.stats.Failed++
	w.stats.LastError, w.stats.LastErrorAt = shorten(err.Error()), c.cfg.Now()
}

// targets are the workers requests go to now.
func (c *Client) targets() []*worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*worker(nil), c.fleet.active...)
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
