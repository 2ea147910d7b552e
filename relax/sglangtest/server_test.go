package sglangtest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, threeWays), WeightVersion: "7"})
	ids := prompt(t, s, "Is it?")
	a := generate(t, s, fields{"input_ids": ids, "rid": "r1", "return_logprob": true, "return_prompt_token_ids": true,
		"return_text_in_logprobs": true, "some_future_field": []int{1},
		"sampling_params": fields{"temperature": 1.0, "max_new_tokens": 50, "sampling_seed": 5, "stop": nil, "n": nil}})
	if a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Raw)
	}
	d, err := s.Model().Distribution(ids)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(d, func(c Candidate) bool { return c.Text == a.Text })
	if at < 0 || !slices.Equal(d[at].IDs, a.OutputIDs) {
		t.Fatalf("text %q, ids %v: no candidate of %+v", a.Text, a.OutputIDs, d)
	}
	lps, err := s.Model().TokenLogprobs(ids, a.OutputIDs)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Meta.Logprobs) != len(lps) || a.Meta.LogprobsLen != len(lps) || a.Meta.Completion != len(lps) {
		t.Fatalf("%d logprobs for %d tokens: %s", len(a.Meta.Logprobs), len(lps), a.Raw)
	}
	for i, id := range a.OutputIDs {
		if a.logprob(i) != lps[i] || int32(a.Meta.Logprobs[i][1].(float64)) != id {
			t.Errorf("logprob %d is %v, want [%v %d]", i, a.Meta.Logprobs[i], lps[i], id)
		}
		if text, _ := s.cfg.Tokenizer.Decode([]int32{id}); a.Meta.Logprobs[i][2] != text {
			t.Errorf("logprob %d has text %v, want %q", i, a.Meta.Logprobs[i][2], text)
		}
	}
	if f := a.finish(t); f["type"] != "stop" || f["matched"] != 258.0 {
		t.Errorf("finish is %v", f)
	}
	m := a.Meta
	if m.ID != "r1" || m.WeightVersion != "7" || *m.PromptTokens != len(ids) || m.Cached != 0 || *m.Retractions != 0 ||
		m.Latency == nil || m.InputLogprobs == nil || len(m.InputLogprobs) != 0 || !slices.Equal(a.PromptIDs, ids) {
		t.Errorf("got %s", a.Raw)
	}
	for _, key := range []string{"reasoning_tokens", "dp_rank", "num_retractions"} {
		if !strings.Contains(a.Raw, `"`+key+`"`) {
			t.Errorf("%s is missing in %s", key, a.Raw)
		}
	}
	bare := generate(t, s, fields{"input_ids": ids})
	if bare.Meta.Logprobs != nil || bare.PromptIDs != nil || bare.Meta.ID == "" {
		t.Errorf("got %s", bare.Raw)
	}
	if status, _ := call(t, "PUT", s.URL()+"/generate", fields{"text": "hello"}); status != 200 {
		t.Errorf("PUT answers %d", status)
	}
	if s.InFlight() != 0 || s.Blocked() != 0 {
		t.Errorf("%d in flight, %d blocked", s.InFlight(), s.Blocked())
	}
}

