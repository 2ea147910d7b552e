package relax

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// openIdle opens an engine with one Session whose agent only sleeps, so that the test can make
// the Session's requests itself. alter comes after the defaults.
func openIdle(t *testing.T, alter func(*Config)) (*Engine, *session) {
	t.Helper()
	cfg := testConfig(t)
	cfg.AgentCommand, cfg.AgentEnv = "exec sleep 1000", nil
	if alter != nil {
		alter(&cfg)
	}
	e := openEngine(t, cfg)
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	return e, onlySession(t, e)
}

func onlySession(t testing.TB, e *Engine) *session {
	t.Helper()
	e.core.sessionsMu.Lock()
	defer e.core.sessionsMu.Unlock()
	for _, s := range e.core.sessions {
		return s
	}
	t.Fatal("no session")
	return nil
}

// An answer is a Chat Completions answer, as far as tests look at it.
type answer struct {
	status  int
	Choices []struct {
		Message      chatMessage
		FinishReason string `json:"finish_reason"`
	}
	Usage struct {
		CompletionTokens int `json:"completion_tokens"`
	}
	Error struct{ Code, Message string }
}

// post makes one Chat Completions request for a Session; it may run in any goroutine.
func post(t *testing.T, e *Engine, s *session, body map[string]any) answer {
	t.Helper()
	var out answer
	if _, given := body["messages"]; !given {
		body["messages"] = []chatMessage{{"role": "user", "content": "Hello"}}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Error(err)
		return out
	}
	req, err := http.NewRequest(http.MethodPost, e.BaseURL()+"v1/chat/completions", bytes.NewReader(raw))
	if err != nil {
		t.Error(err)
		return out
	}
	req.Header.Set("Authorization", "Bearer "+s.id)
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return out
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Errorf("answer %q: %v", text, err)
	}
	out.status = resp.StatusCode
	return out
}

func TestBackendFailureIsAnsweredAndTheSessionLivesOn(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, func(c *Config) { // the client itself repeats a 500 once
		c.Simulator = json.RawMessage(`{"faults": [{"count": 2, "fault": {"status": 500, "body": "out of luck"}}]}`)
	})
	if a := post(t, e, s, map[string]any{}); a.status != 500 || !strings.Contains(a.Error.Message, "out of luck") {
		t.Errorf("answer %+v, want a 500 with the backend's text", a)
	}
	if text := s.explain("x"); !strings.Contains(text, "out of luck") {
		t.Errorf("a later drop would say %q, without the backend's text", text)
	}
	if a := post(t, e, s, map[string]any{}); a.status != 200 {
		t.Errorf("retry: %+v", a)
	}
}

func TestContextLimits(t *testing.T) {
	long := []chatMessage{{"role": "user", "content": strings.Repeat("long ", 100)}}
	for _, tt := range []struct {
		name  string
		alter func(*Config)
	}{
		{"ours", func(c *Config) { c.RolloutMaxContextLen = 200 }},
		{"the backend's", func(c *Config) { c.Simulator = json.RawMessage(`{"context_len": 200}`); c.RolloutMaxResponseLen = 8 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, s := openIdle(t, tt.alter)
			if a := post(t, e, s, map[string]any{"messages": long}); a.status != 400 || a.Error.Code != "context_length_exceeded" {
				t.Errorf("too long a prompt: %+v", a)
			}
			a := post(t, e, s, map[string]any{"max_tokens": 2})
			if a.status != 200 || a.Usage.CompletionTokens != 2 || a.Choices[0].FinishReason != "length" {
				t.Errorf("max_tokens 2: %+v", a)
			}
		})
	}
}

func TestTurnsEnd(t *testing.T) {
	c := &core{isStop: map[int32]bool{9: true}}
	for _, tt := range []struct {
		name            string
		ids             []int32
		finish          string
		done, truncated bool
	}{
		{"stop", []int32{1}, "stop", true, false},
		{"stop string that uses the budget up", []int32{1, 2, 3}, "stop", true, false},
		{"nothing said", nil, "stop", true, false},
		{"length", []int32{1, 2, 3}, "length", true, true},
		{"length before the budget", []int32{1}, "length", true, true},
		{"length on a stop token", []int32{1, 2, 9}, "length", true, false},
		{"abort", []int32{1}, "abort", false, false},
		{"abort before the first token", nil, "abort", false, false},
		{"abort at the budget", []int32{1, 2, 3}, "abort", true, true},
		{"abort on a stop token", []int32{9}, "abort", true, false},
		{"another finish", []int32{1}, "other", true, false},
	} {
		turn := &turn{session: &session{core: c}, ids: tt.ids, budget: 3}
		if done := turn.done(tt.finish); done != tt.done || turn.truncated != tt.truncated {
			t.Errorf("%s: done %v, truncated %v; want %v, %v", tt.name, done, turn.truncated, tt.done, tt.truncated)
		}
	}
}

