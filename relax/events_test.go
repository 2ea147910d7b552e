package relax

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
)

// countingAllocator knows how many arenas are out.
type countingAllocator struct {
	mu   sync.Mutex
	live int
	made int
	// before is called without the lock, before each allocation.
	before func() error
}

type countedArena struct {
	heapArena
	owner *countingAllocator
}

func (a *countingAllocator) Alloc(size int) (Arena, error) {
	if a.before != nil {
		if err := a.before(); err != nil {
			return nil, err
		}
	}
	arena, err := goHeap{}.Alloc(size)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live++
	a.made++
	return countedArena{arena.(heapArena), a}, nil
}

func (a countedArena) Free() {
	a.owner.mu.Lock()
	defer a.owner.mu.Unlock()
	a.owner.live--
}

func (a *countingAllocator) counts() (live, made int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.live, a.made
}

func batchEvent(t *testing.T, a *countingAllocator) Event {
	t.Helper()
	b, err := batch.Build(a, 1, 0, []batch.Row{{Meta: []byte("{}")}})
	if err != nil {
		t.Fatal(err)
	}
	return Event{Kind: EventBatch, Batch: b}
}

func logEvent(i int) Event { return Event{Kind: EventLog, Data: []byte(strconv.Itoa(i))} }

func mustPoll(t *testing.T, q *eventQueue) Event {
	t.Helper()
	ev, err := q.poll(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

func TestEventsComeInOrder(t *testing.T) {
	q := newEventQueue()
	for _, ev := range []Event{
		logEvent(1), {Kind: EventProgress, Data: []byte("a")}, {Kind: EventProgress, Data: []byte("b")}, logEvent(2),
		{Kind: EventProgress, Data: []byte("c")}, {Kind: EventStepEnd},
	} {
		q.push(ev)
	}
	if n, _ := q.pending(); n != 5 { // the first progress was replaced by the second
		t.Errorf("%d pending, want 5", n)
	}
	got := ""
	for range 5 {
		ev := mustPoll(t, q)
		got += strconv.Itoa(int(ev.Kind)) + string(ev.Data) + " "
	}
	if want := "51 6b 52 6c 2 "; got != want {
		t.Errorf("events = %q, want %q", got, want)
	}
}

func TestPollWaits(t *testing.T) {
	q := newEventQueue()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := q.poll(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("poll of nothing: %v", err)
	}
	polled := make(chan Event)
	go func() { ev, _ := q.poll(context.Background()); polled <- ev }()
	q.push(logEvent(7))
	if ev := <-polled; string(ev.Data) != "7" {
		t.Errorf("polled %+v", ev)
	}
}

func TestOldLogsGoFirstAndOnlyLogs(t *testing.T) {
	q := newEventQueue()
	q.push(Event{Kind: EventStepEnd})
	const extra = 10
	for i := range maxPendingLogs + extra {
		q.push(logEvent(i))
	}
	if n, lost := q.pending(); n != maxPendingLogs+1 || lost != extra {
		t.Errorf("%d pending, %d lost", n, lost)
	}
	if ev := mustPoll(t, q); ev.Kind != EventStepEnd {
		t.Errorf("first event %+v, want the step end", ev)
	}
	if ev := mustPoll(t, q); string(ev.Data) != strconv.Itoa(extra) {
		t.Errorf("first log %s, want %d", ev.Data, extra)
	}
	q.push(logEvent(0)) // there is room for one again
	if _, lost := q.pending(); lost != extra {
		t.Errorf("%d lost, want %d", lost, extra)
	}
}

func TestCloseFreesBatchesNobodyTook(t *testing.T) {
	q, a := newEventQueue(), &countingAllocator{}
	q.push(batchEvent(t, a))
	taken := mustPoll(t, q)
	q.push(batchEvent(t, a))
	q.close(ErrClosed)
	q.close(errors.New("a second cause"))
	q.push(batchEvent(t, a)) // one that was being built meanwhile
	if live, _ := a.counts(); live != 1 {
		t.Errorf("%d arenas live, want only the polled one", live)
	}
	if _, err := q.poll(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("poll: %v, want ErrClosed", err)
	}
	taken.Batch.Release()
	if live, _ := a.counts(); live != 0 {
		t.Errorf("%d arenas live", live)
	}
}

func TestReadyIsCalledForEachEvent(t *testing.T) {
	q := newEventQueue()
	q.push(logEvent(0))
	calls := 0
	q.setReady(func() { calls++ })
	if calls != 1 {
		t.Errorf("%d calls for what was pending, want 1", calls)
	}
	q.push(logEvent(1))
	q.close(ErrClosed)
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
}
