package schedule

import "slices"

// sessionEvent lets one Session do something.
func (w *world) sessionEvent() {
	g := w.pick(func(g *simGroup) bool { return g.resident() })
	if g == nil {
		return
	}
	from := w.rng.IntN(len(g.sessions))
	for i := range g.sessions {
		if s := g.sessions[(from+i)%len(g.sessions)]; s.alive {
			w.live(s)
			return
		}
	}
}

func (w *world) live(s *simSession) {
	switch {
	case s.killed || s.g.over:
		w.gone(s, false, "agent_exit")
	case s.plan == launchFails:
		w.gone(s, false, "start_failed")
	case s.plan == silent:
	case s.plan == leavesEarly && !s.g.leased:
		w.gone(s, true, "")
	case !s.requested && w.hostile.legacy:
		s.requested = true
		w.trace("session %d/%d requests", s.g.id, s.seq)
		w.apply(w.m.SessionRequested(w.now, s.ref()))
	case !s.requested || (len(s.requests) == 0 && s.turns > 0 && !w.hostile.legacy):
		w.request(s)
	case s.plan == crashes && w.rng.IntN(3) == 0:
		w.gone(s, false, "agent_exit")
	case s.plan == hangs:
	case s.g.leased && len(s.requests) == 0:
		w.gone(s, true, "")
	}
}

// request makes one model request, or two at once.
func (w *world) request(s *simSession) {
	s.turns--
	s.requested = true
	for range 1 + w.rng.IntN(2) {
		w.nextID++
		r := &simRequest{id: w.nextID, s: s, inherited: w.inherits(s)}
		r.aborts = r.inherited
		w.requests[r.id] = r
		s.requests = append(s.requests, r)
		w.trace("session %d/%d makes request %d", s.g.id, s.seq, r.id)
		w.apply(w.m.RequestArrived(w.now, s.ref(), r.id, r.aborts))
		if !s.alive || s.g.over {
			return
		}
	}
}

// inherits is how often the turns were aborted that a new request goes on from: those of the Session's
// conversation so far, or none if it begins another.
func (w *world) inherits(s *simSession) int {
	if s.aborts == 0 || w.rng.IntN(4) == 0 {
		return 0
	}
	return s.aborts
}

// gone ends a Session's process. Its requests are answered before, or with it.
func (w *world) gone(s *simSession, well bool, reason Reason) {
	if w.rng.IntN(2) == 0 {
		for _, r := range slices.Clone(s.requests) {
			w.answer(r)
		}
	}
	for _, r := range s.requests {
		delete(w.requests, r.id)
	}
	s.requests, s.alive = nil, false
	w.idle = 0
	w.trace("session %d/%d is gone, well %t", s.g.id, s.seq, well)
	if well {
		s.exported = s.g.leased
		w.apply(w.m.SessionExported(w.now, s.ref()))
		return
	}
	s.armed, s.protected = false, false
	w.apply(w.m.SessionFailed(w.now, s.ref(), reason, "exit 1"))
}

func (w *world) answer(r *simRequest) {
	w.idle = 0
	w.forgetRequest(r)
	r.s.aborts = max(r.s.aborts, r.aborts)
	w.trace("request %d is answered", r.id)
	w.apply(w.m.RequestReturned(w.now, r.id, Answered))
}

func (w *world) forgetRequest(r *simRequest) {
	delete(w.requests, r.id)
	r.s.requests = slices.DeleteFunc(r.s.requests, func(o *simRequest) bool { return o == r })
}

// requestEvent lets the backend do something with one request, or its client leave.
func (w *world) requestEvent() {
	w.some = w.some[:0]
	busy := w.rng.IntN(8) > 0 // look at those at the backend
	for _, g := range w.list {
		for _, s := range g.sessions {
			for _, r := range s.requests {
				if r.passed == busy {
					w.some = append(w.some, r)
				}
			}
		}
	}
	if len(w.some) == 0 {
		return
	}
	r := w.some[w.rng.IntN(len(w.some))]
	switch {
	case !r.passed:
		if w.chance(w.hostile.leave) && r.s.g.leased {
			w.answer(r)
		}
	case r.asked && w.chance(w.hostile.lost):
		w.tally.Lost++ // the engine sends it again later
	case r.asked && w.rng.IntN(4) == 0:
		w.back(r, Withdrawn)
	case r.asked && w.rng.IntN(4) > 0:
		w.back(r, Aborted)
	case !r.asked && w.chance(w.hostile.foreign):
		w.tally.Foreign++
		w.back(r, Aborted)
	case r.asked || w.rng.IntN(3) == 0:
		w.answer(r)
	}
}

// back returns a request that is not finished.
func (w *world) back(r *simRequest, how Outcome) {
	goesOn := !r.s.g.over && !r.s.killed
	asked := r.asked
	r.passed, r.asked = false, false
	if !goesOn {
		w.forgetRequest(r)
	} else if how == Aborted {
		r.aborts++
		if n := w.full.MaxAborted; n > 0 && r.aborts >= n && !r.s.g.eval {
			if !r.s.armed && !r.s.protected && r.aborts-r.inherited < n {
				w.tally.Inherited++
			}
			r.s.armed = true
		}
		if asked && w.stepOpen {
			r.parkedBy = w.rollout + 1
		}
	}
	w.trace("request %d is back: %v", r.id, how)
	w.apply(w.m.RequestReturned(w.now, r.id, how))
}

// workerDies ends or aborts everything at the backend.
func (w *world) workerDies() {
	w.trace("a worker dies")
	for id := RequestID(1); id <= w.nextID; id++ {
		r := w.requests[id]
		if r == nil || !r.passed {
			continue
		}
		if w.rng.IntN(2) == 0 {
			w.back(r, Aborted)
		} else {
			w.answer(r)
		}
	}
}