func TestFinishes(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"one two three"}]}`)})
	for name, c := range map[string]struct {
		params fields
		text   string
		ids    string // of the output, decoded
		finish string
	}{
		"eos":          {fields{}, "one two three", "one two three<|im_end|>", `{"type":"stop","matched":258}`},
		"eos, kept":    {fields{"no_stop_trim": true, "skip_special_tokens": false}, "one two three<|im_end|>", "one two three<|im_end|>", `{"type":"stop","matched":258}`},
		"eos, skipped": {fields{"no_stop_trim": true}, "one two three", "one two three<|im_end|>", `{"type":"stop","matched":258}`},
		"length":       {fields{"max_new_tokens": 5}, "one t", "one t", `{"type":"length","length":5}`},
		"length 0":     {fields{"max_new_tokens": 0}, "", "", `{"type":"length","length":0}`},
		"exactly":      {fields{"max_new_tokens": 14}, "one two three", "one two three<|im_end|>", `{"type":"stop","matched":258}`},
		"stop string":  {fields{"stop": "two"}, "one ", "one two", `{"type":"stop","matched":"two"}`},
		"stop strings": {fields{"stop": []string{"three", " t"}}, "one", "one t", `{"type":"stop","matched":" t"}`},
		"stop kept":    {fields{"stop": "two", "no_stop_trim": true}, "one two", "one two", `{"type":"stop","matched":"two"}`},
		"stop, length": {fields{"stop": "two", "max_new_tokens": 7}, "one ", "one two", `{"type":"stop","matched":"two"}`},
		"no stop":      {fields{"stop": "four"}, "one two three", "one two three<|im_end|>", `{"type":"stop","matched":258}`},
		"stop id":      {fields{"stop_token_ids": []any{nil, int('w')}}, "one t", "one tw", `{"type":"stop","matched":119}`},
		"ignore eos":   {fields{"ignore_eos": true, "max_new_tokens": 16}, "one two three", "one two three<|im_end|><|im_end|><|im_end|>", `{"type":"length","length":16}`},
		"min tokens":   {fields{"min_new_tokens": 16}, "one two three   ", "one two three   <|im_end|>", `{"type":"stop","matched":258}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := generate(t, s, fields{"text": "hi", "return_logprob": true, "sampling_params": c.params})
			if a.Status != 200 {
				t.Fatalf("%d %s", a.Status, a.Raw)
			}
			ids, err := s.cfg.Tokenizer.Decode(a.OutputIDs)
			if err != nil {
				t.Fatal(err)
			}
			if a.Text != c.text || ids != c.ids || string(a.Meta.Finish) != c.finish {
				t.Errorf("got %q, %q, %s; want %q, %q, %s", a.Text, ids, a.Meta.Finish, c.text, c.ids, c.finish)
			}
			if len(a.Meta.Logprobs) != len(a.OutputIDs) || a.Meta.Completion != len(a.OutputIDs) {
				t.Errorf("counts differ: %s", a.Raw)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	s := start(t, Config{ContextLen: 100})
	long := make([]int32, 100)
	fits := make([]int32, 60)
	for name, c := range map[string]struct {
		body   any
		status int
		want   string
	}{
		"bad JSON":         {`{"text":`, 400, `"object":"error"`},
		"bad type":         {`{"text":"a","stream":"yes"}`, 400, `"object":"error"`},
		"no prompt":        {fields{}, 400, `"error":{"message"`},
		"null prompt":      {fields{"input_ids": nil}, 400, "should be provided"},
		"empty ids":        {fields{"input_ids": []int{}}, 400, "cannot be empty"},
		"empty text":       {fields{"text": ""}, 400, "cannot be empty"},
		"batch":            {fields{"input_ids": [][]int{{1}}}, 400, "one prompt"},
		"batch of texts":   {fields{"text": []string{"a"}}, 400, "one prompt"},
		"ids of text":      {fields{"input_ids": []string{"a"}}, 400, "item 0"},
		"float ids":        {`{"input_ids":[1,2.5]}`, 400, "item 1"},
		"negative ids":     {`{"input_ids":[1,-2]}`, 400, "item 1"},
		"ids not a list":   {fields{"input_ids": 5}, 400, "not a list"},
		"vocabulary":       {fields{"input_ids": []int{1, 5000}}, 400, "outside the vocabulary"},
		"mark":             {`{"input_ids":[-7.125]}`, 400, "item 0"},
		"hidden mark":      {`{"custom_params":{"input_ids":[3]},"input_ids":[-7.125]}`, 400, "item 0"},
		"huge id":          {`{"input_ids":[99999999999]}`, 400, "item 0"},
		"too long":         {fields{"input_ids": long}, 400, "The input (100 tokens) is longer than the model's context length (100 tokens)."},
		"too much":         {fields{"input_ids": fits, "sampling_params": fields{"max_new_tokens": 41}}, 400, "exceeds the model's maximum context length of 100 tokens"},
		"default too much": {fields{"input_ids": fits}, 400, "maximum context length"},
		"unknown param":    {fields{"text": "a", "sampling_params": fields{"seed": 1}}, 500, "Internal Server Error"},
		"unknown in stream": {fields{"text": "a", "stream": true, "sampling_params": fields{"seed": 1}}, 500,
			"Internal Server Error"},
		"n":             {fields{"text": "a", "sampling_params": fields{"n": 2}}, 400, "one reply"},
		"temperature":   {fields{"text": "a", "sampling_params": fields{"temperature": -1}}, 400, "temperature"},
		"param type":    {fields{"text": "a", "sampling_params": fields{"temperature": "hot"}}, 400, "sampling_params.temperature"},
		"top_p":         {fields{"text": "a", "sampling_params": fields{"top_p": 0}}, 400, "top_p"},
		"top_k":         {fields{"text": "a", "sampling_params": fields{"top_k": 0}}, 400, "top_k"},
		"min_p":         {fields{"text": "a", "sampling_params": fields{"min_p": 2}}, 400, "min_p"},
		"penalty":       {fields{"text": "a", "sampling_params": fields{"repetition_penalty": 0}}, 400, "repetition_penalty"},
		"negative max":  {fields{"text": "a", "sampling_params": fields{"max_new_tokens": -1}}, 400, "max_new_tokens"},
		"min above max": {fields{"text": "a", "sampling_params": fields{"max_new_tokens": 1, "min_new_tokens": 2}}, 400, "min_new_tokens"},
		"grammar":       {fields{"text": "a", "sampling_params": fields{"regex": "a"}}, 400, "regex is not supported"},
		"logit_bias":    {fields{"text": "a", "sampling_params": fields{"logit_bias": fields{"1": 2}}}, 400, "logit_bias"},
		"start len":     {fields{"text": "a", "logprob_start_len": 0}, 400, "logprob_start_len"},
		"top logprobs":  {fields{"text": "a", "top_logprobs_num": 2}, 400, "top_logprobs_num"},
		"session":       {fields{"text": "a", "session_params": fields{"id": "x"}}, 400, "session_params"},
		"dp rank":       {fields{"text": "a", "routed_dp_rank": 1}, 400, "dp_rank"},
		"image":         {fields{"text": "a", "image_data": "x"}, 400, "image"},
	} {
		t.Run(name, func(t *testing.T) {
			status, raw := call(t, "POST", s.URL()+"/generate", c.body)
			if status != c.status || !strings.Contains(raw, c.want) {
				t.Errorf("got %d %s, want %d with %q", status, raw, c.status, c.want)
			}
		})
	}
	for _, params := range []fields{
		{"max_new_tokens": 40},
		{"max_new_tokens": nil},
		{"max_new_tokens": 40, "regex": "", "logit_bias": fields{}, "stop_regex": nil, "top_k": "all", "custom_params": fields{"a": 1}, "n": 1,
			"frequency_penalty": 0.5, "presence_penalty": -2, "repetition_penalty": 2, "spaces_between_special_tokens": false},
	} {
		if a := generate(t, s, fields{"input_ids": fits, "sampling_params": params}); a.Status != 200 {
			t.Errorf("%v: %d %s", params, a.Status, a.Raw)
		}
	}
	// The room is one less than the context has left.
	p := policyOf(t, fmt.Sprintf(`{"default":[{"text":%q}]}`, strings.Repeat("a", 200)))
	if err := s.SetPolicy(p, ""); err != nil {
		t.Fatal(err)
	}
	a := generate(t, s, fields{"input_ids": fits, "sampling_params": fields{"max_new_tokens": nil}})
	if string(a.Meta.Finish) != `{"type":"length","length":39}` || a.Meta.Completion != 39 {
		t.Errorf("got %s", a.Raw)
	}
	if s.InFlight() != 0 {
		t.Errorf("%d in flight", s.InFlight())
	}
}

