package sglangtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRecords(t *testing.T) {
	s := start(t, Config{Records: 3})
	for i := range 5 {
		body := fmt.Sprintf(`{"text":"q%d","rid":"r%d","session_id":"s","x_future":%d}`, i, i, i)
		if status, raw := call(t, "POST", s.URL()+"/generate", body); status != 200 {
			t.Fatal(status, raw)
		}
	}
	call(t, "POST", s.URL()+"/generate", `{`)
	got := s.Requests()
	if len(got) != 3 || got[0].Request.RID != "r3" || got[0].Request.SessionID != "s" || got[1].Request.Text != "q4" ||
		string(got[1].Body) != `{"text":"q4","rid":"r4","session_id":"s","x_future":4}` || got[2].Request != nil || string(got[2].Body) != "{" {
		t.Errorf("got %+v", got)
	}
	none := start(t, Config{Records: -1})
	generate(t, none, fields{"text": "q"})
	if len(none.Requests()) != 0 {
		t.Error("records are kept")
	}
}

func TestAPIKey(t *testing.T) {
	s := start(t, Config{APIKey: "secret"})
	if status, _ := call(t, "GET", s.URL()+"/model_info", nil); status != 401 {
		t.Errorf("without: %d", status)
	}
	if status, _ := call(t, "GET", s.URL()+"/health", nil); status != 200 {
		t.Errorf("health: %d", status)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL()+"/model_info", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("with: %d", resp.StatusCode)
	}
}

func TestInformation(t *testing.T) {
	s := start(t, Config{ModelPath: "/models/x", ServedName: "x", WeightVersion: "3"})
	for _, c := range []struct {
		method, path string
		body         any
		status       int
		want         []string
	}{
		{"GET", "/health", nil, 200, nil},
		{"GET", "/health_generate", nil, 200, nil},
		{"GET", "/model_info", nil, 200, []string{`"model_path":"/models/x"`, `"served_model_name":"x"`, `"weight_version":"3"`, `"is_generation":true`}},
		{"GET", "/get_model_info", nil, 200, []string{`"weight_version":"3"`}},
		{"GET", "/server_info", nil, 200, []string{`"context_length":32768`, `"internal_states"`, `"version":"sglangtest"`}},
		{"GET", "/get_server_info", nil, 200, []string{`"context_length":32768`}},
		{"GET", "/v1/models", nil, 200, []string{`"id":"x"`}},
		{"GET", "/weight_version", nil, 404, []string{"/model_info"}},
		{"GET", "/get_weight_version", nil, 404, []string{"/model_info"}},
		{"GET", "/v1/loads?include=core", nil, 200, []string{`"num_running_reqs":0`, `"num_waiting_reqs":0`, `"dp_rank":0`}},
		{"GET", "/get_load", nil, 200, []string{`"num_reqs":0`}},
		{"GET", "/nothing", nil, 404, []string{"Not Found"}},
		{"GET", "/generate", nil, 405, []string{"Method Not Allowed"}},
		{"DELETE", "/model_info", nil, 405, nil},
		{"POST", "/init_weights_update_group", fields{"group_name": "g"}, 200, []string{`"success":true`}},
		{"POST", "/abort_request", "x", 400, []string{"does not parse"}},
		{"POST", "/pause_generation", "", 400, []string{"does not parse"}},
		{"POST", "/pause_generation", fields{"mode": "softly"}, 400, []string{"abort, retract or in_place"}},
		{"POST", "/continue_generation", "", 400, nil},
		{"POST", "/continue_generation", fields{}, 200, []string{`"status":"ok"`}},
		{"POST", "/update_weight_version", fields{}, 400, []string{"new_version"}},
		{"POST", "/open_session", fields{}, 400, []string{"capacity_of_str_len"}},
		{"POST", "/open_session", fields{"capacity_of_str_len": 10, "session_id": "s1"}, 200, []string{`"s1"`}},
		{"POST", "/open_session", fields{"capacity_of_str_len": 10, "session_id": "s1"}, 400, []string{"exists"}},
		{"POST", "/open_session", fields{"capacity_of_str_len": 10}, 200, []string{`"session`}},
		{"POST", "/close_session", fields{"session_id": "s1"}, 200, nil},
		{"POST", "/close_session", fields{"session_id": "other"}, 200, nil},
		{"POST", "/close_session", fields{}, 400, []string{"session_id"}},
	} {
		status, raw := call(t, c.method, s.URL()+c.path, c.body)
		if status != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, status, raw, c.status)
		}
		for _, want := range c.want {
			if !strings.Contains(raw, want) {
				t.Errorf("%s %s: %s has no %s", c.method, c.path, raw, want)
			}
		}
	}
	if got := s.ClosedSessions(); !slices.Equal(got, []string{"s1", "other"}) {
		t.Errorf("closed sessions are %v", got)
	}
}

