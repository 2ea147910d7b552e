package sglangtest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// slow is a reply so long that no machine finishes it while a test looks at it.
var slow = fmt.Sprintf(`{"default":[{"text":%q}]}`, strings.Repeat("a", slowTokens-1))

const slowTokens = 20_000

// slowly is the body of a request that may say all of it.
func slowly(rid string) fields {
	return fields{"text": "q", "rid": rid, "return_logprob": true, "sampling_params": fields{"max_new_tokens": slowTokens}}
}

func streamed(body fields) fields {
	body["stream"] = true
	return body
}

func TestAbortRunning(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: 2 * time.Millisecond})
	done := background(t, s, slowly("abc-1"))
	other := background(t, s, slowly("xyz-1"))
	await(t, s, "some tokens", func() bool { return tokensOf(s, "abc-1") >= 3 && tokensOf(s, "xyz-1") >= 0 })
	if status, raw := call(t, "POST", s.URL()+"/abort_request", fields{"rid": "abc"}); status != 200 || raw != "" {
		t.Errorf("abort answers %d %q", status, raw)
	}
	a := receive(t, done)
	s.SetTokenDelay(0)
	f := a.finish(t)
	if a.Status != 200 || f["type"] != "abort" || f["message"] != "Aborted" || f["status_code"] != nil || f["err_type"] != nil {
		t.Errorf("got %d %s", a.Status, a.Raw)
	}
	if _, there := f["status_code"]; !there {
		t.Error("status_code is missing")
	}
	n := len(a.OutputIDs)
	if n < 4 || n == slowTokens || len(a.Meta.Logprobs) != n || a.Meta.Completion != n || len(a.Text) != n || a.Meta.PromptTokens == nil {
		t.Errorf("got %s", a.Raw)
	}
	if a := receive(t, other); a.Meta.Completion != slowTokens {
		t.Errorf("the other one has %d tokens", a.Meta.Completion)
	}
	if got := s.Aborts(); len(got) != 1 || got[0].RID != "abc" || got[0].Hit != 1 {
		t.Errorf("aborts are %+v", got)
	}
}

// TestAbortTakesOneMoreToken: the token whose forward pass was under way is sampled.
func TestAbortTakesOneMoreToken(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: time.Hour})
	done := background(t, s, slowly("r"))
	await(t, s, "the first token", func() bool { return tokensOf(s, "r") == 1 })
	call(t, "POST", s.URL()+"/abort_request", fields{"abort_all": true})
	if a := receive(t, done); a.Meta.Completion != 2 || a.finish(t)["type"] != "abort" {
		t.Errorf("got %s", a.Raw)
	}
}

func TestAbortWaiting(t *testing.T) {
	s := start(t, Config{StartDelay: time.Hour})
	done := background(t, s, fields{"text": "q", "rid": "r", "return_logprob": true, "return_prompt_token_ids": true})
	await(t, s, "the request", func() bool { return s.InFlight() == 1 })
	_, raw := call(t, "GET", s.URL()+"/v1/loads?include=core", nil)
	if !strings.Contains(raw, `"num_waiting_reqs":1`) || !strings.Contains(raw, `"num_running_reqs":0`) {
		t.Errorf("loads are %s", raw)
	}
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "r"})
	a := receive(t, done)
	if string(a.Meta.Finish) != `{"type":"abort","message":"Abort in waiting queue"}` {
		t.Errorf("finish is %s", a.Meta.Finish)
	}
	if a.Meta.PromptTokens != nil || a.Meta.Retractions != nil || a.Meta.Latency == nil || a.Meta.Logprobs == nil || len(a.OutputIDs) != 0 || a.PromptIDs != nil {
		t.Errorf("got %s", a.Raw)
	}
}

