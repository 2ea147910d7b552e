package sglang

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// These tests run against several stand-in workers over real sockets, with the faults a fleet has.

// longStory is a reply that takes as long as the test wants: workers are paced by SetTokenDelay.
const longStory = `{"default":[{"text":"a long story"}]}`

// fleetOf starts workers behind a router and a client that has probed it.
func fleetOf(t *testing.T, n int, cfg sglangtest.Config, change func(*Config)) (*Client, []*sglangtest.Server, *sglangtest.Router) {
	t.Helper()
	cfg.NoWorkers = true
	var servers []*sglangtest.Server
	var urls []string
	for range n {
		s := simulate(t, cfg)
		servers, urls = append(servers, s), append(urls, s.URL())
	}
	router := routerOf(t, urls...)
	c := open(t, router.URL(), change)
	if info, err := c.Probe(t.Context()); err != nil || len(info.Workers) != n || !info.Direct {
		t.Fatalf("probe: %+v, %v", info, err)
	}
	return c, servers, router
}

func routerOf(t *testing.T, urls ...string) *sglangtest.Router {
	t.Helper()
	router, err := sglangtest.NewRouter(urls...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { router.Close() })
	return router
}

func slowly(t *testing.T) sglangtest.Config {
	t.Helper()
	p, err := sglangtest.ParsePolicy([]byte(longStory))
	if err != nil {
		t.Fatal(err)
	}
	return sglangtest.Config{Policy: p, TokenDelay: time.Hour}
}

// A clock runs with the machine's and can be put forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time        { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) jump(by time.Duration) { c.ahead.Add(int64(by)) }

// An outcome is what became of one call.
type outcome struct {
	rid string
	res Result
	err error
}

// launch starts n calls and returns where their outcomes come.
func launch(t *testing.T, c *Client, n int) ([]string, <-chan outcome) {
	t.Helper()
	rids := make([]string, n)
	out := make(chan outcome, n)
	for i := range rids {
		rids[i] = fmt.Sprintf("r%06d", i)
		in := prompt(t, rids[i], "hello", 50)
		go func() {
			res, err := c.Generate(t.Context(), in)
			out <- outcome{in.RID, res, err}
		}()
	}
	return rids, out
}

// until waits for something that must come.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func atWorkers(servers []*sglangtest.Server) (n int) {
	for _, s := range servers {
		n += s.InFlight()
	}
	return n
}

// statsOf returns the line of a worker.
func statsOf(t *testing.T, c *Client, url string) WorkerStats {
	t.Helper()
	for _, w := range c.Stats().Workers {
		if w.URL == url {
			return w
		}
	}
	t.Fatalf("no worker %s in %+v", url, c.Stats())
	return WorkerStats{}
}

// A worker that answers nothing any more ends its requests with an error that says so, once;
// the others go on, and it is used again when it is back.
func TestStalledWorker(t *testing.T) {
	var clock clock
	c, servers, _ := fleetOf(t, 2, slowly(t), func(cfg *Config) {
		cfg.WatchEvery, cfg.StallAfter, cfg.ControlTimeout = 10*time.Millisecond, time.Hour, time.Second
		cfg.RefreshEvery, cfg.Now = 10*time.Millisecond, clock.now
	})
	_, out := launch(t, c, 20)
	until(t, "requests at the workers", func() bool { return atWorkers(servers) == 20 })
	hung := servers[0].InFlight()
	servers[0].Freeze()
	for range hung {
		var transport *TransportError
		if o := overTime(t, &clock, out); !errors.As(o.err, &transport) || !errors.Is(o.err, ErrStalled) || !transport.Sent || transport.Worker != servers[0].URL() {
			t.Fatalf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
	if st := statsOf(t, c, servers[0].URL()); st.Up || st.Failed != int64(hung) || !strings.Contains(st.LastError, "/v1/loads") {
		t.Errorf("stats %+v", st)
	}
	servers[1].SetTokenDelay(0)
	for range 20 - hung {
		if o := <-out; o.err != nil {
			t.Errorf("%s: %v", o.rid, o.err)
		}
	}
	for i := range 10 {
		res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("new", i), "hello", 50))
		if err != nil || res.Worker != servers[1].URL() {
			t.Errorf("while one hangs: %+v, %v", res, err)
		}
	}
	servers[0].SetTokenDelay(0)
	servers[0].Thaw()
	until(t, "the worker to be used again", func() bool {
		res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("again", time.Now().UnixNano()), "hello", 50))
		if err != nil {
			t.Fatal(err)
		}
		return res.Worker == servers[0].URL()
	})
}