// Acceptance 19.
func TestAbortsNobodyHereAskedForAreContinued(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	e := openEngine(t, cfg)
	attempt := 0
	e.core.simulator.SetFault(func(*sglangtest.GenerateRequest) *sglangtest.Fault {
		attempt++ // guarded by the simulator
		switch attempt {
		case 1, 3:
			return &sglangtest.Fault{AbortAfter: 1} // the shortest reply has 4 tokens
		case 2:
			return &sglangtest.Fault{AbortAfter: -1}
		}
		return nil
	})
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, nil)
	if got := View[int32](r.batch, "aborts")[0]; got != 3 {
		t.Errorf("aborts = %d, want 3", got)
	}
	checkTokens(t, e, r.batch) // the logprobs hold only if the pieces follow each other
	requests := e.core.simulator.Requests()
	if len(requests) != 4 {
		t.Fatalf("%d attempts, want 4", len(requests))
	}
	for i, record := range requests {
		if want := View[int32](r.batch, "prompt_len")[0] + int32([]int{0, 1, 1, 2}[i]); int(want) != len(record.Request.InputIDs) {
			t.Errorf("attempt %d had %d ids, want %d", i, len(record.Request.InputIDs), want)
		}
	}
}

// scripted is a backend whose calls the test answers.
type scripted struct {
	generate func(ctx context.Context, call sglang.Call) (sglang.Result, error)
	abort    func(rids []string) // nil: aborts do nothing
}

func (s *scripted) Generate(ctx context.Context, call sglang.Call) (sglang.Result, error) {
	call.Placed("http://scripted")
	return s.generate(ctx, call)
}

func (s *scripted) AbortAll(_ context.Context, rids []string, _ func(string)) error {
	if s.abort != nil {
		s.abort(rids)
	}
	return nil
}

func (s *scripted) CloseSession(string) {}

func (s *scripted) Close() {}

// script replaces the engine's backend before the first request.
func script(e *Engine, s *scripted) {
	e.core.backend.Close()
	e.core.backend = s
}

func TestPanicInARequestPoisonsAndIsAnswered(t *testing.T) {
	for _, tt := range []struct {
		name  string
		alter func(e *Engine, s *session)
	}{
		{"at the backend", func(e *Engine, _ *session) {
			script(e, &scripted{
				generate: func(context.Context, sglang.Call) (sglang.Result, error) { panic("boom") },
			})
		}},
		{"with the session's lock held", func(_ *Engine, s *session) { s.mu.Lock(); s.forest = nil; s.mu.Unlock() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, s := openIdle(t, nil)
			tt.alter(e, s)
			if a := post(t, e, s, map[string]any{}); a.status != 500 {
				t.Errorf("answer %+v, want 500", a)
			}
			if err := e.Submit(nil); !errors.Is(err, ErrPanic) {
				t.Errorf("submit: %v, want ErrPanic", err)
			}
			if err := e.Pause(context.Background()); !errors.Is(err, ErrPanic) {
				t.Errorf("pause: %v, want ErrPanic", err)
			}
			if s.liveRequests() != 0 {
				t.Error("the request is still counted")
			}
		})
	}
}

func TestExplicitRecordsThatDoNotFit(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, nil)
	a := post(t, e, s, map[string]any{})
	if a.status != 200 {
		t.Fatalf("%+v", a)
	}
	said, err := json.Marshal([]chatMessage{{"role": "user", "content": "Hello"}, a.Choices[0].Message})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, output, text string }{
		{"it fits", `{"name":"main","messages":%s,"reward":1}`, ""},
		{"implicit", `{"metadata":null}`, ""},
		{"other tools", `{"name":"main","messages":%s,"tools":[{"type":"function","function":{"name":"f"}}]}`, `record 1 "main"`},
		{"other arguments", `{"name":"main","messages":%s,"chat_template_kwargs":{"enable_thinking":false}}`, `record 1 "main"`},
		{"no answer yet", `{"name":"main","messages":[{"role":"user","content":"Hello"}]}`, `record 1 "main"`},
		{"two records", `{"name":"main","messages":%[1]s}` + "\n" + `{"name":"side","messages":%[1]s}`, "2 records"},
		{"a reward without its key", `{"name":"main","messages":%s,"reward":{"other":1}}`, "reward"},
	} {
		text := tt.output
		if strings.Contains(text, "%") {
			text = fmt.Sprintf(tt.output, said)
		}
		output, err := agent.ParseOutput("session_output.json", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		out, err := s.exports(output)
		if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: err = %v, want %q", tt.name, err, tt.text)
		}
		if err == nil && (len(out) != 1 || out[0].lineage.Turns != 1 || out[0].metadata == nil) {
			t.Errorf("%s: %+v", tt.name, out)
		}
	}
}

