package sglangtest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestFaults(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"abcdefgh"}]}`)})
	body := fields{"text": "q", "rid": "r", "return_logprob": true}
	with := func(f Fault) *answer {
		t.Helper()
		s.SetFault(func(req *GenerateRequest) *Fault {
			if req.RID != "r" {
				t.Errorf("rid is %q", req.RID)
			}
			return &f
		})
		return generate(t, s, body)
	}
	if a := with(Fault{Status: 503, Body: `{"object":"error"}`}); a.Status != 503 || a.Raw != `{"object":"error"}` {
		t.Errorf("status: %d %s", a.Status, a.Raw)
	}
	if a := with(Fault{AbortAfter: 3}); string(a.Meta.Finish) != `{"type":"abort","message":"Aborted","status_code":null,"err_type":null}` || a.Text != "abc" {
		t.Errorf("abort: %s", a.Raw)
	}
	a := with(Fault{AbortAfter: -1, AbortMessage: "out of memory", AbortStatus: 500})
	if f := a.finish(t); a.Meta.Completion != 0 || f["message"] != "out of memory" || f["status_code"] != 500.0 {
		t.Errorf("abort before the first token: %s", a.Raw)
	}
	if a := with(Fault{WrongLogprobCount: -2}); len(a.Meta.Logprobs) != 7 || len(a.OutputIDs) != 9 || a.Meta.LogprobsLen != 7 {
		t.Errorf("too few logprobs: %s", a.Raw)
	}
	if a := with(Fault{WrongLogprobCount: 2}); len(a.Meta.Logprobs) != 11 || len(a.OutputIDs) != 9 {
		t.Errorf("too many logprobs: %s", a.Raw)
	}
	a = with(Fault{WrongIDs: true})
	for i, id := range a.OutputIDs {
		if int32(a.Meta.Logprobs[i][1].(float64)) == id {
			t.Errorf("id %d is right: %s", i, a.Raw)
		}
	}
	if a := with(Fault{NaNStop: 2}); string(a.Meta.Finish) != `{"type":"stop","matched":"NaN happened"}` || a.OutputIDs[1] != 258 || len(a.OutputIDs) != 2 {
		t.Errorf("NaN: %s", a.Raw)
	}
	if a := with(Fault{FinishOverride: json.RawMessage(`"stop"`), WeightVersion: "99", WrongPromptTokens: -1}); string(a.Meta.Finish) != `"stop"` ||
		a.Meta.WeightVersion != "99" || *a.Meta.PromptTokens != 0 {
		t.Errorf("overrides: %s", a.Raw)
	}
	if a := with(Fault{OmitOutputIDs: true}); a.OutputIDs != nil || len(a.Meta.Logprobs) != 9 {
		t.Errorf("no ids: %s", a.Raw)
	}
	if a := with(Fault{Delay: time.Nanosecond}); a.Meta.Completion != 9 {
		t.Errorf("delay: %s", a.Raw)
	}
	for name, f := range map[string]Fault{"drop": {DropConnection: true}, "drop later": {DropConnection: true, DropAfter: 3},
		"drop at the end": {DropConnection: true, DropAfter: 1000}, "cut": {CutBody: 20}} {
		s.SetFault(func(*GenerateRequest) *Fault { return &f })
		if a, err := tryGenerate(t, s.URL(), body); err == nil {
			t.Errorf("%s: got %s", name, a.Raw)
		}
	}
	s.SetFault(nil)
	if a := generate(t, s, body); a.Meta.Completion != 9 {
		t.Errorf("without a fault: %s", a.Raw)
	}
	if s.InFlight() != 0 {
		t.Errorf("%d in flight", s.InFlight())
	}
}

func TestStreamFaults(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"abcdefgh"}]}`), Faults: []FaultRule{
		{RIDPrefix: "drop", Fault: Fault{DropConnection: true, DropAfter: 2}},
		{RIDPrefix: "status", Fault: Fault{Status: 502, Header: map[string]string{"Retry-After": "1"}, Body: "bad"}},
		{RIDPrefix: "abort", Fault: Fault{AbortAfter: 2}},
	}})
	_, raw, err := send(t.Context(), "POST", s.URL()+"/generate", fields{"text": "q", "rid": "drop", "stream": true})
	got, done := chunks(t, string(raw))
	if err == nil || done || len(got) != 2 {
		t.Errorf("drop: %v %s", err, raw)
	}
	if status, raw := call(t, "POST", s.URL()+"/generate", fields{"text": "q", "rid": "status", "stream": true}); status != 502 || raw != "bad" {
		t.Errorf("status: %d %s", status, raw)
	}
	_, text := call(t, "POST", s.URL()+"/generate", fields{"text": "q", "rid": "abort", "stream": true})
	if got, done := chunks(t, text); !done || len(got) != 2 || got[1].finish(t)["type"] != "abort" {
		t.Errorf("abort: %s", text)
	}
}