// overTime receives while hours pass. One jump is not enough: an answer from before it may be
// noted after it.
func overTime(t *testing.T, clock *clock, out <-chan outcome) outcome {
	t.Helper()
	for range 400 {
		select {
		case o := <-out:
			return o
		case <-time.After(50 * time.Millisecond):
			clock.jump(time.Hour)
		}
	}
	t.Fatal("nothing came")
	return outcome{}
}

// A paused worker is silent for its requests but answers what it is asked: it is left alone.
func TestPausedWorkerIsNotStalled(t *testing.T) {
	s := simulate(t, slowly(t))
	c := open(t, s.URL(), func(cfg *Config) { cfg.WatchEvery, cfg.StallAfter = 2*time.Millisecond, 20*time.Millisecond })
	_, out := launch(t, c, 3)
	until(t, "requests at the worker", func() bool { return s.InFlight() == 3 })
	if err := s.Pause("in_place"); err != nil {
		t.Fatal(err)
	}
	select {
	case o := <-out:
		t.Fatalf("%s ended: %+v, %v", o.rid, o.res, o.err)
	case <-time.After(200 * time.Millisecond):
	}
	s.SetTokenDelay(0)
	s.Continue()
	for range 3 {
		if o := <-out; o.err != nil || o.res.Attempts != 1 {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
}

// A worker that restarts at its address costs its requests an attempt and is used again; the
// router may be away meanwhile.
func TestWorkerRestartsAtItsPort(t *testing.T) {
	c, servers, router := fleetOf(t, 2, slowly(t), func(cfg *Config) { cfg.RefreshEvery = time.Millisecond })
	_, out := launch(t, c, 20)
	until(t, "requests at the workers", func() bool { return atWorkers(servers) == 20 })
	url := servers[0].URL()
	if err := router.Close(); err != nil {
		t.Error(err)
	}
	if err := servers[0].Close(); err != nil {
		t.Error(err)
	}
	until(t, "its requests at the other worker", func() bool { return servers[1].InFlight() == 20 })
	cfg := slowly(t)
	cfg.Addr, cfg.TokenDelay, cfg.NoWorkers = strings.TrimPrefix(url, "http://"), 0, true
	again := simulate(t, cfg)
	until(t, "the restarted worker to be used", func() bool {
		res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("again", time.Now().UnixNano()), "hello", 1))
		if err != nil {
			t.Fatal(err)
		}
		servers[1].SetTokenDelay(0)
		return res.Worker == again.URL()
	})
	for range 20 {
		if o := <-out; o.err != nil || o.res.Attempts > 2 {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
	if c.Stats().ListError == "" {
		t.Error("the lost router is not in the stats")
	}
}

// A worker that left the fleet before its router died is found again without it.
func TestWorkerRestartsWithoutRouter(t *testing.T) {
	c, servers, router := fleetOf(t, 2, sglangtest.Config{}, func(cfg *Config) { cfg.RefreshEvery = time.Millisecond })
	url := servers[0].URL()
	use := func() string {
		res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("r", time.Now().UnixNano()), "hello", 1))
		if err != nil {
			t.Fatal(err)
		}
		return res.Worker
	}
	if err := servers[0].Close(); err != nil {
		t.Error(err)
	}
	until(t, "the dead worker to leave", func() bool {
		use()
		workers := c.targets()
		return len(workers) == 1 && workers[0].url == servers[1].URL()
	})
	if err := router.Close(); err != nil {
		t.Error(err)
	}
	until(t, "the router to be missed", func() bool { use(); return c.Stats().ListError != "" })
	simulate(t, sglangtest.Config{Addr: strings.TrimPrefix(url, "http://"), NoWorkers: true})
	until(t, "the restarted worker to be used", func() bool { return use() == url })
}

