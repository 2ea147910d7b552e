//go:build !relax_nohf

package relax

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/schedule/admission"
	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// Acceptance 17: what does not fit waits, and the oldest goes first. Stats name who waits for what.
func TestAdmissionIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	f := openKV(t, 1, func(c *Config) { oneAtATime(c); c.AgenticAdmissionMaxWaitS = ptr(1000.0) })
	s := f.start()[0]
	ok := func(a answer) {
		if a.status != 200 {
			t.Errorf("answer %+v", a)
		}
	}
	f.post(t, s, "first", ok)
	f.untilAdmission(t, 1, 0)
	for i, text := range []string{"second", "third"} {
		f.post(t, s, text, ok)
		f.untilAdmission(t, 1, i+1)
	}
	st := readStats(t, f.Engine)
	a := st.Admission
	if a.Leases != 1 || len(a.Ledgers) != 1 || a.Ledgers[0].Worker != f.workers[0].URL() || a.Ledgers[0].Ceiling != roomForOne*9/10 {
		t.Errorf("admission %+v", a)
	}
	if len(a.Held) != 2 || a.Held[0].Reason != admission.HoldCapacity || a.Held[1].Reason != admission.HoldBehind || a.Held[0].Session != s.id {
		t.Errorf("held %+v", a.Held)
	}
	if w := st.Waits; !slices.ContainsFunc(w, func(w Wait) bool { return w.For == "admission" && w.Count == 2 }) || st.Requests.Admission != 2 {
		t.Errorf("waits %+v, requests %+v", w, st.Requests)
	}
	f.goOn()
	f.posts.Wait()
	var order []string
	for _, r := range f.workers[0].Requests() {
		order = append(order, strings.TrimPrefix(r.Request.RID, "req_")[len(s.id):])
	}
	if len(order) != 3 || !slices.IsSorted(order) {
		t.Errorf("requests came as %q", order)
	}
	got := f.kv(t)
	wantMetrics(t, got, map[string]float64{
		"admission/admit": 3, "admission/wait": 2, "admission/waiting": 0, "admission/defer_rate": 0.4, "admission/degraded_rate": 0,
		"budget/reserved": 0, "budget/lease_count": 0, "budget/degraded": 0, "budget/ceiling": roomForOne * 9 / 10,
	})
	if got["agentic_kv/admission/wait_seconds_mean"] <= 0 {
		t.Errorf("metrics %v", got)
	}
}

// Acceptance 17: who waited agentic_admission_max_wait_s goes although there is no room.
func TestAdmissionAges(t *testing.T) {
	t.Parallel()
	f := openKV(t, 1, func(c *Config) { oneAtATime(c); c.AgenticAdmissionMaxWaitS = ptr(0.01) })
	s := f.start()[0]
	f.post(t, s, "first", nil)
	f.untilAdmission(t, 1, 0)
	f.post(t, s, "second", nil)
	f.untilAdmission(t, 2, 0)
	wantMetrics(t, f.kv(t), map[string]float64{"admission/admit": 1, "admission/bypass": 1, "admission/bypass_aged": 1, "admission/wait": 1})
	if l := f.admission(t).Ledgers[0]; l.Reserved <= l.Ceiling {
		t.Errorf("the aged one is not charged: %+v", l)
	}
}

// Acceptance 17: a worker that gives no account is not controlled, and costs the others nothing.
func TestAdmissionOfAWorkerWithoutAccount(t *testing.T) {
	t.Parallel()
	f := startKV(t, 2)
	var silent atomic.Bool
	silent.Store(true)
	bad := withoutLoads(t, f.workers[0], &silent)
	f.routeTo(bad, f.workers[1].URL())
	cfg := testConfig(t)
	cfg.AgentCommand, cfg.AgentEnv, cfg.NSamplesPerPrompt = "exec sleep 1000", nil, 16
	f.open(cfg, func(c *Config) { oneAtATime(c); c.AgenticAdmissionMaxWaitS = ptr(1000.0) })
	sessions := f.start()
	for _, s := range sessions { // all ask once, or none gets its lease
		f.post(t, s, "Hello", nil)
	}
	// Those for the silent worker pass. It takes a share of them only, so that some wait for the other.
	until(t, func() bool { return f.atWorkers()+f.admission(t).Waiting == len(sessions) })
	a := f.admission(t)
	if a.Waiting == 0 || slices.ContainsFunc(a.Held, func(w admission.Wait) bool { return w.Worker == bad }) {
		t.Errorf("held %+v", a.Held)
	}
	for _, l := range a.Ledgers {
		if (l.Worker == bad) != (l.Uncontrolled != "") {
			t.Errorf("ledger %+v", l)
		}
	}
	m := f.kv(t)
	wantMetrics(t, m, map[string]float64{"admission/waiting": float64(a.Waiting), "budget/degraded": 1})
	passed := m["agentic_kv/admission/bypass_degraded"]
	if all := passed + m["agentic_kv/admission/admit"]; passed < 1 || all != float64(len(sessions)-a.Waiting) || m["agentic_kv/admission/degraded_rate"] <= 0 {
		t.Errorf("metrics %v, %d wait", m, a.Waiting)
	}
	silent.Store(false)
	f.core.admission.poll(t.Context())
	if a := f.admission(t); slices.ContainsFunc(a.Ledgers, func(l admission.Ledger) bool { return l.Uncontrolled != "" }) {
		t.Errorf("ledgers %+v", a.Ledgers)
	}
	f.goOn()
	f.posts.Wait()
}

