package schedule

import "maps"

// A Balance says where everything came from and ended up:
// Inherited + Started = Delivered + Dropped + Carried.
type Balance struct {
	// Inherited was carried over from the step before.
	Inherited int
	Started   int
	Delivered int
	Dropped   int
	// Carried goes on in the next step.
	Carried int
}

// Books are the accounts of a step. What happens between two train steps is in the books of the
// later one; a Session that was run again counts once.
type Books struct {
	Groups, Sessions Balance
	// Dropped counts Groups by reason.
	Dropped map[Reason]int
	// Filtered counts, among them, those a filter took out.
	Filtered int
	// Retries counts Sessions that were run again.
	Retries int
}

func newBooks() Books { return Books{Dropped: map[Reason]int{}} }

func (b *Books) start(sessions int) {
	b.Groups.Started++
	b.Sessions.Started += sessions
}

func (b *Books) deliver(sessions int) {
	b.Groups.Delivered++
	b.Sessions.Delivered += sessions
}

func (b *Books) drop(reason Reason, sessions int) {
	b.Groups.Dropped++
	b.Sessions.Dropped += sessions
	b.Dropped[reason]++
}

// closeBooks returns the accounts of the step and opens the next, which inherits what is carried.
func (b *Books) closeBooks() Books {
	out := *b
	out.Dropped = maps.Clone(b.Dropped)
	for _, x := range []*Balance{&out.Groups, &out.Sessions} {
		x.Carried = x.Inherited + x.Started - x.Delivered - x.Dropped
	}
	*b = newBooks()
	b.Groups.Inherited, b.Sessions.Inherited = out.Groups.Carried, out.Sessions.Carried
	return out
}

// books of the step a Group belongs to.
func (m *Machine) booksOf(g *group) *Books {
	if g.eval {
		return &m.step.eval.books
	}
	return &m.books
}
