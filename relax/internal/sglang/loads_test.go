package sglang

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

func TestParseLoads(t *testing.T) {
	for body, want := range map[string]WorkerLoad{
		`{"loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":1,"num_used_tokens":10,"max_total_num_tokens":100,"token_usage":0.1},{"num_running_reqs":2,"num_used_tokens":30,"max_total_num_tokens":100}]}`: {Running: 5, Waiting: 1, UsedTokens: 40, MaxTokens: 200, Usage: 0.3},
		`{"loads":[]}`: {},
	} {
		if got, err := parseLoads([]byte(body)); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", body, got, err)
		}
	}
	for _, body := range []string{"x", "{}", "[]"} {
		if _, err := parseLoads([]byte(body)); err == nil {
			t.Errorf("accepted %s", body)
		}
	}
}

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics([]byte(`# HELP sglang:token_usage a } b
sglang:max_total_num_tokens{model_name="a } {b",rank="0"} 100.0
sglang:max_total_num_tokens{rank="1"} 200.0 1700000000
sglang:num_used_tokens 50
sglang:token_usage{rank="0"} 0.0
sglang:num_running_reqs{} 3
sglang:num_queue_reqs{} 2
sglang:num_used_tokens{x="nan"} NaN
sglang:broken
python_gc 5
`))
	if want := (WorkerLoad{Running: 3, Waiting: 2, UsedTokens: 50, MaxTokens: 200, Usage: 0.25}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := parseMetrics([]byte("sglang:max_total_num_tokens 10\nsglang:full_token_usage 0.75\nsglang:num_used_tokens 1\n")); err != nil || got.Usage != 0.75 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := parseMetrics([]byte("up 1\n")); err != errNoSource {
		t.Errorf("other metrics: %v", err)
	}
}

// FuzzLoads: whatever a worker says of its load, there are numbers a ledger can use or an error.
func FuzzLoads(f *testing.F) {
	f.Add([]byte(`{"loads":[{"num_running_reqs":3,"token_usage":0.5}]}`))
	f.Add([]byte(`[{"num_reqs":5,"num_waiting_reqs":2,"num_tokens":9}]`))
	f.Add([]byte("sglang:max_total_num_tokens{a=\"}\"} 1e30\nsglang:token_usage -Inf\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []func([]byte) (WorkerLoad, error){parseLoads, parseMetrics, parseOldLoad} {
			load, err := parse(body)
			if err == nil && !(load.Usage >= 0 && load.Usage <= 1 && load.UsedTokens >= 0 && load.MaxTokens >= 0 && load.Running >= 0 && load.Waiting >= 0) {
				t.Fatalf("%q: %+v", body, load)
			}
		}
	})
}

// The three generations of servers.
func TestLoadSources(t *testing.T) {
	metrics := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "sglang:max_total_num_tokens 100\nsglang:num_used_tokens 10\nsglang:token_usage 0.1\nsglang:num_running_reqs 1\n")
	}
	old := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":90,"num_pending_tokens":40},{"num_reqs":1}]`)
	}
	info := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"max_total_num_tokens":50,"dp_size":2}`) }
	for _, test := range []struct {
		name   string
		routes map[string]http.HandlerFunc
		want   WorkerLoad
		text   string // of the error
	}{
		{name: "now", want: WorkerLoad{Running: 5, Waiting: 1, UsedTokens: 10, MaxTokens: 100, Usage: 0.1}},
		{name: "metrics", routes: map[string]http.HandlerFunc{"/v1/loads": http.NotFound, "/metrics": metrics}, want: WorkerLoad{Running: 1, UsedTokens: 10, MaxTokens: 100, Usage: 0.1}},
		{name: "old", routes: map[string]http.HandlerFunc{"/v1/loads": http.NotFound, "/get_load": old, "/get_server_info": info}, want: WorkerLoad{Running: 4, Waiting: 2, UsedTokens: 50, MaxTokens: 100, Usage: 0.5}},
		{name: "none", routes: map[string]http.HandlerFunc{"/v1/loads": http.NotFound}, text: "has none of"},
		{name: "failing", routes: map[string]http.HandlerFunc{"/v1/loads": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) }}, text: "answered 500"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t, echo)
			for path, h := range test.routes {
				f.extra[path] = h
			}
			c := open(t, f.URL, nil)
			for range 2 { // the second time it goes to what answered
				got := c.Load(t.Context())
				if len(got) != 1 || got[0].Worker != f.URL {
					t.Fatalf("got %+v", got)
				}
				if err := got[0].Err; (err != nil) != (test.text != "") || err != nil && !strings.Contains(err.Error(), test.text) {
					t.Errorf("error %v", err)
				}
				got[0].Worker, got[0].Err = "", nil
				if got[0] != test.want {
					t.Errorf("got %+v, want %+v", got[0], test.want)
				}
			}
		})
	}
}

// A worker that does not answer degrades its own line only.
func TestLoadOfAFleetWithAHungWorker(t *testing.T) {
	c, servers, _ := fleetOf(t, 3, sglangtest.Config{KVTokens: 1000, Metrics: true}, func(cfg *Config) { cfg.ControlTimeout = 2 * time.Second })
	servers[1].Freeze()
	loads := c.Load(t.Context())
	if len(loads) != 3 {
		t.Fatalf("got %+v", loads)
	}
	for i, l := range loads {
		if l.Worker != servers[i].URL() || (l.Err != nil) != (i == 1) || i != 1 && l.MaxTokens != 1000 {
			t.Errorf("worker %d: %+v", i, l)
		}
	}
	c.Close()
	if loads := c.Load(t.Context()); loads[0].Err == nil {
		t.Errorf("after close: %+v", loads)
	}
}
