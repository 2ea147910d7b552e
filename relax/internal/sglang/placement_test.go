package sglang

import (
	"fmt"
	"slices"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// WorkerFor says where a Session's call goes without charging anybody, and Placed where it went.
func TestWorkerForAndPlaced(t *testing.T) {
	c, servers, _ := fleetOf(t, 3, sglangtest.Config{}, nil)
	used := map[string]bool{}
	for i := range 30 {
		in := prompt(t, fmt.Sprint("r", i), "hello", 5)
		var placed []string
		in.Placed = func(worker string) { placed = append(placed, worker) }
		want := c.WorkerFor(in.Session)
		if again := c.WorkerFor(in.Session); again != want {
			t.Errorf("%s, then %s", want, again)
		}
		res, err := c.Generate(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if res.Worker != want || !slices.Equal(placed, []string{want}) {
			t.Errorf("predicted %s, placed %v, served by %s", want, placed, res.Worker)
		}
		used[want] = true
	}
	if len(used) != 3 {
		t.Errorf("only %v were used", used)
	}
	// A worker that refuses connections: the attempt after it is told as well.
	in := prompt(t, "retried", "hello", 5)
	first := c.WorkerFor(in.Session)
	for _, s := range servers {
		if s.URL() == first {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	var placed []string
	in.Placed = func(worker string) { placed = append(placed, worker) }
	res, err := c.Generate(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if len(placed) != 2 || placed[0] != first || placed[1] != res.Worker || c.WorkerFor(in.Session) == first {
		t.Errorf("placed %v, served by %s, next %s", placed, res.Worker, c.WorkerFor(in.Session))
	}
}
