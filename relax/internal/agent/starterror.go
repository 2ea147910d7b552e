//go:build linux

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
)

// A StartError says why an agent could not be started and whether trying again can help.
// [Launcher.Start] returns it, and an [Exit] with Reason StartFailed holds it as Err.
type StartError struct {
	// Session is the Session's id.
	Session string
	// Step is what failed: "io directory", "supervisor", "agent_cwd" or "agent".
	Step string
	// Transient: the host was short of something (processes, memory, descriptors, disk space),
	// so the same start can succeed later and should be tried again with a pause. Otherwise every
	// start fails alike until a person acts.
	Transient bool
	// Advice says what to do.
	Advice string
	// Err is the cause.
	Err error
}

func (e *StartError) Error() string {
	text := fmt.Sprintf("agent: session %s: start failed at %s: %v", e.Session, e.Step, e.Err)
	if e.Advice != "" {
		text += "; " + e.Advice
	}
	return text
}

func (e *StartError) Unwrap() error { return e.Err }

// alongside adds what failed while err was dealt with, on the same line: these errors become a
// line of a log. Either may be nil.
func alongside(err, second error) error {
	if err == nil || second == nil {
		return cmp.Or(err, second)
	}
	return fmt.Errorf("%w; and then: %w", err, second)
}

// Transient reports whether err is a start failure that can go away by itself.
func Transient(err error) bool {
	var failed *StartError
	return errors.As(err, &failed) && failed.Transient
}

// startError classifies err by the system's error number in it.
func startError(session, step string, err error) *StartError {
	e := &StartError{Session: session, Step: step, Err: err}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e.Transient, e.Advice = classify(errno)
	}
	return e
}

// classify says whether a shortage passes, and what to do about it. Numbers are looked up only
// here, when something failed already.
func classify(errno syscall.Errno) (transient bool, advice string) {
	const fewer = "or lower agentic_concurrency"
	switch errno {
	case syscall.EAGAIN:
		return true, "the system gives no more processes (" + processLimits() + "); raise the limit " + fewer
	case syscall.ENOMEM:
		return true, "the system is out of memory; free some " + fewer
	case syscall.EMFILE:
		return true, "this process is out of descriptors (" + fileLimits() + "); raise it with ulimit -n " + fewer
	case syscall.ENFILE:
		return true, "the system is out of descriptors; raise fs.file-max " + fewer
	case syscall.ENOSPC, syscall.EDQUOT:
		return true, "the disk of run_dir is full; free space or set run_dir to another one"
	case syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTDOWN:
		return true, "a file system does not answer as it should; look at the mounts of agent_cwd and run_dir"
	case syscall.ETXTBSY, syscall.EINTR, syscall.EBUSY:
		return true, ""
	case syscall.ENOENT, syscall.ENOTDIR:
		return false, "expected it to exist while the engine runs; put it back"
	case syscall.EACCES, syscall.EPERM:
		return false, "look at permissions, mount options (noexec) and the sandbox's rules"
	case syscall.EROFS:
		return false, "the file system is read-only; set run_dir to another one"
	case syscall.E2BIG:
		return false, "shorten agent_command or agent_env, or set agent_env_inherit to false"
	}
	return false, ""
}
