package observe

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// A grown is a forest and the requests that grew it.
type grown struct {
	t        testing.TB
	f        *forest.Forest
	tools    []canon.ToolSpec
	requests []Request
}

func grow(t testing.TB) *grown { return &grown{t: t, f: forest.New("session-1")} }

func user(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.User, Content: text})
}

func assistant(text string) *canon.Message {
	return canon.NewMessage(canon.Message{Role: canon.Assistant, Content: text})
}

// turn commits a turn of as many tokens as the answer has bytes. Each takes 10 seconds.
func (g *grown) turn(answer string, history ...*canon.Message) *forest.Node {
	g.t.Helper()
	req := &canon.Request{Messages: history, Tools: g.tools, Kwargs: canon.ObjectOf()}
	m := g.f.Match(req)
	d := g.f.Explain(m, req)
	obs := g.f.Attach(m, []int32{1, 2, 3}, []int32{4}, req)
	id := fmt.Sprintf("req_%d", len(g.requests))
	n, err := g.f.Commit(obs, forest.Generation{
		IDs: make([]int32, len(answer)), Logprobs: make([]float32, len(answer)), Message: assistant(answer),
		RequestID: id, Rollout: 4, CachedTokens: 2, Seconds: 2, WallSeconds: math.NaN(),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	at := time.Duration(1+10*len(g.requests)) * time.Second
	g.requests = append(g.requests, Request{
		ID: id, Arrived: at, Observed: at + time.Second, Leased: at + 3*time.Second, Ended: at + 9*time.Second,
		Attempts: []Attempt{{RID: "rid-0000", Queued: at + 3*time.Second, Started: at + 4*time.Second, Ended: at + 8*time.Second, Version: 7, Tokens: len(answer), Finish: "stop"}},
		Node:     n, Finish: "stop", Divergence: d,
	})
	return n
}

var began = time.Unix(1000, 0)

func (g *grown) session(exports ...Export) *Session {
	var nodes []*forest.Node
	for _, e := range exports {
		nodes = append(nodes, e.Node)
	}
	return &Session{
		ID: "session-1", Group: "train:group_1", Mode: "train", Seq: 2, Began: began, Forest: g.f, Stats: g.f.Stats(),
		Fates: g.f.Fates(nodes...), Exports: exports, Hashes: HashForest(g.f), Requests: g.requests,
	}
}

func TestHashesAreTheReferences(t *testing.T) {
	g := grow(t)
	first := g.turn("a", user("u"))
	second := g.turn("b", user("u"), assistant("a"), user("v"))
	branch := g.turn("c", user("u"), assistant("a"), user("w"))
	hashes := HashForest(g.f)
	if len(hashes) != g.f.Stats().Nodes+1 {
		t.Errorf("%d hashes of %d nodes and the root", len(hashes), g.f.Stats().Nodes)
	}
	if got := hashes[g.f.Root()]; got != "26d60f342de6e843c9fd1759679a83d219fa4751ce1ccf5acd33d64de8db43db" {
		t.Errorf("hash of the root = %s", got)
	}
	for _, n := range []*forest.Node{first, first.Parent(), second, branch, branch.Parent()} {
		want := canon.ReferenceHash(n.History(nil), n.Tools(), n.Kwargs())
		if hashes[n] != want {
			t.Errorf("hash of node %d = %s, want %s", n.ID(), hashes[n], want)
		}
	}
	some := HashLineages(second, branch)
	if len(some) != g.f.Stats().Nodes || some[branch] != hashes[branch] || some[second] != hashes[second] {
		t.Errorf("hashes of two lineages = %v, want those of %v", some, hashes)
	}
}

func TestTraceOfABranchingSession(t *testing.T) {
	g := grow(t)
	first := g.turn("a", user("u"))
	second := g.turn("bb", user("u"), assistant("a"), user("v"))
	g.turn("ccc", user("u"), assistant("edited"), user("v"))
	g.f.Undelivered(g.turn("dddd", user("w")))
	g.requests = g.requests[:3]
	s := g.session(Export{Name: "main", Node: second})
	s.Process = Process{Launched: true, Start: time.Second, End: 40 * time.Second, ExitCode: 7, Reason: "exit"}
	s.Faults = 1
	s.Retries = []Retry{{At: time.Second, Of: "req_0", Joined: true}, {At: 2 * time.Second, Of: "req_0"}}
	s.Joined, s.Replayed = 1, 1
	s.Requests = append(s.Requests, Request{
		ID: "req_3", Arrived: time.Second, Ended: 2 * time.Second, LostTokens: 5,
		Fault: Fault{Status: 400, Code: "context_length_exceeded", Message: "too long"},
	})
	trace := s.Trace()
	trace.Judge(Dropped, "agent_exit", "code 7", true)

	turn := trace.Turns[1]
	if turn.TurnIdx != 1 || turn.RespStateHash != s.Hashes[second] || turn.ParentStateHash != s.Hashes[second.Parent()] ||
		turn.ResponseLength != 2 || turn.Status != "completed" || turn.RequestKind != "fresh" || turn.RolloutID != 4 {
		t.Errorf("turn = %+v", turn)
	}
	if turn.WallSeconds != 9 || turn.GenerationSeconds != 4 || turn.LeaseSeconds != 2 || turn.GateSeconds != 1 {
		t.Errorf("times of %+v", turn)
	}
	if e := turn.Events; e.Arrived != 1011 || e.Started != 1015 || e.Ended != 1020 {
		t.Errorf("events = %+v", e)
	}
	if a := turn.Attempts[0]; a.RID != "rid-0000" || a.WeightVersion != 7 || a.Tokens != 2 {
		t.Errorf("attempt = %+v", a)
	}
	if first.ID() != trace.Nodes[1].ID || trace.Nodes[1].Kind != "response" || trace.Nodes[1].Parent != 1 || trace.Nodes[1].Tokens != 1 {
		t.Errorf("nodes = %+v", trace.Nodes)
	}
	d := trace.Turns[2].Divergence
	if d == nil || d.Reason != "message" || d.Message != 1 || d.Field != "content" || !strings.Contains(d.Sent, "edited") {
		t.Errorf("divergence = %+v", d)
	}
	if trace.Divergences["message"] != 1 || trace.Counts.Turns != 3 || trace.Counts.Failed != 1 || trace.Counts.Joined != 1 || trace.Counts.Replayed != 1 {
		t.Errorf("counts = %+v, %v", trace.Counts, trace.Divergences)
	}
	if f := trace.Failed[0]; f.Code != "context_length_exceeded" || f.Status != 400 || f.LostTokens != 5 {
		t.Errorf("failed = %+v", f)
	}
	if e := trace.Exports[0]; e.Name != "main" || e.LeafStateHash != s.Hashes[second] || e.TurnCount != 2 || e.TerminalStatus != "completed" || e.Summary != "user: u" {
		t.Errorf("export = %+v", e)
	}
	if *trace.Process.ExitCode != 7 || trace.Process.Seconds != 39 {
		t.Errorf("process = %+v", trace.Process)
	}
	if c := trace.Counts; c.SampledTokens != 10 || c.ExportedTokens != 3 || c.UndeliveredTokens != 4 || c.UnexportedTokens != 3 || c.DuplicateTokens != 0 {
		t.Errorf("counts = %+v", c)
	}
}

// Attempts say how often a turn was aborted; what lies below it was resumed as well, as the
// reference's counts go down a conversation.
func TestTraceOfAbortedTurns(t *testing.T) {
	g := grow(t)
	g.turn("a", user("u"))
	g.turn("b", user("u"), assistant("a"), user("v"))
	first := &g.requests[0]
	g.requests[0].Node.Generation().Aborts = 1
	first.Attempts = append(first.Attempts, Attempt{RID: "rid-0001", Queued: 8 * time.Second, Started: 20 * time.Second, Ended: 21 * time.Second, Version: 8, Finish: "stop"})
	s := g.session()
	trace := s.Trace()
	if a, b := trace.Turns[0], trace.Turns[1]; a.AbortCount != 1 || a.RequestKind != "resumed" || a.GateSeconds != 13 ||
		len(a.Attempts) != 2 || a.Attempts[1].RID != "rid-0001" || b.AbortCount != 0 || b.RequestKind != "resumed" {
		t.Errorf("turns = %+v", trace.Turns)
	}
	if trace.Counts.Aborts != 1 {
		t.Errorf("counts = %+v", trace.Counts)
	}
	end := g.requests[1].Node
	row := s.AgenticTrace(end)
	if row.LeafStateHash != s.Hashes[end] || row.TurnCount != 2 || len(row.Turns) != 2 || row.Turns[0] != trace.Turns[0].TurnRecord || row.Turns[1] != trace.Turns[1].TurnRecord {
		t.Errorf("agentic trace = %+v", row)
	}
}

// A turn that was aborted hundreds of times keeps its last attempts, and its sums are those of all.
// Attempts that were never sent are no aborts.
func TestAttemptsAreBounded(t *testing.T) {
	g := grow(t)
	g.turn("a", user("u"))
	r := &g.requests[0]
	r.Attempts = nil
	for i := range 1000 {
		at := time.Duration(i) * 10 * time.Second
		if i%10 == 0 { // a pause met it before it was sent
			r.Tried(Attempt{RID: fmt.Sprint(i), Queued: at, Ended: at + time.Second, Finish: FinishNotSent})
			continue
		}
		r.Tried(Attempt{RID: fmt.Sprint(i), Queued: at, Started: at + time.Second, Ended: at + 3*time.Second, Finish: "abort"})
	}
	r.Tried(Attempt{RID: "last", Queued: 10000 * time.Second, Ended: 10005 * time.Second, Finish: FinishNotSent})
	if len(r.Attempts) != maxAttempts || cap(r.Attempts) > 2*maxAttempts {
		t.Errorf("%d attempts kept, room for %d", len(r.Attempts), cap(r.Attempts))
	}
	trace := g.session().Trace()
	turn := trace.Turns[0]
	if turn.AbortCount != 900 || trace.Counts.Aborts != 900 || turn.GateSeconds != 1005 || turn.GenerationSeconds != 1800 {
		t.Errorf("turn = %+v", turn)
	}
	if first, last := turn.Attempts[0], turn.Attempts[maxAttempts-1]; first.RID != "981" || last.RID != "last" || trace.Omitted["attempts"] != 981 {
		t.Errorf("attempts %+v, omitted %v", turn.Attempts, trace.Omitted)
	}
}

func TestTraceOfADuplicate(t *testing.T) {
	g := grow(t)
	g.turn("a", user("u"))
	g.turn("a", user("u"))
	trace := g.session().Trace()
	if trace.Turns[0].Duplicate || !trace.Turns[1].Duplicate || trace.Turns[1].RequestID != "req_1" || trace.Turns[0].Node != trace.Turns[1].Node {
		t.Errorf("turns = %+v", trace.Turns)
	}
	if trace.Counts.Duplicates != 1 || trace.Counts.DuplicateTokens != 1 || trace.Nodes[1].Duplicates != 1 {
		t.Errorf("counts = %+v, nodes = %+v", trace.Counts, trace.Nodes)
	}
}

func TestTraceOfASessionThatNeverCalled(t *testing.T) {
	s := grow(t).session()
	s.Process = Process{Launched: true, Start: 1, End: 2, ExitCode: -1, Signal: "SIGKILL"}
	trace := s.Trace()
	trace.Judge(Dropped, "agent_exit", "", true)
	line, err := trace.AppendLine(nil)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(line, &doc); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"turns", "failed_requests", "retries", "nodes", "exports", "side_conversations"} {
		if entries, ok := doc[list].([]any); !ok || len(entries) != 0 {
			t.Errorf("%s = %v, want an empty list", list, doc[list])
		}
	}
	if process := doc["process"].(map[string]any); process["exit_code"] != nil || process["signal"] != "SIGKILL" {
		t.Errorf("process = %v", process)
	}
}

// A Session can say and do as much as it likes: its trace stays small, and says what it left out.
func TestTraceIsBounded(t *testing.T) {
	g := grow(t)
	huge := strings.Repeat("é", 1<<20)
	root := user(huge)
	for i := range 3000 {
		g.turn(fmt.Sprint(i), root)
	}
	for range 500 {
		r := Request{ID: "r", Fault: Fault{Message: huge}}
		for range 300 {
			r.Tried(Attempt{})
		}
		g.requests = append(g.requests, r)
	}
	s := g.session()
	s.Process = Process{LogTail: huge, Err: huge, UserSec: math.Inf(1)}
	s.Retries, s.Joined, s.Replayed, s.Faults = make([]Retry, 1000), 700, 500, 5000
	trace := s.Trace()
	trace.Judge(Dropped, "x", huge, true)
	line, err := trace.AppendLine(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(line) > 4<<20 {
		t.Errorf("%d bytes", len(line))
	}
	if strings.Count(string(line), "\n") != 1 || line[len(line)-1] != '\n' || !json.Valid(line) {
		t.Error("not one line of JSON")
	}
	want := map[string]int{"turns": 2000, "nodes": 1001, "failed_requests": 4900, "retries": 1100, "attempts": 28000}
	for name, n := range want {
		if trace.Omitted[name] != n {
			t.Errorf("omitted %v, want %v", trace.Omitted, want)
		}
	}
	if trace.Counts.Turns != 3000 || trace.Turns[0].RequestID != "req_0" || trace.Turns[len(trace.Turns)-1].RequestID != "req_2999" {
		t.Error("the beginning and the end are not there")
	}
	// The same again: nothing depends on the order of a map.
	again := s.Trace()
	again.Judge(Dropped, "x", huge, true)
	if second, _ := again.AppendLine(nil); string(second) != string(line) {
		t.Error("a second trace of the same session differs")
	}
}

// The trace of a long Session: 200 turns, 800 KB of history, 50 KB of tools.
func BenchmarkTrace(b *testing.B) {
	g := grow(b)
	description := strings.Repeat("what it does ", 50<<10/13)
	g.tools = []canon.ToolSpec{{Name: "f", Description: &description}}
	var history []*canon.Message
	for i := range 200 {
		history = append(history, user(strings.Repeat("text ", 700)))
		answer := fmt.Sprintf("%d %s", i, strings.Repeat("word ", 100))
		g.turn(answer, history...)
		history = append(history, assistant(answer))
	}
	s := g.session()
	b.Run("hashes", func(b *testing.B) {
		for b.Loop() {
			HashForest(g.f)
		}
	})
	b.Run("document", func(b *testing.B) {
		b.ReportAllocs()
		var size int
		for b.Loop() {
			trace := s.Trace()
			line, err := trace.AppendLine(nil)
			if err != nil {
				b.Fatal(err)
			}
			size = len(line)
		}
		b.ReportMetric(float64(size), "bytes")
	})
	end := g.requests[len(g.requests)-1].Node
	b.Run("agentic_trace", func(b *testing.B) {
		var size int
		for b.Loop() {
			raw, err := json.Marshal(s.AgenticTrace(end))
			if err != nil {
				b.Fatal(err)
			}
			size = len(raw)
		}
		b.ReportMetric(float64(size), "bytes")
	})
}
