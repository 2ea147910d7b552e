package sglangtest

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestFreeze(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"abcdefgh"}]}`), TokenDelay: time.Hour})
	done := background(t, s, fields{"text": "q", "rid": "r"})
	await(t, s, "a running request", func() bool { return isRunning(s, "r") })
	s.Freeze()
	s.Freeze() // changes nothing
	s.SetTokenDelay(0)
	late := background(t, s, fields{"text": "q", "rid": "late"})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if status, body, err := send(ctx, "GET", s.URL()+"/v1/loads", nil); err == nil {
		t.Errorf("a frozen server answered %d %s", status, body)
	}
	if n := s.InFlight(); n != 1 {
		t.Errorf("%d in flight, want the one from before", n)
	}
	s.Thaw()
	s.Thaw()
	for _, c := range []<-chan *answer{done, late} {
		if a := receive(t, c); a.Meta.Completion != 9 {
			t.Errorf("after the thaw: %s", a.Raw)
		}
	}
}

func TestCloseWhileFrozen(t *testing.T) {
	s := start(t, Config{TokenDelay: time.Hour})
	gone := make(chan error, 1)
	go func() { _, err := tryGenerate(t, s.URL(), fields{"text": "q", "rid": "r"}); gone <- err }()
	await(t, s, "a running request", func() bool { return isRunning(s, "r") })
	s.Freeze()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := receive(t, gone); err == nil {
		t.Error("a closed server answered")
	}
}

func TestLostAndLateAborts(t *testing.T) {
	for name, f := range map[string]Fault{"lost": {LoseAborts: 2}, "late": {AbortLag: time.Millisecond}, "both": {LoseAborts: 1, AbortLag: time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Config{TokenDelay: time.Hour})
			s.SetFault(func(*GenerateRequest) *Fault { return &f })
			done := background(t, s, fields{"text": "q", "rid": "r"})
			await(t, s, "a running request", func() bool { return isRunning(s, "r") })
			for range f.LoseAborts + 1 {
				select {
				case a := <-done:
					t.Fatalf("ended too early: %s", a.Raw)
				default:
				}
				call(t, "POST", s.URL()+"/abort_request", fields{"rid": "r"})
			}
			if a := receive(t, done); a.finish(t)["type"] != "abort" {
				t.Errorf("got %s", a.Raw)
			}
			hits := 0
			for _, a := range s.Aborts() {
				hits += a.Hit
			}
			if hits != 1 || len(s.Aborts()) != f.LoseAborts+1 {
				t.Errorf("aborts %+v", s.Aborts())
			}
		})
	}
	raw, err := json.Marshal(Fault{LoseAborts: 3, AbortLag: 1500 * time.Microsecond})
	var back Fault
	if err != nil || json.Unmarshal(raw, &back) != nil || back.LoseAborts != 3 || back.AbortLag != 1500*time.Microsecond {
		t.Errorf("%s %v came back as %+v", raw, err, back)
	}
}

// A foreign abort and the pauses as calls of Go.
func TestAbortAllAndPause(t *testing.T) {
	s := start(t, Config{TokenDelay: time.Hour})
	done := background(t, s, fields{"text": "q", "rid": "a"})
	await(t, s, "a running request", func() bool { return isRunning(s, "a") })
	s.AbortAll()
	if a := receive(t, done); a.finish(t)["type"] != "abort" {
		t.Errorf("got %s", a.Raw)
	}
	if err := s.Pause("sleep"); err == nil || !strings.Contains(err.Error(), "in_place") {
		t.Errorf("pause in an unknown mode: %v", err)
	}
	if err := s.Pause("abort"); err != nil {
		t.Error(err)
	}
	s.SetTokenDelay(0)
	done = background(t, s, fields{"text": "q", "rid": "b"})
	await(t, s, "a blocked request", func() bool { return s.Blocked() == 1 })
	s.Continue()
	if a := receive(t, done); a.Meta.Completion == 0 {
		t.Errorf("got %s", a.Raw)
	}
}

func TestRoutedExperts(t *testing.T) {
	shape := Experts{Layers: 3, TopK: 2, Count: 8}
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"abc"}]}`), Experts: shape})
	a := generate(t, s, fields{"text": "hello", "rid": "r", "return_routed_experts": true, "routed_experts_start_len": 2})
	var meta struct {
		Meta struct {
			Experts []byte `json:"routed_experts"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal([]byte(a.Raw), &meta); err != nil {
		t.Fatal(err)
	}
	ids := append(tokens(t, s.Model(), "hello"), a.OutputIDs...)
	if want := (len(ids) - 1 - 2) * 3 * 2 * 4; len(meta.Meta.Experts) != want {
		t.Fatalf("%d bytes, want %d", len(meta.Meta.Experts), want)
	}
	for i := range len(meta.Meta.Experts) / 4 {
		position, layer, slot := 2+i/6, i/2%3, i%2
		got := int32(binary.LittleEndian.Uint32(meta.Meta.Experts[4*i:]))
		if want := shape.Routed(position, layer, slot, ids[position]); got != want || got >= 8 {
			t.Fatalf("position %d layer %d slot %d: %d, want %d", position, layer, slot, got, want)
		}
	}
	if text := base64.StdEncoding.EncodeToString(meta.Meta.Experts); !strings.Contains(a.Raw, `"`+text+`"`) {
		t.Error("not plain base64")
	}
	if a := generate(t, s, fields{"text": "hello", "return_routed_experts": true, "routed_experts_start_len": 6}); a.Status != 400 {
		t.Errorf("start behind the prompt: %s", a.Raw)
	}
	if a := generate(t, start(t, Config{}), fields{"text": "hello", "return_routed_experts": true}); a.Status != 400 || !strings.Contains(a.Raw, "Experts") {
		t.Errorf("a model without experts: %s", a.Raw)
	}
}

func TestMetricsAndDrafts(t *testing.T) {
	s := start(t, Config{Policy: policyOf(t, `{"default":[{"text":"abcdefg"}]}`), Metrics: true, KVTokens: 1000, Drafts: 3})
	if status, text := call(t, "GET", s.URL()+"/metrics", nil); status != 200 || !strings.Contains(text, "sglang:max_total_num_tokens{model_name=\"sglangtest\"} 1000\n") {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := call(t, "GET", start(t, Config{}).URL()+"/metrics", nil); status != 404 {
		t.Errorf("metrics that are off: %d", status)
	}
	a := generate(t, s, fields{"text": "q"})
	if !strings.Contains(a.Raw, `"spec_verify_ct":2,"spec_num_proposed_drafts":6,"spec_num_correct_drafts":6`) {
		t.Errorf("got %s", a.Raw)
	}
}

func TestRouterKinds(t *testing.T) {
	policy := policyOf(t, `{"default":[{"text":"a"}]}`)
	a, b := start(t, Config{Policy: policy}), start(t, Config{Policy: policy})
	r, err := NewRouter(a.URL(), b.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	r.SetHealthy(a.URL(), false)
	for range 3 {
		if _, err := tryGenerate(t, r.URL(), fields{"text": "q"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(a.Requests()); n != 0 {
		t.Errorf("an unhealthy worker got %d requests", n)
	}
	if _, list := call(t, "GET", r.URL()+"/workers", nil); !strings.Contains(list, `"is_healthy":false`) {
		t.Errorf("list %s", list)
	}
	r.SetHealthy(a.URL(), true)
	r.SetType(a.URL(), "decode")
	r.SetType(b.URL(), "prefill")
	if _, err := tryGenerate(t, r.URL(), fields{"text": "q"}); err != nil || len(a.Requests()) != 1 {
		t.Errorf("%v; the decode worker has %d requests", err, len(a.Requests()))
	}
	if _, list := call(t, "GET", r.URL()+"/workers", nil); !strings.Contains(list, `"decode_count":1,"prefill_count":1,"regular_count":0`) {
		t.Errorf("list %s", list)
	}
	r.SetOld(true)
	if status, _ := call(t, "GET", r.URL()+"/workers", nil); status != 404 {
		t.Errorf("/workers of an old router: %d", status)
	}
	if _, list := call(t, "GET", r.URL()+"/list_workers", nil); list != `{"urls":["`+a.URL()+`","`+b.URL()+`"]}` {
		t.Errorf("list %s", list)
	}
}
