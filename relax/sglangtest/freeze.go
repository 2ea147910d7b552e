package sglangtest

// Freeze makes the server do nothing, as a process under SIGSTOP: connections and requests are
// taken, no token is made, nothing is answered, until [Server.Thaw] or [Server.Close]. When it
// returns no token is being made any more.
func (s *Server) Freeze() {
	s.mu.Lock()
	if s.frozen != nil {
		s.mu.Unlock()
		return
	}
	s.frozen = make(chan struct{})
	held := make([]*run, 0, len(s.live))
	for r := range s.live {
		r.signal(signalFreeze)
		held = append(held, r)
	}
	s.change()
	s.mu.Unlock()
	for _, r := range held {
		r.settle()
	}
}

// Thaw ends a [Server.Freeze]: everything goes on where it was, and what came meanwhile is
// looked at.
func (s *Server) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		return
	}
	close(s.frozen)
	s.frozen = nil
	for r := range s.live {
		r.bits.And(^signalFreeze)
		r.poke()
	}
	s.change()
}

// awaitThaw holds a request of any kind while the server is frozen. false: the server closes.
func (s *Server) awaitThaw() bool {
	for {
		s.mu.Lock()
		frozen := s.frozen
		s.mu.Unlock()
		if frozen == nil {
			return true
		}
		select {
		case <-frozen:
		case <-s.http.ctx.Done():
			return false
		}
	}
}
