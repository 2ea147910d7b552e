package schedule

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var replaySeed = flag.Uint64("seed", 0, "play only this world of the simulation, with a trace of its events")

// TestSimulation plays worlds, each made from a seed: agents that crash, hang, leave early or
// never call; aborts that are lost, late or foreign; workers that die; hooks that are slow or
// answer twice; pauses at every point; all modes. After each event a world checks what no order
// of events may break (sim_check_test.go). A world that fails is played again with a trace;
//
//	go test ./relax/internal/schedule -run Simulation -seed N
//
// replays it.
func TestSimulation(t *testing.T) {
	if *replaySeed != 0 {
		w := newWorld(*replaySeed)
		w.tracing = true
		if err := w.play(); err != nil {
			t.Fatalf("seed %d: %v\n%s", *replaySeed, err, w.story())
		}
		t.Log(w.story())
		return
	}
	var total tallyOfWorlds
	for seed := uint64(1); seed <= simulatedWorlds; seed++ {
		w := newWorld(seed)
		if err := w.play(); err != nil {
			again := newWorld(seed)
			again.tracing = true
			err = again.play()
			t.Fatalf("seed %d: %v\n%s\nreplay: go test ./relax/internal/schedule -run Simulation -seed %d", seed, err, again.story(), seed)
		}
		total.add(w)
	}
	t.Logf("%d worlds: %+v", simulatedWorlds, total)
	total.demand(t)
}

// tallyOfWorlds says what the worlds came to, so that a simulation that no longer reaches a
// behaviour fails.
type tallyOfWorlds struct {
	Events, Steps, Evals, Groups, Delivered, Dropped, Carried        int
	Pauses, Aborts, Foreign, Lost, Protected, Inherited              int
	Reruns, Filtered                                                 int
	Failures, Starved, Covered, Refused, Stale, Surplus, Prelaunched int
}

func (t *tallyOfWorlds) add(w *world) {
	for i, p := range t.all() {
		*p += *w.tally.all()[i]
	}
}

func (t *tallyOfWorlds) all() []*int {
	return []*int{
		&t.Events, &t.Steps, &t.Evals, &t.Groups, &t.Delivered, &t.Dropped, &t.Carried,
		&t.Pauses, &t.Aborts, &t.Foreign, &t.Lost, &t.Protected, &t.Inherited, &t.Reruns, &t.Filtered,
		&t.Failures, &t.Starved, &t.Covered, &t.Refused, &t.Stale, &t.Surplus, &t.Prelaunched,
	}
}

func (t *tallyOfWorlds) demand(tt *testing.T) {
	for i, p := range t.all() {
		if *p < 1+simulatedWorlds/600 {
			tt.Errorf("counter %d of %+v: the simulation hardly reaches it", i, *t)
		}
	}
}

// stopped ends a world with the rule it broke.
type stopped struct{ err error }

func (w *world) fail(format string, args ...any) {
	panic(stopped{fmt.Errorf(format, args...)})
}

func (w *world) trace(format string, args ...any) {
	if w.tracing {
		w.lines = append(w.lines, fmt.Sprintf("%6d %8.1fs  ", w.tally.Events, w.now.Sub(t0).Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *world) story() string {
	lines := w.lines
	if len(lines) > 400 && *replaySeed == 0 {
		lines = lines[len(lines)-400:]
	}
	return fmt.Sprintf("config %+v\nhostility %+v\n%s", w.cfg, w.hostile, strings.Join(lines, "\n"))
}

// hostility is how bad a world is, in chances of 1000.
type hostility struct {
	crash, hang, silent, early, launch int // of a Session
	lost, foreign, death, leave        int // of requests
	filter, badScore, twice, never     int // of hooks
	pause, noTasks                     int
	// legacy: requests are not reported, only first ones, as an engine with a gate of its own does.
	legacy bool
}

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 99))
	w := &world{rng: rng, now: t0, groups: map[GroupID]*simGroup{}, requests: map[RequestID]*simRequest{}}
	w.cfg = randomConfig(rng)
	w.hostile = randomHostility(rng)
	if w.cfg.FullyAsync { // only a pause lets a step leave debt
		w.hostile.pause += 50
	}
	w.steps = 1 + rng.Int64N(4)
	if w.cfg.FullyAsync || rng.IntN(6) > 0 {
		w.cfg.NumRollout = w.steps
	}
	w.m = New(w.cfg)
	w.full = w.cfg.withDefaults()
	return w
}

