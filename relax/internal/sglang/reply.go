package sglang

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/bytedance/sonic"
)

// A Finish says why a generation ended.
type Finish struct {
	// Type is "stop", "length" or "abort".
	Type string
	// Matched is the stop string that ended it, or the stop token's id in digits.
	Matched string
	// Message is the server's text for an abort.
	Message string
}

// Finish types.
const (
	FinishStop   = "stop"
	FinishLength = "length"
	FinishAbort  = "abort"
)

// A Result is what one generation produced. IDs and Logprobs belong to the caller and have
// the same length, which is never above MaxNewTokens; a stop token is included.
type Result struct {
	IDs      []int32
	Logprobs []float32
	Finish   Finish
	// Foreign is true for an abort that was not asked for through this client, as a weight
	// update makes: the generation is to be continued, after a pause if it brought no token.
	Foreign bool
	// Unsent is true for a call that was aborted before it was sent to a server.
	Unsent bool
	// WeightVersion is the version the server had when it answered, "" if it reports none.
	WeightVersion string
	// PromptTokens and CachedTokens are the server's counts, 0 if it reports none.
	PromptTokens, CachedTokens int
	// Spec are the counts of speculative decoding.
	Spec Spec
	// RoutedExperts is the server's base64 text as it came, if Call.RoutedExperts asked for it:
	// int32 of positions [start, prompt+output-1) × layers × top k. Nil if there is none, as for a
	// request that was aborted in the queue.
	RoutedExperts []byte
	// RID is the id of the attempt that answered, Worker the URL that did, Attempts how many
	// were sent.
	RID, Worker string
	Attempts    int
}

// A Count is a number a server gave, or did not: zero is data, absent is missing.
type Count struct {
	N     int
	Known bool
}

// Plus adds counts; the sum is known if one of them is.
func (c Count) Plus(other Count) Count { return Count{c.N + other.N, c.Known || other.Known} }

// Spec are the counts of speculative decoding: draft tokens that were accepted and proposed,
// and verification steps.
type Spec struct {
	Accepted, Proposed, Verified Count
}

// Plus adds the counts of another attempt.
func (s Spec) Plus(other Spec) Spec {
	return Spec{s.Accepted.Plus(other.Accepted), s.Proposed.Plus(other.Proposed), s.Verified.Plus(other.Verified)}
}

// specNames are the pairs of names servers of different ages have, the newest first.
var specNames = [...][2]string{
	{"spec_num_correct_drafts", "spec_num_proposed_drafts"},
	{"spec_accepted_drafts", "spec_proposed_drafts"},
	{"spec_accept_token_num", "spec_draft_token_num"},
}

// A reply is the parsed body of one answer before it is judged.
type reply struct {
	ids, pairIDs  []int32
	logprobs      []float32
	hasIDs        bool
	hasPairs      bool
	finish        finishReason
	hasFinish     bool
	weightVersion string
	prompt        int // these are -1 when absent
	cached        int
	completion    int
	spec          [len(specNames)][2]Count
	verified      Count
	experts       []byte // into the body
}

// finishReason is meta_info.finish_reason.
type finishReason struct {
	Type       string `json:"type"`
	Matched    any    `json:"matched"`
	Message    string `json:"message"`
	StatusCode *int   `json:"status_code"`
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// parse reads body. Slices of r are reused, nothing of body is kept.
func (r *reply) parse(body []byte) error {
	*r = reply{pairIDs: r.pairIDs[:0], prompt: -1, cached: -1, completion: -1}
	if !sonic.Valid(body) {
		return errors.New("not valid JSON")
	}
	s := scanner{b: body}
	if s.peek() != '{' {
		return fmt.Errorf("expected a JSON object, got %q", first(body))
	}
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "output_ids":
			return in("output_ids", r.parseIDs(&s))
		case "meta_info":
			return in("meta_info", s.object(func(key []byte) error { return r.parseMeta(&s, key) }))
		default:
			_, err := s.raw()
			return err
		}
	})
	return err
}

