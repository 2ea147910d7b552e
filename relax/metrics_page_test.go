package relax

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func servedConfig(t *testing.T) Config {
	cfg := testConfig(t)
	port := 0
	cfg.MetricsPort = &port
	return cfg
}

// scrape reads the page and checks the whole of it.
func scrape(t *testing.T, e *Engine) map[string]float64 {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(readStats(t, e).MetricsURL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Fatalf("status %d, %v, %v", resp.StatusCode, resp.Header, err)
	}
	samples, err := parsePrometheus(string(page))
	if err != nil {
		t.Fatalf("%v in\n%s", err, page)
	}
	return samples
}

var (
	familyLine = regexp.MustCompile(`^# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)$`)
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)((?:\{[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*")*\})?) (\S+)$`)
)

// parsePrometheus is strict: each family once, with HELP and TYPE before its samples, which stay
// together; no sample twice; counters end in _total and are not negative.
func parsePrometheus(page string) (map[string]float64, error) {
	out, types, family, helped := map[string]float64{}, map[string]string{}, "", ""
	if !strings.HasSuffix(page, "\n") {
		return nil, fmt.Errorf("the last line has no end")
	}
	for _, line := range strings.Split(strings.TrimSuffix(page, "\n"), "\n") {
		if m := familyLine.FindStringSubmatch(line); m != nil {
			switch {
			case m[1] == "HELP":
				helped = m[2]
			case types[m[2]] != "" || helped != m[2] || m[3] != "gauge" && m[3] != "counter":
				return nil, fmt.Errorf("family %q", line)
			case (m[3] == "counter") != strings.HasSuffix(m[2], "_total"):
				return nil, fmt.Errorf("a counter and its name: %q", line)
			default:
				family, types[m[2]] = m[2], m[3]
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil || m[1] != family {
			return nil, fmt.Errorf("sample %q of family %q", line, family)
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if _, twice := out[m[1]+m[2]]; err != nil || twice || types[family] == "counter" && !(v >= 0) {
			return nil, fmt.Errorf("sample %q: %v", line, err)
		}
		out[m[1]+m[2]] = v
	}
	return out, nil
}

func TestMetricsPage(t *testing.T) {
	t.Parallel()
	cfg := servedConfig(t)
	cfg.NSamplesPerPrompt = 2
	e := openEngine(t, cfg)
	before := scrape(t, e)
	if before["relax_open_rollout"] != -1 || before[`relax_steps_total{kind="rollout"}`] != 0 {
		t.Errorf("before the first step: %v", before)
	}
	submit(t, e, task(agentTask{Mode: "exit"}), task(agentTask{Turns: 2}), task(agentTask{Mode: "title", Turns: 2}))
	r := runStep(t, e, 3, nil)
	got := scrape(t, e)
	tokens := r.report.Accounting.Tokens
	for name, want := range map[string]float64{
		`relax_steps_total{kind="rollout"}`: 1, `relax_steps_total{kind="eval"}`: 0,
		"relax_sessions_started_total": 4, "relax_sessions_delivered_total": 2,
		`relax_sessions_dropped_total{reason="agent_exit"}`: 2, `relax_groups_dropped_total{reason="agent_exit"}`: 1,
		"relax_tokens_delivered_total": float64(tokens.Delivered), "relax_tokens_started_total": float64(tokens.Started),
		`relax_step_metric{name="rollout/step"}`: 3, `relax_step_metric{name="rollout/response_len/mean"}`: r.report.Metrics["rollout/response_len/mean"],
		`relax_groups{phase="running"}`: 0, `relax_requests{waiting_for="lease"}`: 0, "relax_queued_tasks": 1, `relax_agents{state="live"}`: 0,
		"relax_agents_started_total": 4,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v (there: %v), want %v", name, v, ok, want)
		}
	}
	workers := 0
	for name := range got {
		if strings.HasPrefix(name, "relax_worker_requests_total") {
			workers++
		}
		if strings.Contains(name, "session-") {
			t.Errorf("%s names a session, which is its credential", name)
		}
	}
	if workers == 0 {
		t.Error("no worker is there")
	}
	for name, metric := range r.report.Metrics {
		if got[fmt.Sprintf("relax_step_metric{name=%q}", name)] != metric {
			t.Errorf("%s is not on the page", name)
		}
	}
}

// Hooks choose reasons; the page does not grow with them for ever.
func TestReasonsAreBounded(t *testing.T) {
	t.Parallel()
	var sums totals
	for i := range 3 * mostReasons {
		sums.add(&StepReport{Drops: []Drop{{Reason: fmt.Sprint("filtered:", i), Groups: 1, Tokens: 2}, {Reason: "filtered:0", Sessions: 1}}})
	}
	if n := len(sums.droppedGroups); n != mostReasons+1 || len(sums.droppedTokens) != n || len(sums.droppedSessions) != n {
		t.Errorf("%d reasons", n)
	}
	if other := sums.droppedTokens[otherReason]; other != 2*2*mostReasons || sums.droppedSessions["filtered:0"] != 3*mostReasons {
		t.Errorf("%d tokens for other reasons, %d sessions for the first", other, sums.droppedSessions["filtered:0"])
	}
}

func TestMetricsPageShowsWhatWaits(t *testing.T) {
	t.Parallel()
	cfg := servedConfig(t)
	e := openEngine(t, cfg)
	submit(t, e, task(agentTask{Mode: "silent"}))
	if err := e.StartRollout(0); err != nil {
		t.Fatal(err)
	}
	got := scrape(t, e)
	if got["relax_open_rollout"] != 0 || got[`relax_groups{phase="preparing"}`] != 1 || got[`relax_waits{for="first_request"}`] != 1 {
		t.Errorf("page %v", got)
	}
}

func TestMetricsPageServesNothingElseAndEnds(t *testing.T) {
	t.Parallel()
	e, err := Open(servedConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	url := readStats(t, e).MetricsURL
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]int{"/": 404, "/metrics/x": 404, "/metrics": 405} {
		req, _ := http.NewRequest(http.MethodPost, strings.TrimSuffix(url, "/metrics")+path, strings.NewReader("x"))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("POST %s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if resp, err := client.Get(url); err == nil {
		resp.Body.Close()
		t.Error("the page is served after Close")
	}
	off := openEngine(t, testConfig(t))
	if url := readStats(t, off).MetricsURL; url != "" {
		t.Errorf("a page at %s that nobody asked for", url)
	}
}

func TestMetricsPortIsChecked(t *testing.T) {
	for _, port := range []int{-1, 65536} {
		cfg := testConfig(t)
		cfg.MetricsPort = &port
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "option metrics_port") {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

// A password in a worker's address stays off the page.
func TestWorkersWithoutTheirPasswords(t *testing.T) {
	for address, want := range map[string]string{
		"http://user:secret@10.0.0.1:30000": "http://10.0.0.1:30000", "http://10.0.0.1:30000": "http://10.0.0.1:30000", "http://a\x7f": "unreadable",
	} {
		if got := publicURL(address); got != want {
			t.Errorf("%q became %q, want %q", address, got, want)
		}
	}
}
