//go:build linux

// Package agent runs agent apps: one process tree for each Session, its IO directory, its
// environment, its output file.
//
// What may enter: a command line, a Session's ids, its input document. What it never does:
// know what a Group is, time a Session, read what an agent says to the model, or canonicalise
// messages.
//
// Each agent runs below a small supervisor process (package supervisor) that ends everything
// below it when the agent ends, when the launcher asks, and when this process is gone.
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	_ "github.com/relax-rollout/relax-rollout/relax/internal/agent/reexec" // lets a Go program be its own supervisor
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

// Defaults of [Config] fields left zero.
const (
	DefaultKillGrace      = 5 * time.Second
	DefaultLogLimit       = 16 << 20
	DefaultKeptLogs       = 200
	DefaultMaxOutputBytes = 64 << 20

	minLogLimit = 4 << 10
	// keptLogBytes bounds one kept log.
	keptLogBytes = 1 << 20
)

// ErrClosed is returned by [Launcher.Start] after [Launcher.Close].
var ErrClosed = errors.New("agent: launcher is closed")

// An OptionError says which option is wrong, what was found, and what is expected.
type OptionError struct {
	// Option is the option's name as in the configuration.
	Option string
	// Problem says what is wrong and what to do.
	Problem string
	// Err is the cause, if there is one.
	Err error
}

func (e *OptionError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("agent: option %s: %s: %v", e.Option, e.Problem, e.Err)
	}
	return fmt.Sprintf("agent: option %s: %s", e.Option, e.Problem)
}

func (e *OptionError) Unwrap() error { return e.Err }

// Config says how agents are run.
type Config struct {
	// Supervisor is the relax-agent-init binary. Empty: this program starts itself as the
	// supervisor, which works in Go programs and not where Go is a library of another program.
	Supervisor string
	// Command is the shell command line of one agent. Required.
	Command string
	// Cwd is the agents' working directory. Required.
	Cwd string
	// Env is added to the environment. Names starting with RELAX_ are refused.
	Env map[string]string
	// Inherit passes Environ on, below Env.
	Inherit bool
	// Environ is the environment to inherit as "NAME=value" entries. Nil: os.Environ(), which
	// in a library is the environment at the time it was loaded.
	Environ []string
	// KillGrace is the time between TERM and KILL. Default 5 s.
	KillGrace time.Duration
	// RunDir holds IO directories (sessions/) and logs of failed Sessions (failed/). It is
	// created if missing. Required.
	RunDir string
	// LogLimit bounds one Session's command.log in bytes; its beginning and end are kept.
	// Default 16 MiB, at least 4 KiB.
	LogLimit int64
	// KeptLogs bounds the number of logs under failed/, of at most 1 MiB each; the oldest go
	// first. Default 200.
	KeptLogs int
	// MaxOutputBytes bounds an agent's output file. Default 64 MiB.
	MaxOutputBytes int64
	// Goroutines owns the one goroutine of each process. Required.
	Goroutines *safego.Group
}

// A Launcher starts agent processes. Its methods are safe for concurrent use.
type Launcher struct {
	cfg        Config
	supervisor string
	shell      string
	baseEnv    []string
	devNull    *os.File
	kept       *keptLogs

	starting sync.WaitGroup // starts that Close has to wait for
	mu       sync.Mutex
	closed   bool
	procs    map[*Process]struct{} // not cleaned up, or their supervisor not reaped
}

// New checks cfg and prepares RunDir. A wrong option gives an [*OptionError].
func New(cfg Config) (*Launcher, error) {
	if cfg.Goroutines == nil {
		return nil, errors.New("agent: Config.Goroutines is nil; the launcher needs an owner for its goroutines")
	}
	cfg = withDefaults(cfg)
	if err := checkCommand(cfg.Command); err != nil {
		return nil, err
	}
	cwd, err := checkCwd(cfg.Cwd)
	if err != nil {
		return nil, err
	}
	cfg.Cwd = cwd
	l := &Launcher{procs: map[*Process]struct{}{}}
	if l.baseEnv, err = baseEnvironment(cfg); err != nil {
		return nil, err
	}
	if l.supervisor, err = findSupervisor(cfg.Supervisor); err != nil {
		return nil, err
	}
	if l.shell, err = findShell(); err != nil {
		return nil, err
	}
	if cfg.RunDir, err = prepareRunDir(cfg.RunDir); err != nil {
		return nil, err
	}
	if l.devNull, err = os.Open(os.DevNull); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	l.cfg = cfg
	l.kept = newKeptLogs(filepath.Join(cfg.RunDir, failedDir), cfg.KeptLogs)
	return l, nil
}

