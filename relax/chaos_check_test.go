package relax

import (
	"net/url"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
)

// goneWithin bounds how long what has to go may take (reference pipeline 12.4).
const goneWithin = 10 * time.Second

// A leakCheck compares what this process has before and after.
type leakCheck struct {
	temp        string
	descriptors []string
	goroutines  goleak.Option
}

// watchLeaks is called before anything is started; the system's temporary directory is the test's own
// from here on.
func watchLeaks(t *testing.T) *leakCheck {
	t.Helper()
	l := &leakCheck{temp: t.TempDir()}
	t.Setenv("TMPDIR", l.temp)
	l.goroutines, l.descriptors = goleak.IgnoreCurrent(), descriptors(t)
	return l
}

// check fails for everything that is left. The engine is closed, workers run.
func (l *leakCheck) engine(t *testing.T, e *Engine, marker string) {
	t.Helper()
	checkNoProcess(t, marker)
	if left := files(t, l.temp); len(left) != 0 {
		t.Errorf("left in the temporary directory: %v", left)
	}
	at, err := url.Parse(e.BaseURL())
	if err != nil {
		t.Fatal(err)
	}
	if listens(at.Host) {
		t.Errorf("%s still takes connections", at.Host)
	}
	if s, ok := e.core.backend.(statsBackend); ok {
		if st := s.Stats(); st.InFlight+st.Waiting+st.Aborting != 0 {
			t.Errorf("the backend's client has %d calls, %d that wait, %d aborts", st.InFlight, st.Waiting, st.Aborting)
		}
	}
	if n := e.core.launcher.Live(); n != 0 {
		t.Errorf("the launcher has %d agents", n)
	}
}

// checkNoProcess fails if processes with an environment entry, or children of this process that are
// no workers, are still there after a while. It ends them.
func checkNoProcess(t *testing.T, marker string) {
	t.Helper()
	left := func() []int {
		pids := agents(marker)
		for _, pid := range procfs.Children(os.Getpid()) {
			if !isWorker(pid) && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	deadline := time.Now().Add(goneWithin)
	for len(left()) > 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	for _, pid := range left() {
		st, _ := procfs.ReadStat(pid)
		t.Errorf("process %d is left (%c, parent %d): %s", pid, st.State, st.Parent, procfs.CommandLine(pid, 200))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// checkWorkersIdle fails if a worker still has a request of an engine that is closed.
func checkWorkersIdle(t *testing.T, workers []*workerProcess) {
	t.Helper()
	for _, w := range workers {
		deadline := time.Now().Add(goneWithin)
		for w.alive() {
			n, err := w.inFlight()
			if err == nil && n == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("worker %s has %d requests in flight: %v", w.url, n, err)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// process fails for descriptors and goroutines that are left, once everything of the test is closed.
func (l *leakCheck) process(t *testing.T) {
	t.Helper()
	if err := goleak.Find(l.goroutines); err != nil {
		t.Errorf("goroutines: %v", err)
	}
	if after := descriptors(t); len(after) > len(l.descriptors) {
		t.Errorf("descriptors before %v, after %v", l.descriptors, after)
	}
}

// checkBatch holds the rows against the model: what is masked as sampled is what it says after what
// comes before, whoever aborted and continued it.
func (r *chaosRun) checkBatch(ev Event) {
	b := ev.Batch
	checkTokensOf(r.t, r.model, b)
	offsets, tokens := View[int64](b, "offsets"), View[int32](b, "tokens")
	if offsets[0] != 0 || offsets[len(offsets)-1] != int64(len(tokens)) || !slices.IsSorted(offsets) || len(offsets) != b.Seqs+1 {
		r.t.Errorf("offsets %v of %d rows and %d tokens", offsets, b.Seqs, len(tokens))
	}
	if n, m := len(View[uint8](b, "loss_mask")), len(View[float32](b, "logprobs")); n != len(tokens) || m != len(tokens) {
		r.t.Errorf("%d tokens, %d mask, %d logprobs", len(tokens), n, m)
	}
	for _, v := range View[int64](b, "seg_weight_version") {
		if v < 0 || v > r.e.core.weight.Load() {
			r.t.Errorf("weight version %d, the newest is %d", v, r.e.core.weight.Load())
		}
	}
	if len(ev.Data) > 0 { // of an Eval
		return
	}
	rows := map[int64]int{}
	for _, p := range View[int64](b, "partition") {
		rows[p]++
	}
	for p, n := range rows {
		if n%r.size.samples != 0 {
			r.t.Errorf("partition %d has %d rows, which are no whole groups of %d", p, n, r.size.samples)
		}
		r.paid[p] += n / r.size.samples
		if !r.cfg.FullyAsync && p != ev.RolloutID {
			r.t.Errorf("rows of partition %d in rollout %d", p, ev.RolloutID)
		}
	}
}

// judgePartitions: each is complete once, by the step after its own, and never has too much.
func (r *chaosRun) judgePartitions(rollout int64, got *StepReport) {
	for _, p := range got.Partitions {
		if p.ID < rollout-1 || p.ID > rollout {
			r.t.Errorf("rollout %d worked on partition %d", rollout, p.ID)
		}
		if r.paid[p.ID]+p.Debt != r.size.batch {
			r.t.Errorf("partition %d has %d groups and owes %d of %d", p.ID, r.paid[p.ID], p.Debt, r.size.batch)
		}
		if !p.Complete {
			continue
		}
		if r.complete[p.ID] {
			r.t.Errorf("partition %d was complete before", p.ID)
		}
		r.complete[p.ID] = true
		if err := r.e.Consumed(p.ID); err != nil {
			r.t.Errorf("consumed: %v", err)
		}
	}
}