func randomConfig(rng *rand.Rand) Config {
	c := Config{
		BatchSize: 1 + rng.IntN(4), GroupSize: 1 + rng.IntN(3), Capacity: 1 + rng.IntN(5),
		MaxConsecutiveDropped: 2 + rng.IntN(6), AgentRetries: max(0, rng.IntN(5)-2),
		FirstRequestTimeout: time.Duration(20+rng.IntN(200)) * time.Second,
		AgentTimeout:        time.Duration(20+rng.IntN(400)) * time.Second,
		Permits:             max(0, rng.IntN(6)-2), Prelaunch: rng.IntN(3) == 0, GroupRM: rng.IntN(2) == 0,
		EvalCapacity: max(0, rng.IntN(4)-1),
	}
	if rng.IntN(2) == 0 {
		c.OverSampling = c.BatchSize + rng.IntN(3)
	}
	switch rng.IntN(4) {
	case 0:
		c.PartialRollout, c.MaxAborted = true, rng.IntN(4)
	case 1:
		c.PartialRollout, c.DynamicBatch, c.DataParallel = true, true, 1+rng.IntN(3)
		c.OverSampling = c.BatchSize + 1 + rng.IntN(4)
		c.Capacity = c.OverSampling
	case 2:
		c.FullyAsync, c.MaxStaleness = true, int64(rng.IntN(3))
	}
	return c
}

func randomHostility(rng *rand.Rand) hostility {
	some := func(most int) int {
		if rng.IntN(2) == 0 {
			return 0
		}
		return rng.IntN(most + 1)
	}
	return hostility{
		crash: some(60), hang: some(100), silent: some(100), early: some(60), launch: some(200),
		lost: some(500), foreign: some(200), death: some(20), leave: some(50),
		filter: some(200), badScore: some(100), twice: some(300), never: some(300),
		pause: some(150), noTasks: some(100), legacy: rng.IntN(8) == 0,
	}
}

// play runs a world through its rollouts, with an Eval in between now and then.
func (w *world) play() (err error) {
	defer func() {
		if v := recover(); v != nil {
			if s, ok := v.(stopped); ok {
				err = s.err
				return
			}
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	for rollout := range w.steps {
		w.between()
		w.runStep(rollout)
		w.between()
		if w.rng.IntN(3) == 0 {
			w.runEval(rollout)
		}
	}
	if w.cfg.FullyAsync {
		w.backfill()
	}
	w.finale()
	return nil
}

// backfill is the extra rollout of a fully-async run; after a failure it is tried again.
func (w *world) backfill() {
	for range 50 {
		w.runStep(w.cfg.NumRollout)
		if w.m.debt() == 0 {
			return
		}
		w.fair = true
	}
	w.fail("the final backfill never pays its debt: %+v", w.m.Counts())
}

// finale checks that nothing is left of the run, unless it could go on.
func (w *world) finale() {
	if w.cfg.NumRollout == 0 {
		return
	}
	for _, g := range w.list {
		w.fail("group %d is left behind after the last step: over %t", g.id, g.over)
	}
	if w.started != w.delivered+w.dropped {
		w.fail("%d groups started, %d delivered, %d dropped", w.started, w.delivered, w.dropped)
	}
	if c := w.m.Counts(); c.Passed != 0 || c.Waiting != 0 || c.Held != 0 || c.Resident != 0 || c.Protected != 0 {
		w.fail("left behind: %+v", c)
	}
	if w.cfg.FullyAsync && len(w.open) != 0 {
		w.fail("%d partitions never ended", len(w.open))
	}
}
