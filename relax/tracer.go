package relax

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

const (
	// entriesQueued bounds what waits for a disk, in entries of documents: some 200 MB.
	entriesQueued = 1 << 19
	// tracesWait bounds what a step waits for it.
	tracesWait = 5 * time.Second
	// tracesChunk is about how much of a file is written at once, in bytes.
	tracesChunk = 4 << 20
)

// A record is a line to be written. It is spelled by the writer, so that nobody waits for that.
type record struct {
	// option is the one that asked for the file at path.
	option, path string
	// line appends the line with its end. nil: the file begins anew.
	line func(dst []byte) ([]byte, error)
	// entries is about how much memory it keeps, some 400 bytes each.
	entries int
}

// A tracer writes traces and dumps. One goroutine does, so that a disk that is slow or gone holds
// up nothing else: who has a line leaves it here.
type tracer struct {
	files dumpFiles
	warn  func(text string)
	wake  chan struct{} // holds a token when there is something to do
	room  int           // bounds queued

	mu     sync.Mutex
	queue  []record
	queued int             // entries in it
	lost   int             // lines the queue had no room for
	waits  []chan struct{} // closed when the queue is written

	failed bool // the last write; the writer's
}

// openTraces makes the directories of traces and dumps and starts the goroutine that writes there.
func (c *core) openTraces() error {
	files := dumpFiles{traces: c.cfg.TraceDir, debug: c.cfg.SaveDebugRolloutData, results: c.cfg.RolloutResultDir}
	if files == (dumpFiles{}) {
		return nil
	}
	if err := files.check(); err != nil {
		return err
	}
	for _, d := range files.directories() {
		if err := os.MkdirAll(d.path, 0o755); err != nil {
			return &OptionError{Option: d.option, Problem: "its directory cannot be made", Err: err}
		}
	}
	c.traces = newTracer(files, c.warn)
	c.goroutines.Go("traces", func() { c.traces.run(c.ctx.Done()) })
	return nil
}

func newTracer(files dumpFiles, warn func(text string)) *tracer {
	return &tracer{files: files, warn: warn, wake: make(chan struct{}, 1), room: entriesQueued}
}

// begin makes the dumps of a step begin anew.
func (t *tracer) begin(rollout int64, mode string) {
	if t == nil {
		return
	}
	var records []record
	for _, path := range t.files.debugFiles(stepName(&rollout, mode)) {
		records = append(records, record{option: optionDebug, path: path})
	}
	if path := t.files.resultFile(rollout, mode); path != "" {
		records = append(records, record{option: optionResults, path: path})
	}
	t.leave(records)
}

// put leaves traces to be written. It does not wait. A nil tracer takes none.
func (t *tracer) put(traces []*observe.Trace) {
	if t == nil || len(traces) == 0 {
		return
	}
	var records []record
	for _, trace := range traces {
		name := stepName(trace.RolloutID, trace.Mode)
		if t.files.traces != "" {
			records = append(records, record{optionTraces, t.files.traceFile(name), trace.AppendLine, entries(trace)})
		}
		if path := t.files.sessionFile(name); path != "" {
			records = append(records, record{optionDebug, path, sessionLine(trace), entries(trace)})
		}
	}
	t.leave(records)
}

// leave queues lines, all or, where the queue is full, none.
func (t *tracer) leave(records []record) {
	t.mu.Lock()
	if t.queued >= t.room {
		t.lost += len(records)
	} else {
		t.queue = append(t.queue, records...)
		for _, r := range records {
			t.queued += r.entries
		}
	}
	t.mu.Unlock()
	t.signal()
}

// entries is about how much memory a document takes.
func entries(t *observe.Trace) int {
	return 8 + len(t.Turns) + len(t.Nodes) + len(t.Failed) + len(t.Retries) + len(t.Exports) + len(t.Side)
}

// full reports whether there is no room.
func (t *tracer) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queued >= t.room
}

func (t *tracer) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// settle waits until what was put so far is written, or has failed; for tracesWait at most. It is
// false if that is not enough.
func (t *tracer) settle(done <-chan struct{}) bool {
	written := make(chan struct{})
	t.mu.Lock()
	t.waits = append(t.waits, written)
	t.mu.Unlock()
	t.signal()
	timer := time.NewTimer(tracesWait)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
		return false
	case <-done:
	}
	return true
}

func (t *tracer) run(done <-chan struct{}) {
	for {
		select {
		case <-t.wake:
			t.drain()
		case <-done:
			return // Close drains the rest
		}
	}
}

// drain writes what is in the queue. A failure is told once, until a write succeeds again.
func (t *tracer) drain() {
	t.mu.Lock()
	queue, waits, lost := t.queue, t.waits, t.lost
	t.queue, t.queued, t.waits, t.lost = nil, 0, nil, 0
	t.mu.Unlock()
	err := t.write(queue)
	if lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d lines of traces and dumps were not written: the disk is too slow", lost))
	}
	if err != nil && !t.failed {
		t.warn(err.Error())
	}
	if len(queue) > 0 {
		t.failed = err != nil
	}
	for _, w := range waits {
		close(w)
	}
}

// write appends each line to its file, many at once.
func (t *tracer) write(queue []record) error {
	lines := map[string][]byte{}
	options := map[string]string{}
	var errs []error
	flush := func(path string) {
		text := lines[path]
		delete(lines, path)
		if err := appendLines(path, text); err != nil {
			errs = append(errs, fmt.Errorf("option %s: %w", options[path], err))
		}
	}
	for _, r := range queue {
		options[r.path] = r.option
		if r.line == nil {
			delete(lines, r.path)
			if err := emptyFile(r.path); err != nil {
				errs = append(errs, fmt.Errorf("option %s: %w", r.option, err))
			}
			continue
		}
		text, err := r.line(lines[r.path])
		if err != nil {
			errs = append(errs, fmt.Errorf("option %s: a line of %s: %w", r.option, filepath.Base(r.path), err))
			continue
		}
		if lines[r.path] = text; len(text) >= tracesChunk {
			flush(r.path)
		}
	}
	for path := range lines {
		flush(path)
	}
	return errors.Join(errs...)
}

func emptyFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// appendLines writes at a file's end. If the file ends in the middle of a line, because an earlier
// write or run was cut off, that one is ended first. What agents printed is in there, so others do
// not read it.
func appendLines(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if endsInALine(f) {
		text = append([]byte{'\n'}, text...)
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// endsInALine reports whether the last byte of a file is not the end of a line.
func endsInALine(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}
