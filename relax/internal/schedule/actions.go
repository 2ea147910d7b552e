package schedule

// An Action is something the engine must do. The concrete types are in this file.
type Action interface{ action() }

// StartGroup starts the processes of a new train Group, Config.GroupSize Sessions, for the
// oldest queued task.
type StartGroup struct{ Group GroupID }

// StartEval starts the processes of a new Eval Group: samples First to First+Sessions-1 of one
// prompt of a dataset.
type StartEval struct {
	Group GroupID
	// Dataset and Prompt count from 0, in the order given to OpenEval.
	Dataset, Prompt, First int
	Sessions               int
}

// StartSession runs a failed Session of a Group from scratch (agent_retries). Nothing of its
// earlier run is left. Try counts from 1; Reason and Cause say why it failed.
type StartSession struct {
	Ref    SessionRef
	Try    int
	Reason Reason
	Cause  string
}

// KillSession ends one Session's process; its Group lives on. Answer with SessionFailed.
type KillSession struct {
	Ref    SessionRef
	Reason Reason
	Cause  string
}

// Lease moves a Group from Prepare to Runtime. Its requests follow as Pass.
type Lease struct{ Group GroupID }

// Pass lets a request through to the backend. Answer with RequestReturned.
type Pass struct {
	Request RequestID
	// Protected: its Session was aborted often enough, and is not aborted any more.
	Protected bool
}

// Abort takes a request back from the backend, or out of whatever it waits for on its way
// there. It is given once: who carries it out repeats it until the request is back. The answer
// is RequestReturned.
type Abort struct{ Request RequestID }

// Quiet answers Pause: no request is at the backend any more, and none will be until Resume.
type Quiet struct{}

// Score asks for the Group's credit; answer with GroupScored, GroupFiltered or GroupFailed.
type Score struct{ Group GroupID }

// Deliver puts the Group's rows into a partition, which is named by the rollout that opened
// it. Of an Eval Group it is the Eval's rollout.
type Deliver struct {
	Group     GroupID
	Partition int64
}

// EndPartition says that a partition of a fully-async run has all its Groups. Debt is not zero
// only if the step's tasks ran out, so that nothing could pay it. In other modes a partition
// ends with its step.
type EndPartition struct {
	Partition int64
	Groups    int
	Debt      int
}

// Drop ends a Group: its Sessions are killed and its tokens written off.
type Drop struct {
	Group  GroupID
	Reason Reason
	Cause  string
	// Late is the place of the Session whose deadline passed, -1 for other reasons.
	Late int
}

// Forget says that nothing of the Group runs any more and its state can be freed.
type Forget struct{ Group GroupID }

// NeedTasks asks for more train tasks; answer with QueueTasks or LastTasks.
type NeedTasks struct{ Count int }

// EndDataset says that every sample of an Eval dataset has its result or was dropped.
type EndDataset struct {
	Dataset int
	// Delivered and Dropped count samples.
	Delivered, Dropped int
}

// EndStep closes the step. What its Groups had at the backend is back.
type EndStep struct {
	Rollout int64
	// Eval: the step was an Eval.
	Eval bool
	// Debt is how many Groups are still owed: by the step, or in a fully-async run by all open
	// partitions.
	Debt int
	// Failure is not empty when the step ended on the failure budget.
	Failure string
	// Books say what became of everything started.
	Books Books
}

func (StartGroup) action()   {}
func (StartEval) action()    {}
func (StartSession) action() {}
func (KillSession) action()  {}
func (Lease) action()        {}
func (Pass) action()         {}
func (Abort) action()        {}
func (Quiet) action()        {}
func (Score) action()        {}
func (Deliver) action()      {}
func (EndPartition) action() {}
func (Drop) action()         {}
func (Forget) action()       {}
func (NeedTasks) action()    {}
func (EndDataset) action()   {}
func (EndStep) action()      {}
