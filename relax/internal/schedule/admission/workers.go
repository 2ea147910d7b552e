package admission

import (
	"fmt"
	"slices"
	"time"
)

// A Report is one worker's account of its KV cache.
type Report struct {
	Worker string
	// UsedTokens and MaxTokens are the cache's (max_total_num_tokens), over all data-parallel
	// ranks. MaxTokens 0 leaves the worker uncontrolled.
	UsedTokens, MaxTokens int
	// Usage is the worker's own token_usage, the fullest rank's if it has several; 0 if it does
	// not say, and UsedTokens/MaxTokens is taken. It is bounded to [0,1].
	Usage float64
}

// Reported takes a worker's account, as it arrived at now. Accounts should come every
// [PollEvery]; a worker that is slow to answer must not keep back those of the others for as
// long as StaleAfter.
func (m *Machine) Reported(now time.Time, r Report) []Action {
	l := m.ledger(r.Worker)
	if l.gone {
		l = m.revive(l)
	}
	l.capacity, l.used, l.usage = r.MaxTokens, max(r.UsedTokens, 0), r.Usage
	l.ceiling = int(float64(r.MaxTokens) * m.cfg.Headroom)
	if !(l.usage > 0) && r.MaxTokens > 0 { // also NaN
		l.usage = float64(l.used) / float64(r.MaxTokens)
	}
	l.usage = max(0, min(l.usage, 1))
	l.foreign, l.landed = max(0, l.used-l.reserved-l.landed), 0
	l.reported, l.failure = now, ""
	m.sums.usage.add(l.usage)
	m.settle(l, now)
	return m.take()
}

// ReportFailed notes why a worker gave no account. The last one holds until it is too old.
func (m *Machine) ReportFailed(now time.Time, worker string, cause error) []Action {
	l := m.ledger(worker)
	l.failure = fmt.Sprint("it gave no load report: ", cause)
	m.settle(l, now)
	return m.take()
}

// WorkerGone says that a worker is gone, and with it what it held. Its waiting tickets are
// displaced.
func (m *Machine) WorkerGone(now time.Time, worker string) []Action {
	l := m.ledgers[worker]
	if l == nil || l.gone {
		return nil
	}
	l.gone = true
	m.epoch++
	for _, t := range l.queue.sorted() {
		m.act(Displaced{Ticket: t.decision.Ticket, Session: t.decision.Session})
	}
	m.settle(l, now)
	return m.take()
}

// Listed tells of all workers an attempt can be sent to; others are gone.
func (m *Machine) Listed(now time.Time, workers []string) []Action {
	var all []Action
	for _, l := range slices.Clone(m.order) {
		if !slices.Contains(workers, l.worker) {
			all = append(all, m.WorkerGone(now, l.worker)...)
		}
	}
	return all
}

// revive begins a new life of a worker that was gone: with the old one's queue, without its
// reservations.
func (m *Machine) revive(old *ledger) *ledger {
	m.epoch++
	l := &ledger{worker: old.worker, epoch: m.epoch, queue: old.queue}
	old.queue = nil
	for _, t := range l.queue {
		t.ledger = l
	}
	m.ledgers[l.worker] = l
	m.order[slices.Index(m.order, old)] = l
	return l
}

// Tick lets through what has aged, notes workers whose account became too old, and ends
// reservations of attempts that never started.
func (m *Machine) Tick(now time.Time) []Action {
	m.expire(now)
	for _, l := range slices.Clone(m.order) {
		m.settle(l, now)
	}
	return m.take()
}

// expire ends reservations that were granted LeaseTTL ago and never used (case M9).
func (m *Machine) expire(now time.Time) {
	if m.expireAt.IsZero() || now.Before(m.expireAt) {
		return
	}
	m.expireAt = time.Time{}
	var over []*ticket
	for _, t := range m.tickets {
		if t.state != granted {
			continue
		}
		end := t.grantedAt.Add(m.cfg.LeaseTTL)
		if !now.Before(end) {
			over = append(over, t)
			continue
		}
		if m.expireAt.IsZero() || end.Before(m.expireAt) {
			m.expireAt = end
		}
	}
	slices.SortFunc(over, func(a, b *ticket) int { return int(a.number) - int(b.number) })
	for _, t := range over {
		m.sums.expired++
		m.act(Warn{Worker: t.ledger.worker, Text: fmt.Sprintf(
			"a reservation of %d tokens was not used for %v and is given back", // ids of Sessions are credentials
			t.decision.ReservationTokens, m.cfg.LeaseTTL)})
		t.discharge()
		t.state = expired
		m.settle(t.ledger, now)
	}
}

// Deadline is the time of the next Tick that matters, zero if none does.
func (m *Machine) Deadline() time.Time {
	next := m.expireAt
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, l := range m.order {
		if len(l.queue) > 0 {
			sooner(l.queue[0].since.Add(m.cfg.MaxWait))
		}
		if !l.gone && !l.degraded && !l.reported.IsZero() {
			sooner(l.reported.Add(m.cfg.StaleAfter + 1)) // at StaleAfter it still counts
		}
	}
	return next
}

// held returns the ledgers somebody waits for.
func (m *Machine) held() []*ledger {
	var out []*ledger
	for _, l := range m.order {
		if len(l.queue) > 0 {
			out = append(out, l)
		}
	}
	return out
}
