package admission

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at is a time so many seconds into a test.
func at(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

func newMachine(t *testing.T, change func(*Config)) *Machine {
	t.Helper()
	cfg := Defaults(50)
	cfg.Headroom = 1 // plain numbers
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// withWorkers returns a machine whose workers have 1000 tokens each, none of them used.
func withWorkers(t *testing.T, workers ...string) *Machine {
	t.Helper()
	m := newMachine(t, nil)
	report(m, 0, workers...)
	return m
}

func report(m *Machine, seconds float64, workers ...string) []Action {
	var out []Action
	for _, w := range workers {
		out = append(out, m.Reported(at(seconds), Report{Worker: w, MaxTokens: 1000})...)
	}
	return out
}

// spell writes actions shortly: "+a:capacity_available", "?b:capacity_exhausted".
func spell(actions []Action) string {
	var out []string
	for _, a := range actions {
		switch a := a.(type) {
		case Grant:
			out = append(out, fmt.Sprintf("+%s:%s", a.Ticket, a.Reason))
		case Hold:
			out = append(out, fmt.Sprintf("?%s:%s", a.Ticket, a.Reason))
		case Cancelled:
			out = append(out, "-"+a.Ticket)
		case Displaced:
			out = append(out, "~"+a.Ticket)
		case Warn:
			out = append(out, "!"+a.Worker)
		case Recovered:
			out = append(out, "ok:"+a.Worker)
		}
	}
	return strings.Join(out, " ")
}

func check(t *testing.T, what string, got []Action, want string) {
	t.Helper()
	if s := spell(got); s != want {
		t.Errorf("%s: %q, want %q", what, s, want)
	}
}

// ask asks for a fresh attempt with prompt tokens only; its Session has the ticket's name.
func ask(t *testing.T, m *Machine, seconds float64, ticket, worker string, tokens int) []Action {
	t.Helper()
	return askAs(t, m, seconds, Request{Ticket: ticket, Session: "s" + ticket, Worker: worker, PromptTokens: tokens})
}

func askAs(t *testing.T, m *Machine, seconds float64, r Request) []Action {
	t.Helper()
	actions, err := m.Ask(at(seconds), r)
	if err != nil {
		t.Fatalf("ask %s: %v", r.Ticket, err)
	}
	return actions
}

func land(m *Machine, seconds float64, ticket string) []Action {
	return m.Landed(at(seconds), ticket, 0)
}

func TestM1Reservation(t *testing.T) {
	cfg := Defaults(20)
	for _, c := range []struct{ prompt, remaining, want int }{
		{108, 50, 128}, // 100 + 8 generated, cap 20
		{108, 10, 118},
		{-5, 50, 20},
		{108, -3, 108},
		{0, 0, 0},
	} {
		if got := cfg.Reservation(c.prompt, c.remaining); got != c.want {
			t.Errorf("prompt %d, remaining %d: %d, want %d", c.prompt, c.remaining, got, c.want)
		}
	}
}

func TestM2SameTicketIsChargedOnce(t *testing.T) {
	m := withWorkers(t, "w")
	r := Request{Ticket: "a", Session: "s", Worker: "w", PromptTokens: 100, RemainingTokens: 500}
	for range 2 {
		check(t, "ask", askAs(t, m, 0, r), "+a:capacity_available")
	}
	s := m.Stats(at(0))
	if l := s.Ledgers[0]; l.Reserved != 150 || l.Leases != 1 || s.Leases != 1 {
		t.Errorf("%+v, want one reservation of 150", s)
	}
	if got := m.Metrics()["agentic_kv/admission/admit"]; got != 1 {
		t.Errorf("admit counted %v times", got)
	}
}

func TestM3ReleaseIsHarmlessTwice(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 600)
	ask(t, m, 0, "b", "w", 300)
	for range 2 {
		check(t, "land", land(m, 1, "a"), "")
	}
	if l := m.Stats(at(1)).Ledgers[0]; l.Reserved != 300 || l.Leases != 1 {
		t.Errorf("%+v, want only the reservation of b", l)
	}
}

func TestM4BudgetFullWaitsAndM6OldestFirst(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 700)
	check(t, "too large", ask(t, m, 1, "b", "w", 400), "?b:capacity_exhausted")
	check(t, "M6: small but later", ask(t, m, 2, "c", "w", 10), "?c:queued_behind")
	check(t, "one landing lets both", land(m, 3, "a"), "+b:capacity_available +c:capacity_available")
}

