//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

// A Spec is one Session to run an agent for.
type Spec struct {
	// SessionID is the Session's id and its API credential.
	SessionID string
	// GroupID is the Group it belongs to.
	GroupID string
	// Mode is "train" or "eval".
	Mode string
	// BaseURL is the model endpoint.
	BaseURL string
	// Input is the JSON document the agent finds as RELAX_INPUT_JSON.
	Input []byte
}

func (s *Spec) check() error {
	if s.SessionID == "" {
		return errors.New("agent: session id is empty")
	}
	for _, v := range []string{s.SessionID, s.GroupID, s.Mode, s.BaseURL} {
		if strings.ContainsRune(v, 0) {
			return fmt.Errorf("agent: session %q: NUL byte in %q", s.SessionID, v)
		}
	}
	return nil
}

// Start waits for its turn (Config.StartConcurrency), makes the Session's IO directory and starts
// its agent. It returns once the supervisor runs; that the agent itself could not be started is
// found by [Process.Wait]. The caller owes the process a [Process.Cleanup].
//
// ctx bounds the wait only: once a process is returned, [Process.Terminate] ends it. Errors are
// ctx's cause, [ErrClosed], a [*StartError], or name a wrong field of spec.
func (l *Launcher) Start(ctx context.Context, spec Spec) (*Process, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	if !l.beginStart() {
		return nil, ErrClosed
	}
	defer l.starting.Done()
	if err := l.turns.enter(ctx); err != nil {
		return nil, fmt.Errorf("agent: session %s: waiting for its turn to start (option agent_start_concurrency): %w", spec.SessionID, err)
	}
	p, err := l.launch(spec)
	if err != nil {
		l.turns.leave()
		l.counts.failed.Add(1)
		return nil, err
	}
	l.counts.started.Add(1)
	l.mu.Lock()
	l.procs[p] = struct{}{}
	l.mu.Unlock()
	l.cfg.Goroutines.Go("agent.process", p.watch)
	return p, nil
}

func (l *Launcher) launch(spec Spec) (*Process, error) {
	// A stat is cheap and makes the common mistake, a directory that went away, an error here.
	if err := checkDirectory(l.cfg.Cwd); err != nil {
		return nil, startError(spec.SessionID, "agent_cwd", err)
	}
	dir, owner, err := l.newIODir(spec)
	if err != nil {
		return nil, startError(spec.SessionID, "io directory", err)
	}
	p := &Process{l: l, session: spec.SessionID, dir: dir, done: make(chan struct{}), reaped: make(chan struct{}), started: time.Now()}
	if err := p.spawn(l.environment(spec, dir), owner); err != nil {
		return nil, startError(spec.SessionID, "supervisor", alongside(err, dir.discard()))
	}
	return p, nil
}

func (l *Launcher) beginStart() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.starting.Add(1)
	return true
}

// spawn starts the supervisor. It uses fork and exec directly and not package os/exec, which
// waits by pid and takes a missing exit status for an error; here the socket tells the truth.
func (p *Process) spawn(env []string, owner ownerDir) error {
	in := supervisor.Instructions{
		Shell:    p.l.shell,
		Command:  p.l.cfg.Command,
		Login:    p.l.cfg.LoginShell,
		Cwd:      p.l.cfg.Cwd,
		IODir:    p.dir.path,
		Grace:    p.l.cfg.KillGrace,
		WindDown: p.l.windDown,
		LogLimit: p.l.cfg.LogLimit,
		OwnerPID: os.Getpid(),
		Prune:    p.l.prune(owner),
		Env:      env,
	}
	instructions, err := instructionsFile(p.dir.path, in.Encode())
	if err != nil {
		return err
	}
	defer unix.Close(instructions)
	// The supervisor compacts the log in place, so it is not opened for appending.
	log, err := unix.Open(p.dir.log(), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("command.log: %w", err)
	}
	defer unix.Close(log)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(pair[1])
	pidFD := -1
	null := p.l.devNull.Fd()
	pid, err := syscall.ForkExec(p.l.supervisor.exec, []string{supervisor.Argv0}, &syscall.ProcAttr{
		Env:   supervisorEnv(),
		Files: []uintptr{null, uintptr(log), uintptr(log), uintptr(pair[1]), uintptr(instructions), owner.lock.Fd()},
		// Out of the trainer's process group, so that Ctrl-C in a terminal meets the trainer only.
		// Not a session of its own, which would put it into a scheduling group of its own.
		Sys: &syscall.SysProcAttr{Setpgid: true, PidFD: &pidFD},
	})
	if err != nil {
		unix.Close(pair[0])
		return fmt.Errorf("%s: %w", p.l.supervisor.name, err)
	}
	_ = unix.SetNonblock(pair[0], true) // the runtime's poller waits, not a thread
	p.supervisor = newChild(pid, pidFD)
	p.conn = os.NewFile(uintptr(pair[0]), "agent-supervisor")
	return nil
}

// prune lists the directories that go with a dead owner's last IO directory.
func (l *Launcher) prune(owner ownerDir) []string {
	dirs := []string{owner.path, filepath.Dir(owner.path)}
	if l.cfg.PruneRunDir {
		dirs = append(dirs, l.cfg.RunDir)
	}
	return dirs
}

// supervisorEnv holds nothing of the agent's environment, which must not influence the
// supervisor. One P is enough for it and saves threads. A Go program linked to libraries of its
// own needs the loader's path to start itself again.
func supervisorEnv() []string {
	const loader = "LD_LIBRARY_PATH"
	env := []string{"GOMAXPROCS=1"}
	if v, ok := os.LookupEnv(loader); ok {
		env = append(env, loader+"="+v)
	}
	return env
}

// instructionsFile puts data into a file that has no name.
func instructionsFile(dir string, data []byte) (int, error) {
	fd, err := unix.MemfdCreate("relax-agent-instructions", unix.MFD_CLOEXEC)
	if err != nil { // forbidden by a sandbox
		if fd, err = unlinkedFile(filepath.Join(dir, ".instructions")); err != nil {
			return -1, fmt.Errorf("instructions: %w", err)
		}
	}
	for off := 0; off < len(data); {
		n, err := unix.Pwrite(fd, data[off:], int64(off))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("instructions: %w", err)
		}
		off += n
	}
	return fd, nil
}

func unlinkedFile(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	if err := unix.Unlink(path); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
