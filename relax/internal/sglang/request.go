package sglang

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Sampling says how tokens are drawn. The server applies no model defaults on /generate, so
// every value is sent.
type Sampling struct {
	// Temperature of the softmax, ≥ 0. 0 is greedy.
	Temperature float64
	// TopP is in (0, 1]; 0 means 1 (off).
	TopP float64
	// TopK bounds the candidates; 0 and -1 mean off.
	TopK int
	// MaxNewTokens is ≥ 1.
	MaxNewTokens int
	// Stop are stop strings, StopTokenIDs stop tokens beside the model's own.
	Stop         []string
	StopTokenIDs []int32
	// Seed is the sampling seed, nil for none.
	Seed *int64
}

func (s *Sampling) validate() error {
	if !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0) {
		return fmt.Errorf("temperature %v: must be a finite number ≥ 0", s.Temperature)
	}
	if !(s.TopP >= 0 && s.TopP <= 1) {
		return fmt.Errorf("top_p %v: must be in (0, 1]", s.TopP)
	}
	if s.TopK < -1 {
		return fmt.Errorf("top_k %d: must be ≥ 1, or -1 for off", s.TopK)
	}
	if s.MaxNewTokens < 1 {
		return fmt.Errorf("max_new_tokens %d: must be ≥ 1", s.MaxNewTokens)
	}
	return nil
}

// A Call is one generation.
type Call struct {
	// RID names the call among those in flight. It must be unique and must not contain '#':
	// the id sent for each attempt is RID, '#' and two digits, so no id is a prefix of another,
	// which matters because SGLang aborts by prefix.
	RID string
	// Session decides the worker and is the routing key for routers. Empty: RID is used.
	Session string
	// Prefix is the prompt's token ids in pieces. They are read until Generate returns.
	Prefix   [][]int32
	Sampling Sampling
	// RoutedExperts asks for Result.RoutedExperts, from position RoutedExpertsStart on. The
	// server must run with --enable-return-routed-experts, and must be called directly:
	// routers drop the wish.
	RoutedExperts      bool
	RoutedExpertsStart int
	// Placed, if not nil, is told the URL of each attempt's worker before the attempt is sent, in the
	// goroutine of Generate.
	Placed func(worker string)
}

func (c *Call) validate() error {
	if c.RID == "" || strings.ContainsRune(c.RID, ridMark) {
		return fmt.Errorf("rid %q: must not be empty or contain %q", c.RID, ridMark)
	}
	if c.promptLen() == 0 {
		return errors.New("prefix: must hold at least one token")
	}
	if c.RoutedExpertsStart < 0 || c.RoutedExpertsStart > c.promptLen() {
		return fmt.Errorf("routed experts start %d: must be in [0, %d]", c.RoutedExpertsStart, c.promptLen())
	}
	return c.Sampling.validate()
}

func (c *Call) promptLen() int {
	n := 0
	for _, segment := range c.Prefix {
		n += len(segment)
	}
	return n
}

func (c *Call) key() string {
	if c.Session != "" {
		return c.Session
	}
	return c.RID
}

// ridMark parts the caller's rid from the attempt's number.
const ridMark = '#'

// appendAttemptRID writes the id of one attempt: a fixed width after the caller's rid.
func appendAttemptRID(dst []byte, rid string, attempt int) []byte {
	dst = append(dst, rid...)
	return append(dst, ridMark, byte('0'+attempt/10%10), byte('0'+attempt%10))
}

// A body is one call's JSON. The part that all attempts share is written once.
type body struct {
	buf    []byte
	shared int
}

var bodies = sync.Pool{New: func() any { return new(body) }}

// newBody writes the shared part. Give it back with release.
func newBody(call *Call, sendSession bool) *body {
	b := bodies.Get().(*body)
	b.buf = appendShared(b.buf[:0], call, sendSession)
	b.shared = len(b.buf)
	return b
}

// forAttempt returns the complete JSON, valid until the next call or release.
func (b *body) forAttempt(rid string) []byte {
	b.buf = append(b.buf[:b.shared], `,"rid":`...)
	b.buf = appendString(b.buf, rid)
	b.buf = append(b.buf, '}')
	return b.buf
}