func TestHeadroom(t *testing.T) {
	m := newMachine(t, func(c *Config) { c.Headroom = 0.9 })
	report(m, 0, "w")
	ask(t, m, 0, "a", "w", 800)
	check(t, "up to the ceiling", ask(t, m, 0, "b", "w", 100), "+b:capacity_available")
	check(t, "above", ask(t, m, 0, "c", "w", 1), "?c:capacity_exhausted")
}

func TestM5Pressure(t *testing.T) {
	m := newMachine(t, nil)
	m.Reported(at(0), Report{Worker: "w", UsedTokens: 919, MaxTokens: 1000})
	check(t, "below", ask(t, m, 0, "a", "w", 10), "+a:capacity_available")
	m.Reported(at(1), Report{Worker: "w", UsedTokens: 100, MaxTokens: 1000, Usage: 0.92})
	check(t, "at the threshold", ask(t, m, 1, "b", "w", 10), "?b:pressure_guard")
	check(t, "relief", m.Reported(at(2), Report{Worker: "w", UsedTokens: 100, MaxTokens: 1000}), "+b:capacity_available")
}

func TestM7AgedPassesAndIsCharged(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 1, "b", "w", 200)
	report(m, 5, "w")
	report(m, 10, "w")
	report(m, 15, "w")
	report(m, 20, "w")
	report(m, 25, "w")
	check(t, "not yet", m.Tick(at(30.9)), "")
	if got := m.Deadline(); !got.Equal(at(31)) {
		t.Errorf("deadline %v, want asked + 30 s", got.Sub(t0))
	}
	check(t, "aged", m.Tick(m.Deadline()), "+b:aged")
	if l := m.Stats(at(31)).Ledgers[0]; l.Reserved != 1100 {
		t.Errorf("reserved %d: an aged ticket is charged as well", l.Reserved)
	}
}

func TestMaxWaitZeroHoldsNothing(t *testing.T) {
	m := newMachine(t, func(c *Config) { c.MaxWait = 0 })
	report(m, 0, "w")
	ask(t, m, 0, "a", "w", 900)
	check(t, "full", ask(t, m, 0, "b", "w", 200), "+b:aged")
}

func TestM9UnusedLeaseExpiresAndUsedDoesNot(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "used", "w", 300)
	ask(t, m, 1, "unused", "w", 400)
	m.Started(at(2), "used", "")
	report(m, 599, "w")
	check(t, "before", m.Tick(at(600.5)), "")
	after := m.Tick(at(601))
	check(t, "after 600 s", after, "!w")
	if text := after[0].(Warn).Text; strings.Contains(text, "unused") {
		t.Errorf("%q has the ticket, and with it the Session's credential", text)
	}
	if l := m.Stats(at(601)).Ledgers[0]; l.Reserved != 300 {
		t.Errorf("reserved %d, want that of the attempt at the backend", l.Reserved)
	}
	if got := m.Metrics()["agentic_kv/budget/lease_expired"]; got != 1 {
		t.Errorf("lease_expired %v", got)
	}
	m.Started(at(650), "unused", "w")
	if l := m.Stats(at(650)).Ledgers[0]; l.Reserved != 700 {
		t.Errorf("reserved %d: it started after all and is charged again", l.Reserved)
	}
	check(t, "its end", land(m, 700, "unused"), "")
}

func TestM10RetryWithOtherReservation(t *testing.T) {
	m := withWorkers(t, "w", "v")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 0, "b", "w", 200)
	check(t, "the same", ask(t, m, 1, "b", "w", 200), "?b:capacity_exhausted")
	for _, r := range []Request{
		{Ticket: "b", Session: "sb", Worker: "w", PromptTokens: 201},
		{Ticket: "b", Session: "sb", Worker: "v", PromptTokens: 200},
		{Session: "sb", Worker: "w"},
	} {
		if _, err := m.Ask(at(1), r); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
	if got := m.Metrics()["agentic_kv/admission/wait"]; got != 1 {
		t.Errorf("wait counted %v times", got)
	}
}

func TestM13CancelInAnyOrder(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 1, "b", "w", 200)
	ask(t, m, 2, "c", "w", 100)
	waited, actions := m.Withdraw(at(5), "b")
	if waited != 4*time.Second {
		t.Errorf("b waited %v", waited)
	}
	check(t, "a waiter goes, the next one fits", actions, "+c:capacity_available")
	_, actions = m.Withdraw(at(6), "a")
	check(t, "a granted one", actions, "")
	_, actions = m.Withdraw(at(6), "z")
	check(t, "before it asks", actions, "")
	check(t, "then it asks", ask(t, m, 6, "z", "w", 10), "+z:capacity_available")
	land(m, 7, "z")
	land(m, 7, "c")
	if s := m.Stats(at(6)); s.Leases != 0 || s.Waiting != 0 || s.Ledgers[0].Reserved != 0 || len(m.bySession) != 0 {
		t.Errorf("%+v, want nothing left", s)
	}
	if got := m.Metrics()["agentic_kv/admission/cancelled"]; got != 1 {
		t.Errorf("cancelled %v", got)
	}
}

