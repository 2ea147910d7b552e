package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relax-rollout/relax-rollout/relax"
)

// maxWait bounds one wait under the C ABI: the host runs its signal handlers between calls.
const maxWait = time.Second

// engine is what the ABI needs of a *relax.Engine.
type engine interface {
	Submit(tasks []relax.Task) error
	StartRollout(rolloutID int64) error
	StartEval(rolloutID int64, datasets []relax.EvalDataset) error
	Consumed(partition int64) error
	Poll(ctx context.Context) (relax.Event, error)
	SetReadyFunc(f func())
	PendingEvents() int
	Reply(id uint64, data []byte) error
	SetWeightVersion(version int64) error
	Pause(ctx context.Context) error
	Resume() error
	Stats() ([]byte, error)
	Close(ctx context.Context) error
}

// A host holds the one engine a process may have. Handles are small integers that are never
// used twice, so a call with an old one finds out.
type host struct {
	open func(relax.Config, relax.Allocator) (engine, error)

	mu      sync.Mutex
	opening bool
	current *session // nil: none is open
	issued  uintptr  // the last handle
	ended   *readiness
}

// A session is an open engine with what the ABI adds to it.
type session struct {
	handle  uintptr
	engine  engine
	ready   *readiness
	arenas  *arenas
	closing atomic.Bool

	end    sync.Once
	ended  chan struct{} // closed when the engine has ended
	endErr error         // then: how
}

func newHost(open func(relax.Config, relax.Allocator) (engine, error)) *host {
	return &host{open: open}
}

// openEngine opens an engine from a configuration document and returns its handle.
func (h *host) openEngine(config []byte) (uintptr, error) {
	if err := h.beginOpen(); err != nil {
		return 0, err
	}
	s, err := h.newSession(config)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opening = false
	if err != nil {
		return 0, err
	}
	h.issued++
	s.handle = h.issued
	h.current = s
	// The descriptor of the engine before stayed open until now, so that a late select on it
	// did not meet a descriptor of somebody else.
	h.ended.close()
	h.ended = nil
	return s.handle, nil
}

func (h *host) beginOpen() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current != nil && h.current.closing.Load() {
		return errStillEnding
	}
	if h.opening || h.current != nil {
		return errAlready
	}
	h.opening = true
	return nil
}

func (h *host) newSession(config []byte) (*session, error) {
	cfg, err := relax.ParseConfig(config)
	if err != nil {
		return nil, err
	}
	ready, err := newReadiness()
	if err != nil {
		return nil, err
	}
	runtime.GOMAXPROCS(goMaxProcs(cfg.GoMaxProcs, runtime.NumCPU()))
	s := &session{ready: ready, arenas: newArenas(cfg), ended: make(chan struct{})}
	if s.engine, err = h.open(cfg, s.arenas); err != nil {
		ready.close()
		s.arenas.close()
		return nil, openError(err)
	}
	s.engine.SetReadyFunc(ready.signal)
	if s.speaks() { // queued before there was somebody to tell
		ready.signal()
	}
	return s, nil
}

// openError keeps a deadline met while opening from looking like a poll's timeout.
func openError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, relax.ErrBackend) {
		return fmt.Errorf("%w: %w", relax.ErrBackend, err)
	}
	return err
}

// goMaxProcs is the number of threads that run Go code: as configured, else a share of the
// CPUs, because the real neighbours in a trainer are its data loaders and collectives.
func goMaxProcs(configured, cpus int) int {
	if configured > 0 {
		return configured
	}
	return min(8, max(2, cpus/8))
}

// lookup finds the session of a handle. A handle of a closed engine gives relax.ErrClosed.
func (h *host) lookup(handle uintptr) (*session, error) {
	s, err := h.find(handle)
	if err != nil {
		return nil, err
	}
	if s == nil || s.closing.Load() {
		return nil, relax.ErrClosed
	}
	return s, nil
}

// find returns nil for a handle whose engine has ended.
func (h *host) find(handle uintptr) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if handle == 0 || handle > h.issued {
		return nil, fmt.Errorf("engine: %#x is not a handle of relax_open: %w", handle, relax.ErrInvalid)
	}
	if h.current == nil || h.current.handle != handle {
		return nil, nil
	}
	return h.current, nil
}

// submit parses and queues tasks.
func (h *host) submit(handle uintptr, doc []byte) error {
	s, err := h.lookup(handle)
	if err != nil {
		return err
	}
	tasks, err := parseTasks(doc)
	if err != nil {
		return err
	}
	panicOnRequest(tasks)
	return s.engine.Submit(tasks)
}

