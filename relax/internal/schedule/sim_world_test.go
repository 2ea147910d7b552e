package schedule

import (
	"math/rand/v2"
	"slices"
	"time"
)

// world plays the engine, its agents, its backend and its trainer.
type world struct {
	rng     *rand.Rand
	cfg     Config // as given
	full    Config // with defaults
	hostile hostility
	steps   int64
	m       *Machine
	now     time.Time
	tracing bool
	lines   []string
	fair    bool // faults have ended: everything makes progress

	idle     int         // events since something happened
	list     []*simGroup // that are not forgotten, in order of their start
	groups   map[GroupID]*simGroup
	requests map[RequestID]*simRequest
	some     []*simRequest // scratch
	nextID   RequestID

	// The open step.
	stepOpen, evalOpen bool
	rollout            int64
	needTasks          int
	tasksEnded         bool
	pausedInStep       bool
	closing            bool
	coveredAt          int // parked Groups when the step began to close with debt, -1 if it did not
	evalSets           []EvalDataset
	evalDone           []int // samples that are over, by dataset
	evalEnded          int

	paused     bool
	quiet      bool
	trainOpen  bool
	open       []*simPartition
	ended      []int64
	unconsumed []int64

	started, delivered, dropped int
	train, eval                 simBooks
	tally                       tallyOfWorlds
}

// simBooks are the world's own accounts of a step.
type simBooks struct {
	inherited, started, delivered, dropped, retries int
	inheritedS, startedS, deliveredS, droppedS      int
}

type simPartition struct {
	id             int64
	target, groups int
}

type simGroup struct {
	id                          GroupID
	eval                        bool
	dataset                     int
	sessions                    []*simSession
	leased, asked, scored, over bool
	dropped, forgotten          bool
	neverScored                 bool
}

type plan int

const (
	works plan = iota
	crashes
	hangs
	silent
	leavesEarly
	launchFails
)

type simSession struct {
	g                *simGroup
	seq              int
	alive, requested bool
	exported, killed bool
	plan             plan
	turns            int
	tries            int
	aborts           int // of its conversation, in the turns that are over
	requests         []*simRequest
	armed, protected bool
	startedAt        time.Time
	active           time.Duration
}

type simRequest struct {
	id            RequestID
	s             *simSession
	passed, asked bool
	aborts        int   // with those of the turns above it
	inherited     int   // those of the turns above it alone
	parkedBy      int64 // rollout+1 of the step whose gate parked it and that it has not left since
}

func (s *simSession) ref() SessionRef { return SessionRef{s.g.id, s.seq} }

func (g *simGroup) resident() bool {
	return slices.ContainsFunc(g.sessions, func(s *simSession) bool { return s.alive })
}

func (w *world) chance(of1000 int) bool { return !w.fair && w.rng.IntN(1000) < of1000 }

func (w *world) newGroup(id GroupID, size int, eval bool, dataset int) {
	g := &simGroup{id: id, eval: eval, dataset: dataset, neverScored: w.chance(w.hostile.never)}
	for seq := range size {
		s := &simSession{g: g, seq: seq}
		w.begin(s)
		g.sessions = append(g.sessions, s)
	}
	w.groups[id] = g
	w.list = append(w.list, g)
}

// begin starts a Session's process.
func (w *world) begin(s *simSession) {
	*s = simSession{g: s.g, seq: s.seq, tries: s.tries, alive: true, turns: 1 + w.rng.IntN(3), startedAt: w.now}
	for _, p := range []struct {
		chance int
		plan   plan
	}{
		{w.hostile.crash, crashes}, {w.hostile.hang, hangs}, {w.hostile.silent, silent},
		{w.hostile.early, leavesEarly}, {w.hostile.launch, launchFails},
	} {
		if w.chance(p.chance) {
			s.plan = p.plan
		}
	}
}

