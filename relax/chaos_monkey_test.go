package relax

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// A monkey does harm to a running engine from outside, from a seed: one deed after the other, with a
// break in between. It is told when to be calm, so that a step can end.
type monkey struct {
	t       *testing.T
	e       *Engine
	workers []*workerProcess
	router  *sglangtest.Router
	rng     *rand.Rand
	marker  string // environment entry of all agents
	pace    time.Duration
	version int64

	calm   atomic.Bool
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	later  sync.WaitGroup // deeds that are undone after a while
	deeds  map[string]int
}

// start begins the harm. stop must be called.
func (m *monkey) start() {
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.done, m.deeds = make(chan struct{}), map[string]int{}
	go func() {
		defer close(m.done)
		for m.sleep(time.Duration(m.rng.ExpFloat64() * float64(m.pace))) {
			if !m.calm.Load() {
				m.act()
			}
		}
	}()
}

// stop ends the harm and undoes what is to be undone. Stopped agents stay as they are.
func (m *monkey) stop() {
	m.cancel()
	<-m.done
	m.later.Wait()
	for _, w := range m.workers {
		w.thaw()
	}
}

func (m *monkey) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-m.ctx.Done():
		return false
	}
}

// undo runs fn after a while, at the latest at the end.
func (m *monkey) undo(after time.Duration, fn func()) {
	m.later.Add(1)
	go func() {
		defer m.later.Done()
		m.sleep(after)
		fn()
	}()
}

func (m *monkey) upTo(d time.Duration) time.Duration { return time.Duration(m.rng.Int64N(int64(d))) }

func (m *monkey) act() {
	deeds := []struct {
		name   string
		weight int
		do     func()
	}{
		{"kill an agent", 10, m.killAgent},
		{"stop an agent", 12, m.stopAgent},
		{"kill a supervisor", 2, m.killSupervisor},
		{"stop a supervisor", 3, m.stopSupervisor},
		{"kill a worker", 7, m.killWorker},
		{"stop a worker", 10, m.stopWorker},
		{"foreign abort", 16, m.foreignAbort},
		{"weight update", 12, m.updateWeights},
		{"pause", 14, m.pause},
		{"worker leaves the list", 6, m.dropWorker},
		{"worker called unhealthy", 4, m.slander},
		{"look and submit", 4, m.meddle},
	}
	n := m.rng.IntN(100)
	for _, d := range deeds {
		if n -= d.weight; n < 0 {
			m.deeds[d.name]++
			d.do()
			return
		}
	}
}

func (m *monkey) worker() *workerProcess { return m.workers[m.rng.IntN(len(m.workers))] }

// agents lists the processes that carry the marker.
func agents(marker string) (pids []int) {
	for _, pid := range procfs.All() {
		if procfs.HasEnv(pid, marker) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (m *monkey) victim(pids []int) int {
	if len(pids) == 0 {
		return 0
	}
	return pids[m.rng.IntN(len(pids))]
}

func (m *monkey) killAgent() {
	if pid := m.victim(agents(m.marker)); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// stopAgent stops one, in some cases for good: then only the engine can end it.
func (m *monkey) stopAgent() {
	pid := m.victim(agents(m.marker))
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	if m.rng.IntN(6) == 0 {
		return
	}
	m.undo(m.upTo(2*time.Second), func() {
		if procfs.HasEnv(pid, m.marker) { // the id may be another's by now
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
}

// supervisors are the children of this process that are no workers.
func (m *monkey) supervisors() (pids []int) {
	for _, pid := range procfs.Children(os.Getpid()) {
		if !isWorker(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isWorker(pid int) bool { return procfs.HasEnv(pid, roleVariable+"=worker") }

func (m *monkey) killSupervisor() {
	if pid := m.victim(m.supervisors()); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (m *monkey) stopSupervisor() {
	pid := m.victim(m.supervisors())
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	m.undo(m.upTo(2*time.Second), func() {
		if st, ok := procfs.ReadStat(pid); ok && st.Parent == os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
}

func (m *monkey) killWorker() {
	w := m.worker()
	if !w.alive() {
		return
	}
	w.kill()
	m.undo(m.upTo(2*time.Second), func() {
		if err := w.restart(); err != nil {
			m.t.Logf("worker stays dead: %v", err)
		}
	})
}

func (m *monkey) stopWorker() {
	w := m.worker()
	w.freeze()
	m.undo(m.upTo(2*time.Second), w.thaw)
}

// foreignAbort ends everything a worker has, as somebody else's weight update does.
func (m *monkey) foreignAbort() { m.worker().post("/abort_request", `{"rid": "", "abort_all": true}`) }

// updateWeights is what the trainer does, sometimes without a pause.
func (m *monkey) updateWeights() {
	paused := m.rng.IntN(3) > 0 && m.hold()
	m.version++
	for _, w := range m.workers {
		w.post("/update_weight_version", fmt.Sprintf(`{"new_version": "%d", "abort_all_requests": %v}`, m.version, m.rng.IntN(2) == 0))
	}
	m.check("set weight version", m.e.SetWeightVersion(m.version))
	if paused {
		m.release()
	}
}

func (m *monkey) pause() {
	m.hold()
	m.sleep(m.upTo(500 * time.Millisecond))
	m.release()
}

// hold pauses the engine. A pause may run out of time: a stopped worker does not answer, and protected
// sessions are waited for.
func (m *monkey) hold() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond+m.upTo(4*time.Second))
	defer cancel()
	err := m.e.Pause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	if n := m.atBackend(); err == nil && n != 0 {
		m.t.Errorf("%d requests at the backend in a pause", n)
	}
	m.check("pause", err)
	return true
}

// check fails for an error, unless the engine was closed meanwhile.
func (m *monkey) check(what string, err error) {
	if err != nil && !errors.Is(err, ErrClosed) {
		m.t.Errorf("%s: %v", what, err)
	}
}

// meddle is what the host may do at any time.
func (m *monkey) meddle() {
	_, err := m.e.Stats()
	m.check("stats", err)
	m.check("consumed", m.e.Consumed(-1)) // nothing
	good := asking("one more", agentTask{})
	good.Metadata = []byte(`{"plan": "good"}`)
	m.check("submit", m.e.Submit([]Task{good}))
}

// atBackend is what the engine's client has in flight.
func (m *monkey) atBackend() int {
	return m.e.core.backend.(interface{ InFlight() int }).InFlight()
}

func (m *monkey) release() {
	m.check("resume", m.e.Resume())
}

func (m *monkey) dropWorker() {
	w := m.worker()
	m.router.RemoveWorker(w.url)
	m.undo(m.upTo(2*time.Second), func() { m.router.AddWorker(w.url) })
}

func (m *monkey) slander() {
	w := m.worker()
	m.router.SetHealthy(w.url, false)
	m.undo(m.upTo(2*time.Second), func() { m.router.SetHealthy(w.url, true) })
}

// markerOf is the environment entry that tells agents of one run from all others.
func markerOf(seed uint64) (name, value string) {
	return "RELAXTEST_CHAOS", strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(seed, 10)
}
