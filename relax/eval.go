package relax

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// An EvalDataset is one dataset of an Eval. Unset sampling values are those of training.
type EvalDataset struct {
	// Name is part of metric names (eval/<name>) and of Group ids. Required, unique.
	Name string `json:"name"`
	// NSamples is the number of runs of each task (n_samples_per_eval_prompt). Default 1.
	NSamples int    `json:"n_samples"`
	Tasks    []Task `json:"tasks"`
	// Temperature, TopP, TopK and MaxResponseLen (a turn's default token limit) override the
	// rollout's.
	Temperature    *float64 `json:"temperature,omitempty"`
	TopP           *float64 `json:"top_p,omitempty"`
	TopK           *int     `json:"top_k,omitempty"`
	MaxResponseLen int      `json:"max_response_len,omitempty"`
	// Metadata is laid under each task's.
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// An evalStep is an open Eval.
type evalStep struct {
	datasets []*evalDataset
	at       int // the dataset that runs
	books    ledger
}

// An evalDataset is a dataset and what it has brought.
type evalDataset struct {
	EvalDataset
	rules   rules
	began   time.Time
	groups  []*group
	scored  int // samples
	dropped int
	report  DatasetReport
	metrics map[string]float64
	err     error // its batch could not be built
}

// An origin says where an Eval Group comes from: samples First and on of one task.
type origin struct {
	dataset       *evalDataset
	prompt, first int
}

// A DatasetReport is the result of one dataset of an Eval.
type DatasetReport struct {
	Name string `json:"name"`
	// Samples were asked for: tasks times n_samples.
	Samples   int `json:"samples"`
	Delivered int `json:"delivered"`
	Dropped   int `json:"dropped"`
	// Rewards and Truncated have one value for each delivered sample, ordered by task and sample:
	// the first reward its contexts carry, and whether any of them was cut off.
	Rewards   []float64 `json:"rewards"`
	Truncated []bool    `json:"truncated"`
}

// startEval opens an Eval as a step of its own.
func (c *core) startEval(rollout int64, given []EvalDataset) error {
	datasets, err := c.readDatasets(given)
	if err != nil {
		return fmt.Errorf("%w: start eval %d: %w", ErrInvalid, rollout, err)
	}
	return c.do(func() error {
		if err := c.checkNoStep(fmt.Sprintf("start eval %d", rollout)); err != nil {
			return err
		}
		shape := make([]schedule.EvalDataset, len(datasets))
		samples := 0
		for i, d := range datasets {
			shape[i] = schedule.EvalDataset{Name: d.Name, Prompts: len(d.Tasks), Samples: d.NSamples}
			samples += d.report.Samples
		}
		now := time.Now()
		actions, err := c.machine.OpenEval(now, rollout, shape)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		datasets[0].began = now
		c.step = &stepState{rollout: rollout, started: now, eval: &evalStep{datasets: datasets, books: newLedger()}}
		c.heard = now
		c.traces.begin(rollout, modeEval)
		c.log(observe.Event("EVAL", "accounting_start", observe.F("rollout", rollout),
			observe.F("sessions", samples), observe.F("datasets", len(datasets))))
		c.apply(actions)
		return nil
	})
}

// readDatasets checks datasets and lays their metadata under their tasks'. The error names dataset
// and field.
func (c *core) readDatasets(given []EvalDataset) ([]*evalDataset, error) {
	if len(given) == 0 {
		return nil, errors.New("datasets: expected at least one")
	}
	var out []*evalDataset
	for i, d := range given {
		if d.Name == "" {
			return nil, fmt.Errorf("datasets[%d].name: expected a name", i)
		}
		if slices.ContainsFunc(out, func(o *evalDataset) bool { return o.Name == d.Name }) {
			return nil, fmt.Errorf("datasets[%d].name: %q is there twice", i, d.Name)
		}
		e := &evalDataset{EvalDataset: d}
		if err := e.settle(c.evalRules()); err != nil {
			return nil, fmt.Errorf("dataset %q: %w", d.Name, err)
		}
		out = append(out, e)
	}
	return out, nil
}

// evalRules are how an Eval samples if its datasets say nothing.
func (c *core) evalRules() rules {
	r := c.train
	r.mode, r.maxContext = modeEval, c.cfg.EvalMaxContextLen
	return r
}

// settle applies defaults and checks values as the options for training are.
func (d *evalDataset) settle(r rules) error {
	setDefault(&d.NSamples, 1)
	if d.NSamples < 0 {
		return fmt.Errorf("n_samples: expected a positive number, found %d", d.NSamples)
	}
	if d.MaxResponseLen < 0 {
		return fmt.Errorf("max_response_len: expected a positive number, found %d", d.MaxResponseLen)
	}
	setDefault(&d.MaxResponseLen, r.maxResponse)
	r.maxResponse = d.MaxResponseLen
	r.sampling.Temperature = valueOr(d.Temperature, r.sampling.Temperature)
	r.sampling.TopP = valueOr(d.TopP, r.sampling.TopP)
	r.sampling.TopK = valueOr(d.TopK, r.sampling.TopK)
	if field, problem := samplingProblem(r.sampling.Temperature, r.sampling.TopP, r.sampling.TopK); problem != "" {
		return fmt.Errorf("%s: %s", field, problem)
	}
	d.rules = r
	tasks := make([]Task, len(d.Tasks))
	for i, t := range d.Tasks {
		if err := t.check(); err != nil {
			return fmt.Errorf("task %d: %w", i, err)
		}
		merged, err := layMetadata(d.Metadata, t.Metadata)
		if err != nil {
			return fmt.Errorf("task %d: %w", i, err)
		}
		tasks[i] = Task{Messages: t.Messages, Metadata: merged}
	}
	d.Tasks = tasks
	d.report = DatasetReport{Name: d.Name, Samples: len(tasks) * d.NSamples, Rewards: []float64{}, Truncated: []bool{}}
	return nil
}

// layMetadata lays a task's metadata over its dataset's. A dataset without changes nothing.
func layMetadata(below, above json.RawMessage) (json.RawMessage, error) {
	if len(below) == 0 || bytes.Equal(below, []byte("null")) {
		return above, nil
	}
	merged, err := mergeMetadata(below, above)
	if err != nil {
		return nil, err
	}
	return json.Marshal(merged)
}

func (c *core) startEvalGroup(a schedule.StartEval) {
	d := c.step.eval.datasets[a.Dataset]
	g := &group{
		id: a.Group, task: d.Tasks[a.Prompt], rules: &d.rules,
		origin: &origin{dataset: d, prompt: a.Prompt, first: a.First},
		label:  fmt.Sprintf("eval:%s:%d:group_%d", d.Name, c.step.rollout, a.Group),
	}
	c.start(g, a.Sessions)
}

// drop counts the samples of a dropped Group.
func (e *evalStep) drop(g *group) { g.origin.dataset.dropped += len(g.sessions) }

func (e *evalStep) progress(rollout int64) map[string]any {
	d := e.datasets[min(e.at, len(e.datasets)-1)]
	done := d.dropped
	for _, g := range d.groups {
		done += len(g.sessions)
	}
	return map[string]any{"rollout": rollout, "eval": true, "dataset": d.Name, "scored": d.scored, "done": done, "total": d.report.Samples}
}

// evalScored lays out the rows of an Eval Group: no filter, no advantage, no normalisation.
func (c *core) evalScored(g *group) {
	if _, ok := c.rewards(g, "write one, or set custom_rm and score it"); !ok {
		return
	}
	for _, s := range g.sessions {
		credits := make([]credit.Credit, len(s.results))
		for i, e := range s.results {
			credits[i].Turns = make([]float32, len(e.lineage.TurnTable))
		}
		rows, stats := s.rows(credits)
		g.rows, g.stats = append(g.rows, rows...), append(g.stats, stats...)
	}
	g.origin.dataset.scored += len(g.sessions)
	c.apply(c.machine.GroupScored(time.Now(), g.id))
}

// endDataset publishes a dataset's batch.
func (c *core) endDataset(schedule.EndDataset) {
	e := c.step.eval
	d, rollout := e.datasets[e.at], c.step.rollout
	if e.at++; e.at < len(e.datasets) {
		e.datasets[e.at].began = time.Now()
	}
	slices.SortFunc(d.groups, func(a, b *group) int { return cmp.Compare(a.id, b.id) }) // in order of task and sample
	seconds := time.Since(d.began).Seconds()
	for _, g := range d.groups {
		for _, s := range g.sessions {
			d.report.Rewards = append(d.report.Rewards, s.reward().value)
			d.report.Truncated = append(d.report.Truncated, slices.ContainsFunc(s.results, func(e *export) bool { return e.lineage.Truncated }))
		}
	}
	d.report.Dropped, d.report.Delivered = d.dropped, len(d.report.Rewards)
	d.metrics = observe.Eval{
		Rollout: rollout, Dataset: d.Name, Seconds: seconds, GPUs: c.cfg.RolloutNumGPUs, Passrate: c.cfg.LogPassrate,
	}.Metrics(statsOf(d.groups))
	if len(d.groups) == 0 {
		c.log(observe.Status(observe.Warning, "Eval dataset has no result", observe.F("dataset", d.Name), observe.F("dropped", d.dropped)))
		return
	}
	data, err := json.Marshal(map[string]any{"eval": true, "dataset": d.Name, "rollout": rollout})
	if err != nil {
		panic(err) // a name and numbers marshal
	}
	c.publish(d.groups, rollout, func(b *Batch, err error) {
		if err != nil {
			d.undeliver(&e.books, err)
			return
		}
		c.emit(Event{Kind: EventBatch, RolloutID: rollout, Batch: b, Data: data})
	})
}

// undeliver rewrites the result of a dataset whose batch could not be built.
func (d *evalDataset) undeliver(books *ledger, err error) {
	var tokens int64
	for _, g := range d.groups {
		for _, s := range g.sessions {
			tokens += int64(s.fates().Trained)
		}
	}
	books.delivered -= tokens
	books.drop(reasonMemory, int64(len(d.groups)), int64(d.report.Delivered), tokens, err.Error())
	d.report.Dropped, d.report.Delivered = d.report.Samples, 0
	d.report.Rewards, d.report.Truncated = []float64{}, []bool{}
	d.groups, d.metrics, d.err = nil, nil, fmt.Errorf("eval dataset %s: %w", d.Name, err)
}

// endEval reports once the batches of all datasets are out.
func (c *core) endEval(end schedule.EndStep) {
	c.publish(nil, end.Rollout, func(*Batch, error) { c.reportEval(end) })
}

func (c *core) reportEval(end schedule.EndStep) {
	s := c.step
	r := StepReport{
		Rollout: end.Rollout, Eval: true, Seconds: time.Since(s.started).Seconds(), Retries: end.Books.Retries,
		Accounting: s.eval.books.closed(end.Books, 0), Metrics: map[string]float64{},
	}
	var lost Drop
	if d := s.eval.books.drops[reasonMemory]; d != nil {
		lost = *d
	}
	for b, n := range map[*Balance]int64{&r.Accounting.Groups: lost.Groups, &r.Accounting.Sessions: lost.Sessions} {
		b.Delivered, b.Dropped = b.Delivered-n, b.Dropped+n
	}
	for _, d := range s.eval.datasets {
		r.Datasets = append(r.Datasets, d.report)
		r.Groups, r.Rows = r.Groups+len(d.groups), r.Rows+len(statsOf(d.groups))
		maps.Copy(r.Metrics, d.metrics)
		if d.err != nil {
			r.Error = joinErrors(r.Error, d.err.Error())
		}
	}
	c.kvMetrics(r.Metrics, "eval/")
	r.Drops = s.eval.books.sorted(c.traces.storyFile(end.Rollout, modeEval))
	c.log(observe.Event("EVAL", "accounting_end", observe.F("rollout", r.Rollout), observe.F("groups", r.Groups),
		observe.F("rows", r.Rows), observe.F("dropped", r.Accounting.Sessions.Dropped)))
	c.closeStep(&r)
}
