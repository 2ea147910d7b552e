//go:build linux

// Package reexec lets a Go program be its own agent supervisor: started again with the
// right argv[0] it supervises one agent and ends, before its own main runs.
//
// What may enter: nothing; importing it is enough. What it never does: anything in a
// process that was not started as a supervisor.
//
// It is a package of its own, with few imports, because packages are initialised as soon
// as what they import is: little of the rest of the program is set up before the hook runs.
package reexec

import (
	"os"
	"syscall"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

func init() {
	if len(os.Args) > 0 && os.Args[0] == supervisor.Argv0 {
		// Not os.Exit: the supervisor owes the program's own exit hooks nothing, and those of the
		// race detector sleep for a second.
		syscall.Exit(supervisor.Main())
	}
}
