package forest

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// A numbered is a Chat body whose last message ends in a number that can be changed in place.
type numbered struct {
	body []byte
	at   int
}

// nextTurn returns a body of some turns, of size bytes in all, and one more user message.
func nextTurn(turns, size int) *numbered {
	body := conversation(2*turns+1, size)
	n := &numbered{body: body[:len(body)-len(`"}]}`)]}
	n.at = len(n.body)
	n.body = append(n.body, "00000000\"}]}"...)
	return n
}

func (n *numbered) set(number int) {
	for i := n.at + 7; i >= n.at; i-- {
		n.body[i] = byte('0' + number%10)
		number /= 10
	}
}

// turnSizes are histories with the same bytes a message, and one of 1 MB.
var turnSizes = []struct {
	name        string
	turns, size int
}{
	{"10", 10, 10 << 10},
	{"100", 100, 100 << 10},
	{"1000", 1000, 1000 << 10},
	{"100of1MB", 100, 1 << 20},
}

func commit(tb testing.TB, f *Forest, m Match, req *canon.Request, answer *canon.Message) *Node {
	obs := f.Attach(m, []int32{1, 2, 3, 4}, []int32{5}, req)
	n, err := f.Commit(obs, Generation{IDs: []int32{6}, Logprobs: []float32{0}, Message: answer})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// forget takes the newest turn, n and its observation, out of the forest again.
func forget(f *Forest, n *Node) {
	above := n.parent.parent
	for _, gone := range []*Node{n, n.parent} {
		if f.nodes[gone.state] = gone.older; gone.older == nil {
			delete(f.nodes, gone.state)
		}
	}
	above.children = above.children[:len(above.children)-1]
	above.continued, above.followed = false, false
	f.responses = f.responses[:len(f.responses)-1]
	f.count -= 2
}

// BenchmarkTurn reads, matches, attaches and commits one more turn behind a history that was
// seen before.
func BenchmarkTurn(b *testing.B) {
	for _, size := range turnSizes {
		b.Run(size.name, func(b *testing.B) {
			next := nextTurn(size.turns, size.size)
			f, cache := replayed(b, next.body)
			answer := assistant("done")
			b.SetBytes(int64(len(next.body)))
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				next.set(i)
				req, e := wire.Chat.Parse(next.body, cache)
				if e != nil {
					b.Fatal(e)
				}
				m := f.Match(req)
				if m.From != 2*size.turns {
					b.Fatalf("matched %d messages", m.From)
				}
				forget(f, commit(b, f, m, req, answer))
			}
		})
	}
}

// BenchmarkForestTurn is the forest's share of BenchmarkTurn: the request is parsed already.
func BenchmarkForestTurn(b *testing.B) {
	for _, size := range turnSizes {
		b.Run(size.name, func(b *testing.B) {
			next := nextTurn(size.turns, size.size)
			f, cache := replayed(b, next.body)
			req, e := wire.Chat.Parse(next.body, cache)
			if e != nil {
				b.Fatal(e)
			}
			answer := assistant("done")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req.Messages[2*size.turns] = user(fmt.Sprint(i))
				m := f.Match(req)
				if m.From != 2*size.turns {
					b.Fatalf("matched %d messages", m.From)
				}
				forget(f, commit(b, f, m, req, answer))
			}
		})
	}
}

// BenchmarkTolerant matches a history in which every turn lost its reasoning, and one which
// needs no tolerance.
func BenchmarkTolerant(b *testing.B) {
	for _, dropped := range []bool{false, true} {
		for _, turns := range []int{10, 100, 1000} {
			f := New("s")
			var recorded, sent []*canon.Message
			for i := range turns {
				question := user(fmt.Sprint("question ", i))
				answer := canon.Message{Role: canon.Assistant, Content: fmt.Sprint("answer ", i), Reasoning: "hm"}
				recorded, sent = append(recorded, question), append(sent, question)
				req := request(recorded...)
				commit(b, f, f.Match(req), req, canon.NewMessage(answer))
				recorded = append(recorded, canon.NewMessage(answer))
				answer.Reasoning = ""
				sent = append(sent, canon.NewMessage(answer))
			}
			if !dropped {
				sent = recorded
			}
			req := request(append(sent, user("next"))...)
			b.Run(fmt.Sprintf("dropped=%v/%d", dropped, turns), func(b *testing.B) {
				for b.Loop() {
					if _, m, _ := f.MatchTolerant(req); m.From != 2*turns {
						b.Fatalf("matched %d messages", m.From)
					}
				}
			})
		}
	}
}