// between lets time pass between two steps.
func (w *world) between() {
	w.fair = false
	for range w.rng.IntN(20) {
		w.event()
	}
}

func (w *world) runStep(rollout int64) {
	actions, err := w.m.Open(w.now, rollout)
	if err != nil {
		rollout = w.refused(rollout, err)
		if actions, err = w.m.Open(w.now, rollout); err != nil {
			w.fail("rollout %d does not open again: %v", rollout, err)
		}
	}
	w.trace("open %d", rollout)
	w.opened(rollout)
	w.stepOpen, w.rollout, w.needTasks, w.tasksEnded = true, rollout, 0, false
	w.pausedInStep, w.closing, w.coveredAt = w.paused, false, -1
	w.tally.Steps++
	w.apply(actions)
	w.drive(func() bool { return !w.stepOpen })
}

func (w *world) runEval(rollout int64) {
	w.evalSets, w.evalDone, w.evalEnded = nil, nil, 0
	for range w.rng.IntN(3) {
		w.evalSets = append(w.evalSets, EvalDataset{Name: "d", Prompts: w.rng.IntN(4), Samples: 1 + w.rng.IntN(3)})
		w.evalDone = append(w.evalDone, 0)
	}
	w.trace("eval %d %v", rollout, w.evalSets)
	w.evalOpen, w.rollout = true, rollout
	w.tally.Evals++
	actions, err := w.m.OpenEval(w.now, rollout, w.evalSets)
	if err != nil {
		w.fail("eval does not open: %v", err)
	}
	w.apply(actions)
	w.drive(func() bool { return !w.evalOpen })
}

// drive makes events until done. After some of them the world becomes fair, and then it must
// not take long.
func (w *world) drive(done func() bool) {
	hostile := 20 + w.rng.IntN(250)
	wasFair := w.fair
	for i := 0; !done(); i++ {
		if i == hostile {
			w.fair = true
			w.trace("the world becomes fair")
		}
		if i > hostile+5000 {
			w.fail("the step never ends: %+v", w.m.Counts())
		}
		w.event()
	}
	w.fair = wasFair
}

// event makes one thing happen.
func (w *world) event() {
	w.tally.Events++
	w.idle++
	if w.fair { // and fast: nobody is late who is not stuck
		w.pass(time.Duration(w.rng.IntN(20)) * time.Millisecond)
	} else {
		w.pass(time.Duration(w.rng.IntN(2000)) * time.Millisecond)
	}
	switch n := w.rng.IntN(100); {
	case n < 6:
		w.tick()
	case n < 14:
		w.turnPause()
	case n < 20:
		w.giveTasks()
	case n < 24:
		w.consume()
	case n < 36:
		w.score()
	case n < 38:
		w.noise()
	case n < 41 && w.chance(w.hostile.death*20):
		w.workerDies()
	case n < 70:
		w.requestEvent()
	default:
		w.sessionEvent()
	}
}

func (w *world) pass(d time.Duration) {
	for _, g := range w.list {
		if !g.leased || g.over {
			continue
		}
		for _, s := range g.sessions {
			if s.alive && !s.killed && w.admits(s) {
				s.active += d
			}
		}
	}
	w.now = w.now.Add(d)
}

func (w *world) admits(s *simSession) bool {
	if s.g.eval {
		return !w.paused
	}
	return w.trainOpen || s.protected
}

// tick lets the machine look at its deadlines; in a fair world time comes to the next one.
func (w *world) tick() {
	if at := w.m.Deadline(); w.fair && w.idle > 40 && at.After(w.now) {
		w.pass(at.Sub(w.now))
	}
	w.trace("tick")
	w.apply(w.m.Tick(w.now))
	if at := w.m.Deadline(); !at.IsZero() && !at.After(w.now) {
		w.fail("a deadline of %v is left after the tick of %v", at, w.now)
	}
	for _, g := range w.list {
		for _, s := range g.sessions {
			if s.alive && !s.killed && !g.over && w.admits(s) && s.active >= w.cfg.AgentTimeout {
				w.fail("session %d/%d was active for %v and goes on", g.id, s.seq, s.active)
			}
		}
	}
}

