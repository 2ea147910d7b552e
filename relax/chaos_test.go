package relax

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// The whole run is played with -chaos.full (3 minutes at most), one seed again with -chaos.seed:
//
//	go test ./relax -run TestChaos -v -chaos.full -chaos.seed 7
var (
	chaosSeed = flag.Uint64("chaos.seed", 0, "play only this chaos run")
	chaosFull = flag.Bool("chaos.full", false, "play chaos runs of 200 sessions at a time")
)

// A chaosSize is how much is played.
type chaosSize struct {
	batch, over, samples, steps int
	pace                        time.Duration // between two deeds
	harm                        time.Duration // of a step; then it must end
	timeout                     float64       // of agents, and of their first requests, in seconds
	ends                        time.Duration // a calm step ends within this
	whole                       time.Duration // no new step after this
	hangs                       bool          // some requests are never answered: each can hold a step for 30 s
}

func sizeOf(full bool) chaosSize {
	if full { // 50 Groups of 4: 200 Sessions at a time
		return chaosSize{batch: 40, over: 50, samples: 4, steps: 3, pace: 150 * time.Millisecond, harm: 10 * time.Second,
			timeout: 20, ends: 90 * time.Second, whole: 60 * time.Second, hangs: true}
	}
	return chaosSize{batch: 4, over: 6, samples: 3, steps: 3, pace: 80 * time.Millisecond, harm: 1200 * time.Millisecond,
		timeout: 6, ends: 100 * time.Second, whole: 5 * time.Second}
}

// TestChaos plays runs in which workers and agents die and stop, aborts are lost, late and somebody
// else's, clients hang up, and weights change, at random moments. Every step ends, its books
// balance, its rows are what the model said, and nothing is left behind.
func TestChaos(t *testing.T) {
	seeds := []uint64{1, 2, 3}
	if *chaosSeed != 0 {
		seeds = []uint64{*chaosSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { playChaos(t, seed, sizeOf(*chaosFull)) })
	}
}

func playChaos(t *testing.T, seed uint64, size chaosSize) {
	began := time.Now()
	leaks := watchLeaks(t)
	if !t.Run("run", func(t *testing.T) {
		r := newChaosRun(t, seed, size)
		r.play()
		r.end()
		leaks.engine(t, r.e, r.monkey.marker)
		checkWorkersIdle(t, r.monkey.workers)
		t.Logf("seed %d, %s: %d steps, %d sessions, deeds %v, drops %v, %.1f s",
			seed, r.mode, r.steps, r.sessions, r.monkey.deeds, r.drops, time.Since(began).Seconds())
	}) {
		t.Logf("replay: go test ./relax -run TestChaos -v -chaos.full=%v -chaos.seed %d", *chaosFull, seed)
		return
	}
	leaks.process(t)
}

// A chaosRun is one engine and what was seen of it.
type chaosRun struct {
	t      *testing.T
	size   chaosSize
	rng    *rand.Rand
	cfg    Config
	e      *Engine
	model  *sglangtest.Model
	monkey *monkey
	mode   string

	last     *StepReport   // the newest of training
	late     []Event       // not answered yet
	paid     map[int64]int // Groups of partitions
	complete map[int64]bool
	drops    map[string]int64
	steps    int
	sessions int64
}

func newChaosRun(t *testing.T, seed uint64, size chaosSize) *chaosRun {
	r := &chaosRun{
		t: t, size: size, rng: rand.New(rand.NewPCG(seed, 1)),
		paid: map[int64]int{}, complete: map[int64]bool{}, drops: map[string]int64{},
	}
	r.configure(seed)
	spec := workerSpec{
		Checkpoint: tinychat, Seed: seed, TokenDelay: 4 * time.Millisecond, Version: "0", Faults: chaosFaults(r.rng, size), KVTokens: 1000 << r.rng.IntN(10),
		Policy: policyOf("Short.", strings.Repeat("a longer reply ", 8), strings.Repeat("one two three ", 40)),
	}
	r.model = modelOf(t, spec)
	workers := startWorkers(t, 4, spec)
	var router *sglangtest.Router
	r.e, router = openFleet(t, r.cfg, workers)
	name, value := markerOf(seed)
	r.monkey = &monkey{
		t: t, e: r.e, workers: workers, router: router, rng: rand.New(rand.NewPCG(seed, 2)), marker: name + "=" + value, pace: size.pace,
	}
	t.Logf("seed %d, %s", seed, r.mode)
	r.monkey.start()
	t.Cleanup(r.monkey.stop) // again is fine
	return r
}

