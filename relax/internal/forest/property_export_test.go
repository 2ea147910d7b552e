package forest

import (
	"errors"
	"reflect"
	"slices"
)

// checkContexts compares the contexts, and the two implicit exports, with what the truth gives.
func (w *world) checkContexts() {
	want := w.contexts()
	got := w.f.Contexts()
	if len(got) != len(want) || !slices.EqualFunc(want, got, func(a *answer, n *Node) bool { return a.node == n }) {
		var names []int
		for _, a := range want {
			names = append(names, a.node.ID())
		}
		w.fail("contexts %v, want %v", ids(got), names)
	}
	node, err := w.f.Implicit()
	if (err == nil) != (len(want) == 1) || err != nil && !errors.Is(err, ErrNotFinalizable) {
		w.fail("implicit export of %d contexts: %v", len(want), err)
	}
	if err == nil && node != w.end(want[0]) {
		w.fail("implicit export of #%d", node.ID())
	}
	w.seen[map[bool]string{true: "one context", false: "several contexts"}[err == nil]]++
	main, side, err := w.f.Main()
	wanted := w.main(want)
	if (err == nil) != (wanted != nil) || err != nil && !errors.Is(err, ErrNotFinalizable) {
		w.fail("main gives %v, want %v", err, wanted)
	}
	w.seen[map[bool]string{true: "main", false: "tie"}[err == nil]]++
	if err == nil && (main != w.end(wanted) || len(side) != len(want)-1 || slices.Contains(side, wanted.node)) {
		w.fail("main is #%d beside %v, want #%d of %d", main.ID(), ids(side), wanted.node.ID(), len(want))
	}
}

// newest is the newest request behind a conversation, nil if there is none.
func (w *world) newest(parent *answer) *asked {
	var last *asked
	for _, a := range w.asked {
		if a.parent == parent {
			last = a
		}
	}
	return last
}

// followers counts the requests behind a conversation.
func (w *world) followers(parent *answer) (n int) {
	for _, a := range w.asked {
		if a.parent == parent {
			n++
		}
	}
	return n
}

// end is the node that is exported for a context.
func (w *world) end(a *answer) *Node {
	if last := w.newest(a); last != nil {
		return last.node
	}
	return a.node
}

// contexts is [Forest.Contexts] by its doc comment.
func (w *world) contexts() []*answer {
	followed := map[*answer]bool{}
	delivered := 0
	for _, a := range w.answers {
		if !a.undelivered() {
			delivered++
			for above := a.at.parent; above != nil; above = above.at.parent {
				followed[above] = true
			}
		}
	}
	var out []*answer
	if delivered == 0 {
		return w.answers
	}
	for _, a := range w.answers {
		rival := func(b *answer) bool {
			_, same := replays(a.whole, b.whole, exactly)
			return same && len(a.whole.Messages) == len(b.whole.Messages) && !b.undelivered() && (followed[b] || b.order > a.order)
		}
		if a.undelivered() || followed[a] || slices.ContainsFunc(w.answers, rival) {
			continue
		}
		var lost []*answer
		for _, b := range w.answers {
			if b.at.parent == a {
				lost = append(lost, b)
			}
		}
		if w.followers(a) == 1 && len(lost) == 1 {
			a = lost[0]
		}
		out = append(out, a)
	}
	return out
}

// main is [Forest.Main] by its doc comment, nil for a tie.
func (w *world) main(contexts []*answer) *answer {
	weight := func(a *answer) int { return 100*len(a.lineage()) + len(a.whole.Tools) }
	var best []*answer
	for _, a := range contexts {
		if len(best) > 0 && weight(a) > weight(best[0]) {
			best = nil
		}
		if len(best) == 0 || weight(a) == weight(best[0]) {
			best = append(best, a)
		}
	}
	for _, a := range best {
		wins := true
		first := a.lineage()[0]
		for _, b := range best {
			top := b.lineage()[0].at
			follows := first.at.order > b.order
			encloses := first.order < top.order
			if b != a && (top == first.at || b.order > a.order || w.followers(b) > 0 || !follows && !encloses) {
				wins = false
			}
		}
		if wins {
			return a
		}
	}
	return nil
}

// checkRows lays out rows of random nodes in all ways and twice.
func (w *world) checkRows() {
	var nodes []*Node
	var ends []*asked   // of the rows that end with a request
	var lasts []*answer // of all rows
	for range w.r.IntN(6) {
		if len(w.answers) == 0 {
			break
		}
		a := w.answers[w.r.IntN(len(w.answers))]
		node, end := a.node, w.newest(a)
		if end != nil && w.r.IntN(2) == 0 {
			node = end.node
		} else {
			end = nil
		}
		nodes, ends, lasts = append(nodes, node), append(ends, end), append(lasts, a)
	}
	each, first := w.f.Rows(nodes, SharedEach), w.f.Rows(nodes, SharedFirst)
	if !reflect.DeepEqual(each, w.f.Rows(nodes, SharedEach)) || !reflect.DeepEqual(first, w.f.Rows(nodes, SharedFirst)) {
		w.fail("rows differ when they are laid out again")
	}
	trained := map[int32]int{}
	held := map[int32]bool{}
	for i := range nodes {
		if !reflect.DeepEqual(each[i], w.f.Row(nodes[i])) {
			w.fail("Rows and Row differ for #%d", nodes[i].ID())
		}
		for _, l := range []Lineage{each[i], first[i]} {
			w.checkRow(l, lasts[i], ends[i])
		}
		for _, p := range each[i].Pieces {
			if p.TrainedBefore {
				w.fail("a row does not train #%d", p.Node.ID())
			}
		}
		for _, p := range first[i].Pieces {
			for _, id := range p.Tokens {
				held[id] = held[id] || id > 0
				if p.Logprobs != nil {
					trained[id]++
				}
			}
		}
	}
	for id, is := range held {
		if is && trained[id] != 1 {
			w.fail("token %d is trained %d times", id, trained[id])
		}
	}
}

// checkRow compares a row with the truth: that of last, with the request end behind it if not nil.
func (w *world) checkRow(l Lineage, last *answer, end *asked) {
	want, messages, truncated := last.stream(), len(last.whole.Messages), last.truncated()
	if end != nil {
		want, messages, truncated = slices.Concat(end.before(), end.body()), len(end.req.Messages), true
	}
	lineage := last.lineage()
	tokens := tokensOf(l)
	if !slices.Equal(tokens, want) || l.Len != len(want) || len(l.Messages) != messages || l.Truncated != truncated {
		w.fail("row %v of %d messages, want %v of %d", tokens, len(l.Messages), want, messages)
	}
	if l.PromptLen != len(lineage[0].at.stream()) || l.Turns != len(lineage) || len(l.TurnTable) != len(lineage) {
		w.fail("prompt %d, %d turns; want %d, %d", l.PromptLen, l.Turns, len(lineage[0].at.stream()), len(lineage))
	}
	for i, turn := range l.TurnTable {
		if turn.Node != lineage[i].node || !slices.Equal(tokens[turn.Start:turn.End], lineage[i].ids) {
			w.fail("turn %d is %v, want %v", i, tokens[turn.Start:turn.End], lineage[i].ids)
		}
		for k := turn.Start; k < turn.End; k++ {
			if got := versionAt(l.Spans, k); got != lineage[i].versions[k-turn.Start] {
				w.fail("token %d has version %d, want %d: %v", k, got, lineage[i].versions[k-turn.Start], l.Spans)
			}
		}
	}
	if end != nil {
		w.seen["row ends unanswered"]++
	}
	trained, turn := 0, 0
	for _, p := range l.Pieces {
		response := p.Node.Kind() == Response
		if (p.Logprobs != nil) != (response && !p.TrainedBefore) || p.Logprobs != nil && len(p.Logprobs) != len(p.Tokens) {
			w.fail("%d tokens of a %s, %d logprobs", len(p.Tokens), p.Node.Kind(), len(p.Logprobs))
		}
		for i, id := range p.Tokens {
			if sampled := id > 0; sampled != response || p.Logprobs != nil && p.Logprobs[i] != logprobOf(id) {
				w.fail("token %d of #%d has the wrong mask or logprob", id, p.Node.ID())
			}
		}
		trained += len(p.Logprobs)
		if p.TrainedBefore {
			w.seen["shared response"]++
		}
		if response {
			if l.TurnTable[turn].Masked != p.TrainedBefore {
				w.fail("turn %d is not masked as its tokens are", turn)
			}
			turn++
		}
	}
	if l.Trained != trained {
		w.fail("%d tokens trained, want %d", l.Trained, trained)
	}
}

func versionAt(spans []VersionSpan, at int) int64 {
	version := int64(-9)
	for _, s := range spans {
		if s.Start <= at {
			version = s.Version
		}
	}
	return version
}

// checkFates accounts for every token ever sampled.
func (w *world) checkFates() {
	var exported []*Node
	want := Fates{Sampled: w.sampled, Repeated: w.repeated}
	trained := map[*answer]bool{}
	for _, a := range w.answers {
		if w.r.IntN(4) == 0 {
			exported = append(exported, a.node)
			for _, above := range a.lineage() {
				trained[above] = true
			}
		}
	}
	lost, lostTokens := 0, 0
	for _, a := range w.answers {
		if a.undelivered() {
			lost++
			w.seen["lost answer"]++
			lostTokens += len(a.ids)
		}
		switch {
		case trained[a]:
			want.Trained += len(a.ids)
		case a.undelivered():
			want.Undelivered += len(a.ids)
		default:
			want.Unexported += len(a.ids)
		}
	}
	if got := w.f.Fates(exported...); got != want || got.Sampled != got.Trained+got.Repeated+got.Undelivered+got.Unexported {
		w.fail("fates %+v, want %+v", got, want)
	}
	s := w.f.Stats()
	if s.Undelivered != lost || s.UndeliveredTokens != lostTokens || s.Tolerated != w.tolerated || s.Replaced != w.replaced ||
		s.DuplicateTokens != w.repeated {
		w.fail("stats %+v; want %d undelivered of %d tokens, %d tolerated, %d replaced", s, lost, lostTokens, w.tolerated, w.replaced)
	}
}
