package sglang

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// threeTokens is a call whose prompt has three tokens.
var threeTokens = &Call{Prefix: [][]int32{{1, 2, 3}}}

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
		{
			name: "counts of speculative decoding, the newest names first",
			body: `{"meta_info":{"finish_reason":{"type":"stop"},"spec_accept_token_num":9,"spec_draft_token_num":9,"spec_accepted_drafts":0,"spec_verify_ct":4,"spec_accept_rate":0.5,"output_token_logprobs":[[0,3,null]]}}`,
			want: Result{IDs: []int32{3}, Logprobs: []float32{0}, Finish: Finish{Type: "stop"}, Spec: Spec{Accepted: Count{0, true}, Verified: Count{4, true}}},
		},
		{
			name: "routed experts",
			body: `{"meta_info":{"finish_reason":{"type":"stop"},"routed_experts":"AAEC+/==","output_token_logprobs":[[0,3,null]]}}`,
			want: Result{IDs: []int32{3}, Logprobs: []float32{0}, Finish: Finish{Type: "stop"}, RoutedExperts: []byte("AAEC+/==")},
		},
		{
			name: "null for what is optional",
			body: `{"output_ids":null,"meta_info":{"finish_reason":{"type":"stop"},"routed_experts":null,"spec_verify_ct":null,"prompt_tokens":null,"output_token_logprobs":null}}`,
			want: Result{Finish: Finish{Type: "stop"}},
		},
		{name: "experts a list", body: `{"meta_info":{"finish_reason":{"type":"stop"},"routed_experts":[1]}}`, problem: "routed_experts"},
		{name: "NaN written as such", body: `{"output_ids":[1],"meta_info":{"finish_reason":{"type":"stop"},"output_token_logprobs":[[NaN,1,null]]}}`, problem: "not valid JSON"},
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
			got, err := readReply([]byte(test.body), "r", "w", threeTokens)
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

// Servers that verify several draft tokens at once may go past the budget.
func TestBudgetIsCut(t *testing.T) {
	body := []byte(`{"output_ids":[1,2,3],"meta_info":{"finish_reason":{"type":"stop","matched":3},"completion_tokens":3,"output_token_logprobs":[[-1,1],[-2,2],[-3,3]]}}`)
	in := *threeTokens
	for budget, want := range map[int]Result{
		2: {IDs: []int32{1, 2}, Logprobs: []float32{-1, -2}, Finish: Finish{Type: "length"}, RID: "r", Worker: "w"},
		3: {IDs: []int32{1, 2, 3}, Logprobs: []float32{-1, -2, -3}, Finish: Finish{Type: "stop", Matched: "3"}, RID: "r", Worker: "w"},
	} {
		in.Sampling.MaxNewTokens = budget
		if got, err := readReply(body, "r", "w", &in); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("budget %d: got %+v, %v", budget, got, err)
		}
	}
}

func TestCountsAdd(t *testing.T) {
	a := Spec{Accepted: Count{2, true}, Verified: Count{1, true}}
	b := Spec{Accepted: Count{3, true}, Proposed: Count{0, true}}
	if got := a.Plus(b); got != (Spec{Count{5, true}, Count{0, true}, Count{1, true}}) || a.Plus(Spec{}) != a {
		t.Errorf("got %+v", got)
	}
}

func TestLogprobsAreExact(t *testing.T) {
	for _, want := range []float32{0, -1, -0.12345678, -3.4e-38, -17.25, -1e-45, -88.8} {
		body := fmt.Sprintf(`{"meta_info":{"finish_reason":{"type":"stop"},"output_token_logprobs":[[%s,1,null]]}}`, strconv.FormatFloat(float64(want), 'g', -1, 64))
		got, err := readReply([]byte(body), "r", "w", threeTokens)
		if err != nil || got.Logprobs[0] != want {
			t.Errorf("%v: got %v, %v", want, got.Logprobs, err)
		}
	}
}

// Whatever the spelling, the quick way gives what strconv gives.
func TestQuickFloat(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	quick := 0
	compare := func(text string) {
		t.Helper()
		s := scanner{b: []byte(text)}
		got, err := s.float()
		want, _ := strconv.ParseFloat(text, 32)
		if err != nil || math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, float32(want))
		}
		if _, ok := quickFloat([]byte(text)); ok {
			quick++
		}
	}
	for range 200_000 {
		f := -float32(math.Exp(random.Float64()*12 - 8)) // what logprobs look like
		compare(strconv.FormatFloat(float64(f), 'g', -1, 64))
		compare(strconv.FormatFloat(float64(f), 'f', -1, 32))
		// Close to the middle between two float32 values.
		middle := (float64(f) + float64(math.Nextafter32(f, 0))) / 2
		for _, v := range []float64{middle, math.Nextafter(middle, 0), math.Nextafter(middle, -100)} {
			compare(strconv.FormatFloat(v, 'f', 17, 64))
			compare(strconv.FormatFloat(v, 'f', -1, 64))
		}
	}
	if quick < 300_000 {
		t.Errorf("only %d were quick", quick)
	}
	for _, text := range []string{"0", "-0", "-0.0", "0.0", "1", "-5", "-0.00000000000000001", "-123456789012345678", "-1234567890123456789", "9223372036854775808", "-1e-5", "-1E+2", "-0.1e1"} {
		compare(text)
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
		res, err := readReply(body, "r", "w", threeTokens)
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
		if _, err := readReply(body, "r", "w", threeTokens); err != nil {
			b.Fatal(err)
		}
	}
}
