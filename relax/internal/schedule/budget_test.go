package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestDeathsInPrepareBackOff(t *testing.T) {
	cfg := solo(1, 1)
	cfg.MaxConsecutiveDropped, cfg.Backoff, cfg.BackoffMax = 100, time.Second, 5*time.Second
	m := New(cfg)
	m.QueueTasks(t0, 99)
	open(t, m, 0)
	now := t0
	for id, wait := range []time.Duration{0, 0, 0, 1, 2, 4, 5, 5} {
		if id == 0 {
			continue
		}
		actions := m.SessionFailed(now, ref(id, 0), "start_failed", "no such file")
		if started := strings.Contains(spell(actions), "StartGroup"); started != (wait == 0) {
			t.Fatalf("death %d: %s", id, spell(actions))
		}
		if wait == 0 {
			continue
		}
		if want := now.Add(wait * time.Second); !m.Deadline().Equal(want) {
			t.Fatalf("death %d: deadline %v, want %v", id, m.Deadline(), want)
		}
		check(t, "too early", m.Tick(m.Deadline().Add(-1)), "")
		now = m.Deadline()
		if got := spell(m.Tick(now)); !strings.HasPrefix(got, "StartGroup") {
			t.Fatalf("death %d: %q after the wait", id, got)
		}
	}
	m.SessionRequested(now, ref(8, 0))
	check(t, "a barrier ends it", m.SessionFailed(now, ref(8, 0), "agent_exit", "exit 1"), "Drop8:agent_exit Forget8 StartGroup9")
	check(t, "and the next one counts anew", m.SessionFailed(now, ref(9, 0), "agent_exit", "exit 1"), "Drop9:agent_exit Forget9 StartGroup10")
}

func TestFilteredGroupsAreNoFailures(t *testing.T) {
	cfg := solo(1, 1)
	cfg.MaxConsecutiveDropped = 2
	m := New(cfg)
	m.QueueTasks(t0, 9)
	open(t, m, 0)
	m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1")
	for id := 2; id <= 4; id++ {
		arrive(m, id, RequestID(id))
		m.SessionExported(t0, ref(id, 0))
		check(t, "filtered", m.GroupFiltered(t0, GroupID(id), "zero_std_0.0", "all rewards are equal"),
			fmt.Sprintf("Drop%d:zero_std_0.0 Forget%d StartGroup%d", id, id, id+1))
	}
	if m.books.Filtered != 3 || m.books.Dropped["zero_std_0.0"] != 3 {
		t.Errorf("books %+v", m.books)
	}
	check(t, "the budget began anew", m.SessionFailed(t0, ref(5, 0), "agent_exit", "exit 1"), "Drop5:agent_exit Forget5 StartGroup6")
}

func TestRerunBeforeTheLease(t *testing.T) {
	cfg := testConfig()
	cfg.BatchSize, cfg.AgentRetries = 1, 1
	m := New(cfg)
	m.QueueTasks(t0, 1)
	open(t, m, 0)
	m.SessionRequested(t0, ref(1, 0))
	check(t, "it dies", m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1"), "StartSession1/0 try 1")
	check(t, "the barrier waits for it", m.SessionRequested(t0, ref(1, 1)), "")
	check(t, "until it asks again", m.SessionRequested(t0, ref(1, 0)), "Lease1")
	check(t, "behind the lease", m.SessionFailed(t0, ref(1, 1), "agent_exit", "exit 1"), "StartSession1/1 try 1")
	check(t, "its requests pass at once", m.RequestArrived(t0, ref(1, 1), 7, 0), "Pass7")
	check(t, "once only", m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1"), "Drop1:agent_exit NeedTasks1")
	if m.books.Retries != 2 || m.books.Sessions.Started != 2 {
		t.Errorf("books %+v", m.books)
	}
}

func TestRerunOfReadyGroup(t *testing.T) {
	cfg := solo(1, 1)
	cfg.Capacity, cfg.Prelaunch, cfg.AgentRetries = 2, true, 1
	m := New(cfg)
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	arrive(m, 1, 11)
	arrive(m, 2, 12) // waits for its lease
	left := m.SessionExported(t0, ref(2, 0))
	check(t, "an agent leaves while it waits", left, "StartSession2/0 try 1")
	if again := left[0].(StartSession); again.Reason != ReasonEarlyExit || !strings.Contains(again.Cause, "before its Group had a lease") {
		t.Errorf("it is run again because of %q: %q", again.Reason, again.Cause)
	}
	check(t, "the lease waits for the new one", finished(m, 1)[:1], "Score1")
	open(t, m, 1)
	check(t, "until it asks", arrive(m, 2, 22), "Lease2 Pass22")
}

func TestTimersDoNotPileUp(t *testing.T) {
	m := New(solo(1, 1))
	m.QueueTasks(t0, 1)
	open(t, m, 0)
	arrive(m, 1, 11)
	now := t0
	for range 1000 {
		now = now.Add(time.Millisecond)
		m.Pause(now)
		m.Resume(now)
	}
	if n := len(m.timers); n > 2*fewTimers+2 {
		t.Errorf("%d timers of one session", n)
	}
	if want := now.Add(m.cfg.AgentTimeout); m.Deadline().Before(t0.Add(m.cfg.AgentTimeout)) || m.Deadline().After(want) {
		t.Errorf("the next deadline is %s, want one of the session", m.Deadline())
	}
}

func TestLateSessionIsRunAgain(t *testing.T) {
	cfg := solo(1, 1)
	cfg.AgentRetries = 1
	m := New(cfg)
	m.QueueTasks(t0, 1)
	open(t, m, 0)
	late := t0.Add(time.Minute)
	check(t, "the barrier's timeout", m.Tick(late), "KillSession1/0:first_request_timeout")
	check(t, "it asks too late", m.SessionRequested(late, ref(1, 0)), "")
	check(t, "it is gone", m.SessionFailed(late, ref(1, 0), "agent_exit", "killed"), "StartSession1/0 try 1")
	m.SessionRequested(late, ref(1, 0))
	check(t, "the second time is the last", m.Tick(late.Add(time.Hour)), "Drop1:agent_timeout NeedTasks1")
}

func TestLeavingBeforeTheLeaseDropsTheGroup(t *testing.T) {
	m := New(testConfig())
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	m.SessionRequested(t0, ref(1, 0))
	check(t, "exit 0", m.SessionExported(t0, ref(1, 0)), "Drop1:left_before_lease NeedTasks1")
}

// BenchmarkRequest is one request and its answer beside so many Sessions with one at the backend.
func BenchmarkRequest(b *testing.B) {
	for _, sessions := range []int{100, 10000} {
		b.Run(fmt.Sprint(sessions), func(b *testing.B) {
			cfg := solo(sessions, sessions)
			m := New(cfg)
			m.QueueTasks(t0, sessions)
			if _, err := m.Open(t0, 0); err != nil {
				b.Fatal(err)
			}
			for g := 1; g <= sessions; g++ {
				arrive(m, g, RequestID(g))
			}
			id := RequestID(sessions)
			b.ReportAllocs()
			for i := range b.N {
				g := i%sessions + 1
				id++
				m.RequestArrived(t0, ref(g, 0), id, 0)
				m.RequestReturned(t0, id, Answered)
				m.Deadline()
			}
		})
	}
}
