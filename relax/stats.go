package relax

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// Stats is what [Engine.Stats] reports. Every wait of the engine shows up here.
type Stats struct {
	// Rollout is the open step, null between its step end and the next start; Eval: it is an Eval.
	Rollout *int64 `json:"rollout"`
	Eval    bool   `json:"eval"`
	// Debt is what the open step owes, in a fully-async run what all open partitions do.
	Debt   int        `json:"debt"`
	Groups GroupStats `json:"groups"`
	// QueuedTasks were submitted and not started.
	QueuedTasks int `json:"queued_tasks"`
	// OpenTasks are the started tasks of training that may still be delivered, in the order they came:
	// those of Groups that were neither dropped nor delivered. Each is the members of its metadata that
	// are numbers (the rest may be large): a host that numbers its tasks knows what it has to keep, with
	// the QueuedTasks newest ones, for tasks are started in their order.
	OpenTasks []map[string]json.Number `json:"open_tasks"`
	Requests  RequestStats             `json:"requests"`
	// Sessions have a token that is answered; Protected ones are not aborted any more.
	Sessions  int `json:"sessions"`
	Protected int `json:"protected"`
	// Waits are all there are, sorted.
	Waits []Wait `json:"waits"`
	// Divergences counts requests that did not go on from their Session's newest turn, by reason:
	// tools, chat_template_kwargs, message, shorter, longer.
	Divergences map[string]int64 `json:"divergences"`
	// Events wait to be polled, Replies were asked for and not given, LostLogs were dropped
	// because nobody polled.
	Events   int `json:"events"`
	Replies  int `json:"replies"`
	LostLogs int `json:"lost_logs"`
	// Paused: a Pause shut the gates. TrainGateOpen: requests of train Groups go to the backend.
	// Closing: the step waits for requests to come back.
	Paused        bool         `json:"paused"`
	TrainGateOpen bool         `json:"train_gate_open"`
	Closing       bool         `json:"closing"`
	WeightVersion int64        `json:"weight_version"`
	Backend       BackendStats `json:"backend"`
	// Admission is null without agentic_program_admission.
	Admission *AdmissionStats `json:"admission"`
	// Agents says what the launcher does.
	Agents  agent.Stats `json:"agents"`
	BaseURL string      `json:"base_url"`
	// MetricsURL is the page for Prometheus, "" without metrics_port.
	MetricsURL string `json:"metrics_url"`
	RunDir     string `json:"run_dir"`
	// Goroutines by name.
	Goroutines map[string]int `json:"goroutines"`

	open []Task // what OpenTasks are made of
}

// GroupStats counts Groups by what they wait for: preparing (first requests), ready (a lease),
// running (agents), scoring (credit), finalized (a partition that owes). Resident ones have a process
// that runs, Dying ones were dropped and still have one. The others are Groups of an Eval.
type GroupStats struct {
	Preparing     int `json:"preparing"`
	Ready         int `json:"ready"`
	Running       int `json:"running"`
	Scoring       int `json:"scoring"`
	Finalized     int `json:"finalized"`
	Resident      int `json:"resident"`
	Dying         int `json:"dying"`
	Interrupted   int `json:"interrupted"`
	EvalPreparing int `json:"eval_preparing"`
	EvalRunning   int `json:"eval_running"`
	EvalScoring   int `json:"eval_scoring"`
	EvalResident  int `json:"eval_resident"`
}

// RequestStats counts requests that are being answered by what they wait for. Backend includes those
// that wait for admission and for a permit of the backend's client.
type RequestStats struct {
	Live        int `json:"live"`
	Lease       int `json:"lease"`
	Gate        int `json:"gate"`
	Admission   int `json:"admission"`
	Permit      int `json:"permit"`
	Backend     int `json:"backend"`
	ClientGrace int `json:"client_grace"`
}

// BackendStats says where requests go. Workers are their addresses as they were at the start,
// Fleet what the client knows of them now; null of a stand-in.
type BackendStats struct {
	Kind    string        `json:"kind"`
	URL     string        `json:"url"`
	Model   string        `json:"model"`
	Workers []string      `json:"workers"`
	Fleet   *sglang.Stats `json:"fleet"`
}

