package forest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A world is a forest and beside it the plain truth about what it was told: two lists, searched
// from end to end. Sampled ids are positive and never sampled twice, observed ids negative.
type world struct {
	t     *testing.T
	label string
	r     *rand.Rand
	f     *Forest

	asked    []*asked  // in the order they were attached
	answers  []*answer // in the order they were committed, repeats left out
	waiting  []*asked  // matched, not attached yet
	inFlight []*asked  // attached, not answered
	clock    int       // counts new nodes
	nextID   int32

	sampled, repeated, tolerated, replaced int
	seen                                   map[string]int // what happened, all worlds of a test together
}

// An asked is a request.
type asked struct {
	req      *canon.Request
	match    Match
	parent   *answer // nil for the root
	from     int
	replaced int

	order   int
	node    *Node
	answers []*answer
}

// An answer is a generation.
type answer struct {
	at       *asked
	whole    *canon.Request // the conversation with it
	ids      []int32
	versions []int64
	order    int
	node     *Node
	// times it was committed and lost; read: certainly received.
	commits, lost int
	read          bool
}

func (a *answer) undelivered() bool { return !a.read && a.lost == a.commits }

// body are the ids of the request's new messages.
func (a *asked) body() []int32 {
	ids := []int32{}
	for _, m := range a.req.Messages[a.from:] {
		ids = append(ids, -2-int32(m.Hash()%1000), -2-int32(m.Hash()/1000%1000))
	}
	return ids
}

// before are the ids in front of the request's new messages, stream those the model read.
func (a *asked) before() []int32 {
	if a.parent == nil {
		return nil
	}
	return a.parent.stream()
}

func (a *asked) stream() []int32 { return slices.Concat(a.before(), a.body(), []int32{-1}) }

func (a *answer) stream() []int32 { return slices.Concat(a.at.stream(), a.ids) }

// lineage are the answers down to and with a, which may be nil.
func (a *answer) lineage() []*answer {
	var out []*answer
	for ; a != nil; a = a.at.parent {
		out = append(out, a)
	}
	slices.Reverse(out)
	return out
}

func newWorld(t *testing.T, seed uint64, mask canon.State, seen map[string]int) *world {
	w := &world{t: t, seen: seen, r: rand.New(rand.NewPCG(seed, 5)), f: New("s"), label: fmt.Sprintf("seed %d mask %x", seed, mask)}
	w.f.mask = mask
	return w
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	var tree strings.Builder
	_ = w.f.Dump(&tree)
	w.t.Fatalf("%s: %s\n%s", w.label, fmt.Sprintf(format, args...), &tree)
}

// longest is the answer a request extends: the longest, then delivered, then newest. Recorded
// turns may differ from the request's as far as same allows; fewer differences come first.
func (w *world) longest(req *canon.Request, same func(at int, recorded, sent *canon.Message) bool) (best *answer, replaced int) {
	for _, a := range w.answers {
		differences, ok := replays(a.whole, req, same)
		if !ok {
			continue
		}
		if best != nil {
			switch more := len(a.whole.Messages) - len(best.whole.Messages); {
			case more < 0, more == 0 && differences > replaced:
				continue
			case more == 0 && differences == replaced && a.undelivered() && !best.undelivered():
				continue
			}
		}
		best, replaced = a, differences
	}
	return best, replaced
}

// replays reports whether req begins with the recorded conversation, and how many messages
// are only the same.
func replays(recorded, req *canon.Request, same func(at int, recorded, sent *canon.Message) bool) (int, bool) {
	if !sameContext(recorded, req) || len(recorded.Messages) > len(req.Messages) {
		return 0, false
	}
	differences := 0
	for i, m := range recorded.Messages {
		if m.Equal(req.Messages[i]) {
			continue
		}
		if !same(i, m, req.Messages[i]) {
			return 0, false
		}
		differences++
	}
	return differences, true
}

func exactly(int, *canon.Message, *canon.Message) bool { return false }

