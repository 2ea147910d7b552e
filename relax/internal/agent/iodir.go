//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	sessionsDir = "sessions"
	failedDir   = "failed"
	inputFile   = "session_input.json"
	outputFile  = "session_output.json"
	logFile     = "command.log"

	// maxLogTail bounds [Process.LogTail] in bytes.
	maxLogTail = 8192
)

func prepareRunDir(dir string) (string, error) {
	const option = "run_dir"
	if dir == "" {
		return "", &OptionError{Option: option, Problem: "is empty; expected a directory for Session files"}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", &OptionError{Option: option, Problem: "cannot be made absolute", Err: err}
	}
	if err := os.MkdirAll(filepath.Join(abs, sessionsDir), 0o700); err != nil {
		return "", &OptionError{Option: option, Problem: "cannot be created", Err: err}
	}
	return abs, nil
}

// An ioDir is one Session's directory.
type ioDir struct{ path string }

func (d ioDir) input() string  { return filepath.Join(d.path, inputFile) }
func (d ioDir) output() string { return filepath.Join(d.path, outputFile) }
func (d ioDir) log() string    { return filepath.Join(d.path, logFile) }

// newIODir makes the directory below owner, readable by this user only, and writes the input
// document.
func newIODir(owner, session string, input []byte) (ioDir, error) {
	path, err := os.MkdirTemp(owner, fileName(session)+"-*")
	if err != nil {
		return ioDir{}, err
	}
	d := ioDir{path}
	if err := os.WriteFile(d.input(), input, 0o600); err != nil {
		return d, alongside(err, d.discard())
	}
	return d, nil
}

// discard removes a directory that no agent has used. It needs no descriptor: the want of one may
// be why the agent could not start.
func (d ioDir) discard() error {
	for _, file := range []string{d.log(), d.input()} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Remove(d.path)
}

// fileName turns a Session id into something that can be part of a file name.
func fileName(session string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '_'
	}, session)
	return name[:min(len(name), 64)]
}

// tail returns the last n bytes of a log as valid UTF-8, "" if there is none.
func tail(path string, n int64) string {
	f, err := openRegular(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	n = min(n, size)
	buf := make([]byte, n)
	got, _ := f.ReadAt(buf, size-n)
	return strings.ToValidUTF8(string(buf[:got]), "\uFFFD")
}

// openRegular opens a file an agent may have replaced: a FIFO must not block us, a device must
// not feed us without end.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: expected a regular file, found %s", path, st.Mode().Type())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// keptLogs is the bounded store of failed Sessions' logs.
type keptLogs struct {
	dir string
	max int

	mu    sync.Mutex
	names []string // oldest first; nil until the directory was read
	read  bool
}

func newKeptLogs(dir string, limit int) *keptLogs { return &keptLogs{dir: dir, max: limit} }

// path is where a Session's log is kept.
func (k *keptLogs) path(session string) string { return filepath.Join(k.dir, fileName(session)+".log") }

// keep copies the end of a log under a header and makes room for it.
func (k *keptLogs) keep(session, note, logPath string) error {
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	name := fileName(session) + ".log"
	for _, old := range k.admit(name) {
		_ = os.Remove(filepath.Join(k.dir, old))
	}
	header := fmt.Sprintf("# session %s: %s\n", session, note)
	text := header + tail(logPath, keptLogBytes-int64(len(header)))
	return os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o600)
}

// admit enters name as the newest log and returns the ones that have to go.
func (k *keptLogs) admit(name string) (gone []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.read {
		k.names, k.read = logsByAge(k.dir), true
	}
	k.names = slices.DeleteFunc(k.names, func(n string) bool { return n == name })
	k.names = append(k.names, name)
	if over := len(k.names) - k.max; over > 0 {
		gone = slices.Clone(k.names[:over])
		k.names = slices.Delete(k.names, 0, over)
	}
	return gone
}

// logsByAge finds the logs an earlier engine left in the directory.
func logsByAge(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	type log struct {
		name string
		at   time.Time
	}
	var logs []log
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && strings.HasSuffix(e.Name(), ".log") {
			logs = append(logs, log{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(logs, func(a, b log) int { return a.at.Compare(b.at) })
	names := make([]string, len(logs))
	for i, l := range logs {
		names[i] = l.name
	}
	return names
}