func TestAbortOfNobody(t *testing.T) {
	s := start(t, Config{})
	for _, body := range []fields{{"rid": "later"}, {"rid": ""}, {}, {"abort_all": true}} {
		if status, raw := call(t, "POST", s.URL()+"/abort_request", body); status != 200 || raw != "" {
			t.Errorf("%v: %d %q", body, status, raw)
		}
	}
	if a := generate(t, s, fields{"text": "q", "rid": "later"}); a.finish(t)["type"] != "stop" {
		t.Errorf("an abort was remembered: %s", a.Raw)
	}
	if got := s.Aborts(); len(got) != 2 || got[0].Hit != 0 || !got[1].All {
		t.Errorf("aborts are %+v", got)
	}
}

func TestAbortStream(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: 2 * time.Millisecond})
	raw := make(chan string, 1)
	go func() {
		_, out, err := send(t.Context(), "POST", s.URL()+"/generate", streamed(slowly("r")))
		if err != nil {
			t.Error(err)
		}
		raw <- string(out)
	}()
	await(t, s, "some tokens", func() bool { return tokensOf(s, "r") >= 3 })
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "r"})
	got, done := chunks(t, receive(t, raw))
	last := got[len(got)-1]
	if !done || last.finish(t)["type"] != "abort" || len(last.OutputIDs) != len(got) {
		t.Errorf("last of %d chunks is %s", len(got), last.Raw)
	}
}

func TestDuplicateRID(t *testing.T) {
	s := start(t, Config{StartDelay: time.Hour})
	done := background(t, s, slowly("r"))
	await(t, s, "the request", func() bool { return s.InFlight() == 1 })
	if a := generate(t, s, slowly("r")); a.Status != 400 || !strings.Contains(a.Error.Message, "in flight") {
		t.Errorf("got %d %s", a.Status, a.Raw)
	}
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "r"})
	receive(t, done)
}

func TestQueue(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: time.Hour, MaxRunning: 1, MaxQueued: 1})
	first := background(t, s, slowly("first"))
	await(t, s, "the first", func() bool { return isRunning(s, "first") })
	second := background(t, s, slowly("second"))
	await(t, s, "the second", func() bool { return s.InFlight() == 2 })
	if isRunning(s, "second") {
		t.Error("two are running")
	}
	third := generate(t, s, fields{"text": "q", "rid": "third"})
	if third.Status != 503 || third.Message != "The request queue is full." {
		t.Errorf("third: %d %s", third.Status, third.Raw)
	}
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "first"})
	receive(t, first)
	await(t, s, "the second to run", func() bool { return isRunning(s, "second") })
	fourth := background(t, s, slowly("fourth"))
	await(t, s, "the fourth", func() bool { return s.InFlight() == 2 })
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "fourth"})
	if a := receive(t, fourth); a.finish(t)["message"] != "Abort in waiting queue" {
		t.Errorf("fourth: %s", a.Raw)
	}
	call(t, "POST", s.URL()+"/abort_request", fields{"abort_all": true})
	receive(t, second)
}

func TestPauseAbort(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: 2 * time.Millisecond})
	done := background(t, s, slowly("r"))
	await(t, s, "some tokens", func() bool { return tokensOf(s, "r") >= 2 })
	if status, raw := call(t, "POST", s.URL()+"/pause_generation", fields{}); status != 200 || !strings.Contains(raw, `"status":"ok"`) {
		t.Errorf("pause: %d %s", status, raw)
	}
	if s.InFlight() != 0 {
		t.Errorf("%d in flight after the pause", s.InFlight())
	}
	if a := receive(t, done); a.finish(t)["message"] != "Aborted" || a.Meta.Completion < 3 {
		t.Errorf("got %s", a.Raw)
	}
	s.SetTokenDelay(0)
	blocked := background(t, s, slowly("late"))
	health := make(chan int, 1)
	go func() {
		status, _, err := send(t.Context(), "GET", s.URL()+"/health", nil)
		if err != nil {
			t.Error(err)
		}
		health <- status
	}()
	await(t, s, "the late one", func() bool { return s.Blocked() == 1 })
	call(t, "POST", s.URL()+"/abort_request", fields{"abort_all": true}) // does not reach it
	if s.Blocked() != 1 || s.InFlight() != 0 {
		t.Errorf("%d blocked, %d in flight", s.Blocked(), s.InFlight())
	}
	select {
	case status := <-health:
		t.Errorf("health answers %d while paused", status)
	default:
	}
	call(t, "POST", s.URL()+"/continue_generation", fields{"torch_empty_cache": true})
	if a := receive(t, blocked); a.finish(t)["type"] != "stop" || a.Meta.Completion != slowTokens {
		t.Errorf("got %d tokens", a.Meta.Completion)
	}
	if got := receive(t, health); got != 200 {
		t.Errorf("health answers %d", got)
	}
}

