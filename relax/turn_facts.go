package relax

import (
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// speculation is what the forest keeps of a turn's counts of speculative decoding. A ratio needs
// both of its counts.
func speculation(s sglang.Spec) forest.Speculation {
	return forest.Speculation{
		Accepted: s.Accepted.N, Proposed: s.Proposed.N, Rated: s.Accepted.Known && s.Proposed.Known,
		Verifications: s.Verified.N, Verified: s.Verified.Known,
	}
}

// specOf is what metrics need of them; the tokens of a generation are what it completed.
func specOf(g *forest.Generation) observe.Spec {
	s := observe.Spec{Generations: 1}
	if g.Spec.Rated {
		s.Rated, s.Accepted, s.Proposed = 1, int64(g.Spec.Accepted), int64(g.Spec.Proposed)
	}
	if g.Spec.Verified {
		s.Verified, s.Completion, s.Verifications = 1, int64(len(g.IDs)), int64(g.Spec.Verifications)
	}
	return s
}

// awaitedLease is how long the turn waited for its Group's lease.
func (t *turn) awaitedLease() time.Duration {
	log := &t.pending.log
	if log.Leased == 0 {
		return 0
	}
	return log.Leased - log.Observed
}

// barrier is when the last of the Group's Sessions made its first request, at most the lease, which
// a Session that is run again comes after. The Group has its lease.
func (g *group) barrier() time.Time {
	at := g.began
	for _, s := range g.sessions {
		if first := s.began.Add(s.firstRequest()); first.After(at) {
			at = first
		}
	}
	if at.After(g.leasedAt) {
		return g.leasedAt
	}
	return at
}

// firstRequest is when the first request in the log came, since the Session's start. The Session is
// over.
func (s *session) firstRequest() time.Duration {
	var first time.Duration
	for i := range s.log {
		if at := s.log[i].Arrived; i == 0 || at < first {
			first = at
		}
	}
	return first
}
