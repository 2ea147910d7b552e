package relax

import (
	"strings"
	"testing"
)

// An agent that something outside ended had not finished, whatever code it leaves with: its Session is
// no success, even if there is an output.
func TestAgentEndedFromOutsideIsNoSuccess(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	self := strings.TrimPrefix(cfg.AgentCommand, "exec ")
	// The agent has written its reward and goes on; the shell's parent is the supervisor.
	cfg.AgentCommand = self + `; trap 'exit 0' TERM; kill -TERM $PPID; sleep 1000 & wait`
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{}))
	r := runStep(t, e, 0, func(ev Event) {
		if err := e.Reply(ev.ID, []byte(`{"tasks": [], "end": true}`)); err != nil {
			t.Error(err)
		}
	})
	if r.report.Groups != 0 || len(r.report.Drops) != 1 {
		t.Fatalf("report = %+v", r.report)
	}
	if d := r.report.Drops[0]; d.Reason != string(reasonExit) || !strings.Contains(d.First, "outside the engine") || !strings.Contains(d.First, "code 0") {
		t.Errorf("drop = %+v", d)
	}
}
