package relax

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// reward is the Session's task outcome, nil if there is none yet. Of several contexts one
// carries it (guide, Metrics and Passrate).
func (s *session) reward() *reward {
	for _, e := range s.results {
		if e.reward != nil {
			return e.reward
		}
	}
	return nil
}

// representative is the context that stands for the Session: "main", else the first.
func (s *session) representative() *export {
	for _, e := range s.results {
		if e.name == "main" {
			return e
		}
	}
	return s.results[0]
}

// score finds a Group's rewards: those the agents wrote, or the host's answer.
func (c *core) score(g *group) {
	if c.cfg.CustomRM && slices.ContainsFunc(g.sessions, func(s *session) bool { return s.reward() == nil }) {
		c.askFor(EventScore, scoreRequest(g), func(data []byte) error { return c.replyScore(g, data) })
		return
	}
	c.credit(g)
}

// scoreSession is one Session as a reward hook sees it.
type scoreSession struct {
	SessionID string                     `json:"session_id"`
	Name      string                     `json:"name,omitempty"`
	Metadata  map[string]json.RawMessage `json:"metadata"`
	// Messages is the exported conversation in canonical form, of several the representative's.
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
		e := s.representative()
		entry := scoreSession{SessionID: s.id, Name: e.name, Metadata: e.metadata, Status: "completed"}
		if e.lineage.Truncated {
			entry.Status = "truncated"
		}
		if r := s.reward(); r != nil {
			entry.Reward = r.raw
		}
		for _, m := range e.lineage.Messages {
			entry.Messages = append(entry.Messages, m.AppendCanonical(nil))
		}
		out.Sessions = append(out.Sessions, entry)
	}
	return out
}

