package relax

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// The wait after an abort nobody here asked for that brought no token, which doubles while there is
// none: the backend is probably updating weights.
const (
	stallBackoff    = 200 * time.Millisecond
	stallBackoffMax = 2 * time.Second
)

// Complete answers one model request: the way of one turn, with no step back. The generation
// is committed before the answer exists. A retry of an earlier request gets that one's answer.
func (s *session) Complete(ctx context.Context, req *canon.Request) (out *wire.Completion, fault *wire.Error) {
	defer s.guard(func(answer *wire.Error) { out, fault = nil, answer })
	arrived := s.since()
	number, ok := s.enter()
	if !ok {
		return nil, wire.SessionDiscarded()
	}
	defer s.leave()
	s.core.settle(req)
	p, mine := s.pend(ctx, req, observe.Request{ID: "req_" + s.id + "_" + strconv.Itoa(number), Arrived: arrived})
	if !mine {
		return p.await(ctx, req)
	}
	defer p.end()
	p.out, p.fault = s.answer(p, number)
	return p.out, p.fault
}

// guard turns a panic of a request into its answer, and poisons the engine.
func (s *session) guard(answer func(*wire.Error)) {
	if v := recover(); v != nil {
		s.core.poison("request", v, debug.Stack())
		answer(wire.Internal("the engine panicked; see the trainer's log"))
	}
}

// answer makes the turn of a pending request.
func (s *session) answer(p *pending, number int) (*wire.Completion, *wire.Error) {
	o, fault := s.observe(p.req)
	if fault != nil {
		return nil, fault
	}
	p.log.Divergence, p.log.Tolerated, p.log.Forgiven = s.diverges(&o), o.replaced, o.match.Forgiven
	budget, fault := s.budget(p.req, o.length())
	if fault != nil {
		return nil, fault
	}
	p.log.Observed = s.since()
	t := &turn{
		session: s, pending: p, req: o.req, node: s.attach(o), observation: o.seen, budget: budget,
		rid: s.rid(number), started: time.Now(),
	}
	fault = t.generate(p.ctx)
	if fault == nil {
		if err := p.attended(); err != nil {
			fault = s.interrupted(err)
		}
	}
	if fault != nil {
		t.lose()
		return nil, fault
	}
	return t.commit()
}

// CountTokens is the number of tokens the model would read if req were completed: those of the
// conversation it extends, as they were sampled, and those of its new messages.
func (s *session) CountTokens(_ context.Context, req *canon.Request) (n int, fault *wire.Error) {
	defer s.guard(func(answer *wire.Error) { n, fault = 0, answer })
	if !s.visit() {
		return 0, wire.SessionDiscarded()
	}
	defer s.leave()
	s.core.settle(req)
	o, fault := s.observe(req)
	if fault != nil {
		return 0, fault
	}
	return o.length(), nil
}

// settle applies the options that take part in a conversation's identity.
func (c *core) settle(req *canon.Request) {
	req.Kwargs = canon.MergeKwargs(c.cfg.kwargs, req.Kwargs)
	if c.cfg.SystemMessages == systemHoist {
		req.Messages = canon.HoistSystem(req.Messages)
	}
}

// An observed is where a request goes on in the forest, and its new messages in tokens.
type observed struct {
	// req is the request as it is matched: with match_policy tolerant recorded turns may stand in
	// the place of what the client sent.
	req   *canon.Request
	match forest.Match
	seen  chat.Observation
	// replaced counts those turns.
	replaced int
}

// length is the number of tokens of the prompt.
func (o *observed) length() int { return o.match.Parent.Len() + len(o.seen.Body) + len(o.seen.Prompt) }

// observe finds the conversation a request extends and encodes what is new. The forest stays
// as it is: a request may yet be refused. Tokenisation runs without the Session's lock, so that
// sub-agents do not wait for each other.
func (s *session) observe(req *canon.Request) (observed, *wire.Error) {
	o, previous := s.match(req)
	if known := o.match.Observation; known != nil {
		o.seen = chat.Observation{Body: known.Body(), Prompt: known.Prompt()}
		return o, nil
	}
	var err error
	if o.seen, err = s.core.format.Observe(o.req, o.match.From, previous); err != nil {
		return o, wire.Invalid("messages", "%v", err)
	}
	return o, nil
}

