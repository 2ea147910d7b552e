package admission

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// sorted returns the queue, oldest first.
func (q queue) sorted() []*ticket {
	out := slices.Clone(q)
	slices.SortFunc(out, byAge)
	return out
}

func byAge(a, b *ticket) int {
	if c := a.since.Compare(b.since); c != 0 {
		return c
	}
	return cmp.Compare(a.number, b.number)
}

// A Wait is one ticket that is held: who waits for what, and since when.
type Wait struct {
	Ticket  string     `json:"ticket"`
	Session string     `json:"session"`
	Worker  string     `json:"worker"`
	Kind    string     `json:"kind"`
	Tokens  int        `json:"tokens"`
	Reason  HoldReason `json:"reason"`
	// For says it in words, with numbers.
	For   string    `json:"for"`
	Since time.Time `json:"since"`
	// Until is when it passes at the latest.
	Until time.Time `json:"until"`
}

// Waits returns the oldest held tickets, at most limit of them.
func (m *Machine) Waits(limit int) []Wait {
	var all []*ticket
	for _, l := range m.held() {
		all = append(all, l.queue...)
	}
	slices.SortFunc(all, byAge)
	out := make([]Wait, 0, min(len(all), max(limit, 0)))
	for _, t := range all[:cap(out)] {
		why := m.holdReason(t)
		out = append(out, Wait{
			Ticket: t.decision.Ticket, Session: t.decision.Session, Worker: t.ledger.worker, Kind: t.kind.String(),
			Tokens: t.decision.ReservationTokens, Reason: why, For: m.waitsFor(t, why),
			Since: t.since, Until: t.since.Add(m.cfg.MaxWait),
		})
	}
	return out
}

func (m *Machine) waitsFor(t *ticket, why HoldReason) string {
	l := t.ledger
	switch why {
	case HoldGone:
		return fmt.Sprintf("another worker than %s, which is gone", l.worker)
	case HoldBehind:
		return fmt.Sprintf("%s, which is first at %s", l.queue[0].decision.Ticket, l.worker)
	case HoldPressure:
		return fmt.Sprintf("KV usage %.2f of %s to fall below %.2f", l.usage, l.worker, m.cfg.PressureThreshold)
	}
	return fmt.Sprintf("%d tokens at %s: %d of %d are reserved and %d used by others",
		t.decision.ReservationTokens, l.worker, l.reserved, l.ceiling, l.foreign)
}

// A Ledger is a snapshot of one worker's.
type Ledger struct {
	Worker string `json:"worker"`
	// Ceiling, Reserved and Foreign are tokens; Reserved may exceed Ceiling through bypasses.
	Ceiling  int     `json:"ceiling"`
	Reserved int     `json:"reserved"`
	Foreign  int     `json:"foreign"`
	Usage    float64 `json:"usage"`
	// Leases are attempts on their way, Waiting are held.
	Leases  int `json:"leases"`
	Waiting int `json:"waiting"`
	// Uncontrolled says why requests pass without admission, "" if they do not.
	Uncontrolled string    `json:"uncontrolled"`
	Reported     time.Time `json:"reported"`
}

// Stats is a snapshot of the machine.
type Stats struct {
	Waiting int `json:"waiting"`
	// Leases are the attempts on their way, at all workers.
	Leases  int      `json:"leases"`
	Ledgers []Ledger `json:"ledgers"`
	// Overruns counts attempts since the last drain that generated more than they reserved: a
	// high number says that agentic_admission_expected_decode_cap is too low.
	Overruns int `json:"overruns"`
}

// Stats returns a snapshot; now decides whether a worker's account is fresh.
func (m *Machine) Stats(now time.Time) Stats {
	s := Stats{Waiting: m.waiting, Overruns: m.sums.overruns}
	for _, l := range m.order {
		w := Ledger{
			Worker: l.worker, Ceiling: l.ceiling, Reserved: l.reserved, Foreign: l.foreign, Usage: l.usage,
			Leases: l.leases, Waiting: len(l.queue), Reported: l.reported,
		}
		if !l.controlled(now, m.cfg.StaleAfter) {
			w.Uncontrolled = l.cause()
		}
		s.Leases += l.leases
		s.Ledgers = append(s.Ledgers, w)
	}
	return s
}
