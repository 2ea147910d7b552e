package relax

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

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
	// When it was leased, its scoring began, and it was delivered, for traces; zero if not.
	leasedAt, scoringAt, deliveredAt time.Time
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
		g.rollout, g.leasedAt = c.step.rollout, time.Now()
		close(g.leased)
	case schedule.Score:
		g := c.groups[a.Group]
		g.scoringAt = time.Now()
		c.score(g)
	case schedule.Deliver:
		g := c.groups[a.Group]
		g.deliveredAt = time.Now()
		c.step.deliver(g)
		c.progress()
	case schedule.Drop:
		c.dropGroup(c.groups[a.Group], a)
	case schedule.Forget:
		g := c.groups[a.Group]
		c.step.account(g)
		if g.reason != "" {
			c.traces.put(g.traces(&c.step.rollout, string(g.reason), g.cause))
		}
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