// attach puts an observation into the forest, unless it is there, and returns its node.
func (s *session) attach(o observed) *forest.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forest.Attach(o.match, o.seen.Body, o.seen.Prompt, o.req)
}

// diverges explains and counts a request that does not go on from the newest turn.
func (s *session) diverges(o *observed) *forest.Divergence {
	s.mu.Lock()
	d := s.forest.Explain(o.match, o.req)
	s.mu.Unlock()
	if d != nil {
		s.core.countDivergence(d.Reason)
	}
	return d
}

// match finds what a request extends and the ids of the turn before it.
func (s *session) match(req *canon.Request) (observed, chat.Prev) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := observed{req: req}
	if s.core.cfg.MatchPolicy == matchTolerant {
		o.req, o.match, o.replaced = s.forest.MatchTolerant(req)
	} else {
		o.match = s.forest.Match(req)
	}
	if g := o.match.Parent.Generation(); g != nil {
		return o, chat.Prev{IDs: g.IDs}
	}
	return o, chat.Prev{}
}

// budget is the token limit of a turn behind a prompt of so many tokens: what the client or the
// configuration says, bounded by the context limit (reference session service 5.6).
func (s *session) budget(req *canon.Request, prompt int) (int, *wire.Error) {
	want := req.MaxTokens
	if want == 0 {
		want = s.group.rules.maxResponse
	}
	limit := s.group.rules.maxContext
	if limit == 0 {
		return want, nil
	}
	if prompt >= limit {
		return 0, wire.ContextLength(limit, prompt)
	}
	return min(want, limit-prompt), nil
}

// rid is the backend's id of a request: unique, fixed length, never a prefix of another.
func (s *session) rid(number int) string { return fmt.Sprintf("%s-%08x", s.id, number) }

// interrupted is the answer to a request whose context ended.
func (s *session) interrupted(err error) *wire.Error {
	if errors.Is(err, errSessionOver) || errors.Is(err, ErrClosed) {
		return wire.SessionDiscarded()
	}
	if errors.Is(err, ErrPanic) {
		return wire.Internal("the engine panicked; see the trainer's log")
	}
	return wire.Disconnected()
}

// A turn is one request on its way through the backend: one attempt, or several when it is
// aborted and continued.
type turn struct {
	session     *session
	pending     *pending
	req         *canon.Request
	node        *forest.Node
	observation chat.Observation
	budget      int
	rid         string // of all its attempts
	started     time.Time

	version   int64 // of the last attempt's tokens
	ids       []int32
	logprobs  []float32
	spans     []forest.VersionSpan
	rollout   int64 // the step its first token was sampled in
	aborts    int
	attempts  int
	named     int           // attempts that were given a rid
	stalled   time.Duration // the last wait of stall, 0 once tokens came
	waited    time.Duration // how long the present attempt was held by admission, under rids that were taken back
	truncated bool
	matched   string // what SGLang says ended the last attempt
	// cached is the backend's count of the first attempt; prompts and hits those of all.
	cached, prompts, hits int
	spec                  sglang.Spec
	experts               []forest.Experts
	queued                time.Duration // all attempts' wait for gate, admission and a place at the backend
	generating            time.Duration // all attempts' time at the backend
	dispatched            time.Duration // when the last attempt was sent last, since the Session's start
}

