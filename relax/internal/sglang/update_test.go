package sglang

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// updateFromDisk has servers load a checkpoint, which is their model_path from then on.
func updateFromDisk(t *testing.T, path string, servers ...*sglangtest.Server) {
	t.Helper()
	for _, s := range servers {
		resp, err := http.Post(s.URL()+"/update_weights_from_disk", "application/json", strings.NewReader(fmt.Sprintf(`{"model_path":%q}`, path)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("update of %s: %s", s.URL(), resp.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// serving makes one request and returns who served it.
func serving(t *testing.T, c *Client) string {
	t.Helper()
	res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("r", time.Now().UnixNano()), "hello", 1))
	if err != nil {
		t.Fatal(err)
	}
	return res.Worker
}

// calledDirectly lists the workers that requests go to.
func calledDirectly(c *Client) (urls []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.fleet.active {
		if !w.router {
			urls = append(urls, w.url)
		}
	}
	return urls
}

// A worker that refuses a connection for a moment is used again, also when weights came from disk
// since the start; so is one whose restarted process has the checkpoint of the start.
func TestWorkersBlinkAfterAnUpdateFromDisk(t *testing.T) {
	for _, test := range []struct {
		name, path string
		gone       int
	}{
		{"one", "/ckpt/1", 1},
		{"all", "/ckpt/1", 2},
		{"one, restarted from the start's", "/models/base", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, servers, _ := fleetOf(t, 2, sglangtest.Config{ModelPath: "/models/base"}, func(cfg *Config) {
				cfg.RefreshEvery, cfg.MaxAttempts, cfg.Backoff, cfg.BackoffMax = time.Millisecond, 100, time.Millisecond, 10*time.Millisecond
			})
			updateFromDisk(t, "/ckpt/1", servers...)
			for _, s := range servers[:test.gone] {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			var outcomes <-chan outcome
			if test.gone == len(servers) {
				_, outcomes = launch(t, c, 1)
				until(t, "the router to be the only way", func() bool { return len(calledDirectly(c)) == 0 })
			} else {
				until(t, "the other worker to be the only one", func() bool { serving(t, c); return len(calledDirectly(c)) == 1 })
			}
			for _, s := range servers[:test.gone] {
				simulate(t, sglangtest.Config{Addr: strings.TrimPrefix(s.URL(), "http://"), NoWorkers: true, ModelPath: test.path})
			}
			if outcomes != nil {
				if o := <-outcomes; o.err != nil {
					t.Errorf("the call of the blink: %v", o.err)
				}
			}
			until(t, "both workers to be used", func() bool {
				serving(t, c) // the list is read again while it is in use
				return len(calledDirectly(c)) == 2
			})
			until(t, "the first to serve", func() bool { return serving(t, c) == servers[0].URL() })
		})
	}
}

// A worker that joins after an update from disk is known by what the router serves now, or served
// at the start; one of another model is still left out.
func TestWorkersJoinAfterAnUpdateFromDisk(t *testing.T) {
	c, servers, router := fleetOf(t, 1, sglangtest.Config{ModelPath: "/models/base"}, func(cfg *Config) { cfg.RefreshEvery = time.Millisecond })
	updateFromDisk(t, "/ckpt/1", servers...)
	updateFromDisk(t, "/ckpt/2", servers...)
	join := func(path string) string {
		s := simulate(t, sglangtest.Config{NoWorkers: true, ModelPath: path})
		router.AddWorker(s.URL())
		router.SetHealthy(s.URL(), false) // the router answers for the first worker
		return s.URL()
	}
	now, base, other := join("/ckpt/2"), join("/models/base"), join("/models/other")
	until(t, "the new workers", func() bool {
		serving(t, c)
		urls := calledDirectly(c)
		return slices.Contains(urls, now) && slices.Contains(urls, base)
	})
	until(t, "the last one to have been asked", func() bool {
		serving(t, c)
		c.mu.Lock()
		defer c.mu.Unlock()
		w := c.fleet.known[other]
		return w != nil && !w.nextProbe.IsZero()
	})
	if urls := calledDirectly(c); slices.Contains(urls, other) || len(urls) != 3 {
		t.Errorf("requests go to %v, not to be %s", urls, other)
	}
}
