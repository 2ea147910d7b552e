package relax

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A chaosTask is what the chaos run tells an agent in the task's metadata.
type chaosTask struct {
	// Plan is a word of chaosPlans.
	Plan string `json:"plan"`
	Seed uint64 `json:"seed"`
	// Scored: rewards may be left out, the trainer gives them.
	Scored bool `json:"scored"`
}

// chaosPlans are what agents do, with how many of 100 do it.
var chaosPlans = []struct {
	name   string
	weight int
}{
	{"good", 48}, {"slow", 15}, {"disconnect", 14}, {"parallel", 7},
	{"abandon", 2}, {"crash", 3}, {"hang", 2}, {"silent", 1}, {"nocall", 1}, {"badout", 2}, {"orphan", 5},
}

func pickPlan(rng *rand.Rand) string {
	n := rng.IntN(100)
	for _, p := range chaosPlans {
		if n -= p.weight; n < 0 {
			return p.name
		}
	}
	return "good"
}

// A chaosAgent is one agent process of the chaos run.
type chaosAgent struct {
	task     chaosTask
	rng      *rand.Rand
	messages []chatMessage
}

// runChaosAgent is the agent app of the chaos run.
func runChaosAgent() int {
	var input struct {
		Messages []chatMessage `json:"messages"`
		Metadata chaosTask     `json:"metadata"`
	}
	if !readInput(&input) {
		return 9
	}
	id := fnv.New64a()
	_, _ = io.WriteString(id, os.Getenv("RELAX_SESSION_ID"))
	a := &chaosAgent{task: input.Metadata, rng: rand.New(rand.NewPCG(input.Metadata.Seed, id.Sum64())), messages: input.Messages}
	if code := a.live(); code != 0 {
		return code
	}
	return a.write()
}

func (a *chaosAgent) nap(most time.Duration) { time.Sleep(time.Duration(a.rng.Int64N(int64(most)))) }

// live is everything before the output. Of a bad plan only some sessions of the Group are bad.
func (a *chaosAgent) live() int {
	bad := a.rng.IntN(3) > 0
	switch plan := a.task.Plan; {
	case plan == "silent" && bad:
		time.Sleep(time.Hour)
	case plan == "nocall" && bad:
		return 0
	case plan == "orphan":
		// It leaves the session, the group and the terminal, and does not end when asked.
		child := exec.Command("setsid", "sh", "-c", "trap '' TERM HUP INT; sleep 1000; sleep 1000")
		if err := child.Start(); err != nil {
			return 9
		}
	case plan == "slow":
		a.nap(time.Second)
	}
	turns := 1 + a.rng.IntN(3)
	for turn := range turns {
		if err := a.turn(); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			return 8
		}
		switch {
		case a.task.Plan == "crash" && bad:
			return 3
		case a.task.Plan == "hang" && bad:
			time.Sleep(time.Hour)
		case a.task.Plan == "slow":
			a.nap(time.Second)
		default:
			a.nap(50 * time.Millisecond)
		}
		if turn < turns-1 {
			a.messages = append(a.messages, chatMessage{"role": "user", "content": "and then? " + strconv.Itoa(turn)})
		}
	}
	return 0
}

// turn makes a call and adds its answer.
func (a *chaosAgent) turn() error {
	var side sync.WaitGroup
	if a.task.Plan == "parallel" {
		branch := append(a.messages[:len(a.messages):len(a.messages)], chatMessage{"role": "user", "content": "search"})
		side.Add(1)
		go func() { defer side.Done(); _, _ = sendChat(context.Background(), branch, 0) }()
	}
	message, err := a.insist()
	side.Wait()
	a.messages = append(a.messages, message)
	return err
}

// insist hangs up and asks again as SDKs do, if that is the plan.
func (a *chaosAgent) insist() (chatMessage, error) {
	for try := 0; ; try++ {
		ctx, cancel := context.WithCancel(context.Background())
		impatient := try < 3 && (a.task.Plan == "disconnect" || a.task.Plan == "abandon") && a.rng.IntN(2) == 0
		if impatient {
			time.AfterFunc(time.Duration(a.rng.Int64N(int64(200*time.Millisecond))), cancel)
		}
		retry := try
		if a.task.Plan == "abandon" {
			retry = 0 // it does not say that it asks again
		}
		message, err := sendChat(ctx, a.messages, retry)
		left := ctx.Err() != nil
		cancel()
		var status *badStatus
		again := left || errors.As(err, &status) && status.code >= 500 && try < 4
		if err == nil || !again {
			return message, err
		}
		a.nap(100 * time.Millisecond)
	}
}

type badStatus struct {
	code int
	text string
}

func (e *badStatus) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.text) }

// sendChat makes one Chat Completions call; retry is what the official SDKs send along.
func sendChat(ctx context.Context, messages []chatMessage, retry int) (chatMessage, error) {
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		return nil, err
	}
	url := strings.TrimRight(os.Getenv("RELAX_BASE_URL"), "/") + "/v1/chat/completions"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("RELAX_SESSION_ID"))
	req.Header.Set("x-stainless-retry-count", strconv.Itoa(retry))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &badStatus{resp.StatusCode, string(answer)}
	}
	var completion struct {
		Choices []struct {
			Message chatMessage `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(answer, &completion); err != nil {
		return nil, err
	}
	return completion.Choices[0].Message, nil
}

func (a *chaosAgent) write() int {
	out := map[string]any{"metadata": map[string]any{"pid": syscall.Getpid()}}
	if !a.task.Scored || a.rng.IntN(2) == 0 {
		out["reward"] = float64(a.rng.IntN(2))
	}
	if a.task.Plan == "parallel" || a.task.Plan == "abandon" {
		out["name"], out["messages"] = "main", a.messages
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return 9
	}
	if a.task.Plan == "badout" && a.rng.IntN(3) > 0 {
		raw = raw[:len(raw)/2]
	}
	if os.WriteFile(os.Getenv("RELAX_OUTPUT_JSON"), raw, 0o600) != nil {
		return 9
	}
	return 0
}
