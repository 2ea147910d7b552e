package forest

import (
	"slices"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Prefix and History append, and share what the nodes hold.
func TestViewsAppend(t *testing.T) {
	f := New("s")
	first := say(t, f, request(user("q")), assistant("a"))
	n := say(t, f, request(user("q"), assistant("a"), user("r")), assistant("b"))
	before := []int32{7}
	segments := n.Prefix([][]int32{before})
	if got := slices.Concat(segments...); !slices.Equal(got, []int32{7, 1, 2, 100, 1, 2, 102}) {
		t.Errorf("prefix %v", got)
	}
	if &segments[3][0] != &first.Generation().IDs[0] {
		t.Error("the prefix is a copy")
	}
	other := user("other")
	history := n.History([]*canon.Message{other})
	want := []*canon.Message{other, user("q"), assistant("a"), user("r"), assistant("b")}
	if !slices.EqualFunc(history, want, (*canon.Message).Equal) || history[2] != first.Messages()[0] {
		t.Errorf("history of %d messages", len(history))
	}
	if len(f.Root().Prefix(nil)) != 0 || len(f.Root().History(nil)) != 0 {
		t.Error("the root holds nothing")
	}
}