// The list is read again while requests last, also when no new one comes.
func TestWorkersComeAndGo(t *testing.T) {
	c, servers, router := fleetOf(t, 1, slowly(t), func(cfg *Config) {
		cfg.RefreshEvery, cfg.WatchEvery = time.Millisecond, 2*time.Millisecond
	})
	_, out := launch(t, c, 4)
	until(t, "requests at the worker", func() bool { return servers[0].InFlight() == 4 })
	joined := simulate(t, sglangtest.Config{NoWorkers: true})
	router.AddWorker(joined.URL())
	router.RemoveWorker(servers[0].URL())
	until(t, "the new worker", func() bool {
		workers := c.Stats().Workers
		return slices.ContainsFunc(workers, func(w WorkerStats) bool { return w.URL == joined.URL() && w.Up })
	})
	until(t, "new requests to go there only", func() bool {
		res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("n", time.Now().UnixNano()), "hello", 1))
		if err != nil {
			t.Fatal(err)
		}
		return res.Worker == joined.URL()
	})
	servers[0].SetTokenDelay(0)
	for range 4 { // those of a worker that was taken off the list end there
		if o := <-out; o.err != nil || o.res.Worker != servers[0].URL() || o.res.Attempts != 1 {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
	until(t, "the old worker to be forgotten", func() bool {
		if _, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("o", time.Now().UnixNano()), "hello", 1)); err != nil {
			t.Fatal(err)
		}
		return len(c.Stats().Workers) == 1
	})
}

// A worker its router does not trust gets nothing while another can.
func TestUnhealthyWorker(t *testing.T) {
	c, servers, router := fleetOf(t, 2, sglangtest.Config{}, nil)
	router.SetHealthy(servers[0].URL(), false)
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("r", i), "hello", 5)); err != nil || res.Worker != servers[1].URL() {
			t.Errorf("%+v, %v", res, err)
		}
	}
	router.SetHealthy(servers[1].URL(), false) // as after a long pause of all
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for i := range 30 {
		res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("s", i), "hello", 5))
		if err != nil {
			t.Fatal(err)
		}
		used[res.Worker] = true
	}
	if len(used) != 2 {
		t.Errorf("used %v", used)
	}
}

