package relax

import (
	"cmp"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// reasonRetried: the tokens of a Session that was run again (agent_retries).
const reasonRetried schedule.Reason = "retried"

// A ledger says what became of everything sampled, and why Groups were dropped, since the last step
// end. What happens between two steps is in the books of the later one. The schedule counts
// Groups and Sessions; a ledger adds tokens and causes.
type ledger struct {
	drops map[schedule.Reason]*Drop
	// Tokens: what the Groups that were carried in had sampled before, and what had its fate since.
	inherited, delivered, dropped int64
}

func newLedger() ledger { return ledger{drops: map[schedule.Reason]*Drop{}} }

// ledgerOf is where a Group is booked.
func (c *core) ledgerOf(g *group) *ledger {
	if g.origin != nil {
		return &c.step.eval.books
	}
	return &c.books
}

// account books a Group that is over: every sampled token gets its one fate.
func (l *ledger) account(g *group) {
	sampled := g.sampled()
	if g.reason != "" {
		l.drop(g.reason, 1, int64(len(g.sessions)), sampled, g.cause)
		l.drops[g.reason].show(g.examples()...)
		return
	}
	var sum forest.Fates
	for _, s := range g.sessions {
		f := s.fates()
		sum.Trained, sum.Repeated = sum.Trained+f.Trained, sum.Repeated+f.Repeated
		sum.Undelivered, sum.Unexported = sum.Undelivered+f.Undelivered, sum.Unexported+f.Unexported
	}
	l.delivered += int64(sum.Trained)
	l.dropTokens("not_exported", sum.Unexported, "sampled outside the exported contexts")
	l.dropTokens("repeated", sum.Repeated, "equal in text and ids to a turn that is recorded")
	l.dropTokens("undelivered", sum.Undelivered, "the answer did not reach its client, and nothing goes on from it")
	uncommitted := int(sampled) - sum.Trained - sum.Unexported - sum.Repeated - sum.Undelivered
	l.dropTokens("uncommitted", uncommitted, "sampled for a turn that was given up: its client left, or its backend failed")
}

// dropTokens writes off tokens of a Group that was delivered.
func (l *ledger) dropTokens(reason schedule.Reason, tokens int, why string) {
	if tokens != 0 {
		l.drop(reason, 0, 0, int64(tokens), why)
	}
}

func (l *ledger) drop(reason schedule.Reason, groups, sessions, tokens int64, cause string) {
	d := l.drops[reason]
	if d == nil {
		d = &Drop{Reason: string(reason), First: cause}
		l.drops[reason] = d
	}
	d.Groups += groups
	d.Sessions += sessions
	d.Tokens += tokens
	l.dropped += tokens
}

// sorted are the drops; traces is the file with the traces of their Sessions.
func (l *ledger) sorted(traces string) []Drop {
	out := make([]Drop, 0, len(l.drops))
	for _, d := range l.drops {
		for i := range d.Examples {
			d.Examples[i].Trace = traces
		}
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Drop) int { return cmp.Compare(a.Reason, b.Reason) })
	return out
}

// closed is the accounting of the step whose books these are. carried are the tokens sampled so far
// by the Groups that go on. What the step sampled follows from them: the balance of tokens holds by
// differences.
func (l *ledger) closed(books schedule.Books, carried int64) Accounting {
	return Accounting{
		Groups: balance(books.Groups), Sessions: balance(books.Sessions),
		Tokens: Balance{
			CarriedIn: l.inherited, Started: l.delivered + l.dropped + carried - l.inherited,
			Delivered: l.delivered, Dropped: l.dropped, Carried: carried,
		},
	}
}

func balance(b schedule.Balance) Balance {
	return Balance{
		CarriedIn: int64(b.Inherited), Started: int64(b.Started),
		Delivered: int64(b.Delivered), Dropped: int64(b.Dropped), Carried: int64(b.Carried),
	}
}

// closeBooks closes the books of the train step and opens those of the next.
func (c *core) closeBooks(books schedule.Books) (ledger, Accounting) {
	var carried int64
	for _, g := range c.groups {
		carried += g.sampled()
	}
	old := c.books
	c.books = newLedger()
	c.books.inherited = carried
	return old, old.closed(books, carried)
}