func TestWorkers(t *testing.T) {
	type list struct {
		Workers []worker `json:"workers"`
		Total   int      `json:"total"`
	}
	read := func(url string) list {
		t.Helper()
		_, raw := call(t, "GET", url+"/workers", nil)
		var l list
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		return l
	}
	s := start(t, Config{})
	if l := read(s.URL()); l.Total != 1 || l.Workers[0].URL != s.URL() || !l.Workers[0].IsHealthy {
		t.Errorf("alone: %+v", l)
	}
	s = start(t, Config{WorkerURLs: []string{"http://127.0.0.1:1/", "http://127.0.0.1:2"}})
	if l := read(s.URL()); l.Total != 2 || l.Workers[0].URL != "http://127.0.0.1:1" || l.Workers[1].URL != "http://127.0.0.1:2" {
		t.Errorf("configured: %+v", l)
	}
	status, raw := call(t, "POST", s.URL()+"/workers", fields{"url": "http://127.0.0.1:3"})
	var added struct {
		ID string `json:"worker_id"`
	}
	if err := json.Unmarshal([]byte(raw), &added); err != nil || status != 202 || added.ID == "" {
		t.Fatalf("%d %s", status, raw)
	}
	if status, raw = call(t, "GET", s.URL()+"/workers/"+added.ID, nil); status != 200 || !strings.Contains(raw, ":3") {
		t.Errorf("%d %s", status, raw)
	}
	if status, _ = call(t, "DELETE", s.URL()+"/workers/"+added.ID, nil); status != 202 {
		t.Errorf("delete: %d", status)
	}
	if status, _ = call(t, "GET", s.URL()+"/workers/"+added.ID, nil); status != 404 {
		t.Errorf("get after delete: %d", status)
	}
	if l := read(s.URL()); l.Total != 2 {
		t.Errorf("after delete: %+v", l)
	}
	s = start(t, Config{NoWorkers: true})
	if status, _ := call(t, "GET", s.URL()+"/workers", nil); status != 404 {
		t.Errorf("without the route: %d", status)
	}
}

func TestConfigErrors(t *testing.T) {
	for name, cfg := range map[string]Config{
		"context":     {ContextLen: 1},
		"delay":       {TokenDelay: -time.Second},
		"EOS":         {EOS: []int32{9999}},
		"address":     {Addr: "127.0.0.1:none"},
		"policy stop": {Policy: policyOf(t, `{"default":[{"text":"a","stop":"<none>"}]}`)},
		"policy":      {Policy: &Policy{}},
	} {
		if s, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
			s.Close()
		}
	}
}

func TestCloseEndsRequests(t *testing.T) {
	s := start(t, Config{TokenDelay: time.Hour})
	ended := make(chan error, 3)
	for _, body := range []fields{{"text": "a"}, {"text": "b", "stream": true}} {
		go func() {
			_, _, err := send(context.Background(), "POST", s.URL()+"/generate", body)
			ended <- err
		}()
	}
	await(t, s, "two in flight", func() bool { return s.InFlight() == 2 })
	call(t, "POST", s.URL()+"/pause_generation", fields{"mode": "in_place"})
	go func() {
		_, _, err := send(context.Background(), "POST", s.URL()+"/generate", fields{"text": "c"})
		ended <- err
	}()
	await(t, s, "one blocked", func() bool { return s.Blocked() == 1 })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := receive(t, ended); err == nil {
			t.Error("a request got an answer")
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestDisconnectEndsRequest(t *testing.T) {
	s := start(t, Config{TokenDelay: time.Hour})
	for _, body := range []fields{{"text": "a"}, {"text": "a", "stream": true}} {
		before := s.Disconnects()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, _, err := send(ctx, "POST", s.URL()+"/generate", body)
			ended <- err
		}()
		await(t, s, "the request", func() bool { return s.InFlight() == 1 })
		cancel()
		if err := receive(t, ended); err == nil {
			t.Error("no error at the client")
		}
		await(t, s, "its end", func() bool { return s.InFlight() == 0 && s.Disconnects() == before+1 })
	}
}

func FuzzParseGenerate(f *testing.F) {
	for _, seed := range []string{
		`{"input_ids":[1,2,3],"sampling_params":{"temperature":0.5,"stop":["a"],"stop_token_ids":[1,null]},"rid":"x"}`,
		`{"text":"hi","stream":true,"sampling_params":null}`, `{"input_ids":[[1]]}`, `{"input_ids": [ 1 , 2 ] }`, `{"input_ids":[1e3]}`,
		`{"text":["a"]}`, `{"text":5}`, `{"rid":["a"],"text":""}`, `{}`, `[]`, `null`, `{"text":"\ud800"}`, "{\"text\":\"\xff\"}",
		`{"text":"a","sampling_params":{"n":2}}`, `{"text":"a","sampling_params":{"top_k":"all","max_new_tokens":null}}`,
		`{"text":"a","image_data":[{"url":"x"}],"sampling_params":[]}`, `{"text":"a","sampling_params":{"stop":5}}`,
		`{"text":"a","sampling_params":{"custom_params":{"input_ids":[1]}}}`, `{"input_ids":[1],"input_ids":[2]}`, `{"rid":"input_ids","input_ids":[1]}`,
		`{"input_ids":[-7.125]}`, `{"custom_params":{"input_ids":[3]},"input_ids":[4]}`, `{"input_ids":[01]}`, `{"input_ids":[1]`,
		`{"input_ids":[2147483647,2147483648]}`, `{"input_ids":"x"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := parseGenerate(body)
		var plain generateBody
		if json.Unmarshal(body, &plain) == nil && err == nil && !slices.Equal(plain.InputIDs.ids, req.InputIDs) {
			t.Fatalf("ids %v, want %v: %s", req.InputIDs, plain.InputIDs.ids, body)
		}
		if err == nil {
			if req.InputIDs == nil && req.Text == "" && !strings.Contains(string(body), `"text"`) {
				t.Fatalf("no prompt, no error: %s", body)
			}
			for _, id := range req.InputIDs {
				if id < 0 {
					t.Fatalf("negative id from %s", body)
				}
			}
			return
		}
		var r *refusal
		if !asRefusal(err, &r) || (r.status != 400 && r.status != 500) || r.message == "" {
			t.Fatalf("error %#v from %s", err, body)
		}
	})
}
