package admission

import (
	"errors"
	"strings"
	"testing"
)

func TestM8ProtectedAndStale(t *testing.T) {
	m := withWorkers(t, "w", "well")
	ask(t, m, 0, "a", "w", 900)
	check(t, "protected", askAs(t, m, 0, Request{Ticket: "p", Session: "s", Worker: "w", PromptTokens: 500, Kind: Protected}), "+p:protected")
	ask(t, m, 1, "b", "w", 500)
	r := Request{Ticket: "b", Session: "sb", Worker: "w", PromptTokens: 500, Kind: Protected}
	check(t, "became protected", askAs(t, m, 2, r), "+b:protected")
	check(t, "held", ask(t, m, 3, "c", "w", 500), "?c:capacity_exhausted")
	report(m, 4, "well")
	check(t, "6 s old counts", m.Tick(at(6)), "")
	if got := m.Deadline(); !got.Equal(at(6).Add(1)) {
		t.Errorf("deadline %v, want when the report is too old", got.Sub(t0))
	}
	check(t, "stale", m.Tick(m.Deadline()), "!w +c:degraded")
	check(t, "only that worker", ask(t, m, 7, "d", "well", 2000), "+d:capacity_available")
	check(t, "only that worker", ask(t, m, 7, "e", "well", 1), "?e:capacity_exhausted")
	check(t, "warned once", ask(t, m, 7, "f", "w", 1), "+f:degraded")
	check(t, "recovered", report(m, 8, "w"), "ok:w")
	if l := m.Stats(at(8)).Ledgers[0]; l.Reserved != 900+500+500+500+1 {
		t.Errorf("reserved %d: bypasses are charged", l.Reserved)
	}
}

func TestDegradedCauses(t *testing.T) {
	m := newMachine(t, nil)
	check(t, "never reported", ask(t, m, 0, "a", "new", 10), "!new +a:degraded")
	m.Reported(at(0), Report{Worker: "mute"})
	check(t, "one failure changes nothing", append(report(m, 0, "w"), m.ReportFailed(at(1), "w", errors.New("timeout"))...), "")
	report(m, 1, "old")
	m.ReportFailed(at(2), "old", errors.New("timeout"))
	report(m, 2, "old") // so the failure is no cause any more
	for worker, want := range map[string]string{
		"new": "not reported", "mute": "max_total_num_tokens 0", "w": "timeout", "old": "too old",
	} {
		got := ""
		for _, l := range m.Stats(at(9)).Ledgers {
			if l.Worker == worker {
				got = l.Uncontrolled
			}
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s is uncontrolled because %q, want %q", worker, got, want)
		}
	}
}

func TestM11OldEpoch(t *testing.T) {
	m := withWorkers(t, "w")
	g := ask(t, m, 0, "a", "w", 900)[0].(Grant)
	if g.OwnerEpoch != 1 || g.Ticket != "a" {
		t.Errorf("%+v", *g.Decision)
	}
	m.WorkerGone(at(1), "w")
	report(m, 2, "w")
	g = ask(t, m, 2, "b", "w", 900)[0].(Grant)
	if g.OwnerEpoch != 3 || g.Reason != ReasonCapacity {
		t.Errorf("%+v, want a new epoch and an empty ledger", *g.Decision)
	}
	check(t, "the old one ends", land(m, 3, "a"), "")
	if l := m.Stats(at(3)).Ledgers[0]; l.Reserved != 900 || l.Leases != 1 {
		t.Errorf("%+v: an end from an earlier epoch took something", l)
	}
}

