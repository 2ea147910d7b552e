package relax

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// reward is the Session's task outcome, nil if there is none yet.
func (s *session) reward() *reward {
	if e := s.rewarded(); e != nil {
		return e.reward
	}
	return nil
}

// rewarded is the context whose reward is the Session's outcome: "main", else the first that carries
// one (guide, Metrics and Passrate: one does, unless a reward model for Groups gave each its own).
// Nil if none does.
func (s *session) rewarded() (found *export) {
	for _, e := range s.results {
		if e.reward != nil && (found == nil || e.name == "main") {
			found = e
		}
	}
	return found
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
	if c.asksForScores(g) {
		c.askFor(g, EventScore, scoreRequest(g), func(data []byte) error { return c.replyScore(g, data) })
		return
	}
	c.credit(g)
}

// asksForScores: a reward model for Groups judges every one of them, one for Sessions those
// without a reward, and none where a custom advantage is all the credit (guide, Reward
// configuration with custom advantage).
func (c *core) asksForScores(g *group) bool {
	switch {
	case !c.cfg.CustomRM:
		return false
	case c.cfg.GroupRM:
		return true
	}
	if c.cfg.CustomAdvantage && g.origin == nil {
		return false
	}
	return slices.ContainsFunc(g.sessions, func(s *session) bool { return s.reward() == nil })
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
	// Length counts the tokens of that context, PromptLen those before the first response.
	Length    int `json:"length"`
	PromptLen int `json:"prompt_len"`
	// Contexts are all of the Session's, with sample_details only.
	Contexts []hookContext `json:"contexts,omitempty"`
}

// status says how the context's last turn ended.
func (e *export) status() string {
	if e.lineage.Truncated {
		return "truncated"
	}
	return "completed"
}

// scoreRequest is the Data of an EventScore.
func scoreRequest(g *group) any {
	out := struct {
		GroupID string `json:"group_id"`
		// Dataset is the Eval dataset's name, absent in training.
		Dataset  string         `json:"dataset,omitempty"`
		Sessions []scoreSession `json:"sessions"`
	}{GroupID: g.name()}
	if g.origin != nil {
		out.Dataset = g.origin.dataset.Name
	}
	for _, s := range g.sessions {
		e := s.representative()
		entry := scoreSession{SessionID: s.id, Name: e.name, Metadata: e.metadata, Status: e.status(),
			Length: e.lineage.Len, PromptLen: e.lineage.PromptLen}
		if r := s.reward(); r != nil {
			entry.Reward = r.raw
		}
		for _, m := range e.lineage.Messages {
			entry.Messages = append(entry.Messages, m.AppendCanonical(nil))
		}
		if s.core.cfg.SampleDetails {
			for _, e := range s.results {
				entry.Contexts = append(entry.Contexts, s.hookContext(e))
			}
		}
		out.Sessions = append(out.Sessions, entry)
	}
	return out
}

// replyScore takes {"rewards": [...], "metadata": [...]}, or {"error": text} which drops the Group.
func (c *core) replyScore(g *group, data []byte) error {
	if c.groups[g.id] != g {
		return nil // dropped while the host was scoring
	}
	var answer struct {
		Rewards  []json.RawMessage `json:"rewards"`
		Metadata []json.RawMessage `json:"metadata"`
		Error    string            `json:"error"`
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
	if n := len(answer.Metadata); n != 0 && n != len(g.sessions) {
		return fmt.Errorf("metadata for %d of the %d sessions of group %s", n, len(g.sessions), g.name())
	}
	rewards := make([][]*reward, len(g.sessions))
	metadata := make([][]map[string]json.RawMessage, len(g.sessions))
	for i, s := range g.sessions {
		var err error
		if rewards[i], err = s.readRewards(answer.Rewards[i]); err != nil {
			return fmt.Errorf("rewards[%d]%w", i, err)
		}
		if answer.Metadata == nil {
			continue
		}
		if metadata[i], err = s.readAdditions(answer.Metadata[i]); err != nil {
			return fmt.Errorf("metadata[%d]: %w", i, err)
		}
	}
	for i, s := range g.sessions {
		if c.cfg.GroupRM || s.reward() == nil {
			s.setRewards(rewards[i])
		}
		s.addMetadata(metadata[i])
	}
	c.credit(g)
	return nil
}

// readRewards reads what a host gave a Session: one reward, or a list with one for each of its
// contexts, null for none. The error goes on from "rewards[i]".
func (s *session) readRewards(raw json.RawMessage) ([]*reward, error) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || list == nil {
		r, err := parseReward(raw, s.core.cfg.RewardKey)
		if err != nil {
			return nil, fmt.Errorf(": %w", err)
		}
		return []*reward{r}, nil
	}
	if len(list) != len(s.results) {
		return nil, fmt.Errorf(": %d rewards for the %d contexts of session %s", len(list), len(s.results), s.id)
	}
	out := make([]*reward, len(list))
	for j, raw := range list {
		if string(raw) == "null" {
			continue
		}
		r, err := parseReward(raw, s.core.cfg.RewardKey)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", j, err)
		}
		out[j] = r
	}
	return out, nil
}

