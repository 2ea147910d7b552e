package relax

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// A Wait is something that the engine, or somebody behind it, waits for.
type Wait struct {
	// For is a short stable word: first_request, lease, gate, admission, permit, backend,
	// client_grace, agent_start, agent, reply, tasks, consumed, backoff, batch.
	For string `json:"for"`
	// Count is how many wait, OldestSeconds how long the first of them has.
	Count         int     `json:"count"`
	OldestSeconds float64 `json:"oldest_seconds"`
	// Owner says who ends the wait, and what bounds it.
	Owner string `json:"owner"`
}

func (w Wait) String() string {
	return fmt.Sprintf("%s: %d for %.0f s (%s)", w.For, w.Count, w.OldestSeconds, w.Owner)
}

// waits collects them by what they are for.
type waits struct {
	now  time.Time
	list []Wait
}

// add counts one more since then.
func (w *waits) add(what, owner string, since time.Time) {
	w.addAll(what, owner, 1, w.now.Sub(since).Seconds())
}

func (w *waits) addAll(what, owner string, n int, oldest float64) {
	if n == 0 {
		return
	}
	i := slices.IndexFunc(w.list, func(o Wait) bool { return o.For == what && o.Owner == owner })
	if i < 0 {
		i = len(w.list)
		w.list = append(w.list, Wait{For: what, Owner: owner})
	}
	w.list[i].Count += n
	w.list[i].OldestSeconds = max(w.list[i].OldestSeconds, oldest)
}

// waiting lists everything that waits, in the loop.
func (c *core) waiting(now time.Time) []Wait {
	w := &waits{now: now}
	counts := c.machine.Counts()
	for _, g := range c.groups {
		c.waitsOf(w, g)
	}
	for _, k := range c.tickets {
		what, owner := c.waitOf(k, &counts)
		w.add(what, owner, k.since)
	}
	for _, open := range c.asks {
		what := "reply"
		if open.kind == EventTasksNeeded {
			what = "tasks"
		}
		w.add(what, "the host: it has the event and owes Engine.Reply; unbounded by design", open.since)
	}
	if counts.Stale {
		w.add("consumed", fmt.Sprintf("the trainer: it has not taken partition %d (Engine.Consumed, max_staleness); unbounded by design", counts.Oldest), c.step.started)
	}
	if counts.NotBefore.After(now) {
		w.add("backoff", "a timer: several groups in a row died before all their sessions had asked", c.heard)
	}
	if c.step != nil && c.step.over {
		w.add("batch", fmt.Sprintf("the batch is built; it waits for arena memory at most %s", memoryWait), c.step.overSince)
	}
	c.waitsOutside(w)
	slices.SortFunc(w.list, func(a, b Wait) int { return strings.Compare(a.For+a.Owner, b.For+b.Owner) })
	return w.list
}

// waitsOf adds what a Group waits for beside the requests of its Sessions.
func (c *core) waitsOf(w *waits, g *group) {
	for _, s := range g.sessions {
		n, since := s.abandoned()
		w.addAll("client_grace", "a client that left: it may try again (disconnect_grace)", n, w.now.Sub(since).Seconds())
		if since, ok := s.short(); ok && g.reason == "" {
			w.add("agent_start", "the host: it lacks processes, memory, descriptors or disk space; starts are made again (agent_first_request_timeout)", since)
		}
	}
	switch {
	case g.reason != "":
		w.add("agent", "agents of dropped groups: they are being killed (agent_kill_grace)", g.droppedAt)
	case !g.isLeased() && slices.ContainsFunc(g.sessions, func(s *session) bool { return !s.hasRequested() }):
		w.add("first_request", "agents: not all sessions of the group have made a model request (agent_first_request_timeout)", g.began)
	case g.isLeased() && g.scoringAt.IsZero():
		w.add("agent", "running agents (agent_timeout)", g.leasedAt)
	}
}

// waitOf says what a request waits for.
func (c *core) waitOf(k *ticket, counts *schedule.Counts) (what, owner string) {
	switch g := k.session.group; {
	case k.admitting.Load():
		return "admission", "a worker: its KV cache is promised to others (agentic_admission_max_wait_s)"
	case k.at != "":
		return "backend", "the backend; unbounded by design, but a worker that answers nothing at all is given up"
	case !g.isLeased():
		return "lease", "the schedule: the group has no lease yet; unbounded by design"
	case counts.Paused:
		return "gate", "Engine.Resume: the engine is paused; unbounded by design"
	case c.step == nil:
		return "gate", "Engine.StartRollout: no step is open; unbounded by design"
	case c.step.eval != nil:
		return "gate", "an eval runs, train requests wait for the next rollout; unbounded by design"
	case counts.Stale:
		return "gate", "the trainer: an older partition was not consumed; unbounded by design"
	}
	return "gate", "the step closes; requests wait for the next rollout"
}

// waitsOutside adds what waits in other rooms.
func (c *core) waitsOutside(w *waits) {
	starting := c.launcher.Stats()
	w.addAll("agent_start", "other starts (agent_start_concurrency)", starting.Waiting, starting.WaitingSeconds)
	if b, ok := c.backend.(statsBackend); ok {
		calls := b.Stats()
		w.addAll("permit", "other requests at the backend (sglang_server_concurrency); counted as backend too", calls.Waiting, calls.WaitingSeconds)
	}
}

// beat says what a silent step waits for.
func (c *core) beat(now time.Time) {
	if c.step == nil || now.Sub(c.heard) < heartbeat {
		return
	}
	counts := c.machine.Counts()
	var texts []string
	for _, w := range c.waiting(now) {
		texts = append(texts, w.String())
	}
	c.log(observe.Event("ROLLOUT", "idle_heartbeat",
		observe.F("rollout", c.step.rollout), observe.F("debt", counts.Debt),
		observe.F("active_rollout_id", c.step.rollout),
		observe.F("warming_prepare_group_count", counts.Preparing),
		observe.F("ready_prepare_group_count", counts.Ready),
		observe.F("prepare_group_count", counts.Preparing+counts.Ready),
		observe.F("runtime_reward_group_count", counts.Running+counts.Scoring),
		observe.F("finalized_group_count", counts.Finalized),
		observe.F("resident_group_count", counts.Resident),
		observe.F("interrupted_runtime_group_count", c.interruptedGroups()),
		observe.F("waiting", strings.Join(texts, "; "))))
}