// startEval parses datasets and starts an Eval of them.
func (h *host) startEval(handle uintptr, rolloutID int64, doc []byte) error {
	s, err := h.lookup(handle)
	if err != nil {
		return err
	}
	datasets, err := parseArray[relax.EvalDataset](doc, "datasets_json",
		`{"name", "tasks"} with, optionally, n_samples, temperature, top_p, top_k, max_response_len and metadata`)
	if err != nil {
		return err
	}
	return s.engine.StartEval(rolloutID, datasets)
}

// parseTasks reads a JSON array of tasks.
func parseTasks(doc []byte) ([]relax.Task, error) {
	return parseArray[relax.Task](doc, "tasks_json", `{"messages", "metadata"}`)
}

// parseArray reads a JSON array; unknown members are refused by name.
func parseArray[T any](doc []byte, argument, element string) ([]T, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	var out []T
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("%s: expected an array of %s: %w: %w", argument, element, relax.ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: text after the array: %w", argument, relax.ErrInvalid)
	}
	return out, nil
}

// closeEngine ends the engine of a handle and waits for that at most the grace. An engine that is
// late goes on ending by itself, and the call can be repeated to wait on.
func (h *host) closeEngine(handle uintptr, graceMS int32) error {
	if graceMS < 0 {
		return fmt.Errorf("grace_ms: %d is negative: %w", graceMS, relax.ErrInvalid)
	}
	s, err := h.find(handle)
	if s == nil {
		return err
	}
	s.end.Do(func() {
		s.closing.Store(true)
		s.ready.signal()
		go h.endSession(s)
	})
	grace := time.NewTimer(time.Duration(graceMS) * time.Millisecond)
	defer grace.Stop()
	select {
	case <-s.ended:
		return s.endErr
	case <-grace.C:
		return fmt.Errorf("relax: the engine did not end within grace_ms=%d and goes on ending; relax_close waits on: %w", graceMS, context.DeadlineExceeded)
	}
}

// closeRound bounds one try to close the engine: what waits for somebody else is then left to the
// next.
const closeRound = time.Second

// endSession closes the engine, however long that takes, and makes room for another. Callers of
// closeEngine wait for it as long as they like.
func (h *host) endSession(s *session) {
	defer close(s.ended)
	defer func() {
		if v := recover(); v != nil {
			s.endErr = fmt.Errorf("%w: %s", relax.ErrPanic, poisonWith("relax_close", v, debug.Stack()))
		}
	}()
	err := error(context.DeadlineExceeded)
	for errors.Is(err, context.DeadlineExceeded) {
		err = s.closeOnce()
	}
	h.retire(s)
	s.arenas.close() // every goroutine was joined, also after a panic
	if err != nil && !errors.Is(err, relax.ErrClosed) {
		s.endErr = err
		poisonBy(err) // perhaps nobody asks any more
	}
}

func (s *session) closeOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeRound)
	defer cancel()
	return s.engine.Close(ctx)
}

// retire forgets an ended session, once.
func (h *host) retire(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == s {
		h.current, h.ended = nil, s.ready
	}
}

// wake makes the descriptor readable for good: the engine will not answer any more.
func (h *host) wake() {
	h.mu.Lock()
	s := h.current
	h.mu.Unlock()
	if s != nil {
		s.ready.signal()
	}
}

// poll waits for the next event.
func (s *session) poll(timeoutMS int32) (relax.Event, error) {
	wait, err := waitTime(timeoutMS)
	if err != nil {
		return relax.Event{}, err
	}
	if wait == 0 && s.engine.PendingEvents() > 0 {
		wait = time.Millisecond // an event is there: an ended context must not hide it
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	ev, err := s.engine.Poll(ctx)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		s.settle()
	}
	return ev, err
}

// pause closes the generation gate.
func (s *session) pause(timeoutMS int32) error {
	wait, err := waitTime(timeoutMS)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return s.engine.Pause(ctx)
}

func waitTime(timeoutMS int32) (time.Duration, error) {
	if timeoutMS < 0 {
		return 0, fmt.Errorf("timeout_ms: %d is negative; wait in a loop of short calls: %w", timeoutMS, relax.ErrInvalid)
	}
	return min(time.Duration(timeoutMS)*time.Millisecond, maxWait), nil
}

// settle makes the descriptor unreadable if nothing waits. An event queued between the look and
// the drain has signalled what is drained here, so it looks again afterwards.
func (s *session) settle() {
	if s.speaks() {
		return
	}
	s.ready.drain()
	if s.speaks() {
		s.ready.signal()
	}
}

// speaks reports whether a poll would return at once.
func (s *session) speaks() bool {
	return s.closing.Load() || poison.Load() != nil || s.engine.PendingEvents() > 0
}
