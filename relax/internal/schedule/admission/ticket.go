package admission

import (
	"container/heap"
	"time"
)

// A Kind says what an attempt is to its request.
type Kind uint8

// Kinds. Protected attempts are never held.
const (
	Fresh     Kind = iota // the request's first attempt
	Resumed               // continues tokens of an aborted one
	Protected             // its request or Session must not be interrupted any more
)

func (k Kind) String() string { return [...]string{"fresh", "resumed", "protected"}[k] }

// A Request is what an attempt asks with.
type Request struct {
	// Ticket is the attempt's rid, unique among those in flight.
	Ticket string
	// Session and Worker are ids. Worker is where the attempt will be sent; through a router
	// that chooses itself, it is the router, reported as the sum of its workers.
	Session, Worker string
	// PromptTokens is the length of the input, with what earlier attempts generated.
	PromptTokens int
	// RemainingTokens is what is left of the turn's budget.
	RemainingTokens int
	Kind            Kind
	// Eval requests pass under ScopeTrain.
	Eval bool
	// Waited is the time the same request was held before, under tickets that were withdrawn.
	Waited time.Duration
}

type ticketState uint8

const (
	held    ticketState = iota
	granted             // has a reservation, not yet at the backend
	started             // at the backend
	expired             // granted, but not started for so long that its reservation was given back
)

type ticket struct {
	// decision is shared with the owner from the grant on and then only read.
	decision  Decision
	ledger    *ledger
	since     time.Time // when it was asked for, less what its request had waited before
	grantedAt time.Time
	number    uint64
	newTokens int // the part of the reservation for generation
	place     int // in the ledger's queue
	state     ticketState
	kind      Kind
	deferred  bool // it was held

	nextOfSession, prevOfSession *ticket
}

// link puts a ticket into the machine's indexes.
func (m *Machine) link(t *ticket) {
	m.tickets[t.decision.Ticket] = t
	if first := m.bySession[t.decision.Session]; first != nil {
		t.nextOfSession, first.prevOfSession = first, t
	}
	m.bySession[t.decision.Session] = t
}

func (m *Machine) unlink(t *ticket) {
	delete(m.tickets, t.decision.Ticket)
	next, prev := t.nextOfSession, t.prevOfSession
	if next != nil {
		next.prevOfSession = prev
	}
	switch {
	case prev != nil:
		prev.nextOfSession = next
	case next != nil:
		m.bySession[t.decision.Session] = next
	default:
		delete(m.bySession, t.decision.Session)
	}
	t.nextOfSession, t.prevOfSession = nil, nil
}

// A queue is a heap of held tickets, the oldest first.
type queue []*ticket

var _ heap.Interface = (*queue)(nil)

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if a, b := q[i].since, q[j].since; !a.Equal(b) {
		return a.Before(b)
	}
	return q[i].number < q[j].number
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push is for package heap.
func (q *queue) Push(x any) {
	t := x.(*ticket)
	t.place = len(*q)
	*q = append(*q, t)
}

// Pop is for package heap.
func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return t
}

func (m *Machine) enqueue(t *ticket) {
	heap.Push(&t.ledger.queue, t)
	m.waiting++
}

func (m *Machine) dequeue(t *ticket) {
	heap.Remove(&t.ledger.queue, t.place)
	m.waiting--
}
