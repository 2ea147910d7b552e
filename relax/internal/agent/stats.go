//go:build linux

package agent

import "sync/atomic"

// Stats is what a launcher does and did.
type Stats struct {
	// Waiting starts wait for their turn (option agent_start_concurrency), the first of them for
	// WaitingSeconds; Starting ones have it.
	Waiting        int     `json:"waiting"`
	WaitingSeconds float64 `json:"waiting_seconds"`

	Starting int `json:"starting"`
	// Live processes are started and not yet cleaned up.
	Live int `json:"live"`
	// StartConcurrency is the limit in force.
	StartConcurrency int `json:"start_concurrency"`
	// Started and StartFailed count starts since New; StartFailed includes those that failed
	// after Start returned.
	Started     int64 `json:"started"`
	StartFailed int64 `json:"start_failed"`
	// LeftBehind counts processes that agents left running at their end.
	LeftBehind int64 `json:"left_behind"`
	// SupervisorsLost counts supervisors that died, were killed from outside, or did not answer.
	SupervisorsLost int64 `json:"supervisors_lost"`
}

type counters struct {
	started, failed, left, lost atomic.Int64
	leavers                     atomic.Int64 // agents that left something behind
}

// worthSaying counts an agent that left something behind. Agents of one command all do it, so
// after a few it is said only now and then.
func (c *counters) worthSaying() bool {
	n := c.leavers.Add(1)
	return n <= 5 || n%100 == 0
}

func (c *counters) add(exit Exit) {
	c.left.Add(int64(exit.LeftBehind))
	switch exit.Reason {
	case StartFailed:
		c.failed.Add(1)
	case SupervisorLost:
		c.lost.Add(1)
	}
}

// Stats takes the numbers one after the other, so they may differ by a process under way.
func (l *Launcher) Stats() Stats {
	starting, waiting := l.turns.counts()
	return Stats{
		Waiting: waiting, WaitingSeconds: l.turns.longest().Seconds(), Starting: starting, Live: l.Live(), StartConcurrency: l.cfg.StartConcurrency,
		Started: l.counts.started.Load(), StartFailed: l.counts.failed.Load(),
		LeftBehind: l.counts.left.Load(), SupervisorsLost: l.counts.lost.Load(),
	}
}
