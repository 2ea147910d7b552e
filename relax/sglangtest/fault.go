package sglangtest

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// A Fault makes one /generate go wrong in a chosen way. Several fields may be set; they
// strike in the order in which they are listed.
type Fault struct {
	// Delay is spent in the waiting queue, on top of Config.StartDelay. JSON: delay_ms.
	Delay time.Duration `json:"-"`
	// HangForever never answers, not even to an abort, until the client goes or the server closes.
	HangForever bool `json:"hang_forever,omitempty"`
	// LoseAborts is how many aborts of the request do nothing, as those do that come before the
	// request. The others act after AbortLag (JSON: abort_lag_ms).
	LoseAborts int           `json:"lose_aborts,omitempty"`
	AbortLag   time.Duration `json:"-"`
	// Status, if not 0, is answered instead of a generation, with Header and Body.
	Status int               `json:"status,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	Body   string            `json:"body,omitempty"`
	// AbortAfter ends the generation with an abort nobody asked for after so many tokens;
	// -1: before the first. AbortMessage (default "Aborted") and AbortStatus (0: null) fill its
	// finish reason; AbortMessage without AbortAfter has no effect.
	AbortAfter   int    `json:"abort_after,omitempty"`
	AbortMessage string `json:"abort_message,omitempty"`
	AbortStatus  int    `json:"abort_status,omitempty"`
	// NaNStop ends the generation after so many tokens as a NaN in the logits does: the last id
	// becomes an EOS and the finish reason is stop, matched "NaN happened".
	NaNStop int `json:"nan_stop,omitempty"`
	// DropConnection closes the connection without an answer after DropAfter tokens (0: before the first).
	DropConnection bool `json:"drop_connection,omitempty"`
	DropAfter      int  `json:"drop_after,omitempty"`
	// WrongLogprobCount adds so many logprob entries (the last one repeated), or takes some away.
	WrongLogprobCount int `json:"wrong_logprob_count,omitempty"`
	// WrongIDs makes the ids in the logprob entries differ from output_ids.
	WrongIDs bool `json:"wrong_ids,omitempty"`
	// OmitOutputIDs leaves output_ids out, as servers before 0.4.7 did.
	OmitOutputIDs bool `json:"omit_output_ids,omitempty"`
	// WrongPromptTokens is added to prompt_tokens, as a silent truncation would.
	WrongPromptTokens int `json:"wrong_prompt_tokens,omitempty"`
	// FinishOverride replaces the finish reason: any JSON value.
	FinishOverride json.RawMessage `json:"finish_override,omitempty"`
	// WeightVersion replaces weight_version.
	WeightVersion string `json:"weight_version,omitempty"`
	// CutBody sends only so many bytes of a unary answer's body and closes the connection.
	CutBody int `json:"cut_body,omitempty"`
}

type faultFields Fault

type faultJSON struct {
	faultFields
	DelayMS    float64 `json:"delay_ms,omitempty"`
	AbortLagMS float64 `json:"abort_lag_ms,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (f Fault) MarshalJSON() ([]byte, error) {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return json.Marshal(faultJSON{faultFields(f), ms(f.Delay), ms(f.AbortLag)})
}

// UnmarshalJSON implements json.Unmarshaler. Unknown fields are errors.
func (f *Fault) UnmarshalJSON(raw []byte) error {
	var j faultJSON
	if err := decodeStrict(raw, &j); err != nil {
		return err
	}
	*f = Fault(j.faultFields)
	f.Delay, f.AbortLag = milliseconds(j.DelayMS), milliseconds(j.AbortLagMS)
	return nil
}

// milliseconds converts without the overflow a foreign number could cause.
func milliseconds(ms float64) time.Duration {
	if !(ms > 0) {
		return 0
	}
	return time.Duration(math.Min(ms*float64(time.Millisecond), math.MaxInt64/2))
}

// A FaultRule says which requests a Fault strikes. The first rule that holds is taken.
type FaultRule struct {
	// RIDPrefix, if set, must begin the request's rid.
	RIDPrefix string `json:"rid_prefix,omitempty"`
	// Skip lets so many matching requests pass first, Every then takes only each n-th (0 and 1:
	// all), and Count bounds how many are struck (0: no bound).
	Skip  int `json:"skip,omitempty"`
	Every int `json:"every,omitempty"`
	Count int `json:"count,omitempty"`
	// Fault is what happens.
	Fault Fault `json:"fault"`
}

// ParseFaults reads a JSON list of fault rules.
func ParseFaults(document []byte) ([]FaultRule, error) {
	var rules []FaultRule
	if err := decodeStrict(document, &rules); err != nil {
		return nil, fmt.Errorf("fault rules: %w", err)
	}
	for i, r := range rules {
		if r.Skip < 0 || r.Every < 0 || r.Count < 0 {
			return nil, fmt.Errorf("fault rules: rule %d: skip, every and count must not be negative", i)
		}
	}
	return rules, nil
}

// A faultPlan is a list of rules with their counts. Its owner guards it.
type faultPlan struct {
	rules  []FaultRule
	seen   []int
	struck []int
}

func newFaultPlan(rules []FaultRule) *faultPlan {
	return &faultPlan{rules: rules, seen: make([]int, len(rules)), struck: make([]int, len(rules))}
}

func (p *faultPlan) pick(rid string) *Fault {
	for i := range p.rules {
		r := &p.rules[i]
		if !strings.HasPrefix(rid, r.RIDPrefix) {
			continue
		}
		n := p.seen[i] - r.Skip
		p.seen[i]++
		if n < 0 || r.Every > 1 && n%r.Every != 0 || r.Count > 0 && p.struck[i] >= r.Count {
			continue
		}
		p.struck[i]++
		return &r.Fault
	}
	return nil
}