// generate runs attempts until the turn is complete. Aborted attempts keep their tokens and
// are continued: whoever aborted, no token is lost and none is sampled twice.
func (t *turn) generate(ctx context.Context) *wire.Error {
	c := t.session.core
	k := c.arrive(t.session, t.nextRID(), t.abortsAbove())
	defer c.returned(k, schedule.Answered)
	for {
		try := observe.Attempt{RID: k.rid, Queued: t.session.since()}
		leave, err := t.pass(ctx, k, &try)
		if err != nil {
			return t.session.interrupted(err)
		}
		result, err := t.attempt(ctx, try)
		if err != nil {
			return t.failed(ctx, err)
		}
		if result.Unsent && ctx.Err() == nil {
			k.rid = t.nextRID()
			c.returned(k, schedule.Withdrawn)
			continue
		}
		t.take(result, leave.rollout)
		if t.done(result.Finish.Type) {
			return nil
		}
		if ctx.Err() != nil {
			return t.session.interrupted(context.Cause(ctx))
		}
		t.aborts++
		if len(result.IDs) == 0 && result.Foreign && !t.stall(ctx, k) {
			return t.session.interrupted(context.Cause(ctx))
		}
		k.rid = t.nextRID()
		c.returned(k, schedule.Aborted)
	}
}

// pass takes an attempt to the backend's door: through the schedule, which may want it back on the
// way, and then it waits for its pass again.
func (t *turn) pass(ctx context.Context, k *ticket, try *observe.Attempt) (passage, error) {
	for {
		leave, err := k.await(ctx)
		t.noteLease(try)
		if err != nil {
			if t.pending.log.Leased != 0 {
				try.Finish = observe.FinishNotSent
				t.wrote(*try)
			}
			return leave, err
		}
		admitted := false
		if !k.recalled() {
			admitted, err = t.admit(ctx, k, leave)
		}
		if err != nil {
			try.Finish = observe.FinishNotSent
			t.wrote(*try)
			return leave, err
		}
		if admitted {
			try.Protected = leave.protected
			return leave, nil
		}
		k.rid = t.nextRID() // the old one is to be aborted wherever it shows up
		try.RID = k.rid
		t.session.core.returned(k, schedule.Withdrawn)
	}
}

// noteLease parts the wait for the first pass into the one for the Group's lease and the one for
// the gate.
func (t *turn) noteLease(try *observe.Attempt) {
	log, s := &t.pending.log, t.session
	if log.Leased != 0 || !s.group.isLeased() {
		return
	}
	log.Leased = max(log.Observed, s.group.leasedAt.Sub(s.began))
	try.Queued = log.Leased
}

// nextRID names the next attempt.
func (t *turn) nextRID() string {
	t.named++
	return fmt.Sprintf("%s-%04x", t.rid, t.named-1)
}

// abortsAbove is how often the turns that this one goes on from were aborted, all of its conversation
// (reference session service 4 step 8 and 6.6).
func (t *turn) abortsAbove() (n int) {
	for node := t.node.Parent(); node != nil; node = node.Parent() {
		if g := node.Generation(); g != nil {
			n += g.Aborts
		}
	}
	return n
}

// wrote writes an attempt that is over into the request's log, and returns it with its end.
func (t *turn) wrote(try observe.Attempt) observe.Attempt {
	try.Ended = t.session.since()
	t.pending.log.Tried(try)
	return try
}

// lose gives up what was sampled.
func (t *turn) lose() {
	t.pending.log.LostTokens = len(t.ids)
	t.session.lose(len(t.ids))
}

// stall waits a while, unless the schedule wants the attempt back. It is false if ctx ended.
func (t *turn) stall(ctx context.Context, k *ticket) bool {
	t.stalled = min(max(2*t.stalled, stallBackoff), stallBackoffMax)
	timer := time.NewTimer(t.stalled)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-k.recall:
		return true
	case <-ctx.Done():
		return false
	}
}

// take adds an attempt's tokens.
func (t *turn) take(r sglang.Result, rollout int64) {
	t.matched = r.Finish.Matched
	if t.attempts == 1 {
		t.cached = r.CachedTokens
	}
	t.prompts, t.hits, t.spec = t.prompts+r.PromptTokens, t.hits+r.CachedTokens, t.spec.Plus(r.Spec)
	if len(t.ids) == 0 {
		t.rollout = rollout
	}
	if len(r.IDs) == 0 {
		return
	}
	t.stalled = 0
	t.session.sample(len(r.IDs))
	if n := len(t.spans); n == 0 || t.spans[n-1].Version != t.version {
		t.spans = append(t.spans, forest.VersionSpan{Start: len(t.ids), Version: t.version})
	}
	t.ids = append(t.ids, r.IDs...)
	t.logprobs = append(t.logprobs, r.Logprobs...)
	t.takeExperts(&r)
}