func TestMetadataIsLaidOverTheTasks(t *testing.T) {
	for _, tt := range []struct{ dataset, agents, want string }{
		{``, ``, `{}`},
		{`null`, `null`, `{}`},
		{`{"a":1,"b":2}`, `{"b":3,"c":{}}`, `{"a":1,"b":3,"c":{}}`},
		{`{"a":1}`, `null`, `{"a":1}`},
	} {
		merged, err := mergeMetadata(json.RawMessage(tt.dataset), json.RawMessage(tt.agents))
		if err != nil {
			t.Errorf("%s: %v", tt.dataset, err)
		}
		if raw, _ := json.Marshal(merged); string(raw) != tt.want {
			t.Errorf("%s + %s = %s, want %s", tt.dataset, tt.agents, raw, tt.want)
		}
	}
	if _, err := mergeMetadata(json.RawMessage(`{}`), json.RawMessage(`[1]`)); err == nil || !strings.Contains(err.Error(), "metadata") {
		t.Errorf("a list: %v", err)
	}
}

func TestRequestsOfAnEndedSessionAreRefused(t *testing.T) {
	t.Parallel()
	_, s := openIdle(t, nil)
	s.kill("")
	_, fault := s.Complete(context.Background(), &canon.Request{})
	if fault == nil || fault.Code != "session_discarded" {
		t.Errorf("fault = %v, want session_discarded", fault)
	}
}

func TestSystemMessagesOption(t *testing.T) {
	body := map[string]any{"messages": []map[string]string{
		{"role": "system", "content": "one"}, {"role": "user", "content": "u"},
		{"role": "system", "content": "two"}, {"role": "user", "content": "v"},
	}}
	for option, want := range map[string]string{
		"keep":  "<|im_start|>system\none<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>system\ntwo<|im_end|>\n<|im_start|>user\nv",
		"hoist": "<|im_start|>system\none\n\ntwo<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>user\nv",
	} {
		t.Run(option, func(t *testing.T) {
			e, s := openIdle(t, func(c *Config) { c.SystemMessages = option })
			if a := post(t, e, s, body); a.status != 200 {
				t.Fatalf("status %d: %+v", a.status, a.Error)
			}
			s.mu.Lock()
			node, err := s.forest.Implicit()
			s.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			var ids []int32
			for _, piece := range s.forest.Row(node).Pieces {
				ids = append(ids, piece.Tokens...)
			}
			text, err := e.core.format.Tokenizer().Decode(ids)
			if err != nil || !strings.HasPrefix(text, want) {
				t.Errorf("the row begins %q, want %q (%v)", text, want, err)
			}
		})
	}
}

func TestOpenWarnsOfAParserThatReadsNothing(t *testing.T) {
	cfg := testConfig(t)
	cfg.ToolCallParser = "mistral"
	e := openEngine(t, cfg)
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	ev, err := e.Poll(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if ev.Kind != EventLog || !strings.Contains(string(ev.Data), "does not read the calls") ||
		!strings.Contains(string(ev.Data), "qwen") {
		t.Errorf("the first event is %d %s, want a warning that names a parser which fits", ev.Kind, ev.Data)
	}
}

// Cases 1.E E1, E3, E8: a conversation that leaves no room for a turn is refused and leaves
// nothing behind, so that an agent which stops there still exports its last turn.
func TestAConversationThatIsTooLongLeavesNothing(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, func(c *Config) { c.RolloutMaxContextLen = 200 })
	first := post(t, e, s, map[string]any{"max_tokens": 2})
	if first.status != 200 {
		t.Fatalf("the first turn: %+v", first)
	}
	exported := func() (node *forest.Node, stats forest.Stats) {
		s.mu.Lock()
		defer s.mu.Unlock()
		node, err := s.forest.Implicit()
		if err != nil {
			t.Fatal(err)
		}
		return node, s.forest.Stats()
	}
	node, before := exported()
	history := []chatMessage{{"role": "user", "content": "Hello"}, first.Choices[0].Message}
	ask := func(n int) answer {
		return post(t, e, s, map[string]any{"messages": append(slices.Clip(history), chatMessage{"role": "user", "content": strings.Repeat("x", n)})})
	}
	count, fault := s.CountTokens(context.Background(), &canon.Request{Kwargs: canon.ObjectOf(), Messages: []*canon.Message{
		canon.NewMessage(canon.Message{Role: canon.User, Content: "Hello"}),
		canon.NewMessage(canon.Message{Role: canon.Assistant, Content: fmt.Sprint(first.Choices[0].Message["content"])}),
		canon.NewMessage(canon.Message{Role: canon.User, Content: "x"}),
	}})
	if fault != nil {
		t.Fatal(fault)
	}
	exact := 200 - count + 1 // a byte is a token
	for _, n := range []int{500, exact} {
		if a := ask(n); a.status != 400 || a.Error.Code != "context_length_exceeded" {
			t.Errorf("%d bytes: %+v", n, a)
		}
	}
	if again, after := exported(); again != node || after != before {
		t.Errorf("a refused request left %+v and exports node %d, it was %+v and %d", after, again.ID(), before, node.ID())
	}
	if a := ask(exact - 1); a.status != 200 || a.Usage.CompletionTokens != 1 { // E2: clamped to what is left
		t.Errorf("a prompt that leaves one token: %+v", a)
	}
}
