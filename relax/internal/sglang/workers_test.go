package sglang

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// newRouter returns a fake router that lists the URLs; requests through it are answered by it.
func newRouter(t *testing.T, urls ...string) *fake {
	t.Helper()
	f := newFake(t, echo)
	f.extra["/workers"] = func(w http.ResponseWriter, _ *http.Request) {
		var list []string
		for _, u := range urls {
			list = append(list, fmt.Sprintf(`{"url":%q,"worker_type":"regular","is_healthy":true}`, u))
		}
		fmt.Fprintf(w, `{"workers":[%s],"total":%d}`, strings.Join(list, ","), len(urls))
	}
	return f
}

// deadURL is an address nobody listens at.
func deadURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestProbe(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		f := newFake(t, echo)
		info, err := open(t, f.URL+"/", nil).Probe(t.Context())
		want := Info{ModelPath: "/models/m", WeightVersion: "7", Workers: []string{f.URL}, Direct: true}
		if err != nil || !reflect.DeepEqual(info, want) {
			t.Fatalf("got %+v, %v", info, err)
		}
	})
	t.Run("old server", func(t *testing.T) {
		f := newFake(t, echo)
		f.extra["/model_info"] = http.NotFound
		f.extra["/get_model_info"] = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"model_path":"/old"}`) }
		if info, err := open(t, f.URL, nil).Probe(t.Context()); err != nil || info.ModelPath != "/old" {
			t.Fatalf("got %+v, %v", info, err)
		}
	})
	t.Run("router with three workers, one dead, one listed by rank", func(t *testing.T) {
		a, b, dead := newFake(t, echo), newFake(t, echo), deadURL(t)
		f := newRouter(t, a.URL+"@0", a.URL+"@1", b.URL, dead)
		info, err := open(t, f.URL, nil).Probe(t.Context())
		want := Info{ModelPath: "/models/m", WeightVersion: "7", Workers: []string{a.URL, b.URL}, Router: true, Direct: true, Unreachable: []string{dead}}
		if err != nil || !reflect.DeepEqual(info, want) {
			t.Fatalf("got %+v, %v", info, err)
		}
	})
	t.Run("router whose workers cannot be reached", func(t *testing.T) {
		dead := deadURL(t)
		f := newRouter(t, dead, "grpc://10.0.0.1:1")
		c := open(t, f.URL, nil)
		info, err := c.Probe(t.Context())
		want := Info{ModelPath: "/models/m", WeightVersion: "7", Workers: []string{f.URL}, Router: true, Unreachable: []string{dead, "grpc://10.0.0.1:1"}}
		if err != nil || !reflect.DeepEqual(info, want) {
			t.Fatalf("got %+v, %v", info, err)
		}
		if res, err := c.Generate(t.Context(), call("a")); err != nil || res.Worker != f.URL || f.keys[0] != "session-a" {
			t.Fatalf("through the router: %+v, %v, key %v", res, err, f.keys)
		}
	})
	t.Run("worker of another model", func(t *testing.T) {
		other := newFake(t, echo)
		other.extra["/model_info"] = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"model_path":"/other"}`) }
		f := newRouter(t, other.URL)
		if info, err := open(t, f.URL, nil).Probe(t.Context()); err != nil || info.Direct {
			t.Fatalf("got %+v, %v", info, err)
		}
	})
	t.Run("prefill and decode", func(t *testing.T) {
		a, f := newFake(t, echo), newFake(t, echo)
		f.extra["/workers"] = func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"workers":[{"url":%q,"worker_type":"prefill"}]}`, a.URL)
		}
		if info, err := open(t, f.URL, nil).Probe(t.Context()); err != nil || info.Direct || !info.Router || !info.Pairs {
			t.Fatalf("got %+v, %v", info, err)
		}
	})
}

func TestProbeErrors(t *testing.T) {
	answers := func(status int, text string) string {
		f := newFake(t, echo)
		f.extra["/model_info"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); fmt.Fprint(w, text) }
		return f.URL
	}
	silent := func() string {
		f := newFake(t, echo)
		f.extra["/model_info"] = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		return f.URL
	}
	for _, test := range []struct{ name, url, text string }{
		{"refused", deadURL(t), "connection refused"},
		{"silent", silent(), "no answer within"},
		{"other server", answers(200, "<html>hello"), "does not answer like SGLang"},
		{"JSON of another", answers(200, `{"a":1}`), "model_path"},
		{"not found", answers(404, "nope"), "does not answer like SGLang"},
		{"key", answers(401, "nope"), "sglang_api_key"},
		{"no workers", answers(503, `{"error":{"message":"no workers"}}`), "no workers"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := open(t, test.url, func(cfg *Config) {
				if test.name == "silent" {
					cfg.ProbeTimeout = 20 * time.Millisecond
				}
			})
			_, err := c.Probe(t.Context())
			var probe *ProbeError
			if !errors.As(err, &probe) || !strings.Contains(err.Error(), test.text) ||
				!strings.Contains(err.Error(), "sglang_url") || !strings.Contains(err.Error(), test.url) {
				t.Fatalf("got %v", err)
			}
		})
	}
	for _, url := range []string{"", "host:1", "ftp://h", "http://", "http://u:p@h", "http://h?x=1"} {
		if _, err := New(Config{URL: url, Goroutines: open(t, "http://h", nil).cfg.Goroutines}); err == nil || !strings.Contains(err.Error(), "sglang_url") {
			t.Errorf("New(%q): %v", url, err)
		}
	}
}

// A worker that dies costs no call that it had not accepted, and its sessions move.
func TestWorkerDies(t *testing.T) {
	a, b := newFake(t, echo), newFake(t, echo)
	dying := newFake(t, echo)
	f := newRouter(t, a.URL, b.URL, dying.URL)
	c := open(t, f.URL, func(cfg *Config) { cfg.RefreshEvery = time.Nanosecond })
	if info, err := c.Probe(t.Context()); err != nil || len(info.Workers) != 3 {
		t.Fatalf("probe: %+v, %v", info, err)
	}
	dying.Listener.Close()
	dying.CloseClientConnections()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if res, err := c.Generate(t.Context(), call(fmt.Sprint("r", i))); err != nil || res.Worker == dying.URL {
				t.Errorf("got %+v, %v", res, err)
			}
		}()
	}
	wg.Wait()
}

func TestAbortThroughRouterClosesTheConnection(t *testing.T) {
	f := newRouter(t)
	started := make(chan struct{})
	gone := make(chan struct{})
	f.generate = func(_ http.ResponseWriter, r *http.Request, _ generateBody) {
		close(started)
		<-r.Context().Done()
		close(gone)
	}
	c := open(t, f.URL, nil)
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() { <-started; c.Abort("a") }()
	res, err := c.Generate(t.Context(), call("a"))
	if err != nil || res.Finish.Type != FinishAbort {
		t.Fatalf("got %+v, %v", res, err)
	}
	<-gone
}

// A pause with many requests on several workers is one abort call for each request.
func TestAbortGoesToTheOneWorker(t *testing.T) {
	const workers, requests = 4, 100
	var fakes []*fake
	var urls []string
	for range workers {
		var f *fake
		f = newFake(t, func(w http.ResponseWriter, r *http.Request, body generateBody) {
			if f.untilAbort(r, body.RID) {
				answer(w, body, abortFinish, 1)
			}
		})
		fakes, urls = append(fakes, f), append(urls, f.URL)
	}
	c := open(t, newRouter(t, urls...).URL, func(cfg *Config) { cfg.AbortEvery = time.Minute })
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range requests {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if res, err := c.Generate(t.Context(), call(fmt.Sprint("r", i))); err != nil || res.Finish.Type != FinishAbort {
				t.Errorf("got %+v, %v", res, err)
			}
		}()
	}
	waiting := func() (n int) {
		for _, f := range fakes {
			f.mu.Lock()
			n += len(f.abortee)
			f.mu.Unlock()
		}
		return n
	}
	for waiting() < requests {
		time.Sleep(time.Millisecond)
	}
	for i := range requests {
		c.Abort(fmt.Sprint("r", i))
	}
	wg.Wait()
	total := 0
	for _, f := range fakes {
		rids, aborts := f.seen()
		slices.Sort(rids)
		slices.Sort(aborts)
		if !slices.Equal(rids, aborts) {
			t.Errorf("worker had %v, was told to abort %v", rids, aborts)
		}
		total += len(aborts)
	}
	if total != requests {
		t.Errorf("%d abort calls", total)
	}
}

func TestPick(t *testing.T) {
	var all []*worker
	for i := range 8 {
		w, err := newWorker(fmt.Sprintf("http://10.0.0.%d:30000", i), &Config{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	if pick(nil, "x", nil) != nil {
		t.Error("picked from nothing")
	}
	home := map[string]*worker{}
	count := map[*worker]int{}
	for i := range 4000 {
		key := fmt.Sprint("session", i)
		home[key] = pick(all, key, nil)
		count[home[key]]++
	}
	for _, w := range all {
		if count[w] < 350 || count[w] > 650 {
			t.Errorf("%s has %d of 4000 idle placements", w.url, count[w])
		}
	}
	// Without one worker only its own sessions move.
	rest := all[1:]
	for key, w := range home {
		if now := pick(rest, key, nil); w != all[0] && now != w {
			t.Fatalf("%s moved from %s to %s", key, w.url, now.url)
		}
	}
	// One hot key never takes more than 5/4 of the mean.
	for i := range 800 {
		w := pick(all, "hot", nil)
		w.load++
		if limit := (5*(i+1) + 31) / 32; w.load > limit {
			t.Fatalf("load %d with %d placed: bound %d", w.load, i+1, limit)
		}
	}
}

// A worker that is down, just failed or is not trusted by its router is taken only if there is
// nothing better.
func TestPickByClass(t *testing.T) {
	var all []*worker
	for i := range 4 {
		w, err := newWorker(fmt.Sprintf("http://10.0.0.%d:30000", i), &Config{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	all[0].down, all[1].ailing = true, true
	all[3].load = 100 // the bound is that of the class
	for i := range 100 {
		if w := pick(all, fmt.Sprint(i), all[3]); w != all[2] {
			t.Fatalf("picked %s", w.url)
		}
		if w := pick(all[:2], fmt.Sprint(i), nil); w != all[1] {
			t.Fatalf("without a fit one: picked %s", w.url)
		}
		if w := pick(all[:1], fmt.Sprint(i), all[0]); w != all[0] {
			t.Fatal("the only one was not picked")
		}
	}
}

func TestParseWorkers(t *testing.T) {
	a, b := member{url: "http://a:1"}, member{url: "http://b:1"}
	for _, test := range []struct {
		body string
		want workerList
		fail bool
	}{
		{body: `{"workers":[{"url":"http://a:1@0"},{"url":"http://a:1@12"},{"url":"http://b:1/"},{"url":""}]}`, want: workerList{router: true, members: []member{a, b}}},
		{body: `{"urls":["http://a:1"]}`, want: workerList{router: true, members: []member{a}}},
		{body: `{"workers":[]}`, want: workerList{router: true}},
		{body: `{"workers":[{"url":"http://a:1","worker_type":"decode"},{"url":"http://b:1","worker_type":"prefill"}]}`,
			want: workerList{router: true, pairs: true, members: []member{{url: "http://a:1", decode: true}, b}}},
		{body: `{"workers":[{"url":"http://a:1@0","is_healthy":false},{"url":"http://a:1@1","is_healthy":true},{"url":"http://b:1","is_healthy":false}]}`,
			want: workerList{router: true, members: []member{a, {url: "http://b:1", ailing: true}}}},
		{body: `{}`, fail: true},
		{body: `[]`, fail: true},
	} {
		got, err := parseWorkers("/workers", []byte(test.body))
		if (err != nil) != test.fail || (!test.fail && !reflect.DeepEqual(got, test.want)) {
			t.Errorf("%s: got %+v, %v", test.body, got, err)
		}
	}
}

func TestPlaces(t *testing.T) {
	fit, ailing := member{}, member{ailing: true}
	decode, ailingDecode := member{decode: true}, member{decode: true, ailing: true}
	for _, test := range []struct {
		name     string
		list     workerList
		callable []member
		want     int
	}{
		{"all", workerList{members: []member{fit, fit, fit}}, []member{fit, fit}, 2},
		{"one ailing", workerList{members: []member{fit, ailing}}, []member{fit, ailing}, 1},
		{"all ailing", workerList{members: []member{ailing, ailing, fit}}, []member{ailing, ailing}, 2},
		{"through the router", workerList{members: []member{fit, fit, ailing}}, nil, 2},
		{"through the router, all ailing", workerList{members: []member{ailing, ailing}}, nil, 2},
		{"pairs", workerList{pairs: true, members: []member{fit, decode, decode, ailingDecode}}, []member{fit, decode}, 2},
		{"pairs, all ailing", workerList{pairs: true, members: []member{fit, ailingDecode}}, nil, 1},
		{"none", workerList{}, nil, 0},
	} {
		if got := test.list.places(test.callable); got != test.want {
			t.Errorf("%s: %d places, want %d", test.name, got, test.want)
		}
	}
}