func withDefaults(cfg Config) Config {
	if cfg.KillGrace <= 0 {
		cfg.KillGrace = DefaultKillGrace
	}
	if cfg.LogLimit <= 0 {
		cfg.LogLimit = DefaultLogLimit
	}
	cfg.LogLimit = max(cfg.LogLimit, minLogLimit)
	if cfg.KeptLogs <= 0 {
		cfg.KeptLogs = DefaultKeptLogs
	}
	if cfg.MaxOutputBytes <= 0 {
		cfg.MaxOutputBytes = DefaultMaxOutputBytes
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	return cfg
}

func checkCommand(command string) error {
	if strings.TrimSpace(command) == "" {
		return &OptionError{Option: "agent_command", Problem: "is empty; expected the shell command line that starts one agent"}
	}
	if strings.ContainsRune(command, 0) {
		return &OptionError{Option: "agent_command", Problem: "contains a NUL byte"}
	}
	return nil
}

// checkCwd returns the directory as an absolute path, so that a later chdir of the host does
// not move it.
func checkCwd(cwd string) (string, error) {
	if cwd == "" {
		return "", &OptionError{Option: "agent_cwd", Problem: "is empty; expected the directory agents run in"}
	}
	if strings.ContainsRune(cwd, 0) {
		return "", &OptionError{Option: "agent_cwd", Problem: "contains a NUL byte"}
	}
	abs, err := filepath.Abs(cwd)
	if err != nil {
		return "", &OptionError{Option: "agent_cwd", Problem: "cannot be made absolute", Err: err}
	}
	return abs, checkDirectory(abs)
}

func checkDirectory(cwd string) error {
	st, err := os.Stat(cwd)
	if err != nil {
		return &OptionError{Option: "agent_cwd", Problem: "expected an existing directory", Err: err}
	}
	if !st.IsDir() {
		return &OptionError{Option: "agent_cwd", Problem: cwd + " is not a directory"}
	}
	return nil
}

// findSupervisor returns the path to start supervisors from.
func findSupervisor(path string) (string, error) {
	const option = "agent_supervisor"
	if path == "" {
		if isLibrary() {
			return "", &OptionError{Option: option, Problem: "is empty, and the engine is a library of another program; expected the path of relax-agent-init"}
		}
		return "/proc/self/exe", nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", &OptionError{Option: option, Problem: "cannot be made absolute", Err: err}
	}
	st, err := os.Stat(abs)
	if err != nil {
		return "", &OptionError{Option: option, Problem: "expected the relax-agent-init binary", Err: err}
	}
	if !st.Mode().IsRegular() {
		return "", &OptionError{Option: option, Problem: abs + " is not a file"}
	}
	if err := unix.Access(abs, unix.X_OK); err != nil {
		return "", &OptionError{Option: option, Problem: abs + " is not executable; chmod +x it", Err: err}
	}
	return abs, nil
}

// isLibrary reports whether this Go code is a C library, so that /proc/self/exe is a program
// that knows nothing of it.
func isLibrary() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-buildmode" {
			return s.Value == "c-shared" || s.Value == "c-archive"
		}
	}
	return false
}

// findShell prefers bash, which the guide promises.
func findShell() (string, error) {
	for _, path := range []string{"/bin/bash", "/bin/sh"} {
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", errors.New("agent: neither /bin/bash nor /bin/sh can be executed; agent_command needs a shell")
}

// Live is the number of processes started and not yet cleaned up.
func (l *Launcher) Live() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for p := range l.procs {
		if !p.cleaned.Load() {
			n++
		}
	}
	return n
}

// forget drops a process that needs nothing more. It is asked after each of the two steps.
func (l *Launcher) forget(p *Process) {
	select {
	case <-p.reaped:
	default:
		return
	}
	if !p.cleaned.Load() {
		return
	}
	l.mu.Lock()
	delete(l.procs, p)
	l.mu.Unlock()
}

// Close refuses further starts, terminates every agent, waits until all are gone, and removes
// the IO directories still there. When ctx ends first, what is left is killed at once and an
// error names the Sessions; their goroutines end on their own shortly after.
func (l *Launcher) Close(ctx context.Context) error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	l.starting.Wait()
	procs := l.snapshot()
	for _, p := range procs {
		p.Terminate()
	}
	err := waitAll(ctx, procs)
	for _, p := range procs {
		p.abandon(err != nil)
	}
	if first {
		l.devNull.Close()
	}
	return err
}

func (l *Launcher) snapshot() []*Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	procs := make([]*Process, 0, len(l.procs))
	for p := range l.procs {
		procs = append(procs, p)
	}
	return procs
}

func waitAll(ctx context.Context, procs []*Process) error {
	var late []string
	for _, p := range procs {
		select {
		case <-p.reaped:
			continue
		default:
		}
		select {
		case <-p.reaped:
		case <-ctx.Done():
			late = append(late, p.session)
		}
	}
	if late != nil {
		return fmt.Errorf("agent: still running at the end of close, killed: sessions %s: %w", strings.Join(late, ", "), ctx.Err())
	}
	return nil
}
