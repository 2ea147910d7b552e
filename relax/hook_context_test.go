package relax

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// detailed is a context of an event with sample_details.
type detailed struct {
	Name           *string
	Metadata       map[string]any
	Reward         any
	Length         int
	PromptLen      int `json:"prompt_len"`
	Tokens         []byte
	Logprobs       []byte
	WeightVersions []int64 `json:"weight_versions"`
	TurnTable      []struct {
		Start  int
		Length int `json:"response_length"`
		Masked bool
	} `json:"turn_table"`
	Trace  map[string]any `json:"agentic_trace"`
	Tools  []any
	Kwargs map[string]any `json:"chat_template_kwargs"`
}

// numbers reads little-endian numbers.
func numbers[T int32 | float32](t *testing.T, raw []byte) []T {
	t.Helper()
	out := make([]T, len(raw)/4)
	if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// contextsOf are all contexts of an event in order.
func contextsOf(t *testing.T, ev Event) []detailed {
	t.Helper()
	var data struct {
		Sessions []struct{ Contexts []detailed }
	}
	if err := json.Unmarshal(ev.Data, &data); err != nil {
		t.Fatalf("event %d: %v: %s", ev.Kind, err, ev.Data)
	}
	var out []detailed
	for _, s := range data.Sessions {
		out = append(out, s.Contexts...)
	}
	return out
}

// Hooks see of each context what its row will be, if they asked for it.
func TestEventsHaveSampleDetails(t *testing.T) {
	t.Parallel()
	cfg := contextsConfig(t)
	cfg.CustomRM, cfg.GroupRM, cfg.CustomFilter, cfg.SampleDetails = true, true, true, true
	cfg.SharedPrefixLoss, cfg.ApplyChatTemplateKwargs = sharedFirst, json.RawMessage(`{"enable_thinking":false}`)
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{Mode: "contexts", Turns: 2}))
	events := map[EventKind]Event{}
	r := runStep(t, e, 0, func(ev Event) {
		events[ev.Kind] = ev
		reply := map[EventKind]string{
			EventScore: `{"rewards":[1,2]}`, EventAdvantage: `{"advantages":[[1,[2,3]],[1,2]]}`, EventFilter: `{"keep":true}`,
		}[ev.Kind]
		if err := e.Reply(ev.ID, []byte(reply)); err != nil {
			t.Error(err)
		}
	})
	if r.batch == nil || r.batch.Seqs != 4 {
		t.Fatalf("report %+v", r.report)
	}
	defer r.batch.Release()
	offsets, prompts := View[int64](r.batch, "offsets"), View[int32](r.batch, "prompt_len")
	tokens, logprobs := View[int32](r.batch, "tokens"), View[float32](r.batch, "logprobs")
	for _, kind := range []EventKind{EventScore, EventFilter} {
		for row, c := range contextsOf(t, events[kind]) {
			if got := numbers[int32](t, c.Tokens); !slices.Equal(got, tokens[offsets[row]:offsets[row+1]]) {
				t.Errorf("event %d: tokens of row %d: %v", kind, row, got)
			}
			if got := numbers[float32](t, c.Logprobs); !slices.Equal(got, logprobs[offsets[row]:offsets[row+1]]) {
				t.Errorf("event %d: logprobs of row %d: %v", kind, row, got)
			}
			masked := row%2 == 1 // the second context of a Session shares its first turn
			if c.Length != len(c.Tokens)/4 || c.PromptLen != int(prompts[row]) || len(c.TurnTable) != 2 ||
				c.TurnTable[0].Start != c.PromptLen || c.TurnTable[0].Masked != masked ||
				!slices.Equal(c.WeightVersions, []int64{0}) || c.Trace["turn_count"] != 2.0 {
				t.Errorf("event %d: row %d: %+v", kind, row, c)
			}
		}
	}
	var meta struct {
		Tools  []any
		Kwargs map[string]any `json:"chat_template_kwargs"`
	}
	at := View[int64](r.batch, "meta_offsets")
	if err := json.Unmarshal(View[uint8](r.batch, "meta_json")[at[0]:at[1]], &meta); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(contextsOf(t, events[EventAdvantage]), detailed{Tools: meta.Tools, Kwargs: meta.Kwargs}) {
		if c.Tools == nil || c.Kwargs["enable_thinking"] != false {
			t.Errorf("tools %v and kwargs %v", c.Tools, c.Kwargs)
		}
	}
}

