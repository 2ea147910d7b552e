package forest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A speaker is a conversation of an agent that goes on turn by turn.
type speaker struct {
	t    *testing.T
	f    *Forest
	req  *canon.Request
	last *Node
}

func speakerOf(t *testing.T, f *Forest, text string, tools ...string) *speaker {
	return &speaker{t: t, f: f, req: withTools(request(user(text)), tools...)}
}

// begin sends the next request without an answer; end answers it.
func (s *speaker) begin() *Node {
	if s.last != nil {
		s.req.Messages = append(s.req.Messages, s.last.Messages()[0], user(fmt.Sprint("go on ", s.last.Responses())))
	}
	return s.f.Attach(s.f.Match(s.req), []int32{1}, []int32{2}, s.req)
}

func (s *speaker) end(obs *Node) {
	s.t.Helper()
	id := int32(100 + s.f.count)
	n, err := s.f.Commit(obs, Generation{IDs: []int32{id}, Logprobs: logprobs(1), Message: assistant(fmt.Sprint("answer ", id))})
	if err != nil {
		s.t.Fatal(err)
	}
	s.last = n
}

func (s *speaker) turns(n int) *speaker {
	for range n {
		s.end(s.begin())
	}
	return s
}

// mainCases are Sessions and their main context by the steps of [Forest.Main].
var mainCases = []struct {
	name string
	// play returns the main context, nil for a tie of the contexts in tied.
	play func(t *testing.T, f *Forest) (main *speaker, tied []*speaker)
}{
	{"most turns, though it has fewer tools and ended first", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		a := speakerOf(t, f, "a").turns(3)
		speakerOf(t, f, "b", "x", "y").turns(2)
		return a, nil
	}},
	{"most tools of equal turns, though it ended first", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		a := speakerOf(t, f, "a", "x", "y").turns(2)
		speakerOf(t, f, "b", "x").turns(2)
		return a, nil
	}},
	{"the next conversation, as after a compaction", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		speakerOf(t, f, "a", "x").turns(2)
		return speakerOf(t, f, "b", "x").turns(2), nil
	}},
	{"the one around a sub-agent", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		a := speakerOf(t, f, "a").turns(1)
		speakerOf(t, f, "b").turns(2)
		return a.turns(1), nil
	}},
	{"two side by side", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		a, b := speakerOf(t, f, "a"), speakerOf(t, f, "b")
		first, second := a.begin(), b.begin()
		b.end(second)
		a.end(first)
		return nil, []*speaker{a, b}
	}},
	{"two that take turns", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		a, b := speakerOf(t, f, "a").turns(1), speakerOf(t, f, "b").turns(1)
		return nil, []*speaker{a.turns(1), b.turns(1)}
	}},
	{"one still waits while the other begins", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		a := speakerOf(t, f, "a").turns(1)
		a.begin()
		return nil, []*speaker{a, speakerOf(t, f, "b").turns(1)}
	}},
	{"a rewind of equal length", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		a := speakerOf(t, f, "a").turns(1)
		b := *a
		back := *a.req
		b.req = &back
		a.turns(1)
		b.req.Messages = append(b.req.Messages, b.last.Messages()[0], user("another way"))
		b.last = nil
		return nil, []*speaker{a, b.turns(1)}
	}},
	{"the same request twice", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		return nil, []*speaker{speakerOf(t, f, "a").turns(1), speakerOf(t, f, "a").turns(1)}
	}},
	{"two rivals below a longer conversation", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		speakerOf(t, f, "a").turns(1)
		speakerOf(t, f, "a").turns(1)
		return speakerOf(t, f, "b").turns(2), nil
	}},
	{"one that follows two rivals", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		speakerOf(t, f, "a").turns(1)
		speakerOf(t, f, "a").turns(1)
		return speakerOf(t, f, "b").turns(1), nil
	}},
	{"a lost answer sent again", func(t *testing.T, f *Forest) (*speaker, []*speaker) {
		f.Undelivered(speakerOf(t, f, "a").turns(1).last)
		return speakerOf(t, f, "a").turns(1), nil
	}},
}

func TestMain(t *testing.T) {
	for _, tt := range mainCases {
		f := New("s")
		want, tied := tt.play(t, f)
		node, side, err := f.Main()
		if want != nil {
			if err != nil || node != want.last || len(side) != len(f.Contexts())-1 {
				t.Errorf("%s: %v beside %v, %v; want #%d", tt.name, node, ids(side), err, want.last.ID())
			}
			continue
		}
		if !errors.Is(err, ErrNotFinalizable) || node != nil {
			t.Errorf("%s: got #%v, %v", tt.name, node, err)
			continue
		}
		for _, s := range tied {
			if !strings.Contains(err.Error(), s.last.brief()) {
				t.Errorf("%s: %v does not name #%d", tt.name, err, s.last.ID())
			}
		}
	}
}

func TestMainOfNothing(t *testing.T) {
	f := New("s")
	speakerOf(t, f, "a").begin()
	if _, _, err := f.Main(); !errors.Is(err, ErrNotFinalizable) || !strings.Contains(err.Error(), "no response") {
		t.Errorf("got %v", err)
	}
}

// A run that ended while the main conversation waited exports it with the unanswered request.
func TestMainUnanswered(t *testing.T) {
	f := New("s")
	a := speakerOf(t, f, "a").turns(2)
	title := speakerOf(t, f, "title").turns(1)
	waiting := a.begin()
	node, side, err := f.Main()
	if err != nil || node != waiting || len(side) != 1 || side[0] != title.last {
		t.Fatalf("got %v beside %v, %v", node, ids(side), err)
	}
	if row := f.Row(node); !row.Truncated || row.Turns != 2 {
		t.Errorf("got %+v", row)
	}
}
