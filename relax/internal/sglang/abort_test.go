package sglang

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// A pause of many requests is one abort call for each, at the worker that has it.
func TestAbortAll(t *testing.T) {
	const requests = 400
	c, servers, _ := fleetOf(t, 8, slowly(t), func(cfg *Config) { cfg.AbortEvery = time.Minute })
	rids, out := launch(t, c, requests)
	until(t, "requests at the workers", func() bool { return atWorkers(servers) == requests })
	var landed []string
	if err := c.AbortAll(t.Context(), rids, func(rid string) { landed = append(landed, rid) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(landed)
	if !slices.Equal(landed, rids) {
		t.Errorf("%d of %d were reported", len(landed), requests)
	}
	for range requests {
		if o := <-out; o.err != nil || o.res.Finish.Type != FinishAbort || o.res.Foreign || o.res.Unsent {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
	calls := 0
	for _, s := range servers {
		had := map[string]bool{}
		for _, r := range s.Requests() {
			had[r.Request.RID] = true
		}
		for _, a := range s.Aborts() {
			if calls++; a.Hit != 1 || !had[a.RID] {
				t.Errorf("%s was told to abort %+v", s.URL(), a)
			}
		}
		if st := statsOf(t, c, s.URL()); st.Aborts != int64(len(s.Aborts())) || st.InFlight != 0 {
			t.Errorf("stats %+v, %d aborts came", st, len(s.Aborts()))
		}
	}
	if calls != requests {
		t.Errorf("%d abort calls for %d requests", calls, requests)
	}
	if st := c.Stats(); st.InFlight != 0 || st.Aborting != 0 || st.Waiting != 0 {
		t.Errorf("stats %+v", st)
	}
}

// A call that is only on its way when it is aborted is never sent.
func TestAbortAllBeforeTheCall(t *testing.T) {
	s := simulate(t, sglangtest.Config{})
	c := open(t, s.URL(), nil)
	if err := c.AbortAll(t.Context(), []string{"a", "b"}, nil); err != nil {
		t.Fatal(err)
	}
	if res, err := c.Generate(t.Context(), prompt(t, "a", "hello", 5)); err != nil || res.Finish.Type != FinishAbort || res.Foreign || !res.Unsent {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := c.Generate(t.Context(), prompt(t, "a", "hello", 5)); err != nil || res.Finish.Type == FinishAbort || res.Unsent {
		t.Errorf("the second call of the name: %+v, %v", res, err)
	}
	if n := len(s.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestAbortAllGivesUpWithItsContext(t *testing.T) {
	c, servers, _ := fleetOf(t, 2, slowly(t), func(cfg *Config) { cfg.AbortGrace = time.Minute })
	rids, out := launch(t, c, 8)
	until(t, "requests at the workers", func() bool { return atWorkers(servers) == 8 })
	servers[0].Freeze()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	left := servers[0].InFlight()
	err := c.AbortAll(ctx, rids, func(string) {
		if c.InFlight() == left {
			cancel(cause)
		}
	})
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), " of 8 aborted requests") {
		t.Errorf("got %v", err)
	}
	servers[0].Thaw() // the aborts went on
	for range 8 {
		if o := <-out; o.err != nil || o.res.Finish.Type != FinishAbort {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
}

// Lost aborts are repeated, late ones waited for.
func TestAbortsLostAndLate(t *testing.T) {
	for name, fault := range map[string]sglangtest.Fault{"lost": {LoseAborts: 2}, "late": {AbortLag: 30 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			c, servers, _ := fleetOf(t, 2, slowly(t), nil)
			for _, s := range servers {
				s.SetFault(func(*sglangtest.GenerateRequest) *sglangtest.Fault { return &fault })
			}
			rids, out := launch(t, c, 10)
			until(t, "requests at the workers", func() bool { return atWorkers(servers) == 10 })
			if err := c.AbortAll(t.Context(), rids, nil); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if o := <-out; o.err != nil || o.res.Finish.Type != FinishAbort {
					t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
				}
			}
			calls := len(servers[0].Aborts()) + len(servers[1].Aborts())
			if calls < 10*(fault.LoseAborts+1) {
				t.Errorf("%d abort calls", calls)
			}
		})
	}
}

// A weight update ends requests that nobody here aborted: the tokens come back, marked.
func TestForeignAbort(t *testing.T) {
	cfg := slowly(t)
	cfg.WeightVersion = "1"
	c, servers, _ := fleetOf(t, 2, cfg, nil)
	_, out := launch(t, c, 6)
	until(t, "requests at the workers", func() bool { return atWorkers(servers) == 6 })
	for _, s := range servers {
		if err := s.Pause("abort"); err != nil {
			t.Error(err)
		}
		s.SetWeightVersion("2")
	}
	for range 6 {
		if o := <-out; o.err != nil || o.res.Finish.Type != FinishAbort || !o.res.Foreign {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
	_, out = launch(t, c, 6) // continued at once, held by the workers
	blocked := func() bool { return servers[0].Blocked()+servers[1].Blocked() == 6 }
	until(t, "requests held by the pause", blocked)
	for _, s := range servers {
		s.SetTokenDelay(0)
		s.Continue()
	}
	for range 6 {
		if o := <-out; o.err != nil || o.res.WeightVersion != "2" || o.res.Finish.Type != FinishStop {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
}

// A worker that hangs holds up no abort of the others.
func TestHungWorkerCostsItsOwn(t *testing.T) {
	var clock clock
	c, servers, _ := fleetOf(t, 3, slowly(t), func(cfg *Config) {
		cfg.Now, cfg.AbortGrace, cfg.StallAfter = clock.now, time.Hour, -1
	})
	rids, out := launch(t, c, 60)
	until(t, "requests at the workers", func() bool { return atWorkers(servers) == 60 })
	hung := servers[0].InFlight()
	servers[0].Freeze()
	err := c.AbortAll(t.Context(), rids, func(string) {
		if c.InFlight() == hung {
			clock.jump(time.Hour) // the others are in
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	empty := 0
	for range 60 {
		o := <-out
		if o.err != nil || o.res.Finish.Type != FinishAbort {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
		if o.res.Worker == "" {
			empty++
		}
	}
	if empty != hung || hung == 0 {
		t.Errorf("%d aborts lost their reply, %d were at the hung worker", empty, hung)
	}
}

// Pairs go through the router, with the Session's routing key; their aborts go to the workers
// directly, so that the tokens are kept.
func TestPairs(t *testing.T) {
	prefill, decode := simulate(t, slowly(t)), simulate(t, slowly(t))
	router := routerOf(t, prefill.URL(), decode.URL())
	router.SetType(prefill.URL(), "prefill")
	router.SetType(decode.URL(), "decode")
	c := open(t, router.URL(), nil)
	if info, err := c.Probe(t.Context()); err != nil || !info.Pairs || info.Direct || len(info.Unreachable) != 0 {
		t.Fatalf("%+v, %v", info, err)
	}
	rids, out := launch(t, c, 5)
	until(t, "requests at the decode worker", func() bool { return decode.InFlight() == 5 })
	if err := c.AbortAll(t.Context(), rids, nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if o := <-out; o.err != nil || o.res.Finish.Type != FinishAbort || o.res.Worker != router.URL() || o.res.PromptTokens != 5 {
			t.Errorf("%s: %+v, %v", o.rid, o.res, o.err)
		}
	}
	if r := decode.Requests()[0]; r.Request.RoutingKeyHeader != "session-"+strings.TrimSuffix(r.Request.RID, "#00") {
		t.Errorf("routing key %q of %s", r.Request.RoutingKeyHeader, r.Request.RID)
	}
}
