package relax

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/observe"
)

// totals count over all steps that are over. The loop owns them.
type totals struct {
	steps, evals                   int64
	groups, sessions, tokens       flow
	droppedGroups, droppedSessions map[string]int64 // by reason
	droppedTokens                  map[string]int64
	rollout, eval                  map[string]float64 // metrics of the last step of each kind
}

type flow struct{ started, delivered int64 }

func (f *flow) add(b Balance) {
	f.started += b.Started
	f.delivered += b.Delivered
}

// Reasons of filters are the host's words: what comes behind so many different ones is counted as
// otherReason.
const (
	mostReasons = 200
	otherReason = "other"
)

// reason is the name under which a reason is counted.
func (t *totals) reason(name string) string {
	if _, known := t.droppedGroups[name]; known || len(t.droppedGroups) < mostReasons {
		return name
	}
	return otherReason
}

// add counts a step that is over.
func (t *totals) add(r *StepReport) {
	if t.droppedGroups == nil {
		t.droppedGroups, t.droppedSessions, t.droppedTokens = map[string]int64{}, map[string]int64{}, map[string]int64{}
	}
	if r.Eval {
		t.evals++
		t.eval = r.Metrics
	} else {
		t.steps++
		t.rollout = r.Metrics
	}
	t.groups.add(r.Accounting.Groups)
	t.sessions.add(r.Accounting.Sessions)
	t.tokens.add(r.Accounting.Tokens)
	for _, d := range r.Drops {
		reason := t.reason(d.Reason)
		t.droppedGroups[reason] += d.Groups
		t.droppedSessions[reason] += d.Sessions
		t.droppedTokens[reason] += d.Tokens
	}
}

// snapshot can be read outside the loop. Metrics of a step do not change any more.
func (t *totals) snapshot() totals {
	out := *t
	out.droppedGroups, out.droppedSessions = maps.Clone(t.droppedGroups), maps.Clone(t.droppedSessions)
	out.droppedTokens = maps.Clone(t.droppedTokens)
	return out
}

// A metricsPage serves GET /metrics (metrics_port). It knows no session ids, and nobody can change
// anything by it.
type metricsPage struct {
	listener net.Listener
	server   *http.Server
}

func (c *core) openMetrics() error {
	if c.cfg.MetricsPort == nil {
		return nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(c.cfg.APIHost, strconv.Itoa(*c.cfg.MetricsPort)))
	if err != nil {
		return &OptionError{Option: "metrics_port", Problem: "the metrics page cannot listen", Err: err}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", c.serveMetrics)
	p := &metricsPage{listener: listener, server: &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(warnWriter{c.warn}, "metrics page: ", 0),
	}}
	c.metricsPage = p
	c.goroutines.Go("metrics", func() {
		if err := p.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			c.warn("option metrics_port: the metrics page ended: " + err.Error())
		}
	})
	return nil
}

// warnWriter makes warnings of what a log package writes.
type warnWriter struct{ warn func(string) }

func (w warnWriter) Write(text []byte) (int, error) {
	w.warn(string(text))
	return len(text), nil
}

// address is the page's URL, "" of a page that is not served.
func (p *metricsPage) address() string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("http://%s/metrics", p.listener.Addr())
}

// close ends the page; answers under way are finished until ctx ends.
func (p *metricsPage) close(ctx context.Context) error {
	if p == nil {
		return nil
	}
	if err := p.server.Shutdown(ctx); err != nil {
		return errors.Join(err, p.server.Close())
	}
	return nil
}

func (c *core) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	page, err := c.metricsText()
	if err != nil {
		http.Error(w, "the engine is closed", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", observe.PrometheusType)
	_, _ = w.Write(page) // who left does not need it
}

// metricsText is the page as it is now.
func (c *core) metricsText() ([]byte, error) {
	s, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	var t totals
	err = c.do(func() error {
		t = c.totals.snapshot()
		return nil
	})
	if err != nil {
		return nil, err
	}
	var p observe.Page
	t.write(&p)
	s.write(&p)
	return p.Text(), nil
}

func (t *totals) write(p *observe.Page) {
	p.Family("relax_step_metric", observe.Gauge, "Metrics of the last rollout and the last eval, under the names of their step reports.")
	for _, metrics := range []map[string]float64{t.rollout, t.eval} {
		for _, name := range slices.Sorted(maps.Keys(metrics)) {
			p.Sample(metrics[name], "name", name)
		}
	}
	p.Family("relax_steps_total", observe.Counter, "Steps that are over.")
	p.Sample(float64(t.steps), "kind", "rollout")
	p.Sample(float64(t.evals), "kind", "eval")
	for _, o := range []struct {
		what    string
		flow    flow
		dropped map[string]int64
	}{{"groups", t.groups, t.droppedGroups}, {"sessions", t.sessions, t.droppedSessions}, {"tokens", t.tokens, t.droppedTokens}} {
		p.Single("relax_"+o.what+"_started_total", observe.Counter, "Started (tokens: sampled) in steps that are over.", float64(o.flow.started))
		p.Single("relax_"+o.what+"_delivered_total", observe.Counter, "Delivered to the trainer.", float64(o.flow.delivered))
		byLabel(p, "relax_"+o.what+"_dropped_total", observe.Counter, "Dropped, by reason.", "reason", o.dropped)
	}
}

// byLabel is a family with one sample for each value of a label. A label's counts that are zero are
// left out.
func byLabel[N int | int64](p *observe.Page, family, kind, help, label string, values map[string]N) {
	p.Family(family, kind, help)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if values[key] != 0 || kind == observe.Gauge {
			p.Sample(float64(values[key]), label, key)
		}
	}
}

