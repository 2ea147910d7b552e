package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

const hi = `"messages":[{"role":"user","content":"hi"}]`

// canonicalText is the messages as one canonical JSON line.
func canonicalText(messages []*canon.Message) string {
	var lines []string
	for _, m := range messages {
		lines = append(lines, string(m.AppendCanonical(nil)))
	}
	return strings.Join(lines, "\n")
}

func TestChatSettings(t *testing.T) {
	body := `{"model":"m",` + hi + `,"max_tokens":5,"max_completion_tokens":7,"stop":"x","seed":-3,"logprobs":true,"stream":true,
		"temperature":0.5,"top_p":1,"n":2,"user":null,"stream_options":{},"top_p":0.9,
		"chat_template_kwargs":{"z":1,"a":{"d":1,"c":2}},
		"tools":[{"type":"function","function":{"parameters":{"b":1,"a":2},"strict":true,"name":"f","description":"d"}},
			{"type":"web_search"},{"function":{"name":"g"}},{"type":"function","function":{"name":"h","description":null}}]}`
	req, e := Chat.Parse([]byte("\xef\xbb\xbf"+body), nil)
	if e != nil {
		t.Fatal(e)
	}
	if req.Model != "m" || req.MaxTokens != 7 || !reflect.DeepEqual(req.Stop, []string{"x"}) || *req.Seed != -3 || !req.Logprobs || !req.Stream {
		t.Errorf("got %+v", req)
	}
	if want := []string{"n", "stream_options", "temperature", "tools.untyped", "tools.web_search", "top_p"}; !reflect.DeepEqual(req.Ignored, want) {
		t.Errorf("ignored %v, want %v", req.Ignored, want)
	}
	if got := string(req.Kwargs.AppendCompact(nil)); got != `{"a":{"c":2,"d":1},"z":1}` {
		t.Errorf("kwargs %s", got)
	}
	if len(req.Tools) != 2 || req.Tools[0].Name != "f" || *req.Tools[0].Description != "d" || req.Tools[1].Description != nil {
		t.Fatalf("tools %+v", req.Tools)
	}
	if got := string(req.Tools[0].Value().AppendTemplate(nil)); got !=
		`{"type": "function", "function": {"parameters": {"b": 1, "a": 2}, "strict": true, "name": "f", "description": "d"}}` {
		t.Errorf("tool prints as %s", got)
	}
	if !req.Tools[1].Parameters.IsNull() {
		t.Errorf("missing parameters became %v", req.Tools[1].Parameters)
	}

	plain, e := Chat.Parse([]byte(`{`+hi+`,"max_tokens":99999999999999999999,"stop":["a","b"],"stream":false,"chat_template_kwargs":[],"model":3,"tools":null,"seed":null}`), nil)
	if e != nil {
		t.Fatal(e)
	}
	if plain.MaxTokens != math.MaxInt || len(plain.Stop) != 2 || plain.Stream || plain.Logprobs || plain.Seed != nil || len(plain.Tools) != 0 {
		t.Errorf("got %+v", plain)
	}
	if plain.Kwargs.Kind() != canon.Object || !reflect.DeepEqual(plain.Ignored, []string{"model"}) {
		t.Errorf("kwargs %v, ignored %v", plain.Kwargs, plain.Ignored)
	}
}

func TestChatKeepsNothingOfTheBody(t *testing.T) {
	body := []byte(`{"model":"model","messages":[{"role":"user","content":"some text"}],"stop":"stop","unknown":1,
		"tools":[{"type":"function","function":{"name":"name","description":"about","parameters":{"k":"v"}}}],"chat_template_kwargs":{"key":"value"}}`)
	for _, cache := range []*canon.Cache{nil, canon.NewCache(0)} {
		b := append([]byte(nil), body...)
		req, e := Chat.Parse(b, cache)
		if e != nil {
			t.Fatal(e)
		}
		before := fmt.Sprintf("%s %v %s %s", canonicalText(req.Messages), req.Stop, req.Tools[0].AppendCanonical(nil), req.Kwargs.AppendCompact(nil)) + req.Model + req.Ignored[0]
		for i := range b {
			b[i] = 'X'
		}
		after := fmt.Sprintf("%s %v %s %s", canonicalText(req.Messages), req.Stop, req.Tools[0].AppendCanonical(nil), req.Kwargs.AppendCompact(nil)) + req.Model + req.Ignored[0]
		if before != after {
			t.Errorf("reusing the body's buffer changed the request to %s", after)
		}
	}
}