func (w *world) turnPause() {
	switch {
	case w.paused && (w.fair || w.rng.IntN(2) == 0):
		w.paused, w.quiet = false, false
		w.trace("resume")
		w.apply(w.m.Resume(w.now))
	case w.chance(w.hostile.pause * 4):
		w.paused, w.quiet, w.pausedInStep = true, false, true
		w.tally.Pauses++
		w.trace("pause")
		w.apply(w.m.Pause(w.now))
	}
}

func (w *world) giveTasks() {
	if w.needTasks == 0 {
		if w.chance(100) { // unasked
			w.trace("tasks")
			w.apply(w.m.QueueTasks(w.now, 1+w.rng.IntN(2)))
		}
		return
	}
	asked := w.needTasks
	w.needTasks = 0
	if w.chance(w.hostile.noTasks) {
		w.tasksEnded = true
		w.trace("last tasks")
		w.apply(w.m.LastTasks(w.now, w.rng.IntN(2)))
		return
	}
	n := 1 + w.rng.IntN(asked)
	w.trace("%d tasks", n)
	w.apply(w.m.QueueTasks(w.now, n))
}

func (w *world) consume() {
	if len(w.unconsumed) == 0 || (!w.fair && w.rng.IntN(3) > 0) {
		return
	}
	id := w.unconsumed[0]
	w.unconsumed = w.unconsumed[1:]
	w.trace("partition %d consumed", id)
	w.apply(w.m.Consumed(w.now, id))
}

func (w *world) score() {
	g := w.pick(func(g *simGroup) bool { return g.asked && !g.over && !g.scored })
	if g == nil || (g.neverScored && !w.fair) {
		return
	}
	g.scored = true
	w.trace("score %d", g.id)
	switch {
	case w.chance(w.hostile.badScore):
		w.apply(w.m.GroupFailed(w.now, g.id, "reward", "no reward"))
	case !g.eval && w.chance(w.hostile.filter):
		w.tally.Filtered++
		w.apply(w.m.GroupFiltered(w.now, g.id, "zero_std", "all rewards are 0"))
	default:
		w.apply(w.m.GroupScored(w.now, g.id))
		if w.chance(w.hostile.twice) {
			w.trace("score %d again", g.id)
			w.apply(w.m.GroupScored(w.now, g.id))
		}
	}
}

// noise repeats events of things that are over, or that never were.
func (w *world) noise() {
	id := GroupID(w.rng.IntN(w.started + 1))
	if g := w.groups[id]; g != nil && !g.over {
		return
	}
	if g := w.groups[id]; g == nil || !g.resident() {
		w.trace("noise about group %d", id)
		w.apply(w.m.SessionRequested(w.now, SessionRef{id, 0}))
		w.apply(w.m.SessionFailed(w.now, SessionRef{id, 0}, "late", "late"))
		w.apply(w.m.SessionExported(w.now, SessionRef{id, 0}))
		w.apply(w.m.GroupScored(w.now, id))
		w.apply(w.m.GroupFiltered(w.now, id, "late", "late"))
		w.apply(w.m.RequestArrived(w.now, SessionRef{id, 0}, w.nextID+1000, 0))
	}
	if rid := RequestID(w.rng.IntN(int(w.nextID) + 2)); w.requests[rid] == nil {
		w.apply(w.m.RequestReturned(w.now, rid, Aborted))
	}
}

// pick chooses a Group at random.
func (w *world) pick(ok func(*simGroup) bool) *simGroup {
	if len(w.list) == 0 {
		return nil
	}
	from := w.rng.IntN(len(w.list))
	for i := range w.list {
		if g := w.list[(from+i)%len(w.list)]; ok(g) {
			return g
		}
	}
	return nil
}
