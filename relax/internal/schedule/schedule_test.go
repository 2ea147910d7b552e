package schedule

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func testConfig() Config {
	return Config{
		BatchSize: 2, GroupSize: 2, Capacity: 2, MaxConsecutiveDropped: 3,
		FirstRequestTimeout: time.Minute, AgentTimeout: time.Hour,
	}
}

func spell(actions []Action) string {
	var out []string
	for _, a := range actions {
		name := strings.TrimPrefix(reflect.TypeOf(a).String(), "schedule.")
		switch a := a.(type) {
		case NeedTasks:
			name += fmt.Sprint(a.Count)
		case Drop:
			name += fmt.Sprintf("%d:%s", a.Group, a.Reason)
		case EndStep:
			name += fmt.Sprintf(" debt=%d failed=%t", a.Debt, a.Failure != "")
		case Quiet:
		case Deliver:
			name += fmt.Sprintf("%d", a.Group)
			if a.Partition != 0 {
				name += fmt.Sprintf("→%d", a.Partition)
			}
		case StartEval:
			name += fmt.Sprintf("%d:%d.%d.%d×%d", a.Group, a.Dataset, a.Prompt, a.First, a.Sessions)
		case EndDataset:
			name += fmt.Sprintf("%d +%d -%d", a.Dataset, a.Delivered, a.Dropped)
		case EndPartition:
			name += fmt.Sprintf("%d groups=%d debt=%d", a.Partition, a.Groups, a.Debt)
		case StartSession:
			name += fmt.Sprintf("%d/%d try %d", a.Ref.Group, a.Ref.Seq, a.Try)
		case KillSession:
			name += fmt.Sprintf("%d/%d:%s", a.Ref.Group, a.Ref.Seq, a.Reason)
		default:
			name += fmt.Sprint(reflect.ValueOf(a).Field(0))
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func check(t *testing.T, what string, got []Action, want string) {
	t.Helper()
	if s := spell(got); s != want {
		t.Errorf("%s: actions = %q, want %q", what, s, want)
	}
}

func open(t *testing.T, m *Machine, rollout int64) []Action {
	t.Helper()
	actions, err := m.Open(t0, rollout)
	if err != nil {
		t.Fatal(err)
	}
	return actions
}

// SessionRequested is a first request that never comes to wait: tests of the barrier need no more.
func (m *Machine) SessionRequested(now time.Time, ref SessionRef) []Action {
	if g := m.live(ref); g != nil {
		m.requested(g, ref.Seq)
	}
	return m.settle(now)
}

func ref(g, s int) SessionRef { return SessionRef{GroupID(g), s} }

func TestStepDeliversItsGroups(t *testing.T) {
	m := New(testConfig())
	check(t, "tasks before a step", m.QueueTasks(t0, 2), "")
	check(t, "open", open(t, m, 0), "StartGroup1 StartGroup2")
	check(t, "half a group", m.SessionRequested(t0, ref(1, 0)), "")
	check(t, "the barrier", m.SessionRequested(t0, ref(1, 1)), "Lease1")
	check(t, "a second request changes nothing", m.SessionRequested(t0, ref(1, 1)), "")
	check(t, "one session done", m.SessionExported(t0, ref(1, 0)), "")
	check(t, "both done", m.SessionExported(t0, ref(1, 1)), "Score1")
	check(t, "scored", m.GroupScored(t0, 1), "Deliver1 Forget1")
	m.SessionRequested(t0, ref(2, 0))
	m.SessionRequested(t0, ref(2, 1))
	m.SessionExported(t0, ref(2, 0))
	m.SessionExported(t0, ref(2, 1))
	check(t, "the last one", m.GroupScored(t0, 2), "Deliver2 Forget2 EndStep debt=0 failed=false")
	if _, err := m.Open(t0, 1); err != nil {
		t.Errorf("the next step does not open: %v", err)
	}
	if _, err := m.Open(t0, 2); err == nil {
		t.Error("a step opened while one was open")
	}
}

func TestDroppedGroupIsRefilled(t *testing.T) {
	m := New(testConfig())
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	check(t, "an agent dies", m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 1"), "Drop1:agent_exit NeedTasks1")
	check(t, "the task arrives while a session is still there", m.QueueTasks(t0, 1), "")
	check(t, "the other session is gone", m.SessionFailed(t0, ref(1, 1), "agent_exit", "killed"), "Forget1 StartGroup3")
}

func TestFirstRequestTimeout(t *testing.T) {
	m := New(testConfig())
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	m.SessionRequested(t0, ref(1, 0))
	if want := t0.Add(time.Minute); !m.Deadline().Equal(want) {
		t.Errorf("deadline = %v, want %v", m.Deadline(), want)
	}
	check(t, "just before", m.Tick(t0.Add(time.Minute-1)), "")
	check(t, "at the deadline", m.Tick(t0.Add(time.Minute)),
		"Drop1:first_request_timeout Drop2:first_request_timeout NeedTasks2")
}

func TestAgentTimeoutStopsWhilePaused(t *testing.T) {
	m := New(testConfig())
	m.QueueTasks(t0, 1)
	open(t, m, 0)
	m.SessionRequested(t0, ref(1, 0))
	m.SessionRequested(t0, ref(1, 1))
	m.Pause(t0.Add(30 * time.Minute))
	if !m.Deadline().IsZero() {
		t.Errorf("a deadline runs while paused: %v", m.Deadline())
	}
	check(t, "paused for long", m.Tick(t0.Add(50*time.Hour)), "")
	m.Resume(t0.Add(100 * time.Hour))
	if want := t0.Add(100*time.Hour + 30*time.Minute); !m.Deadline().Equal(want) {
		t.Errorf("deadline = %v, want %v", m.Deadline(), want)
	}
	check(t, "budget used up", m.Tick(m.Deadline()), "Drop1:agent_timeout")
}

func TestFailureBudgetEndsTheStep(t *testing.T) {
	cfg := testConfig()
	cfg.GroupSize, cfg.Capacity = 1, 1
	m := New(cfg)
	m.QueueTasks(t0, 9)
	open(t, m, 0)
	m.SessionFailed(t0, ref(1, 0), "agent_exit", "exit 7")
	m.SessionFailed(t0, ref(2, 0), "export", "nothing committed")
	actions := m.SessionFailed(t0, ref(3, 0), "agent_exit", "exit 8")
	check(t, "the third in a row", actions, "Drop3:agent_exit Forget3 EndStep debt=2 failed=true")
	end := actions[len(actions)-1].(EndStep)
	if !strings.Contains(end.Failure, "exit 7") || !strings.Contains(end.Failure, "max_consecutive_dropped_groups") {
		t.Errorf("failure = %q: want the first cause and the option", end.Failure)
	}
}

func TestTasksRunOut(t *testing.T) {
	m := New(testConfig())
	check(t, "no tasks", open(t, m, 0), "NeedTasks2")
	check(t, "one comes", m.QueueTasks(t0, 1), "StartGroup1 NeedTasks1")
	check(t, "no more will", m.LastTasks(t0, 0), "")
	m.SessionRequested(t0, ref(1, 0))
	m.SessionRequested(t0, ref(1, 1))
	m.SessionExported(t0, ref(1, 0))
	m.SessionExported(t0, ref(1, 1))
	check(t, "short step", m.GroupScored(t0, 1), "Deliver1 Forget1 EndStep debt=1 failed=false")
}

func TestLateSessionsAreNamed(t *testing.T) {
	m := New(testConfig())
	m.QueueTasks(t0, 2)
	open(t, m, 0)
	m.SessionRequested(t0, ref(1, 0))
	late := func(actions []Action) int {
		for _, a := range actions {
			if d, ok := a.(Drop); ok {
				return d.Late
			}
		}
		t.Fatalf("no drop in %v", actions)
		return 0
	}
	if got := late(m.SessionFailed(t0, ref(2, 0), "test", "")); got != -1 {
		t.Errorf("a failure names session %d, want -1", got)
	}
	if got := late(m.Tick(t0.Add(time.Minute))); got != 1 {
		t.Errorf("a deadline names session %d, want 1", got)
	}
}

func TestLeaseInAPauseHasItsWholeBudget(t *testing.T) {
	cfg := testConfig()
	cfg.BatchSize, cfg.GroupSize = 1, 1
	m := New(cfg)
	m.QueueTasks(t0, 1)
	open(t, m, 0)
	m.Pause(t0)
	check(t, "request", m.SessionRequested(t0, ref(1, 0)), "Lease1")
	if !m.Deadline().IsZero() {
		t.Errorf("deadline %v in a pause", m.Deadline())
	}
	m.Resume(t0.Add(time.Minute))
	if want := t0.Add(time.Minute + cfg.AgentTimeout); !m.Deadline().Equal(want) {
		t.Errorf("deadline %v, want %v", m.Deadline(), want)
	}
}
