package sglang

import (
	"context"
	"fmt"

	"github.com/bytedance/sonic"
)

// A Load is one worker's own account of its work, summed over its data-parallel ranks.
type Load struct {
	// Worker is its URL.
	Worker string
	// Running and Waiting count requests.
	Running, Waiting int
	// UsedTokens and MaxTokens are the KV cache's, 0 if the server does not say.
	UsedTokens, MaxTokens int
	// Err says why the worker gave no account; the numbers are 0 then.
	Err error
}

// Loads asks every worker for its load, each within ControlTimeout. It works while servers
// are paused.
func (c *Client) Loads(ctx context.Context) []Load {
	var out []Load
	for _, w := range c.targets() {
		load, err := c.load(ctx, w)
		load.Worker, load.Err = w.url, err
		out = append(out, load)
	}
	return out
}

func (c *Client) load(ctx context.Context, w *worker) (Load, error) {
	status, reply, err := c.controlCall(ctx, w, "GET", "/v1/loads?include=core", nil)
	if err == nil && status == 404 {
		status, reply, err = c.controlCall(ctx, w, "GET", "/get_load", nil)
	}
	if err != nil {
		return Load{}, fmt.Errorf("load of %s: %w", w.url, err)
	}
	if status != 200 {
		return Load{}, &StatusError{RID: "GET /v1/loads", Worker: w.url, Status: status, Message: shorten(errorMessage(reply))}
	}
	return parseLoad(reply)
}

// rankLoad has the fields of /v1/loads and of the older /get_load.
type rankLoad struct {
	Running    int `json:"num_running_reqs"`
	Waiting    int `json:"num_waiting_reqs"`
	UsedTokens int `json:"num_used_tokens"`
	MaxTokens  int `json:"max_total_num_tokens"`
	Requests   int `json:"num_reqs"`   // old: running and waiting
	Tokens     int `json:"num_tokens"` // old
}

func parseLoad(reply []byte) (Load, error) {
	var now struct {
		Loads []rankLoad `json:"loads"`
	}
	ranks := &now.Loads
	var err error
	if len(reply) > 0 && reply[0] == '[' {
		err = sonic.Unmarshal(reply, ranks)
	} else {
		err = sonic.Unmarshal(reply, &now)
	}
	if err != nil {
		return Load{}, fmt.Errorf("load: %w", err)
	}
	var sum Load
	for _, r := range *ranks {
		if r.Requests > 0 {
			r.Running = max(r.Requests-r.Waiting, 0)
		}
		sum.Running += r.Running
		sum.Waiting += r.Waiting
		sum.UsedTokens += max(r.UsedTokens, r.Tokens)
		sum.MaxTokens += r.MaxTokens
	}
	return sum, nil
}
