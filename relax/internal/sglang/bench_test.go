package sglang

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// benchFleet is a client of a router with workers that say text at the pace.
func benchFleet(b *testing.B, workers int, text string, pace time.Duration) (*Client, []*sglangtest.Server) {
	b.Helper()
	policy, err := sglangtest.ParsePolicy(fmt.Appendf(nil, `{"default":[{"text":%q}]}`, text))
	if err != nil {
		b.Fatal(err)
	}
	var servers []*sglangtest.Server
	var urls []string
	for range workers {
		s, err := sglangtest.New(sglangtest.Config{Policy: policy, TokenDelay: pace, NoWorkers: true, Records: -1})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		servers, urls = append(servers, s), append(urls, s.URL())
	}
	router, err := sglangtest.NewRouter(urls...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { router.Close() })
	c, err := New(Config{URL: router.URL(), Concurrency: 4096, Goroutines: safego.New(func(name string, v any, _ []byte) { b.Errorf("%s: %v", name, v) })})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	if _, err := c.Probe(b.Context()); err != nil {
		b.Fatal(err)
	}
	return c, servers
}

// BenchmarkGenerate is a whole call over a socket: a prompt of 4,096 ids in, a few tokens out.
// The stand-in's own work is in it.
func BenchmarkGenerate(b *testing.B) {
	c, _ := benchFleet(b, 1, "fine", 0)
	in := call("a")
	ids := make([]int32, 4096)
	for i := range ids {
		ids[i] = int32(i % 200)
	}
	in.Prefix = [][]int32{ids}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Generate(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPause aborts 1,000 requests on 8 workers and waits until all are in.
func BenchmarkPause(b *testing.B) {
	const requests = 1000
	c, servers := benchFleet(b, 8, "a long story", time.Hour)
	for b.Loop() {
		b.StopTimer()
		before := abortCalls(servers)
		rids := make([]string, requests)
		var wg sync.WaitGroup
		for i := range rids {
			rids[i] = fmt.Sprintf("r%06d", i)
			wg.Add(1)
			go func() {
				defer wg.Done()
				if res, err := c.Generate(b.Context(), call(rids[i])); err != nil || res.Finish.Type != FinishAbort {
					b.Errorf("%+v, %v", res, err)
				}
			}()
		}
		for inFlight(servers) < requests {
			time.Sleep(time.Millisecond)
		}
		b.StartTimer()
		if err := c.AbortAll(b.Context(), rids, nil); err != nil {
			b.Fatal(err)
		}
		wg.Wait()
		b.ReportMetric(float64(abortCalls(servers)-before), "aborts/op")
	}
}

func abortCalls(servers []*sglangtest.Server) (n int) {
	for _, s := range servers {
		n += len(s.Aborts())
	}
	return n
}

func inFlight(servers []*sglangtest.Server) (n int) {
	for _, s := range servers {
		n += s.InFlight()
	}
	return n
}