func TestWorkerGoneDisplacesAndKeepsAge(t *testing.T) {
	m := withWorkers(t, "w", "v")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 1, "b", "w", 200)
	ask(t, m, 2, "c", "w", 200)
	ask(t, m, 3, "d", "v", 900)
	ask(t, m, 4, "e", "v", 150)
	check(t, "gone", m.Listed(at(5), []string{"v"}), "~b ~c")
	check(t, "asks for it too late", ask(t, m, 5, "f", "w", 10), "?f:worker_gone ~f")
	check(t, "behind nobody: b is older than e", m.Move(at(5), "b", "v"), "?b:capacity_exhausted")
	check(t, "moved already", m.Move(at(5), "b", "v"), "")
	report(m, 5, "v")
	if got := m.Stats(at(5)).Ledgers; len(got) != 2 || got[0].Uncontrolled != "it is gone" {
		t.Errorf("%+v", got)
	}
	check(t, "the worker is back before c was moved", report(m, 6, "w"), "+c:capacity_available +f:capacity_available")
	check(t, "oldest first at v", land(m, 7, "d"), "+b:capacity_available +e:capacity_available")
	land(m, 8, "a") // of the former life
	if l := m.Stats(at(8)).Ledgers[0]; l.Reserved != 210 || l.Leases != 2 {
		t.Errorf("%+v, want c and f", l)
	}
}

func TestGoneWorkersTicketsAgeAndTheLedgerIsForgotten(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 1, "b", "w", 200)
	check(t, "gone", m.WorkerGone(at(2), "w"), "~b")
	check(t, "known already", m.WorkerGone(at(2), "w"), "")
	check(t, "aged", m.Tick(m.Deadline()), "+b:aged")
	check(t, "sent elsewhere", m.Started(at(32), "b", "v"), "")
	s := m.Stats(at(32))
	if len(s.Ledgers) != 1 || s.Ledgers[0].Worker != "v" || s.Ledgers[0].Reserved != 200 {
		t.Errorf("%+v, want the reservation at v and no ledger of w", s)
	}
}

func TestStartedElsewhereMovesTheReservation(t *testing.T) {
	m := withWorkers(t, "w", "v")
	g := ask(t, m, 0, "a", "w", 900)[0].(Grant)
	ask(t, m, 0, "b", "w", 900)
	check(t, "started at v", m.Started(at(1), "a", "v"), "+b:capacity_available")
	check(t, "waits for v", ask(t, m, 1, "c", "v", 200), "?c:capacity_exhausted")
	check(t, "a held ticket has not started", m.Started(at(1), "c", "w"), "")
	if g.Worker != "w" {
		t.Errorf("a decision that was given away changed to %q", g.Worker)
	}
	check(t, "landed", land(m, 2, "a"), "+c:capacity_available")
}

func TestForeignUseCounts(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 300)
	m.Reported(at(1), Report{Worker: "w", UsedTokens: 700, MaxTokens: 1000}) // 400 are not ours
	check(t, "beside it", ask(t, m, 1, "b", "w", 301), "?b:capacity_exhausted")
	check(t, "what landed just now is not foreign",
		append(land(m, 2, "a"), m.Reported(at(2), Report{Worker: "w", UsedTokens: 600, MaxTokens: 1000})...), "+b:capacity_available")
	if l := m.Stats(at(2)).Ledgers[0]; l.Foreign != 0 {
		t.Errorf("foreign %d: 600 used, 301 reserved, 300 landed since the last report", l.Foreign)
	}
	m.Reported(at(3), Report{Worker: "w", UsedTokens: 600, MaxTokens: 1000})
	if l := m.Stats(at(3)).Ledgers[0]; l.Foreign != 299 {
		t.Errorf("foreign %d: 600 used, 301 reserved, nothing landed", l.Foreign)
	}
}

func TestIdleWorkerTakesAnyRequest(t *testing.T) {
	m := withWorkers(t, "w")
	check(t, "oversize", ask(t, m, 0, "big", "w", 5000), "+big:capacity_available")
	check(t, "beside it", ask(t, m, 0, "a", "w", 1), "?a:capacity_exhausted")
	check(t, "oversize again", ask(t, m, 0, "big2", "w", 5000), "?big2:queued_behind")
	check(t, "landed", land(m, 1, "big"), "+a:capacity_available")
	check(t, "the next one waits for an empty worker only", land(m, 2, "a"), "+big2:capacity_available")
}

func TestWorkersDoNotHoldUpEachOther(t *testing.T) {
	m := withWorkers(t, "full", "free")
	ask(t, m, 0, "a", "full", 900)
	check(t, "full", ask(t, m, 0, "b", "full", 200), "?b:capacity_exhausted")
	check(t, "free", ask(t, m, 0, "c", "free", 900), "+c:capacity_available")
}
