package forest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A round is a set of requests that are in flight together.
type round []inRound

type inRound struct {
	req    *canon.Request
	answer *canon.Message
	ids    []int32
	lost   bool
}

// script returns rounds of random requests. A request continues, repeats or goes behind what
// earlier rounds recorded, or opens a conversation with other tools. No two answers are equal
// unless they are the same generation committed twice.
func script(r *rand.Rand) []round {
	var rounds []round
	var recorded []*canon.Request
	id := int32(0)
	for range 2 + r.IntN(4) {
		var now round
		for range 1 + r.IntN(4) {
			req := request()
			if len(recorded) > 0 && r.IntN(5) > 0 {
				from := recorded[len(recorded)-1-r.IntN(min(3, len(recorded)))]
				req.Tools = from.Tools
				req.Messages = slices.Clone(from.Messages[:len(from.Messages)-r.IntN(2)])
			} else if r.IntN(3) == 0 {
				req.Tools = []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.Value{})}
			}
			if len(req.Messages) == 0 || r.IntN(5) > 0 {
				req.Messages = append(req.Messages, user(fmt.Sprint(r.IntN(4))))
			}
			id++
			turn := inRound{req: req, answer: assistant(fmt.Sprint("answer ", id)), ids: []int32{id}, lost: r.IntN(5) == 0}
			now = append(now, turn)
			if r.IntN(6) == 0 {
				now = append(now, turn)
			}
		}
		for _, turn := range now {
			whole := *turn.req
			whole.Messages = append(slices.Clone(turn.req.Messages), turn.answer)
			recorded = append(recorded, &whole)
		}
		rounds = append(rounds, now)
	}
	return rounds
}

// replay runs a script with the requests of each round matched first, then attached in one
// random order and committed in another.
func replay(t *testing.T, rounds []round, r *rand.Rand) *Forest {
	t.Helper()
	f := New("s")
	for _, now := range rounds {
		matches, nodes := make([]Match, len(now)), make([]*Node, len(now))
		for i, turn := range now {
			matches[i] = f.Match(turn.req)
		}
		for _, i := range r.Perm(len(now)) {
			var body []int32
			for _, m := range now[i].req.Messages[matches[i].From:] {
				body = append(body, -int32(m.Hash()%1000))
			}
			nodes[i] = f.Attach(matches[i], body, []int32{0}, now[i].req)
		}
		committed := make([]*Node, len(now))
		for _, i := range r.Perm(len(now)) {
			n, err := f.Commit(nodes[i], Generation{IDs: now[i].ids, Logprobs: logprobs(1), Message: now[i].answer})
			if err != nil {
				t.Fatal(err)
			}
			committed[i] = n
		}
		for i, turn := range now {
			if turn.lost {
				f.Undelivered(committed[i])
			}
		}
	}
	return f
}

// name says what a node is, whatever its number.
func (n *Node) name() string {
	if n.kind == Root {
		return "root"
	}
	return fmt.Sprintf("%s %x %v lost %v below %x", n.kind, n.state, slices.Concat(n.Prefix(nil)...), n.IsUndelivered(), n.parent.state)
}

func names(nodes []*Node) string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.name())
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func all(n *Node) []*Node {
	out := []*Node{n}
	for _, child := range n.children {
		out = append(out, all(child)...)
	}
	return out
}

// Any order of concurrent requests and commits gives the same states and tokens, the same
// account, and never another main context: at most there is none.
func TestCommitOrder(t *testing.T) {
	chosen, refused := 0, 0
	for seed := range uint64(5 * histories) {
		r := rand.New(rand.NewPCG(seed, 9))
		rounds := script(r)
		first := replay(t, rounds, r)
		states, main := names(all(first.Root())), ""
		for range 6 {
			f := replay(t, rounds, r)
			if got := names(all(f.Root())); got != states {
				t.Fatalf("seed %d: got\n%s\nwant\n%s", seed, got, states)
			}
			if f.Stats() != first.Stats() {
				t.Fatalf("seed %d: %+v, want %+v", seed, f.Stats(), first.Stats())
			}
			node, _, err := f.Main()
			if err != nil {
				refused++
				continue
			}
			chosen++
			if node.kind == Observation {
				node = node.parent // which of several unanswered requests ends the row trains nothing
			}
			if name := node.name(); main == "" {
				main = name
			} else if main != name {
				t.Fatalf("seed %d: main is\n%s\nor\n%s", seed, main, name)
			}
		}
	}
	if chosen == 0 || refused == 0 {
		t.Errorf("main was chosen %d times and refused %d times", chosen, refused)
	}
	t.Logf("main chosen %d times, refused %d times", chosen, refused)
}
