package schedule

import "slices"

// opened keeps the world's own list of partitions.
func (w *world) opened(rollout int64) {
	if !w.cfg.FullyAsync {
		w.open = []*simPartition{{id: rollout, target: w.cfg.BatchSize}}
		return
	}
	if rollout < w.cfg.NumRollout && !slices.ContainsFunc(w.open, func(p *simPartition) bool { return p.id == rollout }) {
		w.open = append(w.open, &simPartition{id: rollout, target: w.cfg.BatchSize})
	}
	if len(w.open) > 2 {
		w.fail("%d partitions are open", len(w.open))
	}
}

// refused: a step may not open if that would push out a partition that owes. The newest one is
// opened again instead.
func (w *world) refused(rollout int64, err error) int64 {
	w.tally.Refused++
	w.trace("open %d: %v", rollout, err)
	if !w.cfg.FullyAsync || rollout == w.cfg.NumRollout || len(w.open) == 0 {
		w.fail("rollout %d does not open: %v", rollout, err)
	}
	newest := w.open[len(w.open)-1].id
	if len(w.open) < 2 && rollout-newest <= w.cfg.MaxStaleness {
		w.fail("rollout %d is refused without need: %v", rollout, err)
	}
	return newest
}

func (w *world) deliver(g *simGroup, partition int64) {
	if g.over || !g.scored {
		w.fail("group %d is delivered without credit, or twice", g.id)
	}
	g.over = true
	w.delivered++
	w.tally.Delivered++
	if g.eval {
		w.eval.delivered++
		w.eval.deliveredS += len(g.sessions)
		w.evalDone[g.dataset] += len(g.sessions)
		return
	}
	w.train.delivered++
	w.train.deliveredS += len(g.sessions)
	i := slices.IndexFunc(w.open, func(p *simPartition) bool { return p.id == partition })
	if i < 0 || !w.stepOpen {
		w.fail("group %d is delivered into partition %d, which is not open", g.id, partition)
	}
	for _, older := range w.open[:i] {
		if older.groups < older.target {
			w.fail("group %d pays partition %d before %d, which is older", g.id, partition, older.id)
		}
	}
	p := w.open[i]
	if p.groups++; p.groups > p.target {
		w.tally.Surplus++
		if !w.cfg.DynamicBatch {
			w.fail("partition %d has %d groups of %d", p.id, p.groups, p.target)
		}
	}
}

func (w *world) endPartition(a EndPartition) {
	i := slices.IndexFunc(w.open, func(p *simPartition) bool { return p.id == a.Partition })
	if i < 0 || slices.Contains(w.ended, a.Partition) {
		w.fail("partition %d ends twice", a.Partition)
	}
	p := w.open[i]
	if a.Groups != p.groups || a.Debt != p.target-p.groups {
		w.fail("partition %d ends with %+v: want %+v", a.Partition, a, p)
	}
	if a.Debt != 0 && !w.starved() {
		w.fail("partition %d is pushed out with a debt of %d", a.Partition, a.Debt)
	}
	w.open = slices.Delete(w.open, i, i+1)
	w.ended = append(w.ended, a.Partition)
	if a.Debt == 0 {
		w.unconsumed = append(w.unconsumed, a.Partition)
	}
}

func (w *world) drop(g *simGroup, a Drop) {
	if g.over {
		w.fail("group %d has two fates", g.id)
	}
	if a.Late >= 0 {
		w.checkLate(g.sessions[a.Late], a.Reason)
	}
	if a.Reason == ReasonStepEnd && g.leased && w.retains() {
		w.fail("group %d is killed at a step end that carries over", g.id)
	}
	g.over, g.dropped = true, true
	w.dropped++
	w.tally.Dropped++
	for _, s := range g.sessions {
		s.armed, s.protected = false, false
		s.requests = slices.DeleteFunc(s.requests, func(r *simRequest) bool {
			if !r.passed {
				delete(w.requests, r.id)
			}
			return !r.passed
		})
	}
	if g.eval {
		w.eval.dropped++
		w.eval.droppedS += len(g.sessions)
		w.evalDone[g.dataset] += len(g.sessions)
		return
	}
	w.train.dropped++
	w.train.droppedS += len(g.sessions)
}

// retains says whether the open step is one that Groups outlive.
func (w *world) retains() bool {
	switch {
	case w.cfg.FullyAsync:
		return w.rollout < w.cfg.NumRollout-1
	case w.cfg.PartialRollout:
		return w.cfg.NumRollout == 0 || w.rollout < w.cfg.NumRollout-1
	}
	return false
}

