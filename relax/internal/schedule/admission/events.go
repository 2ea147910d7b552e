package admission

import (
	"fmt"
	"time"
)

// Ask asks for an attempt. Its answer is a [Grant] or a [Hold] of the ticket; others may be
// granted too. Asking again with the same ticket repeats the answer and charges nothing, or
// grants it if it became protected. It is an error to ask with another reservation or worker
// while the ticket waits (case M10).
func (m *Machine) Ask(now time.Time, r Request) ([]Action, error) {
	if r.Ticket == "" {
		return nil, fmt.Errorf("admission: session %s asks without a ticket", r.Session)
	}
	if t := m.tickets[r.Ticket]; t != nil {
		return m.askAgain(now, t, r)
	}
	t := m.newTicket(now, r)
	m.link(t)
	switch {
	case r.Kind == Protected:
		m.grant(t, Bypass, ReasonProtected, now)
	case r.Eval && m.cfg.Scope == ScopeTrain:
		m.grant(t, Bypass, ReasonScope, now)
	default:
		m.enter(t, now)
	}
	return m.take(), nil
}

func (m *Machine) newTicket(now time.Time, r Request) *ticket {
	m.asked++
	prompt := m.cfg.Reservation(r.PromptTokens, 0)
	tokens := m.cfg.Reservation(r.PromptTokens, r.RemainingTokens)
	return &ticket{
		decision: Decision{Ticket: r.Ticket, Session: r.Session, ReservationTokens: tokens},
		ledger:   m.ledger(r.Worker), since: now.Add(-r.Waited), number: m.asked, newTokens: tokens - prompt,
		kind: r.Kind,
	}
}

// enter queues a ticket, which is granted at once if its turn has come.
func (m *Machine) enter(t *ticket, now time.Time) {
	m.enqueue(t)
	m.drain(t.ledger, now)
	if t.state != held {
		return
	}
	if !t.deferred {
		t.deferred = true
		m.sums.waited++
	}
	m.hold(t)
}

func (m *Machine) hold(t *ticket) {
	m.act(Hold{Ticket: t.decision.Ticket, Reason: m.holdReason(t)})
	if t.ledger.gone {
		m.act(Displaced{Ticket: t.decision.Ticket, Session: t.decision.Session})
	}
}

func (m *Machine) askAgain(now time.Time, t *ticket, r Request) ([]Action, error) {
	if t.state != held {
		m.act(Grant{&t.decision})
		return m.take(), nil
	}
	tokens := m.cfg.Reservation(r.PromptTokens, r.RemainingTokens)
	switch {
	case tokens != t.decision.ReservationTokens:
		return nil, fmt.Errorf("admission: ticket %s waits for %d tokens and now asks for %d: withdraw it first",
			r.Ticket, t.decision.ReservationTokens, tokens)
	case r.Worker != t.ledger.worker:
		return nil, fmt.Errorf("admission: ticket %s waits for worker %s and now asks for %s: move it",
			r.Ticket, t.ledger.worker, r.Worker)
	case r.Kind == Protected:
		t.kind = Protected
		m.dequeue(t)
		m.grant(t, Bypass, ReasonProtected, now) // those behind it have no more room than before
	default:
		m.hold(t)
	}
	return m.take(), nil
}

// settle lets through what a change at the worker allows, and forgets a worker without need.
func (m *Machine) settle(l *ledger, now time.Time) {
	m.drain(l, now)
	m.forget(l)
}

// Started says that a granted attempt is being sent to worker ("": the one it asked for). Its
// reservation goes there with it and does not expire any more; one that had expired is charged
// again.
func (m *Machine) Started(now time.Time, id, worker string) []Action {
	t := m.tickets[id]
	if t == nil || t.state == held {
		return nil
	}
	old := t.ledger
	target := old
	if worker != "" && worker != old.worker {
		target = m.ledger(worker)
	}
	if t.state != expired {
		t.discharge()
	}
	t.charge(target)
	t.state = started
	m.settle(old, now)
	return m.take()
}

// Landed ends an attempt, whatever became of it; newTokens is what it generated. A ticket that
// is not known (a second end) is no error (case M3).
func (m *Machine) Landed(now time.Time, id string, newTokens int) []Action {
	t := m.tickets[id]
	if t == nil {
		return nil
	}
	if t.state != held && newTokens > t.newTokens {
		m.sums.overruns++
	}
	m.end(t, now)
	return m.take()
}

// Withdraw gives a ticket up, waiting or granted, and returns how long its request was held so
// far, for the Waited of a later one. A ticket that is not known is no error (case M13).
func (m *Machine) Withdraw(now time.Time, id string) (waited time.Duration, actions []Action) {
	t := m.tickets[id]
	if t == nil {
		return 0, nil
	}
	if waited = t.decision.Wait; t.state == held {
		waited = now.Sub(t.since)
		m.sums.cancelled++
	}
	m.end(t, now)
	return waited, m.take()
}

// end takes a ticket out, waiting or granted.
func (m *Machine) end(t *ticket, now time.Time) {
	m.unlink(t)
	switch t.state {
	case held:
		m.dequeue(t)
	case granted, started:
		t.discharge()
		t.ledger.landed += t.decision.ReservationTokens
	}
	m.settle(t.ledger, now)
}

// SessionOver ends all tickets of a Session whose attempts are over; waiting ones are cancelled.
func (m *Machine) SessionOver(now time.Time, session string) []Action {
	for t := m.bySession[session]; t != nil; t = m.bySession[session] {
		if t.state == held {
			m.sums.cancelled++
			m.act(Cancelled{Ticket: t.decision.Ticket})
		}
		m.end(t, now)
	}
	return m.take()
}

// Move makes a waiting ticket wait for another worker, with its age. It does nothing to a
// ticket that does not wait any more.
func (m *Machine) Move(now time.Time, id, worker string) []Action {
	t := m.tickets[id]
	if t == nil || t.state != held || t.ledger.worker == worker {
		return nil
	}
	old := t.ledger
	m.dequeue(t)
	t.ledger = m.ledger(worker)
	m.enter(t, now)
	m.settle(old, now)
	return m.take()
}