// done says whether the turn is complete. A stop token at the end is a stop whatever the
// backend said; an attempt aborted exactly when the budget was used up is a length (reference
// session service 6.5, 11.2 item 10).
func (t *turn) done(finish string) bool {
	if n := len(t.ids); n > 0 && t.session.core.isStop[t.ids[n-1]] {
		return true
	}
	aborted := finish == sglang.FinishAbort
	t.truncated = finish == sglang.FinishLength || aborted && len(t.ids) >= t.budget
	return t.truncated || !aborted
}

// failed turns a backend error into the client's. The Session lives on: the agent may retry.
func (t *turn) failed(ctx context.Context, err error) *wire.Error {
	if ctx.Err() != nil {
		return t.session.interrupted(context.Cause(ctx))
	}
	if c := t.session.core; c.ctx.Err() != nil { // ctx follows it
		return t.session.interrupted(context.Cause(c.ctx))
	}
	var tooLong *sglang.ContextLengthError
	if errors.As(err, &tooLong) {
		refused := wire.Invalid("messages", "the backend's maximum context length is exceeded: %s", tooLong.Message)
		refused.Code = wire.CodeContextLength
		return refused
	}
	t.session.fail(err)
	return wire.Internal("the inference backend failed: " + err.Error())
}

// commit puts the generation into the forest and renders the answer.
func (t *turn) commit() (*wire.Completion, *wire.Error) {
	s := t.session
	reply := s.core.format.Read(t.node.State(), t.ids, t.req, t.observation)
	err := s.record(t, forest.Generation{
		IDs: t.ids, Logprobs: t.logprobs, Spans: t.spans, Message: reply.Message, Truncated: t.truncated,
		Aborts: t.aborts, Rollout: t.rollout, RequestID: t.pending.log.ID, ParseError: reply.ParseError,
		PromptTokens: t.prompts, CachedTokens: t.hits, Spec: speculation(t.spec), Experts: t.experts,
		Seconds: t.generating.Seconds(), QueueSeconds: t.queued.Seconds(), LeaseSeconds: t.awaitedLease().Seconds(),
		WallSeconds: (s.since() - t.pending.log.Arrived).Seconds(),
	})
	if err != nil {
		t.lose()
		s.fail(err)
		return nil, wire.Internal(err.Error())
	}
	s.cache.Intern(reply.Message) // the client's replay of it shares its memory
	return t.completion(reply), nil
}

func (s *session) record(t *turn, g forest.Generation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	node, err := s.forest.Commit(t.node, g)
	t.pending.log.Node = node
	return err
}

func (t *turn) completion(reply chat.Reply) *wire.Completion {
	finish := "stop"
	switch {
	case t.truncated:
		finish = "length"
	case len(reply.Message.ToolCalls) > 0:
		finish = "tool_calls"
	}
	t.pending.log.Finish = finish
	out := &wire.Completion{
		ID: t.pending.log.ID, Created: t.started.Unix(), Model: t.req.Model, Message: reply.Message, Spelling: t.req.Spelling,
		FinishReason: finish, PromptTokens: t.node.Len(), CompletionTokens: len(t.ids), CachedTokens: t.cached,
	}
	if d := t.pending.log.Divergence; d != nil {
		out.Divergence = d.String()
	}
	if !t.truncated && slices.Contains(t.req.Stop, t.matched) {
		out.StopSequence = t.matched
	}
	if !t.req.Logprobs {
		return out
	}
	out.Logprobs = make([]wire.TokenLogprob, len(t.ids))
	for i, id := range t.ids {
		out.Logprobs[i] = wire.TokenLogprob{Token: t.session.core.format.TokenText(id), Logprob: t.logprobs[i]}
	}
	return out
}
