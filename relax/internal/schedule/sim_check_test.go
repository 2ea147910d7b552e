package schedule

import "slices"

// apply carries actions out and checks each of them, and afterwards what must hold between any
// two events.
func (w *world) apply(actions []Action) {
	if len(actions) > 0 {
		w.idle = 0
	}
	w.noticeGate(actions)
	for _, a := range actions {
		w.trace("    %T%v", a, a)
		w.carryOut(a)
	}
	w.check()
}

// noticeGate follows the train gate, since an opening gives protection.
func (w *world) noticeGate([]Action) {
	open := w.m.Counts().TrainOpen
	if open && !w.trainOpen {
		for _, g := range w.list {
			for _, s := range g.sessions {
				if s.armed && s.alive && !g.over && g.leased && !s.killed {
					s.armed, s.protected = false, true
					w.tally.Protected++
				}
			}
		}
	}
	w.trainOpen = open
}

func (w *world) carryOut(a Action) {
	switch a := a.(type) {
	case StartGroup:
		w.startGroup(a.Group, w.cfg.GroupSize, -1)
	case StartEval:
		w.startEval(a)
	case StartSession:
		w.restart(a)
	case KillSession:
		s := w.groups[a.Ref.Group].sessions[a.Ref.Seq]
		if s.tries >= w.cfg.AgentRetries || s.killed || !s.alive {
			w.fail("session %v is killed alone, but will not run again", a.Ref)
		}
		w.checkLate(s, a.Reason)
		s.killed, s.armed, s.protected = true, false, false
	case Lease:
		w.leaseGroup(w.known(a.Group))
	case Pass:
		w.passRequest(a.Request)
	case Abort:
		w.abort(w.requests[a.Request])
	case Quiet:
		w.beQuiet()
	case Score:
		w.ask(w.known(a.Group))
	case Deliver:
		w.deliver(w.known(a.Group), a.Partition)
	case EndPartition:
		w.endPartition(a)
	case Drop:
		w.drop(w.known(a.Group), a)
	case Forget:
		g := w.known(a.Group)
		if g.forgotten || !g.over || g.resident() {
			w.fail("group %d is forgotten too early or twice", a.Group)
		}
		g.forgotten = true
		delete(w.groups, a.Group)
		w.list = slices.DeleteFunc(w.list, func(o *simGroup) bool { return o == g })
	case NeedTasks:
		if w.needTasks > 0 || w.tasksEnded || !w.stepOpen || a.Count < 1 {
			w.fail("tasks are asked for again: %+v", a)
		}
		w.needTasks = a.Count
	case EndDataset:
		w.endDataset(a)
	case EndStep:
		w.endStep(a)
	}
}

// known is a Group that is not forgotten.
func (w *world) known(id GroupID) *simGroup {
	g := w.groups[id]
	if g == nil {
		w.fail("group %d is forgotten or was never started", id)
	}
	return g
}

func (w *world) startGroup(id GroupID, size, dataset int) {
	if w.groups[id] != nil {
		w.fail("group %d starts twice", id)
	}
	books := &w.train
	if dataset >= 0 {
		books = &w.eval
	}
	books.started++
	books.startedS += size
	w.started++
	w.tally.Groups++
	if dataset < 0 && !w.stepOpen {
		w.tally.Prelaunched++
		if !w.cfg.Prelaunch {
			w.fail("group %d starts between steps without prelaunch", id)
		}
	}
	w.newGroup(id, size, dataset >= 0, max(dataset, 0))
}

func (w *world) startEval(a StartEval) {
	d := w.evalSets[a.Dataset]
	if !w.evalOpen || a.Dataset != w.evalEnded || a.Prompt >= d.Prompts || a.First+a.Sessions > d.Samples {
		w.fail("eval sample out of place: %+v of %+v", a, w.evalSets)
	}
	w.startGroup(a.Group, a.Sessions, a.Dataset)
}

func (w *world) restart(a StartSession) {
	g := w.groups[a.Ref.Group]
	s := g.sessions[a.Ref.Seq]
	if s.alive || g.over || a.Try != s.tries+1 || a.Try > w.cfg.AgentRetries {
		w.fail("session %v must not run again: try %d, alive %t", a.Ref, a.Try, s.alive)
	}
	s.tries++
	w.tally.Reruns++
	if g.eval {
		w.eval.retries++
	} else {
		w.train.retries++
	}
	w.begin(s)
}

func (w *world) leaseGroup(g *simGroup) {
	if g.leased || g.over {
		w.fail("group %d is leased twice, or over", g.id)
	}
	for _, s := range g.sessions {
		if !s.requested || !s.alive {
			w.fail("group %d has a lease, but session %d has not asked", g.id, s.seq)
		}
	}
	if !g.eval && !w.stepOpen {
		w.fail("group %d is leased between steps", g.id)
	}
	if !g.eval {
		w.checkFresh("leased")
	}
	g.leased = true
}