// BenchmarkExplain has a request that goes back to the first turn of a long history, which is
// one of many.
func BenchmarkExplain(b *testing.B) {
	for _, turns := range []int{10, 100, 1000} {
		next := nextTurn(turns, turns<<10)
		f, cache := replayed(b, next.body)
		req, e := wire.Chat.Parse(next.body, cache)
		if e != nil {
			b.Fatal(e)
		}
		for i := range 100 {
			other := request(user(fmt.Sprint(i)))
			commit(b, f, f.Match(other), other, assistant("a"))
		}
		req.Messages[2*turns-1] = assistant("edited")
		b.Run(fmt.Sprint(turns), func(b *testing.B) {
			for b.Loop() {
				if d := f.Divergence(req); d == nil || d.Message != 2*turns-1 {
					b.Fatal(d)
				}
			}
		})
	}
}

// heap is the live heap in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// longSession returns a forest of some turns with 200 sampled and 400 observed tokens each. Its
// messages are given.
func longSession(tb testing.TB, messages []*canon.Message, turns int) (f *Forest, tokens int) {
	f = New("session")
	for i := range turns {
		req := request(messages[:2*i+1]...)
		obs := f.Attach(f.Match(req), make([]int32, 397), make([]int32, 3), req)
		_, err := f.Commit(obs, Generation{
			IDs: make([]int32, 200), Logprobs: make([]float32, 200), Message: messages[2*i+1],
			Spans: []VersionSpan{{Version: 1}}, RequestID: "req_session_1",
		})
		if err != nil {
			tb.Fatal(err)
		}
		tokens += 600
	}
	return f, tokens
}

func dialogue(turns int) []*canon.Message {
	var messages []*canon.Message
	for i := range turns {
		messages = append(messages, user(fmt.Sprint("question ", i)), assistant(fmt.Sprint("answer ", i)))
	}
	return messages
}

// BenchmarkMemoryPerToken has Sessions of 200 turns and reports what a recorded token takes
// beyond the messages.
func BenchmarkMemoryPerToken(b *testing.B) {
	messages := dialogue(200)
	const sessions = 20
	for b.Loop() {
		keep := make([]*Forest, sessions)
		total := 0
		before := heap()
		for i := range keep {
			f, tokens := longSession(b, messages, 200)
			keep[i], total = f, total+tokens
		}
		b.ReportMetric(float64(heap()-before)/float64(total), "B/token")
		runtime.KeepAlive(keep)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLiveSessions holds 10,000 Sessions and reports what each takes beyond messages: an
// empty one, and one after its first turn of 16 sampled and 32 observed tokens.
func BenchmarkLiveSessions(b *testing.B) {
	messages := dialogue(1)
	for _, turns := range []int{0, 1} {
		b.Run(fmt.Sprintf("turns=%d", turns), func(b *testing.B) {
			const sessions = 10_000
			for b.Loop() {
				keep := make([]*Forest, sessions)
				before := heap()
				for i := range keep {
					keep[i] = New("session")
					if turns > 0 {
						req := request(messages[0])
						obs := keep[i].Attach(keep[i].Match(req), make([]int32, 30), make([]int32, 2), req)
						if _, err := keep[i].Commit(obs, Generation{
							IDs: make([]int32, 16), Logprobs: make([]float32, 16), Message: messages[1]}); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(float64(heap()-before)/sessions, "B/session")
				runtime.KeepAlive(keep)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRow lays out the row of a Session of 200 turns.
func BenchmarkRow(b *testing.B) {
	f, _ := longSession(b, dialogue(200), 200)
	n := f.responses[len(f.responses)-1]
	b.ReportAllocs()
	for b.Loop() {
		if l := f.Row(n); l.Turns != 200 {
			b.Fatal(l.Turns)
		}
	}
}
