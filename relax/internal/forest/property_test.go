package forest

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// seeds and operations of the generated histories; with [histories] 260,000 operations.
const (
	seeds      = 5
	operations = 260
)

// kinds must all happen in the generated histories.
var kinds = []string{
	"explained: " + string(ReasonTools), "explained: " + string(ReasonKwargs), "explained: " + string(ReasonMessage),
	"explained: " + string(ReasonShorter), "not explained", "tolerated", "tolerated arguments", "repeated answer", "repeated request",
	"lost answer", "one context", "several contexts", "main", "tie", "shared response", "row ends unanswered",
}

// TestProperties plays generated histories and checks the rules no forest may break.
func TestProperties(t *testing.T) {
	masks := []canon.State{^canon.State(0), ^canon.State(0), 0xf, 0}
	seen := map[string]int{}
	for seed := range uint64(seeds) {
		for i := range uint64(histories) {
			w := newWorld(t, seed<<32|i, masks[i%uint64(len(masks))], seen)
			w.play()
		}
	}
	for _, kind := range kinds {
		if seen[kind] == 0 {
			t.Errorf("no history has a case of %q", kind)
		}
	}
	t.Log(seen)
}

func (w *world) play() {
	var early Lineage
	var earlyRow []int32
	for i := range operations {
		w.seen["operations"]++
		switch w.r.IntN(8) {
		case 0, 1, 2:
			w.ask()
		case 3, 4:
			w.attach()
		case 5, 6:
			w.answer()
		default:
			w.deliver()
		}
		if i == operations/3 && len(w.answers) > 0 {
			early = w.f.Row(w.answers[len(w.answers)-1].node)
			earlyRow = tokensOf(early)
		}
		if i == 9 || i == 25 || i%65 == 64 {
			w.checkTree()
			w.checkContexts()
		}
	}
	w.checkTree()
	w.checkContexts()
	w.checkRows()
	w.checkFates()
	if !slices.Equal(tokensOf(early), earlyRow) {
		w.fail("a row changed after it was laid out")
	}
}

func tokensOf(l Lineage) []int32 {
	var ids []int32
	for _, p := range l.Pieces {
		ids = append(ids, p.Tokens...)
	}
	return ids
}

// sameTurnInOtherWords is the tolerant policy, said in other words than the forest says it.
func sameTurnInOtherWords(recorded, sent *canon.Message) bool {
	if recorded.Role != canon.Assistant || sent.Role != canon.Assistant {
		return false
	}
	if sent.Reasoning != "" && sent.Reasoning != recorded.Reasoning {
		return false
	}
	if len(sent.ToolCalls) != len(recorded.ToolCalls) || strings.TrimSpace(sent.Content) != strings.TrimSpace(recorded.Content) {
		return false
	}
	for i, c := range sent.ToolCalls {
		if c.ID == engineID {
			c.Arguments = recorded.ToolCalls[i].Arguments
		}
		if c != recorded.ToolCalls[i] {
			return false
		}
	}
	return true
}

// askTolerant matches by the tolerant policy. Only answers of the model are forgiven.
func (w *world) askTolerant(a *asked) {
	forgiven, replaced := w.forgiven(a.req)
	if forgiven != nil && (a.parent == nil || len(forgiven.whole.Messages) > len(a.parent.whole.Messages)) {
		a.parent, a.replaced = forgiven, replaced
	}
	sent := slices.Clone(a.req.Messages)
	stored, match, n := w.f.MatchTolerant(a.req)
	if n != a.replaced || match.Replaced != n || (n == 0) != (stored == a.req) {
		w.fail("%d messages replaced, want %d, in %s", n, a.replaced, show(a.req))
	}
	if !slices.Equal(sent, a.req.Messages) {
		w.fail("the request was changed")
	}
	if slices.Contains(match.Forgiven, "tool_calls") {
		w.seen["tolerated arguments"]++
	}
	a.req, a.match = stored, match
}

// forgiven is the answer a request replays by the tolerant policy.
func (w *world) forgiven(req *canon.Request) (*answer, int) {
	var best *answer
	fewest := 0
	for _, b := range w.answers {
		sampled := map[int]bool{}
		for _, above := range b.lineage() {
			sampled[len(above.whole.Messages)-1] = true
		}
		same := func(at int, recorded, sent *canon.Message) bool {
			return sampled[at] && sameTurnInOtherWords(recorded, sent)
		}
		n, ok := replays(b.whole, req, same)
		if !ok {
			continue
		}
		if best == nil || cmp.Or(
			cmp.Compare(len(b.whole.Messages), len(best.whole.Messages)), cmp.Compare(fewest, n),
			compareBool(best.undelivered(), b.undelivered())) >= 0 {
			best, fewest = b, n
		}
	}
	return best, fewest
}

