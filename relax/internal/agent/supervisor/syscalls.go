//go:build linux

package supervisor

import (
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// Numbers that package syscall lacks. The calls added since Linux 5.0 have the same number on
// every architecture. golang.org/x/sys would bring them, and start-up work with them.
const (
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
	sysCloseRange      = 436

	prSetName           = 15
	prSetChildSubreaper = 36
	wAll                = 0x40000000
	highestSignal       = 64
	sigsetBytes         = 8
	pollIn              = 1
)

type pollFD struct {
	fd      int32
	events  int16
	revents int16
}

// poll waits for one of fds, timeoutNS at most. interrupted is true if a signal came first:
// the Go runtime handles SIGCHLD, so a child that ends does that.
func poll(fds []pollFD, timeoutNS int64) (n int, interrupted bool) {
	ts := syscall.NsecToTimespec(timeoutNS)
	r, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)),
		uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return 0, true
	}
	return int(r), false
}

// becomeSubreaper makes every orphan below this process its child.
func becomeSubreaper() error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// setName is what ps and top show, which otherwise is the number of the descriptor the
// supervisor was executed from. The kernel keeps 15 bytes.
func setName(name string) {
	var buf [16]byte
	copy(buf[:15], name)
	syscall.RawSyscall6(syscall.SYS_PRCTL, prSetName, uintptr(unsafe.Pointer(&buf[0])), 0, 0, 0, 0)
}

// closeFrom closes every descriptor from first on. The trainer's inheritable descriptors (GPU
// devices, listeners, other pipes) would otherwise live as long as the agent.
func closeFrom(first int) {
	if _, _, errno := syscall.RawSyscall(sysCloseRange, uintptr(first), ^uintptr(0)>>32, 0); errno != 0 {
		closeListed(first)
	}
}

// closeListed is closeFrom for kernels before 5.9 and sandboxes without close_range.
func closeListed(first int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			syscall.Close(fd)
		}
	}
}

// pidfdOpen returns a close-on-exec descriptor of a process, -1 if that is not possible.
func pidfdOpen(pid int) int {
	fd, _, errno := syscall.RawSyscall(sysPidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return -1
	}
	return int(fd)
}

func pidfdSignal(fd int, sig syscall.Signal) {
	syscall.RawSyscall6(sysPidfdSendSignal, uintptr(fd), uintptr(sig), 0, 0, 0, 0)
}

// reapAny collects one child that has ended. It returns 0 if none has, and -1 if there are no
// children at all.
func reapAny() (pid int, ws syscall.WaitStatus) {
	for {
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|wAll, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return -1, ws
		}
		return pid, ws
	}
}

// blockedSignals is the signal mask of this thread.
func blockedSignals() (set uint64) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, 0, uintptr(unsafe.Pointer(&set)), sigsetBytes, 0, 0)
	return set
}

func unblockSignals() {
	const setMask = 2
	var none uint64
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&none)), 0, sigsetBytes, 0, 0)
}

// sigaction is the kernel's struct. Its layout differs between architectures behind the first
// word; all that is used here is that word and zeroes.
type sigaction struct {
	handler uintptr
	rest    [7]uintptr
}

// defaultIgnoredSignals gives signals that the trainer ignores (Python: SIGXFSZ and SIGPIPE,
// nohup: SIGHUP) their default action. Handlers are left alone: exec resets them.
func defaultIgnoredSignals() {
	const sigIgn = 1
	for sig := uintptr(1); sig <= highestSignal; sig++ {
		var old, def sigaction
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&old)), sigsetBytes, 0, 0)
		if errno == 0 && old.handler == sigIgn {
			syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&def)), 0, sigsetBytes, 0, 0)
		}
	}
}
