package relax

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// rowMeta is a row's meta_json.
type rowMeta struct {
	SessionID string                     `json:"session_id"`
	GroupID   string                     `json:"group_id"`
	Name      string                     `json:"name,omitempty"`
	Metadata  map[string]json.RawMessage `json:"metadata"`
	Reward    json.RawMessage            `json:"reward"`
	// StartRollout is the step of the first response, Turns the turn table.
	StartRollout int64      `json:"start_rollout_id"`
	Turns        []turnMeta `json:"turns"`
	// PerTurn: the advantage hook gave one for each turn, be they the same, and not one number.
	PerTurn bool `json:"per_turn,omitempty"`
	// Trace is an [observe.AgenticTrace].
	Trace json.RawMessage `json:"agentic_trace"`
	offered
}

// offered is what requests of a context's conversation said beside its messages (reference pipeline
// 6.2), with sample_details only: the tools of a coding agent take 50 KB a context.
type offered struct {
	Tools  json.RawMessage `json:"tools,omitempty"`
	Kwargs json.RawMessage `json:"chat_template_kwargs,omitempty"`
}

func (s *session) offered(e *export) (out offered) {
	if !s.core.cfg.SampleDetails {
		return out
	}
	out.Tools = append(out.Tools, '[')
	for i := range e.lineage.Tools {
		if i > 0 {
			out.Tools = append(out.Tools, ',')
		}
		out.Tools = e.lineage.Tools[i].AppendCanonical(out.Tools)
	}
	out.Tools = append(out.Tools, ']')
	out.Kwargs = e.lineage.Kwargs.AppendCompact(nil)
	return out
}

// hookContext is one context as hooks of rewards and filters see it.
type hookContext struct {
	Name     *string                    `json:"name"` // null for an implicit export
	Metadata map[string]json.RawMessage `json:"metadata"`
	// Reward is what this context carries, null if it carries none.
	Reward json.RawMessage `json:"reward"`
	Turns  int             `json:"turns"`
	// ResponseLen counts tokens with loss mask 1.
	ResponseLen int `json:"response_len"`
	// Length counts all tokens, PromptLen those before the first response.
	Length    int    `json:"length"`
	PromptLen int    `json:"prompt_len"`
	Status    string `json:"status"`
	*contextDetails
}

// contextDetails is what the context's row will have, with sample_details only.
type contextDetails struct {
	// Tokens and Logprobs have one little-endian int32 and float32 for each token, in base64.
	Tokens   []byte `json:"tokens"`
	Logprobs []byte `json:"logprobs"`
	// WeightVersions are those of the row's segments, -1 for one that is no number.
	WeightVersions []int64 `json:"weight_versions"`
	Aborts         int     `json:"abort_count"`
	// TurnTable, StartRollout and Trace are those of the row's meta_json.
	TurnTable    []turnMeta      `json:"turn_table"`
	StartRollout int64           `json:"start_rollout_id"`
	Trace        json.RawMessage `json:"agentic_trace"`
	offered
}

func (s *session) hookContext(e *export) hookContext {
	out := hookContext{
		Name: e.givenName(), Metadata: e.metadata, Reward: json.RawMessage("null"),
		Turns: e.lineage.Turns, ResponseLen: e.lineage.Trained, Status: e.status(),
		Length: e.lineage.Len, PromptLen: e.lineage.PromptLen,
	}
	if e.reward != nil {
		out.Reward = e.reward.raw
	}
	if s.core.cfg.SampleDetails {
		out.contextDetails = s.details(e)
	}
	return out
}

func (s *session) details(e *export) *contextDetails {
	l := &e.lineage
	out := &contextDetails{
		WeightVersions: make([]int64, len(l.Spans)), Aborts: l.Aborts,
		TurnTable: turnTable(l), StartRollout: l.StartRollout, Trace: e.trace, offered: s.offered(e),
	}
	out.Tokens, out.Logprobs = littleEndian(l)
	for i, span := range l.Spans {
		out.WeightVersions[i] = span.Version
	}
	return out
}