// twoParts is a choice after ten tokens, so that a pause can come before it.
const twoParts = `{"default":[{"text":"0123456789left","weight":0},{"text":"0123456789right","weight":0}]}`

// TestPauseHolds: a request that lives through a pause goes on under the new weights.
func TestPauseHolds(t *testing.T) {
	for _, mode := range []string{"retract", "in_place"} {
		t.Run(mode, func(t *testing.T) {
			s := start(t, Config{Policy: policyOf(t, twoParts), TokenDelay: time.Hour, WeightVersion: "1"})
			ids := prompt(t, s, "which way?")
			done := background(t, s, fields{"input_ids": ids, "rid": "r", "return_logprob": true})
			await(t, s, "the first token", func() bool { return tokensOf(s, "r") == 1 })
			call(t, "POST", s.URL()+"/pause_generation", fields{"mode": mode})
			_, raw := call(t, "GET", s.URL()+"/v1/loads?include=core", nil)
			want := map[string]string{"retract": `"num_waiting_reqs":1`, "in_place": `"num_running_reqs":1`}[mode]
			if !strings.Contains(raw, want) {
				t.Errorf("loads are %s, want %s", raw, want)
			}
			if status, _ := call(t, "POST", s.URL()+"/flush_cache", nil); status != 400 {
				t.Errorf("flush_cache answers %d", status)
			}
			if status, _ := call(t, "POST", s.URL()+"/update_weights_from_disk", fields{"model_path": "x"}); status != 400 {
				t.Errorf("an update with a flush answers %d", status)
			}
			status, raw := call(t, "POST", s.URL()+"/update_weights_from_disk", fields{"model_path": "x", "weight_version": "2", "flush_cache": false})
			if status != 200 || !strings.Contains(raw, `"num_paused_requests":1`) {
				t.Errorf("update: %d %s", status, raw)
			}
			weights := fields{"weights": fields{"default": []float64{-2, 3}}}
			if status, raw := call(t, "PUT", s.URL()+"/simulator/weights", weights); status != 200 || !strings.Contains(raw, `"weight_version":"2"`) {
				t.Errorf("weights: %d %s", status, raw)
			}
			s.SetTokenDelay(0)
			call(t, "POST", s.URL()+"/continue_generation", fields{})
			a := receive(t, done)
			lps, err := s.Model().TokenLogprobs(ids, a.OutputIDs)
			if err != nil {
				t.Fatal(err)
			}
			for i, lp := range lps {
				if a.logprob(i) != lp {
					t.Errorf("logprob %d is %v, want %v under the new weights", i, a.logprob(i), lp)
				}
			}
			if got := float64(a.logprob(10)); math.Abs(got) < 0.001 || close32(got, -math.Ln2) {
				t.Errorf("the choice has log probability %v", got)
			}
			retractions := map[string]int{"retract": 1, "in_place": 0}[mode]
			if a.Meta.WeightVersion != "2" || *a.Meta.Retractions != retractions || a.finish(t)["type"] != "stop" {
				t.Errorf("got %s", a.Raw)
			}
		})
	}
}