// checkFresh: nothing goes on while the trainer is too far behind.
func (w *world) checkFresh(what string) {
	if !w.cfg.FullyAsync || w.rollout == w.cfg.NumRollout {
		return
	}
	oldest := w.rollout
	for _, id := range w.unconsumed {
		oldest = min(oldest, id)
	}
	for _, p := range w.open {
		oldest = min(oldest, p.id)
	}
	if w.rollout-oldest > w.cfg.MaxStaleness {
		w.fail("%s in rollout %d while the trainer has not got partition %d", what, w.rollout, oldest)
	}
}

func (w *world) passRequest(id RequestID) {
	r := w.requests[id]
	if r == nil {
		w.fail("request %d passes, but is over", id)
	}
	s := r.s
	switch {
	case r.passed:
		w.fail("request %d passes twice", r.id)
	case !s.g.leased || s.g.over:
		w.fail("request %d passes without a lease", r.id)
	case s.g.eval && w.paused, !s.g.eval && !s.protected && (w.paused || !w.stepOpen):
		w.fail("request %d passes a shut gate", r.id)
	case w.quiet:
		w.fail("request %d passes while it is quiet", r.id)
	case !s.g.eval && !s.protected:
		w.checkFresh("a request passes")
	}
	r.passed, r.parkedBy = true, 0
}

func (w *world) abort(r *simRequest) {
	if r == nil || !r.passed || r.asked || r.s.protected {
		w.fail("abort of a request that is not at the backend, asked for already, or protected: %+v", r)
	}
	r.asked = true
	w.tally.Aborts++
}

func (w *world) beQuiet() {
	if w.quiet || !w.paused || w.atBackend() > 0 {
		w.fail("it is not quiet: %d requests at the backend", w.atBackend())
	}
	w.quiet = true
}

func (w *world) atBackend() int {
	n := 0
	for _, r := range w.requests {
		if r.passed {
			n++
		}
	}
	return n
}

func (w *world) ask(g *simGroup) {
	for _, s := range g.sessions {
		if !s.exported || s.alive {
			w.fail("group %d is scored before session %d is done", g.id, s.seq)
		}
	}
	if g.asked || g.over {
		w.fail("group %d is scored twice", g.id)
	}
	g.asked = true
}

// check looks at everything that must hold between two events.
func (w *world) check() {
	train, eval, protected := 0, 0, 0
	for _, g := range w.list {
		switch {
		case !g.resident():
		case g.eval:
			eval++
		default:
			train++
		}
		for _, s := range g.sessions {
			if s.protected && s.alive && !g.over {
				protected++
			}
		}
	}
	if train > w.full.Capacity {
		w.fail("%d train groups are resident, capacity %d", train, w.full.Capacity)
	}
	if w.evalOpen && w.evalEnded < len(w.evalSets) {
		d := w.evalSets[w.evalEnded]
		if most := w.evalMost(d); eval > most {
			w.fail("%d eval groups are resident, capacity %d", eval, most)
		}
	} else if eval > 0 && !w.evalOpen {
		w.fail("%d eval groups are resident after the eval", eval)
	}
	if n := w.atBackend(); w.cfg.Permits > 0 && n > w.cfg.Permits {
		w.fail("%d requests at the backend, %d permits", n, w.cfg.Permits)
	}
	c := w.m.Counts()
	if c.Resident != train || c.Passed != w.atBackend() || c.Protected != protected {
		w.fail("counts %+v: want %d resident, %d passed, %d protected", c, train, w.atBackend(), protected)
	}
	if c.Stale {
		w.tally.Stale++
	}
	switch {
	case w.stepOpen && c.Closing:
		w.beginsToClose(c.Debt, w.failedNow())
	case w.stepOpen: // tasks came after all
		w.closing, w.coveredAt = false, -1
	}
}

// evalMost is E_d of the guide, in Groups.
func (w *world) evalMost(d EvalDataset) int {
	groups := w.cfg.EvalCapacity
	if groups == 0 {
		groups = (w.full.Capacity*w.cfg.GroupSize + d.Samples - 1) / d.Samples
	}
	if w.cfg.GroupRM {
		return groups
	}
	return groups * d.Samples
}

// beginsToClose: a fully-async step leaves debt only if as many Groups are really parked.
func (w *world) beginsToClose(debt int, failed bool) {
	if w.closing {
		return
	}
	w.closing = true
	if debt == 0 || !w.cfg.FullyAsync || failed || w.starved() {
		return
	}
	w.coveredAt = 0
	for _, g := range w.list {
		parked, flying := false, false
		for _, s := range g.sessions {
			for _, r := range s.requests {
				parked = parked || r.parkedBy == w.rollout+1
				flying = flying || r.passed
			}
		}
		if g.leased && !g.over && parked && !flying {
			w.coveredAt++
		}
	}
	if w.coveredAt < debt {
		w.fail("the step closes with a debt of %d, but %d groups are parked", debt, w.coveredAt)
	}
}

func (w *world) failedNow() bool { return w.m.step != nil && w.m.step.failure != "" }

func (w *world) starved() bool {
	return w.tasksEnded && !slices.ContainsFunc(w.list, func(g *simGroup) bool { return !g.eval && !g.over })
}