func in(field string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

func (r *reply) parseIDs(s *scanner) error {
	if s.peek() == 'n' { // null: a server that has no ids to give
		s.word()
		return nil
	}
	if end := bytes.IndexByte(s.b[s.i:], ']'); end > 0 {
		r.ids = make([]int32, 0, bytes.Count(s.b[s.i:s.i+end], []byte{','})+1)
	}
	r.hasIDs = true
	return s.array(func() error {
		id, err := s.id()
		r.ids = append(r.ids, id)
		return err
	})
}

func (r *reply) parseMeta(s *scanner, key []byte) (err error) {
	switch string(key) {
	case "output_token_logprobs":
		return in("output_token_logprobs", r.parsePairs(s))
	case "finish_reason":
		raw, err := s.raw()
		if err != nil || raw[0] == 'n' {
			return err
		}
		if raw[0] != '{' {
			return fmt.Errorf("finish_reason: expected an object, got %q", first(raw))
		}
		r.hasFinish = true
		return in("finish_reason", sonic.Unmarshal(raw, &r.finish))
	case "weight_version":
		raw, err := s.raw()
		if err != nil || raw[0] == 'n' {
			return err
		}
		if raw[0] != '"' {
			r.weightVersion = string(raw)
			return nil
		}
		return in("weight_version", sonic.Unmarshal(raw, &r.weightVersion))
	case "prompt_tokens":
		r.prompt, err = s.count()
	case "cached_tokens":
		r.cached, err = s.count()
	case "completion_tokens":
		r.completion, err = s.count()
	case "routed_experts":
		return in("routed_experts", r.parseExperts(s))
	default:
		return r.parseSpec(s, key)
	}
	return err
}

// parseSpec takes the counts of speculative decoding and passes over the rest.
func (r *reply) parseSpec(s *scanner, key []byte) error {
	if !bytes.HasPrefix(key, []byte("spec_")) {
		_, err := s.raw()
		return err
	}
	n, err := s.count()
	if err != nil || n < 0 {
		return err
	}
	if string(key) == "spec_verify_ct" {
		r.verified = Count{n, true}
	}
	for i, names := range specNames {
		for j, name := range names {
			if string(key) == name {
				r.spec[i][j] = Count{n, true}
			}
		}
	}
	return nil
}

// parseExperts takes a base64 text, which holds no escapes, or null.
func (r *reply) parseExperts(s *scanner) error {
	if s.peek() == 'n' {
		s.word()
		return nil
	}
	text, err := s.str()
	if err != nil || bytes.IndexByte(text, '\\') >= 0 {
		return errors.New("expected a base64 string")
	}
	r.experts = text
	return nil
}

// parsePairs reads [[logprob, id, text or null], …].
func (r *reply) parsePairs(s *scanner) error {
	if s.peek() == 'n' {
		s.word()
		return nil
	}
	r.hasPairs = true
	r.logprobs = make([]float32, 0, max(len(r.ids), 16))
	return s.array(func() error {
		if !s.take('[') {
			return errShape
		}
		logprob, err := s.float()
		if err != nil || !s.take(',') {
			return errShape
		}
		id, err := s.id()
		if err != nil {
			return err
		}
		r.logprobs = append(r.logprobs, logprob)
		r.pairIDs = append(r.pairIDs, id)
		for s.take(',') {
			if _, err := s.raw(); err != nil {
				return err
			}
		}
		if !s.take(']') {
			return errShape
		}
		return nil
	})
}

// check says what is wrong with a reply to a prompt of the given length, or "".
func (r *reply) check(prompt int) string {
	if !r.hasFinish || r.finish.Type == "" {
		return "meta_info.finish_reason is missing: expected an object with a type"
	}
	if matched, ok := r.finish.Matched.(string); ok && matched == "NaN happened" {
		return "the server sampled from NaN: its weights or its kernels are broken"
	}
	switch r.finish.Type {
	case FinishStop, FinishLength, FinishAbort:
	default:
		return fmt.Sprintf("finish_reason type %q is not stop, length or abort", shorten(r.finish.Type))
	}
	if r.hasIDs && !r.hasPairs && len(r.ids) > 0 {
		return fmt.Sprintf("%d output_ids without output_token_logprobs", len(r.ids))
	}
	if r.hasIDs && len(r.ids) != len(r.pairIDs) {
		return fmt.Sprintf("%d output_ids but %d output_token_logprobs", len(r.ids), len(r.pairIDs))
	}
	for i := range r.ids {
		if r.ids[i] != r.pairIDs[i] {
			return fmt.Sprintf("output_ids[%d] is %d but output_token_logprobs[%d] is for %d", i, r.ids[i], i, r.pairIDs[i])
		}
	}
	for i, logprob := range r.logprobs {
		if math.IsNaN(float64(logprob)) || math.IsInf(float64(logprob), 0) {
			return fmt.Sprintf("output_token_logprobs[%d] is not a finite number", i)
		}
	}
	if r.finish.Type == FinishAbort {
		return "" // an aborted request's other counts may lag behind what it returns
	}
	if r.completion >= 0 && r.completion != len(r.logprobs) {
		return fmt.Sprintf("completion_tokens is %d but %d tokens came", r.completion, len(r.logprobs))
	}
	if r.prompt > 0 && r.prompt != prompt {
		return fmt.Sprintf("prompt_tokens is %d but %d were sent: is the server truncating prompts?", r.prompt, prompt)
	}
	return ""
}

// result moves the reply into a Result; the reply keeps none of its slices.
func (r *reply) result() Result {
	ids := r.ids
	if !r.hasIDs {
		ids = append([]int32(nil), r.pairIDs...)
	}
	out := Result{
		IDs:           ids,
		Logprobs:      r.logprobs,
		Finish:        Finish{Type: r.finish.Type, Message: shorten(r.finish.Message)},
		WeightVersion: r.weightVersion,
		PromptTokens:  max(r.prompt, 0),
		CachedTokens:  max(r.cached, 0),
	}
	if r.experts != nil {
		out.RoutedExperts = bytes.Clone(r.experts)
	}
	out.Spec.Verified = r.verified
	for _, pair := range r.spec {
		if pair[0].Known || pair[1].Known {
			out.Spec.Accepted, out.Spec.Proposed = pair[0], pair[1]
			break
		}
	}
	switch matched := r.finish.Matched.(type) {
	case string:
		out.Finish.Matched = matched
	case float64:
		out.Finish.Matched = fmt.Sprintf("%.0f", matched)
	}
	return out
}

// cut takes what a server sampled beyond the budget, as some do when they verify several draft
// tokens in one step: the tokens before are as good, and the reason is the budget.
func (r *Result) cut(budget int) {
	if budget > 0 && len(r.IDs) > budget {
		r.IDs, r.Logprobs = r.IDs[:budget], r.Logprobs[:budget]
		r.Finish = Finish{Type: FinishLength}
	}
}

// readReply turns a 200 body into a Result or a typed error.
func readReply(body []byte, rid, worker string, call *Call) (Result, error) {
	r := replies.Get().(*reply)
	defer replies.Put(r)
	if err := r.parse(body); err != nil {
		return Result{}, &ReplyError{RID: rid, Worker: worker, Problem: err.Error()}
	}
	if r.hasFinish && r.finish.Type == FinishAbort && r.finish.StatusCode != nil {
		return Result{}, statusFailure(rid, worker, *r.finish.StatusCode, r.finish.Message)
	}
	if problem := r.check(call.promptLen()); problem != "" {
		return Result{}, &ReplyError{RID: rid, Worker: worker, Problem: problem}
	}
	out := r.result()
	r.experts = nil
	out.cut(call.Sampling.MaxNewTokens)
	out.RID, out.Worker = rid, worker
	return out, nil
}

// first shows the start of foreign bytes.
func first(b []byte) string {
	const n = 60
	if len(b) > n {
		b = b[:n]
	}
	return string(b)
}