func TestAbortWhileHeld(t *testing.T) {
	// Retracted: answers at once, with what was flushed.
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: 2 * time.Millisecond, FlushEvery: 4})
	unary := background(t, s, slowly("r-unary"))
	chunked := make(chan string, 1)
	go func() {
		_, out, err := send(t.Context(), "POST", s.URL()+"/generate", streamed(slowly("r-stream")))
		if err != nil {
			t.Error(err)
		}
		chunked <- string(out)
	}()
	await(t, s, "tokens", func() bool { return tokensOf(s, "r-unary") >= 6 && tokensOf(s, "r-stream") >= 6 })
	call(t, "POST", s.URL()+"/pause_generation", fields{"mode": "retract"})
	n, m := tokensOf(s, "r-unary"), tokensOf(s, "r-stream")
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "r-"})
	a := receive(t, unary)
	if want := n - n%4; a.Meta.Completion != want || len(a.OutputIDs) != want || len(a.Meta.Logprobs) != want || len(a.Text) != want ||
		a.finish(t)["message"] != "Abort in waiting queue" || a.Meta.PromptTokens != nil {
		t.Errorf("got %s, want %d of %d tokens", a.Raw, want, n)
	}
	got, _ := chunks(t, receive(t, chunked))
	last := got[len(got)-1]
	if len(last.Text) != m || len(last.Meta.Logprobs) != m || len(last.OutputIDs) != 1 {
		t.Errorf("the last chunk is %s, want %d tokens and one id", last.Raw, m)
	}
	call(t, "POST", s.URL()+"/continue_generation", fields{})

	// In place: answers after continue, with one more token.
	done := background(t, s, slowly("p"))
	await(t, s, "tokens", func() bool { return tokensOf(s, "p") >= 2 })
	call(t, "POST", s.URL()+"/pause_generation", fields{"mode": "in_place"})
	n = tokensOf(s, "p")
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "p"})
	if tokensOf(s, "p") != n || len(done) != 0 {
		t.Error("it went on while paused")
	}
	call(t, "POST", s.URL()+"/continue_generation", fields{})
	if a := receive(t, done); a.Meta.Completion != n+1 || a.finish(t)["message"] != "Aborted" {
		t.Errorf("got %s, want %d tokens", a.Raw, n+1)
	}

	// A pause with abort ends what an earlier pause holds.
	done = background(t, s, slowly("h"))
	await(t, s, "tokens", func() bool { return tokensOf(s, "h") >= 2 })
	call(t, "POST", s.URL()+"/pause_generation", fields{"mode": "in_place"})
	call(t, "POST", s.URL()+"/pause_generation", fields{"mode": "abort"})
	if a := receive(t, done); a.finish(t)["type"] != "abort" {
		t.Errorf("got %s", a.Raw)
	}
}

func TestPausedWhileQueued(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: time.Hour, MaxRunning: 1})
	first := background(t, s, slowly("first"))
	await(t, s, "the first", func() bool { return isRunning(s, "first") })
	queued := background(t, s, fields{"text": "q", "rid": "queued", "sampling_params": fields{"max_new_tokens": 1}})
	await(t, s, "the queued one", func() bool { return s.InFlight() == 2 })
	call(t, "POST", s.URL()+"/pause_generation", fields{"mode": "retract"})
	call(t, "POST", s.URL()+"/continue_generation", fields{})
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "first"})
	if a := receive(t, first); a.finish(t)["message"] != "Aborted" || *a.Meta.Retractions != 1 {
		t.Errorf("first: %s", a.Raw)
	}
	if a := receive(t, queued); a.finish(t)["type"] != "length" || *a.Meta.Retractions != 0 {
		t.Errorf("queued: %s", a.Raw)
	}
}

// TestResumeAfterAbort: a cut reply, sent again as a prompt, goes on with the words and
// probabilities it would have had.
func TestResumeAfterAbort(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, threeWays), Seed: 4})
	ids := prompt(t, s, "Is it?")
	for seed := range 40 {
		params := fields{"sampling_seed": seed}
		whole := generate(t, s, fields{"input_ids": ids, "return_logprob": true, "sampling_params": params})
		for _, cut := range []int{1, 2} {
			s.SetFault(func(*GenerateRequest) *Fault { return &Fault{AbortAfter: cut} })
			first := generate(t, s, fields{"input_ids": ids, "return_logprob": true, "sampling_params": params})
			s.SetFault(nil)
			if first.finish(t)["type"] != "abort" || len(first.OutputIDs) != cut {
				t.Fatalf("got %s", first.Raw)
			}
			second := generate(t, s, fields{"input_ids": slices.Concat(ids, first.OutputIDs), "return_logprob": true, "sampling_params": params})
			if got := slices.Concat(first.OutputIDs, second.OutputIDs); !slices.Equal(got, whole.OutputIDs) {
				t.Fatalf("seed %d: %v and %v, want %v", seed, first.OutputIDs, second.OutputIDs, whole.OutputIDs)
			}
			for i := range second.OutputIDs {
				if second.logprob(i) != whole.logprob(cut+i) {
					t.Errorf("seed %d: logprob %d is %v, want %v", seed, cut+i, second.logprob(i), whole.logprob(cut+i))
				}
			}
		}
	}
}

