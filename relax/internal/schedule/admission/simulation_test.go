package admission

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world plays the owner: attempts that ask, start, land and are given up, workers that report,
// fall silent, die and come back, gates that close. After every event it checks the rules no
// order of events may break.
type world struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	cfg  Config
	m    *Machine
	now  time.Time
	next int

	alive                            map[string]bool // workers
	tickets                          map[string]*simTicket
	asks, grants, admits, held, ends int
}

type simTicket struct {
	r       Request
	asked   time.Time
	granted *Decision
	started bool
}

var simWorkers = []string{"w0", "w1", "w2"}

func TestSimulation(t *testing.T) {
	admits, held := 0, 0
	for seed := uint64(1); seed <= 250; seed++ {
		rng := rand.New(rand.NewPCG(seed, 7))
		cfg := Defaults(1 + rng.IntN(200))
		cfg.Headroom = 0.2 + 0.8*rng.Float64()
		cfg.MaxWait = time.Duration(rng.IntN(40)) * time.Second
		cfg.LeaseTTL = time.Duration(20+rng.IntN(600)) * time.Second
		if rng.IntN(2) == 0 {
			cfg.Scope = ScopeAll
		}
		m, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{
			t: t, seed: seed, rng: rng, cfg: cfg, m: m, now: t0,
			alive: map[string]bool{}, tickets: map[string]*simTicket{},
		}
		w.run(600)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		admits += w.admits
		held += w.held
	}
	if admits == 0 || held == 0 {
		t.Errorf("%d tickets admitted, %d held: the worlds are not worth much", admits, held)
	}
}

