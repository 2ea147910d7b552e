// Package admission decides when an attempt may go to its worker, so that the KV cache there
// is not promised twice (program-aware admission). It is a state machine without I/O: it takes
// events and returns actions.
//
// What may enter: ids, token counts, workers' accounts of their KV cache, and the time of each
// event. What it never does: read a clock, ask a worker, or choose one.
//
// An attempt asks with a ticket that names its worker. Each worker has a ledger: the ceiling is
// its capacity times agentic_admission_headroom, and every attempt on its way holds a
// reservation. A ticket that does not fit, or whose worker reports pressure, is held in that
// worker's queue, oldest first. Landings, reports and the timer move the queue on.
//
// The rules are those of reference pipeline 8 and cases 1.M, but for its weaknesses (11.16):
//   - A ledger and a queue for each worker. One full worker holds up nobody else.
//   - A worker without a fresh account is uncontrolled: tickets for it pass, counted as degraded.
//     The others are not touched, and a single report that fails changes nothing yet.
//   - A worker that is gone gives its tickets back to be moved ([Displaced]); they keep their age.
//   - Whatever passes without having been admitted (protected, aged, degraded, Eval out of scope)
//     is charged too, so the ledger knows what is there.
//   - What a worker uses beyond our reservations (other clients, answers that grew past
//     agentic_admission_expected_decode_cap) counts against its ceiling as foreign.
//   - A worker with nothing reserved takes any request, one larger than the ceiling as well:
//     there is no landing it could wait for.
//   - Aging has its own deadline ([Machine.Deadline]) instead of a poll of 2 s, and a ticket that
//     was withdrawn by a pause keeps its age (Waited).
//   - A reservation of an attempt at the backend does not expire, however long it runs.
//   - There are no tombstones: one lock orders the events, so a ticket that is asked for after it
//     was withdrawn is simply asked for, and its owner's end takes it back.
//
// The owner of a machine puts a lock around it and keeps a waiter for each ticket: call an
// event, carry out the actions (wake the waiter of a [Grant] or [Cancelled]), set one timer to
// [Machine.Deadline] whose end calls [Machine.Tick]. Every ticket that was granted ends with
// [Machine.Landed], one that is given up with [Machine.Withdraw]; both are harmless when
// repeated. The order is the reference's: the gate lets a request through, then admission, then
// a permit (package permits), then the backend. When the gate closes, the owner withdraws what
// has not reached the backend and asks again after it opened, with Waited.
package admission

import (
	"errors"
	"fmt"
	"time"
)

// A Scope says which requests wait (agentic_admission_scope).
type Scope string

// Scopes. Eval requests pass at once under ScopeTrain.
const (
	ScopeTrain Scope = "train"
	ScopeAll   Scope = "all"
)

// Config holds the options. [Defaults] gives the reference's values.
type Config struct {
	// Headroom is the share of a worker's KV capacity that may be reserved, in (0,1]
	// (agentic_admission_headroom).
	Headroom float64
	// PressureThreshold is the KV usage at and above which a worker gets nothing new, in (0,1]
	// (agentic_admission_pressure_threshold).
	PressureThreshold float64
	// ExpectedDecodeCap bounds the new tokens an attempt reserves, > 0
	// (agentic_admission_expected_decode_cap).
	ExpectedDecodeCap int
	// MaxWait is how long a ticket is held at most, >= 0; 0 holds nothing
	// (agentic_admission_max_wait_s).
	MaxWait time.Duration
	// Scope is ScopeTrain or ScopeAll (agentic_admission_scope).
	Scope Scope
	// StaleAfter is the age above which an account of a worker is not believed: three polls.
	StaleAfter time.Duration
	// LeaseTTL ends reservations whose attempt never started.
	LeaseTTL time.Duration
}

// PollEvery is how often workers should be asked for their load.
const PollEvery = 2 * time.Second

// Defaults returns the reference's defaults; the decode cap is rollout_max_response_len
// (reference pipeline 8.4 and 9.1, case M15).
func Defaults(maxResponseLen int) Config {
	return Config{
		Headroom: 0.90, PressureThreshold: 0.92, ExpectedDecodeCap: maxResponseLen,
		MaxWait: 30 * time.Second, Scope: ScopeTrain,
		StaleAfter: 3 * PollEvery, LeaseTTL: 600 * time.Second,
	}
}

// Validate names every option that is out of its range (case M19).
func (c Config) Validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	inUnit := func(x float64) bool { return x > 0 && x <= 1 } // false for NaN
	refuse(!inUnit(c.Headroom), "agentic_admission_headroom is %v: give a number in (0,1]", c.Headroom)
	refuse(!inUnit(c.PressureThreshold),
		"agentic_admission_pressure_threshold is %v: give a number in (0,1]", c.PressureThreshold)
	refuse(c.ExpectedDecodeCap <= 0,
		"agentic_admission_expected_decode_cap is %d: give a number of tokens above 0", c.ExpectedDecodeCap)
	refuse(c.MaxWait < 0, "agentic_admission_max_wait_s is %v: give 0 or more seconds", c.MaxWait.Seconds())
	refuse(c.Scope != ScopeTrain && c.Scope != ScopeAll,
		"agentic_admission_scope is %q: give train or all", c.Scope)
	refuse(c.StaleAfter <= 0, "the age of a stale load report is %v: give more than 0", c.StaleAfter)
	refuse(c.LeaseTTL <= 0, "the life of an unused reservation is %v: give more than 0", c.LeaseTTL)
	return errors.Join(errs...)
}

// Reservation is the number of KV tokens an attempt is charged: its prompt, with what earlier
// attempts generated, and the new tokens expected of it (case M1). Negative numbers count as 0.
func (c Config) Reservation(promptTokens, remaining int) int {
	return max(0, promptTokens) + max(0, min(remaining, c.ExpectedDecodeCap))
}

// A Machine admits the attempts of one engine. It is not safe for concurrent use.
type Machine struct {
	cfg     Config
	tickets map[string]*ticket
	// bySession holds the first ticket of each Session's list.
	bySession map[string]*ticket
	ledgers   map[string]*ledger
	order     []*ledger // as they were first seen, so that a run can be replayed
	epoch     int
	asked     uint64
	waiting   int
	// expireAt is a time before which no reservation expires, zero if there is none to expire.
	expireAt time.Time

	sums    sums
	actions []Action
}

// New returns a machine that knows no worker yet. It is an error if the configuration is
// not valid.
func New(cfg Config) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return &Machine{
		cfg: cfg, tickets: map[string]*ticket{}, bySession: map[string]*ticket{}, ledgers: map[string]*ledger{},
	}, nil
}

// take returns the actions collected since the last call.
func (m *Machine) take() []Action {
	out := m.actions
	m.actions = nil
	return out
}

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }
