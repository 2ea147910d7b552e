package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeEngine queues events as the real one does. Everything else is recorded or refused.
type fakeEngine struct {
	mu     sync.Mutex
	queue  []relax.Event
	ready  func()
	wake   chan struct{}
	closed bool
	// closeErrs are what Close returns first; closing, if not nil, is closed when it may end.
	closeErrs []error
	closing   chan struct{}
	tasks     []relax.Task
	evals     []relax.EvalDataset
	consumed  []int64
}

func newFakeEngine() *fakeEngine { return &fakeEngine{wake: make(chan struct{})} }

func (e *fakeEngine) push(ev relax.Event) {
	e.mu.Lock()
	e.queue = append(e.queue, ev)
	ready := e.ready
	e.stir()
	e.mu.Unlock()
	if ready != nil {
		ready()
	}
}

func (e *fakeEngine) stir() {
	close(e.wake)
	e.wake = make(chan struct{})
}

func (e *fakeEngine) Poll(ctx context.Context) (relax.Event, error) {
	for {
		e.mu.Lock()
		wake := e.wake
		if e.closed {
			e.mu.Unlock()
			return relax.Event{}, relax.ErrClosed
		}
		if len(e.queue) > 0 {
			ev := e.queue[0]
			e.queue = e.queue[1:]
			e.mu.Unlock()
			return ev, nil
		}
		e.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return relax.Event{}, ctx.Err()
		}
	}
}

func (e *fakeEngine) Close(ctx context.Context) error {
	if e.closing != nil {
		select {
		case <-e.closing:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.closeErrs) > 0 {
		err := e.closeErrs[0]
		e.closeErrs = e.closeErrs[1:]
		return err
	}
	e.closed = true
	e.stir()
	return nil
}

func (e *fakeEngine) PendingEvents() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queue)
}

func (e *fakeEngine) SetReadyFunc(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = f
}

func (e *fakeEngine) Submit(tasks []relax.Task) error {
	e.tasks = append(e.tasks, tasks...)
	return nil
}

func (e *fakeEngine) StartEval(rolloutID int64, datasets []relax.EvalDataset) error {
	e.evals = append(e.evals, datasets...)
	return nil
}

func (e *fakeEngine) Consumed(partition int64) error {
	e.consumed = append(e.consumed, partition)
	return nil
}

