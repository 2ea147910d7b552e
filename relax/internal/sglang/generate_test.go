package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestGenerate(t *testing.T) {
	var got generateBody
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, body generateBody) {
		got = body
		echo(w, r, body)
	})
	c := open(t, f.URL, func(cfg *Config) { cfg.SendSessionID = true })
	seed := int64(9)
	in := call("a")
	in.Sampling.Stop, in.Sampling.StopTokenIDs, in.Sampling.Seed = []string{"x\"\n"}, []int32{7, 8}, &seed
	res, err := c.Generate(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	want := Result{
		IDs: []int32{5, 6, 42}, Logprobs: []float32{-0.5, -1.5, -2.5}, Finish: Finish{Type: "stop", Matched: "42"},
		WeightVersion: "7", PromptTokens: 3, CachedTokens: 2, RID: "a#00", Worker: f.URL, Attempts: 1,
	}
	if !reflect.DeepEqual(res, want) {
		t.Errorf("result\n got %+v\nwant %+v", res, want)
	}
	wantBody := generateBody{
		InputIDs: []int32{1, 2, 3}, RID: "a#00", Logprob: true, Session: "session-a",
		Sampling: map[string]any{
			"temperature": 1.0, "top_p": 1.0, "top_k": -1.0, "max_new_tokens": 16.0, "stop": []any{"x\"\n"},
			"stop_token_ids": []any{7.0, 8.0}, "sampling_seed": 9.0, "skip_special_tokens": false, "no_stop_trim": true,
			"spaces_between_special_tokens": false,
		},
	}
	if !reflect.DeepEqual(got, wantBody) {
		t.Errorf("body\n got %+v\nwant %+v", got, wantBody)
	}
	if f.keys[0] != "session-a" {
		t.Errorf("routing key %q", f.keys[0])
	}
	if n := c.InFlight(); n != 0 {
		t.Errorf("%d in flight after the call", n)
	}
}

