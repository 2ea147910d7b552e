//go:build linux

// Command relax-agent-init supervises one agent process for a trainer. It is started by the
// launcher only; see relax/internal/agent/supervisor for what it does. Build it static:
//
//	CGO_ENABLED=0 go build -ldflags "-s -w" -o python/relax_rollout/bin/relax-agent-init ./relax/internal/agent/agentinit
package main

import (
	"os"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

func main() { os.Exit(supervisor.Main()) }