// setRewards gives each context its reward. One that is all the Session's goes where the agent put
// one, or to the context that stands for it.
func (s *session) setRewards(rewards []*reward) {
	if len(rewards) == len(s.results) {
		for i, e := range s.results {
			e.reward = rewards[i]
		}
		return
	}
	e := s.rewarded()
	if e == nil {
		e = s.representative()
	}
	e.reward = rewards[0]
}

// readAdditions reads what a host adds to a Session's metadata: an object for the context that
// stands for it, or a list with one for each context; null for nothing.
func (s *session) readAdditions(raw json.RawMessage) ([]map[string]json.RawMessage, error) {
	var list []map[string]json.RawMessage
	if json.Unmarshal(raw, &list) == nil {
		if list != nil && len(list) != len(s.results) {
			return nil, fmt.Errorf("%d objects for the %d contexts of session %s", len(list), len(s.results), s.id)
		}
		return list, nil
	}
	var one map[string]json.RawMessage
	if json.Unmarshal(raw, &one) != nil {
		return nil, fmt.Errorf("expected an object, or a list of objects, found %.80s", raw)
	}
	list = make([]map[string]json.RawMessage, len(s.results))
	list[slices.Index(s.results, s.representative())] = one
	return list, nil
}

// addMetadata lays a host's additions over the contexts' metadata, key by key.
func (s *session) addMetadata(additions []map[string]json.RawMessage) {
	for i, added := range additions {
		maps.Copy(s.results[i].metadata, added)
	}
}

// credit finds what each context of a Group is worth.
func (c *core) credit(g *group) {
	if g.origin != nil {
		c.evalScored(g)
		return
	}
	if c.cfg.CustomAdvantage {
		c.askFor(g, EventAdvantage, advantageRequest(g), func(data []byte) error { return c.replyAdvantage(g, data) })
		return
	}
	rewards, ok := c.rewards(g, "write one, or set custom_rm and score it")
	if !ok {
		return
	}
	advantages, err := c.cfg.credit.Normalization.Advantages(rewards)
	if err != nil {
		c.fail(g, reasonReward, fmt.Sprintf("group %s: %v", g.name(), err))
		return
	}
	values := make([][]credit.Value, len(g.sessions))
	for i, s := range g.sessions {
		values[i] = make([]credit.Value, len(s.results))
		for j := range values[i] {
			values[i][j].Number = advantages[i]
		}
	}
	credits, err := spread(g, values)
	if err != nil {
		c.fail(g, reasonReward, fmt.Sprintf("group %s: %v", g.name(), err))
		return
	}
	c.credited(g, credits)
}

// rewards are the task outcomes of a Group's Sessions, one for each however many contexts it has.
// Without one the Group is dropped, and ok is false.
func (c *core) rewards(g *group, advice string) (rewards []float64, ok bool) {
	for i, s := range g.sessions {
		r := s.reward()
		if r == nil {
			c.fail(g, reasonReward, fmt.Sprintf(
				"session %d of group %s wrote no reward to RELAX_OUTPUT_JSON: %s", i, g.name(), advice))
			return nil, false
		}
		rewards = append(rewards, r.value)
	}
	return rewards, true
}

// estimator checks the options about credit. Its errors are [*OptionError].
func (c *Config) estimator() (credit.Estimator, error) {
	e, err := credit.NewEstimator(credit.Options{
		Estimator: c.AdvantageEstimator, Normalize: valueOr(c.RewardsNormalization, true),
		Std: valueOr(c.GRPOStdNormalization, true), GroupSize: c.NSamplesPerPrompt, Custom: c.CustomAdvantage,
	})
	switch filter := c.DynamicSamplingFilter; {
	case err != nil:
		return e, &OptionError{Option: "advantage_estimator", Problem: err.Error()}
	case filter != "" && filter != credit.NonzeroStd:
		return e, &OptionError{Option: "dynamic_sampling_filter", Problem: fmt.Sprintf(
			"expected %s, the built-in filter, found %q; other filters are hooks: set custom_filter", credit.NonzeroStd, filter)}
	case c.GroupRM && !c.CustomRM:
		return e, &OptionError{Option: "group_rm", Problem: "needs custom_rm: somebody must give the rewards"}
	}
	return e, nil
}

// spread checks the credit of each context of each Session and lays it out over its turns. The
// error names session and context.
func spread(g *group, values [][]credit.Value) ([][]credit.Credit, error) {
	out := make([][]credit.Credit, len(values))
	for i, s := range g.sessions {
		for j, e := range s.results {
			given, err := credit.Spread(values[i][j], e.context(s.id))
			if err != nil {
				return nil, fmt.Errorf("advantages[%d][%d]: %w", i, j, err)
			}
			out[i] = append(out[i], given)
		}
	}
	return out, nil
}

