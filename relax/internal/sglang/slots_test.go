package sglang

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestSlots(t *testing.T) {
	s := slots{limit: 2}
	never := make(chan struct{})
	for range 2 {
		if ok, err := s.acquire(t.Context(), time.Now(), never); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	order := make(chan int, 8)
	wait := func(n int, ctx context.Context, aborted chan struct{}) {
		done, _ := s.queued()
		go func() {
			ok, err := s.acquire(ctx, time.Unix(int64(n), 0), aborted)
			switch {
			case ok:
				order <- n
			case err != nil:
				order <- -n
			default:
				order <- 100 + n
			}
		}()
		for now := done; now == done; now, _ = s.queued() {
		}
	}
	cause := errors.New("left")
	ctx, cancel := context.WithCancelCause(t.Context())
	aborted := make(chan struct{})
	wait(1, t.Context(), never)
	wait(2, ctx, never)
	wait(3, t.Context(), aborted)
	wait(4, t.Context(), never)
	wait(5, t.Context(), never)
	cancel(cause)
	if n := <-order; n != -2 {
		t.Errorf("cancelled: %d", n)
	}
	close(aborted)
	if n := <-order; n != 103 {
		t.Errorf("aborted: %d", n)
	}
	for _, want := range []int{1, 4} {
		if n, since := s.queued(); n == 0 || !since.Equal(time.Unix(int64(want), 0)) {
			t.Errorf("%d wait since %s, want the first since %d", n, since, want)
		}
		s.release()
		if n := <-order; n != want {
			t.Errorf("served %d, want %d", n, want)
		}
	}
	s.setLimit(3)
	if n := <-order; n != 5 {
		t.Errorf("a higher bound served %d", n)
	}
	s.setLimit(1)
	for range 3 {
		s.release()
	}
	ok, _ := s.acquire(t.Context(), time.Now(), never)
	if n, since := s.queued(); !ok || s.used != 1 || n != 0 || !since.IsZero() {
		t.Errorf("%d used, %d wait since %s", s.used, n, since)
	}
}

// Workers that get nothing, because their router does not trust them, have no share of the bound: it
// would come on top of the others'.
func TestConcurrencyCountsWorkersInUse(t *testing.T) {
	c, servers, router := fleetOf(t, 4, slowly(t), func(cfg *Config) { cfg.Concurrency = 3 })
	trust := func(healthy bool) {
		for _, s := range servers[1:] {
			router.SetHealthy(s.URL(), healthy)
		}
		if _, err := c.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	trust(false)
	rids, _ := launch(t, c, 20)
	until(t, "one worker full and a queue", func() bool { return atWorkers(servers) == 3 && c.Stats().Waiting == 17 })
	trust(true)
	until(t, "all workers full", func() bool { return atWorkers(servers) == 12 && c.Stats().Waiting == 8 })
	if err := c.AbortAll(t.Context(), rids, nil); err != nil {
		t.Fatal(err)
	}
}
