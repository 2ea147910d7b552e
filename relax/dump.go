package relax

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// sessionLine is a Session's line in a dump: {"session": <trace>}.
func sessionLine(t *observe.Trace) func([]byte) ([]byte, error) {
	return func(dst []byte) ([]byte, error) {
		start := len(dst)
		dst, err := t.AppendLine(append(dst, `{"session":`...))
		if err != nil {
			return dst[:start], err
		}
		return append(dst[:len(dst)-1], "}\n"...), nil
	}
}

// dumpRows leaves the rows of a delivered Group to be written.
func (t *tracer) dumpRows(g *group, rollout int64, format *chat.Format) {
	var records []record
	debug, results := t.files.rowFile(stepName(&rollout, g.rules.mode)), t.files.resultFile(rollout, g.rules.mode)
	for i := range g.rows {
		d := dumpedRow{row: &g.rows[i], rollout: rollout, format: format}
		if g.origin != nil {
			d.dataset = g.origin.dataset.Name
		}
		entries := 8 + d.row.Len()/100 // its tokens stay until it is written
		if debug != "" {
			records = append(records, record{optionDebug, debug, d.appendDebug, entries})
		}
		if results != "" {
			records = append(records, record{optionResults, results, d.appendResult, entries})
		}
	}
	t.leave(records)
}

// A dumpedRow spells a row for dumps. Its row must not change any more.
type dumpedRow struct {
	row     *batch.Row
	rollout int64
	dataset string // of an Eval
	format  *chat.Format
}