// configure picks the mode and the options.
func (r *chaosRun) configure(seed uint64) {
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	name, value := markerOf(seed)
	coin := func() bool { return r.rng.IntN(2) == 0 }
	grace := 0.3
	c := Config{
		AgentCommand: "exec '" + self + "'", AgentCwd: "/",
		AgentEnv:       map[string]string{roleVariable: "chaos agent", name: value, "GORACE": "atexit_sleep_ms=0", "GOMAXPROCS": "2"},
		AgentKillGrace: 0.3, AgentTimeout: r.size.timeout, AgentFirstRequestTimeout: r.size.timeout,
		DisconnectGrace: &grace, RolloutBatchSize: r.size.batch, OverSamplingBatchSize: r.size.over, NSamplesPerPrompt: r.size.samples,
		MaxConsecutiveDroppedGroups: 200, RolloutMaxResponseLen: 96, SGLangServerConcurrency: 8 + r.rng.IntN(60),
		AgenticPrelaunch: coin(), AgenticSessionLifecycle: coin(), AgenticProgramAdmission: coin(), CustomRM: coin(),
	}
	if c.AgenticPrelaunch {
		c.AgenticConcurrency = r.size.over + r.size.over/2
	}
	if r.rng.IntN(4) == 0 {
		c.MaxConsecutiveDroppedGroups = 3
	}
	if r.rng.IntN(3) == 0 {
		c.AgentRetries = 1
	}
	switch r.mode = []string{"default", "partial_rollout", "fully_async"}[seed%3]; r.mode {
	case "partial_rollout":
		c.PartialRollout, c.UseDynamicGlobalBatchSize, c.DataParallelSize = true, coin(), 2
		c.PartialRolloutMaxAbortedCount = r.rng.IntN(3)
	case "fully_async":
		c.FullyAsync, c.MaxStaleness, c.NumRollout = true, 1, int64(r.size.steps)
	}
	r.cfg = c
	r.mode = fmt.Sprintf("%s prelaunch=%v lifecycle=%v admission=%v rm=%v dynamic=%v protect=%d budget=%d retries=%d", r.mode, c.AgenticPrelaunch,
		c.AgenticSessionLifecycle, c.AgenticProgramAdmission, c.CustomRM, c.UseDynamicGlobalBatchSize,
		c.PartialRolloutMaxAbortedCount, c.MaxConsecutiveDroppedGroups, c.AgentRetries)
}

// chaosFaults are what workers do by themselves.
func chaosFaults(rng *rand.Rand, size chaosSize) []sglangtest.FaultRule {
	every := func() int { return 5 + rng.IntN(20) }
	rules := []sglangtest.FaultRule{
		{Every: every(), Fault: sglangtest.Fault{LoseAborts: 2}},
		{Every: every(), Fault: sglangtest.Fault{AbortLag: time.Duration(rng.IntN(1500)) * time.Millisecond}},
		{Every: every(), Fault: sglangtest.Fault{AbortAfter: 3}},
		{Every: every(), Fault: sglangtest.Fault{AbortAfter: -1}},
		{Every: 2 * every(), Fault: sglangtest.Fault{DropConnection: true, DropAfter: 2}},
		{Every: every(), Fault: sglangtest.Fault{Status: 503}},
		{Every: 2 * every(), Fault: sglangtest.Fault{Status: 500}},
		{Every: 4 * every(), Fault: sglangtest.Fault{WrongLogprobCount: 1}},
		{Every: every(), Fault: sglangtest.Fault{Delay: time.Duration(rng.IntN(300)) * time.Millisecond}},
	}
	if !size.hangs {
		return rules
	}
	rare := 400 + rng.IntN(800)
	return append([]sglangtest.FaultRule{{Skip: rare / 2, Every: rare, Fault: sglangtest.Fault{HangForever: true}}}, rules...)
}

