package relax

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// Why a Session's Group is dropped; the machine adds timeouts and step_end.
const (
	reasonStart  schedule.Reason = "start_failed"
	reasonExit   schedule.Reason = "agent_exit"
	reasonNoCall schedule.Reason = "no_request"
	reasonOutput schedule.Reason = "invalid_output"
	reasonExport schedule.Reason = "export"
	reasonReward schedule.Reason = "reward"
	reasonScore  schedule.Reason = "score"
	// reasonAdvantage: the advantage hook failed; reasonFiltered: it wants the Group out.
	reasonAdvantage schedule.Reason = "advantage"
	reasonFiltered  schedule.Reason = "filtered"
	reasonMemory    schedule.Reason = "memory"
	reasonDropped   schedule.Reason = "dropped" // the Group already has a reason
)

// logTail is how much of an agent's log goes into a drop's cause (reference pipeline 3.1).
const logTail = 8192

// errSessionOver is the cause of a Session's context once its process is over.
var errSessionOver = errors.New("the session is over")

// A session is one agent process and the conversation tree it grows. Its goroutine, run,
// starts the process, waits for it and exports; requests come in on the gateway's.
type session struct {
	core  *core
	group *group
	ref   schedule.SessionRef
	id    string // also the bearer token
	cache *canon.Cache
	began time.Time
	try   int // how often it was run before (agent_retries)

	ctx    context.Context // ends when requests are no longer answered
	cancel context.CancelCauseFunc

	mu         sync.Mutex
	forest     *forest.Forest
	live       int           // requests being answered
	idle       chan struct{} // closed while live is 0
	over       bool          // no new requests
	requests   int           // accepted so far, for request ids
	turns      []*pending    // on their way
	answered   []*pending    // finished, newest last, for retries
	taken      int64         // sampled tokens, committed or not
	lost       int64         // those that were never committed
	lastErr    error         // last backend failure, for a drop's cause
	shortage   error         // why the last start failed that was made again, for the same
	shortSince time.Time     // when the first of them failed
	process    *agent.Process
	killed     bool
	note       string         // why it was killed, if its log is to be kept
	results    []*export      // set by run when the Session ended well
	side       []*forest.Node // contexts an implicit export left out
	log        []observe.Request
	faults     int // failed requests, also those that log has no room for
	retries    []observe.Retry
	// joined and replayed count retries, also those that retries has no room for.
	joined, replayed int
	// exported brackets the export, since began; trace is set by run when the Session is over and
	// traces are written.
	exported struct{ start, end time.Duration }
	trace    *observe.Trace
	ended    ending // the loop's: why it failed
	fate     fate   // set by run when it is over
}

// An ending is why a Session failed.
type ending struct {
	reason schedule.Reason
	cause  string
}

func newSession(c *core, g *group, seq int) *session {
	ctx, cancel := context.WithCancelCause(c.ctx)
	id := newSessionID()
	idle := make(chan struct{})
	close(idle)
	return &session{
		core: c, group: g, ref: schedule.SessionRef{Group: g.id, Seq: seq}, id: id,
		cache: canon.NewCache(0), began: time.Now(), ctx: ctx, cancel: cancel, forest: forest.New(id), idle: idle,
	}
}

// newSessionID returns an unguessable id: it is the Session's credential.
func newSessionID() string {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		panic(err) // crypto/rand does not fail on Linux
	}
	return "session-" + hex.EncodeToString(raw[:])
}

// seed is the Session's sampling seed, nil if the backend is not to be deterministic: rollout_seed
// plus its place among the samples of its task.
func (s *session) seed() *int64 {
	c := &s.core.cfg
	if c.RolloutSeed == nil || !c.SGLangDeterministicInference {
		return nil
	}
	seed := *c.RolloutSeed + int64(s.ref.Seq)
	if o := s.group.origin; o != nil {
		seed += int64(o.first)
	}
	return &seed
}

// Cache is the Session's store of messages it has seen.
func (s *session) Cache() *canon.Cache { return s.cache }

// since is the time since the Session's start; never 0.
func (s *session) since() time.Duration { return max(time.Since(s.began), 1) }

// run is the Session's life. It reports to the schedule exactly once, when nothing of the
// Session runs any more.
func (s *session) run() {
	reason, cause := s.runProcess()
	s.core.post(func() {
		if cause == "" {
			s.core.apply(s.core.machine.SessionExported(time.Now(), s.ref))
			return
		}
		if s.ended == (ending{}) { // else it was killed, with a reason of its own
			s.ended = ending{reason, cause}
		}
		s.core.apply(s.core.machine.SessionFailed(time.Now(), s.ref, reason, cause))
	})
}

// runProcess runs the process to its end and exports. An empty cause means success.
func (s *session) runProcess() (schedule.Reason, string) {
	process, exit, err := s.launch()
	if process == nil {
		s.finish()
		s.conclude(observe.Process{Err: err.Error()}, !s.isKilled() && s.core.ctx.Err() == nil)
		return reasonStart, err.Error()
	}
	s.finish()
	reason, cause := s.judge(process, exit, err)
	note := s.logNote(reason, cause)
	s.conclude(s.processFacts(process, exit, note != ""), note != "")
	if err := process.Cleanup(note); err != nil {
		s.core.warn(err.Error())
	}
	return reason, cause
}

