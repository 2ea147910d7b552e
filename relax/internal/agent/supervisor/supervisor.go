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
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// leftoverGrace is the time that processes get which the agent left behind at its own end.
	leftoverGrace = 500 * time.Millisecond
	// maxNames bounds how many processes left behind are named, nameBytes each name.
	maxNames  = 8
	nameBytes = 80
	// giveUp is the time after KILL at which processes that cannot die are reported and left.
	giveUp = 10 * time.Second
	// idleWait bounds a wait with nothing to do; a lost wake-up costs that much at most.
	idleWait = 10 * time.Second
	// busyWait is the time between two looks at processes that are to end.
	busyWait = 5 * time.Millisecond
	// chaseWait is that time while processes are killed. They may fork meanwhile, and whoever
	// forks without end must be met more often than it forks. After chaseFor it is busyWait:
	// then they are not running away but stuck.
	chaseWait = time.Millisecond
	chaseFor  = 2 * time.Second
	// chases is the number of rounds of signals between two waits then.
	chases = 8
)

// Main supervises one agent as the instructions on [InstructionsFD] say and returns the
// process's exit code: 0, or 2 if it was not started by a launcher. How the agent ended is said
// on [OwnerFD] only.
func Main() int {
	runtime.LockOSThread() // the agent's death signal is bound to the thread that starts it
	if len(os.Args) == 2 && os.Args[1] == ArgCheck {
		return selfCheck()
	}
	clearInheritedSignals()
	setName(Argv0)
	closeFrom(LockFD + 1)
	syscall.CloseOnExec(OwnerFD)
	syscall.CloseOnExec(LockFD)
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
	signalled  bool
	killAt     time.Time
	windDownAt time.Time // when what the agent left behind is told to end; zero while it runs
	left       int       // processes the agent left behind
	leftNames  []string  // of the first few of them
	quiet      bool      // nothing but log output happened in the last wait
}

func (s *supervision) run() {
	s.log = newBoundedLog(1, s.in.LogLimit)
	s.watchSignals() // first, or a signal that comes early would end the agent without grace
	if failed := s.start(); failed != nil {
		s.report(Status{ExitCode: -1, Reason: ReasonStartFailed, Error: failed.text, Errno: int(failed.errno)})
		return
	}
	started := Started{PID: s.leader}
	s.send(started.line())
	for {
		s.wait()
		if s.settled() {
			break
		}
	}
	s.finish()
}

// A startFailure says what failed, naming the option at fault, and why.
type startFailure struct {
	text  string
	errno syscall.Errno
}

func failure(text string, err error) *startFailure {
	errno, _ := err.(syscall.Errno)
	return &startFailure{text + ": " + err.Error(), errno}
}

// start starts the agent.
func (s *supervision) start() *startFailure {
	if err := becomeSubreaper(); err != nil {
		return failure("the kernel refuses PR_SET_CHILD_SUBREAPER", err)
	}
	s.watchOwner()
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return failure("no pipe for the agent's output", err)
	}
	_ = syscall.SetNonblock(ends[0], true)
	flag := "-c"
	if s.in.Login {
		flag = "-lc"
	}
	leaderFD := -1
	pid, err := syscall.ForkExec(s.in.Shell, []string{s.in.Shell, flag, s.in.Command}, &syscall.ProcAttr{
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
	return nil
}

func (s *supervision) explainStart(err error) *startFailure {
	var st syscall.Stat_t
	if cwdErr := syscall.Stat(s.in.Cwd, &st); cwdErr != nil {
		return failure("agent_cwd "+s.in.Cwd, cwdErr)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return failure("agent_cwd "+s.in.Cwd, syscall.ENOTDIR)
	}
	switch err {
	case syscall.EACCES:
		return failure("agent_cwd "+s.in.Cwd+" cannot be entered, or "+s.in.Shell+" cannot be executed", err)
	case syscall.E2BIG:
		return failure("agent_command and environment are longer than the system allows", err)
	}
	return failure("cannot start "+s.in.Shell, err)
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
	case s.chasing():
		return chaseWait
	case s.leaderDone || s.stopped != "":
		return busyWait
	case s.leaderFD < 0: // an old kernel: only SIGCHLD tells, and it can come between two waits
		return 50 * time.Millisecond
	}
	return idleWait
}

// chasing reports whether KILL is being sent and may be running behind processes that fork.
func (s *supervision) chasing() bool {
	if !s.signalled {
		return false
	}
	since := time.Since(s.killAt)
	return since >= 0 && since < chaseFor
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
	if s.leaderDone && s.stopped == "" {
		s.left, s.leftNames = survivors()
	}
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
	if s.leaderDone && !s.signalled && s.woundDown(now) {
		s.terminate(now.Add(min(s.in.Grace, leftoverGrace)))
	}
	if s.signalled && !now.Before(s.killAt) {
		s.kill()
		return s.alone || now.After(s.killAt.Add(giveUp))
	}
	return false
}

// woundDown reports whether processes the agent left have had their time to end by themselves.
func (s *supervision) woundDown(now time.Time) bool {
	if s.windDownAt.IsZero() {
		s.windDownAt = now.Add(s.in.WindDown)
	}
	return !now.Before(s.windDownAt)
}

func (s *supervision) kill() {
	rounds := 1
	if s.chasing() {
		rounds = chases
	}
	for range rounds {
		signalTree(s.leader, s.leaderDone, syscall.SIGKILL)
		if s.reap(); s.alone {
			return
		}
	}
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
		n, names := survivors()
		st.Error = strconv.Itoa(n) + " processes survived KILL and are left to the system: " + strings.Join(names, ", ")
	}
	st.LeftBehind, st.Names = s.left, s.leftNames
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
		for _, dir := range s.in.Prune {
			if syscall.Rmdir(dir) != nil { // something else is in it
				return
			}
		}
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
