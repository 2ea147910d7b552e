package admission

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestM12UsageWindow(t *testing.T) {
	m := newMachine(t, nil)
	use := func(worker string, used int) {
		m.Reported(at(0), Report{Worker: worker, UsedTokens: used, MaxTokens: 1000})
	}
	use("w", 200)
	use("w", 800)
	use("v", 500)
	expect := func(mean, peak float64) {
		t.Helper()
		got := m.Metrics()
		if math.Abs(got["agentic_kv/budget/kv_token_usage_mean"]-mean) > 1e-9 || got["agentic_kv/budget/kv_token_usage_max"] != peak {
			t.Errorf("%v, want mean %v and max %v", got, mean, peak)
		}
	}
	expect(0.5, 0.8)
	use("w", 100)
	expect(0.7*2/3, 0.8) // 0.8 and 0.5 are kept, 0.1 is new
	expect(0.3, 0.5)
	m.Reported(at(0), Report{Worker: "w", MaxTokens: 10, Usage: 7})
	expect((0.1+0.5+1)/3, 1)
	m.Reported(at(0), Report{Worker: "v", MaxTokens: 10, Usage: math.NaN()})
	expect((1+0.5+0)/3, 1)
}

func TestM16LifecycleCounts(t *testing.T) {
	var l Lifecycle
	for _, c := range []struct {
		closed, failed int64
		want           map[string]float64
	}{
		{2, 1, map[string]float64{"close": 2, "close_failure": 1, "lifecycle_enabled": 1}},
		{2, 1, map[string]float64{"close": 0, "close_failure": 0, "lifecycle_enabled": 1}},
		{5, 3, map[string]float64{"close": 3, "close_failure": 2, "lifecycle_enabled": 1}},
	} {
		got := l.Metrics(c.closed, c.failed)
		for name, v := range c.want {
			if got["agentic_kv/session/"+name] != v || len(got) != len(c.want) {
				t.Errorf("%d closed and %d failed in all: %v, want %v", c.closed, c.failed, got, c.want)
			}
		}
	}
}

func TestWaitsSayWhoWaitsForWhat(t *testing.T) {
	m := withWorkers(t, "w", "v", "x")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 1, "b", "w", 200)
	ask(t, m, 2, "c", "w", 200)
	m.Reported(at(2), Report{Worker: "v", UsedTokens: 950, MaxTokens: 1000})
	askAs(t, m, 3, Request{Ticket: "d", Session: "sd", Worker: "v", PromptTokens: 5, Kind: Resumed})
	ask(t, m, 4, "x1", "x", 900)
	ask(t, m, 4, "x2", "x", 900)
	m.WorkerGone(at(4), "x")
	var got []string
	for _, w := range m.Waits(10) {
		got = append(got, fmt.Sprintf("%s %s %s %s %v-%v: %s", w.Ticket, w.Session, w.Kind, w.Reason, w.Since.Sub(t0), w.Until.Sub(t0), w.For))
	}
	want := []string{
		"b sb fresh capacity_exhausted 1s-31s: 200 tokens at w: 900 of 1000 are reserved and 0 used by others",
		"c sc fresh queued_behind 2s-32s: b, which is first at w",
		"d sd resumed pressure_guard 3s-33s: KV usage 0.95 of v to fall below 0.92",
		"x2 sx2 fresh worker_gone 4s-34s: another worker than x, which is gone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := len(m.Waits(2)); n != 2 {
		t.Errorf("%d waits with a limit of 2", n)
	}
}

func TestMetrics(t *testing.T) {
	m := withWorkers(t, "w", "v")
	m.Metrics()
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 0, "b", "w", 300)
	askAs(t, m, 0, Request{Ticket: "p", Session: "s", Worker: "w", PromptTokens: 100, Kind: Protected})
	ask(t, m, 0, "u", "unknown", 100)
	land(m, 4, "a")
	m.Landed(at(4), "u", 60)
	ask(t, m, 4, "c", "w", 700)
	got := m.Metrics()
	want := map[string]float64{
		// a at once, b after its wait
		"agentic_kv/admission/admit": 2, "agentic_kv/admission/bypass": 2, "agentic_kv/admission/bypass_protected": 1,
		"agentic_kv/admission/bypass_degraded": 1, "agentic_kv/admission/wait": 2, "agentic_kv/admission/waiting": 1,
		"agentic_kv/admission/defer_rate": 2.0 / 6, "agentic_kv/admission/degraded_rate": 1.0 / 6,
		"agentic_kv/admission/wait_seconds_mean": 4,
		"agentic_kv/budget/ceiling":              2000, "agentic_kv/budget/reserved": 400, "agentic_kv/budget/available_tokens": 1600,
		"agentic_kv/budget/lease_count": 2, "agentic_kv/budget/kv_token_usage_mean": 0, "agentic_kv/budget/kv_token_usage_max": 0,
		"agentic_kv/budget/epoch": 3, "agentic_kv/budget/degraded": 1, "agentic_kv/budget/reserved_utilization": 0.2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	second := m.Metrics()
	for name, v := range second {
		if strings.HasPrefix(name, "agentic_kv/admission/") && name != "agentic_kv/admission/waiting" {
			t.Errorf("%s is %v after it was drained", name, v)
		}
	}
	if second["agentic_kv/admission/waiting"] != 1 {
		t.Errorf("waiting %v, want 1", second["agentic_kv/admission/waiting"])
	}
}

func TestOverrunsAreCounted(t *testing.T) {
	m := withWorkers(t, "w")
	for id, generated := range map[string]int{"a": 50, "b": 51} {
		askAs(t, m, 0, Request{Ticket: id, Session: id, Worker: "w", PromptTokens: 10, RemainingTokens: 500})
		m.Started(at(0), id, "w")
		m.Landed(at(1), id, generated)
	}
	if got := m.Stats(at(1)).Overruns; got != 1 {
		t.Errorf("%d overruns, want that of b", got)
	}
}

// TestMetricNames is the admission part of pipeline 12.17: every name of 8.6 appears.
func TestMetricNames(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 0, "aged", "w", 200)
	ask(t, m, 1, "withdrawn", "w", 200)
	m.Withdraw(at(2), "withdrawn")
	askAs(t, m, 2, Request{Ticket: "p", Session: "s", Worker: "w", Kind: Protected})
	ask(t, m, 2, "d", "unknown", 1)
	report(m, 28, "w")
	m.Tick(at(30))
	m.Tick(at(700))
	report(m, 701, "w")
	got := slices.Sorted(maps.Keys(m.Metrics()))
	want := strings.Fields(`
		agentic_kv/admission/admit agentic_kv/admission/bypass agentic_kv/admission/bypass_aged
		agentic_kv/admission/bypass_degraded agentic_kv/admission/bypass_protected agentic_kv/admission/cancelled
		agentic_kv/admission/defer_rate agentic_kv/admission/degraded_rate agentic_kv/admission/wait
		agentic_kv/admission/wait_seconds_mean agentic_kv/admission/waiting
		agentic_kv/budget/available_tokens agentic_kv/budget/ceiling agentic_kv/budget/degraded agentic_kv/budget/epoch
		agentic_kv/budget/kv_token_usage_max agentic_kv/budget/kv_token_usage_mean agentic_kv/budget/lease_count
		agentic_kv/budget/lease_expired agentic_kv/budget/reserved agentic_kv/budget/reserved_utilization`)
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}