// withoutLoads is a worker's address under which it gives no account while silent is set.
func withoutLoads(t *testing.T, w *sglangtest.Server, silent *atomic.Bool) string {
	t.Helper()
	target, err := url.Parse(w.URL())
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if silent.Load() && (r.URL.Path == "/v1/loads" || r.URL.Path == "/metrics" || r.URL.Path == "/get_load") {
			http.Error(out, "no account", http.StatusInternalServerError)
			return
		}
		proxy.ServeHTTP(out, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close(); transport.CloseIdleConnections() })
	return server.URL
}

// A pause takes held attempts back; they go on under other names.
func TestPauseWithdrawsWhatWaitsForRoom(t *testing.T) {
	t.Parallel()
	f := openKV(t, 1, func(c *Config) { oneAtATime(c); c.AgenticAdmissionMaxWaitS = ptr(1000.0) })
	s := f.start()[0]
	f.post(t, s, "first", nil)
	f.untilAdmission(t, 1, 0)
	f.post(t, s, "second", nil)
	f.untilAdmission(t, 1, 1)
	f.post(t, s, "third", nil)
	f.untilAdmission(t, 1, 2)
	before := f.admission(t).Held
	if err := f.Pause(waitContext(t)); err != nil {
		t.Fatal(err)
	}
	if a := f.admission(t); f.atWorkers() != 0 || a.Waiting != 0 || a.Leases != 0 {
		t.Errorf("%d at the workers, admission %+v", f.atWorkers(), a)
	}
	if err := f.Resume(); err != nil {
		t.Fatal(err)
	}
	f.untilAdmission(t, 1, 2) // one of them, whichever was faster
	f.goOn()
	f.posts.Wait()
	var rids []string
	for _, r := range f.workers[0].Requests() {
		rids = append(rids, strings.TrimSuffix(r.Request.RID, "#00"))
	}
	for _, b := range before {
		if slices.Contains(rids, b.Ticket) || !slices.Contains(rids, nextAttempt(b.Ticket)) {
			t.Errorf("sent %q, held before %q", rids, b.Ticket)
		}
	}
	wantMetrics(t, f.kv(t), map[string]float64{"admission/cancelled": 2, "admission/admit": 4})
}

// nextAttempt is the rid behind the first one.
func nextAttempt(rid string) string { return strings.TrimSuffix(rid, "0000") + "0001" }