// write adds the live numbers.
func (s *Stats) write(p *observe.Page) {
	rollout := int64(-1)
	if s.Rollout != nil {
		rollout = *s.Rollout
	}
	p.Single("relax_open_rollout", observe.Gauge, "The open step, -1 between steps.", float64(rollout))
	p.Single("relax_weight_version", observe.Gauge, "The weight version that was set last.", float64(s.WeightVersion))
	p.Single("relax_debt_groups", observe.Gauge, "Groups that the open step owes.", float64(s.Debt))
	p.Single("relax_queued_tasks", observe.Gauge, "Tasks that were submitted and not started.", float64(s.QueuedTasks))
	p.Single("relax_live_sessions", observe.Gauge, "Sessions whose requests are answered.", float64(s.Sessions))
	p.Single("relax_paused", observe.Gauge, "1 while the engine is paused.", oneIf(s.Paused))
	g := s.Groups
	byLabel(p, "relax_groups", observe.Gauge, "Groups by phase.", "phase", map[string]int{
		"preparing": g.Preparing, "ready": g.Ready, "running": g.Running, "scoring": g.Scoring, "finalized": g.Finalized,
		"resident": g.Resident, "dying": g.Dying, "interrupted": g.Interrupted, "eval_preparing": g.EvalPreparing,
		"eval_running": g.EvalRunning, "eval_scoring": g.EvalScoring, "eval_resident": g.EvalResident,
	})
	r := s.Requests
	byLabel(p, "relax_requests", observe.Gauge, "Model requests by what they wait for; live is all of them.", "waiting_for", map[string]int{
		"live": r.Live, "lease": r.Lease, "gate": r.Gate, "admission": r.Admission, "permit": r.Permit, "backend": r.Backend,
		"client_grace": r.ClientGrace,
	})
	counts, oldest := map[string]int{}, map[string]float64{}
	for _, w := range s.Waits {
		counts[w.For] += w.Count
		oldest[w.For] = max(oldest[w.For], w.OldestSeconds)
	}
	byLabel(p, "relax_waits", observe.Gauge, "Everything that is waited for.", "for", counts)
	p.Family("relax_oldest_wait_seconds", observe.Gauge, "How long the oldest of them has waited.")
	for _, what := range slices.Sorted(maps.Keys(oldest)) {
		p.Sample(oldest[what], "for", what)
	}
	byLabel(p, "relax_divergences_total", observe.Counter, "Requests that did not go on from their session's newest turn, by reason.", "reason", s.Divergences)
	s.writeAgents(p)
	s.writeWorkers(p)
}

func (s *Stats) writeAgents(p *observe.Page) {
	a := s.Agents
	byLabel(p, "relax_agents", observe.Gauge, "Agent processes.", "state", map[string]int{"live": a.Live, "starting": a.Starting, "waiting": a.Waiting})
	p.Single("relax_agents_started_total", observe.Counter, "Agent processes started.", float64(a.Started))
	p.Single("relax_agent_starts_failed_total", observe.Counter, "Agent processes that did not start.", float64(a.StartFailed))
	p.Single("relax_agent_processes_left_behind_total", observe.Counter, "Processes that agents left running.", float64(a.LeftBehind))
}

func (s *Stats) writeWorkers(p *observe.Page) {
	if s.Backend.Fleet == nil {
		return
	}
	fleet := s.Backend.Fleet
	for _, o := range []struct {
		name, kind, help string
		value            func(i int) float64
	}{
		{"relax_worker_up", observe.Gauge, "1 of a worker that takes requests.", func(i int) float64 { return oneIf(fleet.Workers[i].Up && !fleet.Workers[i].Ailing) }},
		{"relax_worker_requests_in_flight", observe.Gauge, "Attempts at the worker.", func(i int) float64 { return float64(fleet.Workers[i].InFlight) }},
		{"relax_worker_requests_total", observe.Counter, "Attempts that were sent.", func(i int) float64 { return float64(fleet.Workers[i].Requests) }},
		{"relax_worker_failed_total", observe.Counter, "Attempts without a usable reply.", func(i int) float64 { return float64(fleet.Workers[i].Failed) }},
		{"relax_worker_aborts_total", observe.Counter, "Abort calls.", func(i int) float64 { return float64(fleet.Workers[i].Aborts) }},
	} {
		p.Family(o.name, o.kind, o.help)
		for i := range fleet.Workers {
			p.Sample(o.value(i), "worker", publicURL(fleet.Workers[i].URL))
		}
	}
}

// publicURL is an address without the password that may be in it.
func publicURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "unreadable"
	}
	return u.Scheme + "://" + u.Host
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
