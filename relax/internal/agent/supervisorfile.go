//go:build linux

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

const (
	supervisorOption = "agent_supervisor"
	// checkTime bounds the supervisor's check of itself.
	checkTime = 30 * time.Second
	// firstSpareFD keeps descriptors that are executed from clear of those a child is given.
	firstSpareFD = 64
)

// A supervisorFile is what supervisors are started from. It holds the file open, so that an
// upgrade of the package during a run does not mix versions.
type supervisorFile struct {
	name string // for messages
	exec string // path to execute
	file *os.File
}

func (f *supervisorFile) close() {
	if f.file != nil {
		f.file.Close()
	}
}

// openSupervisor finds a supervisor that works here, by this rule: the file itself; if the
// system refuses to execute it, as on a noexec mount or without the x permission, a copy of it
// in memory; else an error. The warnings name what had to be worked around.
func openSupervisor(path string) (f *supervisorFile, warnings []string, err error) {
	if path == "" {
		if isLibrary() {
			return nil, nil, &OptionError{Option: supervisorOption, Problem: "is empty, and the engine is a library of another program; expected the path of relax-agent-init"}
		}
		f = &supervisorFile{name: "this program", exec: "/proc/self/exe"}
		warnings, err = f.check()
		return f, warnings, err
	}
	if f, err = pinSupervisor(path); err != nil {
		return nil, nil, err
	}
	warnings, err = f.check()
	if err == nil {
		return f, warnings, nil
	}
	f.close()
	if !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EPERM) {
		return nil, nil, err
	}
	return openCopy(f.name, err)
}

// openCopy is the way out when executing the file itself was refused.
func openCopy(path string, refused error) (*supervisorFile, []string, error) {
	f, err := copySupervisor(path)
	if err == nil {
		var warnings []string
		if warnings, err = f.check(); err == nil {
			text := fmt.Sprintf("agent: option %s: %s cannot be executed where it is; supervisors run from a copy in memory", supervisorOption, path)
			return f, append(warnings, text), nil
		}
		f.close()
	}
	return nil, nil, &OptionError{Option: supervisorOption,
		Problem: path + " cannot be executed; make it executable (chmod +x) on a file system mounted without noexec. A copy in memory does not help: " + err.Error(), Err: refused}
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

func pinSupervisor(path string) (*supervisorFile, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, &OptionError{Option: supervisorOption, Problem: "cannot be made absolute", Err: err}
	}
	fd, err := unix.Open(abs, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &OptionError{Option: supervisorOption, Problem: abs + ": expected the relax-agent-init binary", Err: err}
	}
	f, err := executable(abs, fd)
	if err != nil {
		return nil, &OptionError{Option: supervisorOption, Problem: abs + " cannot be held open", Err: err}
	}
	if st, err := f.file.Stat(); err != nil || !st.Mode().IsRegular() {
		f.close()
		return nil, &OptionError{Option: supervisorOption, Problem: abs + " is not a file", Err: err}
	}
	return f, nil
}

func copySupervisor(path string) (*supervisorFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	const execAllowed = 0x10 // MFD_EXEC: Linux 6.3, where a setting may make copies not executable
	fd, err := unix.MemfdCreate(supervisor.Argv0, unix.MFD_CLOEXEC|execAllowed)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(supervisor.Argv0, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	mem := os.NewFile(uintptr(fd), supervisor.Argv0)
	defer mem.Close()
	if _, err := mem.Write(data); err != nil {
		return nil, err
	}
	// A file open for writing cannot be executed, so it is opened again.
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return executable(path, again)
}

// executable moves fd out of the way of the descriptors a child is given and takes it over.
func executable(name string, fd int) (*supervisorFile, error) {
	defer unix.Close(fd)
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstSpareFD)
	if err != nil {
		return nil, err
	}
	return &supervisorFile{name: name, exec: fmt.Sprintf("/proc/self/fd/%d", high), file: os.NewFile(uintptr(high), name)}, nil
}

// check starts the supervisor once to see whether it is one, of this version, and whether the
// kernel lets it do its work. The warnings name what it has to do without.
func (f *supervisorFile) check() (warnings []string, err error) {
	said, err := f.ask()
	if _, missing := os.Stat("/proc/self/exe"); err != nil && missing != nil {
		return nil, &OptionError{Option: supervisorOption, Problem: "/proc cannot be read, from which supervisors are started; mount it", Err: missing}
	}
	if err != nil {
		return nil, &OptionError{Option: supervisorOption, Problem: f.name + " cannot be started", Err: err}
	}
	return judgeCheck(f.name, said)
}

func judgeCheck(name string, said []byte) (warnings []string, err error) {
	var can supervisor.Check
	if err := json.Unmarshal(said, &can); err != nil || can.Protocol != supervisor.Protocol {
		return nil, &OptionError{Option: supervisorOption,
			Problem: fmt.Sprintf("%s is not the relax-agent-init of this version (expected protocol %s, it said %q); build both from the same source with make lib", name, supervisor.Protocol, shorten(string(said), 200))}
	}
	switch {
	case !can.Subreaper:
		return nil, &OptionError{Option: supervisorOption, Problem: "the kernel or a sandbox refuses prctl(PR_SET_CHILD_SUBREAPER), without which processes of an agent could outlive it; allow it"}
	case !can.Proc:
		return nil, &OptionError{Option: supervisorOption, Problem: "/proc cannot be read, without which processes of an agent could outlive it; mount it"}
	case !can.PidFD:
		warnings = append(warnings, "agent: the kernel or a sandbox has no pidfd_open (Linux 5.3): the end of an agent is noticed up to 50 ms late, "+
			"and what a killed supervisor leaves outside the agent's session is not found")
	}
	return warnings, nil
}

// ask returns what the supervisor says when it checks itself.
func (f *supervisorFile) ask() ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		w.Close()
		return nil, err
	}
	defer null.Close()
	pidFD := -1
	pid, err := syscall.ForkExec(f.exec, []string{supervisor.Argv0, supervisor.ArgCheck}, &syscall.ProcAttr{
		Env:   supervisorEnv(),
		Files: []uintptr{null.Fd(), w.Fd(), w.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true, PidFD: &pidFD},
	})
	w.Close()
	if err != nil {
		return nil, err
	}
	child := newChild(pid, pidFD)
	_ = r.SetReadDeadline(time.Now().Add(checkTime))
	said, err := io.ReadAll(io.LimitReader(r, 64<<10))
	child.signal(unix.SIGKILL) // it has ended, or is something that does not
	child.reap()
	return bytes.TrimSpace(said), err
}
