//go:build linux

package agent

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
)

// sweep kills what a dead supervisor left running, as well as it can be found: the agent's
// session, and every process that was started with the Session's IO directory in its
// environment. The leader is dead already, by its death signal. leader is 0 if it is not known.
//
// It ends when two looks in a row find nothing, or after a bounded number of looks.
func sweep(ioDir string, leader int) {
	const looks = 50
	mark := EnvIODir + "=" + ioDir
	clean := 0
	for range looks {
		if killMarked(mark, leader) > 0 {
			clean = 0
		} else if clean++; clean == 2 {
			return
		}
		time.Sleep(2 * time.Millisecond) // KILL needs a moment, and a fork may have slipped by
	}
}

func killMarked(mark string, leader int) (killed int) {
	for _, pid := range procfs.All() {
		if killIfMarked(pid, mark, leader) {
			killed++
		}
	}
	return killed
}

// killIfMarked holds the process by a pidfd before it looks, so that a reused id is not hit.
func killIfMarked(pid int, mark string, leader int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	st, ok := procfs.ReadStat(pid)
	if !ok || st.State == 'Z' || st.State == 'X' {
		return false
	}
	if (leader == 0 || st.Session != leader) && !procfs.HasEnv(pid, mark) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}