func TestWeightsOverHTTP(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, threeWays)})
	status, raw := call(t, "PUT", s.URL()+"/simulator/weights", fields{"weight_version": "3", "weights": fields{"default": []float64{-50, -50, 50}}})
	if status != 200 || s.WeightVersion() != "3" {
		t.Fatalf("%d %s", status, raw)
	}
	if a := generate(t, s, fields{"text": "q"}); a.Text != "no" || a.Meta.WeightVersion != "3" {
		t.Errorf("got %s", a.Raw)
	}
	_, raw = call(t, "GET", s.URL()+"/simulator/weights", nil)
	if raw != `{"weight_version":"3","weights":{"default":[-50,-50,50]}}` {
		t.Errorf("got %s", raw)
	}
	for _, body := range []any{fields{"weights": fields{"x": []int{1}}}, fields{"weights": fields{"default": []int{1}}}, "{"} {
		if status, raw := call(t, "PUT", s.URL()+"/simulator/weights", body); status != 400 {
			t.Errorf("%v: %d %s", body, status, raw)
		}
	}
	status, raw = call(t, "POST", s.URL()+"/simulator/policy", fields{"weight_version": "4", "policy": fields{"default": []fields{{"text": "new"}}}})
	if status != 200 || s.WeightVersion() != "4" {
		t.Fatalf("%d %s", status, raw)
	}
	if a := generate(t, s, fields{"text": "q"}); a.Text != "new" {
		t.Errorf("got %s", a.Raw)
	}
	if status, _ := call(t, "POST", s.URL()+"/simulator/policy", fields{"policy": fields{}}); status != 400 {
		t.Errorf("a bad policy: %d", status)
	}
	_, raw = call(t, "GET", s.URL()+"/simulator/policy", nil)
	if !strings.Contains(raw, `"weight_version":"4"`) || !strings.Contains(raw, `"text":"new"`) {
		t.Errorf("got %s", raw)
	}
	_, raw = call(t, "POST", s.URL()+"/simulator/distribution", fields{"input_ids": []int{1}})
	if raw != `{"candidates":[{"class":"default","index":0,"text":"new","ids":[110,101,119,258],"logprob":0}],"weight_version":"4"}` {
		t.Errorf("got %s", raw)
	}
	if status, _ = call(t, "POST", s.URL()+"/simulator/distribution", fields{"input_ids": []int{-1}, "temperature": 0.5}); status != 200 && status != 400 {
		t.Errorf("a bad id: %d", status)
	}
}

func TestUpdateWeightVersion(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: time.Hour})
	done := background(t, s, slowly("r"))
	await(t, s, "the request", func() bool { return isRunning(s, "r") })
	call(t, "POST", s.URL()+"/update_weight_version", fields{"new_version": "2", "abort_all_requests": false})
	if s.WeightVersion() != "2" || s.InFlight() != 1 {
		t.Errorf("version %s, %d in flight", s.WeightVersion(), s.InFlight())
	}
	status, raw := call(t, "POST", s.URL()+"/update_weight_version", fields{"new_version": "3"})
	if status != 200 || !strings.Contains(raw, `"new_version":"3"`) {
		t.Errorf("%d %s", status, raw)
	}
	if a := receive(t, done); a.finish(t)["type"] != "abort" {
		t.Errorf("got %s", a.Raw)
	}
}

