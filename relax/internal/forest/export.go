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
		return nil, fmt.Errorf("%w: %s", ErrNotFinalizable, obs.nothingSampled())
	}
	if len(f.responses) == 0 {
		return nil, fmt.Errorf("%w: the session committed no response", ErrNotFinalizable)
	}
	near := f.nearest(req, f.recorded(len(req.Messages)))
	return nil, fmt.Errorf("%w: the record is no recorded conversation; nearest is #%d: %s",
		ErrNotFinalizable, near.id, difference(near, req))
}

// nothingSampled says why a record that ends with a first observation trains nothing.
func (n *Node) nothingSampled() string {
	if !n.continued {
		return fmt.Sprintf("the record's %d messages were sent, but no response of the session answers them; "+
			"export a conversation with at least one response", n.end())
	}
	return fmt.Sprintf("the record's %d messages end before the first response; export a conversation with at least one, "+
		"such as that of %s", n.end(), n.newestEnd().brief())
}

// recorded returns the responses in order of commit, those with a conversation of n messages
// last.
func (f *Forest) recorded(n int) []*Node {
	var others, exact []*Node
	for _, o := range f.responses {
		if o.end() == n {
			exact = append(exact, o)
		} else {
			others = append(others, o)
		}
	}
	return append(others, exact...)
}
