package relax

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// A group is the Sessions of one task. The loop owns it; Sessions read what does not change.
type group struct {
	id       schedule.GroupID
	task     Task
	input    []byte // the agent's RELAX_INPUT_JSON
	rollout  int64  // the step it was leased in; set before leased is closed
	leased   chan struct{}
	sessions []*session

	// The loop's.
	rows   []batch.Row
	stats  []observe.RowStat
	reason schedule.Reason // why it was dropped, "" if it was not
	cause  string
}

func (g *group) name() string { return fmt.Sprintf("train:group_%d", g.id) }

// awaitLease parks a request until the Group may generate. It is unbounded by design: the
// wait ends with the Session, the client, or the Group.
func (g *group) awaitLease(ctx context.Context) error {
	select {
	case <-g.leased:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// apply carries out what the schedule decided, in the order in which it did. An action that
// leads to further decisions (scoring does) calls apply again: those wait for their turn.
func (c *core) apply(actions []schedule.Action) {
	c.actions = append(c.actions, actions...)
	if c.acting {
		return
	}
	c.acting = true
	for len(c.actions) > 0 {
		next := c.actions[0]
		c.actions = c.actions[1:]
		c.act(next)
	}
	c.acting = false
}

func (c *core) act(action schedule.Action) {
	switch a := action.(type) {
	case schedule.StartGroup:
		c.startGroup(a.Group)
	case schedule.Lease:
		g := c.groups[a.Group]
		g.rollout = c.step.rollout
		close(g.leased)
	case schedule.Score:
		c.score(c.groups[a.Group])
	case schedule.Deliver:
		c.step.deliver(c.groups[a.Group])
		c.progress()
	case schedule.Drop:
		c.dropGroup(c.groups[a.Group], a)
	case schedule.Forget:
		c.step.account(c.groups[a.Group])
		delete(c.groups, a.Group)
	case schedule.NeedTasks:
		c.askFor(EventTasksNeeded, map[string]int{"count": a.Count}, c.replyTasks)
	case schedule.EndStep:
		c.endStep(a)
	}
}

func (c *core) startGroup(id schedule.GroupID) {
	task := c.tasks[0]
	c.tasks[0] = Task{} // the queue's memory must not keep it
	c.tasks = c.tasks[1:]
	g := &group{id: id, task: task, input: sessionInput(task), leased: make(chan struct{})}
	c.groups[id] = g
	c.step.start(c.cfg.NSamplesPerPrompt)
	for seq := range c.cfg.NSamplesPerPrompt {
		s := newSession(c, g, seq)
		g.sessions = append(g.sessions, s)
		c.remember(s)
	}
	for _, s := range g.sessions {
		c.goroutines.Go("session", s.run)
	}
}

// sessionInput is the document the agent finds in RELAX_INPUT_JSON.
func sessionInput(t Task) []byte {
	raw, err := json.Marshal(t)
	if err != nil {
		panic(fmt.Sprintf("a checked task does not marshal: %v", err))
	}
	return raw
}

func (c *core) dropGroup(g *group, drop schedule.Drop) {
	g.reason, g.cause, g.rows, g.stats = drop.Reason, drop.Cause, nil, nil
	for seq, s := range g.sessions {
		if seq == drop.Late {
			g.cause = s.explain(drop.Cause)
			s.kill(g.cause)
			continue
		}
		s.kill("")
	}
	if drop.Reason == schedule.ReasonStepEnd {
		return
	}
	c.log(observe.Status(observe.Error, "Dropped 1 group",
		observe.F("group", g.name()), observe.F("reason", string(drop.Reason)), observe.F("cause", g.cause)))
}

// replyTasks takes {"tasks": [...], "end": bool}.
func (c *core) replyTasks(data []byte) error {
	var answer struct {
		Tasks []Task `json:"tasks"`
		End   bool   `json:"end"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return fmt.Errorf(`expected {"tasks": [...], "end": bool}: %w`, err)
	}
	if len(answer.Tasks) == 0 && !answer.End {
		return errors.New(`"tasks" is empty: send at least one task, or "end": true if none will come`)
	}
	for i := range answer.Tasks {
		if err := answer.Tasks[i].check(); err != nil {
			return fmt.Errorf("task %d: %w", i, err)
		}
	}
	if !answer.End {
		c.queue(answer.Tasks)
		return nil
	}
	c.tasks = append(c.tasks, answer.Tasks...)
	c.apply(c.machine.LastTasks(time.Now(), len(answer.Tasks)))
	return nil
}

// score finds a Group's rewards: those the agents wrote, or the host's answer.
func (c *core) score(g *group) {
	if c.cfg.CustomRM && slices.ContainsFunc(g.sessions, func(s *session) bool { return s.result.reward == nil }) {
		c.askFor(EventScore, scoreRequest(g), func(data []byte) error { return c.replyScore(g, data) })
		return
	}
	c.credit(g)
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
		if s.result.reward == nil {
			s.result.reward = rewards[i]
		}
	}
	c.credit(g)
	return nil
}

// credit turns rewards into the Group's rows.
func (c *core) credit(g *group) {
	rewards := make([]float64, len(g.sessions))
	for i, s := range g.sessions {
		if s.result.reward == nil {
			c.apply(c.machine.GroupFailed(time.Now(), g.id, reasonReward, fmt.Sprintf(
				"session %d of group %s wrote no reward to RELAX_OUTPUT_JSON: write one, or set custom_rm and score it", i, g.name())))
			return
		}
		rewards[i] = s.result.reward.value
	}
	advantages, err := c.cfg.credit.Advantages(rewards)
	if err != nil {
		c.apply(c.machine.GroupFailed(time.Now(), g.id, reasonReward, fmt.Sprintf("group %s: %v", g.name(), err)))
		return
	}
	for i, s := range g.sessions {
		row, stat := s.row(rewards[i], float32(advantages[i]))
		g.rows, g.stats = append(g.rows, row), append(g.stats, stat)
	}
	c.step.scored += len(g.sessions)
	c.apply(c.machine.GroupScored(time.Now(), g.id))
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