// TestUpdateWeights: an update waits for what is in flight and keeps new requests out.
func TestUpdateWeights(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: time.Hour})
	first := background(t, s, slowly("first"))
	await(t, s, "the first", func() bool { return isRunning(s, "first") })
	updated := make(chan string, 1)
	go func() {
		status, raw, err := send(t.Context(), "POST", s.URL()+"/update_weights_from_disk", fields{"model_path": "x", "weight_version": "2"})
		updated <- fmt.Sprint(status, string(raw), err)
	}()
	await(t, s, "the update", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.updates == 1 })
	second := background(t, s, fields{"text": "q", "rid": "second", "sampling_params": fields{"max_new_tokens": 1}})
	await(t, s, "the second", func() bool { return s.Blocked() == 1 })
	if s.WeightVersion() != "default" || len(updated) != 0 {
		t.Error("the update did not wait")
	}
	call(t, "POST", s.URL()+"/abort_request", fields{"rid": "first"})
	receive(t, first)
	if got := receive(t, updated); !strings.Contains(got, `"success":true`) {
		t.Errorf("update: %s", got)
	}
	if a := receive(t, second); a.Meta.WeightVersion != "2" {
		t.Errorf("got %s", a.Raw)
	}
	third := background(t, s, fields{"text": "q", "rid": "third"})
	await(t, s, "the third", func() bool { return isRunning(s, "third") })
	call(t, "POST", s.URL()+"/update_weights_from_distributed", fields{"abort_all_requests": true, "weight_version": "3"})
	if a := receive(t, third); a.finish(t)["type"] != "abort" || s.WeightVersion() != "3" {
		t.Errorf("version %s, got %s", s.WeightVersion(), a.Raw)
	}
}

func TestFlushWaits(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, slow), TokenDelay: time.Hour})
	done := background(t, s, slowly("r"))
	await(t, s, "the request", func() bool { return isRunning(s, "r") })
	if status, _ := call(t, "GET", s.URL()+"/flush_cache?timeout=0.01", nil); status != 400 {
		t.Errorf("busy: %d", status)
	}
	flushed := make(chan int, 1)
	go func() {
		status, _, err := send(t.Context(), "POST", s.URL()+"/flush_cache?timeout=60", nil)
		if err != nil {
			t.Error(err)
		}
		flushed <- status
	}()
	call(t, "POST", s.URL()+"/abort_request", fields{"abort_all": true})
	receive(t, done)
	if got := receive(t, flushed); got != 200 {
		t.Errorf("idle: %d", got)
	}
}

// TestUpdateFromDiskRenames: what the model is called is where its weights came from last.
func TestUpdateFromDiskRenames(t *testing.T) {
	s := start(t, Config{ModelPath: "/models/base", ServedName: "served"})
	named := func(path, served string) {
		t.Helper()
		for route, want := range map[string][]string{
			"/model_info":  {`"model_path":"` + path + `"`, `"served_model_name":"` + served + `"`, `"tokenizer_path":"/models/base"`},
			"/server_info": {`"model_path":"` + path + `"`, `"served_model_name":"` + served + `"`},
			"/v1/models":   {`"id":"` + served + `"`, `"root":"` + served + `"`},
		} {
			_, raw := call(t, "GET", s.URL()+route, nil)
			for _, part := range want {
				if !strings.Contains(raw, part) {
					t.Errorf("%s: %s, want %s", route, raw, part)
				}
			}
		}
	}
	for route, body := range map[string]fields{
		"/update_weights_from_disk":        {"weight_version": "1"},
		"/update_weights_from_distributed": {"model_path": "/elsewhere", "weight_version": "1"},
	} {
		want := map[bool]int{true: 400, false: 200}[route == updateFromDisk]
		if status, raw := call(t, "POST", s.URL()+route, body); status != want {
			t.Errorf("%s: %d %s, want %d", route, status, raw, want)
		}
	}
	named("/models/base", "served")
	if status, raw := call(t, "POST", s.URL()+updateFromDisk, fields{"model_path": "/ckpt/step_1"}); status != 200 {
		t.Errorf("update: %d %s", status, raw)
	}
	named("/ckpt/step_1", "/ckpt/step_1")
}
