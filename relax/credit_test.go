package relax

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// contextsConfig is for Groups whose Sessions export two contexts.
func contextsConfig(t *testing.T) Config {
	cfg := testConfig(t)
	cfg.CustomAdvantage, cfg.NSamplesPerPrompt = true, 2
	return cfg
}

// replyOnce answers EventAdvantage, and says that there are no more tasks.
func replyOnce(t *testing.T, e *Engine, reply string) func(Event) {
	return func(ev Event) {
		body := reply
		if ev.Kind == EventTasksNeeded {
			body = `{"tasks":[],"end":true}`
		}
		if err := e.Reply(ev.ID, []byte(body)); err != nil {
			t.Errorf("reply %s: %v", body, err)
		}
	}
}

func TestEachContextHasItsAdvantage(t *testing.T) {
	t.Parallel()
	e := openEngine(t, contextsConfig(t))
	if err := e.Submit([]Task{task(agentTask{Mode: "contexts", Turns: 2})}); err != nil {
		t.Fatal(err)
	}
	asked := 0
	r := runStep(t, e, 0, func(ev Event) {
		var data struct {
			GroupID  string `json:"group_id"`
			Sessions []struct {
				SessionID string `json:"session_id"`
				Contexts  []advantageContext
			}
		}
		if err := json.Unmarshal(ev.Data, &data); err != nil || ev.Kind != EventAdvantage {
			t.Fatalf("event %d %s: %v", ev.Kind, ev.Data, err)
		}
		asked++
		for _, s := range data.Sessions {
			if len(s.Contexts) != 2 || *s.Contexts[0].Name != "main" || string(s.Contexts[0].Metadata["outcome"]) != "1" ||
				s.Contexts[0].Turns != 2 || *s.Contexts[1].Name != "searcher" || string(s.Contexts[1].Metadata["usefulness"]) != "0.6" {
				t.Errorf("contexts %s", ev.Data)
			}
		}
		for reply, want := range map[string]string{
			`{"advantages":[[1,2]]}`:                 "1 sessions",
			`{"advantages":[[1,2],[1]]}`:             "1 values for the 2 contexts",
			`{"advantages":[[1,2],[1,null]]}`:        `"searcher"`,
			`{"advantages":[[1,2],[1,"high"]]}`:      "expected",
			`{"advantages":[[1,2],[1,1e300]]}`:       "finite",
			`{"advantages":[[1,2],[1,2],[3,4]]}`:     "3 sessions",
			`{"advantages":[[1,2],[{"a":1},[1,2]]]}`: `context "main": expected a finite float32 number, or a list`,
			`{"advantages":[[1,2],[[1],2]]}`:         `context "main": expected one number for each of its 2 assistant turns`,
			`{"advantages":[[1,2],[[1,null],2]]}`:    "found [1,null]",
			`{"advantages":[[1,2],[[1,1e39],2]]}`:    "for turn 1",
			`{"advantages":[[1,2],[[],2]]}`:          "found a list of 0",
			`{"advantages":[[1,2],[1,true]]}`:        "found true",
			`{"advantage":[[1,2],[1,2]]}`:            "found none of them",
			`{}`:                                     "found none of them",
		} {
			if err := e.Reply(ev.ID, []byte(reply)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("reply %s: %v, want %q", reply, err, want)
			}
		}
		if err := e.Reply(ev.ID, []byte(`{"advantages":[[1,0.5],[-1,0]]}`)); err != nil {
			t.Error(err)
		}
	})
	if asked != 1 || r.batch == nil || r.batch.Seqs != 4 {
		t.Fatalf("asked %d times; report %+v", asked, r.report)
	}
	defer r.batch.Release()
	got := View[float32](r.batch, "advantage")
	if !slices.Equal(got, []float32{1, 0.5, -1, 0}) {
		t.Errorf("advantages %v", got)
	}
	rewards := View[float64](r.batch, "reward")
	if rewards[0] != 0.25 || !math.IsNaN(rewards[1]) {
		t.Errorf("rewards %v", rewards)
	}
	if seq := View[int32](r.batch, "session_seq"); !slices.Equal(seq, []int32{0, 0, 1, 1}) {
		t.Errorf("session_seq %v", seq)
	}
}

