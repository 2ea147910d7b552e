package relax

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/sglang"
)

// A paced backend is the engine's own, real tokens and all, but attempts of conversations with a
// certain text bring a few tokens and then hang until they are aborted. Nothing depends on how fast
// the machine is.
type paced struct {
	generator
	mu      sync.Mutex
	changed *sync.Cond
	text    string // held conversations contain it
	chunk   int    // tokens an attempt of them brings; 0: none is held
	wait    int    // other attempts start once so many hang
	holds   map[string]chan struct{}
	aborted map[string]bool // before they hung
	calls   []pacedCall     // of held conversations
}

type pacedCall struct {
	prefix, budget int
}

// pace wraps the engine's backend before the first request.
func pace(e *Engine, text string, chunk, wait int) *paced {
	p := &paced{generator: e.core.backend, text: text, chunk: chunk, wait: wait, holds: map[string]chan struct{}{}, aborted: map[string]bool{}}
	p.changed = sync.NewCond(&p.mu)
	e.core.backend = p
	return p
}

// set changes what is held from now on.
func (p *paced) set(chunk, wait int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunk, p.wait = chunk, wait
	p.changed.Broadcast()
}

// release ends what hangs with the tokens it has, as an abort nobody asked for would, and holds
// nothing from now on.
func (p *paced) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunk = 0
	for rid, hold := range p.holds {
		delete(p.holds, rid)
		close(hold)
	}
}

// held is the number of attempts that hang.
func (p *paced) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.holds)
}

func (p *paced) Generate(ctx context.Context, call sglang.Call) (sglang.Result, error) {
	defer context.AfterFunc(ctx, p.changed.Broadcast)()
	p.mu.Lock()
	if !strings.Contains(promptText(call.Prefix), p.text) {
		for len(p.holds) < p.wait && ctx.Err() == nil {
			p.changed.Wait()
		}
		p.mu.Unlock()
		return p.generator.Generate(ctx, call)
	}
	budget := call.Sampling.MaxNewTokens
	n := 0
	for _, piece := range call.Prefix {
		n += len(piece)
	}
	p.calls = append(p.calls, pacedCall{n, budget})
	if p.chunk == 0 || p.chunk >= budget {
		p.mu.Unlock()
		return p.generator.Generate(ctx, call)
	}
	call.Sampling.MaxNewTokens = p.chunk
	hold := make(chan struct{})
	p.mu.Unlock()
	result, err := p.generator.Generate(ctx, call)
	if err != nil || result.Finish.Type != sglang.FinishLength {
		return result, err
	}
	p.mu.Lock()
	if p.holds[call.RID] = hold; p.aborted[call.RID] {
		delete(p.holds, call.RID)
		close(hold)
	}
	p.changed.Broadcast()
	p.mu.Unlock()
	select {
	case <-hold:
		result.Finish.Type = sglang.FinishAbort
		return result, nil
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.holds, call.RID)
		return sglang.Result{}, context.Cause(ctx)
	}
}

func (p *paced) AbortAll(_ context.Context, rids []string, _ func(string)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rid := range rids {
		if hold, ok := p.holds[rid]; ok {
			delete(p.holds, rid)
			close(hold)
			continue
		}
		p.aborted[rid] = true
	}
	p.changed.Broadcast()
	return nil
}

// promptText is what the byte tokenizer's ids spell, control tokens left out.
func promptText(prefix [][]int32) string {
	var b strings.Builder
	for _, piece := range prefix {
		for _, id := range piece {
			if id < 256 {
				b.WriteByte(byte(id))
			}
		}
	}
	return b.String()
}

// asking is a task whose first message is the text.
func asking(text string, a agentTask) Task {
	t := task(a)
	raw, err := json.Marshal([]chatMessage{{"role": "user", "content": text}})
	if err != nil {
		panic(err)
	}
	t.Messages = raw
	return t
}

// longReply makes the simulator answer everything with so many bytes.
func longReply(n int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"policy": {"default": [{"text": %q}]}}`, strings.Repeat("0123456789", n/10)))
}

func submit(t *testing.T, e *Engine, tasks ...Task) {
	t.Helper()
	if err := e.Submit(tasks); err != nil {
		t.Fatal(err)
	}
}

func setVersion(t *testing.T, e *Engine, version int64) {
	t.Helper()
	if err := e.SetWeightVersion(version); err != nil {
		t.Fatal(err)
	}
}

// waitContext bounds what a test waits for.
func waitContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	t.Cleanup(cancel)
	return ctx
}

// findWait is what the engine says of its waits for something.
func findWait(t *testing.T, e *Engine, what string) Wait {
	t.Helper()
	for _, w := range readStats(t, e).Waits {
		if w.For == what {
			return w
		}
	}
	return Wait{}
}