// littleEndian lays the tokens and logprobs of a row out as bytes.
func littleEndian(l *forest.Lineage) (tokens, logprobs []byte) {
	tokens, logprobs = make([]byte, 4*l.Len), make([]byte, 4*l.Len)
	at := 0
	for _, piece := range l.Pieces {
		for i, logprob := range piece.Logprobs {
			binary.LittleEndian.PutUint32(logprobs[at+4*i:], math.Float32bits(logprob))
		}
		for _, id := range piece.Tokens {
			binary.LittleEndian.PutUint32(tokens[at:], uint32(id))
			at += 4
		}
	}
	return tokens, logprobs
}

// givenName is nil for an implicit export.
func (e *export) givenName() *string {
	if e.name == "" {
		return nil
	}
	return &e.name
}

type turnMeta struct {
	RequestID string `json:"request_id"`
	// Start and Length place the turn's sampled tokens in the row.
	Start   int     `json:"start"`
	Length  int     `json:"response_length"`
	Aborts  int     `json:"abort_count"`
	Status  string  `json:"status"`
	Seconds float64 `json:"generation_elapsed_s"`
	// PromptTokens were sent to the backend, over all attempts; CachedTokens of them it had already.
	PromptTokens int    `json:"prompt_tokens"`
	CachedTokens int    `json:"cached_tokens"`
	ParseError   string `json:"parse_error,omitempty"`
	// Masked: another row of the Session trains the turn (shared_prefix_loss), its loss mask is 0 here.
	Masked bool `json:"masked,omitempty"`
}

// rows lays the Session's contexts out for the batch; credits has one for each. Metrics count one
// reward, however many contexts carry one.
func (s *session) rows(credits []credit.Credit) ([]batch.Row, []observe.RowStat) {
	counted := map[*forest.Node]bool{}
	rewarded := s.rewarded()
	rows, stats := make([]batch.Row, len(s.results)), make([]observe.RowStat, len(s.results))
	for i, e := range s.results {
		rows[i] = s.row(e, credits[i])
		stats[i] = s.stat(e, counted)
		if e != rewarded {
			stats[i].Reward, stats[i].Helpers, stats[i].Category = math.NaN(), nil, ""
		}
	}
	return rows, stats
}

func (s *session) row(e *export, given credit.Credit) batch.Row {
	l := &e.lineage
	row := batch.Row{
		Session: s.id, PromptLen: l.PromptLen,
		Reward: math.NaN(), RawReward: float32(math.NaN()), Advantage: given.Number, PerTurn: given.PerTurn,
		GroupID: int64(s.group.id), SessionSeq: int32(s.ref.Seq), SampleIndex: s.sampleIndex(), Partition: s.group.rollout,
		Turns: int32(l.Turns), Aborts: int32(l.Aborts), Experts: s.experts(l), Meta: s.meta(e, given.PerTurn),
	}
	if e.reward != nil {
		row.Reward = e.reward.value
	}
	if r := s.reward(); r != nil {
		row.RawReward = float32(r.value)
	}
	if l.Truncated {
		row.Status = batch.Truncated
	}
	row.Segments = make([]batch.Segment, len(l.Spans))
	for i, span := range l.Spans {
		row.Segments[i] = batch.Segment{Start: span.Start, WeightVersion: span.Version}
	}
	row.TurnTable = make([]batch.Turn, len(l.TurnTable))
	for i, t := range l.TurnTable {
		row.TurnTable[i] = batch.Turn{Start: t.Start, Len: t.End - t.Start, Advantage: given.Turns[i], Masked: t.Masked}
	}
	row.Pieces = make([]batch.Piece, len(l.Pieces))
	for i, piece := range l.Pieces {
		row.Pieces[i] = batch.Piece{Tokens: piece.Tokens, Logprobs: piece.Logprobs}
	}
	return row
}

// sampleIndex numbers the Session among those of training, or of a dataset of an Eval, so that all its
// rows can be told apart from those of others.
func (s *session) sampleIndex() int64 {
	return int64(s.group.id)*int64(len(s.group.sessions)) + int64(s.ref.Seq)
}

func (s *session) meta(e *export, perTurn bool) []byte {
	l := &e.lineage
	meta := rowMeta{
		SessionID: s.id, GroupID: s.group.name(), Name: e.name, Metadata: e.metadata,
		Reward: json.RawMessage("null"), StartRollout: l.StartRollout, Turns: turnTable(l), PerTurn: perTurn,
		Trace: e.trace, offered: s.offered(e),
	}
	if e.reward != nil {
		meta.Reward = e.reward.raw
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		panic(fmt.Sprintf("meta of session %s does not marshal: %v", s.id, err)) // all raw parts were parsed before
	}
	return raw
}