// play runs the steps, with an Eval in between now and then.
func (r *chaosRun) play() {
	deadline := time.Now().Add(r.size.whole)
	final := int64(r.size.steps)
	for rollout := int64(0); rollout < final && (r.cfg.FullyAsync || time.Now().Before(deadline)); rollout++ {
		r.train(rollout)
		if r.rng.IntN(3) == 0 && !r.t.Failed() {
			r.eval(rollout)
		}
		if r.t.Failed() {
			return
		}
	}
	if r.cfg.FullyAsync {
		r.train(final)
		for id := range final {
			if !r.complete[id] {
				r.t.Errorf("partition %d was never complete", id)
			}
		}
	}
}

// end closes the engine: in peace, or in the middle of a step and of the harm.
func (r *chaosRun) end() {
	if r.cfg.FullyAsync || r.t.Failed() || r.rng.IntN(2) == 0 {
		r.monkey.stop()
		closeEngine(r.t, r.e)
		return
	}
	r.monkey.calm.Store(false)
	if err := r.e.StartRollout(int64(r.size.steps)); err != nil {
		r.t.Errorf("start rollout: %v", err)
	}
	harmed := time.After(time.Duration(r.rng.Int64N(int64(r.size.harm))))
	if err := r.e.Submit(r.tasks(r.size.over)); err != nil {
		r.t.Errorf("submit: %v", err)
	}
	<-harmed
	closeEngine(r.t, r.e)
	r.monkey.stop()
}

// train runs a step. In a fully-async run one that failed is tried again.
func (r *chaosRun) train(rollout int64) {
	for try := 0; try < 20; try++ {
		if err := r.e.StartRollout(rollout); err != nil {
			r.t.Fatalf("start rollout %d: %v", rollout, err)
		}
		got := r.step()
		r.judge(rollout, got)
		if got.Error == "" || !r.cfg.FullyAsync {
			return
		}
	}
	r.t.Errorf("rollout %d failed 20 times", rollout)
}

func (r *chaosRun) eval(rollout int64) {
	sets := []EvalDataset{
		{Name: "a", NSamples: 2, Tasks: r.tasks(2)},
		{Name: "b", Tasks: r.tasks(1 + r.rng.IntN(3))},
	}
	if err := r.e.StartEval(rollout, sets); err != nil {
		r.t.Fatalf("start eval: %v", err)
	}
	got := r.step()
	if len(got.Datasets) != 2 || !got.Eval {
		r.t.Errorf("eval report %+v", got)
	}
	for i, d := range got.Datasets {
		if want := len(sets[i].Tasks) * max(sets[i].NSamples, 1); d.Delivered+d.Dropped != want {
			r.t.Errorf("dataset %s: delivered %d and dropped %d of %d samples", d.Name, d.Delivered, d.Dropped, want)
		}
	}
}

// step polls the open step to its end. After a while the harm ends, and then the step must.
func (r *chaosRun) step() StepReport {
	r.monkey.calm.Store(false)
	calmAt := time.Now().Add(r.size.harm)
	hard := calmAt.Add(r.size.ends)
	var got stepResult
	for {
		if time.Now().After(calmAt) {
			r.monkey.calm.Store(true)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		ev, err := r.e.Poll(ctx)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			r.answerLate()
			if time.Now().After(hard) {
				r.stuck()
			}
			continue
		case err != nil:
			r.t.Fatalf("poll: %v", err)
		}
		if r.take(ev, &got) {
			return got.report
		}
	}
}

// stuck fails the run with everything that helps to find out why.
func (r *chaosRun) stuck() {
	stats, _ := r.e.Stats()
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	r.t.Fatalf("the step does not end; stats %s\n%s", stats, stacks)
}

