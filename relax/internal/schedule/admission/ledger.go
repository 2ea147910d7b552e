package admission

import (
	"fmt"
	"slices"
	"time"
)

// A ledger is what is known of one worker's KV cache and promised of it.
type ledger struct {
	worker string
	epoch  int
	queue  queue

	reserved int // tokens of the reservations
	leases   int // number of them

	ceiling  int
	capacity int
	used     int
	usage    float64
	// foreign are the tokens in use at the last report beyond our reservations then.
	foreign int
	// landed are the reservations given back since the last report: they may still be in its
	// used tokens and are not foreign.
	landed int

	reported time.Time // of the last good report, zero before the first
	failure  string    // of the last report, "" if it was good
	degraded bool      // the owner was warned
	gone     bool
}

// controlled says whether the worker's account can be believed.
func (l *ledger) controlled(now time.Time, staleAfter time.Duration) bool {
	return !l.gone && l.ceiling > 0 && !l.reported.IsZero() && now.Sub(l.reported) <= staleAfter
}

// refusal is why the worker does not take so many tokens now, "" if it does.
func (l *ledger) refusal(tokens int, threshold float64) HoldReason {
	if l.usage >= threshold {
		return HoldPressure
	}
	if l.leases > 0 && tokens > l.ceiling-l.reserved-l.foreign {
		return HoldCapacity
	}
	return ""
}

// cause says why the worker is uncontrolled.
func (l *ledger) cause() string {
	switch {
	case l.gone:
		return "it is gone"
	case l.failure != "":
		return l.failure
	case l.reported.IsZero():
		return "it has not reported its load yet"
	case l.ceiling <= 0:
		return fmt.Sprintf("it reports max_total_num_tokens %d", l.capacity)
	}
	return "its last load report is too old"
}

// ledger returns the worker's ledger, a new one if it has none.
func (m *Machine) ledger(worker string) *ledger {
	l := m.ledgers[worker]
	if l == nil {
		m.epoch++
		l = &ledger{worker: worker, epoch: m.epoch}
		m.ledgers[worker] = l
		m.order = append(m.order, l)
	}
	return l
}

// forget drops the ledger of a worker that is gone once nothing waits for it. The reservations
// there died with the worker.
func (m *Machine) forget(l *ledger) {
	if !l.gone || len(l.queue) > 0 || m.ledgers[l.worker] != l {
		return
	}
	delete(m.ledgers, l.worker)
	m.order = slices.DeleteFunc(m.order, func(other *ledger) bool { return other == l })
}

// check notes the passage between controlled and uncontrolled, and says which it is now.
func (m *Machine) check(l *ledger, now time.Time) (controlled bool) {
	controlled = l.controlled(now, m.cfg.StaleAfter)
	if l.gone || controlled != l.degraded {
		return controlled
	}
	l.degraded = !controlled
	if controlled {
		m.act(Recovered{Worker: l.worker})
		return true
	}
	m.act(Warn{Worker: l.worker, Text: fmt.Sprintf(
		"worker %s is not controlled by admission: %s; requests to it pass until it reports", l.worker, l.cause())})
	return false
}

// drain lets through what the worker takes now, oldest first. The first one held holds the rest:
// a smaller one must not overtake it (case M6).
func (m *Machine) drain(l *ledger, now time.Time) {
	controlled := m.check(l, now)
	for len(l.queue) > 0 {
		t := l.queue[0]
		verdict, reason := m.judge(t, controlled, now)
		if reason == "" {
			return
		}
		m.dequeue(t)
		m.grant(t, verdict, reason, now)
	}
}

// judge decides about the head of its worker's queue; the reason is "" if it is held.
func (m *Machine) judge(t *ticket, controlled bool, now time.Time) (Verdict, Reason) {
	l := t.ledger
	switch {
	case controlled && l.refusal(t.decision.ReservationTokens, m.cfg.PressureThreshold) == "":
		return Admit, ReasonCapacity
	case !controlled && !l.gone:
		return Bypass, ReasonDegraded
	case now.Sub(t.since) >= m.cfg.MaxWait:
		return Bypass, ReasonAged
	}
	return "", ""
}

// holdReason is why a held ticket waits.
func (m *Machine) holdReason(t *ticket) HoldReason {
	l := t.ledger
	if l.gone {
		return HoldGone
	}
	if t.place > 0 {
		return HoldBehind
	}
	if why := l.refusal(t.decision.ReservationTokens, m.cfg.PressureThreshold); why != "" {
		return why
	}
	return HoldCapacity // not reached between events: what fits is not held
}

// grant charges the ticket's worker and lets it through.
func (m *Machine) grant(t *ticket, verdict Verdict, reason Reason, now time.Time) {
	d := &t.decision
	d.Verdict, d.Reason, d.Wait = verdict, reason, now.Sub(t.since)
	d.Worker, d.OwnerEpoch = t.ledger.worker, t.ledger.epoch
	t.state, t.grantedAt = granted, now
	t.charge(t.ledger)
	m.sums.count(t)
	if m.expireAt.IsZero() {
		m.expireAt = now.Add(m.cfg.LeaseTTL)
	}
	m.act(Grant{d})
}

func (t *ticket) charge(l *ledger) {
	t.ledger = l
	l.reserved += t.decision.ReservationTokens
	l.leases++
}

// discharge gives a reservation back. If the worker went in between, this is the ledger of its
// former life; a new life has its own, so nothing is taken from that (case M11).
func (t *ticket) discharge() {
	t.ledger.reserved -= t.decision.ReservationTokens
	t.ledger.leases--
}
