//go:build linux

package agent

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A child is a process this one started, held so that a reused id is never meant.
type child struct {
	pid int
	fd  *os.File // its pidfd, nil on kernels that have none
}

func newChild(pid, pidFD int) child {
	c := child{pid: pid}
	if pidFD >= 0 {
		c.fd = os.NewFile(uintptr(pidFD), "agent-pidfd")
	}
	return c
}

// signal does nothing on kernels without pidfd: the host program may have reaped the process,
// and its id may have been given away.
func (c child) signal(sig syscall.Signal) {
	if c.fd == nil {
		return
	}
	_ = control(c.fd, func(fd int) { _ = unix.PidfdSendSignal(fd, sig, nil, 0) })
}

// reap collects the process. Its status does not matter, and neither does it if the host
// program ignores SIGCHLD or took the status (ECHILD): then there is nothing left to collect.
func (c child) reap() {
	if c.fd == nil {
		for {
			if _, err := syscall.Wait4(c.pid, nil, 0, nil); err != syscall.EINTR {
				return
			}
		}
	}
	_ = control(c.fd, func(fd int) {
		for {
			if err := unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED, nil); err != unix.EINTR {
				return
			}
		}
	})
	c.fd.Close()
}

// control uses a descriptor while it is held open.
func control(f *os.File, use func(fd int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { use(int(fd)) })
}