func turnTable(l *forest.Lineage) []turnMeta {
	out := make([]turnMeta, len(l.TurnTable))
	for i, t := range l.TurnTable {
		out[i] = newTurnMeta(t.Node.Generation(), t)
	}
	return out
}

func newTurnMeta(g *forest.Generation, turn forest.Turn) turnMeta {
	status := "completed"
	if g.Truncated {
		status = "truncated"
	}
	return turnMeta{
		RequestID: g.RequestID, Start: turn.Start, Length: len(g.IDs), Aborts: g.Aborts, Status: status,
		Seconds: g.Seconds, PromptTokens: g.PromptTokens, CachedTokens: g.CachedTokens, ParseError: g.ParseError, Masked: turn.Masked,
	}
}

// stat is what metrics need to know of a context. Nodes in counted were counted with an earlier
// context of the Session; the others join them.
func (s *session) stat(e *export, counted map[*forest.Node]bool) observe.RowStat {
	l := &e.lineage
	stat := observe.RowStat{
		Group: int64(s.group.id), Session: s.ref.Seq, Reward: math.NaN(), Truncated: l.Truncated,
		Metadata: observe.NumericFields(e.metadata), StopReason: observe.StopReason(e.metadata),
		Staleness: s.group.rollout - l.StartRollout, VersionSpread: versionSpread(l.Spans),
		Repetitive: observe.Repetitive(saidText(l)),
	}
	if g := s.group; g.isLeased() {
		ready := g.barrier()
		stat.BarrierSeconds, stat.LeaseSeconds = ready.Sub(g.began).Seconds(), g.leasedAt.Sub(ready).Seconds()
	}
	if e.reward != nil {
		stat.Reward = e.reward.value
		stat.Helpers = observe.RewardHelpers(e.reward.raw, s.core.cfg.RewardKey)
		stat.Category = observe.RewardCategory(e.reward.raw, s.core.cfg.LogRewardCategory)
	}
	at := 0
	for _, piece := range l.Pieces {
		g := piece.Node.Generation()
		switch known := counted[piece.Node]; {
		case at < l.PromptLen || known:
		case g == nil:
			stat.TotalLen += len(piece.Tokens)
		default:
			stat.TotalLen += len(piece.Tokens)
			stat.ResponseLen += len(piece.Logprobs)
			countTurn(&stat, g)
		}
		at += len(piece.Tokens)
	}
	for _, piece := range l.Pieces { // an observation can have two pieces
		counted[piece.Node] = true
	}
	return stat
}

func countTurn(stat *observe.RowStat, g *forest.Generation) {
	stat.Turns++
	stat.PromptTokens += g.PromptTokens
	stat.CachedTokens += g.CachedTokens
	stat.Seconds += g.Seconds
	stat.OtherSeconds += max(0, g.WallSeconds-g.Seconds)
	stat.QueueSeconds += g.QueueSeconds
	stat.Spec.Add(specOf(g))
	if g.ParseError != "" {
		stat.ParseErrors++
	}
}

// versionSpread is the newest weight version less the oldest. Versions that are no numbers have
// none.
func versionSpread(spans []forest.VersionSpan) int64 {
	oldest, newest := int64(math.MaxInt64), int64(-1)
	for _, span := range spans {
		if span.Version >= 0 {
			oldest, newest = min(oldest, span.Version), max(newest, span.Version)
		}
	}
	return max(0, newest-oldest)
}

// saidText is the conversation from the first response on, if it is long enough for the question
// whether it repeats itself.
func saidText(l *forest.Lineage) string {
	if len(l.TurnTable) == 0 {
		return ""
	}
	said := l.Messages[l.TurnTable[0].Node.End()-1:]
	if !observe.LongEnough(textLen(said)) {
		return ""
	}
	var text strings.Builder
	for _, m := range said {
		text.WriteString(m.Reasoning)
		text.WriteString(m.Content)
	}
	return text.String()
}

func textLen(messages []*canon.Message) int {
	n := 0
	for _, m := range messages {
		n += len(m.Reasoning) + len(m.Content)
	}
	return n
}