// A statsBackend can say what it does.
type statsBackend interface{ Stats() sglang.Stats }

func (c *core) stats() ([]byte, error) {
	s, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	s.OpenTasks = make([]map[string]json.Number, len(s.open)) // here: reading metadata must not hold the loop up
	for i, t := range s.open {
		s.OpenTasks[i] = numbersIn(t.Metadata)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("relax: stats: %w", err)
	}
	return raw, nil
}

func (c *core) snapshot() (*Stats, error) {
	s := &Stats{}
	err := c.do(func() error {
		c.loopStats(s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.sessionsMu.Lock()
	s.Sessions = len(c.sessions)
	c.sessionsMu.Unlock()
	s.Divergences = map[string]int64{}
	c.divergences.Lock()
	for why, n := range c.divergences.by {
		s.Divergences[string(why)] = n
	}
	c.divergences.Unlock()
	s.Events, s.LostLogs = c.events.pending()
	s.WeightVersion = c.weight.Load()
	s.Backend = BackendStats{Kind: c.cfg.Backend, URL: c.backendURL, Model: c.backendInfo.ModelPath, Workers: c.backendInfo.Workers}
	if b, ok := c.backend.(statsBackend); ok {
		fleet := b.Stats()
		s.Backend.Fleet, s.Requests.Permit = &fleet, fleet.Waiting
	}
	if s.Admission = c.admission.stats(); s.Admission != nil {
		s.Requests.Admission = s.Admission.Waiting
	}
	s.Agents = c.launcher.Stats()
	s.BaseURL, s.RunDir, s.Goroutines = c.baseURL(), c.runDir.path, c.goroutines.Names()
	s.MetricsURL = c.metricsPage.address()
	return s, nil
}

// loopStats fills in what the loop owns.
func (c *core) loopStats(s *Stats) {
	n := c.machine.Counts()
	if c.step != nil { // until its step end is queued, so also while its batch is built
		rollout := c.step.rollout
		s.Rollout, s.Eval = &rollout, c.step.eval != nil
	}
	s.Debt, s.QueuedTasks, s.Protected, s.Replies = n.Debt, n.QueuedTasks, n.Protected, len(c.asks)
	s.Paused, s.TrainGateOpen, s.Closing = n.Paused, n.TrainOpen, n.Closing
	s.Groups = GroupStats{
		Preparing: n.Preparing, Ready: n.Ready, Running: n.Running, Scoring: n.Scoring, Finalized: n.Finalized,
		Resident: n.Resident, Dying: n.Dying, Interrupted: c.interruptedGroups(),
		EvalPreparing: n.EvalPreparing, EvalRunning: n.EvalRunning, EvalScoring: n.EvalScoring, EvalResident: n.EvalResident,
	}
	s.Requests = RequestStats{Lease: n.Held, Gate: n.Waiting, Backend: n.Passed}
	for _, g := range c.groups {
		for _, session := range g.sessions {
			s.Requests.Live += session.liveRequests()
			left, _ := session.abandoned()
			s.Requests.ClientGrace += left
		}
	}
	if s.Waits = c.waiting(time.Now()); s.Waits == nil {
		s.Waits = []Wait{}
	}
	s.open = c.openTasks()
}

// openTasks are the tasks of train Groups that were neither dropped nor delivered.
func (c *core) openTasks() []Task {
	var live []*group
	for _, g := range c.groups {
		if g.origin == nil && g.reason == "" && g.deliveredAt.IsZero() {
			live = append(live, g)
		}
	}
	slices.SortFunc(live, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
	tasks := make([]Task, len(live))
	for i, g := range live {
		tasks[i] = g.task
	}
	return tasks
}

// numbersIn are the members of a task's metadata that are numbers.
func numbersIn(metadata json.RawMessage) map[string]json.Number {
	numbers := map[string]json.Number{}
	if len(metadata) == 0 {
		return numbers
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(metadata, &members); err != nil {
		panic(fmt.Sprintf("a checked task's metadata is no object: %v", err))
	}
	for name, value := range members {
		if value[0] == '-' || '0' <= value[0] && value[0] <= '9' {
			numbers[name] = json.Number(value)
		}
	}
	return numbers
}
