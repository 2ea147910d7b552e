package relax

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// openBenchFleet opens an engine with idle Sessions in front of a router and workers in this
// process.
func openBenchFleet(b *testing.B, sessions, workers int, worker sglangtest.Config) (*Engine, []*session, []*sglangtest.Server) {
	format, err := loadFormat(tinychat, chat.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = format.Close() })
	worker.NoWorkers, worker.Records, worker.Tokenizer, worker.EOS = true, -1, format.Tokenizer(), format.StopIDs()
	var urls []string
	var servers []*sglangtest.Server
	for range workers {
		s, err := sglangtest.New(worker)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		servers, urls = append(servers, s), append(urls, s.URL())
	}
	router, err := sglangtest.NewRouter(urls...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = router.Close() })
	cfg := testConfig(b)
	cfg.AgentCommand, cfg.AgentEnv, cfg.NSamplesPerPrompt = "exec sleep 1000", nil, sessions
	e := openBenchEngine(b, cfg, router.URL())
	e.core.sessionsMu.Lock()
	defer e.core.sessionsMu.Unlock()
	return e, slices.Collect(maps.Values(e.core.sessions)), servers
}

// openBenchEngine opens an engine at a backend and starts its step.
func openBenchEngine(b *testing.B, cfg Config, backend string) *Engine {
	cfg.HFCheckpoint, cfg.Backend, cfg.SGLangURL = tinychat, backendSGLang, backend
	e := openEngine(b, cfg)
	if err := e.Submit([]Task{task(agentTask{})}); err != nil {
		b.Fatal(err)
	}
	if err := e.StartRollout(0); err != nil {
		b.Fatal(err)
	}
	return e
}

// BenchmarkPause measures a pause with 1,000 requests in flight on 8 workers: how long it takes, and how
// many abort calls it makes (design section 8: 1,000, not 8,000).
func BenchmarkPause(b *testing.B) {
	const requests, workers = 1000, 8
	policy, err := sglangtest.ParsePolicy(policyOf(strings.Repeat("x", 2000)))
	if err != nil {
		b.Fatal(err)
	}
	e, sessions, servers := openBenchFleet(b, 1, workers, sglangtest.Config{Policy: policy, TokenDelay: 10 * time.Second})
	s := sessions[0]
	atWorkers := func() (n int) {
		for _, w := range servers {
			n += w.InFlight()
		}
		return n
	}
	aborts := func() (n int) {
		for _, w := range servers {
			n += len(w.Aborts())
		}
		return n
	}
	var asked sync.WaitGroup
	for i := range requests {
		asked.Add(1)
		go func() {
			defer asked.Done()
			_, _ = s.Complete(context.Background(), askFor(fmt.Sprint("request ", i), canon.Retry{}))
		}()
	}
	b.Cleanup(asked.Wait)
	b.Cleanup(func() { s.kill("") })
	var spent time.Duration
	for range b.N {
		for atWorkers() < requests {
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		if err := e.Pause(context.Background()); err != nil {
			b.Fatal(err)
		}
		spent += time.Since(began)
		if n := atWorkers(); n != 0 {
			b.Fatalf("%d requests are left", n)
		}
		if err := e.Resume(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "ms/pause")
	b.ReportMetric(float64(aborts())/float64(b.N), "aborts/pause")
}

// parkedVariable says "<base url> <token> <number> <bytes of a body>".
const parkedVariable = "RELAXTEST_PARKED"

// runParkedClients makes many requests over connections of their own and waits for no answer.
func runParkedClients() int {
	var base, token string
	var n, size int
	if _, err := fmt.Sscan(os.Getenv(parkedVariable), &base, &token, &n, &size); err != nil {
		return 9
	}
	at, err := url.Parse(base)
	if err != nil {
		return 9
	}
	filler := strings.Repeat("a", size)
	for i := range n {
		conn, err := net.Dial("tcp", at.Host)
		if err != nil {
			fmt.Fprintln(os.Stderr, "parked clients:", err)
			return 8
		}
		defer conn.Close()
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%08d %s"}]}`, i, filler)
		_, err = fmt.Fprintf(conn, "POST %sv1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", at.Path, at.Host, token, len(body), body)
		if err != nil {
			fmt.Fprintln(os.Stderr, "parked clients:", err)
			return 8
		}
	}
	fmt.Println("sent")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// BenchmarkParked measures the memory of 10,000 requests that wait for the gate, each of a client with a
// connection of its own in another process, beside what their bodies take (design section 8: at
// most 40 KB). Where fewer descriptors are allowed it takes fewer requests.
func BenchmarkParked(b *testing.B) {
	for _, size := range []int{200, 8 << 10} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) { benchmarkParked(b, size) })
	}
}

func benchmarkParked(b *testing.B, size int) {
	n := 10_000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(err)
	}
	n = int(min(uint64(n), limit.Cur-min(limit.Cur, 1000)))
	b.ReportMetric(0, "ns/op")
	for range b.N {
		cfg := testConfig(b)
		cfg.AgentCommand, cfg.AgentEnv = "exec sleep 1000", nil
		server, err := sglangtest.New(sglangtest.Config{})
		if err != nil {
			b.Fatal(err)
		}
		e := openBenchEngine(b, cfg, server.URL())
		if err := e.Pause(context.Background()); err != nil {
			b.Fatal(err)
		}
		before := memory()
		stop := startParkedClients(b, e, n, size)
		for c := counts(e); c.Waiting+c.Held < n; c = counts(e) {
			time.Sleep(10 * time.Millisecond)
		}
		b.ReportMetric(float64(memory()-before)/float64(n)-float64(size), "B/request")
		b.ReportMetric(float64(n), "requests")
		stop()
		if err := e.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		_ = server.Close()
	}
}

