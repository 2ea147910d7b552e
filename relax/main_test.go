package relax

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// agentVariable makes the test binary an agent app: the tests start themselves.
const agentVariable = "RELAXTEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(agentVariable) != "" {
		os.Exit(runAgent())
	}
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(roles[role]())
	}
	// Race-detector builds sleep a second at exit unless told otherwise; agents and supervisors
	// of these tests are such builds.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// Most tests wait for processes, and supervisors do sleep that second: overlap them.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// agentTask is what a test tells the agent in the task's metadata.
type agentTask struct {
	// Mode picks a behaviour; see runAgent. "tell" writes what it saw into its metadata.
	Mode string `json:"mode"`
	// Turns is the number of model calls of mode "" (default 1).
	Turns int `json:"turns"`
	// Reward is written to the output; null leaves it out.
	Reward *float64 `json:"reward"`
	// Output is written to the output file as it is, if not empty.
	Output string `json:"output"`
}

type chatMessage map[string]any

// readInput reads what the engine gave the agent; if that fails it says why.
func readInput(input any) bool {
	raw, err := os.ReadFile(os.Getenv("RELAX_INPUT_JSON"))
	if err == nil {
		err = json.Unmarshal(raw, input)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent: input:", err)
	}
	return err == nil
}

// runAgent is the agent app of the tests.
func runAgent() int {
	var input struct {
		Messages []chatMessage `json:"messages"`
		Metadata agentTask     `json:"metadata"`
	}
	if !readInput(&input) {
		return 9
	}
	if say := os.Getenv("RELAXTEST_SAY"); say != "" { // in the place of the task
		input.Messages[0]["content"] = say
	}
	task := input.Metadata
	_, err := os.Stat("once")
	again := err == nil
	switch task.Mode {
	case "nocall":
		return 0
	case "unread": // its only request is refused
		if _, err := converse(nil, 1); err == nil {
			return 8
		}
		return 0
	case "title": // as opencode does: a call of its own that names the conversation
		title := []chatMessage{{"role": "system", "content": "Make a title."}, {"role": "user", "content": "Hello"}}
		if _, err := converse(title, 1); err != nil {
			return 8
		}
	case "silent": // never calls and never ends
		time.Sleep(time.Hour)
	case "await": // leaves when it is told, without a call
		for {
			if _, err := os.Stat("go"); err == nil {
				return 7
			}
			time.Sleep(time.Millisecond)
		}
	case "exit":
		fmt.Println("agent: something went wrong")
		return 7
	}
	messages, err := converse(input.Messages, max(task.Turns, 1))
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 8
	}
	switch task.Mode {
	case "hang": // stops calling and never ends
		time.Sleep(time.Hour)
	case "branch":
		if _, err := converse(append(input.Messages[:1:1], chatMessage{"role": "user", "content": "something else"}), 1); err != nil {
			return 8
		}
	case "lateexit":
		return 6
	case "flaky", "flakyhang": // fails the first time
		if os.WriteFile("once", nil, 0o600) != nil {
			return 9
		}
		if !again && task.Mode == "flakyhang" {
			time.Sleep(time.Hour)
		}
		if !again {
			return 6
		}
	}
	if task.Mode == "contexts" {
		return exportContexts(messages)
	}
	if err := writeOutput(task, messages); err != nil {
		fmt.Fprintln(os.Stderr, "agent: output:", err)
		return 9
	}
	return 0
}

func converse(messages []chatMessage, turns int) ([]chatMessage, error) {
	for turn := range turns {
		message, err := complete(messages)
		if err != nil {
			return nil, err
		}
		messages = append(messages, message)
		if turn < turns-1 {
			messages = append(messages, chatMessage{"role": "user", "content": "and then? " + strconv.Itoa(turn)})
		}
	}
	return messages, nil
}

// exportContexts branches off the conversation after its first turn and exports both ends.
func exportContexts(messages []chatMessage) int {
	side, err := converse(append(messages[:2:2], chatMessage{"role": "user", "content": "search"}), 1)
	if err != nil {
		return 8
	}
	var out bytes.Buffer
	for _, record := range []map[string]any{
		{"name": "main", "messages": messages, "metadata": map[string]any{"outcome": 1}, "reward": 0.25},
		{"name": "searcher", "messages": side, "metadata": map[string]any{"usefulness": 0.6}},
	} {
		if err := json.NewEncoder(&out).Encode(record); err != nil {
			return 9
		}
	}
	if os.WriteFile(os.Getenv("RELAX_OUTPUT_JSON"), out.Bytes(), 0o600) != nil {
		return 9
	}
	return 0
}

func writeOutput(task agentTask, messages []chatMessage) error {
	path := os.Getenv("RELAX_OUTPUT_JSON")
	if task.Output != "" {
		return os.WriteFile(path, []byte(task.Output), 0o600)
	}
	metadata := map[string]any{"session": os.Getenv("RELAX_SESSION_ID")}
	if task.Mode == "tell" {
		metadata["said"], metadata["answers"] = messages[len(messages)-1]["content"], answers
		metadata["mode"], metadata["group"] = os.Getenv("RELAX_ROLLOUT_MODE"), os.Getenv("RELAX_GROUP_ID")
	}
	out := map[string]any{"metadata": metadata}
	if task.Reward != nil {
		out["reward"] = *task.Reward
	}
	if task.Mode == "branch" || task.Mode == "explicit" {
		out["name"], out["messages"] = "main", messages
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}

// answers counts HTTP answers.
var answers int

// complete makes one Chat Completions call and returns the assistant message.
func complete(messages []chatMessage) (chatMessage, error) {
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		return nil, err
	}
	url := strings.TrimRight(os.Getenv("RELAX_BASE_URL"), "/") + "/v1/chat/completions"
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("RELAX_SESSION_ID"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	answers++
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, answer)
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