func TestGenerateRefusesBadCalls(t *testing.T) {
	c := open(t, "http://127.0.0.1:1", nil)
	for name, change := range map[string]func(*Call){
		"no rid":       func(c *Call) { c.RID = "" },
		"mark in rid":  func(c *Call) { c.RID = "a#b" },
		"empty prefix": func(c *Call) { c.Prefix = [][]int32{{}} },
		"top_p":        func(c *Call) { c.Sampling.TopP = 1.5 },
		"top_k":        func(c *Call) { c.Sampling.TopK = -2 },
		"temperature":  func(c *Call) { c.Sampling.Temperature = -1 },
		"no budget":    func(c *Call) { c.Sampling.MaxNewTokens = 0 },
	} {
		in := call("a")
		change(&in)
		if _, err := c.Generate(t.Context(), in); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestAbortReturnsPartialTokens(t *testing.T) {
	started := make(chan struct{})
	var f *fake
	f = newFake(t, func(w http.ResponseWriter, r *http.Request, body generateBody) {
		close(started)
		if f.untilAbort(r, body.RID) {
			answer(w, body, abortFinish, 5, 6)
		}
	})
	c := open(t, f.URL, nil)
	go func() {
		<-started
		if !c.Abort("a") {
			t.Error("abort did not find the call")
		}
		c.Abort("a") // a second one changes nothing
	}()
	res, err := c.Generate(t.Context(), call("a"))
	if err != nil || res.Finish.Type != FinishAbort || len(res.IDs) != 2 {
		t.Fatalf("got %+v, %v", res, err)
	}
	if c.Abort("a") {
		t.Error("abort found a call that returned")
	}
}

// An abort that is faster than the request is forgotten by servers, so it must be repeated.
func TestAbortIsRepeated(t *testing.T) {
	started := make(chan struct{})
	var f *fake
	f = newFake(t, func(w http.ResponseWriter, r *http.Request, body generateBody) {
		close(started)
		for {
			if _, aborts := f.seen(); len(aborts) >= 3 {
				answer(w, body, abortFinish, 5)
				return
			}
			select {
			case <-time.After(time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	})
	c := open(t, f.URL, nil)
	go func() { <-started; c.Abort("a") }()
	if res, err := c.Generate(t.Context(), call("a")); err != nil || len(res.IDs) != 1 {
		t.Fatalf("got %+v, %v", res, err)
	}
}

// A server that hangs in its pause gate does not answer aborts; the connection is closed.
func TestAbortGrace(t *testing.T) {
	started := make(chan struct{})
	f := newFake(t, func(_ http.ResponseWriter, r *http.Request, _ generateBody) {
		close(started)
		<-r.Context().Done()
	})
	c := open(t, f.URL, func(cfg *Config) { cfg.AbortGrace = 20 * time.Millisecond })
	go func() { <-started; c.Abort("a") }()
	res, err := c.Generate(t.Context(), call("a"))
	if err != nil || res.Finish.Type != FinishAbort || len(res.IDs) != 0 {
		t.Fatalf("got %+v, %v", res, err)
	}
}

func TestAbortWhileWaiting(t *testing.T) {
	release := make(chan struct{})
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, body generateBody) {
		<-release
		echo(w, r, body)
	})
	c := open(t, f.URL, func(cfg *Config) { cfg.Concurrency = 1 })
	first := make(chan error)
	go func() { _, err := c.Generate(t.Context(), call("a")); first <- err }()
	for rids, _ := f.seen(); len(rids) == 0; rids, _ = f.seen() {
		time.Sleep(time.Millisecond)
	}
	second := make(chan Result)
	go func() { res, _ := c.Generate(t.Context(), call("b")); second <- res }()
	for !c.Abort("b") {
		time.Sleep(time.Millisecond)
	}
	if res := <-second; res.Finish.Type != FinishAbort {
		t.Errorf("got %+v", res)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if rids, _ := f.seen(); len(rids) != 1 {
		t.Errorf("sent %v", rids)
	}
}

func TestCancelClosesAndAborts(t *testing.T) {
	gone, started := make(chan struct{}), make(chan struct{})
	f := newFake(t, func(_ http.ResponseWriter, r *http.Request, _ generateBody) {
		close(started)
		<-r.Context().Done()
		close(gone)
	})
	c := open(t, f.URL, nil)
	cause := errors.New("the agent left")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-started; cancel(cause) }()
	if _, err := c.Generate(ctx, call("a")); !errors.Is(err, cause) {
		t.Fatalf("got %v", err)
	}
	<-gone
	for _, aborts := f.seen(); len(aborts) == 0; _, aborts = f.seen() {
		time.Sleep(time.Millisecond)
	}
}

func TestCloseEndsCalls(t *testing.T) {
	started := make(chan struct{})
	f := newFake(t, func(_ http.ResponseWriter, r *http.Request, _ generateBody) {
		close(started)
		<-r.Context().Done()
	})
	c := open(t, f.URL, nil)
	go func() { <-started; c.Close() }()
	if _, err := c.Generate(t.Context(), call("a")); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Generate(t.Context(), call("b")); !errors.Is(err, ErrClosed) {
		t.Fatalf("after close: %v", err)
	}
}

func TestFaults(t *testing.T) {
	fail := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, status) }
	}
	drop := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	isContext := func(err error) bool { var e *ContextLengthError; return errors.As(err, &e) }
	isReply := func(err error) bool { var e *ReplyError; return errors.As(err, &e) }
	isStatus := func(err error) bool { var e *StatusError; return errors.As(err, &e) }
	tests := []struct {
		name     string
		faults   []http.HandlerFunc // answers of the first attempts; a healthy one follows
		attempts int
		aborts   int
		want     func(error) bool // nil: success
	}{
		{name: "503 then ok", faults: []http.HandlerFunc{fail(503, `{"message":"The request queue is full."}`)}, attempts: 2},
		{name: "429 twice", faults: []http.HandlerFunc{fail(429, ""), fail(429, "")}, attempts: 3},
		{name: "504 aborts the old rid", faults: []http.HandlerFunc{fail(504, "")}, attempts: 2, aborts: 1},
		{name: "one 500", faults: []http.HandlerFunc{fail(500, "Internal Server Error")}, attempts: 2},
		{name: "two 500", faults: []http.HandlerFunc{fail(500, "x"), fail(500, "x")}, attempts: 2, want: isStatus},
		{name: "dropped connection", faults: []http.HandlerFunc{drop}, attempts: 2, aborts: 1},
		{name: "400", faults: []http.HandlerFunc{fail(400, `{"error":{"message":"bad top_p"}}`)}, attempts: 1, want: isStatus},
		{name: "context", faults: []http.HandlerFunc{fail(400, `{"error":{"message":"The input (9 tokens) is longer than the model's context length (8 tokens)."}}`)}, attempts: 1, want: isContext},
		{name: "context as an abort", faults: []http.HandlerFunc{raw(`{"meta_info":{"finish_reason":{"type":"abort","message":"Requested token count exceeds the model's maximum context length of 8","status_code":400}}}`)}, attempts: 1, want: isContext},
		{name: "overload as an abort", faults: []http.HandlerFunc{raw(`{"meta_info":{"finish_reason":{"type":"abort","message":"full","status_code":503}}}`)}, attempts: 2},
		{name: "wrong counts", faults: []http.HandlerFunc{raw(`{"output_ids":[1,2],"meta_info":{"finish_reason":{"type":"stop"},"output_token_logprobs":[[-1,1,null]]}}`)}, attempts: 1, want: isReply},
		{name: "not JSON", faults: []http.HandlerFunc{raw(`hello`)}, attempts: 1, want: isReply},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var n atomic.Int32
			f := newFake(t, func(w http.ResponseWriter, r *http.Request, body generateBody) {
				if i := int(n.Add(1)) - 1; i < len(test.faults) {
					test.faults[i](w, r)
					return
				}
				echo(w, r, body)
			})
			res, err := open(t, f.URL, nil).Generate(t.Context(), call("a"))
			if test.want == nil && (err != nil || len(res.IDs) != 3) {
				t.Fatalf("got %+v, %v", res, err)
			}
			if test.want != nil && (err == nil || !test.want(err)) {
				t.Fatalf("got error %T %v", err, err)
			}
			rids, aborts := f.seen()
			if len(rids) != test.attempts || len(aborts) != test.aborts {
				t.Errorf("attempts %v, aborts %v", rids, aborts)
			}
			for i, rid := range rids {
				if want := fmt.Sprintf("a#%02d", i); rid != want {
					t.Errorf("rid %q, want %q", rid, want)
				}
			}
		})
	}
}

