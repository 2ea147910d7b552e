//go:build linux

// Package supervisor is relax-agent-init: a small process between the trainer and one agent.
// It starts the agent in a session of its own, tells the owner how it ended, and sees to it
// that nothing below it outlives the agent or the owner, however the owner ends.
//
// What may enter: [Instructions] in a file, single bytes on the owner's socket, SIGTERM. What
// it never does: look at what the agent does, speak HTTP, or keep state over a Session.
//
// Why a process and not the trainer itself: PR_SET_PDEATHSIG belongs to a thread and the Go
// runtime ends threads; only a subreaper meets descendants that called setsid, and a trainer
// must not become one for other libraries' orphans; a SIGCHLD handler of the host program can
// take exit codes away; descriptors of the host leak into its children.
//
// The package imports little, because each agent pays for its start-up.
package supervisor

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	// leftoverGrace is the time that processes get which the agent left behind at its own end.
	leftoverGrace = 500 * time.Millisecond
	// giveUp is the time after KILL at which processes that cannot die are reported and left.
	giveUp = 10 * time.Second
	// idleWait bounds a wait with nothing to do; a lost wake-up costs that much at most.
	idleWait = 10 * time.Second
	// busyWait is the time between two looks at processes that are to end.
	busyWait = 5 * time.Millisecond
)

// Main supervises one agent as the instructions on [InstructionsFD] say and returns the
// process's exit code: 0, or 2 if it was not started by a launcher. How the agent ended is said
// on [OwnerFD] only.
func Main() int {
	runtime.LockOSThread() // the agent's death signal is bound to the thread that starts it
	clearInheritedSignals()
	closeFrom(InstructionsFD + 1)
	syscall.CloseOnExec(OwnerFD)
	in, err := readInstructions(InstructionsFD)
	if err != nil {
		os.Stderr.WriteString(Argv0 + " is started by the rollout engine and does nothing by itself (" + err.Error() + ")\n")
		return 2
	}
	syscall.Close(InstructionsFD)
	s := &supervision{in: in, owner: OwnerFD, ownerProc: -1, wake: -1, pipe: -1, leaderFD: -1}
	s.run()
	return 0
}

// clearInheritedSignals leaves the agent default dispositions and an empty mask. The Go runtime
// restores the mask it was started with in each child, so a blocked signal can only be got rid
// of by starting over.
func clearInheritedSignals() {
	defaultIgnoredSignals()
	const again = "signals-cleared"
	if blockedSignals() == 0 || (len(os.Args) > 1 && os.Args[1] == again) {
		return
	}
	unblockSignals()
	// If this fails the agent runs with the mask it would have had without us.
	_ = syscall.Exec("/proc/self/exe", []string{Argv0, again}, os.Environ())
}

// A supervision is one agent's life.
type supervision struct {
	in  Instructions
	log *boundedLog

	// Descriptors to wait for; -1 when there is nothing more to expect from one.
	owner, ownerProc, wake, pipe, leaderFD int

	leader     int
	leaderDone bool // it ended and was reaped with status ended
	ended      syscall.WaitStatus
	alone      bool // no child is left
	// stopped is the reason for which the agent was told to end, "" while it may run.
	stopped string
	// signalled is set once TERM was sent; from killAt on KILL is sent.
	signalled bool
	killAt    time.Time
	quiet     bool // nothing but log output happened in the last wait
}

func (s *supervision) run() {
	s.log = newBoundedLog(1, s.in.LogLimit)
	if err := s.start(); err != "" {
		s.report(Status{ExitCode: -1, Reason: ReasonStartFailed, Error: err})
		return
	}
	started := Started{PID: s.leader}
	s.send(started.line())
	s.watchSignals()
	for {
		s.wait()
		if s.settled() {
			break
		}
	}
	s.finish()
}

// start starts the agent. It returns what failed, naming the option at fault.
func (s *supervision) start() string {
	if err := becomeSubreaper(); err != nil {
		return "the kernel refuses PR_SET_CHILD_SUBREAPER: " + err.Error()
	}
	s.watchOwner()
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return "no pipe for the agent's output: " + err.Error()
	}
	_ = syscall.SetNonblock(ends[0], true)
	leaderFD := -1
	pid, err := syscall.ForkExec(s.in.Shell, []string{s.in.Shell, "-c", s.in.Command}, &syscall.ProcAttr{
		Dir:   s.in.Cwd,
		Env:   s.in.Env,
		Files: []uintptr{0, uintptr(ends[1]), uintptr(ends[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &leaderFD},
	})
	syscall.Close(ends[1])
	if err != nil {
		return s.explainStart(err)
	}
	s.leader, s.leaderFD, s.pipe = pid, leaderFD, ends[0]
	return ""
}

func (s *supervision) explainStart(err error) string {
	var st syscall.Stat_t
	if cwdErr := syscall.Stat(s.in.Cwd, &st); cwdErr != nil {
		return "agent_cwd " + s.in.Cwd + ": " + cwdErr.Error()
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return "agent_cwd " + s.in.Cwd + " is not a directory"
	}
	switch err {
	case syscall.EACCES:
		return "agent_cwd " + s.in.Cwd + " cannot be entered, or " + s.in.Shell + " cannot be executed: " + err.Error()
	case syscall.E2BIG:
		return "agent_command and environment are longer than the system allows: " + err.Error()
	}
	return "cannot start " + s.in.Shell + ": " + err.Error()
}

// watchOwner holds the owner's process itself, beside the socket: a child that the owner forked
// without exec has a copy of the socket's other end and would keep it open.
func (s *supervision) watchOwner() {
	fd := pidfdOpen(s.in.OwnerPID)
	if syscall.Getppid() != s.in.OwnerPID {
		// The owner ended before the call. Its socket end may be held by a fork, so do not ask it.
		if fd >= 0 {
			syscall.Close(fd)
		}
		s.stopped = ReasonOwnerGone
		return
	}
	s.ownerProc = fd
}

// watchSignals turns SIGTERM, SIGINT and SIGHUP into a wake-up. This is the only use of
// os/signal, and it happens in the supervisor process: in the engine it would take signals
// from the host program.
func (s *supervision) watchSignals() {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return
	}
	s.wake = ends[0]
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { _, _ = syscall.Write(ends[1], []byte{0}) })
}