// replyScore takes {"rewards": [...]}, or {"error": text} which drops the Group.
func (c *core) replyScore(g *group, data []byte) error {
	if c.groups[g.id] != g {
		return nil // dropped while the host was scoring
	}
	var answer struct {
		Rewards []json.RawMessage `json:"rewards"`
		Error   string            `json:"error"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return fmt.Errorf(`expected {"rewards": [...]} or {"error": text}: %w`, err)
	}
	if answer.Error != "" {
		c.apply(c.machine.GroupFailed(time.Now(), g.id, reasonScore, answer.Error))
		return nil
	}
	if len(answer.Rewards) != len(g.sessions) {
		return fmt.Errorf("%d rewards for the %d sessions of group %s", len(answer.Rewards), len(g.sessions), g.name())
	}
	rewards := make([]*reward, len(answer.Rewards))
	for i, raw := range answer.Rewards {
		r, err := parseReward(raw, c.cfg.RewardKey)
		if err != nil {
			return fmt.Errorf("rewards[%d]: %w", i, err)
		}
		rewards[i] = r
	}
	for i, s := range g.sessions {
		if s.reward() == nil {
			s.representative().reward = rewards[i]
		}
	}
	c.credit(g)
	return nil
}

// credit finds what each context of a Group is worth and turns it into rows.
func (c *core) credit(g *group) {
	if c.cfg.CustomAdvantage {
		c.askFor(EventAdvantage, advantageRequest(g), func(data []byte) error { return c.replyAdvantage(g, data) })
		return
	}
	rewards := make([]float64, len(g.sessions))
	for i, s := range g.sessions {
		r := s.reward()
		if r == nil {
			c.fail(g, reasonReward, fmt.Sprintf(
				"session %d of group %s wrote no reward to RELAX_OUTPUT_JSON: write one, or set custom_rm and score it", i, g.name()))
			return
		}
		rewards[i] = r.value
	}
	advantages, err := c.cfg.credit.Advantages(rewards)
	if err != nil {
		c.fail(g, reasonReward, fmt.Sprintf("group %s: %v", g.name(), err))
		return
	}
	credits := make([][]float64, len(advantages))
	for i, a := range advantages {
		credits[i] = []float64{a}
	}
	c.credited(g, credits)
}

// credited lays a Group's rows out; credits has one value for each context of each Session.
func (c *core) credited(g *group, credits [][]float64) {
	for i, s := range g.sessions {
		for j, e := range s.results {
			row, stat := s.row(e, float32(credits[i][j]))
			g.rows, g.stats = append(g.rows, row), append(g.stats, stat)
		}
	}
	c.step.scored += len(g.sessions)
	c.apply(c.machine.GroupScored(time.Now(), g.id))
}

func (c *core) fail(g *group, reason schedule.Reason, cause string) {
	c.apply(c.machine.GroupFailed(time.Now(), g.id, reason, cause))
}

// advantageContext is one context as an advantage hook sees it. Only metadata goes through
// (guide, Custom Advantage).
type advantageContext struct {
	Name     *string                    `json:"name"` // null for an implicit export
	Metadata map[string]json.RawMessage `json:"metadata"`
	Turns    int                        `json:"turns"`
}

// advantageRequest is the Data of an EventAdvantage.
func advantageRequest(g *group) any {
	type sessionContexts struct {
		SessionID string             `json:"session_id"`
		Contexts  []advantageContext `json:"contexts"`
	}
	out := struct {
		GroupID  string            `json:"group_id"`
		Sessions []sessionContexts `json:"sessions"`
	}{GroupID: g.name()}
	for _, s := range g.sessions {
		entry := sessionContexts{SessionID: s.id}
		for _, e := range s.results {
			context := advantageContext{Metadata: e.metadata, Turns: e.lineage.Turns}
			if e.name != "" {
				context.Name = &e.name
			}
			entry.Contexts = append(entry.Contexts, context)
		}
		out.Sessions = append(out.Sessions, entry)
	}
	return out
}

// replyAdvantage takes {"advantages": [[number, ...], ...]}: for each Session a number for each
// of its contexts, in the order asked. null filters the Group, {"error": text} drops it.
func (c *core) replyAdvantage(g *group, data []byte) error {
	if c.groups[g.id] != g {
		return nil // dropped while the host was computing
	}
	var answer struct {
		Advantages json.RawMessage `json:"advantages"`
		Error      string          `json:"error"`
	}
	const expected = `expected {"advantages": [[number, ...], ...]}, {"advantages": null} or {"error": text}`
	if err := json.Unmarshal(data, &answer); err != nil {
		return fmt.Errorf("%s: %w", expected, err)
	}
	switch {
	case answer.Error != "":
		c.fail(g, reasonAdvantage, answer.Error)
		return nil
	case answer.Advantages == nil: // a misspelt reply must not look like a filter
		return fmt.Errorf("%s: found none of them", expected)
	case string(answer.Advantages) == "null":
		c.fail(g, reasonFiltered, "the advantage hook returned None for the group")
		return nil
	}
	var given [][]*float64
	if err := json.Unmarshal(answer.Advantages, &given); err != nil {
		return fmt.Errorf("%s: %w", expected, err)
	}
	credits, err := checkAdvantages(g, given)
	if err != nil {
		return err
	}
	c.credited(g, credits)
	return nil
}

// checkAdvantages refuses what does not give each context one finite number.
func checkAdvantages(g *group, given [][]*float64) ([][]float64, error) {
	if len(given) != len(g.sessions) {
		return nil, fmt.Errorf("advantages for %d sessions, group %s has %d", len(given), g.name(), len(g.sessions))
	}
	out := make([][]float64, len(given))
	for i, s := range g.sessions {
		if len(given[i]) != len(s.results) {
			return nil, fmt.Errorf("advantages[%d]: %d values for the %d contexts of session %s", i, len(given[i]), len(s.results), s.id)
		}
		for j, v := range given[i] {
			if v == nil || math.Abs(*v) > math.MaxFloat32 {
				return nil, fmt.Errorf("advantages[%d][%d]: context %q of session %s: expected a finite float32 number", i, j, s.results[j].name, s.id)
			}
			out[i] = append(out[i], *v)
		}
	}
	return out, nil
}

func parseReward(raw json.RawMessage, key string) (*reward, error) {
	r, field, err := agent.ParseReward(raw)
	switch {
	case err != nil && field != "":
		return nil, fmt.Errorf("%s: %w", field, err)
	case err != nil:
		return nil, err
	case r == nil:
		return nil, errors.New("expected a number or an object, found null")
	}
	value, err := r.Value(key)
	if err != nil {
		return nil, err
	}
	return &reward{value: value, raw: r.Raw}, nil
}
