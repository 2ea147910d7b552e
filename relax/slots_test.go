package relax

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slotsVariable says "<directory> <number>": the places of an external platform, one file each.
const slotsVariable = "RELAXTEST_SLOTS"

// runSlotAgent is an agent whose work runs on a platform that limits how many run at once: it waits for a
// place, as long as it takes. The kernel gives the place back however the agent ends.
func runSlotAgent() int {
	dir, number, _ := strings.Cut(os.Getenv(slotsVariable), " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return 9
	}
	for {
		for i := range n {
			slot, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(i)), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return 9
			}
			if syscall.Flock(int(slot.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				defer slot.Close() // also keeps it from being collected
				return runAgent()
			}
			slot.Close()
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// A capacityRow is a line of the guide's capacity table.
type capacityRow struct {
	name    string
	alter   func(*Config)
	eval    bool // also an Eval, whose one Group is 4 agents
	slots   int  // the guide's minimum
	formula string
}

var capacityTable = []capacityRow{
	{"train alone", func(*Config) {}, false, 3,
		"external_slots >= T = 3, where T = agentic_concurrency (1) * n_samples_per_prompt (3) = 3"},
	{"an Eval that is larger", func(*Config) {}, true, 4,
		"external_slots >= max(T, E_peak) = 4, where T = agentic_concurrency (1) * n_samples_per_prompt (3) = 3 and E_peak = 4"},
	{"prelaunch and Eval", func(c *Config) { c.AgenticPrelaunch = true }, true, 7,
		"external_slots >= T + E_peak = 7, where T = agentic_concurrency (1) * n_samples_per_prompt (3) = 3 and E_peak = 4"},
}

// openPlatform opens an engine whose agents share so many places.
func openPlatform(t *testing.T, row capacityRow, slots int, firstRequest float64) *Engine {
	t.Helper()
	cfg := testConfig(t)
	cfg.AgentEnv = map[string]string{roleVariable: "slot agent", slotsVariable: fmt.Sprintf("%s %d", t.TempDir(), slots)}
	cfg.NSamplesPerPrompt, cfg.AgenticConcurrency, cfg.AgenticEvalConcurrency = 3, 1, 1
	cfg.CustomRM, cfg.GroupRM = true, true // an Eval Group is a prompt with all its samples
	cfg.AgentFirstRequestTimeout, cfg.MaxConsecutiveDroppedGroups = firstRequest, 1
	row.alter(&cfg)
	return openEngine(t, cfg)
}

// With the guide's minimum of slots nothing waits in vain, over some steps and Evals.
func TestTheGuidesMinimumOfSlotsIsEnough(t *testing.T) {
	t.Parallel()
	for _, row := range capacityTable {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			e := openPlatform(t, row, row.slots, 10*waitLimit.Seconds())
			for rollout := range int64(3) {
				r := playSlots(t, e, row, rollout)
				if len(r.report.Drops) != 0 || r.report.Error != "" {
					t.Errorf("rollout %d: %+v", rollout, r.report)
				}
			}
		})
	}
}

// With one fewer there is a Group that can never start: the barrier's timeout ends it, and says what
// the platform needs.
func TestOneSlotFewerTripsTheBarrier(t *testing.T) {
	t.Parallel()
	for _, row := range capacityTable {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			e := openPlatform(t, row, row.slots-1, 6)
			r := playSlots(t, e, row, 0)
			if len(r.report.Drops) != 1 || r.report.Drops[0].Reason != "first_request_timeout" {
				t.Fatalf("report %+v", r.report)
			}
			if first := r.report.Drops[0].First; !strings.Contains(first, "agent_first_request_timeout") || !strings.Contains(first, row.formula) {
				t.Errorf("the cause is %q, want the option and %q", first, row.formula)
			}
			if !row.eval && !strings.Contains(r.report.Error, row.formula) {
				t.Errorf("the step's error is %q", r.report.Error)
			}
		})
	}
}

// playSlots plays a step, and the row's Eval, of which it returns the result: with prelaunch all places of
// training are taken then.
func playSlots(t *testing.T, e *Engine, row capacityRow, rollout int64) stepResult {
	t.Helper()
	answer := func(ev Event) { answerSlots(t, e, ev) }
	submit(t, e, task(agentTask{}))
	r := runStep(t, e, rollout, answer)
	if !row.eval {
		return r
	}
	if len(r.report.Drops) != 0 {
		t.Fatalf("training: %+v", r.report)
	}
	if e.core.cfg.AgenticPrelaunch {
		submit(t, e, task(agentTask{}))
		until(t, func() bool { return counts(e).Ready == 1 })
	}
	if err := e.StartEval(rollout, []EvalDataset{{Name: "aime", NSamples: 4, Tasks: []Task{task(agentTask{})}}}); err != nil {
		t.Fatal(err)
	}
	return finishStep(t, e, answer)
}

func answerSlots(t *testing.T, e *Engine, ev Event) {
	t.Helper()
	if ev.Kind != EventScore {
		replyTasks(t, e, ev, task(agentTask{}))
		return
	}
	var ask struct{ Sessions []json.RawMessage }
	if err := json.Unmarshal(ev.Data, &ask); err != nil {
		t.Fatal(err)
	}
	answer, err := json.Marshal(map[string]any{"rewards": make([]int, len(ask.Sessions))})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Reply(ev.ID, answer); err != nil {
		t.Errorf("reply: %v", err)
	}
}