func TestChatReplaySharesMessages(t *testing.T) {
	cache := canon.NewCache(0)
	first, _ := Chat.Parse([]byte(`{"messages":[{"role":"system","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"u"}]}`), cache)
	second, _ := Chat.Parse([]byte(`{"messages":[{"role":"system","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"u"},{"role":"assistant","content":"x"}]}`), cache)
	for i, m := range first.Messages {
		if m != second.Messages[i] {
			t.Errorf("message %d was built again", i)
		}
	}
}

func TestParseRecord(t *testing.T) {
	req, err := ParseRecord([]byte(` [{"role":"user","content":"u"},{"role":"assistant","content":"a"}] `), []byte(` null`), []byte(`{"b":1,"a":2}`))
	if err != nil || len(req.Messages) != 2 || string(req.Kwargs.AppendCompact(nil)) != `{"a":2,"b":1}` {
		t.Fatalf("got %+v, %v", req, err)
	}
	if req, err := ParseRecord([]byte(`[{"role":"user","content":"u"}]`), nil, nil); err != nil || req.Kwargs.Kind() != canon.Object {
		t.Errorf("got %+v, %v", req, err)
	}
	for _, tt := range [][4]string{
		{`[{"role":"user","content":""}]`, ``, ``, "messages[0].content"},
		{`[]`, ``, ``, "messages hold no message"},
		{`[{"role":"user","content":"u"}]`, `[1]`, ``, "tools[0]"},
		{`[{"role":"user","content":"u"}]`, ``, `[1]`, "chat_template_kwargs"},
		{`[{"role":"user","content":"u"}]`, ``, `{`, "chat_template_kwargs"},
		{`{`, ``, ``, "messages"},
	} {
		if _, err := ParseRecord([]byte(tt[0]), []byte(tt[1]), []byte(tt[2])); err == nil || !strings.HasPrefix(err.Error(), tt[3]) {
			t.Errorf("%v: got %v", tt, err)
		}
	}
}

func sample() *Completion {
	return &Completion{
		ID: "1", Created: 17, Model: "m<&>\u2028", FinishReason: FinishToolCalls,
		PromptTokens: 10, CompletionTokens: 3, CachedTokens: 4,
		Message: canon.NewMessage(canon.Message{Role: canon.Assistant, Reasoning: "thi\u2028nk", Content: "a\n\u0085\u2029é",
			ToolCalls: []canon.ToolCall{{ID: "c0", Name: "f", Arguments: `{"a":1}`}, {ID: "c1", Name: "g", Arguments: `{}`}}}),
		Logprobs: []TokenLogprob{{"a\n", -0.25}, {"é", float32(math.Inf(-1))}},
	}
}

// Cases R1, R2 and R8.
func TestAppendChat(t *testing.T) {
	got := string(Chat.AppendAnswer(nil, sample()))
	want := `{"id":"chatcmpl_1","object":"chat.completion","created":17,"model":"m<&>` + "\u2028" + `","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"a\n` + "\u0085\u2029" + `é","reasoning_content":"thi` + "\u2028" + `nk","tool_calls":[` +
		`{"id":"c0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},` +
		`{"id":"c1","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
		`"logprobs":{"content":[{"token":"a\n","logprob":-0.25,"bytes":[97,10],"top_logprobs":[]},` +
		`{"token":"é","logprob":-9999,"bytes":[195,169],"top_logprobs":[]}]},"finish_reason":"tool_calls"}],` +
		`"usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4}}}`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	plain := &Completion{ID: "i", FinishReason: FinishStop, Message: canon.NewMessage(canon.Message{Role: canon.Assistant})}
	if got := string(Chat.AppendAnswer(nil, plain)); !strings.Contains(got, `"model":null`) ||
		!strings.Contains(got, `"message":{"role":"assistant","content":""},"logprobs":null,"finish_reason":"stop"`) {
		t.Errorf("got %s", got)
	}
}

