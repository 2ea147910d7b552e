package sglang

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

func TestReadReply(t *testing.T) {
	tests := []struct {
		name, body string
		want       Result
		problem    string // part of the ReplyError
	}{
		{
			name: "without output_ids",
			body: `{"text":"a\\","meta_info":{"output_token_logprobs":[[-0.25,7,"x]"],[-1e-3,8]],"finish_reason":{"type":"length","length":2}}}`,
			want: Result{IDs: []int32{7, 8}, Logprobs: []float32{-0.25, -0.001}, Finish: Finish{Type: "length"}},
		},
		{
			name: "aborted in the queue",
			body: ` { "meta_info" : {"finish_reason":{"type":"abort","message":"Abort in waiting queue"},"completion_tokens":50,"weight_version":null}, "output_ids" : [ ] } `,
			want: Result{IDs: []int32{}, Finish: Finish{Type: "abort", Message: "Abort in waiting queue"}},
		},
		{
			name: "stop string, version a number, meta first",
			body: `{"meta_info":{"finish_reason":{"type":"stop","matched":"</s>"},"weight_version":12,"output_token_logprobs":[[0,3,null]]},"output_ids":[3]}`,
			want: Result{IDs: []int32{3}, Logprobs: []float32{0}, Finish: Finish{Type: "stop", Matched: "</s>"}, WeightVersion: "12"},
		},
		{name: "nan", body: `{"output_ids":[],"meta_info":{"finish_reason":{"type":"stop","matched":"NaN happened"}}}`, problem: "NaN"},
		{name: "null logprob", body: `{"output_ids":[1],"meta_info":{"finish_reason":{"type":"stop"},"output_token_logprobs":[[null,1,null]]}}`, problem: "finite"},
		{name: "finish a string", body: `{"meta_info":{"finish_reason":"stop"}}`, problem: "finish_reason"},
		{name: "no finish", body: `{"output_ids":[],"meta_info":{"finish_reason":null}}`, problem: "finish_reason is missing"},
		{name: "other finish", body: `{"meta_info":{"finish_reason":{"type":"error"}}}`, problem: "not stop, length or abort"},
		{name: "ids differ", body: `{"output_ids":[1],"meta_info":{"finish_reason":{"type":"stop"},"output_token_logprobs":[[-1,2,null]]}}`, problem: "output_ids[0] is 1"},
		{name: "no logprobs", body: `{"output_ids":[1],"meta_info":{"finish_reason":{"type":"stop"}}}`, problem: "without output_token_logprobs"},
		{name: "completion count", body: `{"output_ids":[1],"meta_info":{"finish_reason":{"type":"stop"},"completion_tokens":2,"output_token_logprobs":[[-1,1,null]]}}`, problem: "completion_tokens is 2"},
		{name: "truncated prompt", body: `{"output_ids":[1],"meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":2,"output_token_logprobs":[[-1,1,null]]}}`, problem: "truncating"},
		{name: "float id", body: `{"output_ids":[1.5],"meta_info":{}}`, problem: "output_ids"},
		{name: "huge id", body: `{"output_ids":[4294967296],"meta_info":{}}`, problem: "output_ids"},
		{name: "array", body: `[{"output_ids":[1]}]`, problem: "expected a JSON object"},
		{name: "cut", body: `{"output_ids":[1`, problem: "not valid JSON"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := readReply([]byte(test.body), "r", "w", 3)
			if test.problem != "" {
				var reply *ReplyError
				if !errors.As(err, &reply) || !strings.Contains(reply.Problem, test.problem) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			test.want.RID, test.want.Worker = "r", "w"
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestLogprobsAreExact(t *testing.T) {
	for _, want := range []float32{0, -1, -0.12345678, -3.4e-38, -17.25, -1e-45, -88.8} {
		body := fmt.Sprintf(`{"meta_info":{"finish_reason":{"type":"stop"},"output_token_logprobs":[[%s,1,null]]}}`, strconv.FormatFloat(float64(want), 'g', -1, 64))
		got, err := readReply([]byte(body), "r", "w", 3)
		if err != nil || got.Logprobs[0] != want {
			t.Errorf("%v: got %v, %v", want, got.Logprobs, err)
		}
	}
}

// FuzzReadReply: whatever a server sends, a result is consistent or there is an error, and
// what encoding/json reads as ids is what comes out.
func FuzzReadReply(f *testing.F) {
	f.Add([]byte(`{"output_ids":[1,2],"meta_info":{"finish_reason":{"type":"stop","matched":2},"output_token_logprobs":[[-1.5,1,null],[-2,2,"x"]]}}`))
	f.Add([]byte(`{"text":"\"\\","output_ids":null,"meta_info":{"finish_reason":{"type":"abort"}}}`))
	f.Add([]byte(`{"meta_info":{"output_token_logprobs":[[null,1,{"a":["]"]}]],"finish_reason":{}}}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		res, err := readReply(body, "r", "w", 3)
		if err != nil {
			return
		}
		if len(res.IDs) != len(res.Logprobs) {
			t.Fatalf("%d ids, %d logprobs", len(res.IDs), len(res.Logprobs))
		}
		if !json.Valid(body) {
			return // sonic takes some things encoding/json does not, such as control characters
		}
		var plain map[string]json.RawMessage
		if json.Unmarshal(body, &plain) != nil {
			return
		}
		var ids []int32
		if raw := plain["output_ids"]; raw != nil && json.Unmarshal(raw, &ids) == nil && ids != nil && !reflect.DeepEqual(ids, res.IDs) {
			t.Fatalf("got ids %v, want %v", res.IDs, ids)
		}
	})
}

func BenchmarkReadReply1k(b *testing.B) {
	var ids, pairs []string
	for i := range 1000 {
		ids = append(ids, strconv.Itoa(i*151%151000))
		pairs = append(pairs, fmt.Sprintf("[%s,%s,null]", strconv.FormatFloat(float64(float32(-0.1234567)*float32(i)), 'g', -1, 64), ids[i]))
	}
	body := []byte(`{"text":"` + strings.Repeat("some text ", 400) + `","output_ids":[` + strings.Join(ids, ",") +
		`],"meta_info":{"id":"r","finish_reason":{"type":"stop","matched":1},"prompt_tokens":3,"completion_tokens":1000,"weight_version":"7","output_token_logprobs":[` +
		strings.Join(pairs, ",") + `]}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := readReply(body, "r", "w", 3); err != nil {
			b.Fatal(err)
		}
	}
}
