package relax

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/gateway"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// replays is how many answers a Session keeps for retries. A client tries again within
// seconds; an answer shares its message with the forest.
const replays = 32

// A pending is a turn on its way and the clients that wait for it. The turn runs on the
// goroutine of the request that began it; retries of that request join and only wait. A client
// that leaves leaves the turn running for disconnect_grace, in case it comes back: SDKs give up
// on a connection and send the same request again. Nothing is committed for nobody.
type pending struct {
	session *session
	req     *canon.Request
	ctx     context.Context // the turn's: ends with the Session, or when nobody waits any more
	cancel  context.CancelCauseFunc
	unwatch func() bool   // stops watching the first client
	done    chan struct{} // closed once out and fault are set
	out     *wire.Completion
	fault   *wire.Error
	// log is what the trace will say; its id is set from the start, its node once committed.
	log observe.Request

	// Under session.mu.
	waiting int
	attempt int // the last try that was answered or joined
	grace   *time.Timer
	left    time.Time     // when grace began
	back    chan struct{} // closed when somebody waits again
}

// pend finds the turn of a retry, which the caller now waits for too, or begins one, which the
// caller makes: then mine is set and end must be called.
func (s *session) pend(ctx context.Context, req *canon.Request, log observe.Request) (p *pending, mine bool) {
	s.mu.Lock()
	if p = s.again(req); p != nil {
		s.logRetry(observe.Retry{At: log.Arrived, Of: p.log.ID, Joined: !slices.Contains(s.answered, p)})
		s.mu.Unlock()
		return p, false
	}
	p = &pending{session: s, req: req, log: log, done: make(chan struct{}), waiting: 1, attempt: req.Retry.Attempt}
	p.ctx, p.cancel = context.WithCancelCause(s.ctx)
	s.turns = append(s.turns, p)
	s.mu.Unlock()
	p.unwatch = context.AfterFunc(ctx, func() { p.leave(context.Cause(ctx)) })
	return p, true
}

// end hands the answer to those who joined and keeps it for those who come later.
func (p *pending) end() {
	p.unwatch()
	s := p.session
	s.mu.Lock()
	s.turns = slices.DeleteFunc(s.turns, func(o *pending) bool { return o == p })
	if p.grace != nil {
		p.grace.Stop()
	}
	if p.out == nil && p.fault == nil { // a panic
		p.fault = wire.Internal("the engine panicked; see the trainer's log")
	}
	p.log.Ended = s.since()
	if p.fault == nil {
		s.remember(p)
		s.log = append(s.log, p.log)
	} else {
		s.logFault(p.log, p.fault)
	}
	s.mu.Unlock()
	close(p.done)
	p.cancel(context.Canceled)
}

// maxFaults and maxRetries bound the failed requests and the retries a Session writes down; more
// are only counted.
const (
	maxFaults  = 1000
	maxRetries = 1000
)

// logRetry writes a retry down. The Session is locked.
func (s *session) logRetry(r observe.Retry) {
	if r.Joined {
		s.joined++
	} else {
		s.replayed++
	}
	if len(s.retries) < maxRetries {
		s.retries = append(s.retries, r)
	}
}

// logFault writes a failed request down. The Session is locked.
func (s *session) logFault(log observe.Request, e *wire.Error) {
	if s.faults++; s.faults > maxFaults {
		return
	}
	log.Node, log.Fault = nil, observe.Fault{Status: e.Status, Code: e.Code, Message: e.Message}
	s.log = append(s.log, log)
}

// Refused writes a request down that broke the contract.
func (s *session) Refused(e *wire.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.since()
	s.logFault(observe.Request{Arrived: now, Ended: now}, e)
}

// remember keeps a finished turn for retries. The Session is locked.
func (s *session) remember(p *pending) {
	if len(s.answered) == replays {
		s.answered = append(s.answered[:0], s.answered[1:]...)
	}
	s.answered = append(s.answered, p)
}

