package observe

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// What a trace shows at most: entries of a list, and bytes of a text.
const (
	maxTurns    = 1000
	maxNodes    = 2000
	maxAttempts = 20
	maxFailed   = 100
	maxRetries  = 100
	maxExports  = 200

	shownText  = 500
	shownCause = 4096
	shownValue = 100
)

// Trace makes the document. What is known later, RolloutID and Outcome, is left to the caller;
// see [Trace.Judge].
func (s *Session) Trace() Trace {
	t := Trace{
		SessionID: s.ID, GroupID: s.Group, Seq: s.Seq, Mode: s.Mode,
		Divergences: map[string]int{}, Omitted: map[string]int{},
		Process: s.process(), Events: s.Events(),
		Turns: []TraceTurn{}, Failed: []TraceFailure{}, Retries: []TraceRetry{},
	}
	aborts := s.abortsAbove()
	turns := make([]int, 0, len(s.Requests))
	failed := make([]int, 0, 4)
	var parked, generated time.Duration
	for i := range s.Requests {
		r := &s.Requests[i]
		t.Counts.add(r)
		parked += r.awaitedLease() + r.awaitedGate()
		generated += r.generated()
		if r.Divergence != nil {
			t.Divergences[string(r.Divergence.Reason)]++
		}
		if r.Node == nil {
			failed = append(failed, i)
			continue
		}
		turns = append(turns, i)
	}
	t.Counts.ParkedSeconds, t.Counts.GenerationSeconds = seconds(parked), seconds(generated)
	s.tokens(&t.Counts)
	for _, i := range cut(turns, maxTurns, "turns", t.Omitted) {
		t.Turns = append(t.Turns, s.turn(&s.Requests[i], aborts, t.Omitted))
	}
	for _, i := range cut(failed, maxFailed, "failed_requests", t.Omitted) {
		t.Failed = append(t.Failed, s.failure(&s.Requests[i], t.Omitted))
	}
	if t.Counts.Failed = s.Faults; s.Faults > len(t.Failed) {
		t.Omitted["failed_requests"] = s.Faults - len(t.Failed)
	}
	t.Counts.Joined, t.Counts.Replayed = s.Joined, s.Replayed
	for _, r := range cut(s.Retries, maxRetries, "retries", t.Omitted) {
		t.Retries = append(t.Retries, s.retry(r))
	}
	if retries := s.Joined + s.Replayed; retries > len(t.Retries) {
		t.Omitted["retries"] = retries - len(t.Retries)
	}
	s.tree(&t)
	s.exports(&t)
	return t
}

// Judge enters what became of the Session. A delivered one has no reason and no cause.
func (t *Trace) Judge(status, reason, cause string, atFault bool) {
	t.Outcome = Outcome{Status: status, Reason: reason, Cause: shorten(cause, shownCause), AtFault: atFault}
}

func (c *TraceCounts) add(r *Request) {
	c.Tolerated += r.Tolerated
	c.Aborts += r.aborts()
	if r.Node == nil {
		return
	}
	c.Turns++
	if r.Node.Generation().Truncated {
		c.Truncated++
	}
	if r.Node.Generation().ParseError != "" {
		c.ParseErrors++
	}
	if r.Undelivered {
		c.Undelivered++
	}
}

// tokens says what became of every sampled one.
func (s *Session) tokens(c *TraceCounts) {
	c.Duplicates, c.LostTokens = s.Stats.Duplicates, s.LostTokens
	c.SampledTokens, c.ExportedTokens = s.Fates.Sampled, s.Fates.Trained
	c.DuplicateTokens, c.UndeliveredTokens, c.UnexportedTokens = s.Fates.Repeated, s.Fates.Undelivered, s.Fates.Unexported
}

// aborts counts the attempts that were sent and that another one goes on from.
func (r *Request) aborts() int {
	n := r.earlier.sent
	for i := range len(r.Attempts) - 1 {
		if r.Attempts[i].sent() {
			n++
		}
	}
	return n
}

// awaitedLease is the time a request was parked before its Group's lease.
func (r *Request) awaitedLease() time.Duration {
	switch {
	case r.Observed == 0:
		return 0
	case r.Leased == 0:
		return r.Ended - r.Observed
	}
	return r.Leased - r.Observed
}