// openAsking opens an engine that asks for rewards, credit and a verdict on its one Group, whose
// Sessions have two contexts each.
func openAsking(t *testing.T) *Engine {
	t.Helper()
	cfg := contextsConfig(t)
	cfg.CustomRM, cfg.GroupRM, cfg.CustomFilter = true, true, true
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{Mode: "contexts"}))
	return e
}

// Who does not ask for details pays nothing for them.
func TestEventsAreSmallWithoutSampleDetails(t *testing.T) {
	t.Parallel()
	e := openAsking(t)
	r := runStep(t, e, 0, func(ev Event) {
		for _, word := range []string{`"tokens"`, `"turn_table"`, `"tools"`, `"chat_template_kwargs"`} {
			if strings.Contains(string(ev.Data), word) {
				t.Errorf("event %d has %s: %.300s", ev.Kind, word, ev.Data)
			}
		}
		reply := map[EventKind]string{
			EventScore: `{"rewards":[1,2]}`, EventAdvantage: `{"advantages":[[1,2],[1,2]]}`, EventFilter: `{"keep":true}`,
		}[ev.Kind]
		if err := e.Reply(ev.ID, []byte(reply)); err != nil {
			t.Error(err)
		}
	})
	if r.batch == nil {
		t.Fatalf("report %+v", r.report)
	}
	if strings.Contains(string(View[uint8](r.batch, "meta_json")), `"tools"`) {
		t.Error("rows have tools")
	}
	r.batch.Release()
}

// A reward model for Groups may give each context its reward, and add to its metadata what later
// hooks, rows and metrics then have.
func TestRewardsAndMetadataOfContexts(t *testing.T) {
	t.Parallel()
	e := openAsking(t)
	r := runStep(t, e, 0, func(ev Event) {
		switch ev.Kind {
		case EventScore:
			for reply, want := range map[string]string{
				`{"rewards":[[1],[2,3]]}`:                               "rewards[0]: 1 rewards for the 2 contexts",
				`{"rewards":[[1,2],[3,"x"]]}`:                           "rewards[1][1]",
				`{"rewards":[null,1]}`:                                  "rewards[0]: expected a number or an object",
				`{"rewards":[1,2],"metadata":[null]}`:                   "metadata for 1 of the 2 sessions",
				`{"rewards":[1,2],"metadata":[null,3]}`:                 "metadata[1]: expected an object",
				`{"rewards":[1,2],"metadata":[null,[{}]]}`:              "1 objects for the 2 contexts",
				`{"rewards":[1,2],"metadata":[null,[{},3]]}`:            "expected an object",
				`{"rewards":[[1,2],[3,4]],"metadata":[[null,{"a":1}]]}`: "metadata for 1",
			} {
				if err := e.Reply(ev.ID, []byte(reply)); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("reply %s: %v, want %q", reply, err, want)
				}
			}
			err := e.Reply(ev.ID, []byte(`{"rewards":[[0.5,7],[null,2]],"metadata":[[null,{"judge":8}],{"outcome":3}]}`))
			if err != nil {
				t.Error(err)
			}
		case EventAdvantage:
			if c := contextsOf(t, ev); c[1].Metadata["judge"] != 8.0 || c[2].Metadata["outcome"] != 3.0 {
				t.Errorf("the advantage hook sees %+v", c)
			}
			replyOnce(t, e, `{"advantages":[[1,2],[1,2]]}`)(ev)
		default:
			if c := contextsOf(t, ev); fmt.Sprint(c[0].Reward, c[1].Reward, c[2].Reward, c[3].Reward) != "0.5 7 <nil> 2" {
				t.Errorf("the filter hook sees %+v", c)
			}
			replyOnce(t, e, `{"keep":true}`)(ev)
		}
	})
	if r.batch == nil {
		t.Fatalf("report %+v", r.report)
	}
	defer r.batch.Release()
	rewards := View[float64](r.batch, "reward")
	if !math.IsNaN(rewards[2]) || !slices.Equal([]float64{rewards[0], rewards[1], rewards[3]}, []float64{0.5, 7, 2}) {
		t.Errorf("rewards %v", rewards)
	}
	if raw := View[float32](r.batch, "raw_reward"); !slices.Equal(raw, []float32{0.5, 0.5, 2, 2}) {
		t.Errorf("raw rewards %v: main's, and of the session without it the other's", raw)
	}
	if m := r.report.Metrics; m["rollout/raw_reward"] != 1.25 || m["judge/mean"] != 8 {
		t.Errorf("metrics %v", m)
	}
	if !strings.Contains(string(View[uint8](r.batch, "meta_json")), `"judge":8`) {
		t.Error("the rows do not have what the host added")
	}
}