// again finds the turn that a retry asks for, nil if there is none: one that lost its client,
// the only one in flight, or an answer. Requests can be equal and yet two (best of n), and a
// retry without a key does not say which it was; so of several that have their clients it takes
// none, and each try is answered once. The Session is locked.
func (s *session) again(req *canon.Request) *pending {
	if req.Retry == (canon.Retry{}) {
		return nil
	}
	var flying []*pending
	for _, p := range s.turns {
		if p.ctx.Err() == nil && p.asked(req) {
			flying = append(flying, p)
		}
	}
	left := slices.IndexFunc(flying, func(p *pending) bool { return p.waiting == 0 })
	switch {
	case left >= 0:
		flying[left].join(req)
		return flying[left]
	case len(flying) == 1:
		flying[0].join(req)
		return flying[0]
	case len(flying) > 1:
		return nil
	}
	for _, p := range slices.Backward(s.answered) {
		if p.asked(req) {
			p.attempt = req.Retry.Attempt
			return p
		}
	}
	return nil
}

// Undelivered marks a turn whose answer could not be written to its client.
func (s *session) Undelivered(answer *wire.Completion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.answered {
		if p.out.ID == answer.ID {
			s.forest.Undelivered(p.log.Node)
			return
		}
	}
}

// asked reports whether a retry can be one of p's request: the same, and a later try of it than
// was answered, or of the same key.
func (p *pending) asked(retry *canon.Request) bool {
	if !sameRequest(p.req, retry) {
		return false
	}
	return retry.Retry.Attempt > p.attempt || (retry.Retry.Key != "" && retry.Retry.Key == p.req.Retry.Key)
}

// sameRequest reports whether a retry repeats an earlier request: the same conversation and
// settings, and the same key where both have one.
func sameRequest(earlier, retry *canon.Request) bool {
	a, b := earlier.Retry.Key, retry.Retry.Key
	if a != b && (a != "" && b != "" || retry.Retry.Attempt == 0) {
		return false
	}
	return slices.EqualFunc(earlier.Messages, retry.Messages, (*canon.Message).Equal) &&
		canon.EqualTools(earlier.Tools, retry.Tools) && earlier.Kwargs.Equal(retry.Kwargs) &&
		earlier.MaxTokens == retry.MaxTokens && earlier.Logprobs == retry.Logprobs &&
		slices.Equal(earlier.Stop, retry.Stop) && equalSeeds(earlier.Seed, retry.Seed)
}

func equalSeeds(a, b *int64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// join counts one more client. The Session is locked.
func (p *pending) join(retry *canon.Request) {
	p.waiting++
	p.attempt = max(p.attempt, retry.Retry.Attempt)
	if p.grace != nil {
		p.grace.Stop()
		p.grace = nil
	}
	if p.back != nil {
		close(p.back)
		p.back = nil
	}
}

// leave counts a client out. The last one starts the grace; a gateway that closes ends all.
func (p *pending) leave(cause error) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	grace := s.core.cfg.disconnectGrace
	if grace <= 0 || !errors.Is(cause, gateway.ErrClientLeft) {
		p.cancel(cause)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(grace, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.grace == timer { // else somebody came back, and perhaps left again
			p.cancel(cause)
		}
	})
	p.grace, p.left = timer, time.Now()
}

// attended waits until somebody is there to take the answer, or the turn is over.
func (p *pending) attended() error {
	s := p.session
	for {
		s.mu.Lock()
		if p.waiting > 0 && p.ctx.Err() == nil {
			s.mu.Unlock()
			return nil
		}
		if p.back == nil {
			p.back = make(chan struct{})
		}
		back := p.back
		s.mu.Unlock()
		select {
		case <-back:
		case <-p.ctx.Done():
			return context.Cause(p.ctx)
		}
	}
}

// await is the answer of a turn that another request began or ended, spelled for req. The
// caller was counted in by again.
func (p *pending) await(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
	select {
	case <-p.done:
	default:
		select {
		case <-p.done:
		case <-ctx.Done():
			p.leave(context.Cause(ctx))
			return nil, p.session.interrupted(context.Cause(ctx))
		}
	}
	if p.fault != nil {
		return nil, p.fault
	}
	p.received()
	out := *p.out
	out.Model, out.Spelling = req.Model, req.Spelling
	return &out, nil
}

// received marks a turn whose answer goes to a retry: it is delivered, even if the client that
// began the turn is gone.
func (p *pending) received() {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forest.Delivered(p.log.Node)
}