// compareBool puts false first.
func compareBool(a, b bool) int {
	if a == b {
		return 0
	}
	if b {
		return -1
	}
	return 1
}

// checkDivergence checks that a request is explained if and only if the conversation it extends
// was continued before, and that the difference shown is the first one.
func (w *world) checkDivergence(a *asked) {
	d := w.f.Explain(a.match, a.req)
	open := a.parent != nil && !slices.ContainsFunc(w.answers, func(b *answer) bool { return b.at.parent == a.parent })
	if (d == nil) != (open || len(w.answers) == 0) {
		w.fail("explained as %v: %s", d, show(a.req))
	}
	if d == nil {
		w.seen["not explained"]++
		return
	}
	w.seen["explained: "+string(d.Reason)]++
	of := w.answers[slices.IndexFunc(w.answers, func(b *answer) bool { return b.node == d.Node })].whole
	if d.Message < 0 {
		if sameContext(of, a.req) {
			w.fail("%s, but they are equal: %s", d, show(a.req))
		}
		return
	}
	if !sameContext(of, a.req) || d.Message < a.from {
		w.fail("%s, but it extends message %d: %s", d, a.from, show(a.req))
	}
	for i := range min(d.Message, len(of.Messages)) {
		if !of.Messages[i].Equal(a.req.Messages[i]) {
			w.fail("%s, but message %d differs before: %s", d, i, show(a.req))
		}
	}
	recorded, sent := d.Message < len(of.Messages), d.Message < len(a.req.Messages)
	want := map[[2]bool]Reason{{true, true}: ReasonMessage, {true, false}: ReasonShorter, {false, true}: ReasonLonger}
	if d.Reason != want[[2]bool{recorded, sent}] {
		w.fail("%s: reason %q for %s", d, d.Reason, show(a.req))
	}
	if d.Reason == ReasonMessage && (d.Field == "" || d.Recorded == d.Sent || of.Messages[d.Message].Equal(a.req.Messages[d.Message])) {
		w.fail("%s names no difference: %s", d, show(a.req))
	}
}

// checkTree walks the tree: nothing is missing, twice or without its parent, every mark is right,
// and every stream is the one the truth says.
func (w *world) checkTree() {
	nodes := map[*Node]bool{}
	var walk func(n *Node) (continued, followed bool)
	walk = func(n *Node) (continued, followed bool) {
		for _, child := range n.children {
			if child.parent != n || nodes[child] || child.kind == Response != (n.kind == Observation) {
				w.fail("#%d is wrong below #%d", child.id, n.id)
			}
			nodes[child] = true
			c, f := walk(child)
			continued = continued || c || child.kind == Response
			followed = followed || f || child.kind == Response && !child.IsUndelivered()
		}
		if n.continued != continued || n.followed != followed {
			w.fail("#%d is marked %v %v, want %v %v", n.id, n.continued, n.followed, continued, followed)
		}
		return continued, followed
	}
	walk(w.f.Root())
	if len(nodes) != w.f.count || w.f.count != len(w.asked)+len(w.answers) || len(w.f.responses) != len(w.answers) {
		w.fail("%d nodes in the tree, %d counted, %d requests, %d answers", len(nodes), w.f.count, len(w.asked), len(w.answers))
	}
	for _, a := range w.asked {
		if got := slices.Concat(a.node.Prefix(nil)...); !nodes[a.node] || !slices.Equal(got, a.stream()) || a.node.Len() != len(got) {
			w.fail("#%d holds %v, want %v", a.node.id, got, a.stream())
		}
		if a.node.Replaced() != a.replaced || !slices.EqualFunc(a.node.History(nil), a.req.Messages, (*canon.Message).Equal) {
			w.fail("#%d replaced %d, want %d", a.node.id, a.node.Replaced(), a.replaced)
		}
	}
	for _, a := range w.answers {
		if got := slices.Concat(a.node.Prefix(nil)...); !nodes[a.node] || !slices.Equal(got, a.stream()) || a.node.Len() != len(got) {
			w.fail("#%d holds %v, want %v", a.node.id, got, a.stream())
		}
		if a.node.IsUndelivered() != a.undelivered() || a.node.Duplicates() != a.commits-1 {
			w.fail("#%d is undelivered: %v, want %v", a.node.id, a.node.IsUndelivered(), a.undelivered())
		}
		if found, err := w.f.Find(a.whole); err != nil || !slices.EqualFunc(found.History(nil), a.whole.Messages, (*canon.Message).Equal) {
			w.fail("#%d is not found: %v", a.node.id, err)
		}
	}
}
