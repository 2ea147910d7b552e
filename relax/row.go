package relax

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// rowMeta is a row's meta_json.
type rowMeta struct {
	SessionID string                     `json:"session_id"`
	GroupID   string                     `json:"group_id"`
	Name      string                     `json:"name,omitempty"`
	Metadata  map[string]json.RawMessage `json:"metadata"`
	Reward    json.RawMessage            `json:"reward"`
	// StartRollout is the step of the first response, Turns the turn table.
	StartRollout int64      `json:"start_rollout_id"`
	Turns        []turnMeta `json:"turns"`
	// Trace is an [observe.AgenticTrace].
	Trace json.RawMessage `json:"agentic_trace"`
}

type turnMeta struct {
	RequestID string `json:"request_id"`
	// Start and Length place the turn's sampled tokens in the row.
	Start      int     `json:"start"`
	Length     int     `json:"response_length"`
	Aborts     int     `json:"abort_count"`
	Status     string  `json:"status"`
	Seconds    float64 `json:"generation_elapsed_s"`
	ParseError string  `json:"parse_error,omitempty"`
	// Masked: another row of the Session trains the turn (shared_prefix_loss), its loss mask is 0 here.
	Masked bool `json:"masked,omitempty"`
}

// row lays one of the Session's contexts out for the batch.
func (s *session) row(e *export, advantage float32) (batch.Row, observe.RowStat) {
	l := &e.lineage
	row := batch.Row{
		PromptLen: l.PromptLen, Reward: math.NaN(), Advantage: advantage,
		GroupID: int64(s.group.id), SessionSeq: int32(s.ref.Seq), Turns: int32(l.Turns), Aborts: int32(l.Aborts),
	}
	meta := rowMeta{
		SessionID: s.id, GroupID: s.group.name(), Name: e.name, Metadata: e.metadata,
		Reward: json.RawMessage("null"), StartRollout: l.StartRollout, Trace: e.trace,
	}
	if e.reward != nil {
		row.Reward, meta.Reward = e.reward.value, e.reward.raw
	}
	if l.Truncated {
		row.Status = batch.Truncated
	}
	for _, span := range l.Spans {
		row.Segments = append(row.Segments, batch.Segment{Start: span.Start, WeightVersion: span.Version})
	}
	stat := observe.RowStat{Reward: row.Reward, Turns: l.Turns, Truncated: l.Truncated, Staleness: s.group.rollout - l.StartRollout}
	stat.ResponseLen = l.Trained
	for _, piece := range l.Pieces {
		row.Pieces = append(row.Pieces, batch.Piece{Tokens: piece.Tokens, Logprobs: piece.Logprobs})
	}
	for _, turn := range l.TurnTable {
		g := turn.Node.Generation()
		meta.Turns = append(meta.Turns, newTurnMeta(g, turn))
		stat.PromptTokens += g.PromptTokens
		stat.CachedTokens += g.CachedTokens
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		panic(fmt.Sprintf("meta of session %s does not marshal: %v", s.id, err)) // all raw parts were parsed before
	}
	row.Meta = raw
	return row, stat
}

func newTurnMeta(g *forest.Generation, turn forest.Turn) turnMeta {
	status := "completed"
	if g.Truncated {
		status = "truncated"
	}
	return turnMeta{
		RequestID: g.RequestID, Start: turn.Start, Length: len(g.IDs), Aborts: g.Aborts, Status: status,
		Seconds: g.Seconds, ParseError: g.ParseError, Masked: turn.Masked,
	}
}
