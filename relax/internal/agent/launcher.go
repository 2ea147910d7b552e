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
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	_ "github.com/relax-rollout/relax-rollout/relax/internal/agent/reexec" // lets a Go program be its own supervisor
	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
	"github.com/relax-rollout/relax-rollout/relax/internal/safego"
)

// Defaults of [Config] fields left zero.
const (
	DefaultKillGrace      = 5 * time.Second
	DefaultLogLimit       = 16 << 20
	DefaultKeptLogs       = 200
	DefaultMaxOutputBytes = 64 << 20

	minLogLimit = 4 << 10
	// deafFor leaves a supervisor time for what survives KILL, see package supervisor.
	deafFor = 20 * time.Second
	// windDown is long for a filter at the end of its input on a busy host, and short for an agent
	// that left a server running.
	windDown = 500 * time.Millisecond
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
	// New starts it once to see that it works; a file the system refuses to execute (noexec,
	// permissions) is run from a copy in memory.
	Supervisor string
	// Command is the shell command line of one agent. Required.
	Command string
	// LoginShell runs the command by a login shell, as the reference does. Off by default, because
	// profile files may override what Env and the contract set, proxies above all.
	LoginShell bool
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
	// StartConcurrency bounds the starts in progress (option agent_start_concurrency): from the IO
	// directory until the agent's shell runs. Others wait, first come, first served. Default: twice
	// the processors, at least 8.
	StartConcurrency int
	// MaxAgents is the largest number of agents alive at a time, to compare with the limits of
	// this process at New. Default 0: not known, nothing is compared.
	MaxAgents int
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
	// PruneRunDir lets the supervisors of an owner that was killed remove RunDir, if nothing is
	// left in it. For a RunDir that was made for this launcher.
	PruneRunDir bool
	// Goroutines owns the one goroutine of each process. Required.
	Goroutines *safego.Group
	// Log takes warnings, of one line each: processes an agent left behind (of the first 5 agents
	// and then of every 100th), limits that are too low, what the system lacks, directories of dead
	// engines that were removed. It must not block. Default: they are dropped.
	Log func(text string)
}

// A Launcher starts agent processes. Its methods are safe for concurrent use.
type Launcher struct {
	cfg        Config
	supervisor *supervisorFile
	shell      string
	env        baseEnv
	devNull    *os.File
	kept       *keptLogs
	turns      *turnstile
	counts     counters
	// deafFor is added to the time in which an agent ends after Terminate or Kill; a supervisor
	// that says nothing until then is killed.
	deafFor time.Duration
	// windDown is what Instructions.WindDown says.
	windDown time.Duration

	starting sync.WaitGroup // starts that Close has to wait for
	mu       sync.Mutex
	closed   bool
	released bool                  // Close's: nothing runs any more, and the rest was given back
	owners   []ownerDir            // the last one is in use
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
	l := &Launcher{cfg: cfg, procs: map[*Process]struct{}{}, turns: newTurnstile(cfg.StartConcurrency), deafFor: deafFor, windDown: windDown}
	if l.env, err = baseEnvironment(cfg); err != nil {
		return nil, err
	}
	if l.shell, err = findShell(); err != nil {
		return nil, err
	}
	limits, err := checkLimits(cfg)
	if err != nil {
		return nil, err
	}
	if l.cfg.RunDir, err = prepareRunDir(cfg.RunDir); err != nil {
		return nil, err
	}
	l.kept = newKeptLogs(filepath.Join(l.cfg.RunDir, failedDir), cfg.KeptLogs)
	for _, text := range limits {
		l.warn(text)
	}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// open takes what has to be given back. Of a failed open nothing is left.
func (l *Launcher) open() error {
	found, warnings, err := openSupervisor(l.cfg.Supervisor)
	if err != nil {
		return err
	}
	for _, text := range warnings {
		l.warn(text)
	}
	owner, err := l.claim()
	if err != nil {
		found.close()
		return &OptionError{Option: "run_dir", Problem: "no directory for IO directories", Err: err}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		found.close()
		owner.remove()
		owner.lock.Close()
		return fmt.Errorf("agent: %w", err)
	}
	l.supervisor, l.devNull = found, null
	report, err := sweepDead(filepath.Dir(owner.path), owner)
	if err != nil { // somebody else's leftovers are no reason not to start
		l.warn("agent: leftovers of a dead engine cannot be removed: " + err.Error())
	}
	if report != "" {
		l.warn(report)
	}
	return nil
}

func (l *Launcher) warn(text string) {
	if l.cfg.Log != nil {
		l.cfg.Log(text)
	}
}

func withDefaults(cfg Config) Config {
	if cfg.KillGrace <= 0 {
		cfg.KillGrace = DefaultKillGrace
	}
	if cfg.LogLimit <= 0 {
		cfg.LogLimit = DefaultLogLimit
	}
	cfg.LogLimit = max(cfg.LogLimit, minLogLimit)
	if cfg.StartConcurrency <= 0 {
		cfg.StartConcurrency = defaultStarts()
	}
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
	l.tidy()
}

// tidy removes the launcher's directories once it is closed and they are empty.
func (l *Launcher) tidy() {
	l.mu.Lock()
	over, owners := l.closed && len(l.procs) == 0, l.owners
	l.mu.Unlock()
	if !over {
		return
	}
	for _, owner := range owners {
		owner.remove(filepath.Join(l.cfg.RunDir, sessionsDir))
	}
}

// claim adds a directory to those of this launcher; new Sessions go there.
func (l *Launcher) claim() (ownerDir, error) {
	owner, err := claimOwnerDir(filepath.Join(l.cfg.RunDir, sessionsDir))
	if err != nil {
		return ownerDir{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owners = append(l.owners, owner)
	return owner, nil
}

// newIODir makes a Session's directory, and its parents if somebody tidied them away.
func (l *Launcher) newIODir(spec Spec) (ioDir, ownerDir, error) {
	l.mu.Lock()
	owner := l.owners[len(l.owners)-1]
	l.mu.Unlock()
	dir, err := newIODir(owner.path, spec.SessionID, spec.Input)
	if !errors.Is(err, fs.ErrNotExist) {
		return dir, owner, err
	}
	if owner, err = l.claim(); err != nil {
		return ioDir{}, ownerDir{}, err
	}
	dir, err = newIODir(owner.path, spec.SessionID, spec.Input)
	return dir, owner, err
}

// Close refuses further starts, terminates every agent, waits until all are gone, and removes
// the IO directories still there. When ctx ends first an error names the Sessions that are still
// ending; they have the rest of Config.KillGrace and end without anybody's help, and Close may be
// called again to wait on. It is called by one goroutine at a time.
func (l *Launcher) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.turns.close()
	l.starting.Wait()
	procs := l.snapshot()
	for _, p := range procs {
		p.Terminate()
		p.abandon()
	}
	err := waitAll(ctx, procs)
	if err == nil && !l.released {
		l.released = true
		l.devNull.Close()
		l.supervisor.close()
		l.giveUpOwners()
	}
	l.tidy()
	return err
}

// giveUpOwners unlocks the launcher's directories. Nothing runs any more, so what could not be
// removed before is tried again.
func (l *Launcher) giveUpOwners() {
	for _, owner := range l.owners {
		_ = supervisor.RemoveTree(owner.path)
		owner.lock.Close()
	}
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
		return fmt.Errorf("agent: still ending (agent_kill_grace): sessions %s: %w", strings.Join(late, ", "), ctx.Err())
	}
	return nil
}