func (e *fakeEngine) StartRollout(int64) error        { return nil }
func (e *fakeEngine) Reply(uint64, []byte) error      { return nil }
func (e *fakeEngine) SetWeightVersion(int64) error    { return nil }
func (e *fakeEngine) Pause(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (e *fakeEngine) Resume() error                   { return nil }
func (e *fakeEngine) Stats() ([]byte, error)          { return []byte("{}"), nil }

const config = `{"agent_command": "true", "agent_cwd": "/"}`

// openFake opens e behind a host.
func openFake(t *testing.T, e *fakeEngine) (*host, *session) {
	t.Helper()
	h := newHost(func(relax.Config, relax.Allocator) (engine, error) { return e, nil })
	handle, err := h.openEngine([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	s, err := h.lookup(handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.ready.close)
	return h, s
}

func readable(t *testing.T, s *session) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(s.ready.descriptor()), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil {
		t.Fatal(err)
	}
	return fds[0].Revents&unix.POLLIN != 0
}

func TestOneEngineAtATime(t *testing.T) {
	h, first := openFake(t, newFakeEngine())
	if _, err := h.openEngine([]byte(config)); !errors.Is(err, errAlready) {
		t.Fatalf("second open: %v, want errAlready", err)
	}
	closeFake(t, h, first.handle)
	closeFake(t, h, first.handle)
	second, err := h.openEngine([]byte(config))
	if err != nil {
		t.Fatalf("open after close: %v", err)
	}
	if second == first.handle {
		t.Fatal("a handle was used twice")
	}
	if _, err := h.lookup(first.handle); !errors.Is(err, relax.ErrClosed) {
		t.Fatalf("old handle: %v, want ErrClosed", err)
	}
	closeFake(t, h, first.handle)
	if _, err := h.lookup(second); err != nil {
		t.Fatalf("new handle after a close of the old one: %v", err)
	}
	closeFake(t, h, second)
	h.ended.close()
}

func TestUnknownHandle(t *testing.T) {
	h, s := openFake(t, newFakeEngine())
	for _, handle := range []uintptr{0, s.handle + 1, 1 << 40} {
		if _, err := h.lookup(handle); !errors.Is(err, relax.ErrInvalid) {
			t.Errorf("lookup(%d): %v, want ErrInvalid", handle, err)
		}
		if err := h.closeEngine(handle, 0); !errors.Is(err, relax.ErrInvalid) {
			t.Errorf("closeEngine(%d): %v, want ErrInvalid", handle, err)
		}
	}
}

func TestFailedOpenLeavesNothing(t *testing.T) {
	before := openDescriptors(t)
	refusal := fmt.Errorf("workers: %w", context.DeadlineExceeded)
	h := newHost(func(relax.Config, relax.Allocator) (engine, error) { return nil, refusal })
	if _, err := h.openEngine([]byte(config)); !errors.Is(err, relax.ErrBackend) {
		t.Errorf("a deadline while opening: %v, want ErrBackend", err)
	}
	if _, err := h.openEngine([]byte(`{"no_such_option": 1}`)); !errors.Is(err, relax.ErrInvalid) {
		t.Errorf("unknown option: %v, want ErrInvalid", err)
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
	h.open = func(relax.Config, relax.Allocator) (engine, error) { return newFakeEngine(), nil }
	if _, err := h.openEngine([]byte(config)); err != nil {
		t.Errorf("open after failures: %v", err)
	}
	h.current.ready.close()
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("SKIPPED: needs /proc: ", err)
	}
	return len(entries)
}

func TestDescriptorFollowsTheQueue(t *testing.T) {
	e := newFakeEngine()
	e.push(relax.Event{Kind: relax.EventLog}) // before anybody listens
	h, s := openFake(t, e)
	if !readable(t, s) {
		t.Fatal("an event was queued while opening, and the descriptor is not readable")
	}
	e.push(relax.Event{Kind: relax.EventProgress})
	for _, step := range []struct {
		kind  relax.EventKind
		after bool
	}{{relax.EventLog, true}, {relax.EventProgress, false}} {
		ev, err := s.poll(0)
		if err != nil || ev.Kind != step.kind {
			t.Fatalf("poll: %v %v, want kind %d", ev, err, step.kind)
		}
		if got := readable(t, s); got != step.after {
			t.Fatalf("readable after event %d: %v, want %v", step.kind, got, step.after)
		}
	}
	if _, err := s.poll(0); statusOf(err) != statusOf(context.DeadlineExceeded) {
		t.Fatalf("poll of nothing: %v", err)
	}
	s.ready.signal() // a signal that came late is drained by the next poll
	if _, err := s.poll(0); err == nil || readable(t, s) {
		t.Fatalf("late signal: %v, readable %v", err, readable(t, s))
	}
	closeFake(t, h, s.handle)
	if !readable(t, s) {
		t.Fatal("not readable after close")
	}
	s.settle()
	if !readable(t, s) {
		t.Fatal("a poll that ended late made a closed engine's descriptor unreadable")
	}
}

// Polls and pushes race; in the end the descriptor must say whether something is left.
func TestDescriptorIsNeverLeftSilent(t *testing.T) {
	e := newFakeEngine()
	_, s := openFake(t, e)
	const events, pollers = 2000, 3
	var wg sync.WaitGroup
	got := make(chan struct{}, events)
	for range pollers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for len(got) < events {
				if _, err := s.poll(1); err == nil {
					got <- struct{}{}
				}
			}
		}()
	}
	for range events {
		e.push(relax.Event{Kind: relax.EventLog})
	}
	wg.Wait()
	if readable(t, s) {
		if _, err := s.poll(0); err == nil || readable(t, s) {
			t.Fatal("readable with an empty queue, also after a poll")
		}
	}
	e.push(relax.Event{Kind: relax.EventLog})
	if !readable(t, s) {
		t.Fatal("not readable with an event queued")
	}
}

func TestWaitsAreBounded(t *testing.T) {
	for _, c := range []struct {
		ms   int32
		want int64
	}{{0, 0}, {1, 1}, {1000, 1000}, {1001, 1000}, {1<<31 - 1, 1000}} {
		if got, err := waitTime(c.ms); err != nil || got.Milliseconds() != c.want {
			t.Errorf("waitTime(%d) = %v, %v; want %d ms", c.ms, got, err, c.want)
		}
	}
	if _, err := waitTime(-1); !errors.Is(err, relax.ErrInvalid) {
		t.Errorf("waitTime(-1): %v, want ErrInvalid", err)
	}
	_, s := openFake(t, newFakeEngine())
	if err := s.pause(0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("pause that does not finish: %v, want the deadline", err)
	}
}

// A close that runs out of time is no end of it: the engine goes on ending, and makes room for the
// next one, whether or not anybody asks again.
func TestCloseThatDoesNotFinish(t *testing.T) {
	for name, again := range map[string]bool{"and is repeated": true, "and nobody repeats": false} {
		t.Run(name, func(t *testing.T) {
			e := newFakeEngine()
			e.closing = make(chan struct{})
			h, s := openFake(t, e)
			a := alloc(t, s.arenas, 100)
			for range 2 {
				if err := h.closeEngine(s.handle, 0); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("close: %v, want the deadline", err)
				}
			}
			a.Bytes()[0] = 1 // still mapped: something may be writing
			if _, err := h.lookup(s.handle); !errors.Is(err, relax.ErrClosed) {
				t.Errorf("call while closing: %v, want ErrClosed", err)
			}
			if _, err := h.openEngine([]byte(config)); !errors.Is(err, errStillEnding) {
				t.Errorf("open while closing: %v, want errStillEnding", err)
			}
			close(e.closing)
			if again {
				closeFake(t, h, s.handle)
			}
			<-s.ended
			if len(s.arenas.owned) != 0 {
				t.Errorf("%d arenas left", len(s.arenas.owned))
			}
			h.open = func(relax.Config, relax.Allocator) (engine, error) { return newFakeEngine(), nil }
			next, err := h.openEngine([]byte(config))
			if err != nil {
				t.Fatalf("open after the end: %v", err)
			}
			closeFake(t, h, next)
			h.ended.close()
		})
	}
}

