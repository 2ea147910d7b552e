package relax

import (
	"encoding/json"
	"fmt"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// reasonClosed is in the traces of Sessions that a Close ended.
const reasonClosed = "closed"

// processFacts is what the trace says of an agent's process. failed: its log is kept. The log is
// read now: Cleanup removes it.
func (s *session) processFacts(p *agent.Process, exit agent.Exit, failed bool) observe.Process {
	facts := observe.Process{
		Launched: true, Start: exit.Started.Sub(s.began), End: exit.Ended.Sub(s.began),
		ExitCode: exit.Code, Signal: exit.Signal, Reason: string(exit.Reason),
		UserSec: exit.UserSec, SysSec: exit.SysSec, MaxRSSKB: exit.MaxRSSKB,
		LeftBehind: exit.LeftBehind, LeftBehindNames: exit.LeftBehindNames,
	}
	if exit.Err != nil {
		facts.Err = exit.Err.Error()
	}
	if !failed {
		return facts
	}
	facts.Log = p.KeptLog()
	if s.core.traces != nil {
		facts.LogTail = p.LogTail(logTail)
	}
	return facts
}

// conclude makes the traces of a Session that is over: those of its rows and, if traces are
// written, the Session's own. Nobody else changes the forest any more but for marks of delivery,
// so all but what depends on those goes without the lock.
func (s *session) conclude(process observe.Process, atFault bool) {
	s.noteFate(process, atFault)
	if s.results == nil && s.core.traces == nil {
		return
	}
	if s.core.runDir.ours { // it is gone when somebody reads the trace
		process.Log = ""
	}
	facts := s.facts(process)
	if s.core.traces != nil {
		facts.Hashes = observe.HashForest(s.forest)
		trace := facts.Trace()
		trace.Outcome.AtFault = atFault
		s.trace = &trace
	} else {
		facts.Hashes = observe.HashLineages(nodesOf(s.results)...)
	}
	for _, e := range s.results {
		raw, err := json.Marshal(facts.AgenticTrace(e.node))
		if err != nil {
			panic(fmt.Sprintf("trace of session %s does not marshal: %v", s.id, err)) // its parts are ours
		}
		e.trace = raw
	}
}

func nodesOf(exports []*export) []*forest.Node {
	nodes := make([]*forest.Node, len(exports))
	for i, e := range exports {
		nodes[i] = e.node
	}
	return nodes
}

func (s *session) facts(process observe.Process) observe.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.log {
		if n := s.log[i].Node; n != nil {
			s.log[i].Undelivered = n.IsUndelivered()
		}
	}
	facts := observe.Session{
		ID: s.id, Group: s.group.name(), Mode: s.group.rules.mode, Seq: s.ref.Seq, Began: s.began,
		Forest: s.forest, Stats: s.forest.Stats(), Process: process, Requests: s.log, Faults: s.faults,
		Retries: s.retries, Joined: s.joined, Replayed: s.replayed,
		Side: s.side, LostTokens: s.lost, FinalizeStart: s.exported.start, FinalizeEnd: s.exported.end,
	}
	for _, e := range s.results {
		facts.Exports = append(facts.Exports, observe.Export{Name: e.name, Node: e.node})
	}
	facts.Fates = s.forest.Fates(nodesOf(s.results)...)
	return facts
}

// traces are the documents of a Group's Sessions with what became of them. reason "" is a
// delivery. rollout is nil if no step was open.
func (g *group) traces(rollout *int64, reason, cause string) []*observe.Trace {
	var out []*observe.Trace
	for _, s := range g.sessions {
		if t := s.judged(rollout, reason, cause); t != nil {
			out = append(out, t)
		}
	}
	return out
}

// judged is the Session's document with what became of it, once.
func (s *session) judged(rollout *int64, reason, cause string) *observe.Trace {
	t, g := s.trace, s.group
	if t == nil {
		return nil // traces are not written, or the Session panicked
	}
	s.trace = nil
	status := observe.Delivered
	if reason != "" {
		status = observe.Dropped
	}
	t.Judge(status, reason, cause, reason != "" && t.Outcome.AtFault)
	if rollout != nil {
		step := *rollout
		t.RolloutID = &step
	}
	if g.isLeased() {
		t.StartRolloutID = &g.startRollout
		t.Events.Lease = observe.UnixSeconds(g.leasedAt)
	}
	e := &t.Events
	e.Reward, e.RewardEnd = observe.UnixSeconds(g.scoringAt), observe.UnixSeconds(g.deliveredAt)
	e.Transfer = e.RewardEnd
	return t
}

// A stray gives the traces of something that ended, once it is known which step's they are; nil if
// none's.
type stray func(rollout *int64) []*observe.Trace

// traceEnded writes traces of a Group with those of the open step, or of the next one that is, whose
// books have it.
func (c *core) traceEnded(g *group, traces stray) {
	switch {
	case c.traces == nil:
	case g.origin == nil && c.trainStep() == nil:
		c.strays = append(c.strays, traces)
	default:
		c.traces.put(traces(&c.step.rollout))
	}
}

// traceDropped writes the traces of a dropped Group.
func (c *core) traceDropped(g *group) {
	c.traceEnded(g, func(rollout *int64) []*observe.Trace { return g.traces(rollout, string(g.reason), g.cause) })
}

// traceRetried writes the trace of a Session that is run again.
func (c *core) traceRetried(g *group, s *session) {
	c.traceEnded(g, func(rollout *int64) []*observe.Trace {
		if t := s.judged(rollout, string(reasonRetried), s.ended.cause); t != nil {
			return []*observe.Trace{t}
		}
		return nil
	})
}

// traceDelivered writes the traces of a step's delivered Groups, once it is known whether there
// is a batch, and waits for those of the whole step: who polled the step's end finds them.
func (c *core) traceDelivered(groups []*group, rollout int64, buildErr error) {
	if c.traces == nil {
		return
	}
	reason, cause := "", ""
	if buildErr != nil {
		reason, cause = string(reasonMemory), buildErr.Error()
	}
	working := true // the disk; a large step has more than the queue takes at once
	for _, g := range groups {
		if working && c.traces.full() {
			working = c.traces.settle(c.ctx.Done())
		}
		c.traces.put(g.traces(&rollout, reason, cause))
		if buildErr == nil {
			c.traces.dumpRows(g, rollout, c.format)
		}
	}
	if working {
		c.traces.settle(c.ctx.Done())
	}
}

// traceRest writes the traces of what a Close ended. Nothing runs any more.
func (c *core) traceRest() {
	if c.traces == nil {
		return
	}
	var rollout *int64
	var groups []*group
	if c.step != nil {
		rollout, groups = &c.step.rollout, c.step.groups
	}
	for _, g := range c.groups {
		groups = append(groups, g)
	}
	put := func(traces []*observe.Trace) {
		if c.traces.full() {
			c.traces.drain()
		}
		c.traces.put(traces)
	}
	for _, traces := range c.strays {
		put(traces(rollout))
	}
	for _, g := range groups {
		reason, cause := string(g.reason), g.cause
		if reason == "" {
			reason, cause = reasonClosed, "the engine was closed"
		}
		put(g.traces(rollout, reason, cause))
	}
	c.traces.drain()
}