func TestStream(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"aé stop"}]}`)})
	for name, c := range map[string]struct {
		params fields
		texts  []string
		finish string
	}{
		// é is two byte tokens: its first half is held back.
		"eos":  {fields{}, []string{"a", "a", "aé", "aé ", "aé s", "aé st", "aé sto", "aé stop", "aé stop"}, `{"type":"stop","matched":258}`},
		"stop": {fields{"stop": []string{"stop"}}, []string{"a", "a", "aé", "aé ", "aé ", "aé ", "aé ", "aé "}, `{"type":"stop","matched":"stop"}`},
	} {
		status, raw := call(t, "POST", s.URL()+"/generate", fields{"text": "x", "stream": true, "return_logprob": true, "sampling_params": c.params})
		got, done := chunks(t, raw)
		if status != 200 || !done || len(got) != len(c.texts) {
			t.Fatalf("%s: %d, %d chunks: %s", name, status, len(got), raw)
		}
		for i, a := range got {
			if a.Text != c.texts[i] || len(a.OutputIDs) != i+1 || len(a.Meta.Logprobs) != i+1 || a.Meta.Completion != i+1 {
				t.Errorf("%s: chunk %d is %s, want text %q", name, i, a.Raw, c.texts[i])
			}
			want := "null"
			if i == len(got)-1 {
				want = c.finish
			}
			if string(a.Meta.Finish) != want {
				t.Errorf("%s: chunk %d: finish %s, want %s", name, i, a.Meta.Finish, want)
			}
		}
	}
	status, raw := call(t, "POST", s.URL()+"/generate", fields{"text": "", "stream": true})
	got, done := chunks(t, raw)
	if status != 200 || !done || len(got) != 1 || got[0].Error.Message == "" || !strings.Contains(raw, `"retryable":false`) {
		t.Errorf("got %d %s", status, raw)
	}
	if s.InFlight() != 0 {
		t.Errorf("%d in flight", s.InFlight())
	}
}

// TestFrequencies: what is sampled is what the policy says, also under temperature.
func TestFrequencies(t *testing.T) {
	const n = 4000
	m := modelOf(t, threeWays)
	ask := tokens(t, m, "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n")
	for _, temperature := range []float64{1, 0.5, 2} {
		d, err := m.DistributionAt(ask, temperature)
		if err != nil {
			t.Fatal(err)
		}
		counts := make([]int, len(d))
		for i := range n {
			ids := sampleWhole(t, m, ask, &SamplingParams{Temperature: temperature, TopP: 1, TopK: -1}, requestKey(3, nil, fmt.Sprint("rid", i)))
			counts[slices.IndexFunc(d, func(c Candidate) bool { return slices.Equal(c.IDs, ids) })]++
		}
		for i, c := range d {
			p := math.Exp(c.LogProb)
			sigma := math.Sqrt(p * (1 - p) / n)
			if got := float64(counts[i]) / n; math.Abs(got-p) > 4*sigma {
				t.Errorf("temperature %v: %q came with frequency %v, want %v ± %v", temperature, c.Text, got, p, sigma)
			}
		}
	}
}

func sampleWhole(t testing.TB, m *Model, ask []int32, sp *SamplingParams, key uint64) []int32 {
	t.Helper()
	s := newSampler(m, sp, key, ' ')
	if err := s.start(m, ask, nil); err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for len(ids) == 0 || ids[len(ids)-1] != 258 {
		id, _ := s.next(len(ask)+len(ids), false)
		ids = append(ids, id)
	}
	return ids
}

// TestRestrictions: top_k, top_p and min_p cut the tail and leave the logprobs alone.
func TestRestrictions(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"a","weight":2},{"text":"b","weight":1},{"text":"c","weight":0},{"text":"d","weight":-1}]}`)})
	ids := prompt(t, s, "x")
	lps, err := s.Model().Distribution(ids)
	if err != nil {
		t.Fatal(err)
	}
	half, err := s.Model().DistributionAt(ids, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		params  fields
		allowed string
		all     bool // all allowed ones must come
		lps     []Candidate
	}{
		"none":    {fields{}, "abcd", true, lps},
		"top_k 1": {fields{"top_k": 1}, "a", true, lps},
		"top_k 2": {fields{"top_k": 2}, "ab", true, lps},
		"top_p":   {fields{"top_p": 0.8}, "ab", true, lps}, // 0.64 + 0.24
		"top_p a": {fields{"top_p": 0.5}, "a", true, lps},
		"min_p":   {fields{"min_p": 0.1}, "abc", true, lps},
		"greedy":  {fields{"temperature": 0}, "a", true, lps},
		"hot":     {fields{"temperature": 0.5, "top_k": 2}, "ab", true, half},
	} {
		seen := map[string]int{}
		for i := range 200 {
			c.params["sampling_seed"] = i
			a := generate(t, s, fields{"input_ids": ids, "return_logprob": true, "sampling_params": c.params})
			seen[a.Text]++
			want := float32(c.lps[strings.Index("abcd", a.Text)].LogProb)
			if !strings.Contains(c.allowed, a.Text) || a.logprob(0) != want {
				t.Fatalf("%s: got %s, want one of %s with %v", name, a.Raw, c.allowed, want)
			}
		}
		if len(seen) != len(c.allowed) {
			t.Errorf("%s: saw %v, want all of %s", name, seen, c.allowed)
		}
	}
}

