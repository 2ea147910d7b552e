package sglangtest

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// appendAnswer appends the JSON of a run as it stands: the unary answer, or a chunk of a
// stream. now is when the message is assembled.
func (r *run) appendAnswer(b []byte, now time.Time) []byte {
	ids := r.said
	if r.finished && r.finish.retracted && r.req.Stream && len(ids) > 0 {
		ids = ids[len(ids)-1:] // what the real server does there
	}
	b = append(b, `{"text":`...)
	b = appendString(b, r.text())
	if r.fault == nil || !r.fault.OmitOutputIDs {
		b = append(b, `,"output_ids":`...)
		b = appendIDs(b, ids)
	}
	b = append(b, `,"meta_info":{"id":`...)
	b = appendString(b, r.req.RID)
	b = append(b, `,"finish_reason":`...)
	b = r.appendFinish(b)
	b = append(b, `,"weight_version":`...)
	b = appendString(b, r.weightVersion())
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(len(r.said)), 10)
	b = append(b, `,"e2e_latency":`...)
	b = strconv.AppendFloat(b, now.Sub(r.arrived).Seconds(), 'g', -1, 64)
	if !r.finished || !r.finish.inQueue {
		b = r.appendCounts(b, now)
		if r.req.RoutedExperts && r.finished {
			b = r.appendExperts(b)
		}
	}
	if r.req.ReturnLogprob {
		b = r.appendLogprobs(b)
	}
	b = append(b, '}')
	if r.req.ReturnPromptIDs && (!r.finished || !r.finish.inQueue) {
		b = append(b, `,"prompt_token_ids":`...)
		b = appendIDs(b, r.prompt)
	}
	return append(b, '}')
}

// appendCounts appends what an answer from the waiting queue lacks.
func (r *run) appendCounts(b []byte, now time.Time) []byte {
	prompt := len(r.prompt)
	if r.fault != nil {
		prompt += r.fault.WrongPromptTokens
	}
	b = append(b, `,"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(r.cached), 10)
	b = append(b, `,"reasoning_tokens":0,"num_retractions":`...)
	b = strconv.AppendInt(b, int64(r.server.retractionsOf(r)), 10)
	b = append(b, `,"dp_rank":`...)
	if r.req.RoutedDPRank == nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, int64(*r.req.RoutedDPRank), 10)
	}
	if k := int64(r.server.cfg.Drafts); k > 0 {
		said := int64(len(r.said))
		steps := (said + k) / (k + 1)
		b = append(b, `,"spec_verify_ct":`...)
		b = strconv.AppendInt(b, steps, 10)
		b = append(b, `,"spec_num_proposed_drafts":`...)
		b = strconv.AppendInt(b, steps*k, 10)
		b = append(b, `,"spec_num_correct_drafts":`...)
		b = strconv.AppendInt(b, said-steps, 10)
	}
	b = append(b, `,"response_sent_to_client_ts":`...)
	return strconv.AppendFloat(b, float64(now.UnixMicro())/1e6, 'f', 6, 64)
}

func (r *run) appendLogprobs(b []byte) []byte {
	n := len(r.lps)
	wrongIDs := false
	if r.fault != nil {
		wrongIDs = r.fault.WrongIDs
		if n > 0 {
			n = max(0, n+r.fault.WrongLogprobCount)
		}
	}
	b = append(b, `,"input_token_logprobs":[],"output_token_logprobs":[`...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		at := min(i, len(r.lps)-1)
		id := r.said[at]
		if wrongIDs {
			id ^= 1
		}
		b = append(b, '[')
		b = appendLogprob(b, r.lps[at])
		b = append(b, ',')
		b = strconv.AppendInt(b, int64(id), 10)
		b = append(b, ',')
		b = r.appendTokenText(b, id)
		b = append(b, ']')
	}
	b = append(b, `],"output_token_logprobs_length":`...)
	return strconv.AppendInt(b, int64(n), 10)
}

func (r *run) appendTokenText(b []byte, id int32) []byte {
	if !r.req.ReturnText {
		return append(b, "null"...)
	}
	text, err := r.server.cfg.Tokenizer.Decode([]int32{id})
	if err != nil {
		return append(b, "null"...) // an id made wrong on purpose
	}
	return appendString(b, text)
}

func (r *run) weightVersion() string {
	if r.fault != nil && r.fault.WeightVersion != "" {
		return r.fault.WeightVersion
	}
	return r.server.state.Load().version
}

func (r *run) appendFinish(b []byte) []byte {
	if !r.finished {
		return append(b, "null"...)
	}
	if r.fault != nil && len(r.fault.FinishOverride) > 0 {
		return append(b, r.fault.FinishOverride...)
	}
	switch f := r.finish; f.kind {
	case finishStopID:
		b = append(b, `{"type":"stop","matched":`...)
		b = strconv.AppendInt(b, int64(f.id), 10)
	case finishStopText:
		b = append(b, `{"type":"stop","matched":`...)
		b = appendString(b, f.text)
	case finishLength:
		b = append(b, `{"type":"length","length":`...)
		b = strconv.AppendInt(b, int64(r.limit), 10)
	case finishAbort:
		b = append(b, `{"type":"abort","message":`...)
		b = appendString(b, f.text)
		if f.inQueue {
			break
		}
		b = append(b, `,"status_code":`...)
		if f.status == 0 {
			b = append(b, `null,"err_type":null`...)
			break
		}
		b = strconv.AppendInt(b, int64(f.status), 10)
		b = append(b, `,"err_type":"SimulatedError"`...)
	}
	return append(b, '}')
}

// text is what the client may read: without the stop, unless it asked to keep it; in a
// stream without an end that may still become something else.
func (r *run) text() string {
	sp := &r.req.Sampling
	ids := r.said
	if r.finished && r.finish.kind == finishStopID && !sp.NoStopTrim {
		ids = ids[:len(ids)-1]
	}
	text := r.server.decode(ids, sp.SkipSpecialTokens)
	if r.finished && r.finish.kind == finishStopText && !sp.NoStopTrim {
		if at := strings.Index(text, r.finish.text); at >= 0 {
			text = text[:at]
		}
	}
	if !r.finished {
		text = strings.TrimRight(text, "\ufffd")
		text = text[:len(text)-pendingStop(text, sp.Stop)]
	}
	return text
}

// pendingStop is the length of the longest end of text that a stop string begins with.
func pendingStop(text string, stops []string) int {
	longest := 0
	for _, stop := range stops {
		for n := min(len(stop), len(text)); n > longest; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}

func appendIDs(b []byte, ids []int32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
}

// appendLogprob writes the exact value of a float32, as Python prints it.
func appendLogprob(b []byte, lp float32) []byte {
	if lp == 0 {
		return append(b, '0', '.', '0') // never −0
	}
	if math.IsInf(float64(lp), 0) || lp != lp {
		return append(b, "null"...) // JSON has neither
	}
	return strconv.AppendFloat(b, float64(lp), 'g', -1, 64)
}

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string. Text that is not UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