func (w *world) run(events int) {
	for range events {
		w.now = w.now.Add(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
		w.tick()
		w.event()
		w.check()
		if w.t.Failed() {
			return
		}
	}
	w.finish()
}

// tick plays the owner's timer: it is never later than the deadline.
func (w *world) tick() {
	end := w.now
	for {
		at := w.m.Deadline()
		if at.IsZero() || at.After(end) {
			w.now = end
			return
		}
		if at.After(w.now) || w.now.Equal(end) {
			w.now = at
		}
		w.apply(w.m.Tick(at))
		if later := w.m.Deadline(); later.Equal(at) {
			w.t.Fatalf("seed %d: the deadline %v is still there after its tick", w.seed, at.Sub(t0))
		}
	}
}

func (w *world) event() {
	switch w.rng.IntN(16) {
	case 0, 1, 2, 3, 4:
		w.ask()
	case 5, 6:
		w.start()
	case 7, 8, 9:
		w.land()
	case 10:
		w.withdraw()
	case 11, 12, 13:
		w.report()
	case 14:
		w.workerEvent()
	case 15:
		w.rareEvent()
	}
}

func (w *world) ask() {
	w.next++
	r := Request{
		Ticket: fmt.Sprint("t", w.next), Session: fmt.Sprint("s", w.rng.IntN(8)), Worker: w.worker(),
		PromptTokens: w.rng.IntN(400), RemainingTokens: w.rng.IntN(300), Eval: w.rng.IntN(8) == 0,
		Kind: Kind(w.rng.IntN(12) / 5), Waited: time.Duration(w.rng.IntN(3)*w.rng.IntN(10)) * time.Second,
	}
	w.asks++
	w.tickets[r.Ticket] = &simTicket{r: r, asked: w.now.Add(-r.Waited)}
	actions, err := w.m.Ask(w.now, r)
	if err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	w.apply(actions)
	again, err := w.m.Ask(w.now, w.tickets[r.Ticket].r) // idempotent: nothing changes, and who holds a grant gets it again
	if err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	if g, ok := again[0].(Grant); ok != (w.tickets[r.Ticket].granted != nil) || (ok && g.Decision != w.tickets[r.Ticket].granted) {
		w.t.Errorf("seed %d: %s asked twice: %v", w.seed, r.Ticket, again)
	}
}

func (w *world) worker() string { return simWorkers[w.rng.IntN(len(simWorkers))] }

// some returns a random ticket that is in the wanted state, "" if there is none.
func (w *world) some(want func(*simTicket) bool) string {
	var ids []string
	for id, t := range w.tickets {
		if want(t) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	return ids[w.rng.IntN(len(ids))]
}

func (w *world) start() {
	id := w.some(func(t *simTicket) bool { return t.granted != nil && !t.started })
	if id == "" {
		return
	}
	w.tickets[id].started = true
	worker := ""
	if w.rng.IntN(5) == 0 {
		worker = w.worker()
	}
	w.apply(w.m.Started(w.now, id, worker))
}

func (w *world) land() {
	if id := w.some(func(t *simTicket) bool { return t.granted != nil }); id != "" {
		w.over(id)
		w.apply(w.m.Landed(w.now, id, w.rng.IntN(300)))
		w.apply(w.m.Landed(w.now, id, 0))
	}
}

func (w *world) withdraw() {
	if id := w.some(func(*simTicket) bool { return true }); id != "" {
		w.over(id)
		_, actions := w.m.Withdraw(w.now, id)
		w.apply(actions)
	}
}

func (w *world) over(id string) {
	if w.tickets[id] == nil {
		w.t.Fatalf("seed %d: %s has two ends", w.seed, id)
	}
	delete(w.tickets, id)
	w.ends++
}

func (w *world) report() {
	name := w.worker()
	if w.rng.IntN(6) == 0 {
		w.apply(w.m.ReportFailed(w.now, name, errors.New("no answer")))
		return
	}
	w.alive[name] = true
	capacity := 1 + w.rng.IntN(1500)
	if w.rng.IntN(20) == 0 {
		capacity = 0
	}
	w.apply(w.m.Reported(w.now, Report{Worker: name, MaxTokens: capacity, UsedTokens: w.rng.IntN(capacity + 1)}))
}

func (w *world) workerEvent() {
	name := w.worker()
	delete(w.alive, name)
	w.apply(w.m.WorkerGone(w.now, name))
}

func (w *world) rareEvent() {
	switch w.rng.IntN(4) {
	case 0: // the gate closes
		for _, id := range slices.Sorted(maps.Keys(w.tickets)) {
			if t := w.tickets[id]; t != nil && t.granted == nil {
				w.over(id)
				waited, actions := w.m.Withdraw(w.now, id)
				if want := w.now.Sub(t.asked); waited != want {
					w.t.Errorf("seed %d: %s waited %v, the machine says %v", w.seed, id, want, waited)
				}
				w.apply(actions)
			}
		}
	case 1:
		session := fmt.Sprint("s", w.rng.IntN(8))
		actions := w.m.SessionOver(w.now, session)
		for id, t := range w.tickets {
			if t.r.Session == session && t.granted != nil {
				w.over(id)
			}
		}
		w.apply(actions)
	case 2:
		w.apply(w.m.Listed(w.now, slices.Collect(maps.Keys(w.alive))))
	default:
		w.m.Metrics()
		w.m.Waits(5)
	}
}

func (w *world) apply(actions []Action) {
	w.checkAdmitted(actions)
	for _, a := range actions {
		switch a := a.(type) {
		case Grant:
			w.granted(a)
		case Hold:
			w.held++
		case Cancelled:
			w.over(a.Ticket)
		case Displaced:
			if w.rng.IntN(3) > 0 { // the others age where they are
				to := w.worker()
				w.tickets[a.Ticket].r.Worker = to
				w.apply(w.m.Move(w.now, a.Ticket, to))
			}
		}
	}
}

func (w *world) granted(g Grant) {
	t := w.tickets[g.Ticket]
	if t == nil || t.granted != nil {
		w.t.Errorf("seed %d: %s granted twice or after its end", w.seed, g.Ticket)
		return
	}
	w.grants++
	t.granted = g.Decision
	if g.Wait > w.cfg.MaxWait && g.Wait != t.r.Waited {
		w.t.Errorf("seed %d: %s was held for %v, agentic_admission_max_wait_s is %v", w.seed, g.Ticket, g.Wait, w.cfg.MaxWait)
	}
	if want := w.cfg.Reservation(t.r.PromptTokens, t.r.RemainingTokens); g.ReservationTokens != want {
		w.t.Errorf("seed %d: %s is charged %d, want %d", w.seed, g.Ticket, g.ReservationTokens, want)
	}
}

// checkAdmitted says that what was admitted fits: a controlled worker without pressure, and
// room for all of it or nothing else there. It takes off what the same event granted later.
func (w *world) checkAdmitted(actions []Action) {
	type sum struct{ tokens, leases int }
	later := map[*ledger]sum{}
	for _, a := range slices.Backward(actions) {
		g, ok := a.(Grant)
		if !ok {
			continue
		}
		l := w.m.tickets[g.Ticket].ledger
		then := sum{l.reserved - later[l].tokens, l.leases - later[l].leases}
		later[l] = sum{later[l].tokens + g.ReservationTokens, later[l].leases + 1}
		if g.Verdict != Admit {
			continue
		}
		w.admits++
		fits := then.tokens <= l.ceiling-l.foreign || then.leases == 1
		if !fits || !l.controlled(w.now, w.cfg.StaleAfter) || l.usage >= w.cfg.PressureThreshold {
			w.t.Errorf("seed %d: %s admitted with %v then at %+v", w.seed, g.Ticket, then, *l)
		}
	}
}

// check recomputes every ledger from the tickets the owner knows.
func (w *world) check() {
	waiting := 0
	type sum struct{ tokens, leases, waiting int }
	want := map[*ledger]sum{}
	for id, t := range w.tickets {
		mine := w.m.tickets[id]
		if mine == nil {
			w.t.Errorf("seed %d: %s is lost", w.seed, id)
			continue
		}
		s := want[mine.ledger]
		if t.granted == nil {
			waiting++
			s.waiting++
			w.checkHeld(mine)
		} else if mine.state != expired {
			s.tokens += mine.decision.ReservationTokens
			s.leases++
		}
		want[mine.ledger] = s
	}
	for _, l := range w.m.order {
		if got := (sum{l.reserved, l.leases, len(l.queue)}); got != want[l] {
			w.t.Errorf("seed %d: ledger of %s is %v, its tickets make %v", w.seed, l.worker, got, want[l])
		}
	}
	if waiting != w.m.waiting {
		w.t.Errorf("seed %d: %d tickets wait, the machine says %d", w.seed, waiting, w.m.waiting)
	}
	if len(w.m.order) != len(w.m.ledgers) || len(w.m.order) > len(simWorkers) {
		w.t.Errorf("seed %d: %d ledgers in order, %d in all", w.seed, len(w.m.order), len(w.m.ledgers))
	}
	if w.grants > w.asks || w.asks != w.ends+len(w.tickets) {
		w.t.Errorf("seed %d: %d asked, %d granted, %d ended, %d there", w.seed, w.asks, w.grants, w.ends, len(w.tickets))
	}
}

// checkHeld says that a held ticket really has something to wait for, and not for too long.
func (w *world) checkHeld(t *ticket) {
	l := t.ledger
	if w.now.Sub(t.since) >= w.cfg.MaxWait {
		w.t.Errorf("seed %d: %s is held for %v", w.seed, t.decision.Ticket, w.now.Sub(t.since))
	}
	if l.gone || t.place > 0 {
		return
	}
	if !l.controlled(w.now, w.cfg.StaleAfter) || l.refusal(t.decision.ReservationTokens, w.cfg.PressureThreshold) == "" {
		w.t.Errorf("seed %d: %s is held by %s for nothing: %+v", w.seed, t.decision.Ticket, l.worker, *l)
	}
}

// finish lets time pass with no event but the timer: everything held gets through, and when
// everything is over nothing is left.
func (w *world) finish() {
	w.now = w.now.Add(w.cfg.MaxWait + w.cfg.StaleAfter)
	w.tick()
	for _, id := range slices.Sorted(maps.Keys(w.tickets)) {
		if w.tickets[id].granted == nil {
			w.t.Errorf("seed %d: %s starved", w.seed, id)
		}
		w.over(id)
		w.apply(w.m.Landed(w.now, id, 0))
	}
	w.check()
	if s := w.m.Stats(w.now); s.Waiting != 0 || s.Leases != 0 || len(w.m.bySession) != 0 {
		w.t.Errorf("seed %d: left behind: %+v", w.seed, s)
	}
	for _, l := range w.m.order {
		if l.reserved != 0 {
			w.t.Errorf("seed %d: %d tokens stay reserved at %s", w.seed, l.reserved, l.worker)
		}
	}
}
