package schedule

import "fmt"

// TrainSlots is T of the guide: the agent processes that train Groups hold at most.
func (c Config) TrainSlots() int {
	c = c.withDefaults()
	return c.Capacity * c.GroupSize
}

// EvalGroups is C_d of the guide: the resident prompt Groups of a dataset with the given number
// of samples per prompt.
func (c Config) EvalGroups(samples int) int {
	if c.EvalCapacity > 0 {
		return c.EvalCapacity
	}
	return (c.TrainSlots() + samples - 1) / samples
}

// EvalSlots is E_d of the guide: the agent processes that such a dataset holds at most.
func (c Config) EvalSlots(samples int) int { return c.EvalGroups(samples) * samples }

// residentInEval says whether train Sessions stay while an Eval runs (the guide's table).
func (c *Config) residentInEval() bool { return c.Prelaunch || c.retains() }

// RequiredSlots is the number of agents that an executor shared by train and Eval must run at
// once, by the guide's capacity table, and the formula with its numbers. evalPeak is the largest
// EvalSlots of all datasets, 0 without Eval.
func (c Config) RequiredSlots(evalPeak int) (slots int, formula string) {
	c = c.withDefaults()
	train := c.TrainSlots()
	t := fmt.Sprintf("T = agentic_concurrency (%d) * n_samples_per_prompt (%d) = %d", c.Capacity, c.GroupSize, train)
	switch {
	case evalPeak == 0:
		return train, fmt.Sprintf("external_slots >= T = %d, where %s", train, t)
	case c.residentInEval():
		return train + evalPeak, fmt.Sprintf("external_slots >= T + E_peak = %d, where %s and E_peak = %d", train+evalPeak, t, evalPeak)
	default:
		n := max(train, evalPeak)
		return n, fmt.Sprintf("external_slots >= max(T, E_peak) = %d, where %s and E_peak = %d", n, t, evalPeak)
	}
}

// lateFirstRequest explains a Session that did not ask in time.
func (m *Machine) lateFirstRequest(seq int) string {
	_, formula := m.cfg.RequiredSlots(m.evalSlots)
	if m.evalSlotsOf != "" {
		formula += " (" + m.evalSlotsOf + ")"
	}
	return fmt.Sprintf("session %d made no model request within agent_first_request_timeout (%s); if agents run on a platform that "+
		"limits how many run at once, a Group can wait there for a place for ever: it needs %s", seq, m.cfg.FirstRequestTimeout, formula)
}
