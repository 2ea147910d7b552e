package relax

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// An export is one training context that a Session's agent asked for.
type export struct {
	name     string // "" for an implicit export
	node     *forest.Node
	lineage  forest.Lineage
	metadata map[string]json.RawMessage
	reward   *reward // nil: to be scored
	// trace is the row's agentic_trace.
	trace json.RawMessage
}

// A reward is a task outcome: its primary value, and what was written.
type reward struct {
	value float64
	raw   json.RawMessage
}

// exports selects the contexts that the agent's output file names: the only one it has, or
// recorded ones (guide, Select Training Contexts). There is at least one.
func (s *session) exports(output agent.Output) ([]*export, error) {
	if !output.Explicit {
		e, err := s.implicit(output)
		if err != nil {
			return nil, err
		}
		return s.fit(s.lay([]*export{e}))
	}
	if len(output.Records) > 1 && !s.core.cfg.CustomAdvantage && s.group.origin == nil {
		return nil, fmt.Errorf("the output has %d records, but one reward does not say what each context is worth: "+
			"set custom_advantage and give an advantage for each, or write the one context to train", len(output.Records))
	}
	var out []*export
	for i := range output.Records {
		e, err := s.explicit(&output.Records[i])
		if err != nil {
			return nil, fmt.Errorf("record %d %q: %w", i+1, output.Records[i].Name, err)
		}
		out = append(out, e)
	}
	return s.fit(s.lay(out))
}

// implicit is the export of an agent that names no context (implicit_export).
func (s *session) implicit(output agent.Output) (*export, error) {
	node, side, err := s.implicitNode()
	if err != nil {
		return nil, err
	}
	s.side = side
	return s.newExport("", node, output.Metadata, output.Reward)
}

func (s *session) implicitNode() (node *forest.Node, side []*forest.Node, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core.cfg.ImplicitExport == implicitMain {
		return s.forest.Main()
	}
	node, err = s.forest.Implicit()
	return node, nil, err
}

// explicit finds the context a record names. It is matched as a request would be.
func (s *session) explicit(record *agent.Record) (*export, error) {
	req, err := wire.ParseRecord(record.Messages, record.Tools, record.ChatTemplateKwargs)
	if err != nil {
		return nil, err
	}
	s.core.settle(req)
	node, err := s.find(req)
	if err != nil && len(req.Ignored) > 0 {
		return nil, fmt.Errorf("%w; left out of the record, because it is no message or function tool of the Chat shape: %s",
			err, strings.Join(req.Ignored, ", "))
	}
	if err != nil {
		return nil, err
	}
	return s.newExport(record.Name, node, record.Metadata, record.Reward)
}

func (s *session) find(req *canon.Request) (*forest.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core.cfg.MatchPolicy == matchTolerant {
		return s.forest.FindTolerant(req)
	}
	return s.forest.Find(req)
}

func (s *session) newExport(name string, node *forest.Node, metadata json.RawMessage, given *agent.Reward) (*export, error) {
	e := &export{name: name, node: node}
	var err error
	if e.reward, err = s.readReward(given); err != nil {
		return nil, err
	}
	if e.metadata, err = mergeMetadata(s.group.task.Metadata, metadata); err != nil {
		return nil, err
	}
	return e, nil
}

// lay fills in the rows' tokens; the order of exports says which row trains a shared turn
// (shared_prefix_loss).
func (s *session) lay(exports []*export) []*export {
	nodes := make([]*forest.Node, len(exports))
	for i, e := range exports {
		nodes[i] = e.node
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, lineage := range s.forest.Rows(nodes, s.core.cfg.sharedLoss) {
		exports[i].lineage = lineage
	}
	return exports
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