// What one round of closing cannot do is left to the next, and an error that is no deadline ends it.
func TestCloseGoesRound(t *testing.T) {
	e := newFakeEngine()
	e.closeErrs = []error{fmt.Errorf("agents: %w", context.DeadlineExceeded), errors.New("the run directory stays")}
	h, s := openFake(t, e)
	if err := h.closeEngine(s.handle, 60_000); err == nil || err.Error() != "the run directory stays" {
		t.Errorf("close: %v", err)
	}
	closeFake(t, h, s.handle)
}

// A goroutine that panicked when nobody called any more is found by the close.
func TestCloseTellsOfAPanic(t *testing.T) {
	quiet(t)
	e := newFakeEngine()
	e.closeErrs = []error{fmt.Errorf("%w: goroutine loop: boom", relax.ErrPanic)}
	h, s := openFake(t, e)
	if err := h.closeEngine(s.handle, 60_000); !errors.Is(err, relax.ErrPanic) {
		t.Errorf("close: %v, want ErrPanic", err)
	}
	if text := poison.Load(); text == nil || !strings.Contains(*text, "boom") {
		t.Errorf("poison %v", text)
	}
}

// closeFake closes an engine that ends at once.
func closeFake(t *testing.T, h *host, handle uintptr) {
	t.Helper()
	if err := h.closeEngine(handle, 60_000); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func TestGoMaxProcs(t *testing.T) {
	for _, c := range []struct{ configured, cpus, want int }{
		{0, 1, 2}, {0, 16, 2}, {0, 32, 4}, {0, 256, 8}, {3, 256, 3}, {20, 4, 20},
	} {
		if got := goMaxProcs(c.configured, c.cpus); got != c.want {
			t.Errorf("goMaxProcs(%d, %d) = %d, want %d", c.configured, c.cpus, got, c.want)
		}
	}
}

func TestParseTasks(t *testing.T) {
	tasks, err := parseTasks([]byte(` [{"messages":[{"role":"user"}],"metadata":{"a": 1.0}},{}] `))
	if err != nil || len(tasks) != 2 || string(tasks[0].Metadata) != `{"a": 1.0}` {
		t.Fatalf("%v, %v", tasks, err)
	}
	for _, doc := range []string{"", "{}", `[{"metdata":{}}]`, "[] []", "[", `"x"`, "[1]"} {
		if _, err := parseTasks([]byte(doc)); !errors.Is(err, relax.ErrInvalid) {
			t.Errorf("parseTasks(%q): %v, want ErrInvalid", doc, err)
		}
	}
}

func TestStartEval(t *testing.T) {
	e := newFakeEngine()
	h, s := openFake(t, e)
	doc := `[{"name":"a","n_samples":2,"tasks":[{"metadata":{"x":1}},{}]},{"name":"b","tasks":[{}],"temperature":0,"metadata":{"y":2}}]`
	if err := h.startEval(s.handle, 3, []byte(doc)); err != nil {
		t.Fatal(err)
	}
	if len(e.evals) != 2 || e.evals[0].Name != "a" || e.evals[0].NSamples != 2 || len(e.evals[0].Tasks) != 2 {
		t.Errorf("datasets: %+v", e.evals)
	}
	if b := e.evals[1]; b.Temperature == nil || *b.Temperature != 0 || string(b.Metadata) != `{"y":2}` {
		t.Errorf("the second dataset's own values: %+v", b)
	}
	for _, doc := range []string{"", "{}", `[{"nmae":"a"}]`, `[{"tasks":[{"metdata":{}}]}]`, "[] []"} {
		if err := h.startEval(s.handle, 3, []byte(doc)); !errors.Is(err, relax.ErrInvalid) {
			t.Errorf("startEval(%q): %v, want ErrInvalid", doc, err)
		}
	}
}

func FuzzParseTasks(f *testing.F) {
	for _, doc := range []string{"[]", `[{"messages":[],"metadata":{}}]`, "[{}", "[] x", "\xff", "null"} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		tasks, err := parseTasks(doc)
		if err == nil || errors.Is(err, relax.ErrInvalid) {
			return
		}
		t.Fatalf("%v, %v: neither tasks nor ErrInvalid", tasks, err)
	})
}
