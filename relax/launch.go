package relax

import (
	"context"
	"strings"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// The pause before an agent is started again that could not be for want of processes, memory,
// descriptors or disk space; it doubles.
const (
	shortBackoff    = 250 * time.Millisecond
	shortBackoffMax = 10 * time.Second
)

// launch runs the Session's agent to its end. A start that failed because the host is short of
// something is made again, so that the shortage is not taken for a broken agent and counts against
// no budget. The Session's own limits end that: agent_first_request_timeout before the lease.
// process is nil if the agent never ran.
func (s *session) launch() (process *agent.Process, exit agent.Exit, err error) {
	for pause := shortBackoff; ; pause = min(2*pause, shortBackoffMax) {
		process, err = s.start()
		failed := err
		if err == nil {
			exit, err = process.Wait(context.Background())
			failed = exit.Err
		}
		if !agent.Transient(failed) || !s.standBack(failed, pause) {
			return process, exit, err
		}
		if process == nil {
			continue
		}
		s.mu.Lock()
		s.process = nil
		s.mu.Unlock()
		if err := process.Cleanup(""); err != nil {
			s.core.warn(err.Error())
		}
	}
}

// standBack waits before the next start. It is false if the Session is over before.
func (s *session) standBack(failed error, pause time.Duration) bool {
	c := s.core
	s.mu.Lock()
	first := s.shortage == nil
	s.shortage = failed
	if first {
		s.shortSince = time.Now()
	}
	s.mu.Unlock()
	if first {
		c.post(func() {
			c.log(observe.Status(observe.Warning, "An agent could not be started for now and is started again later",
				observe.F("group", s.group.name()), observe.F("session", s.ref.Seq), observe.F("cause", s.discreet(failed.Error()))))
		})
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// short says since when the Session's agent cannot be started for want of something.
func (s *session) short() (since time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shortSince, s.shortage != nil && s.process == nil
}

// discreet is a text without the Session's credential, for logs while that is good.
func (s *session) discreet(text string) string { return strings.ReplaceAll(text, s.id, "session-…") }

// mostAgents is how many agents may be alive at a time, as far as options tell: datasets of an Eval
// are not known yet, so it counts only if agentic_eval_concurrency is set, with one sample a prompt.
func (c *core) mostAgents() int {
	peak := 0
	if c.cfg.AgenticEvalConcurrency > 0 {
		peak = c.cfg.schedule.EvalSlots(1)
	}
	slots, _ := c.cfg.schedule.RequiredSlots(peak)
	return slots
}
