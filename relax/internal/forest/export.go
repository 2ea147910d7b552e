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
	if n := f.exactly(req); n != nil {
		return n, nil
	}
	return nil, f.missing(req, false)
}

// FindTolerant is Find by the policy "tolerant", see [Forest.MatchTolerant]: a record that is no
// recorded conversation as it is may be one with what the policy forgives replaced.
func (f *Forest) FindTolerant(req *canon.Request) (*Node, error) {
	if n := f.exactly(req); n != nil {
		return n, nil
	}
	stored, _ := f.tolerate(req)
	if n := f.exactly(stored); n != nil {
		return n, nil
	}
	return nil, f.missing(stored, true)
}

// exactly returns the node that can be exported for a record, nil if there is none.
func (f *Forest) exactly(req *canon.Request) *Node {
	s := f.state(req)
	if n := f.lookup(s, Response, req, len(req.Messages)); n != nil {
		return n
	}
	if n := f.lookup(s, Observation, req, len(req.Messages)); n != nil && n.responses > 0 {
		return n
	}
	return nil
}

// state is that of all messages of a request.
func (f *Forest) state(req *canon.Request) canon.State {
	s := canon.RootState(req.Tools, req.Kwargs) & f.mask
	for _, m := range req.Messages {
		s = s.Next(m) & f.mask
	}
	return s
}

// missing says why a record cannot be exported.
func (f *Forest) missing(req *canon.Request, forgiving bool) error {
	if obs := f.lookup(f.state(req), Observation, req, len(req.Messages)); obs != nil {
		return fmt.Errorf("%w: %s", ErrNotFinalizable, obs.nothingSampled())
	}
	if len(f.responses) == 0 {
		return fmt.Errorf("%w: the session committed no response", ErrNotFinalizable)
	}
	d := difference(f.nearest(req, f.recorded(len(req.Messages))), req)
	if forgiving {
		d.forgive(req)
	}
	return fmt.Errorf("%w: the record is no recorded conversation; nearest is #%d: %s", ErrNotFinalizable, d.Node.id, d)
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

// recorded returns what a record could have named, those with n messages last: the responses in
// order of commit, each with the unanswered requests behind it.
func (f *Forest) recorded(n int) []*Node {
	var others, exact []*Node
	add := func(o *Node) {
		if o.end() == n {
			exact = append(exact, o)
		} else {
			others = append(others, o)
		}
	}
	for _, o := range f.responses {
		add(o)
		for _, request := range o.children {
			if !request.continued {
				add(request)
			}
		}
	}
	return append(others, exact...)
}
