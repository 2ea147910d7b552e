//go:build linux

package supervisor

import (
	"os"
	"strconv"
	"syscall"
)

// ArgCheck as the only argument makes a supervisor say on its standard output what it is and what
// the kernel lets it do, a [Check] as one JSON line, and end. Nothing is run.
const ArgCheck = "check"

// A Check says what a supervisor can do where it was started. All of it is usual on Linux 5.9
// and later; sandboxes may forbid parts.
type Check struct {
	// Protocol is the supervisor's [Protocol].
	Protocol string `json:"protocol"`
	// Subreaper and Proc are necessary: without them descendants that leave the agent's session
	// are not found.
	Subreaper bool `json:"subreaper"`
	Proc      bool `json:"proc"`
	// Without PidFD the supervisor looks every 50 ms for the agent's end instead of being woken,
	// and meets deep descendants only when they are orphaned. Without CloseRange it closes
	// inherited descriptors one by one.
	PidFD      bool `json:"pidfd"`
	CloseRange bool `json:"close_range"`
}

// selfCheck tries what supervision needs on this process, which ends right after.
func selfCheck() int {
	_, err := os.Stat("/proc/self/stat")
	c := Check{Protocol: Protocol, Subreaper: becomeSubreaper() == nil, Proc: err == nil}
	if fd := pidfdOpen(syscall.Getpid()); fd >= 0 {
		c.PidFD = true
		syscall.Close(fd)
	}
	_, _, errno := syscall.RawSyscall(sysCloseRange, uintptr(OwnerFD), ^uintptr(0)>>32, 0)
	c.CloseRange = errno == 0
	if _, err := os.Stdout.Write(c.line()); err != nil {
		return 1
	}
	return 0
}

func (c *Check) line() []byte {
	out := append([]byte(nil), `{"protocol":`...)
	out = appendJSONString(out, c.Protocol)
	for _, can := range []struct {
		name string
		it   bool
	}{{"subreaper", c.Subreaper}, {"proc", c.Proc}, {"pidfd", c.PidFD}, {"close_range", c.CloseRange}} {
		out = append(append(append(out, `,"`...), can.name...), `":`...)
		out = strconv.AppendBool(out, can.it)
	}
	return append(out, "}\n"...)
}