// logNote is why the Session's log is kept, "" if it is not. Of a dropped Group only the
// Session whose fault it was keeps its log.
func (s *session) logNote(reason schedule.Reason, cause string) string {
	if reason != reasonDropped {
		return cause
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.note
}

// start starts the process, unless the Session was killed before.
func (s *session) start() (*agent.Process, error) {
	if s.isKilled() {
		return nil, errSessionOver
	}
	process, err := s.core.launcher.Start(s.ctx, agent.Spec{
		SessionID: s.id, GroupID: s.group.name(), Mode: s.group.rules.mode,
		BaseURL: s.core.baseURL(), Input: s.group.input,
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.process = process
	killed := s.killed
	s.mu.Unlock()
	if killed {
		process.Terminate()
	}
	return process, nil
}

// kill ends the process; run notices. The first note that is not empty keeps its log.
func (s *session) kill(note string) {
	s.mu.Lock()
	s.killed, s.note = true, cmp.Or(s.note, note)
	process := s.process
	s.mu.Unlock()
	s.cancel(errSessionOver)
	if process != nil {
		process.Terminate()
	}
}

// finish answers whatever is still parked and waits until no request of the Session runs.
func (s *session) finish() {
	s.mu.Lock()
	s.over = true
	idle := s.idle
	s.mu.Unlock()
	s.cancel(errSessionOver)
	<-idle
	s.core.admission.sessionOver(s.id)
	if s.core.cfg.AgenticSessionLifecycle {
		s.core.backend.CloseSession(s.id)
	}
	s.core.forget(s)
}

// judge turns a process's end into the Session's result or a reason to drop its Group.
func (s *session) judge(process *agent.Process, exit agent.Exit, waitErr error) (schedule.Reason, string) {
	switch {
	case s.isKilled():
		return reasonDropped, "its group was dropped"
	case s.core.ctx.Err() != nil:
		return reasonDropped, "the engine was closed"
	case waitErr != nil:
		return reasonExit, s.explain(waitErr.Error())
	case exit.Err != nil:
		return reasonExit, s.explain(exit.Err.Error())
	case exit.Reason != agent.Exited: // whatever its code says, it was not done
		return reasonExit, s.explain("something outside the engine ended the agent, by a signal to its supervisor (relax-agent-init): " + exitText(exit))
	case exit.Code != 0:
		return reasonExit, s.explain(exitText(exit))
	}
	output, err := process.ReadOutput()
	if err != nil {
		return reasonOutput, s.explain(err.Error())
	}
	for _, warning := range output.Warnings {
		s.core.warn(fmt.Sprintf("session %d of group %s: %s", s.ref.Seq, s.group.name(), warning))
	}
	if !s.hasRequested() {
		return reasonNoCall, s.explain("agent exited with code 0 and " + s.noRequest())
	}
	s.exported.start = s.since()
	s.results, err = s.exports(output)
	s.exported.end = s.since()
	if err != nil {
		return reasonExport, s.explain(err.Error())
	}
	return "", ""
}

func exitText(exit agent.Exit) string {
	if exit.Signal != "" {
		return fmt.Sprintf("agent was killed by signal %s", exit.Signal)
	}
	return fmt.Sprintf("agent exited with code %d", exit.Code)
}

// explain adds what a person needs to find the fault: the Session, the last backend error
// and the end of the agent's log.
func (s *session) explain(cause string) string {
	s.mu.Lock()
	lastErr, shortage, process := s.lastErr, s.shortage, s.process
	s.mu.Unlock()
	text := fmt.Sprintf("session %d of group %s: %s", s.ref.Seq, s.group.name(), cause)
	if lastErr != nil {
		text += fmt.Sprintf("; last backend error: %v", lastErr)
	}
	if process == nil {
		if shortage != nil {
			text += fmt.Sprintf("; its agent could not be started: %v", shortage)
		}
		return text
	}
	if tail := process.LogTail(logTail); tail != "" {
		text += "; log tail:\n" + tail
	}
	return text
}

func (s *session) isKilled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

func (s *session) hasRequested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests > 0
}

// noRequest says why there was no request to answer.
func (s *session) noRequest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults == 0 {
		return "made no model request"
	}
	first := s.log[0].Fault
	return fmt.Sprintf("made no model request that could be taken; refused: %d, the first with %d: %s", s.faults, first.Status, first.Message)
}

// enter counts a request in and numbers it; leave counts it out. enter fails once the Session
// is over.
func (s *session) enter() (number int, ok bool) {
	if !s.visit() {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return s.requests - 1, true
}

// visit counts a request in that makes no turn.
func (s *session) visit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.ctx.Err() != nil {
		return false
	}
	if s.live == 0 {
		s.idle = make(chan struct{})
	}
	s.live++
	return true
}

func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live--; s.live == 0 {
		close(s.idle)
	}
}

// fail remembers a backend failure for the cause of a later drop.
func (s *session) fail(err error) {
	s.mu.Lock()
	s.lastErr = err
	s.mu.Unlock()
}

// lose counts tokens that were sampled but will never be committed.
func (s *session) lose(n int) {
	s.mu.Lock()
	s.lost += int64(n)
	s.mu.Unlock()
}

// sample counts tokens that came from the backend.
func (s *session) sample(n int) {
	s.mu.Lock()
	s.taken += int64(n)
	s.mu.Unlock()
}

// sampled is the number of tokens the Session had sampled, committed or not.
func (s *session) sampled() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// fates is what becomes of the committed tokens when the Session's contexts are delivered.
func (s *session) fates() forest.Fates {
	nodes := nodesOf(s.results)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forest.Fates(nodes...)
}

func (s *session) liveRequests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// abandoned counts turns whose clients have left and may come back, and says when the first left.
func (s *session) abandoned() (n int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.turns {
		if p.grace == nil {
			continue
		}
		if n++; since.IsZero() || p.left.Before(since) {
			since = p.left
		}
	}
	return n, since
}
