package admission

import "time"

// An Action is something the owner must do. The concrete types are in this file.
type Action interface{ action() }

// Grant lets an attempt go to its worker. The decision is not changed any more.
type Grant struct{ *Decision }

// Hold says that a ticket waits, and why. A Grant or Cancelled ends it, or its owner.
type Hold struct {
	Ticket string
	Reason HoldReason
}

// Cancelled ends the wait of a ticket because its Session is over.
type Cancelled struct{ Ticket string }

// Displaced says that the worker a ticket waits for is gone: choose another and answer with
// [Machine.Move]. Without an answer the ticket passes when it has aged.
type Displaced struct{ Ticket, Session string }

// Warn is for the log: a worker became uncontrolled, or a reservation expired.
type Warn struct{ Worker, Text string }

// Recovered says that a worker gives account again.
type Recovered struct{ Worker string }

func (Grant) action()     {}
func (Hold) action()      {}
func (Cancelled) action() {}
func (Displaced) action() {}
func (Warn) action()      {}
func (Recovered) action() {}

// A Verdict is how a ticket got through.
type Verdict string

// Verdicts: admitted by the ledger, or let through without asking it.
const (
	Admit  Verdict = "admit"
	Bypass Verdict = "bypass"
)

// A Reason is why a ticket got through.
type Reason string

// Reasons (reference pipeline 8.3). ReasonScope is ours: Eval under agentic_admission_scope train.
const (
	ReasonCapacity  Reason = "capacity_available"
	ReasonProtected Reason = "protected"
	ReasonAged      Reason = "aged"
	ReasonDegraded  Reason = "degraded"
	ReasonScope     Reason = "out_of_scope"
)

// A HoldReason is why a ticket waits.
type HoldReason string

// Hold reasons. The first two are the reference's (8.4).
const (
	HoldCapacity HoldReason = "capacity_exhausted"
	HoldPressure HoldReason = "pressure_guard"
	// HoldBehind: an older ticket waits for the same worker.
	HoldBehind HoldReason = "queued_behind"
	// HoldGone: the worker is gone and the ticket was not moved yet.
	HoldGone HoldReason = "worker_gone"
)

// A Decision says how a ticket got through.
type Decision struct {
	Ticket, Session, Worker string
	Verdict                 Verdict
	Reason                  Reason
	// ReservationTokens are charged to the worker until the attempt lands.
	ReservationTokens int
	// OwnerEpoch is the number of the worker set in which the worker was first seen; with the ticket
	// it names the reservation (case M11).
	OwnerEpoch int
	// Wait is how long the ticket was held.
	Wait time.Duration
}
