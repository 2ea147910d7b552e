// Package relax runs the rollout side of agentic RL in one process: for each Session it
// starts an agent app, serves it a model endpoint, records every sampled token, and turns
// finished Groups into training batches.
//
// An [Engine] is driven by pulling: submit tasks, start a rollout, poll events, release the
// batch. Nothing calls back. [Doctor] looks at a model's chat format without an engine. The
// C ABI (capi/) and the Python package are thin covers of this one.
//
// What may enter: tasks, weight versions, replies to events. What it never does: train,
// read a dataset, or call into the host program.
package relax

import (
	"context"
	"encoding/json"

	"github.com/relax-rollout/relax-rollout/relax/internal/batch"
)

// A Batch is a set of training rows in columns; see [batch.Build] for the columns.
type Batch = batch.Batch

// A Column describes one column of a [Batch].
type Column = batch.Column

// An Allocator hands out the memory batches are built in.
type Allocator = batch.Allocator

// An Arena is one piece of such memory.
type Arena = batch.Arena

// View returns a column of a batch as a slice without copying.
func View[T batch.Number](b *Batch, name string) []T { return batch.View[T](b, name) }

// A Task is one prompt. It becomes one Group of Config.NSamplesPerPrompt Sessions, each of
// which finds the task in the file named by RELAX_INPUT_JSON.
type Task struct {
	// Messages is the OpenAI message list for the agent, absent for metadata-only tasks.
	Messages json.RawMessage `json:"messages,omitempty"`
	// Metadata is an object the agent can read and that comes back in the row's meta_json.
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// An EventKind says what a polled [Event] is. The numbers are part of the C ABI.
type EventKind uint32

// Event kinds.
const (
	// EventBatch carries the step's rows in Event.Batch. The receiver releases it. Those of an Eval
	// have Data {"eval": true, "dataset", "rollout"}.
	EventBatch EventKind = 1
	// EventStepEnd closes a rollout or an Eval; Data is a StepReport. Exactly one follows each
	// StartRollout and StartEval, after the step's batch if it has one. Its "error" field is set when the
	// step ended on the failure budget or a batch could not be built.
	EventStepEnd EventKind = 2
	// EventTasksNeeded asks for Data {"count": n} more tasks. Reply with
	// {"tasks": [...], "end": bool}; "end" says that no more will come for this rollout.
	EventTasksNeeded EventKind = 3
	// EventScore asks for the rewards of Data {"group_id", "sessions": [{"session_id", "name",
	// "metadata", "messages", "reward", "status", "length", "prompt_len"}, ...]} when
	// Config.CustomRM is set. Reply with {"rewards": [number or object, ...]}, one for each
	// session; rewards the agents wrote are kept, unless Config.GroupRM is set. {"error": text}
	// drops the Group. Of Eval Groups Data also has "dataset".
	//
	// In the place of a session's reward there can be a list with one for each of its contexts, null
	// for none. The reply may add to the contexts' metadata, key by key: "metadata" has for each
	// session null, an object for the context that stands for it, or a list with one of both for
	// each context.
	//
	// With Config.SampleDetails each session also has "contexts": as those of EventFilter without
	// the advantage, and with {"tokens", "logprobs", "weight_versions", "abort_count", "turn_table",
	// "start_rollout_id", "agentic_trace", "tools", "chat_template_kwargs"}. The first two are base64
	// of one little-endian int32 and float32 for each of the context's tokens, logprobs 0 where
	// the loss mask is; the others are what the row and its meta_json will have.
	EventScore EventKind = 4
	// EventLog carries Data {"level", "component", "event", "text", ...fields}.
	EventLog EventKind = 5
	// EventProgress carries Data {"rollout", "scored", "done", "total"} in Sessions, with
	// Config.AgenticPrelaunch also "prepared": Groups that only wait for a lease. Of an Eval it is
	// {"rollout", "eval": true, "dataset", "scored", "done", "total"} in samples of the dataset that runs.
	EventProgress EventKind = 6
	// EventAdvantage asks for the training credit of Data {"group_id", "sessions": [{"session_id",
	// "contexts": [{"name", "metadata", "turns", "start_rollout_id", "agentic_trace"}, ...]}, ...]} when Config.CustomAdvantage is set.
	// With Config.SampleDetails contexts also have "tools" and "chat_template_kwargs".
	// Reply with {"advantages": [[value, ...], ...]}: for each session one value for each of its
	// contexts, in that order: a number, or a list with one for each of its turns.
	// {"advantages": null} filters the Group, {"error": text} drops it.
	EventAdvantage EventKind = 7
	// EventFilter asks whether to train on the Group of Data {"group_id", "sessions": [{"session_id",
	// "reward", "contexts": [{"name", "metadata", "reward", "advantage", "turns", "length",
	// "prompt_len", "response_len", "status"}, ...]}, ...]}, whose credit is known, when
	// Config.CustomFilter is set; contexts with credit for each turn have "turn_advantages" too, and
	// with Config.SampleDetails what EventScore says. Reply with {"keep": bool, "reason": text}; the
	// reason of a Group that is not kept is counted as rollout/dynamic_filter/drop_<reason>.
	// {"error": text} drops it.
	EventFilter EventKind = 8
)

// An Event is one thing the engine wants the host to know or to do.
type Event struct {
	Kind EventKind
	// ID is not zero for events that want [Engine.Reply].
	ID uint64
	// RolloutID is the step the event belongs to.
	RolloutID int64
	Batch     *Batch
	// Data is a JSON object, nil for an EventBatch of training.
	Data []byte
}

// An Engine is one running rollout engine. All methods are safe for concurrent use.
type Engine struct{ core *core }

// Submit queues tasks. Tasks are taken in order by this and later rollouts.
func (e *Engine) Submit(tasks []Task) error { return e.core.submit(tasks) }

// StartRollout opens step rolloutID. It fails with [ErrState] while another step or an Eval is
// open, and in a fully-async run if an older partition would never be complete.
func (e *Engine) StartRollout(rolloutID int64) error { return e.core.startRollout(rolloutID) }

// StartEval opens an Eval: each task of each dataset is run NSamples times, one dataset after the
// other, scored, and not filtered, normalised or refilled. An [EventBatch] follows for each dataset
// that has rows, then an [EventStepEnd] with the results. Train Sessions that are resident stay
// so. It fails with [ErrState] while a step is open, with [ErrInvalid] for wrong datasets.
func (e *Engine) StartEval(rolloutID int64, datasets []EvalDataset) error {
	return e.core.startEval(rolloutID, datasets)
}

// Consumed says that the trainer took a complete partition of a fully-async run (max_staleness); once
// more changes nothing. [ErrState]: the partition still owes Groups, or no rollout has opened it.
func (e *Engine) Consumed(partition int64) error { return e.core.consumed(partition) }

// Poll returns the next event. It waits until there is one, ctx ends (ctx.Err()), or the
// engine is closed ([ErrClosed]) or poisoned ([ErrPanic]); events nobody took are then gone.
func (e *Engine) Poll(ctx context.Context) (Event, error) { return e.core.poll(ctx) }

// SetReadyFunc sets a function called, from any goroutine, each time an event is queued.
// It must not block. The C ABI signals its eventfd with it.
func (e *Engine) SetReadyFunc(f func()) { e.core.setReadyFunc(f) }

// PendingEvents is the number of events waiting to be polled.
func (e *Engine) PendingEvents() int { return e.core.pendingEvents() }

// Reply answers an event that has an ID. A reply of the wrong shape is an error and leaves the
// event open, so that a corrected reply can follow; [ErrState]: no event of this id is open.
func (e *Engine) Reply(id uint64, data []byte) error { return e.core.reply(id, data) }

// SetWeightVersion records the version that requests dispatched from now on are sampled
// under, where the backend does not report one itself. It also pushes nothing: the trainer
// updates the backend's weights.
func (e *Engine) SetWeightVersion(version int64) error { return e.core.setWeightVersion(version) }

// Pause closes the generation gates, of training and Eval, at any time: requests in flight are
// aborted at the backend and parked with the tokens they have; it returns when none of them is left
// there, or with ctx's error. Sessions protected by partial_rollout_max_aborted_count are not
// aborted: it waits until they are over. The gates stay closed until [Engine.Resume] in either
// case, and a second Pause waits again; a Resume ends a Pause that still waits with [ErrState].
// Agents keep waiting and their agent_timeout stands still.
func (e *Engine) Pause(ctx context.Context) error { return e.core.pause(ctx) }

// Resume opens the gate again; parked requests continue from their tokens.
func (e *Engine) Resume() error { return e.core.resume() }

// Stats returns a snapshot as a JSON object; see [Stats].
func (e *Engine) Stats() ([]byte, error) { return e.core.stats() }

// BaseURL is the URL handed to agents as RELAX_BASE_URL.
func (e *Engine) BaseURL() string { return e.core.baseURL() }

// Close ends the engine: waiting polls return [ErrClosed], agents are ended (TERM, and KILL after
// agent_kill_grace), listeners closed, goroutines joined. ctx bounds the wait; a Close that ran out
// of time returns an error and can be repeated to wait on. Batches already polled stay valid.
func (e *Engine) Close(ctx context.Context) error { return e.core.close(ctx) }