// Case SSE1, in two chunks (settled: the SDKs' accumulators need the finish reason after the calls).
func TestAppendChatStream(t *testing.T) {
	got := string(Chat.AppendStream(nil, sample()))
	if strings.ContainsAny(got, "\u0085\u2028\u2029") {
		t.Error("the frame holds characters some clients take for line ends")
	}
	frames := strings.Split(got, "\n\n")
	if len(frames) != 4 || frames[2] != "data: [DONE]" || frames[3] != "" {
		t.Fatalf("frames %q", frames)
	}
	type chunk struct {
		Object  string
		Choices []struct {
			Delta struct {
				Role, Content, Reasoning_content string
				Tool_calls                       []struct {
					Index *int
					ID    string
				}
			}
			Finish_reason string
		}
		Usage *struct{ Total_tokens int }
	}
	var first, last chunk
	for i, into := range []*chunk{&first, &last} {
		if err := json.Unmarshal([]byte(strings.TrimPrefix(frames[i], "data: ")), into); err != nil {
			t.Fatal(err)
		}
	}
	end := last.Choices[0]
	if last.Object != first.Object || last.Usage == nil || last.Usage.Total_tokens != 13 || end.Finish_reason != "tool_calls" ||
		end.Delta.Role != "" || len(end.Delta.Tool_calls) != 0 {
		t.Errorf("the last chunk is %+v", last)
	}
	c := first.Choices[0]
	if first.Object != "chat.completion.chunk" || first.Usage != nil || c.Finish_reason != "" || c.Delta.Content != "a\n\u0085\u2029é" || c.Delta.Reasoning_content != "thi\u2028nk" ||
		len(c.Delta.Tool_calls) != 2 || *c.Delta.Tool_calls[1].Index != 1 {
		t.Errorf("the first chunk is %+v", first)
	}
}

// The envelope of section 1.D, and case SSE2.
func TestErrors(t *testing.T) {
	tests := []struct {
		e       *Error
		status  int
		noRetry bool
		want    string
	}{
		{Invalid("stop", "bad %q", "x"), 400, false, `{"error":{"message":"bad \"x\"","type":"invalid_request_error","param":"stop","code":"invalid_request_error"}}`},
		{Unauthorized("no header"), 401, false, `{"error":{"message":"no header","type":"authentication_error","param":null,"code":"authentication_error"}}`},
		{Internal("boom"), 500, true, `{"error":{"message":"boom","type":"internal_error","param":null,"code":"internal_error"}}`},
		{Unavailable("busy", "later"), 503, false, `{"error":{"message":"later","type":"service_unavailable_error","param":null,"code":"busy"}}`},
	}
	for _, tt := range tests {
		if got := string(Chat.AppendError(nil, tt.e)); got != tt.want {
			t.Errorf("\n got %s\nwant %s", got, tt.want)
		}
		if tt.e.Status != tt.status || (tt.e.Retry != nil) != tt.noRetry || tt.noRetry && *tt.e.Retry {
			t.Errorf("%v: status or retry wrong: %+v", tt.e, tt.e)
		}
	}
	if e := ContextLength(4096, 5000); e.Code != "context_length_exceeded" || e.Param != "messages" || e.Status != 400 ||
		!strings.Contains(e.Message, "maximum context length is 4096 tokens") {
		t.Errorf("got %+v", e)
	}
	if e := SessionDiscarded(); e.Status != 404 || e.Code != "session_discarded" || e.Type != "not_found_error" || e.Param != "session_id" || e.Retry == nil || *e.Retry {
		t.Errorf("got %+v", e)
	}
	if e := BodyTooLarge(5); e.Status != 413 {
		t.Errorf("got %+v", e)
	}
	if e := Disconnected(); e.Status != 499 || e.Code != "client_disconnect" || e.Type != "client_disconnect" {
		t.Errorf("got %+v", e)
	}
	if got := string(Chat.AppendStreamError(nil, Internal("x"))); got !=
		"data: {\"error\":{\"message\":\"x\",\"type\":\"internal_error\",\"param\":null,\"code\":\"internal_error\"}}\n\ndata: [DONE]\n\n" {
		t.Errorf("got %q", got)
	}
}

