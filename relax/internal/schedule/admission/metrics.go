package admission

import "time"

// sums are what was counted since the last drain.
type sums struct {
	admit, bypass             int
	protected, degraded, aged int
	waited, cancelled         int
	grantedAfterWait          int
	waitTime                  time.Duration
	expired, overruns         int
	usage                     window
}

// count counts a decision. Eval that is out of scope does not take part.
func (s *sums) count(t *ticket) {
	switch t.decision.Reason {
	case ReasonScope:
		return
	case ReasonProtected:
		s.protected++
	case ReasonDegraded:
		s.degraded++
	case ReasonAged:
		s.aged++
	}
	if t.decision.Verdict == Admit {
		s.admit++
	} else {
		s.bypass++
	}
	if t.deferred {
		s.grantedAfterWait++
		s.waitTime += t.decision.Wait
	}
}

// A window is mean and peak of what was seen since it was opened.
type window struct {
	sum, peak float64
	n         int
}

func (w *window) add(x float64) {
	w.sum += x
	w.peak = max(w.peak, x)
	w.n++
}

// Metrics returns the counts since the last call under the reference's names (pipeline 8.6) and
// starts them anew; call it once per step, and for Eval after the last data set, with "eval/" put
// before each name. Differences: the ledger is one of each worker, so ceiling, reserved,
// available_tokens and lease_count are sums over the workers that give account, degraded is
// the number of those that do not, and bypasses are part of reserved and lease_count. A ticket
// that waited counts in wait and again where it ended. Rates without a denominator are left out.
func (m *Machine) Metrics() map[string]float64 {
	out := map[string]float64{}
	m.admissionMetrics(out)
	m.budgetMetrics(out)
	m.sums = sums{}
	for _, l := range m.order { // the window keeps the last value of each worker (case M12)
		if !l.gone && !l.reported.IsZero() {
			m.sums.usage.add(l.usage)
		}
	}
	return out
}

func (m *Machine) admissionMetrics(out map[string]float64) {
	const prefix = "agentic_kv/admission/"
	s := &m.sums
	for name, n := range map[string]int{
		"admit": s.admit, "bypass": s.bypass, "bypass_protected": s.protected, "bypass_degraded": s.degraded,
		"bypass_aged": s.aged, "wait": s.waited, "cancelled": s.cancelled,
	} {
		if n != 0 {
			out[prefix+name] = float64(n)
		}
	}
	out[prefix+"waiting"] = float64(m.waiting)
	if all := float64(s.admit + s.waited + s.bypass); all > 0 {
		out[prefix+"defer_rate"] = float64(s.waited) / all
		out[prefix+"degraded_rate"] = float64(s.degraded) / all
	}
	if s.grantedAfterWait > 0 {
		out[prefix+"wait_seconds_mean"] = s.waitTime.Seconds() / float64(s.grantedAfterWait)
	}
}

func (m *Machine) budgetMetrics(out map[string]float64) {
	const prefix = "agentic_kv/budget/"
	var ceiling, reserved, available, leases, degraded int
	for _, l := range m.order {
		switch {
		case l.gone:
		case l.degraded || l.reported.IsZero():
			degraded++
		default:
			ceiling += l.ceiling
			reserved += l.reserved
			available += max(0, l.ceiling-l.reserved-l.foreign)
			leases += l.leases
		}
	}
	for name, n := range map[string]int{
		"ceiling": ceiling, "reserved": reserved, "available_tokens": available, "lease_count": leases,
		"epoch": m.epoch, "degraded": degraded,
	} {
		out[prefix+name] = float64(n)
	}
	if w := m.sums.usage; w.n > 0 {
		out[prefix+"kv_token_usage_mean"], out[prefix+"kv_token_usage_max"] = w.sum/float64(w.n), w.peak
	}
	if ceiling > 0 {
		out[prefix+"reserved_utilization"] = float64(reserved) / float64(ceiling)
	}
	if m.sums.expired > 0 {
		out[prefix+"lease_expired"] = float64(m.sums.expired)
	}
}

// A Lifecycle turns the client's running totals of close_session into a step's metrics
// (agentic_session_lifecycle). It works with or without admission.
type Lifecycle struct{ closed, failed int64 }

// Metrics takes the totals since the start of Sessions whose close_session calls all succeeded,
// and of those where one did not, and returns what came to them since the last call (pipeline
// 8.6).
func (l *Lifecycle) Metrics(closed, failed int64) map[string]float64 {
	out := map[string]float64{
		"agentic_kv/session/lifecycle_enabled": 1,
		"agentic_kv/session/close":             float64(closed - l.closed),
		"agentic_kv/session/close_failure":     float64(failed - l.failed),
	}
	l.closed, l.failed = closed, failed
	return out
}
