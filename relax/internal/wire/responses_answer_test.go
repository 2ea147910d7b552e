package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func TestCustomInput(t *testing.T) {
	for _, tt := range []struct{ arguments, input string }{
		{`{"input":"x\n"}`, "x\n"}, {`{"input":""}`, ""}, {`{"input":"{\"a\":1}"}`, `{"a":1}`},
		{`{}`, invalidInput + `{}`}, {`{"input":3}`, invalidInput + `{"input":3}`}, {`{"input":"x","y":1}`, invalidInput + `{"input":"x","y":1}`},
		{`{"input":"` + invalidInput + `{}"}`, invalidInput + `{"input":"` + invalidInput + `{}"}`},
	} {
		if got := customInput(tt.arguments); got != tt.input {
			t.Errorf("%s: got %q", tt.arguments, got)
		}
		if got := customArguments(tt.input); got != tt.arguments {
			t.Errorf("%q: got %s, want %s", tt.input, got, tt.arguments)
		}
	}
	if got := customArguments(invalidInput + `{ }`); got != `{"input":"`+invalidInput+`{ }"}` {
		t.Errorf("got %s", got)
	}
}

func responsesSample(t *testing.T) *Completion {
	req := parseResponses(t, `{"model":"m","input":"hi","max_output_tokens":9,"metadata":{"k":"v"},"tools":`+codexTools+`}`, nil)
	c := sample()
	c.Model, c.Spelling = req.Model, req.Spelling
	m := *c.Message
	m.ToolCalls = []canon.ToolCall{
		{ID: "c0", Name: "shell", Arguments: `{"a":1}`}, {ID: "c1", Name: "apply_patch", Arguments: `{"input":"p"}`},
		{ID: "c2", Name: "multi_agent_v1__spawn_agent", Arguments: `{}`}, {ID: "c3", Name: "multi_agent_v1__js", Arguments: `{"code":"x"}`},
		{ID: "c4", Name: "nobody", Arguments: `{}`}}
	c.Message = canon.NewMessage(m)
	return c
}