// randomText draws from pieces that are awkward in JSON, UTF-8 and SSE.
func randomText(r *rand.Rand) string {
	pieces := []string{"a", " ", "\n", "\"", "\\", "\t", "\x00", "\x1f", "\x7f", "é", "中", "😀", "\u2028", "\u0085", "<|im_end|>", "{\"a\":1}", "\xff", "\uFFFD", "data: "}
	var b strings.Builder
	for range r.IntN(6) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

func randomMessage(r *rand.Rand) *canon.Message {
	m := canon.Message{Role: canon.Assistant, Content: randomText(r), Reasoning: randomText(r)}
	for i := range r.IntN(3) {
		arguments, err := canon.CanonicalArguments(canon.ObjectOf(
			canon.Member{Key: "z", Value: canon.FloatValue(float64(r.IntN(4)) / 2)},
			canon.Member{Key: "a", Value: canon.StringValue(validText(randomText(r)))}))
		if err != nil {
			panic(err)
		}
		m.ToolCalls = append(m.ToolCalls, canon.ToolCall{ID: fmt.Sprint("call_", i), Name: "f", Arguments: arguments})
	}
	return canon.NewMessage(m)
}

// replay sends an object back as the second message of a request.
func replay(t *testing.T, message map[string]any) *canon.Message {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"messages": []any{map[string]any{"role": "user", "content": "u"}, message}})
	if err != nil {
		t.Fatal(err)
	}
	req, e := Chat.Parse(raw, canon.NewCache(0))
	if e != nil {
		t.Fatalf("%s: %v", raw, e)
	}
	return req.Messages[1]
}

// What we answer, sent back as the SDKs dump it, must be the same message.
func TestChatRoundTrip(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := randomMessage(r)
		c := &Completion{ID: "x", Message: m, FinishReason: FinishStop}

		var answer struct {
			Choices []struct{ Message map[string]any }
		}
		if err := json.Unmarshal(Chat.AppendAnswer(nil, c), &answer); err != nil {
			t.Fatal(err)
		}
		dumped := answer.Choices[0].Message
		for _, key := range []string{"refusal", "annotations", "audio", "function_call", "tool_calls"} {
			if _, ok := dumped[key]; !ok {
				dumped[key] = nil
			}
		}
		if got := replay(t, dumped); !got.Equal(m) {
			t.Fatalf("seed %d: sent %s\ngot back %s", seed, m.AppendCanonical(nil), got.AppendCanonical(nil))
		}
		if m.Content == "" {
			dumped["content"] = nil
			if got := replay(t, dumped); !got.Equal(m) {
				t.Fatalf("seed %d: null content is another message", seed)
			}
		}

		var chunk struct {
			Choices []struct{ Delta map[string]any }
		}
		data, _, _ := strings.Cut(strings.TrimPrefix(string(Chat.AppendStream(nil, c)), "data: "), "\n\n")
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatal(err)
		}
		if got := replay(t, chunk.Choices[0].Delta); !got.Equal(m) {
			t.Fatalf("seed %d: the stream's delta came back as %s", seed, got.AppendCanonical(nil))
		}
	}
}