// awaitedGate is the time its attempts waited for the gate and what comes behind it.
func (r *Request) awaitedGate() time.Duration {
	sum := r.earlier.gated
	for i := range r.Attempts {
		sum += r.Attempts[i].Gated()
	}
	return sum
}

// generated is the time its attempts were at the backend.
func (r *Request) generated() time.Duration {
	sum := r.earlier.generated
	for i := range r.Attempts {
		sum += r.Attempts[i].Generated()
	}
	return sum
}

func (s *Session) process() TraceProcess {
	p := s.Process
	out := TraceProcess{
		Launched: p.Launched, Signal: p.Signal, Reason: p.Reason, Error: shorten(p.Err, shownText),
		Seconds: seconds(p.End - p.Start), UserSec: finite(p.UserSec), SysSec: finite(p.SysSec), MaxRSSKB: p.MaxRSSKB,
		LeftBehind: p.LeftBehind, LeftBehindNames: p.LeftBehindNames,
		Log: p.Log, LogTail: shortenHead(p.LogTail, shownCause),
	}
	out.ExitCode = p.Exited()
	return out
}

// Events are the Session's moments up to its export.
func (s *Session) Events() TraceEvents {
	e := TraceEvents{PrepareStart: unix(s.Began)}
	if s.Process.Launched {
		e.ProcessStart, e.ProcessExit = s.at(s.Process.Start), s.at(s.Process.End)
	}
	for i := range s.Requests {
		if at := s.at(s.Requests[i].Arrived); e.FirstRequest == 0 || at < e.FirstRequest {
			e.FirstRequest = at
		}
	}
	if s.FinalizeEnd > 0 {
		e.Finalize, e.FinalizeEnd = s.at(s.FinalizeStart), s.at(s.FinalizeEnd)
	}
	return e
}

// abortsAbove counts the aborts of the turns down to and with each response.
func (s *Session) abortsAbove() map[*forest.Node]int {
	total := map[*forest.Node]int{}
	var walk func(n *forest.Node, above int)
	walk = func(n *forest.Node, above int) {
		for {
			if g := n.Generation(); g != nil {
				above += g.Aborts
				total[n] = above
			}
			children := n.Children()
			if len(children) == 0 {
				return
			}
			for _, child := range children[1:] {
				walk(child, above)
			}
			n = children[0]
		}
	}
	walk(s.Forest.Root(), 0)
	return total
}

func (s *Session) turn(r *Request, aborted map[*forest.Node]int, omitted map[string]int) TraceTurn {
	g := r.Node.Generation()
	return TraceTurn{
		TurnRecord:   s.record(r.Node, r, aborted[r.Node]),
		Node:         r.Node.ID(),
		Duplicate:    g.RequestID != r.ID,
		FinishReason: r.Finish,
		PromptTokens: r.Node.Parent().Len(), CachedTokens: g.CachedTokens,
		ParseError: shorten(g.ParseError, shownText), Divergence: divergence(r.Divergence),
		Tolerated: r.Tolerated, Forgiven: r.Forgiven, Undelivered: r.Undelivered,
		LeaseSeconds: seconds(r.awaitedLease()), GateSeconds: seconds(r.awaitedGate()), Attempts: s.attempts(r, omitted),
	}
}