// rowHead is what both kinds of lines begin with. Numbers that are unset are null.
type rowHead struct {
	Rollout        int64           `json:"rollout_id"`
	Dataset        string          `json:"dataset,omitempty"`
	SampleIndex    int64           `json:"sample_index"`
	GroupIndex     int64           `json:"group_index"`
	SessionSeq     int32           `json:"session_seq"`
	Partition      int64           `json:"partition"`
	Prompt         string          `json:"prompt"`
	Response       string          `json:"response"`
	Label          json.RawMessage `json:"label"`
	Reward         json.RawMessage `json:"reward"`
	RawReward      *float64        `json:"raw_reward"`
	Advantage      *float64        `json:"advantage"`
	PromptLength   int             `json:"prompt_length"`
	ResponseLength int             `json:"response_length"`
	TotalLength    int             `json:"total_length"`
	// TrainedLength counts tokens with loss mask 1.
	TrainedLength  int              `json:"effective_response_length"`
	ImageCount     int              `json:"image_count"`
	AgentTurns     int32            `json:"agent_turns"`
	AbortCount     int32            `json:"abort_count"`
	Status         string           `json:"status"`
	WeightVersions []dumpedSegment  `json:"weight_versions"`
	Turns          []dumpedTurn     `json:"turn_table"`
	Meta           *json.RawMessage `json:"meta,omitempty"`
	// SessionID, Name and Metadata are those of meta, where that is left out.
	SessionID string          `json:"session_id"`
	Name      string          `json:"name,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

type dumpedSegment struct {
	Start   int   `json:"start"`
	Version int64 `json:"version"`
}

type dumpedTurn struct {
	Start     int      `json:"start"`
	Length    int      `json:"response_length"`
	Advantage *float64 `json:"advantage"`
	Masked    bool     `json:"masked,omitempty"`
}

// appendResult writes a line for people (reference pipeline 7.5).
func (d dumpedRow) appendResult(dst []byte) ([]byte, error) {
	head, err := d.head()
	if err != nil {
		return dst, err
	}
	raw, err := json.Marshal(head)
	if err != nil {
		return dst, err
	}
	return append(append(dst, raw...), '\n'), nil
}

// appendDebug writes {"row": {…}} with all tokens.
func (d dumpedRow) appendDebug(dst []byte) ([]byte, error) {
	head, err := d.head()
	if err != nil {
		return dst, err
	}
	meta := json.RawMessage(d.row.Meta)
	head.Meta, head.Metadata = &meta, nil
	raw, err := json.Marshal(head)
	if err != nil {
		return dst, err
	}
	dst = append(append(dst, `{"row":`...), raw[:len(raw)-1]...)
	return append(d.appendTokens(dst), "}}\n"...), nil
}

// head decodes the row's text, which is slow.
func (d dumpedRow) head() (rowHead, error) {
	r := d.row
	var meta struct {
		SessionID string          `json:"session_id"`
		Name      string          `json:"name"`
		Reward    json.RawMessage `json:"reward"`
		Metadata  json.RawMessage `json:"metadata"`
	}
	var labelled struct {
		Label json.RawMessage `json:"label"`
	}
	if err := json.Unmarshal(r.Meta, &meta); err != nil {
		return rowHead{}, err
	}
	if err := json.Unmarshal(meta.Metadata, &labelled); err != nil {
		return rowHead{}, err
	}
	head := rowHead{
		Rollout: d.rollout, Dataset: d.dataset, SampleIndex: r.SampleIndex, GroupIndex: r.GroupID, SessionSeq: r.SessionSeq,
		Partition: r.Partition, Label: labelled.Label, Reward: meta.Reward,
		RawReward: known(float64(r.RawReward)), Advantage: known(float64(r.Advantage)),
		PromptLength: r.PromptLen, TotalLength: r.Len(), ResponseLength: r.Len() - r.PromptLen, TrainedLength: r.Trained(),
		AgentTurns: r.Turns, AbortCount: r.Aborts, Status: "completed",
		SessionID: meta.SessionID, Name: meta.Name, Metadata: meta.Metadata,
	}
	if r.Status == batch.Truncated {
		head.Status = "truncated"
	}
	for _, s := range r.Segments {
		head.WeightVersions = append(head.WeightVersions, dumpedSegment{s.Start, s.WeightVersion})
	}
	for _, t := range r.TurnTable {
		head.Turns = append(head.Turns, dumpedTurn{t.Start, t.Len, known(float64(t.Advantage)), t.Masked})
	}
	ids := make([]int32, 0, head.TotalLength)
	for _, p := range r.Pieces {
		ids = append(ids, p.Tokens...)
	}
	head.Prompt, head.Response = d.text(ids[:r.PromptLen]), d.text(ids[r.PromptLen:])
	return head, nil
}

// text is what ids spell; what the tokenizer refuses is left to the ids.
func (d dumpedRow) text(ids []int32) string {
	if len(ids) == 0 {
		return ""
	}
	text, err := d.format.Tokenizer().Decode(ids)
	if err != nil {
		return ""
	}
	return text
}

// known is a number that JSON can say, nil for others.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// appendTokens appends the columns with one element a token.
func (d dumpedRow) appendTokens(dst []byte) []byte {
	column := func(name string, element func([]byte, *batch.Piece, int) []byte) {
		dst = append(strconv.AppendQuote(append(dst, ','), name), ":["...)
		empty := len(dst)
		for i := range d.row.Pieces {
			p := &d.row.Pieces[i]
			for j := range p.Tokens {
				dst = append(element(dst, p, j), ',')
			}
		}
		if len(dst) > empty {
			dst = dst[:len(dst)-1]
		}
		dst = append(dst, ']')
	}
	column("tokens", func(b []byte, p *batch.Piece, i int) []byte { return strconv.AppendInt(b, int64(p.Tokens[i]), 10) })
	column("loss_mask", func(b []byte, p *batch.Piece, _ int) []byte {
		if p.Logprobs == nil {
			return append(b, '0')
		}
		return append(b, '1')
	})
	column("rollout_log_probs", func(b []byte, p *batch.Piece, i int) []byte {
		if p.Logprobs == nil {
			return append(b, '0')
		}
		return strconv.AppendFloat(b, float64(p.Logprobs[i]), 'g', -1, 32)
	})
	return dst
}
