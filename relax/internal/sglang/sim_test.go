package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// These tests run against the stand-in server, which models SGLang's timing and its answers;
// generate_test.go and workers_test.go have what it does not do.

func simulate(t *testing.T, cfg sglangtest.Config) *sglangtest.Server {
	t.Helper()
	cfg.DisconnectCheck = 5 * time.Millisecond
	s, err := sglangtest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func says(t *testing.T, text string) *sglangtest.Policy {
	t.Helper()
	p, err := sglangtest.ParsePolicy(fmt.Appendf(nil, `{"default":[{"text":%q}]}`, text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func prompt(t *testing.T, rid, text string, budget int) Call {
	t.Helper()
	ids, err := sglangtest.ByteTokenizer().Encode(text)
	if err != nil {
		t.Fatal(err)
	}
	c := call(rid)
	c.Prefix = [][]int32{ids[:1], ids[1:]}
	c.Sampling.MaxNewTokens = budget
	return c
}

func TestSimGenerate(t *testing.T) {
	s := simulate(t, sglangtest.Config{Policy: says(t, "fine"), WeightVersion: "3"})
	c := open(t, s.URL(), nil)
	info, err := c.Probe(t.Context())
	if err != nil || info.WeightVersion != "3" || !info.Direct || info.Router {
		t.Fatalf("probe: %+v, %v", info, err)
	}
	res, err := c.Generate(t.Context(), prompt(t, "a", "hello", 100))
	if err != nil {
		t.Fatal(err)
	}
	text, err := sglangtest.ByteTokenizer().Decode(res.IDs[:4])
	if err != nil || text != "fine" || len(res.IDs) != 5 || res.Finish.Type != FinishStop || res.Finish.Matched != fmt.Sprint(res.IDs[4]) || res.WeightVersion != "3" || res.PromptTokens != 5 {
		t.Errorf("%q %v: %+v", text, err, res)
	}
	sum := 0.0
	for _, logprob := range res.Logprobs {
		sum += float64(logprob)
	}
	if math.Abs(sum) > 1e-6 { // there is only one candidate
		t.Errorf("log probability %v", sum)
	}
	if res, err = c.Generate(t.Context(), prompt(t, "a", "hello", 2)); err != nil || res.Finish.Type != FinishLength || len(res.IDs) != 2 {
		t.Errorf("length: %+v, %v", res, err)
	}
	var body struct {
		Sampling map[string]any `json:"sampling_params"`
	}
	if err := json.Unmarshal(s.Requests()[0].Body, &body); err != nil || body.Sampling["skip_special_tokens"] != false || body.Sampling["no_stop_trim"] != true {
		t.Errorf("%v %v", err, body)
	}
	if loads := c.Load(t.Context()); len(loads) != 1 || loads[0].Err != nil || loads[0].Running != 0 {
		t.Errorf("loads %+v", loads)
	}
}

func TestSimContextLength(t *testing.T) {
	s := simulate(t, sglangtest.Config{ContextLen: 20})
	c := open(t, s.URL(), nil)
	for _, in := range []Call{prompt(t, "a", strings.Repeat("x", 30), 1), prompt(t, "b", "hello", 100)} {
		var long *ContextLengthError
		if _, err := c.Generate(t.Context(), in); !errors.As(err, &long) {
			t.Errorf("got %v", err)
		}
	}
	if n := len(s.Requests()); n != 2 {
		t.Errorf("%d requests: a refusal for length was repeated", n)
	}
}

func TestSimAbortMidway(t *testing.T) {
	s := simulate(t, sglangtest.Config{Policy: says(t, strings.Repeat("word ", 2000)), TokenDelay: time.Millisecond})
	c := open(t, s.URL(), nil)
	result := make(chan Result, 1)
	go func() {
		res, err := c.Generate(t.Context(), prompt(t, "a", "hello", 20000))
		if err != nil {
			t.Error(err)
		}
		result <- res
	}()
	for s.InFlight() == 0 {
		time.Sleep(time.Millisecond)
	}
	for load := c.Load(t.Context()); load[0].Running == 0; load = c.Load(t.Context()) {
		time.Sleep(time.Millisecond)
	}
	c.Abort("a")
	res := <-result
	if res.Finish.Type != FinishAbort || len(res.IDs) == 0 || len(res.IDs) > 9000 || len(res.IDs) != len(res.Logprobs) {
		t.Errorf("%+v with %d ids", res.Finish, len(res.IDs))
	}
}

// A new request to a paused server hangs before it can be aborted; the grace ends it.
func TestSimAbortWhilePaused(t *testing.T) {
	s := simulate(t, sglangtest.Config{})
	resp, err := http.Post(s.URL()+"/pause_generation", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	c := open(t, s.URL(), func(cfg *Config) { cfg.AbortGrace = 30 * time.Millisecond })
	result := make(chan Result, 1)
	go func() {
		res, err := c.Generate(t.Context(), prompt(t, "a", "hello", 5))
		if err != nil {
			t.Error(err)
		}
		result <- res
	}()
	for s.Blocked() == 0 {
		time.Sleep(time.Millisecond)
	}
	c.Abort("a")
	if res := <-result; res.Finish.Type != FinishAbort || len(res.IDs) != 0 {
		t.Errorf("%+v", res)
	}
}

func TestSimCancel(t *testing.T) {
	s := simulate(t, sglangtest.Config{Faults: nil})
	s.SetFault(func(*sglangtest.GenerateRequest) *sglangtest.Fault { return &sglangtest.Fault{HangForever: true} })
	c := open(t, s.URL(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for s.InFlight() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := c.Generate(ctx, prompt(t, "a", "hello", 5)); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	for s.Disconnects() == 0 || len(s.Aborts()) == 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestSimFaults(t *testing.T) {
	reply := func(err error) bool { var e *ReplyError; return errors.As(err, &e) }
	tests := []struct {
		name  string
		fault sglangtest.Fault
		want  func(error) bool // nil: the call succeeds, at the second attempt
		first bool             // it succeeds at the first
	}{
		{name: "too many logprobs", fault: sglangtest.Fault{WrongLogprobCount: 1}, want: reply},
		{name: "too few logprobs", fault: sglangtest.Fault{WrongLogprobCount: -1}, want: reply},
		{name: "wrong ids", fault: sglangtest.Fault{WrongIDs: true}, want: reply},
		{name: "NaN", fault: sglangtest.Fault{NaNStop: 1}, want: reply},
		{name: "finish a string", fault: sglangtest.Fault{FinishOverride: json.RawMessage(`"stop"`)}, want: reply},
		{name: "truncated prompt", fault: sglangtest.Fault{WrongPromptTokens: -1}, want: reply},
		{name: "no output_ids", fault: sglangtest.Fault{OmitOutputIDs: true}, first: true},
		{name: "dropped", fault: sglangtest.Fault{DropConnection: true}},
		{name: "dropped later", fault: sglangtest.Fault{DropConnection: true, DropAfter: 1}},
		{name: "cut", fault: sglangtest.Fault{CutBody: 20}},
		{name: "503", fault: sglangtest.Fault{Status: 503}},
		{name: "429", fault: sglangtest.Fault{Status: 429}},
		{name: "500", fault: sglangtest.Fault{Status: 500, Body: "Internal Server Error"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := simulate(t, sglangtest.Config{Policy: says(t, "fine")})
			s.SetFault(func(r *sglangtest.GenerateRequest) *sglangtest.Fault {
				if strings.HasSuffix(r.RID, "#00") {
					return &test.fault
				}
				return nil
			})
			res, err := open(t, s.URL(), nil).Generate(t.Context(), prompt(t, "a", "hello", 50))
			if test.want != nil {
				if err == nil || !test.want(err) {
					t.Errorf("got %+v, error %v", res, err)
				}
				return
			}
			attempts := 2
			if test.first {
				attempts = 1
			}
			if err != nil || len(res.IDs) != 5 || res.Attempts != attempts {
				t.Errorf("got %+v, error %v", res, err)
			}
		})
	}
}

// A worker that dies while it has requests costs those at most an attempt.
func TestSimWorkerDiesMidway(t *testing.T) {
	const requests = 60
	var servers []*sglangtest.Server
	var urls []string
	for range 3 {
		s := simulate(t, sglangtest.Config{Policy: says(t, strings.Repeat("w", 40)), TokenDelay: time.Millisecond})
		servers, urls = append(servers, s), append(urls, s.URL())
	}
	router, err := sglangtest.NewRouter(append(urls, deadURL(t))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { router.Close() })
	c := open(t, router.URL(), nil)
	if info, err := c.Probe(t.Context()); err != nil || len(info.Workers) != 3 || !info.Direct {
		t.Fatalf("probe: %+v, %v", info, err)
	}
	var wg sync.WaitGroup
	for i := range requests {
		wg.Add(1)
		go func() {
			defer wg.Done()
			res, err := c.Generate(t.Context(), prompt(t, fmt.Sprint("r", i), "hello", 50))
			if err != nil || len(res.IDs) != 41 {
				t.Errorf("request %d: %+v, %v", i, res.Finish, err)
			}
		}()
	}
	for servers[0].InFlight() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := servers[0].Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