func TestRepeatable(t *testing.T) {
	var texts [2][]string
	for round := range texts {
		s := start(t, Config{Policy: policyOf(t, threeWays), Seed: 9})
		for i := range 30 {
			body := fields{"text": "q", "rid": fmt.Sprintf("%032d", i)}
			if i >= 20 {
				body = fields{"text": "q", "sampling_params": fields{"sampling_seed": i}}
			}
			texts[round] = append(texts[round], generate(t, s, body).Text)
		}
	}
	if !slices.Equal(texts[0], texts[1]) {
		t.Errorf("two runs differ: %v and %v", texts[0], texts[1])
	}
	if slices.Equal(texts[0][:10], texts[0][10:20]) {
		t.Error("rids make no difference")
	}
}

func TestMinNewTokensMasks(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"","weight":3},{"text":"ab","weight":0},{"text":"ac","weight":0}]}`)})
	for i := range 20 {
		a := generate(t, s, fields{"text": "q", "return_logprob": true, "sampling_params": fields{"min_new_tokens": 1, "sampling_seed": i}})
		if !strings.HasPrefix(a.Text, "a") || a.logprob(0) != 0 || !close32(float64(a.logprob(1)), -math.Ln2) {
			t.Fatalf("got %s", a.Raw)
		}
	}
}

func TestPrefixCache(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"reply"}]}`)})
	ids := prompt(t, s, strings.Repeat("long prompt ", 100))
	cached := func(ids []int32) int {
		t.Helper()
		a := generate(t, s, fields{"input_ids": ids})
		if a.Status != 200 {
			t.Fatal(a.Raw)
		}
		return a.Meta.Cached
	}
	if got := cached(ids); got != 0 {
		t.Errorf("first: %d", got)
	}
	if got := cached(ids); got != len(ids)-1 {
		t.Errorf("again: %d, want %d", got, len(ids)-1)
	}
	next := append(slices.Clone(ids), tokens(t, s.Model(), "reply<|im_end|>\n<|im_start|>user\nmore")...)
	if got, want := cached(next), len(ids)+6; got != want {
		t.Errorf("next turn: %d, want %d: the prompt and the reply", got, want)
	}
	other := slices.Clone(ids)
	other[777] = 'X'
	if got := cached(other); got != 777 {
		t.Errorf("changed at 777: %d", got)
	}
	if got := cached([]int32{'z', 'z'}); got != 0 {
		t.Errorf("something else: %d", got)
	}
	if status, raw := call(t, "POST", s.URL()+"/flush_cache", nil); status != 200 {
		t.Fatal(status, raw)
	}
	if got := cached(ids); got != 0 {
		t.Errorf("after a flush: %d", got)
	}
}

