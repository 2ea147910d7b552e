//go:build linux

package supervisor

import (
	"strconv"
	"syscall"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
)

// signalTree sends sig to the leader's process group and to every other process below this
// one, wherever it has moved by setsid or a double fork: as the subreaper this process is an
// ancestor of all of them. It goes from the leaves up: a parent that ends first would hand its
// children over in the middle of the walk, and they would be passed by.
//
// Only this process reaps its children, so their ids cannot be given away meanwhile; nor can
// the id of a group that one of them is in. reaped says that the leader itself does not hold
// its group's id any more.
func signalTree(leader int, reaped bool, sig syscall.Signal) {
	children := procfs.Children(syscall.Getpid())
	places := make([]procfs.Stat, len(children))
	grouped := !reaped
	for i, pid := range children {
		places[i], _ = procfs.ReadStat(pid)
		grouped = grouped || places[i].Group == leader
	}
	for _, pid := range children {
		signalBelow(pid, leader, grouped, sig)
	}
	if grouped {
		syscall.Kill(-leader, sig)
	}
	for i, pid := range children {
		if !grouped || places[i].Group != leader {
			syscall.Kill(pid, sig)
		}
	}
}

// signalBelow signals the descendants of pid that have not been met with their group. Anybody
// may reap them and their ids may be reused, so each is held by a pidfd first and must then
// still be the child it was listed as. What slips away is adopted and met in the next round.
func signalBelow(pid, leader int, grouped bool, sig syscall.Signal) {
	for _, child := range procfs.Children(pid) {
		fd := pidfdOpen(child)
		if fd < 0 {
			continue
		}
		st, ok := procfs.ReadStat(child)
		if ok && st.Parent == pid {
			signalBelow(child, leader, grouped, sig)
			if !grouped || st.Group != leader {
				pidfdSignal(fd, sig)
			}
		}
		syscall.Close(fd)
	}
}

// survivors counts the processes below this one that still run, and names the first few.
func survivors() (n int, names []string) {
	var walk func(parent, depth int)
	walk = func(parent, depth int) {
		for _, pid := range procfs.Children(parent) {
			if st, ok := procfs.ReadStat(pid); ok && st.State != 'Z' && st.State != 'X' {
				if n++; len(names) < maxNames {
					names = append(names, procfs.CommandLine(pid, nameBytes)+" (pid "+strconv.Itoa(pid)+")")
				}
			}
			if depth > 0 { // a bound, because the tree changes while it is walked
				walk(pid, depth-1)
			}
		}
	}
	walk(syscall.Getpid(), 64)
	return n, names
}