// ask matches a random request and checks what it is matched with.
func (w *world) ask() {
	req := w.request()
	a := &asked{req: req}
	a.parent, _ = w.longest(req, exactly)
	if w.r.IntN(3) == 0 {
		w.askTolerant(a)
	} else {
		a.match = w.f.Match(req)
	}
	want := w.f.Root()
	if a.parent != nil {
		want, a.from = a.parent.node, len(a.parent.whole.Messages)
	}
	if a.match.Parent != want || a.match.From != a.from {
		w.fail("matched #%d at %d, want #%d at %d: %s", a.match.Parent.ID(), a.match.From, want.ID(), a.from, show(a.req))
	}
	known := w.known(a)
	if (a.match.Observation != nil) != (known != nil) || known != nil && known.node != a.match.Observation {
		w.fail("the observation of %s is %v", show(a.req), a.match.Observation)
	}
	w.checkDivergence(a)
	w.waiting = append(w.waiting, a)
}

// known is the request that is recorded already with the same parent and messages.
func (w *world) known(a *asked) *asked {
	for _, o := range w.asked {
		if _, ok := replays(o.req, a.req, exactly); ok && o.parent == a.parent && len(o.req.Messages) == len(a.req.Messages) {
			return o
		}
	}
	return nil
}

// attach puts a waiting request into the forest, perhaps long after it was matched.
func (w *world) attach() {
	if len(w.waiting) == 0 {
		return
	}
	i := w.r.IntN(len(w.waiting))
	a := w.waiting[i]
	w.waiting = slices.Delete(w.waiting, i, i+1)
	if a.replaced > 0 {
		w.tolerated++
		w.replaced += a.replaced
		w.seen["tolerated"]++
	}
	node := w.f.Attach(a.match, a.body(), []int32{-1}, a.req)
	if known := w.known(a); known != nil {
		if known.node != node {
			w.fail("%s was attached as #%d and as #%d", show(a.req), known.node.ID(), node.ID())
		}
		known.replaced = max(known.replaced, a.replaced)
		w.inFlight = append(w.inFlight, known)
		w.seen["repeated request"]++
		return
	}
	w.clock++
	a.node, a.order = node, w.clock
	if a.parent != nil {
		a.parent.read = true
	}
	w.asked = append(w.asked, a)
	w.inFlight = append(w.inFlight, a)
}

// answer commits a generation of a request in flight: of a new text, of an old text by other
// ids, or an old one once more.
func (w *world) answer() {
	if len(w.inFlight) == 0 {
		return
	}
	i := w.r.IntN(len(w.inFlight))
	a := w.inFlight[i]
	w.inFlight = slices.Delete(w.inFlight, i, i+1)
	if len(a.answers) > 0 && w.r.IntN(2) == 0 {
		again := a.answers[w.r.IntN(len(a.answers))]
		w.sampled += len(again.ids)
		w.repeated += len(again.ids)
		w.seen["repeated answer"]++
		if n := w.commit(again); n != again.node {
			w.fail("#%d was committed again as #%d", again.node.ID(), n.ID())
		}
		return
	}
	b := &answer{at: a}
	for range w.r.IntN(4) {
		w.nextID++
		b.ids = append(b.ids, w.nextID)
		b.versions = append(b.versions, int64(w.r.IntN(2)))
	}
	whole := *a.req
	whole.Messages = append(slices.Clone(a.req.Messages), w.turn())
	b.whole = &whole
	for _, o := range a.answers {
		if len(b.ids) == 0 && len(o.ids) == 0 && o.message().Equal(b.message()) {
			b = o
			w.commit(b)
			return
		}
	}
	w.clock++
	b.order = w.clock
	w.sampled += len(b.ids)
	b.node = w.commit(b)
	a.answers = append(a.answers, b)
	w.answers = append(w.answers, b)
}

func (a *answer) message() *canon.Message { return a.whole.Messages[len(a.whole.Messages)-1] }

func (w *world) commit(b *answer) *Node {
	g := Generation{IDs: slices.Clone(b.ids), Message: b.message(), Truncated: b.truncated()}
	for i, id := range b.ids {
		g.Logprobs = append(g.Logprobs, logprobOf(id))
		if i == 0 || b.versions[i] != b.versions[i-1] {
			g.Spans = append(g.Spans, VersionSpan{Start: i, Version: b.versions[i]})
		}
	}
	n, err := w.f.Commit(b.at.node, g)
	if err != nil {
		w.fail("%v", err)
	}
	b.commits++
	return n
}