// take handles an event and says whether it was the step's end.
func (r *chaosRun) take(ev Event, got *stepResult) bool {
	switch ev.Kind {
	case EventBatch:
		r.checkBatch(ev)
		if len(ev.Data) > 0 {
			ev.Batch.Release()
			return false
		}
		got.batch = ev.Batch
	case EventTasksNeeded:
		var need struct{ Count int }
		if err := json.Unmarshal(ev.Data, &need); err != nil {
			r.t.Fatal(err)
		}
		replyTasks(r.t, r.e, ev, r.tasks(need.Count+r.rng.IntN(3))...)
	case EventScore:
		if r.rng.IntN(4) == 0 {
			r.late = append(r.late, ev)
			return false
		}
		r.score(ev)
	case EventStepEnd:
		r.answerLate()
		if err := json.Unmarshal(ev.Data, &got.report); err != nil {
			r.t.Fatal(err)
		}
		if !got.report.Eval {
			checkBooks(r.t, *got)
		}
		if got.batch != nil {
			got.batch.Release()
		}
		return true
	}
	return false
}

func (r *chaosRun) answerLate() {
	for _, ev := range r.late {
		r.score(ev)
	}
	r.late = nil
}

// score answers for the trainer. The Group may be over by now.
func (r *chaosRun) score(ev Event) {
	var ask struct{ Sessions []json.RawMessage }
	if err := json.Unmarshal(ev.Data, &ask); err != nil {
		r.t.Fatal(err)
	}
	answer := []byte(`{"error": "the judge is away"}`)
	if r.rng.IntN(10) > 0 {
		rewards := make([]float64, len(ask.Sessions))
		for i := range rewards {
			rewards[i] = r.rng.Float64()
		}
		answer, _ = json.Marshal(map[string]any{"rewards": rewards})
	}
	if err := r.e.Reply(ev.ID, answer); err != nil && !errors.Is(err, ErrState) {
		r.t.Errorf("reply: %v", err)
	}
}

func (r *chaosRun) tasks(n int) []Task {
	out := make([]Task, n)
	for i := range out {
		raw, err := json.Marshal(chaosTask{Plan: pickPlan(r.rng), Seed: r.rng.Uint64(), Scored: r.cfg.CustomRM})
		if err != nil {
			r.t.Fatal(err)
		}
		out[i] = asking(fmt.Sprintf("task %d", r.rng.IntN(1000)), agentTask{})
		out[i].Metadata = raw
	}
	return out
}

// judge checks a train step against what the mode promises.
func (r *chaosRun) judge(rollout int64, got StepReport) {
	a := got.Accounting
	if last := r.last; last != nil {
		if in, out := a, last.Accounting; in.Groups.CarriedIn != out.Groups.Carried || in.Sessions.CarriedIn != out.Sessions.Carried || in.Tokens.CarriedIn != out.Tokens.Carried {
			r.t.Errorf("rollout %d: carried in %+v, carried out before %+v", rollout, in, out)
		}
	}
	if n, at := counts(r.e).Passed, r.monkey.atBackend(); n != 0 || at != 0 {
		r.t.Errorf("rollout %d: %d requests passed, %d at the backend after the step's end", rollout, n, at)
	}
	r.last = &got
	r.steps++
	r.sessions += a.Sessions.Started
	for _, d := range got.Drops {
		r.drops[d.Reason] += d.Groups
	}
	switch {
	case got.Error != "":
		if !strings.Contains(got.Error, "max_consecutive_dropped_groups") {
			r.t.Errorf("rollout %d failed: %s", rollout, got.Error)
		}
	case r.cfg.FullyAsync:
		r.judgePartitions(rollout, &got)
	case got.Debt != 0 || got.Groups < r.size.batch || got.Groups > r.size.batch && !r.cfg.UseDynamicGlobalBatchSize:
		r.t.Errorf("rollout %d delivered %d groups and owes %d", rollout, got.Groups, got.Debt)
	}
}