// The key goes to the router's workers too.
func TestAPIKeyOfAFleet(t *testing.T) {
	s := simulate(t, sglangtest.Config{NoWorkers: true, APIKey: "secret"})
	router := routerOf(t, s.URL())
	for key, ok := range map[string]bool{"secret": true, "wrong": false, "": false} {
		c := open(t, router.URL(), func(cfg *Config) { cfg.APIKey = key })
		info, err := c.Probe(t.Context())
		if ok {
			if err != nil || !info.Direct {
				t.Errorf("%+v, %v", info, err)
			}
			if res, err := c.Generate(t.Context(), prompt(t, "a", "hello", 5)); err != nil || res.Worker != s.URL() {
				t.Errorf("%+v, %v", res, err)
			}
			continue
		}
		var probe *ProbeError
		if !errors.As(err, &probe) || !strings.Contains(err.Error(), "sglang_api_key") {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

// The list of sglang-router up to 0.2 and of slime's.
func TestOldRouter(t *testing.T) {
	a, b := simulate(t, sglangtest.Config{NoWorkers: true}), simulate(t, sglangtest.Config{NoWorkers: true})
	router := routerOf(t, a.URL(), b.URL())
	router.SetOld(true)
	c := open(t, router.URL(), nil)
	if info, err := c.Probe(t.Context()); err != nil || !info.Router || !info.Direct || len(info.Workers) != 2 {
		t.Fatalf("%+v, %v", info, err)
	}
}

// The bound on calls in flight is for each worker.
func TestConcurrencyIsPerWorker(t *testing.T) {
	c, servers, _ := fleetOf(t, 2, slowly(t), func(cfg *Config) { cfg.Concurrency = 3 })
	rids, out := launch(t, c, 10)
	until(t, "calls at the workers and in the queue", func() bool { return atWorkers(servers) == 6 && c.Stats().Waiting == 4 })
	if st := c.Stats(); st.InFlight != 10 {
		t.Errorf("stats %+v", st)
	}
	if err := c.AbortAll(t.Context(), rids, nil); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if o := <-out; o.err != nil || o.res.Finish.Type != FinishAbort {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
	if n := len(servers[0].Requests()) + len(servers[1].Requests()); n != 6 {
		t.Errorf("%d requests were sent", n)
	}
}

// A router's failure to reach a worker is no fault of the request.
func TestRouterWithADeadWorker(t *testing.T) {
	live := simulate(t, sglangtest.Config{NoWorkers: true, ModelPath: "m"})
	other := simulate(t, sglangtest.Config{NoWorkers: true, ModelPath: "m"})
	router := routerOf(t, other.URL())
	c := open(t, router.URL(), func(cfg *Config) { cfg.MaxAttempts = 5 })
	unasked, err := newWorker(other.URL(), &c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	unasked.down, unasked.nextProbe = true, time.Now().Add(time.Hour)
	c.fleet.known[other.URL()] = unasked // so that requests go through the router
	if err := c.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = c.Generate(t.Context(), prompt(t, "a", "hello", 5))
	var status *StatusError
	if !errors.As(err, &status) || status.Code != codeNoUpstream || !strings.HasSuffix(status.RID, "#04") {
		t.Fatalf("got %v", err)
	}
	router.AddWorker(live.URL())
	if res, err := c.Generate(t.Context(), prompt(t, "b", "hello", 5)); err != nil {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestRoutedExpertsAndDrafts(t *testing.T) {
	s := simulate(t, sglangtest.Config{Experts: sglangtest.Experts{Layers: 2, TopK: 2, Count: 4}, Drafts: 2})
	c := open(t, s.URL(), nil)
	in := prompt(t, "a", "hello", 5)
	res, err := c.Generate(t.Context(), in)
	if err != nil || res.RoutedExperts != nil || res.Spec.Verified.N == 0 || !res.Spec.Accepted.Known {
		t.Errorf("not asked for: %+v, %v", res, err)
	}
	in.RoutedExperts, in.RoutedExpertsStart = true, 2
	res, err = c.Generate(t.Context(), in)
	positions := 5 + len(res.IDs) - 1 - 2
	if want := (positions*2*2*4 + 2) / 3 * 4; err != nil || len(res.RoutedExperts) != want {
		t.Errorf("%d bytes of base64, want %d; %v", len(res.RoutedExperts), want, err)
	}
	in.RoutedExpertsStart = 6
	if _, err := c.Generate(t.Context(), in); err == nil || !strings.Contains(err.Error(), "routed experts start") {
		t.Errorf("start behind the prompt: %v", err)
	}
}

func TestHugeReply(t *testing.T) {
	s := simulate(t, sglangtest.Config{})
	c := open(t, s.URL(), func(cfg *Config) { cfg.MaxReplyBytes = 100 })
	var reply *ReplyError
	if _, err := c.Generate(t.Context(), prompt(t, "a", "hello", 5)); !errors.As(err, &reply) || !strings.Contains(err.Error(), "longer than 100 bytes") {
		t.Errorf("got %v", err)
	}
	if n := len(s.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// Many calls, aborts, deaths and joins at one time: every call ends, nothing is left.
func TestFleetStorm(t *testing.T) {
	cfg := slowly(t)
	cfg.TokenDelay = 2 * time.Millisecond
	c, servers, router := fleetOf(t, 3, cfg, func(cfg *Config) { cfg.RefreshEvery = 5 * time.Millisecond })
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%7 == 0 {
				stop := time.AfterFunc(time.Duration(i%20)*time.Millisecond, cancel)
				defer stop.Stop()
			}
			res, err := c.Generate(ctx, prompt(t, fmt.Sprintf("r%04d", i), "hello", 50))
			if err != nil && ctx.Err() == nil {
				t.Errorf("call %d: %+v, %v", i, res, err)
			}
		}()
	}
	for i := 0; i < 300; i += 5 {
		c.Abort(fmt.Sprintf("r%04d", i))
	}
	until(t, "requests at the first worker", func() bool { return servers[0].InFlight() > 0 || c.InFlight() == 0 })
	servers[1].AbortAll()
	if err := servers[0].Close(); err != nil {
		t.Error(err)
	}
	cfg.NoWorkers = true
	router.AddWorker(simulate(t, cfg).URL())
	wg.Wait()
	if st := c.Stats(); st.InFlight != 0 || st.Aborting != 0 || st.Waiting != 0 {
		t.Errorf("stats %+v", st)
	}
	until(t, "the workers to be idle", func() bool { return atWorkers(servers[1:]) == 0 })
}
