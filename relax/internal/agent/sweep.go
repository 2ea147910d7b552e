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
func sweep(ioDir string, leader int) {
	mark := EnvIODir + "=" + ioDir
	killAll(func(pid int, st procfs.Stat) bool {
		return (leader != 0 && st.Session == leader) || procfs.HasEnv(pid, mark)
	})
}

// killAll kills every process that match chooses. It ends when two looks in a row find none, or
// after a bounded number of looks, and returns how many it killed.
func killAll(match func(pid int, st procfs.Stat) bool) (killed int) {
	const looks = 50
	met := map[int]bool{} // a killed process is met again until it is gone
	clean := 0
	for range looks {
		found := false
		for _, pid := range procfs.All() {
			if killIf(pid, match) {
				found, met[pid] = true, true
			}
		}
		if found {
			clean = 0
		} else if clean++; clean == 2 {
			break
		}
		time.Sleep(2 * time.Millisecond) // KILL needs a moment, and a fork may have slipped by
	}
	return len(met)
}

// killIf holds the process by a pidfd before it looks, so that a reused id is not hit.
func killIf(pid int, match func(pid int, st procfs.Stat) bool) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	st, ok := procfs.ReadStat(pid)
	if !ok || st.State == 'Z' || st.State == 'X' || !match(pid, st) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}
