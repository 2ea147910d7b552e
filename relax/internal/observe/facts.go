package observe

import (
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// Session is what its owner knows of a Session that is over. Times inside are since Began, so
// that a clock set in between does not bend them.
type Session struct {
	ID, Group, Mode string
	Seq             int
	Began           time.Time
	// Forest is read, and must not grow any more; Stats are its own, Fates what its tokens came to
	// by Exports. Marks of delivery, on which those depend, may still change and are not read.
	Forest *forest.Forest
	Stats  forest.Stats
	Fates  forest.Fates
	// Hashes has the state hash of every node; see [HashForest].
	Hashes  Hashes
	Process Process
	// Requests are those that made a turn or failed, in the order of their end; Faults counts the
	// failed ones, of which Requests may have only the first. Retries got the answer of another;
	// Joined and Replayed count the two kinds, of which Retries may have only the first.
	Requests         []Request
	Faults           int
	Retries          []Retry
	Joined, Replayed int
	// Exports are the contexts the agent chose. Side are those that an implicit export left out.
	Exports []Export
	Side    []*forest.Node
	// LostTokens were sampled and never committed.
	LostTokens int64
	// FinalizeStart and FinalizeEnd bracket the export; both are 0 where there was none.
	FinalizeStart, FinalizeEnd time.Duration
}

// Process is an agent's process.
type Process struct {
	// Launched is false if it never ran.
	Launched bool
	// Start and End bracket it.
	Start, End time.Duration
	ExitCode   int
	Signal     string
	// Reason says who ended it, as package agent does; Err that supervision failed.
	Reason, Err string
	UserSec     float64
	SysSec      float64
	MaxRSSKB    int64
	// LeftBehind counts processes that still ran when the agent had ended; the first few are named.
	LeftBehind      int
	LeftBehindNames []string
	// Log is the file that keeps its output, "" if it is not kept; LogTail the output's end.
	Log, LogTail string
}

// Exited is the code the process left with, nil if it did not run or was killed.
func (p *Process) Exited() *int {
	if !p.Launched || p.Signal != "" || p.ExitCode < 0 {
		return nil
	}
	code := p.ExitCode
	return &code
}

// Request is one model request that made a turn or failed.
type Request struct {
	// ID is "" for a request that was refused before it could be read.
	ID string
	// Arrived, Observed (matched and encoded), Leased and Ended. Those in between are 0 if the
	// request did not get there.
	Arrived, Observed, Leased, Ended time.Duration
	// Attempts are the last ones; see [Request.Tried].
	Attempts []Attempt
	// earlier sums up the attempts before those; sent are those of count that were.
	earlier struct {
		count, sent      int
		gated, generated time.Duration
	}
	// Node is the response it committed, nil if it failed. It may be an earlier request's whose
	// generation was the same.
	Node *forest.Node
	// Finish is what the client was told.
	Finish string
	// Divergence says why it did not go on from the newest state, nil if it did.
	Divergence *forest.Divergence
	// Tolerated counts replayed turns replaced by the recorded ones, Forgiven names the fields in which
	// they differed.
	Tolerated int
	Forgiven  []string
	// Undelivered: its response reached no client.
	Undelivered bool
	// Fault is why it failed.
	Fault Fault
	// LostTokens were sampled and not committed.
	LostTokens int
}

// Tried adds an attempt. A turn that the backend aborts without end, each time without a token, takes
// no more memory than its trace has room for.
func (r *Request) Tried(a Attempt) {
	if len(r.Attempts) == maxAttempts {
		oldest := &r.Attempts[0]
		if r.earlier.count++; oldest.sent() {
			r.earlier.sent++
		}
		r.earlier.gated += oldest.Gated()
		r.earlier.generated += oldest.Generated()
		r.Attempts = append(r.Attempts[:0], r.Attempts[1:]...)
	}
	r.Attempts = append(r.Attempts, a)
}

// Fault is a request's error as its client was told.
type Fault struct {
	Status  int
	Code    string
	Message string
}

// Attempt is one request to the backend.
type Attempt struct {
	// RID is the backend's id of it.
	RID string
	// Queued (it asked for the gate), Started (it was dispatched for the last time, 0 if it never was)
	// and Ended.
	Queued, Started, Ended time.Duration
	// Version is the weight version of its tokens.
	Version int64
	// Protected: the Session was aborted often enough, and could not be aborted any more.
	Protected bool
	Tokens    int
	// Finish is the backend's word for its end; or FinishError, FinishNotSent.
	Finish string
}

// sent says that it was at the backend.
func (a *Attempt) sent() bool { return a.Finish != FinishNotSent }

// Gated is the time it waited for the gate, for admission and for a place at the backend.
func (a *Attempt) Gated() time.Duration {
	if a.Started == 0 {
		return a.Ended - a.Queued
	}
	return a.Started - a.Queued
}

// Generated is the time it was at the backend.
func (a *Attempt) Generated() time.Duration {
	if a.Started == 0 {
		return 0
	}
	return a.Ended - a.Started
}

// Ends of an Attempt that the backend did not answer: it failed, or it never left for the backend.
const (
	FinishError   = "error"
	FinishNotSent = "not_sent"
)

// Retry is a request that was recognised as one made before.
type Retry struct {
	At time.Duration
	// Of is the id of the request whose answer it got.
	Of string
	// Joined: it came while that one was in flight; else the answer was replayed.
	Joined bool
}

// Export is a context the agent chose.
type Export struct {
	Name string
	Node *forest.Node
}
