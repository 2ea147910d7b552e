//go:build linux

package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

// A Reason says why a process is over.
type Reason string

// The reasons.
const (
	// Exited: the agent ended by itself, with a code or on a signal nobody here sent.
	Exited Reason = supervisor.ReasonExit
	// Terminated: Terminate, Kill or Close ended it, or a signal to its supervisor.
	Terminated Reason = supervisor.ReasonTerminated
	// StartFailed: the agent was never started; Exit.Err says why.
	StartFailed Reason = supervisor.ReasonStartFailed
	// SupervisorLost: the supervisor died, so how the agent ended is not known.
	SupervisorLost Reason = "supervisor_lost"
)

// An Exit says how an agent ended. It is known once everything below the agent is gone.
type Exit struct {
	// Code is the agent's exit code, -1 if it has none.
	Code int
	// Signal names the signal that ended it, as "SIGKILL"; "" if none did.
	Signal string
	Reason Reason
	// Err says that supervision itself failed. An exit code other than 0 is not an Err. With
	// Reason StartFailed it is a [*StartError].
	Err error
	// LeftBehind counts the processes that still ran when the agent had ended by itself, and
	// LeftBehindNames holds the command lines of the first few, shortened. They were ended.
	LeftBehind      int
	LeftBehindNames []string
	// Started and Ended bracket the process.
	Started, Ended time.Time
	// UserSec and SysSec are CPU seconds of the agent and everything below it.
	UserSec, SysSec float64
	// MaxRSSKB is the largest resident size of one of these processes, in KiB.
	MaxRSSKB int64
}

// What was asked of a process.
const (
	askedNothing = iota
	askedTerminate
	askedKill
)

// A Process is one agent. Its methods are safe for concurrent use.
type Process struct {
	l       *Launcher
	session string
	dir     ioDir
	started time.Time

	supervisor child
	conn       *os.File // socket to it

	asked   atomic.Int32
	cleaned atomic.Bool
	// abandoned is set when nobody will clean up: watch does it.
	abandoned atomic.Bool
	done      chan struct{}
	exit      Exit          // valid once done is closed
	reaped    chan struct{} // closed when the supervisor is gone as well
}

// SessionID is the Session the process runs for.
func (p *Process) SessionID() string { return p.session }

// IODir is the Session's directory.
func (p *Process) IODir() string { return p.dir.path }

// Done is closed when the agent and everything below it are gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the agent's end. It fails only with ctx's error.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
		return p.exit, nil
	default:
	}
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
}

// Terminate asks for the agent's end: TERM, Config.KillGrace, KILL, for everything below it.
// It returns at once and may be called again.
func (p *Process) Terminate() { p.ask(askedTerminate, supervisor.ByteTerminate) }

// Kill is Terminate without grace.
func (p *Process) Kill() { p.ask(askedKill, supervisor.ByteKill) }