func (a *answer) truncated() bool { return len(a.ids) == 3 }

func logprobOf(id int32) float32 { return -float32(id) / 1024 }

// deliver tells the fate of a random answer.
func (w *world) deliver() {
	if len(w.answers) == 0 {
		return
	}
	a := w.answers[w.r.IntN(len(w.answers))]
	if w.r.IntN(4) == 0 {
		a.read = true
		w.f.Delivered(a.node)
		return
	}
	if !a.read {
		a.lost = min(a.lost+1, a.commits)
	}
	w.f.Undelivered(a.node)
}

// engineID is an id as the engine makes them.
const engineID = "call_0123456789abcdef01234567"

// turn is a random answer of a model; there are few, so that many are equal.
func (w *world) turn() *canon.Message {
	m := canon.Message{Role: canon.Assistant, Content: []string{"x", "y", "y\n"}[w.r.IntN(3)]}
	m.Reasoning = []string{"", "", "hm", "so"}[w.r.IntN(4)]
	if w.r.IntN(4) == 0 {
		m.ToolCalls = []canon.ToolCall{{
			ID: []string{"", "f:0", engineID}[w.r.IntN(3)], Name: []string{"f", "g"}[w.r.IntN(2)], Arguments: "{}",
		}}
	}
	return canon.NewMessage(m)
}

// request returns a random request: mostly one that continues, repeats or changes a recorded
// conversation as agents do.
func (w *world) request() *canon.Request {
	req := request()
	if n := len(w.answers); n > 0 && w.r.IntN(8) > 0 {
		from := w.answers[n-1-w.r.IntN(min(n, 12))].whole
		req.Tools, req.Kwargs = from.Tools, from.Kwargs
		req.Messages = slices.Clone(from.Messages)
		w.change(req)
	}
	switch w.r.IntN(16) {
	case 0:
		req.Tools = []canon.ToolSpec{canon.NewToolSpec([]string{"f", "g"}[w.r.IntN(2)], nil, canon.Value{})}
	case 1:
		req.Kwargs = canon.ObjectOf(canon.Member{Key: "k", Value: canon.StringValue([]string{"v", "w"}[w.r.IntN(2)])})
	}
	if len(req.Messages) == 0 {
		req.Messages = append(req.Messages, user("a"))
	}
	if len(req.Messages) > 24 {
		req.Messages = req.Messages[:1+w.r.IntN(8)]
	}
	return req
}

// change does to a recorded conversation what an agent may do.
func (w *world) change(req *canon.Request) {
	size := len(req.Messages)
	next := user([]string{"a", "b"}[w.r.IntN(2)])
	switch w.r.IntN(9) {
	case 0: // again
		req.Messages = req.Messages[:size-1]
		return
	case 1: // back
		req.Messages = req.Messages[:w.r.IntN(size)]
	case 2: // the answer is the end of the request
		return
	case 3: // edited
		req.Messages[size-1] = assistant("edited")
	case 4, 5: // reasoning or white space lost, arguments written anew
		for i, m := range req.Messages {
			if m.Role == canon.Assistant && w.r.IntN(4) > 0 {
				lean := *m
				lean.Reasoning, lean.Content = "", strings.TrimSpace(m.Content)
				lean.ToolCalls = slices.Clone(m.ToolCalls)
				for j := range lean.ToolCalls {
					lean.ToolCalls[j].Arguments = []string{"{}", `{"n":1}`}[w.r.IntN(2)]
				}
				req.Messages[i] = canon.NewMessage(lean)
			}
		}
	case 6: // an assistant message the model did not write
		req.Messages = append(req.Messages, next, w.turn())
	}
	req.Messages = append(req.Messages, next)
}

func show(req *canon.Request) string {
	var parts []string
	for _, m := range req.Messages {
		parts = append(parts, fmt.Sprintf("%s %q %q %s", m.Role, m.Reasoning, m.Content, callText(m.ToolCalls)))
	}
	return fmt.Sprintf("%d tools: %s", len(req.Tools), strings.Join(parts, " | "))
}
