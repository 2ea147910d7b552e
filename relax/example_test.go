package relax_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/relax-rollout/relax-rollout/relax"
)

// The agent of the example needs nothing but Python: it makes one model
// call and rewards itself.
const exampleAgent = `
import json, os, urllib.request
task = json.load(open(os.environ["RELAX_INPUT_JSON"]))
request = urllib.request.Request(
    os.environ["RELAX_BASE_URL"] + "v1/chat/completions",
    json.dumps({"model": "m", "messages": task["messages"]}).encode(),
    {"Authorization": "Bearer " + os.environ["RELAX_SESSION_ID"]})
urllib.request.urlopen(request).read()
json.dump({"reward": 1.0}, open(os.environ["RELAX_OUTPUT_JSON"], "w"))
`

// A rollout from a Go program: one prompt, two samples, on the embedded simulator.
func Example() {
	dir, err := os.MkdirTemp("", "relax-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "agent.py"), []byte(exampleAgent), 0o600); err != nil {
		log.Fatal(err)
	}
	engine, err := relax.Open(relax.Config{AgentCommand: "python3 agent.py", AgentCwd: dir, NSamplesPerPrompt: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	task := relax.Task{Messages: json.RawMessage(`[{"role": "user", "content": "What is 2 + 3?"}]`)}
	if err := engine.Submit([]relax.Task{task}); err != nil {
		log.Fatal(err)
	}
	if err := engine.StartRollout(0); err != nil {
		log.Fatal(err)
	}
	for {
		event, err := engine.Poll(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		switch event.Kind {
		case relax.EventBatch:
			fmt.Println("rows:", event.Batch.Seqs)
			fmt.Println("rewards:", relax.View[float64](event.Batch, "reward"))
			event.Batch.Release()
		case relax.EventStepEnd:
			var report relax.StepReport
			if err := json.Unmarshal(event.Data, &report); err != nil {
				log.Fatal(err)
			}
			fmt.Println("started, delivered:", report.Accounting.Sessions.Started, report.Accounting.Sessions.Delivered)
			return
		}
	}
	// Output:
	// rows: 2
	// rewards: [1 1]
	// started, delivered: 2 2
}
