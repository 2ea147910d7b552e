package relax

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// roleVariable makes the test binary another program than the tests; roles has them.
const roleVariable = "RELAXTEST_ROLE"

var roles = map[string]func() int{
	"worker": runWorker, "chaos agent": runChaosAgent, "failing agent": runFailingAgent, "trainer": runTrainer,
	"slot agent": runSlotAgent, "parked clients": runParkedClients,
}

// A workerSpec says how a worker process behaves.
type workerSpec struct {
	Addr       string                 `json:"addr"`
	Checkpoint string                 `json:"checkpoint"`
	Policy     json.RawMessage        `json:"policy"`
	Faults     []sglangtest.FaultRule `json:"faults"`
	Seed       uint64                 `json:"seed"`
	TokenDelay time.Duration          `json:"token_delay"`
	Version    string                 `json:"version"`
	KVTokens   int                    `json:"kv_tokens"`
}

// workerVariable has a worker's spec.
const workerVariable = "RELAXTEST_WORKER"

// runWorker is an SGLang stand-in as a process of its own. It ends with its standard input, which
// is the lifeline to the tests.
func runWorker() int {
	var spec workerSpec
	if err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &spec); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	server, err := serveWorker(&spec)
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	fmt.Println(server.URL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if server.Close() != nil {
		return 1
	}
	return 0
}

func serveWorker(spec *workerSpec) (*sglangtest.Server, error) {
	format, err := loadFormat(spec.Checkpoint, chat.Options{})
	if err != nil {
		return nil, err
	}
	policy, err := sglangtest.ParsePolicy(spec.Policy)
	if err != nil {
		return nil, err
	}
	return sglangtest.New(sglangtest.Config{
		Addr: spec.Addr, Tokenizer: format.Tokenizer(), EOS: format.StopIDs(), Policy: policy, Faults: spec.Faults, Seed: spec.Seed,
		TokenDelay: spec.TokenDelay, WeightVersion: spec.Version, NoWorkers: true, ModelPath: "chaos", Metrics: true, KVTokens: spec.KVTokens,
		DisconnectCheck: 20 * time.Millisecond,
	})
}

// A workerProcess is one worker, which can be killed and started again at its address.
type workerProcess struct {
	spec workerSpec
	url  string

	mu      sync.Mutex
	cmd     *exec.Cmd // nil while it is dead
	stdin   io.WriteCloser
	stopped bool
}

// startWorkers starts worker processes. They end with the test, and with its process: a stopped one
// too, because it is in a group of its own that is orphaned then.
func startWorkers(t testing.TB, n int, spec workerSpec) []*workerProcess {
	t.Helper()
	var out []*workerProcess
	for i := range n {
		w := &workerProcess{spec: spec}
		w.spec.Addr, w.spec.Seed = "127.0.0.1:0", spec.Seed+uint64(i)
		t.Cleanup(w.kill)
		if err := w.start(); err != nil {
			t.Fatal(err)
		}
		w.spec.Addr = strings.TrimPrefix(w.url, "http://")
		out = append(out, w)
	}
	return out
}

func urlsOf(workers []*workerProcess) []string {
	var urls []string
	for _, w := range workers {
		urls = append(urls, w.url)
	}
	return urls
}

func (w *workerProcess) start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, err := json.Marshal(w.spec)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=worker", workerVariable+"="+string(raw))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("worker at %s did not start: %w", w.spec.Addr, err)
	}
	w.cmd, w.stdin, w.stopped = cmd, stdin, false
	if w.url == "" { // it keeps its address
		w.url = strings.TrimSpace(line)
	}
	return nil
}

// restart starts a killed worker at its address, which a passing connection may use just now.
func (w *workerProcess) restart() (err error) {
	for range 20 {
		if err = w.start(); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func (w *workerProcess) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd == nil {
		return
	}
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait() // it also closes the pipes
	w.cmd = nil
}

// freeze and thaw are SIGSTOP and SIGCONT.
func (w *workerProcess) freeze() { w.signal(syscall.SIGSTOP, true) }
func (w *workerProcess) thaw()   { w.signal(syscall.SIGCONT, false) }

func (w *workerProcess) signal(sig syscall.Signal, stopped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd != nil {
		_ = w.cmd.Process.Signal(sig)
		w.stopped = stopped
	}
}

func (w *workerProcess) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cmd != nil
}

// direct calls workers beside the engine. It keeps no connection.
var direct = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}

// post sends the worker a JSON body; a worker that is dead or stopped does not hear it.
func (w *workerProcess) post(path, body string) {
	resp, err := direct.Post(w.url+path, "application/json", strings.NewReader(body))
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// inFlight is what the worker itself says it has.
func (w *workerProcess) inFlight() (int, error) {
	resp, err := direct.Get(w.url + "/v1/loads")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var loads struct {
		Loads []struct {
			Running int `json:"num_running_reqs"`
			Waiting int `json:"num_waiting_reqs"`
		} `json:"loads"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&loads); err != nil || len(loads.Loads) == 0 {
		return 0, fmt.Errorf("loads of %s: %v", w.url, err)
	}
	return loads.Loads[0].Running + loads.Loads[0].Waiting, nil
}

// listens says whether something takes connections at an address.
func listens(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// openFleet opens an engine in front of a router and its workers.
func openFleet(t testing.TB, cfg Config, workers []*workerProcess) (*Engine, *sglangtest.Router) {
	t.Helper()
	router, err := sglangtest.NewRouter(urlsOf(workers)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = router.Close() })
	cfg.Backend, cfg.SGLangURL, cfg.HFCheckpoint = backendSGLang, router.URL(), tinychat
	return openEngine(t, cfg), router
}

// modelOf is a model as the workers have it.
func modelOf(t testing.TB, spec workerSpec) *sglangtest.Model {
	t.Helper()
	format, err := loadFormat(spec.Checkpoint, chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = format.Close() })
	policy, err := sglangtest.ParsePolicy(spec.Policy)
	if err != nil {
		t.Fatal(err)
	}
	model, err := sglangtest.NewModel(policy, format.Tokenizer(), format.StopIDs())
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// policyOf answers everything with one of the texts.
func policyOf(texts ...string) json.RawMessage {
	var b bytes.Buffer
	for i, text := range texts {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"text": %q}`, text)
	}
	return json.RawMessage(`{"default": [` + b.String() + `]}`)
}
