package sglang

import (
	"slices"
	"strings"
	"time"
)

// Stats is what the client does now and has done.
type Stats struct {
	// Workers are those requests go to and those that still have some, by URL.
	Workers []WorkerStats `json:"workers"`
	// InFlight counts generate calls that have not returned; Waiting are those of them that
	// wait for a slot (Config.Concurrency), the first of them for WaitingSeconds, Aborting those
	// that were asked to end.
	InFlight       int     `json:"in_flight"`
	Waiting        int     `json:"waiting"`
	WaitingSeconds float64 `json:"waiting_seconds"`
	Aborting       int     `json:"aborting"`
	// SessionsClosed and SessionCloseFailures count CloseSession calls that every worker
	// took, and others.
	SessionsClosed       int64 `json:"sessions_closed"`
	SessionCloseFailures int64 `json:"session_close_failures"`
	// ListError says why the list of workers could not be read the last time, "" if it could.
	ListError string `json:"list_error,omitempty"`
}

// WorkerStats is one worker as this client sees it.
type WorkerStats struct {
	URL string `json:"url"`
	// Router is true when the URL is a router that requests go through.
	Router bool `json:"router,omitempty"`
	// Up is false for a worker that refused a connection or fell silent; Ailing is true for one
	// that its router does not call healthy. Neither gets new requests while others can.
	Up     bool `json:"up"`
	Ailing bool `json:"ailing,omitempty"`
	// InFlight counts attempts there now, OldestSeconds is the age of the oldest.
	InFlight      int     `json:"in_flight"`
	OldestSeconds float64 `json:"oldest_seconds"`
	// Requests, Failed and Aborts count attempts, attempts that brought no usable reply, and
	// abort calls.
	Requests int64 `json:"requests"`
	Failed   int64 `json:"failed"`
	Aborts   int64 `json:"aborts"`
	// LastError is the last failed attempt's, with its time.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// Stats returns a snapshot.
func (c *Client) Stats() Stats {
	waiting, since := c.slots.queued()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Stats{
		InFlight: len(c.calls), Waiting: waiting, Aborting: len(c.aborting),
		SessionsClosed: c.sessionsClosed, SessionCloseFailures: c.sessionFailures, ListError: c.fleet.listError,
	}
	oldest := c.oldestAttempts()
	now := c.cfg.Now()
	if waiting > 0 {
		out.WaitingSeconds = now.Sub(since).Seconds()
	}
	for _, w := range c.fleet.all(c.root) {
		if w.load == 0 && w == c.root && !slices.Contains(c.fleet.active, w) {
			continue // a router nothing goes through
		}
		s := w.stats
		s.URL, s.Router, s.Up, s.Ailing, s.InFlight = w.url, w.router, !w.down, w.ailing, w.load
		if since, ok := oldest[w]; ok {
			s.OldestSeconds = now.Sub(since).Seconds()
		}
		out.Workers = append(out.Workers, s)
	}
	slices.SortFunc(out.Workers, func(a, b WorkerStats) int { return strings.Compare(a.URL, b.URL) })
	return out
}

// oldestAttempts is when the oldest attempt at each worker began. The caller holds mu.
func (c *Client) oldestAttempts() map[*worker]time.Time {
	out := map[*worker]time.Time{}
	for _, f := range c.calls {
		f.mu.Lock()
		w, since := f.worker, f.since
		f.mu.Unlock()
		if w == nil {
			continue
		}
		if at, ok := out[w]; !ok || since.Before(at) {
			out[w] = since
		}
	}
	return out
}