// checkLate: a deadline must really have passed, in the time that counts.
func (w *world) checkLate(s *simSession, reason Reason) {
	switch {
	case reason == ReasonAgentTimeout && s.active < w.cfg.AgentTimeout:
		w.fail("session %d/%d was active %v of %v", s.g.id, s.seq, s.active, w.cfg.AgentTimeout)
	case reason == ReasonFirstRequest && w.now.Sub(s.startedAt) < w.cfg.FirstRequestTimeout:
		w.fail("session %d/%d had %v of %v to ask", s.g.id, s.seq, w.now.Sub(s.startedAt), w.cfg.FirstRequestTimeout)
	}
}

func (w *world) endDataset(a EndDataset) {
	d := w.evalSets[a.Dataset]
	if a.Dataset != w.evalEnded || a.Delivered+a.Dropped != d.Prompts*d.Samples || w.evalDone[a.Dataset] != d.Prompts*d.Samples {
		w.fail("dataset %d ends with %+v: want %d samples of %+v", a.Dataset, a, w.evalDone[a.Dataset], d)
	}
	w.evalEnded++
}

func (w *world) endStep(a EndStep) {
	if a.Eval {
		if !w.evalOpen || w.evalEnded != len(w.evalSets) {
			w.fail("the eval ends after %d of %d datasets", w.evalEnded, len(w.evalSets))
		}
		w.evalOpen = false
		w.audit(a.Books, &w.eval, 0, 0)
		return
	}
	if !w.stepOpen || a.Rollout != w.rollout {
		w.fail("step %d ends, %d is open", a.Rollout, w.rollout)
	}
	w.beginsToClose(a.Debt, a.Failure != "")
	w.checkLeftovers()
	w.checkDebt(a)
	groups, sessions := 0, 0
	for _, g := range w.list {
		if !g.eval && !g.over {
			groups++
			sessions += len(g.sessions)
		}
	}
	w.tally.Carried += groups
	w.audit(a.Books, &w.train, groups, sessions)
	w.stepOpen, w.needTasks = false, 0
}

// checkLeftovers: nothing is at the backend after a step, no protected Session was cut off, and
// what does not go on is gone.
func (w *world) checkLeftovers() {
	if n := w.atBackend(); n > 0 {
		w.fail("%d requests are at the backend after the step", n)
	}
	for _, g := range w.list {
		for _, s := range g.sessions {
			if s.protected && s.alive && !g.over {
				w.fail("the step ended without waiting for the protected session %d/%d", g.id, s.seq)
			}
		}
		switch {
		case g.over && g.resident():
			w.fail("group %d is over, but still runs after the step", g.id)
		case g.over || g.eval:
		case g.leased && !w.cfg.PartialRollout && !w.cfg.FullyAsync, !g.leased && !w.cfg.PartialRollout && !w.cfg.FullyAsync && !w.cfg.Prelaunch:
			w.fail("group %d outlives a step of a mode that keeps nothing", g.id)
		}
	}
}

func (w *world) checkDebt(a EndStep) {
	debt, last := 0, w.open
	for _, p := range w.open {
		debt += max(0, p.target-p.groups)
	}
	if w.starved() && w.cfg.FullyAsync {
		debt = a.Debt // ended short
	}
	if a.Debt != debt {
		w.fail("the step ends with a debt of %d, want %d", a.Debt, debt)
	}
	switch {
	case a.Failure != "":
		w.tally.Failures++
	case a.Debt == 0:
	case w.tasksEnded:
		w.tally.Starved++
	case w.coveredAt < 0 || !w.pausedInStep || w.cfg.MaxStaleness < 1 || a.Rollout == w.cfg.NumRollout:
		w.fail("the step ends with a debt of %d and no reason", a.Debt)
	default:
		w.tally.Covered++
	}
	if !w.cfg.FullyAsync {
		if p := last[0]; p.groups > p.target && p.groups%w.cfg.DataParallel != 0 {
			w.fail("a dynamic batch has %d groups for a data-parallel size of %d", p.groups, w.cfg.DataParallel)
		}
		w.open = nil
	}
}

// audit compares the machine's books with the world's.
func (w *world) audit(b Books, own *simBooks, carried, carriedS int) {
	groups := Balance{own.inherited, own.started, own.delivered, own.dropped, carried}
	sessions := Balance{own.inheritedS, own.startedS, own.deliveredS, own.droppedS, carriedS}
	if b.Groups != groups || b.Sessions != sessions || b.Retries != own.retries {
		w.fail("books %+v: want groups %+v, sessions %+v, %d retries", b, groups, sessions, own.retries)
	}
	for _, x := range []Balance{b.Groups, b.Sessions} {
		if x.Inherited+x.Started != x.Delivered+x.Dropped+x.Carried {
			w.fail("books do not balance: %+v", x)
		}
	}
	*own = simBooks{inherited: carried, inheritedS: carriedS}
}
