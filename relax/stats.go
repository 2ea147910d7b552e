package relax

import (
	"encoding/json"
	"fmt"
)

// Stats is what [Engine.Stats] reports. Every wait of the engine shows up here.
type Stats struct {
	// Rollout is the open step, null between its step end and the next start.
	Rollout *int64 `json:"rollout"`
	Debt    int    `json:"debt"`
	// Groups by what they wait for: preparing (first requests), running (agents), scoring (credit).
	Groups struct {
		Preparing int `json:"preparing"`
		Running   int `json:"running"`
		Scoring   int `json:"scoring"`
		Resident  int `json:"resident"`
	} `json:"groups"`
	QueuedTasks int `json:"queued_tasks"`
	// Requests being answered: waiting for a lease or the gate, and at the backend.
	Requests struct {
		Live    int `json:"live"`
		Backend int `json:"backend"`
	} `json:"requests"`
	Sessions int `json:"sessions"`
	// Divergences counts requests that did not go on from their Session's newest turn, by reason:
	// tools, chat_template_kwargs, message, shorter, longer.
	Divergences map[string]int64 `json:"divergences"`
	// Events wait to be polled, Replies were asked for and not given, LostLogs were dropped
	// because nobody polled.
	Events   int `json:"events"`
	Replies  int `json:"replies"`
	LostLogs int `json:"lost_logs"`
	// Paused says that the generation gate is closed.
	Paused        bool  `json:"paused"`
	WeightVersion int64 `json:"weight_version"`
	Backend       struct {
		Kind    string   `json:"kind"`
		URL     string   `json:"url"`
		Model   string   `json:"model"`
		Workers []string `json:"workers"`
	} `json:"backend"`
	BaseURL string `json:"base_url"`
	RunDir  string `json:"run_dir"`
	// Goroutines by name.
	Goroutines map[string]int `json:"goroutines"`
}

func (c *core) stats() ([]byte, error) {
	var s Stats
	err := c.do(func() error {
		counts := c.machine.Counts()
		s.Debt, s.QueuedTasks = counts.Debt, counts.QueuedTasks
		if c.step != nil { // until its step end is queued, so also while its batch is built
			s.Rollout = &c.step.rollout
		}
		s.Groups.Preparing, s.Groups.Running = counts.Preparing, counts.Running
		s.Groups.Scoring, s.Groups.Resident = counts.Scoring, counts.Resident
		s.Replies = len(c.asks)
		for _, g := range c.groups {
			for _, session := range g.sessions {
				s.Requests.Live += session.liveRequests()
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	open, inFlight := c.gate.state()
	s.Paused, s.Requests.Backend = !open, inFlight
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
	s.Backend.Kind, s.Backend.URL = c.cfg.Backend, c.backendURL
	s.Backend.Model, s.Backend.Workers = c.backendInfo.ModelPath, c.backendInfo.Workers
	s.BaseURL, s.RunDir, s.Goroutines = c.baseURL(), c.runDir.path, c.goroutines.Names()
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("relax: stats: %w", err)
	}
	return raw, nil
}
