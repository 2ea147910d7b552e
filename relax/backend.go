package relax

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// warnOfBackend says at the start what the backend's shape costs.
func (c *core) warnOfBackend(info sglang.Info) {
	for _, text := range backendWarnings(info, &c.cfg.Config) {
		c.warn(text)
	}
}

func backendWarnings(info sglang.Info, cfg *Config) (texts []string) {
	relayed := info.Router && !info.Direct
	if n := len(info.Unreachable); n > 0 {
		texts = append(texts, fmt.Sprintf("%d workers of the router cannot be called from here, or serve another model: %s; "+
			"they get no requests while others can be called, and their share of sglang_server_concurrency is not used", n, firstFew(info.Unreachable)))
	}
	if relayed && cfg.UseRolloutRoutingReplay {
		texts = append(texts, "use_rollout_routing_replay: requests go through the router, and most routers drop the wish for "+
			"routed experts: sessions are then refused at their export; make the workers' addresses reachable")
	}
	if relayed && !info.Pairs {
		texts = append(texts, "requests go through the router, because no worker of it can be called from here: an aborted request loses "+
			"the tokens of its attempt, so pauses and step ends cost more; make the workers' addresses reachable")
	}
	if relayed && cfg.AgenticSessionLifecycle {
		texts = append(texts, "option agentic_session_lifecycle: requests go through the router, which drops session ids; Sessions are not closed at the workers")
	}
	if relayed && cfg.AgenticProgramAdmission {
		texts = append(texts, "option agentic_program_admission: requests go through the router, which chooses the worker; requests pass without admission")
	}
	return texts
}

// firstFew shortens a list of addresses for a log line.
func firstFew(list []string) string {
	const most = 8
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// lastSessions bounds the wait of a close for Sessions whose agents are gone already.
const lastSessions = 2 * time.Second

// awaitCloseSessions lets the Sessions that a close ended tell the backend so, while there is one to
// tell (agentic_session_lifecycle).
func (c *core) awaitCloseSessions(ctx context.Context) {
	if !c.cfg.AgenticSessionLifecycle {
		return
	}
	ctx, stop := context.WithTimeout(ctx, lastSessions)
	defer stop()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for c.liveSessions() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *core) liveSessions() int {
	c.sessionsMu.Lock()
	defer c.sessionsMu.Unlock()
	return len(c.sessions)
}