func TestAppendResponse(t *testing.T) {
	c := responsesSample(t)
	content := "a\\n\u0085\u2029é"
	head := func(status, details string) string {
		return `{"id":"resp_1","object":"response","created_at":17,"status":"` + status + `","background":false,"error":null,"incomplete_details":` + details +
			`,"instructions":null,"max_output_tokens":9,"metadata":{"k":"v"},"model":"m","parallel_tool_calls":true,"previous_response_id":null,` +
			`"reasoning":{"effort":null,"summary":null},"temperature":null,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":null,` +
			`"truncation":"disabled","output":[`
	}
	want := head("completed", "null") +
		`{"id":"rs_1","type":"reasoning","status":"completed","summary":[{"type":"summary_text","text":"thi` + "\u2028" + `nk"}],"content":[{"type":"reasoning_text","text":"thi` + "\u2028" + `nk"}],"encrypted_content":null},` +
		`{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"` + content + `","annotations":[],"logprobs":[]}]},` +
		`{"id":"fc_1_0","type":"function_call","status":"completed","call_id":"c0","name":"shell","arguments":"{\"a\":1}"},` +
		`{"id":"ctc_1_1","type":"custom_tool_call","status":"completed","call_id":"c1","name":"apply_patch","input":"p"},` +
		`{"id":"fc_1_2","type":"function_call","status":"completed","call_id":"c2","namespace":"multi_agent_v1","name":"spawn_agent","arguments":"{}"},` +
		`{"id":"ctc_1_3","type":"custom_tool_call","status":"completed","call_id":"c3","namespace":"multi_agent_v1","name":"js","input":"invalid call, expected one string argument named input, got {\"code\":\"x\"}"},` +
		`{"id":"fc_1_4","type":"function_call","status":"completed","call_id":"c4","name":"nobody","arguments":"{}"}],` +
		`"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":13}}`
	if got := string(Responses.AppendAnswer(nil, c)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	c.FinishReason = FinishLength
	if got := string(Responses.AppendAnswer(nil, c)); !strings.HasPrefix(got, head("incomplete", `{"reason":"max_output_tokens"}`)) {
		t.Errorf("got %s", got)
	}
	plain := &Completion{ID: "i", FinishReason: FinishStop, Message: canon.NewMessage(canon.Message{Role: canon.Assistant})}
	if got := string(Responses.AppendAnswer(nil, plain)); !strings.Contains(got, `"model":null`) || !strings.Contains(got, `"metadata":{}`) || !strings.Contains(got, `"max_output_tokens":null`) ||
		!strings.Contains(got, `"output":[{"id":"msg_i","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"","annotations":[],"logprobs":[]}]}]`) {
		t.Errorf("got %s", got)
	}
}

// A streamEvent has the members of all events that a test looks at.
type streamEvent struct {
	Type            string
	Sequence_number int
	Output_index    int
	Content_index   *int
	Item_id         string
	Delta           string
	Item, Response  map[string]any
}

// streamEvents reads a stream; names and data must agree, numbers ascend.
func streamEvents(t *testing.T, stream string) []streamEvent {
	t.Helper()
	if strings.ContainsAny(stream, "\u0085\u2028\u2029") {
		t.Error("a frame holds characters some clients take for line ends")
	}
	frames := strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n")
	events := make([]streamEvent, len(frames))
	for i, frame := range frames {
		name, data, ok := strings.Cut(frame, "\ndata: ")
		if err := json.Unmarshal([]byte(data), &events[i]); !ok || err != nil || strings.Contains(data, "\n") {
			t.Fatalf("frame %q: %v", frame, err)
		}
		if name != "event: "+events[i].Type || events[i].Sequence_number != i {
			t.Errorf("frame %d is %s, number %d in the data of %s", i, events[i].Type, events[i].Sequence_number, name)
		}
	}
	return events
}

func TestAppendResponsesStream(t *testing.T) {
	c := responsesSample(t)
	events := streamEvents(t, string(Responses.AppendStream(nil, c)))
	var names []string
	deltas := map[string]string{}
	for _, e := range events {
		names = append(names, strings.TrimPrefix(e.Type, "response."))
		if strings.HasSuffix(e.Type, ".delta") {
			deltas[e.Item_id] += e.Delta
		}
	}
	function := "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done "
	custom := "output_item.added custom_tool_call_input.delta custom_tool_call_input.done output_item.done "
	want := "created in_progress output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done " +
		"output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done " +
		function + custom + function + custom + function + "completed"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if deltas["rs_1"] != c.Message.Reasoning || deltas["msg_1"] != c.Message.Content || deltas["ctc_1_1"] != "p" || deltas["fc_1_0"] != `{"a":1}` {
		t.Errorf("deltas %q", deltas)
	}
	for _, e := range events[:2] {
		if e.Response["status"] != "in_progress" || len(e.Response["output"].([]any)) != 0 || e.Response["usage"] != nil {
			t.Errorf("got %v", e)
		}
	}
	var answer map[string]any
	if err := json.Unmarshal(Responses.AppendAnswer(nil, c), &answer); err != nil {
		t.Fatal(err)
	}
	if last := events[len(events)-1]; !reflect.DeepEqual(last.Response, answer) {
		t.Errorf("the stream ends with %v, the answer is %v", last.Response, answer)
	}
	var done []any
	for _, e := range events {
		if e.Type == "response.output_item.done" {
			if e.Output_index != len(done) {
				t.Errorf("item %d has index %d", len(done), e.Output_index)
			}
			done = append(done, e.Item)
		}
	}
	if !reflect.DeepEqual(done, answer["output"]) {
		t.Errorf("items %v, output %v", done, answer["output"])
	}
	c.FinishReason = FinishLength
	if events = streamEvents(t, string(Responses.AppendStream(nil, c))); events[len(events)-1].Type != "response.incomplete" {
		t.Errorf("got %v", events[len(events)-1])
	}
}

func TestAppendResponsesStreamError(t *testing.T) {
	events := streamEvents(t, string(Responses.AppendStreamError(nil, SessionDiscarded())))
	if len(events) != 2 || events[0].Type != "response.created" || events[1].Type != "response.failed" || events[0].Response["status"] != "in_progress" {
		t.Fatalf("got %v", events)
	}
	failed := events[1].Response
	failure, _ := failed["error"].(map[string]any)
	if failed["status"] != "failed" || failed["id"] != events[0].Response["id"] || failed["usage"] != nil || len(failed["output"].([]any)) != 0 ||
		len(failure) != 4 || failure["code"] != CodeSessionDiscarded || failure["param"] != "session_id" || failure["type"] != "not_found_error" || failure["message"] == "" {
		t.Errorf("got %v", failed)
	}
	if got := string(Responses.AppendError(nil, Internal("x"))); got != `{"error":{"message":"x","type":"internal_error","param":null,"code":"internal_error"}}` {
		t.Errorf("got %s", got)
	}
}

// randomCalls are calls of codexTools and of a tool nobody gave.
func randomCalls(r *rand.Rand) []canon.ToolCall {
	names := []string{"shell", "apply_patch", "exec", "multi_agent_v1__spawn_agent", "multi_agent_v1__js", "nobody"}
	var calls []canon.ToolCall
	for i := range r.IntN(4) {
		text := canon.StringValue(validText(randomText(r)))
		arguments := []canon.Value{
			canon.ObjectOf(canon.Member{Key: "input", Value: text}),
			canon.ObjectOf(canon.Member{Key: "input", Value: text}, canon.Member{Key: "é", Value: canon.FloatValue(0.5)}),
			canon.ObjectOf(canon.Member{Key: "input", Value: canon.StringValue(invalidInput + "{}")}),
			canon.ObjectOf(),
		}[r.IntN(4)]
		calls = append(calls, canon.ToolCall{ID: fmt.Sprint("call_", i), Name: names[r.IntN(len(names))], Arguments: string(arguments.AppendCanonical(nil))})
	}
	return calls
}

// What we answer, sent back as the SDKs do, must be the same message: the items of the answer
// and those of the stream, with the tools and without, known to the cache and not.
func TestResponsesRoundTrip(t *testing.T) {
	cache := canon.NewCache(0)
	tools := parseResponses(t, `{"input":"hi","tools":`+codexTools+`}`, cache)
	empty := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := canon.NewMessage(canon.Message{Role: canon.Assistant, Content: randomText(r), Reasoning: randomText(r), ToolCalls: randomCalls(r)})
		if m.Content == "" && m.Reasoning == "" && m.ToolCalls == nil {
			empty++
		}
		m = cache.Intern(m)
		c := &Completion{ID: "x", Message: m, FinishReason: FinishStop, Spelling: tools.Spelling}
		var answer struct{ Output []json.RawMessage }
		if err := json.Unmarshal(Responses.AppendAnswer(nil, c), &answer); err != nil {
			t.Fatal(err)
		}
		events := streamEvents(t, string(Responses.AppendStream(nil, c)))
		streamed, err := json.Marshal(events[len(events)-1].Response["output"])
		if err != nil {
			t.Fatal(err)
		}
		for _, items := range []string{string(bytes.Join(rawItems(answer.Output), []byte(","))), strings.Trim(string(streamed), "[]")} {
			for _, cache := range []*canon.Cache{nil, cache, cache} {
				items := strings.TrimSpace(items)
				req := parseResponses(t, `{"input":[`+userHi+`,`+items+`,`+userHi+`],"tools":`+codexTools+`}`, cache)
				if len(req.Messages) != 3 || !req.Messages[1].Equal(m) || req.Messages[1].Hash() != m.Hash() {
					t.Fatalf("seed %d: sent %s\nas %s\ngot back %s", seed, m.AppendCanonical(nil), items, canonicalText(req.Messages))
				}
			}
		}
	}
	if empty == 0 {
		t.Error("no message was empty")
	}
}

func rawItems(items []json.RawMessage) [][]byte {
	raw := make([][]byte, len(items))
	for i := range items {
		raw[i] = items[i]
	}
	return raw
}