// memory is what the heap and all stacks take.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func startParkedClients(b *testing.B, e *Engine, n, size int) (stop func()) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=parked clients",
		fmt.Sprintf("%s=%s %s %d %d", parkedVariable, e.BaseURL(), onlySession(b, e).id, n, size))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
	}
	b.Cleanup(stop)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		b.Fatalf("parked clients: %q %v", line, err)
	}
	return stop
}

// BenchmarkEngineTurn measures whole turns with nothing left out: HTTP, engine, the backend's client, and
// an SGLang stand-in that answers at once, which shares the processors. Each client has a Session of its
// own, and its turns are conversations of one turn.
func BenchmarkEngineTurn(b *testing.B) {
	for _, clients := range []int{1, 16} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			e, sessions, _ := openBenchFleet(b, clients, 2, sglangtest.Config{})
			requestAll(b, sessions) // their Group has its lease then
			var next atomic.Int64
			var talk sync.WaitGroup
			b.ResetTimer()
			for _, s := range sessions {
				p := newPoster(b, e.BaseURL()+"v1/chat/completions", s.id)
				talk.Add(1)
				go func() {
					defer talk.Done()
					defer p.close()
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						p.post(b, fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":"Hello %d"}]}`, i))
					}
				}()
			}
			talk.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
		})
	}
}

// requestAll makes the first request of each Session.
func requestAll(b *testing.B, sessions []*session) {
	var all sync.WaitGroup
	for _, s := range sessions {
		all.Add(1)
		go func() {
			defer all.Done()
			if _, fault := s.Complete(context.Background(), askFor("first", canon.Retry{})); fault != nil {
				b.Errorf("first request: %+v", fault)
			}
		}()
	}
	all.Wait()
}

// bashAgent is the least an agent can be: one call and a reward. bash starts in a few milliseconds and
// can talk HTTP by itself.
const bashAgent = `
at=${RELAX_BASE_URL#http://}; path=/${at#*/}; at=${at%%/*}
exec 3<>/dev/tcp/${at%:*}/${at#*:}
body='{"model":"m","messages":[{"role":"user","content":"Hello"}]}'
printf 'POST %sv1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
  "$path" "$at" "$RELAX_SESSION_ID" ${#body} "$body" >&3
read -r _ status _ <&3
[ "$status" = 200 ] && echo '{"reward": 1}' > "$RELAX_OUTPUT_JSON"
`

// BenchmarkStep measures a step of 1,000 Sessions whose agents make one call, in Groups of 8, all at a
// time: processes, HTTP, engine, simulator, credit and batch.
func BenchmarkStep(b *testing.B) {
	const groups, samples = 125, 8
	bash, err := exec.LookPath("bash")
	if err != nil {
		b.Skipf("SKIPPED, the agent needs bash: %v", err)
	}
	cfg := testConfig(b)
	script := filepath.Join(b.TempDir(), "agent")
	if err := os.WriteFile(script, []byte(bashAgent), 0o600); err != nil {
		b.Fatal(err)
	}
	cfg.AgentCommand, cfg.AgentEnv = "exec "+bash+" "+strconv.Quote(script), nil
	cfg.AgentSupervisor = builtSupervisor(b)
	cfg.RolloutBatchSize, cfg.NSamplesPerPrompt = groups, samples
	e := openEngine(b, cfg)
	b.ResetTimer()
	for rollout := range int64(b.N) {
		submitBench(b, e, groups)
		r := pollStep(b, e, rollout)
		if r.Rows != groups*samples || len(r.Drops) != 0 {
			b.Fatalf("report %+v", r)
		}
	}
	b.ReportMetric(float64(b.N*groups*samples)/b.Elapsed().Seconds(), "sessions/s")
}

// builtSupervisor is a copy of the agent supervisor that make lib built, which may be built anew meanwhile;
// without it, "", the test binary is its own, which takes longer to start.
func builtSupervisor(b *testing.B) string {
	program, err := os.ReadFile(filepath.Join("..", "python", "relax_rollout", "bin", "relax-agent-init"))
	if err != nil {
		return ""
	}
	path := filepath.Join(b.TempDir(), "relax-agent-init")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		b.Fatal(err)
	}
	return path
}

func submitBench(b *testing.B, e *Engine, n int) {
	tasks := make([]Task, n)
	for i := range tasks {
		tasks[i] = task(agentTask{})
	}
	if err := e.Submit(tasks); err != nil {
		b.Fatal(err)
	}
}

// pollStep runs a step and throws its batch away.
func pollStep(b *testing.B, e *Engine, rollout int64) (r StepReport) {
	if err := e.StartRollout(rollout); err != nil {
		b.Fatal(err)
	}
	var line []byte
	for {
		ev, err := e.Poll(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		switch ev.Kind {
		case EventLog:
			line = ev.Data
		case EventTasksNeeded: // a Group was dropped
			b.Fatalf("a replacement is needed; the last line was %s", line)
		case EventBatch:
			ev.Batch.Release()
		case EventStepEnd:
			if err := json.Unmarshal(ev.Data, &r); err != nil {
				b.Fatal(err)
			}
			return r
		}
	}
}