func (p *Process) ask(level int32, b byte) {
	for {
		old := p.asked.Load()
		if old >= level {
			return
		}
		if p.asked.CompareAndSwap(old, level) {
			break
		}
	}
	wait := p.l.deafFor
	if level == askedTerminate {
		wait += p.l.cfg.KillGrace
	}
	// The deadline is for a supervisor that cannot hear: its end comes as an error of the read.
	_ = p.conn.SetReadDeadline(time.Now().Add(wait))
	// A failure means that the supervisor is gone, which watch sees. MSG_NOSIGNAL: the host
	// program's SIGPIPE disposition is not ours to rely on.
	_ = control(p.conn, func(fd int) {
		_ = unix.Send(fd, []byte{b}, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
	p.supervisor.signal(unix.SIGCONT) // somebody may have stopped it
}

// watch is the process's goroutine: it hears the supervisor out, publishes, and reaps it.
func (p *Process) watch() {
	defer func() {
		close(p.reaped)
		p.l.forget(p)
	}()
	in := bufio.NewReaderSize(p.conn, 512)
	var started supervisor.Started
	line, err := in.ReadBytes('\n')
	p.l.turns.leave() // it runs, or never will
	if err == nil && json.Unmarshal(line, &started) == nil && started.PID > 0 {
		line, err = in.ReadBytes('\n')
	}
	var status supervisor.Status
	if err == nil && json.Unmarshal(line, &status) == nil && status.Reason != "" {
		p.publish(exitOf(status, p.session))
		_, _ = io.Copy(io.Discard, in) // the end of the stream is the supervisor's end
		if p.asked.Load() != askedNothing {
			p.supervisor.signal(unix.SIGKILL) // the copy may have ended at the deadline
		}
		p.release()
		return
	}
	p.supervisor.signal(unix.SIGKILL) // in case it lives and talks nonsense, or not at all
	p.release()
	sweep(p.dir.path, started.PID)
	p.publish(Exit{Code: -1, Reason: SupervisorLost, Err: p.lost(err)})
}

// lost explains how the supervisor was lost; err is what its socket said.
func (p *Process) lost(err error) error {
	what := "died or was killed from outside"
	if errors.Is(err, os.ErrDeadlineExceeded) {
		what = "did not end its agent when it was told to, and was killed"
	}
	return fmt.Errorf("agent: session %s: its supervisor (pid %d) %s; what it ran was killed: %w", p.session, p.supervisor.pid, what, errNoStatus)
}

var errNoStatus = errors.New("no exit status")

func (p *Process) publish(exit Exit) {
	exit.Started, exit.Ended = p.started, time.Now()
	p.exit = exit
	p.l.counts.add(exit)
	if exit.LeftBehind > 0 && p.l.counts.worthSaying() {
		p.l.warn(exit.leftBehind(p.session))
	}
	close(p.done)
	if p.abandoned.Load() {
		_ = p.Cleanup("")
	}
}

// release gives back the socket and the process.
func (p *Process) release() {
	p.conn.Close()
	p.supervisor.reap()
}

func exitOf(status supervisor.Status, session string) Exit {
	e := Exit{
		Code:     status.ExitCode,
		Reason:   Reason(status.Reason),
		UserSec:  status.Rusage.UserSec,
		SysSec:   status.Rusage.SysSec,
		MaxRSSKB: status.Rusage.MaxRSSKB,
	}
	if status.Signal != 0 {
		e.Signal = signalName(status.Signal)
	}
	e.LeftBehind, e.LeftBehindNames = status.LeftBehind, status.Names
	if status.Error != "" {
		e.Err = statusError(status, session)
	}
	return e
}

func statusError(status supervisor.Status, session string) error {
	if status.Reason != supervisor.ReasonStartFailed {
		return fmt.Errorf("agent: session %s: %s", session, status.Error)
	}
	failed := startError(session, "agent", startFailure{status.Error, syscall.Errno(status.Errno)})
	return failed
}

// A startFailure is what a supervisor said, with the system's error number as its cause.
type startFailure struct {
	text  string
	errno syscall.Errno
}

func (f startFailure) Error() string { return f.text }
func (f startFailure) Unwrap() error { return f.errno }

// leftBehind is the warning about processes the agent left running.
func (e *Exit) leftBehind(session string) string {
	names := strings.ToValidUTF8(strings.Join(e.LeftBehindNames, ", "), "\uFFFD")
	if more := e.LeftBehind - len(e.LeftBehindNames); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("agent: session %s: the agent exited and left %d processes running, which were ended: %s; let agent_command wait for what it starts", session, e.LeftBehind, names)
}

func signalName(n int) string {
	if name := unix.SignalName(unix.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

// LogTail returns the last max bytes (0: 8192, which is also the most) of the agent's output as
// valid UTF-8. It is "" after Cleanup.
func (p *Process) LogTail(max int) string {
	if max <= 0 || max > maxLogTail {
		max = maxLogTail
	}
	return tail(p.dir.log(), int64(max))
}

// ReadOutput reads and parses the agent's output file. It may be called once the process is
// over, so that a file half written is never seen. See [ParseOutput] for the grammar.
func (p *Process) ReadOutput() (Output, error) {
	select {
	case <-p.done:
	default:
		return Output{}, fmt.Errorf("agent: session %s: output is read only after the process ended", p.session)
	}
	out, err := readOutputFile(p.dir.output(), p.l.cfg.MaxOutputBytes)
	if p.cleaned.Load() { // checked last: a missing file would read as a valid output
		return Output{}, fmt.Errorf("agent: session %s: output was removed by Cleanup", p.session)
	}
	if err != nil {
		return Output{}, fmt.Errorf("agent: session %s: invalid output: %w", p.session, err)
	}
	return out, nil
}

// KeptLog is the file in which [Process.Cleanup] keeps the log of a failure.
func (p *Process) KeptLog() string { return p.l.kept.path(p.session) }

// Cleanup removes the IO directory of a process that is over. If note is not empty, the end of
// the log is kept as RunDir/failed/<session>.log with note, the reason of the failure, as its
// first line. It may be called again.
func (p *Process) Cleanup(note string) error {
	select {
	case <-p.done:
	default:
		return fmt.Errorf("agent: session %s: cleanup before the process ended", p.session)
	}
	if p.cleaned.Swap(true) {
		return nil
	}
	p.l.forget(p)
	var kept error
	if note != "" {
		kept = p.l.kept.keep(p.session, note, p.dir.log())
	}
	removed := supervisor.RemoveTree(p.dir.path)
	p.l.tidy()
	if err := alongside(kept, removed); err != nil {
		return fmt.Errorf("agent: session %s: cleanup: %w", p.session, err)
	}
	return nil
}

// abandon takes the process out of its user's hands at Close: its directory goes as soon as it
// is over.
func (p *Process) abandon() {
	p.abandoned.Store(true)
	select {
	case <-p.done:
		_ = p.Cleanup("")
	default:
	}
}