func TestSessionOverEndsItsTickets(t *testing.T) {
	m := withWorkers(t, "w")
	for i, id := range []string{"a", "b", "c", "d"} {
		askAs(t, m, float64(i), Request{Ticket: id, Session: "s" + string("xxyx"[i]), Worker: "w", PromptTokens: 600})
	}
	check(t, "over", m.SessionOver(at(5), "sx"), "-d -b +c:capacity_available")
	check(t, "again", m.SessionOver(at(6), "sx"), "")
	if s := m.Stats(at(6)); s.Leases != 1 || s.Waiting != 0 || s.Ledgers[0].Reserved != 600 {
		t.Errorf("%+v", s)
	}
}

func TestM14Scope(t *testing.T) {
	for scope, want := range map[Scope]string{ScopeTrain: "+e:out_of_scope", ScopeAll: "?e:capacity_exhausted"} {
		m := newMachine(t, func(c *Config) { c.Scope = scope })
		report(m, 0, "w")
		ask(t, m, 0, "a", "w", 900)
		check(t, string(scope), askAs(t, m, 0, Request{Ticket: "e", Session: "s", Worker: "w", PromptTokens: 500, Eval: true}), want)
		if got := m.Metrics()["agentic_kv/admission/bypass"]; got != 0 {
			t.Errorf("%s: an Eval request that does not take part is counted as a bypass", scope)
		}
	}
}

func TestM15Defaults(t *testing.T) {
	want := Config{
		Headroom: 0.9, PressureThreshold: 0.92, ExpectedDecodeCap: 77, MaxWait: 30 * time.Second, Scope: "train",
		StaleAfter: 6 * time.Second, LeaseTTL: 600 * time.Second,
	}
	if got := Defaults(77); got != want {
		t.Errorf("%+v", got)
	}
	if err := Defaults(77).Validate(); err != nil {
		t.Error(err)
	}
}

func TestM19Options(t *testing.T) {
	for option, spoil := range map[string][]func(*Config){
		"agentic_admission_headroom": {
			func(c *Config) { c.Headroom = 0 }, func(c *Config) { c.Headroom = 1.01 }, func(c *Config) { c.Headroom = math.NaN() },
		},
		"agentic_admission_pressure_threshold": {
			func(c *Config) { c.PressureThreshold = 0 }, func(c *Config) { c.PressureThreshold = 2 },
		},
		"agentic_admission_expected_decode_cap": {func(c *Config) { c.ExpectedDecodeCap = 0 }},
		"agentic_admission_max_wait_s":          {func(c *Config) { c.MaxWait = -1 }},
		"agentic_admission_scope":               {func(c *Config) { c.Scope = "eval" }},
		"stale":                                 {func(c *Config) { c.StaleAfter = 0 }},
		"unused reservation":                    {func(c *Config) { c.LeaseTTL = 0 }},
	} {
		for _, change := range spoil {
			cfg := Defaults(1)
			change(&cfg)
			if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
				t.Errorf("%+v: %v, want an error that names %s", cfg, err, option)
			}
		}
	}
	good := Defaults(1)
	good.Headroom, good.PressureThreshold, good.MaxWait = 1, 1, 0
	if err := good.Validate(); err != nil {
		t.Errorf("the bounds themselves: %v", err)
	}
}

func TestWithdrawnTicketsKeepTheirAgeOverSteps(t *testing.T) {
	m := withWorkers(t, "w")
	ask(t, m, 0, "a", "w", 900)
	ask(t, m, 1, "b", "w", 300)
	waited, _ := m.Withdraw(at(5), "b") // the gate closes
	report(m, 100, "w")
	check(t, "younger", ask(t, m, 100, "c", "w", 300), "?c:capacity_exhausted")
	r := Request{Ticket: "b2", Session: "sb", Worker: "w", PromptTokens: 300, Kind: Resumed, Waited: waited}
	check(t, "asked again, before c", askAs(t, m, 101, r), "?b2:capacity_exhausted")
	for s := 104.0; s < 127; s += 4 {
		report(m, s, "w")
	}
	check(t, "30 s in all", m.Tick(at(127)), "+b2:aged")
	check(t, "c has 3 s to go", m.Tick(at(129.9)), "")
}