// record is a turn as the reference writes it down. r is nil for a turn whose request is not
// known.
func (s *Session) record(n *forest.Node, r *Request, aborted int) TurnRecord {
	g := n.Generation()
	t := TurnRecord{
		TurnIdx: n.Responses() - 1, RespStateHash: s.Hashes[n], ParentStateHash: s.Hashes[n.Parent()],
		BaseStateHash: s.Hashes[n.Parent()], RolloutID: g.Rollout, RequestID: g.RequestID, RequestKind: "fresh",
		AbortCount: g.Aborts, Status: status(n), ResponseLength: len(g.IDs),
		WallSeconds: finite(g.WallSeconds), GenerationSeconds: finite(g.Seconds),
	}
	if aborted > 0 {
		t.RequestKind = "resumed"
	}
	if r == nil {
		return t
	}
	t.RequestID, t.WallSeconds = r.ID, seconds(r.Ended-r.Arrived)
	t.AbortCount, t.GenerationSeconds = r.aborts(), seconds(r.generated())
	t.Events = TurnEvents{
		Arrived: s.at(r.Arrived), Created: s.at(r.Observed), Activated: s.at(r.Leased), Ended: s.at(r.Ended),
		EncodeTime: seconds(r.Observed - r.Arrived),
	}
	if last := len(r.Attempts) - 1; last >= 0 {
		a := r.Attempts[last]
		if a.Protected {
			t.RequestKind = "protected"
		}
		t.Events.Queued, t.Events.Started, t.Events.Generated = s.at(a.Queued), s.at(a.Started), s.at(a.Ended)
	}
	return t
}

// status is a node's as the reference calls it: a context that ends with an unanswered
// observation counts as cut off.
func status(n *forest.Node) string {
	if g := n.Generation(); g == nil || g.Truncated {
		return "truncated"
	}
	return "completed"
}

func (s *Session) attempts(r *Request, omitted map[string]int) []TraceAttempt {
	out := []TraceAttempt{}
	if r.earlier.count > 0 {
		omitted["attempts"] += r.earlier.count
	}
	for _, a := range r.Attempts {
		out = append(out, TraceAttempt{
			RID: a.RID, Queued: s.at(a.Queued), Started: s.at(a.Started), Ended: s.at(a.Ended),
			WeightVersion: a.Version, Tokens: a.Tokens, Finish: shorten(a.Finish, shownValue),
		})
	}
	return out
}

func divergence(d *forest.Divergence) *TraceDivergence {
	if d == nil {
		return nil
	}
	return &TraceDivergence{
		Reason: string(d.Reason), Node: d.Node.ID(), Message: d.Message, Field: d.Field,
		Recorded: shorten(d.Recorded, shownText), Sent: shorten(d.Sent, shownText), Text: shorten(d.String(), 2*shownText),
	}
}

func (s *Session) failure(r *Request, omitted map[string]int) TraceFailure {
	return TraceFailure{
		RequestID: r.ID, Arrived: s.at(r.Arrived), Ended: s.at(r.Ended), Status: r.Fault.Status, Code: r.Fault.Code,
		Message: shorten(r.Fault.Message, shownText), LostTokens: r.LostTokens, Attempts: s.attempts(r, omitted),
		Divergence: divergence(r.Divergence),
	}
}

func (s *Session) retry(r Retry) TraceRetry {
	kind := "replayed"
	if r.Joined {
		kind = "joined"
	}
	return TraceRetry{Kind: kind, Of: r.Of, At: s.at(r.At)}
}

// tree lists the nodes in the order in which they came.
func (s *Session) tree(t *Trace) {
	nodes := make([]*forest.Node, s.Stats.Nodes)
	var collect func(n *forest.Node)
	collect = func(n *forest.Node) {
		for ; ; n = n.Children()[0] {
			if n.ID() > 0 {
				nodes[n.ID()-1] = n
			}
			if len(n.Children()) == 0 {
				return
			}
			for _, child := range n.Children()[1:] {
				collect(child)
			}
		}
	}
	collect(s.Forest.Root())
	t.Nodes = []TraceNode{}
	for _, n := range cut(nodes, maxNodes, "nodes", t.Omitted) {
		t.Nodes = append(t.Nodes, s.node(n))
	}
}

func (s *Session) node(n *forest.Node) TraceNode {
	out := TraceNode{
		ID: n.ID(), Kind: n.Kind().String(), Parent: n.Parent().ID(), State: s.Hashes[n], Messages: len(n.Messages()),
		Tokens: n.Len() - n.Parent().Len(), PromptTokens: len(n.Prompt()), Length: n.Len(), Duplicates: n.Duplicates(),
	}
	if last := out.Messages - 1; last >= 0 {
		out.Summary = summary(n.Messages()[last])
	}
	if n.Parent().Kind() == forest.Root {
		out.Tools = len(n.Tools())
	}
	return out
}

