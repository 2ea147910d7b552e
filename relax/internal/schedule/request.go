package schedule

import (
	"cmp"
	"slices"
	"time"
)

// RequestID names one model request of a run. The caller chooses it; it must be new.
type RequestID uint64

// An Outcome says how a request came back.
type Outcome int

const (
	// Answered: the client has an answer, also if it is an error, or there is none any more.
	Answered Outcome = iota
	// Aborted: it came back unfinished, whoever aborted it, and has to go on with what it has.
	Aborted
	// Withdrawn: an Abort met it before it was at the backend. It keeps its place.
	Withdrawn
)

type requestState int

const (
	held    requestState = iota // its Group has no lease
	waiting                     // for the gate or a permit
	passed
	ended
)

type request struct {
	id      RequestID
	g       *group
	seq     int
	state   requestState
	arrival uint64
	aborts  int
	queue   *queue
	asked   bool // we want it back
	parked  bool // we had it back, and it did not pass since
}

// RequestArrived reports a model request of a Session. aborts is how often the turns it goes on
// from were aborted. The answer is Pass, now or later, or nothing if the Session is over.
func (m *Machine) RequestArrived(now time.Time, ref SessionRef, id RequestID, aborts int) []Action {
	g := m.live(ref)
	if g == nil || g.sessions[ref.Seq].doomed != nil || m.requests[id] != nil {
		return m.settle(now)
	}
	m.arrivals++
	r := &request{id: id, g: g, seq: ref.Seq, arrival: m.arrivals, aborts: aborts}
	m.requests[id] = r
	s := &g.sessions[ref.Seq]
	s.requests = append(s.requests, r)
	m.requested(g, ref.Seq)
	if g.phase == running {
		m.await(r)
	}
	return m.settle(now)
}

// RequestReturned reports that a request is back from the backend, or that its client left
// while it waited.
func (m *Machine) RequestReturned(now time.Time, id RequestID, how Outcome) []Action {
	r := m.requests[id]
	switch {
	case r == nil:
	case how == Answered || (r.state == passed && !m.goesOn(r)):
		s := &r.g.sessions[r.seq]
		s.requests = slices.DeleteFunc(s.requests, func(o *request) bool { return o == r })
		m.endRequest(r)
	case r.state == passed:
		m.back(r, how)
	}
	return m.settle(now)
}

// goesOn says whether a request that came back unfinished will be continued.
func (m *Machine) goesOn(r *request) bool {
	return r.g.active() && r.g.sessions[r.seq].doomed == nil
}

// back parks a request that came back unfinished.
func (m *Machine) back(r *request, how Outcome) {
	m.passed--
	asked := r.asked
	r.asked = false
	if how == Withdrawn {
		m.await(r)
		return
	}
	r.aborts++
	s := &r.g.sessions[r.seq]
	if m.cfg.MaxAborted > 0 && r.aborts >= m.cfg.MaxAborted && !r.g.eval && !s.protected {
		s.armed = true
	}
	if asked {
		r.parked = true
		if m.step != nil {
			r.g.parkedIn = m.step.rollout + 1
		}
	}
	// A withdrawn request keeps its arrival, one that was aborted goes to the end.
	m.arrivals++
	r.arrival = m.arrivals
	m.await(r)
}

// await puts a request of a leased Group into its queue.
func (m *Machine) await(r *request) {
	r.state = waiting
	switch {
	case r.g.eval:
		m.eval.push(r)
	case r.g.sessions[r.seq].protected:
		m.free.push(r)
	default:
		m.gated.push(r)
	}
}

// release puts the requests a Group made before its lease into the queue.
func (m *Machine) release(g *group) {
	var all []*request
	for i := range g.sessions {
		all = append(all, g.sessions[i].requests...)
	}
	slices.SortFunc(all, func(a, b *request) int { return cmp.Compare(a.arrival, b.arrival) })
	for _, r := range all {
		m.await(r)
	}
}

func (m *Machine) endRequest(r *request) {
	if r.state == passed {
		m.passed--
	}
	r.state = ended
	delete(m.requests, r.id)
}

// pass lets waiting requests through, those first that wait longest.
func (m *Machine) pass() {
	for m.cfg.Permits == 0 || m.passed < m.cfg.Permits {
		from := &m.free
		if m.trainOpen {
			from = earlier(from, &m.gated)
		}
		if m.evalOpen {
			from = earlier(from, &m.eval)
		}
		r := from.head()
		if r == nil {
			return
		}
		from.pop()
		r.state, r.parked = passed, false
		m.passed++
		m.act(Pass{Request: r.id, Protected: r.g.sessions[r.seq].protected})
	}
}

// A queue holds waiting requests, the earliest arrival first.
type queue struct{ all []*request }

func earlier(a, b *queue) *queue {
	x, y := a.head(), b.head()
	if x == nil || y != nil && y.arrival < x.arrival {
		return b
	}
	return a
}

// head is the first request that still waits here, nil if there is none.
func (q *queue) head() *request {
	for len(q.all) > 0 && (q.all[0].state != waiting || q.all[0].queue != q) {
		q.pop()
	}
	if len(q.all) == 0 {
		return nil
	}
	return q.all[0]
}

func (q *queue) pop() {
	q.all[0] = nil
	q.all = q.all[1:]
}

func (q *queue) push(r *request) {
	i := len(q.all)
	for i > 0 && q.all[i-1].arrival > r.arrival {
		i--
	}
	q.all = slices.Insert(q.all, i, r)
	r.queue = q
}