// Two contexts of three turns each, the first of which they share: it is trained twice or once,
// and counts once among the delivered tokens.
func TestSharedPrefixLoss(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{sharedEach, sharedFirst} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			cfg := contextsConfig(t)
			cfg.SharedPrefixLoss, cfg.NSamplesPerPrompt = policy, 1
			e := openEngine(t, cfg)
			if err := e.Submit([]Task{task(agentTask{Mode: "contexts", Turns: 2})}); err != nil {
				t.Fatal(err)
			}
			r := runStep(t, e, 0, replyOnce(t, e, `{"advantages":[[1,2]]}`))
			if r.batch == nil {
				t.Fatalf("no batch: %+v", r.report)
			}
			defer r.batch.Release()
			offsets, mask := View[int64](r.batch, "offsets"), View[uint8](r.batch, "loss_mask")
			trained := []int64{0, 0}
			for row := range trained {
				for _, m := range mask[offsets[row]:offsets[row+1]] {
					trained[row] += int64(m)
				}
			}
			var rows [2]struct {
				Turns []struct {
					Length int64 `json:"response_length"`
					Masked bool
				}
			}
			meta := View[int64](r.batch, "meta_offsets")
			for row := range rows {
				if err := json.Unmarshal(View[uint8](r.batch, "meta_json")[meta[row]:meta[row+1]], &rows[row]); err != nil {
					t.Fatal(err)
				}
				for i, turn := range rows[row].Turns {
					if want := policy == sharedFirst && row == 1 && i == 0; turn.Masked != want {
						t.Errorf("turn %d of row %d is masked: %v", i, row, turn.Masked)
					}
				}
			}
			shared := rows[0].Turns[0].Length
			delivered := r.report.Accounting.Tokens.Delivered
			want := trained[0] + trained[1]
			if policy == sharedEach {
				want -= shared
			}
			if delivered != want || r.report.Accounting.Tokens.Dropped != 0 {
				t.Errorf("rows train %v tokens with %d shared; books %+v", trained, shared, r.report.Accounting.Tokens)
			}
		})
	}
}

func TestAdvantageHookCanFilterAndFail(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{`{"advantages":null}`: "filtered", `{"error":"no judge"}`: "advantage"} {
		e := openEngine(t, contextsConfig(t))
		if err := e.Submit([]Task{task(agentTask{Mode: "contexts"})}); err != nil {
			t.Fatal(err)
		}
		r := runStep(t, e, 0, replyOnce(t, e, reply))
		if r.batch != nil || len(r.report.Drops) != 1 || r.report.Drops[0].Reason != want {
			t.Errorf("%s: drops %+v", reply, r.report.Drops)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Several contexts without a custom advantage have no credit: the message names the option.
func TestSeveralContextsNeedAnAdvantage(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	if err := e.Submit([]Task{task(agentTask{Mode: "contexts"})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, replyOnce(t, e, ""))
	if len(r.report.Drops) != 1 || !strings.Contains(r.report.Drops[0].First, "custom_advantage") {
		t.Errorf("drops %+v", r.report.Drops)
	}
}

func TestImplicitExportMain(t *testing.T) {
	t.Parallel()
	for policy, rows := range map[string]int{implicitUnique: 0, implicitMain: 1} {
		cfg := testConfig(t)
		cfg.ImplicitExport = policy
		e := openEngine(t, cfg)
		if err := e.Submit([]Task{task(agentTask{Mode: "title", Turns: 2})}); err != nil {
			t.Fatal(err)
		}
		r := runStep(t, e, 0, replyOnce(t, e, ""))
		if r.report.Rows != rows {
			t.Errorf("%s: %d rows; %+v", policy, r.report.Rows, r.report)
		}
		if rows == 1 {
			if turns := View[int32](r.batch, "turns")[0]; turns != 2 {
				t.Errorf("%d turns in the main conversation", turns)
			}
			if fmt.Sprint(r.report.Drops) == "[]" {
				t.Error("the title's tokens have no fate")
			}
			r.batch.Release()
		}
	}
}