// wait sleeps until something happens and takes note of it.
func (s *supervision) wait() {
	watched := [5]int{s.owner, s.ownerProc, s.wake, s.pipe, s.leaderFD}
	var fds [len(watched)]pollFD
	for i, fd := range watched {
		fds[i] = pollFD{fd: int32(fd), events: pollIn} // the kernel skips negative ones
	}
	n, interrupted := poll(fds[:], int64(s.timeout()))
	s.quiet = !interrupted && n == 1 && fds[3].revents != 0
	if n <= 0 {
		return
	}
	if fds[0].revents != 0 {
		s.hearOwner()
	}
	if fds[1].revents != 0 {
		s.ownerProc = -1
		s.stop(ReasonOwnerGone, s.in.Grace)
	}
	if fds[2].revents != 0 {
		s.wake = -1
		s.stop(ReasonTerminated, s.in.Grace)
	}
	if fds[3].revents != 0 && !s.log.copyFrom(s.pipe) {
		syscall.Close(s.pipe)
		s.pipe = -1
	}
}

func (s *supervision) timeout() time.Duration {
	switch {
	case s.leaderDone || s.stopped != "":
		return busyWait
	case s.leaderFD < 0: // an old kernel: only SIGCHLD tells, and it can come between two waits
		return 50 * time.Millisecond
	}
	return idleWait
}

func (s *supervision) hearOwner() {
	var buf [16]byte
	n, err := syscall.Read(s.owner, buf[:])
	if err == syscall.EINTR || err == syscall.EAGAIN {
		return
	}
	if err != nil || n == 0 {
		s.owner = -1
		s.stop(ReasonOwnerGone, s.in.Grace)
		return
	}
	for _, b := range buf[:n] {
		switch b {
		case ByteTerminate:
			s.stop(ReasonTerminated, s.in.Grace)
		case ByteKill:
			s.stop(ReasonTerminated, 0)
		}
	}
}

// stop begins the ladder, or shortens it. The first reason stays, and an agent that had ended by
// itself has; but an owner who is gone will not clean up and so always counts.
func (s *supervision) stop(reason string, grace time.Duration) {
	s.reap()
	if (s.stopped == "" && !s.leaderDone) || reason == ReasonOwnerGone {
		s.stopped = reason
	}
	killAt := time.Now().Add(grace)
	if !s.signalled {
		s.terminate(killAt)
		return
	}
	if killAt.Before(s.killAt) {
		s.killAt = killAt
	}
}

// reap collects every child that has ended, adopted ones too. It asks the kernel and not /proc,
// because reaping a process that looked at itself there costs the owner time.
func (s *supervision) reap() {
	for {
		pid, ws := reapAny()
		if pid <= 0 {
			s.alone = pid < 0
			return
		}
		if pid == s.leader {
			s.leaderDone, s.ended, s.leaderFD = true, ws, -1
		}
	}
}

func (s *supervision) terminate(killAt time.Time) {
	s.signalled, s.killAt = true, killAt
	signalTree(s.leader, s.leaderDone, syscall.SIGTERM)
	signalTree(s.leader, s.leaderDone, syscall.SIGCONT) // a stopped process would not see TERM
}

// settled moves the end of the agent forward and reports whether nothing is left to wait for:
// the leader ended, everything below is gone, or KILL did not help.
func (s *supervision) settled() bool {
	if s.quiet && s.stopped == "" && !s.leaderDone {
		return false
	}
	s.reap()
	if s.alone {
		return true
	}
	now := time.Now()
	if s.stopped == ReasonOwnerGone && !s.signalled { // it was gone before the agent started
		s.terminate(now.Add(s.in.Grace))
	}
	if s.leaderDone && !s.signalled {
		s.terminate(now.Add(min(s.in.Grace, leftoverGrace)))
	}
	if s.signalled && !now.Before(s.killAt) {
		signalTree(s.leader, s.leaderDone, syscall.SIGKILL)
		return now.After(s.killAt.Add(giveUp))
	}
	return false
}

func (s *supervision) finish() {
	st := Status{ExitCode: -1, Reason: ReasonExit}
	if s.stopped != "" {
		st.Reason = s.stopped
	}
	if s.leaderDone && s.ended.Exited() {
		st.ExitCode = s.ended.ExitStatus()
	} else if s.leaderDone {
		st.Signal = int(s.ended.Signal())
	}
	if !s.alone {
		st.Error = "processes survived KILL; they are left to the system"
	}
	if s.pipe >= 0 {
		s.log.drain(s.pipe)
	}
	st.Rusage = childrenRusage()
	s.report(st)
}

// report tells the owner, or cleans up in its place.
func (s *supervision) report(st Status) {
	s.send(st.line())
	if s.stopped == ReasonOwnerGone && s.in.IODir != "" {
		_ = RemoveTree(s.in.IODir)
		_ = syscall.Rmdir(filepath.Dir(s.in.IODir)) // only if it was the last one
	}
}

// send is best effort: an owner that cannot be told is gone, which the socket shows.
func (s *supervision) send(line []byte) {
	for len(line) > 0 {
		n, err := syscall.Write(OwnerFD, line)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return
		}
		line = line[n:]
	}
}