// The main context's reward is the Session's, in rows and metrics, in whichever order the agent
// wrote them.
func TestTheMainContextsRewardIsTheSessions(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, func(c *Config) { c.CustomAdvantage = true })
	messages := twoTurns(t, e, s, nil)
	records := ""
	for _, name := range []string{"side", "main"} {
		records += jsonText(t, map[string]any{"name": name, "messages": messages, "reward": len(records)}) + "\n"
	}
	var err error
	if s.results, err = exported(s, records); err != nil {
		t.Fatal(err)
	}
	side, main := s.results[0], s.results[1]
	credits := []credit.Credit{{Turns: make([]float32, 2)}, {Turns: make([]float32, 2)}}
	rows, stats := s.rows(credits)
	if side.reward.value != 0 || s.reward() != main.reward || float64(rows[0].RawReward) != main.reward.value {
		t.Errorf("the session's reward is %v, main's %v", rows[0].RawReward, main.reward.value)
	}
	if !math.IsNaN(stats[0].Reward) || stats[1].Reward != main.reward.value {
		t.Errorf("metrics count rewards %v and %v of one session", stats[0].Reward, stats[1].Reward)
	}
	s.setRewards([]*reward{{value: 3}})
	if main.reward.value != 3 || side.reward.value != 0 {
		t.Error("a reward for the session is not main's")
	}
	main.reward = nil
	if s.reward() != side.reward {
		t.Error("the only reward is not the session's")
	}
}

func TestOffered(t *testing.T) {
	parameters, err := canon.ParseValue([]byte(`{"type": "object"}`))
	if err != nil {
		t.Fatal(err)
	}
	s := &session{core: &core{cfg: resolved{Config: Config{SampleDetails: true}}}}
	e := &export{lineage: forest.Lineage{Kwargs: canon.ObjectOf()}}
	if got := s.offered(e); string(got.Tools) != "[]" || string(got.Kwargs) != "{}" {
		t.Errorf("nothing offered: %s %s", got.Tools, got.Kwargs)
	}
	e.lineage.Tools = []canon.ToolSpec{canon.NewToolSpec("f", nil, parameters), canon.NewToolSpec("g", nil, parameters)}
	raw, err := json.Marshal(s.offered(e))
	const want = `{"tools":[{"function":{"name":"f","parameters":{"type":"object"}},"type":"function"},` +
		`{"function":{"name":"g","parameters":{"type":"object"}},"type":"function"}],"chat_template_kwargs":{}}`
	if err != nil || string(raw) != want {
		t.Errorf("%v: %s", err, raw)
	}
}

// What a SCORE event of a Group of 8 Sessions with 8,192 tokens each costs, without details and
// with them.
func BenchmarkScoreEvent(b *testing.B) {
	for _, details := range []bool{false, true} {
		b.Run(fmt.Sprintf("details=%v", details), func(b *testing.B) {
			c := &core{cfg: resolved{Config: Config{SampleDetails: details}}}
			g := &group{label: "train:group_1"}
			for range 8 {
				g.sessions = append(g.sessions, longSession(b, c, 8, 1024))
			}
			size := 0
			for b.Loop() {
				raw, err := json.Marshal(scoreRequest(g))
				if err != nil {
					b.Fatal(err)
				}
				size = len(raw)
			}
			b.ReportMetric(float64(size)/8, "B/session")
		})
	}
}

// longSession is a Session with one context of turns that have so many tokens, four letters each.
func longSession(b *testing.B, c *core, turns, tokens int) *session {
	b.Helper()
	f := forest.New("session-1")
	answer := canon.NewMessage(canon.Message{Role: canon.Assistant, Content: strings.Repeat("word", tokens)})
	request := &canon.Request{Kwargs: canon.ObjectOf()}
	var end *forest.Node
	for range turns {
		request.Messages = append(request.Messages, canon.NewMessage(canon.Message{Role: canon.User, Content: "go on"}))
		obs := f.Attach(f.Match(request), nil, nil, request)
		var err error
		end, err = f.Commit(obs, forest.Generation{IDs: make([]int32, tokens), Logprobs: make([]float32, tokens), Message: answer})
		if err != nil {
			b.Fatal(err)
		}
		request.Messages = append(request.Messages, answer)
	}
	e := &export{node: end, lineage: f.Row(end), metadata: map[string]json.RawMessage{}, trace: json.RawMessage("{}")}
	return &session{core: c, id: "session-1", results: []*export{e}}
}
