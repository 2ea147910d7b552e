package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestGuideFormulas(t *testing.T) {
	c := Config{BatchSize: 4, GroupSize: 8}
	if got := c.TrainSlots(); got != 32 {
		t.Errorf("T = %d, want rollout_batch_size * n_samples_per_prompt = 32", got)
	}
	c.OverSampling = 6
	if got := c.TrainSlots(); got != 48 {
		t.Errorf("T = %d with over-sampling, want 48", got)
	}
	c.Capacity = 3
	for _, row := range []struct{ samples, groups, slots int }{{8, 3, 24}, {1, 24, 24}, {5, 5, 25}, {48, 1, 48}} {
		if g, s := c.EvalGroups(row.samples), c.EvalSlots(row.samples); g != row.groups || s != row.slots {
			t.Errorf("G_d %d: C_d %d, E_d %d; want %d and %d", row.samples, g, s, row.groups, row.slots)
		}
	}
	c.EvalCapacity = 2
	if got := c.EvalSlots(5); got != 10 {
		t.Errorf("E_d = %d with agentic_eval_concurrency 2, want 10", got)
	}
	for _, row := range []struct {
		change func(*Config)
		peak   int
		want   int
	}{
		{func(*Config) {}, 0, 24},
		{func(*Config) {}, 10, 24},
		{func(*Config) {}, 30, 30},
		{func(c *Config) { c.Prelaunch = true }, 0, 24},
		{func(c *Config) { c.Prelaunch = true }, 10, 34},
		{func(c *Config) { c.PartialRollout = true }, 10, 34},
		{func(c *Config) { c.FullyAsync = true }, 30, 54},
	} {
		cfg := c
		row.change(&cfg)
		if got, formula := cfg.RequiredSlots(row.peak); got != row.want || !strings.Contains(formula, fmt.Sprint(row.want)) {
			t.Errorf("%+v with E_peak %d: %d slots (%s), want %d", cfg, row.peak, got, formula, row.want)
		}
	}
}

// A platform runs a limited number of agents at once. An agent asks the model only once it has
// a place there, which it keeps to its end.
type platform struct {
	t     *testing.T
	rng   *rand.Rand
	m     *Machine
	now   time.Time
	slots int
	// The agents that wait for a place, those that have one and did not ask, those that ask, and
	// those whose request is at the backend.
	waiting, placed, asking, flying []SessionRef
	ids                             map[SessionRef]RequestID
	score                           []GroupID
	kill                            map[GroupID]bool
	sizes                           map[GroupID]int
	cfg                             Config
	open                            bool
	late                            string // the first Group that waited in vain
}

func newPlatform(t *testing.T, seed uint64, cfg Config, slots int) *platform {
	cfg.MaxConsecutiveDropped, cfg.FirstRequestTimeout, cfg.AgentTimeout = 3, time.Minute, time.Hour
	if problems := Validate(cfg); len(problems) > 0 {
		t.Fatal(problems)
	}
	return &platform{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), m: New(cfg), now: t0, slots: slots, cfg: cfg,
		ids: map[SessionRef]RequestID{}, kill: map[GroupID]bool{}, sizes: map[GroupID]int{},
	}
}

func (p *platform) apply(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case StartGroup:
			p.start(a.Group, p.cfg.GroupSize)
		case StartEval:
			p.start(a.Group, a.Sessions)
		case Pass:
			for ref, id := range p.ids {
				if id == a.Request {
					p.asking = without(p.asking, ref)
					p.flying = append(p.flying, ref)
				}
			}
		case Abort:
			for ref, id := range p.ids {
				if id == a.Request {
					p.flying = without(p.flying, ref)
					p.asking = append(p.asking, ref)
					defer func() { p.apply(p.m.RequestReturned(p.now, id, Aborted)) }()
				}
			}
		case Score:
			p.score = append(p.score, a.Group)
		case Drop:
			p.kill[a.Group] = true
			if a.Reason == ReasonFirstRequest && p.late == "" {
				p.late = a.Cause
			}
		case NeedTasks:
			defer func() { p.apply(p.m.QueueTasks(p.now, a.Count+1)) }()
		case EndStep:
			p.open = false
		}
	}
}

func without(all []SessionRef, ref SessionRef) []SessionRef {
	return slices.DeleteFunc(all, func(o SessionRef) bool { return o == ref })
}

func (p *platform) start(id GroupID, size int) {
	p.sizes[id] = size
	for seq := range size {
		p.waiting = append(p.waiting, SessionRef{id, seq})
	}
}

// take removes a random one.
func (p *platform) take(from *[]SessionRef) (SessionRef, bool) {
	if len(*from) == 0 {
		return SessionRef{}, false
	}
	ref := (*from)[p.rng.IntN(len(*from))]
	*from = without(*from, ref)
	return ref, true
}

// step lets one thing happen; false: nothing can.
func (p *platform) step() bool {
	for _, list := range []*[]SessionRef{&p.waiting, &p.placed, &p.asking, &p.flying} {
		for _, ref := range *list {
			if p.kill[ref.Group] {
				*list = without(*list, ref)
				p.apply(p.m.SessionFailed(p.now, ref, "agent_exit", "killed"))
				return true
			}
		}
	}
	if held := len(p.placed) + len(p.asking) + len(p.flying); held < p.slots {
		if ref, ok := p.take(&p.waiting); ok {
			p.placed = append(p.placed, ref)
			return true
		}
	}
	if ref, ok := p.take(&p.placed); ok {
		p.ids[ref] = RequestID(len(p.ids) + 1)
		p.asking = append(p.asking, ref)
		p.apply(p.m.RequestArrived(p.now, ref, p.ids[ref], 0))
		return true
	}
	if ref, ok := p.take(&p.flying); ok {
		p.apply(p.m.SessionExported(p.now, ref))
		return true
	}
	if len(p.score) > 0 {
		id := p.score[0]
		p.score = p.score[1:]
		p.apply(p.m.GroupScored(p.now, id))
		return true
	}
	return false
}

