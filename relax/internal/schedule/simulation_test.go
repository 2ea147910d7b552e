package schedule

import (
	"math/rand/v2"
	"testing"
	"time"
)

// world plays the engine: it carries out actions at random times, makes Sessions request,
// finish and fail, and checks after every event the rules no order of events may break.
type world struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	cfg    Config
	m      *Machine
	now    time.Time
	groups map[GroupID]*simGroup
	// steps
	ended, open                 int
	started, delivered, dropped int
	deliveredInStep             int
	needTasks                   bool
	noMoreTasks                 bool
}

type simGroup struct {
	leased, scoring, over bool
	requested             []bool
	running               []bool
}

func TestSimulation(t *testing.T) {
	for seed := uint64(1); seed <= 400; seed++ {
		rng := rand.New(rand.NewPCG(seed, 99))
		w := &world{
			t: t, seed: seed, rng: rng, now: t0, groups: map[GroupID]*simGroup{},
			cfg: Config{
				BatchSize: 1 + rng.IntN(4), GroupSize: 1 + rng.IntN(3), Capacity: 1 + rng.IntN(5),
				MaxConsecutiveDropped: 1 + rng.IntN(6),
				FirstRequestTimeout:   time.Duration(1+rng.IntN(50)) * time.Second,
				AgentTimeout:          time.Duration(1+rng.IntN(200)) * time.Second,
			},
		}
		w.m = New(w.cfg)
		w.run(4)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (w *world) run(steps int) {
	for rollout := range steps {
		actions, err := w.m.Open(w.now, int64(rollout))
		if err != nil {
			w.t.Fatalf("seed %d: open: %v", w.seed, err)
		}
		w.open, w.deliveredInStep, w.noMoreTasks = 1, 0, false
		w.apply(actions)
		for i := 0; w.open == 1; i++ {
			if i > 20000 {
				w.t.Fatalf("seed %d: the step never ends: %+v", w.seed, w.m.Counts())
			}
			w.event()
		}
		if w.started != w.delivered+w.dropped {
			w.t.Errorf("seed %d: %d groups started, %d delivered, %d dropped", w.seed, w.started, w.delivered, w.dropped)
		}
		if len(w.groups) != 0 {
			w.t.Errorf("seed %d: %d groups are resident after the step", w.seed, len(w.groups))
		}
	}
}

func (w *world) event() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
	switch w.rng.IntN(12) {
	case 0:
		w.apply(w.m.Tick(w.now))
	case 1:
		w.m.Pause(w.now)
	case 2, 3:
		w.m.Resume(w.now)
	case 4:
		if w.needTasks {
			w.needTasks = false
			if w.rng.IntN(10) == 0 {
				w.noMoreTasks = true
				w.apply(w.m.LastTasks(w.now, w.rng.IntN(2)))
				return
			}
			w.apply(w.m.QueueTasks(w.now, 1+w.rng.IntN(3)))
		}
	default:
		w.sessionEvent()
	}
}

func (w *world) sessionEvent() {
	for id, g := range w.groups { // random order, bounded by one event
		if g.scoring && !g.over {
			w.score(id, g)
			return
		}
		seq := w.rng.IntN(len(g.running))
		if !g.running[seq] {
			continue
		}
		r := SessionRef{id, seq}
		switch {
		case g.over:
			g.running[seq] = false
			w.apply(w.m.SessionFailed(w.now, r, "agent_exit", "killed"))
		case !g.requested[seq]:
			g.requested[seq] = true
			w.apply(w.m.SessionRequested(w.now, r))
		case w.rng.IntN(8) == 0:
			g.running[seq] = false
			w.apply(w.m.SessionFailed(w.now, r, "agent_exit", "exit 1"))
		case g.leased:
			g.running[seq] = false
			w.apply(w.m.SessionExported(w.now, r))
		}
		return
	}
}

func (w *world) score(id GroupID, g *simGroup) {
	if w.rng.IntN(6) == 0 {
		w.apply(w.m.GroupFailed(w.now, id, "reward", "no reward"))
		return
	}
	w.apply(w.m.GroupScored(w.now, id))
}

func (w *world) apply(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case StartGroup:
			w.started++
			w.groups[a.Group] = &simGroup{requested: make([]bool, w.cfg.GroupSize), running: make([]bool, w.cfg.GroupSize)}
			for i := range w.cfg.GroupSize {
				w.groups[a.Group].running[i] = true
			}
			if len(w.groups) > w.cfg.Capacity+w.countScored() {
				w.t.Errorf("seed %d: %d groups resident, capacity %d", w.seed, len(w.groups), w.cfg.Capacity)
			}
		case Lease:
			g := w.groups[a.Group]
			for i, ok := range g.requested {
				if !ok {
					w.t.Errorf("seed %d: group %d leased before session %d asked", w.seed, a.Group, i)
				}
			}
			if g.leased {
				w.t.Errorf("seed %d: group %d leased twice", w.seed, a.Group)
			}
			g.leased = true
		case Score:
			w.groups[a.Group].scoring = true
		case Deliver:
			w.finish(a.Group)
			w.delivered++
			w.deliveredInStep++
			if w.deliveredInStep > w.cfg.BatchSize {
				w.t.Errorf("seed %d: %d groups delivered for a batch of %d", w.seed, w.deliveredInStep, w.cfg.BatchSize)
			}
		case Drop:
			w.finish(a.Group)
			w.dropped++
		case Forget:
			for i, running := range w.groups[a.Group].running {
				if running {
					w.t.Errorf("seed %d: group %d forgotten while session %d runs", w.seed, a.Group, i)
				}
			}
			delete(w.groups, a.Group)
		case NeedTasks:
			if w.needTasks || w.noMoreTasks {
				w.t.Errorf("seed %d: tasks asked for again", w.seed)
			}
			w.needTasks = true
		case EndStep:
			w.open = 0
			w.ended++
			w.needTasks = false
			if a.Debt != w.cfg.BatchSize-w.deliveredInStep {
				w.t.Errorf("seed %d: debt %d after %d of %d groups", w.seed, a.Debt, w.deliveredInStep, w.cfg.BatchSize)
			}
		}
	}
}

// countScored is the number of Groups that only wait for credit: they hold no capacity.
func (w *world) countScored() int {
	n := 0
	for _, g := range w.groups {
		if g.scoring {
			n++
		}
	}
	return n
}

func (w *world) finish(id GroupID) {
	g := w.groups[id]
	if g.over {
		w.t.Errorf("seed %d: group %d has two fates", w.seed, id)
	}
	g.over = true
}
