package relax

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule"
)

// credited asks the dynamic sampling filters about a Group whose credit is known: the built-in
// one, then the host's. The rows of what they keep are delivered.
func (c *core) credited(g *group, credits [][]credit.Credit) {
	if c.cfg.DynamicSamplingFilter == credit.NonzeroStd {
		rewards, ok := c.rewards(g, "the filter "+credit.NonzeroStd+" compares rewards")
		if !ok {
			return
		}
		if verdict := credit.CheckNonzeroStd(rewards); !verdict.Keep {
			c.filtered(g, filterReason(verdict.Reason), "all sessions have the same reward: nothing to learn from")
			return
		}
	}
	if c.cfg.CustomFilter {
		c.askFor(g, EventFilter, filterRequest(g, credits), func(data []byte) error { return c.replyFilter(g, credits, data) })
		return
	}
	c.deliver(g, credits)
}

// filtered takes a Group out that nothing is wrong with: the step makes up for it, and no failure
// is counted.
func (c *core) filtered(g *group, reason schedule.Reason, cause string) {
	c.apply(c.machine.GroupFiltered(time.Now(), g.id, reason, cause))
}

// filterWarning is after how many filtered Groups in a row a warning says so, again and again.
const filterWarning = 100

// noteFiltered counts a filtered Group. A step makes up for it without end, so somebody must hear of
// a filter that keeps nothing.
func (c *core) noteFiltered(reason schedule.Reason) {
	if c.filteredRun++; c.filteredRun%filterWarning == 0 {
		c.log(observe.Status(observe.Warning, "Filters keep no group: the step starts others until they do",
			observe.F("filtered_in_a_row", c.filteredRun), observe.F("newest_reason", string(reason))))
	}
}

// filterContext is one context as a filter hook sees it.
type filterContext struct {
	hookContext
	Advantage float32 `json:"advantage"`
	// TurnAdvantages are only there if the advantage hook gave one for each turn.
	TurnAdvantages []float32 `json:"turn_advantages,omitempty"`
}

// filterRequest is the Data of an EventFilter.
func filterRequest(g *group, credits [][]credit.Credit) any {
	type sessionContexts struct {
		SessionID string `json:"session_id"`
		// Reward is the Session's primary reward, null if it has none.
		Reward   *float64        `json:"reward"`
		Contexts []filterContext `json:"contexts"`
	}
	out := struct {
		GroupID  string            `json:"group_id"`
		Sessions []sessionContexts `json:"sessions"`
	}{GroupID: g.name()}
	for i, s := range g.sessions {
		entry := sessionContexts{SessionID: s.id}
		if r := s.reward(); r != nil {
			entry.Reward = &r.value
		}
		for j, e := range s.results {
			context := filterContext{hookContext: s.hookContext(e), Advantage: credits[i][j].Number}
			if credits[i][j].PerTurn {
				context.TurnAdvantages = credits[i][j].Turns
			}
			entry.Contexts = append(entry.Contexts, context)
		}
		out.Sessions = append(out.Sessions, entry)
	}
	return out
}

// replyFilter takes {"keep": bool, "reason": text}; {"error": text} drops the Group.
func (c *core) replyFilter(g *group, credits [][]credit.Credit, data []byte) error {
	if c.groups[g.id] != g {
		return nil // dropped while the host was thinking
	}
	var answer struct {
		Keep   *bool  `json:"keep"`
		Reason string `json:"reason"`
		Error  string `json:"error"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return fmt.Errorf(`expected {"keep": bool, "reason": text} or {"error": text}: %w`, err)
	}
	switch {
	case answer.Error != "":
		c.fail(g, reasonFilter, answer.Error)
	case answer.Keep == nil:
		return errors.New(`"keep" is missing: expected {"keep": bool, "reason": text} or {"error": text}`)
	case *answer.Keep:
		c.deliver(g, credits)
	default:
		c.filtered(g, filterReason(answer.Reason), "the filter hook took the group out")
	}
	return nil
}

// reasonFilter: the filter hook failed.
const reasonFilter schedule.Reason = "filter"

// maxFilterReason bounds a hook's word in bytes: it becomes part of a metric's name.
const maxFilterReason = 80

// filterReason is the drop reason under which a Group counts that was filtered for a reason.
func filterReason(reason string) schedule.Reason {
	reason = strings.Join(strings.Fields(reason), "_")
	if reason == "" {
		return reasonFiltered
	}
	if len(reason) > maxFilterReason {
		reason = strings.ToValidUTF8(reason[:maxFilterReason], "")
	}
	return schedule.Reason(observe.Filtered + reason)
}
