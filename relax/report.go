package relax

import "github.com/relax-rollout/relax-rollout/relax/internal/observe"

// A StepReport is the Data of an [EventStepEnd]: what became of everything the step started.
type StepReport struct {
	Rollout int64 `json:"rollout"`
	// Eval: the step was an Eval, see Datasets.
	Eval bool `json:"eval,omitempty"`
	// Groups and Rows were delivered in the step's batch; Debt is how many Groups are missing
	// from rollout_batch_size because tasks ran out or the step failed. In a fully-async run it
	// is what all open partitions owe.
	Groups int `json:"groups"`
	Rows   int `json:"rows"`
	Debt   int `json:"debt"`
	// Seconds is the step's wall time.
	Seconds float64 `json:"seconds"`
	// Error is set when the step ended on max_consecutive_dropped_groups (it holds the first
	// cause) or its batch could not be built.
	Error string `json:"error,omitempty"`
	// Accounting balances: carried_in + started = delivered + dropped + carried in every line.
	Accounting Accounting `json:"accounting"`
	// Drops says why Groups were dropped, one entry a reason.
	Drops []Drop `json:"drops"`
	// Filtered counts, among the dropped Groups, those a filter or hook took out; Retries counts
	// Sessions that were run again (agent_retries).
	Filtered int `json:"filtered"`
	Retries  int `json:"retries"`
	// InterruptedGroups are carried with a request that is parked.
	InterruptedGroups int `json:"interrupted_groups"`
	// Partitions are those of a fully-async run that the step worked on, oldest first.
	Partitions []PartitionReport `json:"partitions,omitempty"`
	// Datasets are an Eval's results, in the order asked.
	Datasets []DatasetReport `json:"datasets,omitempty"`
	// Metrics are the step's numbers under the reference's names (rollout/raw_reward, …).
	Metrics map[string]float64 `json:"metrics"`
}

// Accounting holds one balance for each thing counted.
type Accounting struct {
	Groups   Balance `json:"groups"`
	Sessions Balance `json:"sessions"`
	// Tokens counts sampled tokens; delivered ones are those with loss mask 1 in the batch.
	Tokens Balance `json:"tokens"`
}

// A Balance says where everything that was there or started ended up. What happened between two
// train steps is in the books of the later one.
type Balance struct {
	// CarriedIn was unfinished at the last step's end; of tokens, what its Groups had sampled.
	CarriedIn int64 `json:"carried_in"`
	Started   int64 `json:"started"`
	Delivered int64 `json:"delivered"`
	Dropped   int64 `json:"dropped"`
	// Carried goes on in the next step.
	Carried int64 `json:"carried"`
}

// A Drop sums what was dropped for one reason: Groups with their Sessions and tokens, or only
// tokens of Groups that live on or were delivered.
type Drop struct {
	// Reason is a short stable word: agent_exit, agent_timeout, first_request_timeout,
	// left_before_lease, no_request, start_failed, invalid_output, export, reward, score,
	// advantage, filter (the filter hook failed), filtered (the advantage hook wanted the Group
	// out), filtered:<word> (a filter did), step_end (unfinished when the step had all its Groups),
	// surplus (finished then), memory (the batch could not be built); tokens only: not_exported
	// (outside the exported contexts), repeated (equal to a recorded turn), undelivered (the answer
	// did not reach its client), uncommitted (of a turn that was given up), retried (of a Session
	// that was run again).
	Reason   string `json:"reason"`
	Groups   int64  `json:"groups"`
	Sessions int64  `json:"sessions"`
	Tokens   int64  `json:"tokens"`
	// First is the first such Group's cause, with exit code and log tail where there are any.
	First string `json:"first"`
	// Examples are at most 5 of the Sessions: those at fault, or one of each Group if none is.
	Examples []DropExample `json:"examples,omitempty"`
}

// A DropExample says where to find what happened in a dropped Session.
type DropExample struct {
	SessionID string `json:"session_id"`
	GroupID   string `json:"group_id"`
	// Seq is the Session's place in its Group.
	Seq int `json:"seq"`
	// ExitCode is the agent's, null if it did not run or a signal ended it.
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	// Cause is a text for people, with the end of the agent's output where it is at fault.
	Cause string `json:"cause"`
	// Log is the file that keeps the agent's output, "" if it is not kept. Without run_dir it is gone
	// when the engine is closed.
	Log string `json:"log"`
	// Trace is the file that has the Session's trace, a line with its session_id; "" if neither
	// trace_dir nor save_debug_rollout_data is set.
	Trace string `json:"trace"`
}

// maxExamples bounds Drop.Examples.
const maxExamples = 5

func (d *Drop) show(examples ...DropExample) {
	room := max(0, min(maxExamples-len(d.Examples), len(examples)))
	d.Examples = append(d.Examples, examples[:room]...)
}

// A fate is how a Session's process ended.
type fate struct {
	atFault  bool
	exitCode *int
	signal   string
	log      string
}

// noteFate keeps what a drop's example tells.
func (s *session) noteFate(p observe.Process, atFault bool) {
	s.fate = fate{atFault: atFault, signal: p.Signal, log: p.Log, exitCode: p.Exited()}
}

// example is the Session as an example of a drop with that cause.
func (s *session) example(cause string) DropExample {
	return DropExample{
		SessionID: s.id, GroupID: s.group.name(), Seq: s.ref.Seq, Cause: cause,
		ExitCode: s.fate.exitCode, Signal: s.fate.signal, Log: s.fate.log,
	}
}

// examples are the Sessions of a dropped Group to look at.
func (g *group) examples() []DropExample {
	var out []DropExample
	for _, s := range g.sessions {
		cause := s.ended.cause
		if s.ended.reason == reasonDropped || cause == "" {
			cause = g.cause
		}
		if s.fate.atFault {
			out = append(out, s.example(cause))
		}
	}
	if len(out) == 0 {
		out = append(out, g.sessions[0].example(g.cause))
	}
	return out
}
