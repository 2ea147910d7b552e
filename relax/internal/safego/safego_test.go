package safego

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestGroupCountsAndWaits(t *testing.T) {
	g := New(func(string, any, []byte) { t.Error("nothing panicked") })
	if err := g.Wait(context.Background()); err != nil {
		t.Fatalf("wait for nothing: %v", err)
	}
	release := make(chan struct{})
	for range 3 {
		g.Go("worker", func() { <-release })
	}
	if n := g.Names()["worker"]; n != 3 {
		t.Errorf("%d workers, want 3", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v, want the context's error", err)
	}
	close(release)
	if err := g.Wait(context.Background()); err != nil {
		t.Error(err)
	}
	if len(g.Names()) != 0 {
		t.Errorf("names %v after the end", g.Names())
	}
}

func TestPanicsAreHandedOver(t *testing.T) {
	type report struct{ name, value, stack string }
	reports := make(chan report, 1)
	g := New(func(name string, value any, stack []byte) { reports <- report{name, value.(string), string(stack)} })
	g.Go("bad", func() { panic("boom") })
	if r := <-reports; r.name != "bad" || r.value != "boom" || !strings.Contains(r.stack, "TestPanicsAreHandedOver") {
		t.Errorf("report %+v", r)
	}
	if err := g.Wait(context.Background()); err != nil {
		t.Error(err)
	}
}
