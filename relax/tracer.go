package relax

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// openTraces makes trace_dir and starts the goroutine that writes there.
func (c *core) openTraces() error {
	dir := c.cfg.TraceDir
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return &OptionError{Option: "trace_dir", Problem: "cannot be made", Err: err}
	}
	c.traces = newTracer(dir, c.warn)
	c.goroutines.Go("traces", func() { c.traces.run(c.ctx.Done()) })
	return nil
}

const (
	// entriesQueued bounds what waits for a disk, in entries of documents: some 200 MB.
	entriesQueued = 1 << 19
	// tracesWait bounds what a step waits for it.
	tracesWait = 5 * time.Second
)

// A tracer writes traces. One goroutine does, so that a disk that is slow or gone holds up
// nothing else: who has a document leaves it here.
type tracer struct {
	dir  string
	warn func(text string)
	wake chan struct{} // holds a token when there is something to do
	room int           // bounds queued

	mu     sync.Mutex
	queue  []*observe.Trace
	queued int             // entries in it
	lost   int             // documents the queue had no room for
	waits  []chan struct{} // closed when the queue is written

	failed bool // the last write; the writer's
}

func newTracer(dir string, warn func(text string)) *tracer {
	return &tracer{dir: dir, warn: warn, wake: make(chan struct{}, 1), room: entriesQueued}
}

// put leaves documents to be written, all or, where the queue is full, none. It does not wait. A nil
// tracer takes none.
func (t *tracer) put(traces []*observe.Trace) {
	if t == nil || len(traces) == 0 {
		return
	}
	t.mu.Lock()
	if t.queued >= t.room {
		t.lost += len(traces)
	} else {
		t.queue = append(t.queue, traces...)
		for _, trace := range traces {
			t.queued += entries(trace)
		}
	}
	t.mu.Unlock()
	t.signal()
}

// entries is about how much memory a document takes.
func entries(t *observe.Trace) int {
	return 8 + len(t.Turns) + len(t.Nodes) + len(t.Failed) + len(t.Retries) + len(t.Exports) + len(t.Side)
}

func (t *tracer) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// full reports whether put has no room.
func (t *tracer) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queued >= t.room
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
		err = errors.Join(err, fmt.Errorf("%d traces were not written to %s: it is too slow", lost, t.dir))
	}
	if err != nil && !t.failed {
		t.warn("option trace_dir: " + err.Error())
	}
	if len(queue) > 0 {
		t.failed = err != nil
	}
	for _, w := range waits {
		close(w)
	}
}

// write appends each document to its step's file.
func (t *tracer) write(traces []*observe.Trace) error {
	lines := map[string][]byte{}
	var errs []error
	for _, trace := range traces {
		name := traceFile(trace.RolloutID)
		line, err := trace.AppendLine(lines[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("trace of session %s: %w", trace.SessionID, err))
			continue
		}
		lines[name] = line
	}
	for name, text := range lines {
		errs = append(errs, appendLines(filepath.Join(t.dir, name), text))
	}
	return errors.Join(errs...)
}

func traceFile(rollout *int64) string {
	step := "none"
	if rollout != nil {
		step = strconv.FormatInt(*rollout, 10)
	}
	return "rollout_" + step + ".jsonl"
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
