package relax

import (
	"encoding/json"
	"fmt"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// An export is the training context a Session's agent asked for.
type export struct {
	name     string // "" for an implicit export
	node     *forest.Node
	lineage  forest.Lineage
	metadata map[string]json.RawMessage
	reward   *reward // nil: to be scored
}

// A reward is a task outcome: its primary value, and what was written.
type reward struct {
	value float64
	raw   json.RawMessage
}

// export selects the context that the agent's output file names: the only one it has, or a
// recorded one (guide, Select Training Contexts).
func (s *session) export(output agent.Output) (*export, error) {
	metadata, given := output.Metadata, output.Reward
	var name string
	if output.Explicit {
		if len(output.Records) != 1 {
			return nil, fmt.Errorf("the output has %d records; a session that exports several contexts needs a custom advantage, "+
				"which this version does not have: write the one context to train", len(output.Records))
		}
		record := output.Records[0]
		name, metadata, given = record.Name, record.Metadata, record.Reward
	}
	node, err := s.choose(output)
	if err != nil {
		return nil, err
	}
	e := &export{name: name, node: node}
	if e.reward, err = s.readReward(given); err != nil {
		return nil, err
	}
	if e.metadata, err = mergeMetadata(s.group.task.Metadata, metadata); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.lineage = s.forest.Row(node)
	return e, nil
}

// choose finds the exported node.
func (s *session) choose(output agent.Output) (*forest.Node, error) {
	if !output.Explicit {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.forest.Implicit()
	}
	record := output.Records[0]
	req, err := wire.ParseRecord(record.Messages, record.Tools, record.ChatTemplateKwargs)
	if err != nil {
		return nil, fmt.Errorf("record %q: %w", record.Name, err)
	}
	s.core.settle(req)
	s.mu.Lock()
	defer s.mu.Unlock()
	node, err := s.forest.Find(req)
	if err != nil {
		return nil, fmt.Errorf("record %q: %w", record.Name, err)
	}
	return node, nil
}

func (s *session) readReward(given *agent.Reward) (*reward, error) {
	if given == nil {
		return nil, nil
	}
	value, err := given.Value(s.core.cfg.RewardKey)
	if err != nil {
		return nil, fmt.Errorf("reward: %w", err)
	}
	return &reward{value: value, raw: given.Raw}, nil
}

// mergeMetadata lays the agent's metadata over the dataset's, key by key.
func mergeMetadata(dataset, agents json.RawMessage) (map[string]json.RawMessage, error) {
	merged := map[string]json.RawMessage{}
	for _, layer := range []json.RawMessage{dataset, agents} {
		if len(layer) == 0 || string(layer) == "null" {
			continue
		}
		if err := json.Unmarshal(layer, &merged); err != nil {
			return nil, fmt.Errorf("metadata: expected an object: %w", err)
		}
	}
	return merged, nil
}

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
}

// row lays the Session's context out for the batch.
func (s *session) row(value float64, advantage float32) (batch.Row, observe.RowStat) {
	e, l := s.result, &s.result.lineage
	row := batch.Row{
		PromptLen: l.PromptLen, Reward: value, Advantage: advantage,
		GroupID: int64(s.group.id), SessionSeq: int32(s.ref.Seq), Turns: int32(l.Turns), Aborts: int32(l.Aborts),
	}
	stat := observe.RowStat{Reward: value, Turns: l.Turns, Truncated: l.Truncated, Staleness: s.group.rollout - l.StartRollout}
	if l.Truncated {
		row.Status = batch.Truncated
	}
	for _, span := range l.Spans {
		row.Segments = append(row.Segments, batch.Segment{Start: span.Start, WeightVersion: span.Version})
	}
	meta := rowMeta{
		SessionID: s.id, GroupID: s.group.name(), Name: e.name, Metadata: e.metadata,
		Reward: e.reward.raw, StartRollout: l.StartRollout,
	}
	at := 0
	for _, piece := range l.Pieces {
		row.Pieces = append(row.Pieces, batch.Piece{Tokens: piece.Tokens, Logprobs: piece.Logprobs})
		if g := piece.Node.Generation(); g != nil {
			meta.Turns = append(meta.Turns, newTurnMeta(g, at))
			stat.ResponseLen += len(g.IDs)
			stat.PromptTokens += g.PromptTokens
			stat.CachedTokens += g.CachedTokens
		}
		at += len(piece.Tokens)
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		panic(fmt.Sprintf("meta of session %s does not marshal: %v", s.id, err)) // all raw parts were parsed before
	}
	row.Meta = raw
	return row, stat
}

func newTurnMeta(g *forest.Generation, start int) turnMeta {
	status := "completed"
	if g.Truncated {
		status = "truncated"
	}
	return turnMeta{
		RequestID: g.RequestID, Start: start, Length: len(g.IDs), Aborts: g.Aborts, Status: status,
		Seconds: g.Seconds, ParseError: g.ParseError,
	}
}

// scoreSession is one Session as a reward hook sees it.
type scoreSession struct {
	SessionID string                     `json:"session_id"`
	Name      string                     `json:"name,omitempty"`
	Metadata  map[string]json.RawMessage `json:"metadata"`
	// Messages is the exported conversation in canonical form.
	Messages []json.RawMessage `json:"messages"`
	// Reward is what the agent wrote, null if it is to be scored.
	Reward json.RawMessage `json:"reward"`
	Status string          `json:"status"`
}

// scoreRequest is the Data of an EventScore.
func scoreRequest(g *group) any {
	out := struct {
		GroupID  string         `json:"group_id"`
		Sessions []scoreSession `json:"sessions"`
	}{GroupID: g.name()}
	for _, s := range g.sessions {
		e := s.result
		entry := scoreSession{SessionID: s.id, Name: e.name, Metadata: e.metadata, Status: "completed"}
		if e.lineage.Truncated {
			entry.Status = "truncated"
		}
		if e.reward != nil {
			entry.Reward = e.reward.raw
		}
		for _, m := range e.lineage.Messages {
			entry.Messages = append(entry.Messages, m.AppendCanonical(nil))
		}
		out.Sessions = append(out.Sessions, entry)
	}
	return out
}
