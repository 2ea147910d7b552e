package forest

import (
	"errors"
	"fmt"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// ErrNotFinalizable is wrapped by errors of exports that name no recorded context.
var ErrNotFinalizable = errors.New("not finalizable")

// Find returns the node whose conversation is exactly that of an explicit record: a response,
// or an observation with a response above it. Of equal ones the newest wins. The error names
// the nearest recorded conversation and where it parts from the record.
func (f *Forest) Find(req *canon.Request) (*Node, error) {
	s := canon.RootState(req.Tools, req.Kwargs) & f.mask
	for _, m := range req.Messages {
		s = s.Next(m) & f.mask
	}
	if n := f.lookup(s, Response, req, len(req.Messages)); n != nil {
		return n, nil
	}
	obs := f.lookup(s, Observation, req, len(req.Messages))
	if obs != nil && obs.responses > 0 {
		return obs, nil
	}
	if obs != nil {
		return nil, fmt.Errorf("%w: the record's %d messages were sent, but no response of the session answers them; "+
			"export a conversation with at least one response", ErrNotFinalizable, len(req.Messages))
	}
	if len(f.responses) == 0 {
		return nil, fmt.Errorf("%w: the session committed no response", ErrNotFinalizable)
	}
	near := f.nearest(req, f.responses)
	return nil, fmt.Errorf("%w: the record is no recorded conversation; nearest is #%d: %s",
		ErrNotFinalizable, near.id, difference(near, req))
}