// The age of a request that was taken back counts: it passes at once when it is older than the limit.
func TestAgeOutlivesAPause(t *testing.T) {
	t.Parallel()
	f := openKV(t, 1, func(c *Config) { oneAtATime(c); c.AgenticAdmissionMaxWaitS = ptr(1000.0) })
	a, url := f.core.admission, f.workers[0].URL()
	ask := func(ticket string, waited time.Duration, recall chan struct{}) (bool, time.Duration, error) {
		return a.await(t.Context(), admission.Request{Ticket: ticket, Session: "s", Worker: url, PromptTokens: 1000, Waited: waited}, recall)
	}
	if ok, _, err := ask("a", 0, nil); !ok || err != nil {
		t.Fatalf("the first waits: %v", err)
	}
	if ok, _, err := ask("a", 0, nil); !ok || err != nil || a.stats().Leases != 1 {
		t.Errorf("asked again it is not the same ticket: %v, %+v", err, a.stats())
	}
	recall := make(chan struct{}, 1)
	recall <- struct{}{}
	ok, waited, err := ask("b", time.Hour/4, recall) // 900 s of 1000
	if ok || err != nil || waited < time.Hour/4 {
		t.Errorf("taken back: %v, %v, %v", ok, waited, err)
	}
	if ok, _, err := ask("b", 1001*time.Second, nil); !ok || err != nil {
		t.Errorf("an old one waits: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errSessionOver)
	if ok, _, err := a.await(ctx, admission.Request{Ticket: "c", Session: "s", Worker: url, PromptTokens: 1000}, nil); ok || err != errSessionOver {
		t.Errorf("a client that left: %v, %v", ok, err)
	}
	// A turn keeps its age over attempts that were taken back.
	s := f.start()[0]
	o, _ := s.match(&canon.Request{})
	turn := &turn{session: s, node: o.match.Parent, budget: 1000, waited: time.Minute}
	k := &ticket{rid: "d", recall: recall}
	recall <- struct{}{}
	if ok, err := turn.admit(t.Context(), k, passage{}); ok || err != nil || turn.waited < time.Minute {
		t.Errorf("a turn that was taken back: %v, %v, waited %v", ok, err, turn.waited)
	}
	a.landed("a", 5)
	a.sessionOver("s")
	if st := a.stats(); st.Leases != 0 || st.Waiting != 0 || st.Ledgers[0].Reserved != 0 || len(a.waiters) != 0 {
		t.Errorf("left: %+v, %d waiters", st, len(a.waiters))
	}
}

// Those who wait for a worker that goes away wait for another one then, with their age.
func TestAdmissionMovesFromAWorkerThatIsGone(t *testing.T) {
	t.Parallel()
	f := openKV(t, 2, func(c *Config) {
		oneAtATime(c)
		c.AgenticAdmissionMaxWaitS, c.NSamplesPerPrompt = ptr(1000.0), 16
	})
	sessions := f.start()
	for _, s := range sessions {
		f.post(t, s, "Hello", nil)
	}
	f.untilAdmission(t, 2, len(sessions)-2)
	gone := f.workers[0]
	f.router.RemoveWorker(gone.URL())
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	f.workers = f.workers[1:]
	left := f.workers[0].URL()
	until(t, func() bool {
		f.core.admission.poll(t.Context())
		a := f.admission(t)
		return len(a.Ledgers) == 1 && a.Ledgers[0].Worker == left && !slices.ContainsFunc(a.Held, func(w admission.Wait) bool { return w.Worker != left })
	})
	f.goOn()
	f.posts.Wait()
	if st := f.admission(t); st.Leases != 0 || st.Waiting != 0 || st.Ledgers[0].Reserved != 0 {
		t.Errorf("left: %+v", st)
	}
}

// Acceptance 17: a protected Session is not held.
func TestAdmissionLetsProtectedSessionsPass(t *testing.T) {
	t.Parallel()
	e, p := partialEngine(t, 5, func(c *Config) {
		c.PartialRolloutMaxAbortedCount, c.AgenticProgramAdmission = 1, true
	})
	submit(t, e, asking("long", agentTask{}), asking("short", agentTask{}))
	r := runStep(t, e, 0, nil)
	if _, ok := r.report.Metrics["agentic_kv/admission/bypass_protected"]; ok || r.report.Metrics["agentic_kv/admission/admit"] < 2 {
		t.Errorf("metrics %v", r.report.Metrics)
	}
	p.set(0, 0)
	submit(t, e, asking("short", agentTask{}))
	r = runStep(t, e, 1, nil)
	if r.report.Groups != 1 || r.report.Metrics["agentic_kv/admission/bypass_protected"] != 1 {
		t.Errorf("report %+v", r.report)
	}
}

// Acceptance 17: the names of a step's and an Eval's metrics (reference pipeline 8.6).
func TestAdmissionMetricNames(t *testing.T) {
	t.Parallel()
	always := []string{
		"session/lifecycle_enabled", "session/close", "session/close_failure",
		"admission/waiting", "budget/ceiling", "budget/reserved", "budget/available_tokens",
		"budget/lease_count", "budget/kv_token_usage_mean", "budget/kv_token_usage_max", "budget/epoch", "budget/degraded", "budget/reserved_utilization",
	}
	for _, scope := range []string{scopeTrain, scopeAll} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			f := startKV(t, 2)
			f.goOn()
			f.open(testConfig(t), func(c *Config) {
				c.AgenticProgramAdmission, c.AgenticSessionLifecycle, c.AgenticAdmissionScope = true, true, scope
			})
			submit(t, f.Engine, task(agentTask{}))
			step := runStep(t, f.Engine, 0, nil).report
			if err := f.StartEval(0, []EvalDataset{{Name: "d", Tasks: []Task{task(agentTask{})}}}); err != nil {
				t.Fatal(err)
			}
			eval := finishStep(t, f.Engine, nil).report
			for _, name := range always {
				if _, ok := step.Metrics["agentic_kv/"+name]; !ok {
					t.Errorf("agentic_kv/%s is missing", name)
				}
				if _, ok := eval.Metrics["eval/agentic_kv/"+name]; !ok {
					t.Errorf("eval/agentic_kv/%s is missing", name)
				}
			}
			for _, name := range []string{"admit", "defer_rate", "degraded_rate"} {
				if _, ok := step.Metrics["agentic_kv/admission/"+name]; !ok {
					t.Errorf("%s is missing: %v", name, step.Metrics)
				}
				if _, ok := eval.Metrics["eval/agentic_kv/admission/"+name]; ok != (scope == scopeAll) {
					t.Errorf("eval %s: %v under scope %s", name, ok, scope)
				}
			}
		})
	}
}

// Without the options nothing is asked and there are no such metrics.
func TestNoKVSchedulingWithoutItsOptions(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	submit(t, e, task(agentTask{}))
	for name := range runStep(t, e, 0, nil).report.Metrics {
		if strings.Contains(name, "agentic_kv") {
			t.Errorf("metric %s", name)
		}
	}
	if st := readStats(t, e); st.Admission != nil {
		t.Errorf("admission %+v", st.Admission)
	}
}