// context is what credit must know of an export.
func (e *export) context(session string) credit.Context {
	c := credit.Context{Session: session, Name: e.name, Trained: make([]int, len(e.lineage.TurnTable))}
	for i, t := range e.lineage.TurnTable {
		if !t.Masked {
			c.Trained[i] = t.End - t.Start
		}
	}
	return c
}

// deliver lays a Group's rows out; credits has one for each context of each Session.
func (c *core) deliver(g *group, credits [][]credit.Credit) {
	for i, s := range g.sessions {
		rows, stats := s.rows(credits[i])
		g.rows, g.stats = append(g.rows, rows...), append(g.stats, stats...)
	}
	c.scored(g)
}

func (c *core) fail(g *group, reason schedule.Reason, cause string) {
	c.apply(c.machine.GroupFailed(time.Now(), g.id, reason, cause))
}

// advantageContext is one context as an advantage hook sees it: its metadata (guide, Custom
// Advantage) and what the reference adds to that (reference pipeline 5.3). No messages, no reward.
type advantageContext struct {
	Name     *string                    `json:"name"` // null for an implicit export
	Metadata map[string]json.RawMessage `json:"metadata"`
	Turns    int                        `json:"turns"`
	// StartRollout and Trace are what the row's meta_json will have.
	StartRollout int64           `json:"start_rollout_id"`
	Trace        json.RawMessage `json:"agentic_trace"`
	offered
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
			entry.Contexts = append(entry.Contexts, advantageContext{
				Name: e.givenName(), Metadata: e.metadata, Turns: e.lineage.Turns,
				StartRollout: e.lineage.StartRollout, Trace: e.trace, offered: s.offered(e),
			})
		}
		out.Sessions = append(out.Sessions, entry)
	}
	return out
}

// replyAdvantage takes {"advantages": [[value, ...], ...]}: for each Session a value for each of
// its contexts, in the order asked: a number, or a list with one for each assistant turn. null
// filters the Group, {"error": text} drops it.
func (c *core) replyAdvantage(g *group, data []byte) error {
	if c.groups[g.id] != g {
		return nil // dropped while the host was computing
	}
	var answer struct {
		Advantages json.RawMessage `json:"advantages"`
		Error      string          `json:"error"`
	}
	const expected = `expected {"advantages": [[number or list, ...], ...]}, {"advantages": null} or {"error": text}`
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
		c.filtered(g, reasonFiltered, "the advantage hook returned None for the group")
		return nil
	}
	var given [][]json.RawMessage
	if err := json.Unmarshal(answer.Advantages, &given); err != nil {
		return fmt.Errorf("%s: %w", expected, err)
	}
	values, err := c.readAdvantages(g, given)
	if err != nil {
		return err
	}
	credits, err := spread(g, values)
	if err != nil {
		return err
	}
	c.credited(g, credits)
	return nil
}

// readAdvantages refuses what does not give each context a number or a list of numbers.
func (c *core) readAdvantages(g *group, given [][]json.RawMessage) ([][]credit.Value, error) {
	if len(given) != len(g.sessions) {
		return nil, fmt.Errorf("advantages for %d sessions, group %s has %d", len(given), g.name(), len(g.sessions))
	}
	estimator := &c.cfg.credit
	out := make([][]credit.Value, len(given))
	for i, s := range g.sessions {
		if len(given[i]) != len(s.results) {
			return nil, fmt.Errorf("advantages[%d]: %d values for the %d contexts of session %s", i, len(given[i]), len(s.results), s.id)
		}
		for j, raw := range given[i] {
			v, problem := readAdvantage(raw)
			if problem == "" && v.Turns != nil && !estimator.PerTurn {
				problem = fmt.Sprintf("expected one number, advantage_estimator %s takes no list with one for each turn", estimator.Name)
			}
			if problem != "" {
				return nil, fmt.Errorf("advantages[%d][%d]: %s: %s", i, j, s.results[j].context(s.id), problem)
			}
			out[i] = append(out[i], v)
		}
	}
	return out, nil
}

// readAdvantage reads the credit of one context. The problem is empty if it is a number or a list
// of numbers.
func readAdvantage(raw json.RawMessage) (v credit.Value, problem string) {
	const want = "expected a finite float32 number, or a list with one for each assistant turn"
	if string(raw) != "null" && json.Unmarshal(raw, &v.Number) == nil {
		return v, ""
	}
	var list []*float64
	if json.Unmarshal(raw, &list) != nil || list == nil || slices.Contains(list, nil) {
		return v, fmt.Sprintf("%s, found %.80s", want, raw)
	}
	v.Turns = make([]float64, len(list))
	for i, n := range list {
		v.Turns[i] = *n
	}
	return v, ""
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