func (p *platform) run(actions []Action, err error) {
	if err != nil {
		p.t.Fatal(err)
	}
	p.open = true
	p.apply(actions)
	for i := 0; p.open; i++ {
		if i > 5000 {
			p.t.Fatalf("the step never ends: %+v", p.m.Counts())
		}
		if p.cfg.FullyAsync && len(p.flying) > 0 && p.rng.IntN(4) == 0 && !p.m.Counts().Paused {
			p.apply(p.m.Pause(p.now))
			p.apply(p.m.Resume(p.now))
		}
		if p.step() || !p.open {
			continue
		}
		at := p.m.Deadline()
		if at.IsZero() {
			p.t.Fatalf("nothing can happen any more: %+v", p.m.Counts())
		}
		p.now = at
		p.apply(p.m.Tick(p.now))
	}
}

// life is two steps with an Eval behind each.
func (p *platform) life(eval []EvalDataset) {
	for rollout := range int64(2) {
		p.run(p.m.Open(p.now, rollout))
		for _, id := range slices.Clone(p.m.unconsumed) {
			p.apply(p.m.Consumed(p.now, id))
		}
		for range 1000 { // prelaunched agents take their places
			if len(p.placed) == 0 && (len(p.waiting) == 0 || len(p.asking)+len(p.flying) >= p.slots) || !p.step() {
				break
			}
		}
		if eval != nil {
			p.run(p.m.OpenEval(p.now, rollout, eval))
		}
	}
}

func modesOfCapacity() map[string]func(*Config) {
	return map[string]func(*Config){
		"default":   func(*Config) {},
		"prelaunch": func(c *Config) { c.Prelaunch = true },
		"partial":   func(c *Config) { c.PartialRollout, c.OverSampling = true, c.BatchSize+1 },
		"async":     func(c *Config) { c.FullyAsync, c.MaxStaleness, c.NumRollout = true, 1, 9 },
		"async and prelaunch": func(c *Config) {
			c.FullyAsync, c.Prelaunch, c.MaxStaleness, c.NumRollout = true, true, 1, 9
		},
	}
}

// With exactly the slots of the guide's table no Group waits in vain, whoever gets the slots.
func TestEnoughSlotsNeverDeadlock(t *testing.T) {
	tripped := 0
	for name, change := range modesOfCapacity() {
		for seed := range uint64(60) {
			rng := rand.New(rand.NewPCG(seed, 1))
			cfg := Config{
				BatchSize: 1 + rng.IntN(3), GroupSize: 1 + rng.IntN(3), Capacity: 1 + rng.IntN(3),
				EvalCapacity: rng.IntN(3), GroupRM: rng.IntN(2) == 0,
			}
			change(&cfg)
			var eval []EvalDataset
			peak := 0
			for range rng.IntN(3) {
				d := EvalDataset{"d", 1 + rng.IntN(5), 1 + rng.IntN(4)}
				eval, peak = append(eval, d), max(peak, cfg.EvalSlots(d.Samples))
			}
			slots, formula := cfg.RequiredSlots(peak)
			p := newPlatform(t, seed, cfg, slots)
			if p.life(eval); p.late != "" {
				t.Errorf("%s, seed %d: with %d slots (%s) a Group waited in vain: %s", name, seed, slots, formula, p.late)
			}
			p = newPlatform(t, seed, cfg, slots-1)
			if p.life(eval); p.late != "" {
				tripped++
			}
		}
	}
	if tripped == 0 {
		t.Error("one slot fewer never made a Group wait in vain: the test does not see deadlocks")
	}
	t.Logf("one slot fewer: %d of 300 worlds have a Group that waits in vain", tripped)
}

// With one fewer there are Groups that can never start; the barrier's timeout says what is
// missing.
func TestOneSlotTooFewTripsTheBarrier(t *testing.T) {
	eval := []EvalDataset{{"small", 1, 2}, {"aime", 2, 4}}
	for _, row := range []struct {
		name    string
		change  func(*Config)
		eval    []EvalDataset
		formula string
	}{
		{"train alone", func(*Config) {}, nil,
			"external_slots >= T = 3, where T = agentic_concurrency (1) * n_samples_per_prompt (3) = 3"},
		{"eval larger", func(*Config) {}, eval,
			"external_slots >= max(T, E_peak) = 4, where T = agentic_concurrency (1) * n_samples_per_prompt (3) = 3 and E_peak = 4 " +
				"(E of dataset aime = 1 resident groups * n_samples_per_eval_prompt (4))"},
		{"prelaunch", func(c *Config) { c.Prelaunch = true }, eval,
			"external_slots >= T + E_peak = 7, where T = agentic_concurrency (1) * n_samples_per_prompt (3) = 3 and E_peak = 4"},
	} {
		cfg := Config{BatchSize: 1, GroupSize: 3, Capacity: 1, EvalCapacity: 1, GroupRM: true}
		row.change(&cfg)
		peak := 0
		for _, d := range row.eval {
			peak = max(peak, cfg.EvalSlots(d.Samples))
		}
		slots, _ := cfg.RequiredSlots(peak)
		p := newPlatform(t, 1, cfg, slots-1)
		p.life(row.eval)
		if !strings.Contains(p.late, "agent_first_request_timeout (1m0s)") || !strings.Contains(p.late, row.formula) {
			t.Errorf("%s: the cause is %q, want the option and %q", row.name, p.late, row.formula)
		}
	}
}
