package sglangtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client keeps no connection, so that nothing is left behind for goleak.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// longAgo bounds waits for things that must happen; it is never slept away.
const patience = 20 * time.Second

func start(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.DisconnectCheck == 0 {
		cfg.DisconnectCheck = 5 * time.Millisecond
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func policyOf(t testing.TB, document string) *Policy {
	t.Helper()
	p, err := ParsePolicy([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// answer is a reply of /generate as a client sees it.
type answer struct {
	Status    int     `json:"-"`
	Raw       string  `json:"-"`
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	PromptIDs []int32 `json:"prompt_token_ids"`
	Meta      struct {
		ID            string          `json:"id"`
		Finish        json.RawMessage `json:"finish_reason"`
		PromptTokens  *int            `json:"prompt_tokens"`
		Completion    int             `json:"completion_tokens"`
		Cached        int             `json:"cached_tokens"`
		Retractions   *int            `json:"num_retractions"`
		WeightVersion string          `json:"weight_version"`
		Latency       *float64        `json:"e2e_latency"`
		Logprobs      [][3]any        `json:"output_token_logprobs"`
		LogprobsLen   int             `json:"output_token_logprobs_length"`
		InputLogprobs []any           `json:"input_token_logprobs"`
	} `json:"meta_info"`
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
	Message string `json:"message"`
}

func (a *answer) logprob(i int) float32 { return float32(a.Meta.Logprobs[i][0].(float64)) }

func (a *answer) finish(t testing.TB) map[string]any {
	t.Helper()
	var f map[string]any
	if err := json.Unmarshal(a.Meta.Finish, &f); err != nil {
		t.Fatalf("finish_reason %s: %v", a.Meta.Finish, err)
	}
	return f
}

type fields = map[string]any

func send(ctx context.Context, method, url string, body any) (int, []byte, error) {
	var raw []byte
	switch b := body.(type) {
	case nil:
	case string:
		raw = []byte(b)
	default:
		var err error
		if raw, err = json.Marshal(b); err != nil {
			return 0, nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, out, err
}

func call(t testing.TB, method, url string, body any) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, out, err := send(ctx, method, url, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return status, string(out)
}

func generate(t testing.TB, s *Server, body any) *answer {
	t.Helper()
	a, err := tryGenerate(t, s.URL(), body)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func tryGenerate(t testing.TB, url string, body any) (*answer, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, raw, err := send(ctx, "POST", url+"/generate", body)
	if err != nil {
		return nil, err
	}
	a := &answer{Status: status, Raw: string(raw)}
	if err := json.Unmarshal(raw, a); err != nil && status == 200 {
		return nil, fmt.Errorf("%s: %w", raw, err)
	}
	return a, nil
}

// background runs a generate whose answer comes later.
func background(t testing.TB, s *Server, body any) <-chan *answer {
	t.Helper()
	done := make(chan *answer, 1)
	go func() {
		a, err := tryGenerate(t, s.URL(), body)
		if err != nil {
			t.Errorf("generate: %v", err)
			a = &answer{}
		}
		done <- a
	}()
	return done
}

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("waited too long")
		panic("unreachable")
	}
}

// await waits until a condition on the server holds.
func await(t testing.TB, s *Server, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// tokensOf is how many tokens a request in flight has.
func tokensOf(s *Server, rid string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byRID[rid]; r != nil {
		return int(r.produced.Load())
	}
	return -1
}

func isRunning(s *Server, rid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byRID[rid] != nil && s.byRID[rid].running
}

// chunks reads an event stream.
func chunks(t testing.TB, raw string) (out []*answer, done bool) {
	t.Helper()
	scanner := bufio.NewScanner(strings.NewReader(raw))
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		line := scanner.Text()
		if line == "" {
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			t.Fatalf("line %q has no data prefix", line)
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		a := &answer{Raw: data}
		if err := json.Unmarshal([]byte(data), a); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		out = append(out, a)
	}
	return out, done
}

// prompt is a ChatML prompt with a generation prompt, in tokens.
func prompt(t testing.TB, s *Server, user string) []int32 {
	t.Helper()
	return tokens(t, s.Model(), "<|im_start|>user\n"+user+"<|im_end|>\n<|im_start|>assistant\n")
}

func tokens(t testing.TB, m *Model, text string) []int32 {
	t.Helper()
	ids, err := m.markup(text)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func asRefusal(err error, into **refusal) bool {
	r, ok := err.(*refusal)
	*into = r
	return ok
}