// A worker that took the request, broke the connection and does not acknowledge the abort may
// still be sampling: the call must not be repeated.
func TestUnsettledAttemptIsNotRepeated(t *testing.T) {
	f := newFake(t, func(http.ResponseWriter, *http.Request, generateBody) { panic(http.ErrAbortHandler) })
	f.extra["/abort_request"] = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) }
	_, err := open(t, f.URL, nil).Generate(t.Context(), call("a"))
	var transport *TransportError
	if !errors.As(err, &transport) || !transport.Sent {
		t.Fatalf("got %v", err)
	}
	if rids, _ := f.seen(); len(rids) != 1 {
		t.Errorf("sent %v", rids)
	}
}

// Neither may one that a proxy in front of a worker gave up on.
func TestUnsettledGatewayTimeoutIsNotRepeated(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, _ generateBody) {
		http.Error(w, "slow", http.StatusGatewayTimeout)
	})
	f.extra["/abort_request"] = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) }
	_, err := open(t, f.URL, nil).Generate(t.Context(), call("a"))
	var status *StatusError
	if rids, _ := f.seen(); !errors.As(err, &status) || status.Status != http.StatusGatewayTimeout || len(rids) != 1 {
		t.Errorf("sent %v, got %v", rids, err)
	}
}

func TestRefusedIsRetriedThenTyped(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c := open(t, "http://"+l.Addr().String(), func(cfg *Config) { cfg.MaxAttempts = 3 })
	_, err = c.Generate(t.Context(), call("a"))
	var transport *TransportError
	if !errors.As(err, &transport) || transport.Sent || transport.RID != "a#02" {
		t.Fatalf("got %v", err)
	}
}

// A connection that the server closed while it was idle must not cost an attempt.
func TestStaleConnectionIsNotReused(t *testing.T) {
	f := newFake(t, echo)
	c := open(t, f.URL, func(cfg *Config) { cfg.IdleTimeout = time.Hour })
	for i := range 5 {
		res, err := c.Generate(t.Context(), call(fmt.Sprint(i)))
		if err != nil || res.Attempts != 1 {
			t.Fatalf("call %d: %+v, %v", i, res, err)
		}
		f.CloseClientConnections()
	}
}

func TestTLSAndAPIKey(t *testing.T) {
	f := &fake{t: t, generate: echo, closing: make(chan struct{}), abortee: map[string]chan struct{}{}}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Authorization"); key != "Bearer secret" {
			t.Errorf("%s came with %q", r.URL.Path, key)
		}
		f.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	c := open(t, s.URL, func(cfg *Config) {
		cfg.APIKey = "secret"
		cfg.TLS = s.Client().Transport.(*http.Transport).TLSClientConfig
	})
	for i := range 2 {
		if _, err := c.Generate(t.Context(), call(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
}

func TestManyRequests(t *testing.T) {
	const n = 2000
	f := newFake(t, echo)
	c := open(t, f.URL, func(cfg *Config) { cfg.Concurrency = 400 })
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := c.Generate(t.Context(), call(fmt.Sprint("r", i))); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if rids, _ := f.seen(); len(rids) != n {
		t.Errorf("%d attempts for %d calls", len(rids), n)
	}
}

func TestBodyIsJSON(t *testing.T) {
	in := call("ä\x01\"\xff")
	in.Prefix = [][]int32{{0, 9, 10, 99, 100, 101, 999, 1000}, {}, {123456, 2147483647, -1, -2147483648}}
	b := newBody(&in, false)
	defer b.release()
	for range 2 {
		var got generateBody
		if err := json.Unmarshal(b.forAttempt(in.RID+"#00"), &got); err != nil {
			t.Fatalf("%v: %s", err, b.buf)
		}
		want := []int32{0, 9, 10, 99, 100, 101, 999, 1000, 123456, 2147483647, -1, -2147483648}
		if !reflect.DeepEqual(got.InputIDs, want) || got.RID != strings.ToValidUTF8(in.RID, "\ufffd")+"#00" {
			t.Errorf("got %+v", got)
		}
	}
}

func BenchmarkBody32k(b *testing.B) {
	ids := make([]int32, 32768)
	for i := range ids {
		ids[i] = int32(i * 5 % 151000)
	}
	in := call("a")
	in.Prefix = [][]int32{ids}
	b.ReportAllocs()
	for b.Loop() {
		body := newBody(&in, false)
		b.SetBytes(int64(len(body.forAttempt("a#00"))))
		body.release()
	}
}
