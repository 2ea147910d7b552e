package relax

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// A group is the Sessions of one task. The loop owns it; Sessions read what does not change.
type group struct {
	id     schedule.GroupID
	task   Task
	input  []byte  // the agent's RELAX_INPUT_JSON
	rules  *rules  // how its requests are sampled
	origin *origin // of an Eval Group, nil for train
	label  string  // its name
	leased chan struct{}
	began  time.Time
	// leasedAt is set before leased is closed.
	leasedAt time.Time

	// The loop's.
	sessions     []*session // one that is run again takes the place of the one before
	rollout      int64      // the step it runs in, once it is leased
	startRollout int64      // the step it was leased in
	partition    int64      // that it was delivered to
	rows         []batch.Row
	stats        []observe.RowStat
	reason       schedule.Reason // why it was dropped, "" if it was not
	cause        string
	droppedAt    time.Time
	// When its scoring began, and it was delivered, for traces; zero if not.
	scoringAt, deliveredAt time.Time
}

// Modes of agents (RELAX_ROLLOUT_MODE).
const (
	modeTrain = "train"
	modeEval  = "eval"
)

// rules say how the requests of a Group are sampled.
type rules struct {
	mode        string
	sampling    sglang.Sampling
	maxResponse int // a turn's default limit
	maxContext  int // of a lineage, 0: none of ours
}

func (g *group) name() string { return g.label }

// isLeased says whether the Group has its lease.
func (g *group) isLeased() bool {
	select {
	case <-g.leased:
		return true
	default:
		return false
	}
}

// sampled is what the Group's present Sessions sampled.
func (g *group) sampled() int64 {
	var n int64
	for _, s := range g.sessions {
		n += s.sampled()
	}
	return n
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
	c.abortRecalled()
}

func (c *core) act(action schedule.Action) {
	switch a := action.(type) {
	case schedule.StartGroup:
		c.startGroup(a.Group)
	case schedule.StartEval:
		c.startEvalGroup(a)
	case schedule.StartSession:
		c.startAgain(c.groups[a.Ref.Group], a)
	case schedule.KillSession:
		c.killSession(c.groups[a.Ref.Group].sessions[a.Ref.Seq], a)
	case schedule.Lease:
		c.lease(c.groups[a.Group])
	case schedule.Pass:
		c.letThrough(a)
	case schedule.Abort:
		c.recall(a.Request)
	case schedule.Quiet:
		c.endPauses(nil)
	case schedule.Score:
		g := c.groups[a.Group]
		g.scoringAt = time.Now()
		c.score(g)
	case schedule.Drop:
		c.dropGroup(c.groups[a.Group], a)
	case schedule.Forget:
		c.forgetGroup(c.groups[a.Group])
	case schedule.NeedTasks:
		c.askFor(nil, EventTasksNeeded, map[string]int{"count": a.Count}, c.replyTasks)
	default:
		c.actOnStep(action)
	}
}

// actOnStep carries out what is about the open step.
func (c *core) actOnStep(action schedule.Action) {
	switch a := action.(type) {
	case schedule.Deliver:
		c.deliverGroup(c.groups[a.Group], a.Partition)
	case schedule.EndPartition:
		c.endPartition(a)
	case schedule.EndDataset:
		c.endDataset(a)
	case schedule.EndStep:
		c.endStep(a)
	}
}

func (c *core) startGroup(id schedule.GroupID) {
	task := c.tasks[0]
	c.tasks[0] = Task{} // the queue's memory must not keep it
	c.tasks = c.tasks[1:]
	g := &group{id: id, task: task, rules: &c.train, label: fmt.Sprintf("train:group_%d", id)}
	c.start(g, c.cfg.NSamplesPerPrompt)
}

// start starts the Sessions of a new Group.
func (c *core) start(g *group, sessions int) {
	g.input, g.leased, g.began = sessionInput(g.task), make(chan struct{}), time.Now()
	c.groups[g.id] = g
	g.sessions = make([]*session, sessions)
	for seq := range g.sessions {
		c.startSession(g, seq, 0)
	}
}

func (c *core) startSession(g *group, seq, try int) {
	s := newSession(c, g, seq)
	s.try = try
	g.sessions[seq] = s
	c.remember(s)
	c.goroutines.Go("session", s.run)
}

// startAgain runs a failed Session from scratch, in the place and the Group of the one before
// (agent_retries). What that one sampled is dropped.
func (c *core) startAgain(g *group, again schedule.StartSession) {
	old := g.sessions[again.Ref.Seq]
	if old.ended == (ending{}) { // it ended well, but too early
		old.ended = ending{again.Reason, old.explain(again.Cause)}
	}
	books := c.ledgerOf(g)
	books.drop(reasonRetried, 0, 0, old.sampled(), old.ended.cause)
	books.drops[reasonRetried].show(old.example(old.ended.cause))
	c.log(observe.Status(observe.Warning, "Running 1 session again",
		observe.F("group", g.name()), observe.F("session", again.Ref.Seq), observe.F("try", again.Try),
		observe.F("reason", string(old.ended.reason)), observe.F("cause", old.ended.cause)))
	c.traceRetried(g, old)
	c.startSession(g, again.Ref.Seq, again.Try)
}

// killSession ends one Session whose Group lives on; run reports its end.
func (c *core) killSession(s *session, kill schedule.KillSession) {
	s.ended = ending{kill.Reason, s.explain(kill.Cause)}
	s.kill(s.ended.cause)
}

func (c *core) lease(g *group) {
	g.rollout, g.startRollout = c.step.rollout, c.step.rollout
	g.leasedAt = time.Now()
	close(g.leased)
}

// forgetGroup books a Group that is over and has nothing running.
func (c *core) forgetGroup(g *group) {
	c.ledgerOf(g).account(g)
	if g.reason != "" {
		c.traceDropped(g)
	}
	delete(c.groups, g.id)
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
	g.reason, g.cause, g.rows, g.stats, g.droppedAt = drop.Reason, drop.Cause, nil, nil, time.Now()
	for seq, s := range g.sessions {
		if seq == drop.Late {
			g.cause = s.explain(drop.Cause)
			s.kill(g.cause)
			continue
		}
		s.kill("")
	}
	if g.origin != nil {
		c.step.eval.drop(g)
	}
	switch {
	case drop.Reason == schedule.ReasonStepEnd, drop.Reason == schedule.ReasonSurplus:
	case isFiltered(drop.Reason):
		c.log(observe.Status(observe.Info, "Filtered 1 group",
			observe.F("group", g.name()), observe.F("reason", string(drop.Reason)), observe.F("cause", g.cause)))
		c.noteFiltered(drop.Reason)
	default:
		c.log(observe.Status(observe.Error, "Dropped 1 group",
			observe.F("group", g.name()), observe.F("reason", string(drop.Reason)), observe.F("cause", g.cause)))
	}
}

// isFiltered says whether a hook or filter took the Group out, and nothing is wrong with it.
func isFiltered(reason schedule.Reason) bool {
	return reason == reasonFiltered || strings.HasPrefix(string(reason), observe.Filtered)
}

// replyTasks takes {"tasks": [...], "end": bool}.
func (c *core) replyTasks(data []byte) error {
	var answer struct {
		Tasks []Task `json:"tasks"`
		End   bool   `json:"end"`
	}
	if err := decodeStrict(data, &answer); err != nil {
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