// summary shows a message in one line.
func summary(m *canon.Message) string {
	text := m.Content
	if text == "" && len(m.ToolCalls) > 0 {
		text = fmt.Sprintf("%s(%s)", m.ToolCalls[0].Name, shorten(string(m.ToolCalls[0].Arguments), shownValue))
	}
	return string(m.Role) + ": " + shorten(text, shownValue)
}

func (s *Session) exports(t *Trace) {
	t.Exports, t.Side = []TraceExport{}, []TraceExport{}
	for _, e := range cut(s.Exports, maxExports, "exports", t.Omitted) {
		t.Exports = append(t.Exports, s.context(e.Name, e.Node))
	}
	for _, n := range cut(s.Side, maxExports, "side_conversations", t.Omitted) {
		t.Side = append(t.Side, s.context("", n))
	}
}

func (s *Session) context(name string, n *forest.Node) TraceExport {
	out := TraceExport{
		Name: shorten(name, shownText), Node: n.ID(), LeafStateHash: s.Hashes[n],
		TerminalStatus: status(n), TurnCount: n.Responses(), Tokens: n.Len() - len(n.Prompt()),
	}
	for _, m := range path(n)[0].Messages() {
		out.Summary = summary(m)
		if m.Role == canon.User {
			break
		}
	}
	return out
}

// AgenticTrace is the trace of one exported context. Requests finds the request of a turn by
// its id.
func (s *Session) AgenticTrace(end *forest.Node) AgenticTrace {
	byID := make(map[string]*Request, len(s.Requests))
	for i := range s.Requests {
		byID[s.Requests[i].ID] = &s.Requests[i]
	}
	t := AgenticTrace{
		SessionID: s.ID, LeafStateHash: s.Hashes[end], TerminalStatus: status(end), TurnCount: end.Responses(),
		Turns: make([]TurnRecord, 0, end.Responses()), Events: s.Events(),
	}
	aborted := 0
	for _, n := range path(end) {
		if g := n.Generation(); g != nil {
			aborted += g.Aborts
			t.Turns = append(t.Turns, s.record(n, byID[g.RequestID], aborted))
			if g.Spec.Rated || g.Spec.Verified {
				t.SpecGenerations = append(t.SpecGenerations, specRecord(g, s.Hashes[n]))
			}
		}
	}
	return t
}

func specRecord(g *forest.Generation, hash string) SpecRecord {
	r := SpecRecord{RequestID: g.RequestID, RespStateHash: hash}
	if s := &g.Spec; s.Rated {
		r.Accepted, r.Proposed = &s.Accepted, &s.Proposed
	}
	if s := &g.Spec; s.Verified {
		sampled := len(g.IDs)
		r.Verifications, r.Completion = &s.Verifications, &sampled
	}
	return r
}

// ---- numbers and texts --------------------------------------------------------------------------

// at turns a time since the Session's start into unix seconds; 0 stays 0.
func (s *Session) at(since time.Duration) float64 {
	if since == 0 {
		return 0
	}
	return unix(s.Began.Add(since))
}

// UnixSeconds is a moment as traces write it, 0 for the zero time.
func UnixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return unix(t)
}

// unix rounds to microseconds: more digits than a float64 of this size tells apart.
func unix(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// seconds is a duration, 0 for one that did not come to be.
func seconds(d time.Duration) float64 { return float64(max(d, 0).Microseconds()) / 1e6 }

func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// cut keeps the beginning and the end of a list that is too long.
func cut[T any](list []T, limit int, name string, omitted map[string]int) []T {
	if len(list) <= limit {
		return list
	}
	omitted[name] = len(list) - limit
	head := limit / 4
	return append(append(make([]T, 0, limit), list[:head]...), list[len(list)-(limit-head):]...)
}

// shorten keeps the beginning and the end of a text that is too long.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	head := limit / 2
	return strings.ToValidUTF8(s[:head]+" … "+s[len(s)-(limit-head):], "\uFFFD")
}

// shortenHead keeps the end of a text that is too long.
func shortenHead(s string, limit int) string {
	if len(s) > limit {
		s = "… " + s[len(s)-limit:]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
