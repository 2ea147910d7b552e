package sglang

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generateBody is what the fake reads of a request.
type generateBody struct {
	InputIDs []int32        `json:"input_ids"`
	Sampling map[string]any `json:"sampling_params"`
	RID      string         `json:"rid"`
	Logprob  bool           `json:"return_logprob"`
	Stream   bool           `json:"stream"`
	Session  string         `json:"session_id"`
}

// A fake is one SGLang server; generate answers its requests.
type fake struct {
	*httptest.Server
	t        *testing.T
	generate func(w http.ResponseWriter, r *http.Request, body generateBody)
	closing  chan struct{}

	mu      sync.Mutex
	rids    []string
	keys    []string
	aborts  []string
	abortee map[string]chan struct{}
	closed  []string
	extra   map[string]http.HandlerFunc // more routes
}

func newFake(t *testing.T, generate func(w http.ResponseWriter, r *http.Request, body generateBody)) *fake {
	t.Helper()
	f := &fake{t: t, generate: generate, closing: make(chan struct{}), abortee: map[string]chan struct{}{}, extra: map[string]http.HandlerFunc{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		close(f.closing)
		f.Server.CloseClientConnections()
		f.Server.Close()
	})
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := f.extra[r.URL.Path]; h != nil {
		h(w, r)
		return
	}
	switch r.URL.Path {
	case "/model_info":
		fmt.Fprint(w, `{"model_path":"/models/m","weight_version":"7"}`)
	case "/abort_request":
		var body struct{ RID string }
		json.NewDecoder(r.Body).Decode(&body)
		f.mu.Lock()
		f.aborts = append(f.aborts, body.RID)
		for rid, ch := range f.abortee {
			if strings.HasPrefix(rid, body.RID) {
				close(ch)
				delete(f.abortee, rid)
			}
		}
		f.mu.Unlock()
	case "/close_session":
		var body struct {
			ID string `json:"session_id"`
		}
		json.NewDecoder(r.Body).Decode(&body)
		f.mu.Lock()
		f.closed = append(f.closed, body.ID)
		f.mu.Unlock()
	case "/v1/loads":
		fmt.Fprint(w, `{"loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":1,"num_used_tokens":10,"max_total_num_tokens":100},{"num_running_reqs":2}]}`)
	case "/generate":
		var body generateBody
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, `{"error":{"message":"bad json"}}`, 400)
			return
		}
		f.mu.Lock()
		f.rids = append(f.rids, body.RID)
		f.keys = append(f.keys, r.Header.Get(routingHeader))
		f.mu.Unlock()
		f.generate(w, r, body)
	default:
		http.NotFound(w, r)
	}
}

// untilAbort waits for an abort of rid; it is false if the client left instead.
func (f *fake) untilAbort(r *http.Request, rid string) bool {
	f.mu.Lock()
	ch := make(chan struct{})
	f.abortee[rid] = ch
	f.mu.Unlock()
	select {
	case <-ch:
		return true
	case <-r.Context().Done():
	case <-f.closing:
	}
	return false
}

func (f *fake) seen() (rids, aborts []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.rids...), append([]string(nil), f.aborts...)
}

// answer writes a healthy reply with the ids.
func answer(w http.ResponseWriter, body generateBody, finish string, ids ...int32) {
	pairs := make([][]any, len(ids))
	for i, id := range ids {
		pairs[i] = []any{-0.5 - float64(i), id, nil}
	}
	if ids == nil {
		ids = []int32{}
	}
	json.NewEncoder(w).Encode(map[string]any{
		"text":       "ignored \"]}",
		"output_ids": ids,
		"meta_info": map[string]any{
			"id": body.RID, "finish_reason": json.RawMessage(finish), "prompt_tokens": len(body.InputIDs),
			"cached_tokens": 2, "completion_tokens": len(ids), "weight_version": "7", "output_token_logprobs": pairs,
		},
	})
}

const (
	stopFinish  = `{"type":"stop","matched":42}`
	abortFinish = `{"type":"abort","message":"Aborted","status_code":null,"err_type":null}`
)

func echo(w http.ResponseWriter, _ *http.Request, body generateBody) {
	answer(w, body, stopFinish, 5, 6, 42)
}

// open returns a client of url whose pauses between attempts take no time.
func open(t *testing.T, url string, change func(*Config)) *Client {
	t.Helper()
	cfg := Config{
		URL: url,
		Goroutines: safego.New(func(name string, v any, stack []byte) {
			t.Errorf("panic in %s: %v\n%s", name, v, stack)
		}),
		Backoff: time.Microsecond, BackoffMax: time.Microsecond, AbortEvery: 5 * time.Millisecond,
		ControlTimeout: time.Minute, ProbeTimeout: time.Minute, // a busy machine must not look like a dead worker
	}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func call(rid string) Call {
	return Call{RID: rid, Session: "session-" + rid, Prefix: [][]int32{{1, 2}, {3}}, Sampling: Sampling{Temperature: 1, TopP: 1, TopK: -1, MaxNewTokens: 16}}
}