func (b *body) release() {
	const keep = 4 << 20 // one giant prompt must not stay in the pool
	if cap(b.buf) <= keep {
		bodies.Put(b)
	}
}

func appendShared(dst []byte, call *Call, sendSession bool) []byte {
	dst = append(dst, `{"input_ids":[`...)
	for _, segment := range call.Prefix {
		dst = appendIDs(dst, segment)
	}
	dst = append(dst[:len(dst)-1], `],"sampling_params":`...) // the last comma goes
	dst = appendSampling(dst, &call.Sampling)
	dst = append(dst, `,"return_logprob":true,"stream":false`...)
	if sendSession && call.Session != "" {
		dst = append(dst, `,"session_id":`...)
		dst = appendString(dst, call.Session)
	}
	if call.RoutedExperts {
		dst = append(dst, `,"return_routed_experts":true,"routed_experts_start_len":`...)
		dst = strconv.AppendInt(dst, int64(call.RoutedExpertsStart), 10)
	}
	return dst
}

// appendSampling writes only names that every server version knows: an unknown one is a 500.
func appendSampling(dst []byte, s *Sampling) []byte {
	topP, topK := s.TopP, s.TopK
	if topP == 0 {
		topP = 1
	}
	if topK == 0 {
		topK = -1
	}
	dst = append(dst, `{"temperature":`...)
	dst = strconv.AppendFloat(dst, s.Temperature, 'g', -1, 64)
	dst = append(dst, `,"top_p":`...)
	dst = strconv.AppendFloat(dst, topP, 'g', -1, 64)
	dst = append(dst, `,"top_k":`...)
	dst = strconv.AppendInt(dst, int64(topK), 10)
	dst = append(dst, `,"max_new_tokens":`...)
	dst = strconv.AppendInt(dst, int64(s.MaxNewTokens), 10)
	if len(s.Stop) > 0 {
		dst = append(dst, `,"stop":[`...)
		for i, text := range s.Stop {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendString(dst, text)
		}
		dst = append(dst, ']')
	}
	if len(s.StopTokenIDs) > 0 {
		dst = append(dst, `,"stop_token_ids":[`...)
		dst = appendIDs(dst, s.StopTokenIDs)
		dst[len(dst)-1] = ']'
	}
	if s.Seed != nil {
		dst = append(dst, `,"sampling_seed":`...)
		dst = strconv.AppendInt(dst, *s.Seed, 10)
	}
	return append(dst, `,"skip_special_tokens":false,"no_stop_trim":true,"spaces_between_special_tokens":false}`...)
}

const digitPairs = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849" +
	"5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899"

// appendIDs writes each id and a comma. A history of 32 k ids is written for every turn, so
// this does two digits at a time into room reserved once.
func appendIDs(dst []byte, ids []int32) []byte {
	const usual = 7 // six digits and a comma; rarer wide ones make it grow once more
	dst = slices.Grow(dst, len(ids)*usual)
	n := len(dst)
	for _, id := range ids {
		v := uint32(id)
		if id < 0 {
			dst = append(dst[:n], '-')
			n, v = n+1, -v
		}
		width := decimalWidth(v)
		if cap(dst)-n < width+1 {
			dst = slices.Grow(dst[:n], len(ids)*usual)
		}
		dst = dst[:n+width+1]
		i := n + width
		dst[i] = ','
		for v >= 100 {
			pair := v % 100 * 2
			v /= 100
			i -= 2
			dst[i], dst[i+1] = digitPairs[pair], digitPairs[pair+1]
		}
		if v >= 10 {
			dst[i-2], dst[i-1] = digitPairs[v*2], digitPairs[v*2+1]
		} else {
			dst[i-1] = '0' + byte(v)
		}
		n += width + 1
	}
	return dst
}

// decimalWidth is the number of digits of v.
func decimalWidth(v uint32) int {
	width := 1
	for limit := uint64(10); uint64(v) >= limit; limit *= 10 {
		width++
	}
	return width
}

const hexDigits = "0123456789abcdef"

// appendString writes s as a JSON string; bytes that are no UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
			i++
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			i++
		case c < utf8.RuneSelf:
			dst = append(dst, c)
			i++
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += size
		}
	}
	return append(dst, '"')
}