func TestHangForever(t *testing.T) {
	s := start(t, Config{})
	s.SetFault(func(*GenerateRequest) *Fault { return &Fault{HangForever: true} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := send(ctx, "POST", s.URL()+"/generate", fields{"text": "q", "rid": "r"})
		ended <- err
	}()
	await(t, s, "the request", func() bool { return isRunning(s, "r") })
	call(t, "POST", s.URL()+"/abort_request", fields{"abort_all": true})
	if s.InFlight() != 1 || len(ended) != 0 {
		t.Error("an abort ended it")
	}
	cancel()
	if err := receive(t, ended); err == nil {
		t.Error("no error")
	}
	await(t, s, "its end", func() bool { return s.InFlight() == 0 })
}

func TestFaultRules(t *testing.T) {
	rules, err := ParseFaults([]byte(`[
	  {"rid_prefix":"a","skip":1,"count":2,"fault":{"status":500,"delay_ms":0.5}},
	  {"rid_prefix":"a","every":3,"fault":{"status":501}},
	  {"rid_prefix":"b","fault":{"status":502,"body":"x"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	if rules[0].Fault.Delay != 500*time.Microsecond {
		t.Errorf("delay is %v", rules[0].Fault.Delay)
	}
	plan := newFaultPlan(rules)
	want := []int{501, 500, 500, 0, 0, 501, 0, 0, 501}
	for i, w := range want {
		got := 0
		if f := plan.pick("a1"); f != nil {
			got = f.Status
		}
		if got != w {
			t.Errorf("request %d: fault %d, want %d", i, got, w)
		}
	}
	if f := plan.pick("b"); f == nil || f.Status != 502 {
		t.Errorf("b: %v", f)
	}
	if f := plan.pick("c"); f != nil {
		t.Errorf("c: %v", f)
	}
	again, err := json.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := ParseFaults(again); err != nil || parsed[0].Fault.Delay != rules[0].Fault.Delay {
		t.Errorf("round trip: %s %v", again, err)
	}
	for _, bad := range []string{`{}`, `[{"fault":{"stauts":1}}]`, `[{"skip":-1}]`, `[] []`} {
		if _, err := ParseFaults([]byte(bad)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
	s := start(t, Config{})
	if status, raw := call(t, "PUT", s.URL()+"/simulator/faults", `[{"count":1,"fault":{"status":418}}]`); status != 200 {
		t.Fatal(status, raw)
	}
	if a := generate(t, s, fields{"text": "q"}); a.Status != 418 {
		t.Errorf("first: %d", a.Status)
	}
	if a := generate(t, s, fields{"text": "q"}); a.Status != 200 {
		t.Errorf("second: %d", a.Status)
	}
	if status, _ := call(t, "PUT", s.URL()+"/simulator/faults", `{`); status != 400 {
		t.Errorf("bad rules: %d", status)
	}
}

func FuzzParseFaults(f *testing.F) {
	f.Add([]byte(`[{"rid_prefix":"a","skip":1,"every":2,"count":2,"fault":{"status":500,"delay_ms":0.5,"header":{"a":"b"}}}]`))
	f.Add([]byte(`[{"fault":{"delay_ms":1e300,"finish_override":{"type":1}}},{"fault":null}]`))
	f.Fuzz(func(t *testing.T, document []byte) {
		rules, err := ParseFaults(document)
		if err != nil {
			return
		}
		plan := newFaultPlan(rules)
		for range 5 {
			if fault := plan.pick("a"); fault != nil && fault.Delay < 0 {
				t.Fatalf("delay %v", fault.Delay)
			}
		}
		if _, err := json.Marshal(rules); err != nil {
			t.Fatal(err)
		}
	})
}

func startRouter(t *testing.T, urls ...string) *Router {
	t.Helper()
	r, err := NewRouter(urls...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

func TestRouter(t *testing.T) {
	a, b := start(t, Config{Seed: 1}), start(t, Config{Seed: 1})
	r := startRouter(t, a.URL(), b.URL()+"/")
	for range 4 {
		got, err := tryGenerate(t, r.URL(), fields{"text": "q", "return_logprob": true, "return_prompt_token_ids": true, "session_id": "s",
			"sampling_params": fields{"temperature": 0.7, "top_k": 3, "stop_regex": "x", "logit_bias": fields{"1": 1}}})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != 200 || got.PromptIDs != nil || got.Meta.Logprobs == nil {
			t.Errorf("got %d %s", got.Status, got.Raw)
		}
	}
	if len(a.Requests()) != 2 || len(b.Requests()) != 2 {
		t.Errorf("%d and %d requests", len(a.Requests()), len(b.Requests()))
	}
	seen := a.Requests()[0]
	if seen.Request.SessionID != "" || strings.Contains(string(seen.Body), "session_id") || !strings.Contains(string(seen.Body), "0.69999998") {
		t.Errorf("the worker got %s", seen.Body)
	}
	for _, path := range []string{"/abort_request", "/pause_generation", "/continue_generation", "/update_weight_version", "/close_session"} {
		if status, _ := call(t, "POST", r.URL()+path, fields{}); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
	_, raw := call(t, "GET", r.URL()+"/workers", nil)
	if !strings.Contains(raw, a.URL()) || !strings.Contains(raw, b.URL()) || !strings.Contains(raw, `"total":2`) {
		t.Errorf("workers are %s", raw)
	}
	if status, raw := call(t, "GET", r.URL()+"/model_info", nil); status != 200 || !strings.Contains(raw, "weight_version") {
		t.Errorf("model_info: %d %s", status, raw)
	}
	if status, _ := call(t, "GET", r.URL()+"/health", nil); status != 200 {
		t.Errorf("health: %d", status)
	}
	if status, raw := call(t, "POST", r.URL()+"/flush_cache", nil); status != 200 || raw != `{"failed":0}` {
		t.Errorf("flush: %d %s", status, raw)
	}
	if got, err := tryGenerate(t, r.URL(), "{"); err != nil || got.Status != 400 {
		t.Errorf("bad body: %+v %v", got, err)
	}
	if got, err := tryGenerate(t, r.URL(), fields{}); err != nil || got.Status != 400 || got.Error.Message == "" {
		t.Errorf("a worker's refusal: %+v %v", got, err)
	}
	status, raw := call(t, "POST", r.URL()+"/generate", fields{"text": "q", "stream": true})
	if got, done := chunks(t, raw); status != 200 || !done || len(got) < 2 {
		t.Errorf("stream: %d %s", status, raw)
	}
}

func TestRouterPassesOver(t *testing.T) {
	dead, full, alive := start(t, Config{}), start(t, Config{}), start(t, Config{})
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	full.SetFault(func(*GenerateRequest) *Fault { return &Fault{Status: 503, Body: "full"} })
	r := startRouter(t, dead.URL(), full.URL(), alive.URL())
	for range 3 {
		if got, err := tryGenerate(t, r.URL(), fields{"text": "q"}); err != nil || got.Status != 200 {
			t.Errorf("got %+v %v", got, err)
		}
	}
	r.RemoveWorker(alive.URL())
	r.RemoveWorker(full.URL())
	if got, err := tryGenerate(t, r.URL(), fields{"text": "q"}); err != nil || got.Status != 500 || !strings.Contains(got.Raw, "call_upstream_connection_failed") {
		t.Errorf("only a dead one: %+v %v", got, err)
	}
	r.RemoveWorker(dead.URL())
	if got, err := tryGenerate(t, r.URL(), fields{"text": "q"}); err != nil || got.Status != 503 || !strings.Contains(got.Raw, "no_available_workers") {
		t.Errorf("nobody: %+v %v", got, err)
	}
	r.AddWorker(alive.URL())
	if got, err := tryGenerate(t, r.URL(), fields{"text": "q"}); err != nil || got.Status != 200 {
		t.Errorf("again: %+v %v", got, err)
	}
}

// TestRouterDisconnect: a client that leaves the router ends its request at the worker, and
// a worker that drops its connection ends the client's.
func TestRouterDisconnect(t *testing.T) {
	s := start(t, Config{TokenDelay: time.Hour})
	r := startRouter(t, s.URL())
	for _, body := range []fields{{"text": "q"}, {"text": "q", "stream": true}} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, _, err := send(ctx, "POST", r.URL()+"/generate", body)
			ended <- err
		}()
		await(t, s, "the request", func() bool { return s.InFlight() == 1 })
		cancel()
		if err := receive(t, ended); err == nil {
			t.Error("no error")
		}
		await(t, s, "its end", func() bool { return s.InFlight() == 0 })
	}
	s.SetTokenDelay(0)
	s.SetFault(func(*GenerateRequest) *Fault { return &Fault{DropConnection: true, DropAfter: 1} })
	resp, err := http.Post(r.URL()+"/generate", "application/json", strings.NewReader(`{"text":"q","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("got %s", raw)
	}
	resp.Body.Close()
}
