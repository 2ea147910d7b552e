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
// the same length; a stop token is included.
type Result struct {
	IDs      []int32
	Logprobs []float32
	Finish   Finish
	// WeightVersion is the version the server had when it answered, "" if it reports none.
	WeightVersion string
	// PromptTokens and CachedTokens are the server's counts, 0 if it reports none.
	PromptTokens, CachedTokens int
	// RID is the id of the attempt that answered, Worker the URL that did, Attempts how many
	// were sent.
	RID, Worker string
	Attempts    int
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
	default:
		_, err = s.raw()
	}
	return err
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
	switch matched := r.finish.Matched.(type) {
	case string:
		out.Finish.Matched = matched
	case float64:
		out.Finish.Matched = fmt.Sprintf("%.0f", matched)
	}
	return out
}

// readReply turns a 200 body into a Result or a typed error.
func readReply(body []byte, rid, worker string, prompt int) (Result, error) {
	r := replies.Get().(*reply)
	defer replies.Put(r)
	if err := r.parse(body); err != nil {
		return Result{}, &ReplyError{RID: rid, Worker: worker, Problem: err.Error()}
	}
	if r.hasFinish && r.finish.Type == FinishAbort && r.finish.StatusCode != nil {
		return Result{}, statusFailure(rid, worker, *r.finish.StatusCode, r.finish.Message)
	}
	if problem := r.check(prompt); problem != "" {
		return Result{}, &ReplyError{RID: rid, Worker: worker, Problem: problem}
	}
	out := r.result()
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