func TestPrefixCacheIsBounded(t *testing.T) {
	c := newPrefixCache()
	for i := range maxEntries + 100 {
		ids := make([]int32, 20_000)
		ids[0] = int32(i)
		_, e := c.admit(ids)
		c.extend(e, []int32{1, 2, 3})
	}
	if c.tokens > maxCached || len(c.entries) > maxEntries {
		t.Errorf("%d tokens in %d entries", c.tokens, len(c.entries))
	}
	known := 0
	for _, e := range c.entries {
		known += len(e.hashes)
	}
	if len(c.marks) > known {
		t.Errorf("%d marks for %d hashes", len(c.marks), known)
	}
	_, short := c.admit([]int32{1, 2})
	c.flush()
	c.extend(short, make([]int32, 1000)) // too late
	if c.tokens != 0 || len(c.marks) != 0 {
		t.Error("not empty after a flush")
	}
}

func TestImages(t *testing.T) {
	s := start(t, Config{ImageToken: "<think>", ImageTokens: 4, Policy: policyOf(t, `{"default":[{"text":"nice"}]}`)})
	ids := []int32{'a', 259, 'b', 259}
	a := generate(t, s, fields{"input_ids": ids, "image_data": []string{"x", "y"}, "return_prompt_token_ids": true})
	want := []int32{'a', 259, 259, 259, 259, 'b', 259, 259, 259, 259}
	if !slices.Equal(a.PromptIDs, want) || *a.Meta.PromptTokens != len(want) {
		t.Errorf("got %s", a.Raw)
	}
	if a := generate(t, s, fields{"input_ids": ids, "image_data": "x"}); a.Status != 400 || !strings.Contains(a.Error.Message, "2 image placeholders for 1") {
		t.Errorf("got %d %s", a.Status, a.Raw)
	}
	if r := s.Requests(); r[0].Request.Images != 2 || r[1].Request.Images != 1 {
		t.Errorf("records are %+v", r)
	}
}
