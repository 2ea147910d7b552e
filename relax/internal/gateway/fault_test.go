package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// await waits until something is so.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// descriptors counts the open files of this process, -1 where that cannot be known.
func descriptors() int {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(files)
}

// leavesNothing runs a test with a gateway and looks for descriptors and goroutines after it.
func leavesNothing(t *testing.T, complete func(context.Context, *canon.Request) (*wire.Completion, *wire.Error), change func(*Config), test func(g *Gateway)) {
	t.Helper()
	// The runtime opens its poller with the first connection and keeps it.
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		ln.Close()
	}
	before := descriptors()
	g := open(t, complete, change)
	test(g)
	await(t, "the connections to end", func() bool { return g.served.Load() == 0 })
	if n := g.turns.Load(); n != 0 {
		t.Errorf("%d turns are under way", n)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	await(t, "the goroutines to end", func() bool { return len(g.cfg.Goroutines.Names()) == 0 })
	await(t, "the descriptors to be closed", func() bool { return descriptors() <= before })
	g.heads.Range(func(_, h any) bool { t.Errorf("a head was left: %+v", h); return true })
	if n := len(g.watcher.gone); n != 0 {
		t.Errorf("%d connections are watched", n)
	}
}

func echoRequest(t testing.TB, ctx context.Context, g *Gateway, text string) *http.Request {
	t.Helper()
	req := post(t, ctx, g, text)
	req.URL.Path = prefix + "/echo"
	return req
}

// The turn of a client that leaves ends with ErrClientLeft, wherever it is.
func TestLeavingClients(t *testing.T) {
	for _, stream := range []string{"", "!"} {
		t.Run("parked or generating, stream "+stream, func(t *testing.T) {
			p := newParked()
			leavesNothing(t, p.complete, nil, func(g *Gateway) {
				for _, reset := range []bool{false, true} {
					conn := dial(t, g)
					io.WriteString(conn, rawEcho(stream+"hi"))
					<-p.waiting
					if reset {
						conn.(*net.TCPConn).SetLinger(0)
					}
					conn.Close()
					if cause := <-p.causes; !errors.Is(cause, ErrClientLeft) {
						t.Errorf("cause %v", cause)
					}
				}
			})
		})
	}
	t.Run("in the middle of a stream's answer", func(t *testing.T) {
		causes := make(chan error, 1)
		big := completion(strings.Repeat("long ", 8<<20))
		leavesNothing(t, func(ctx context.Context, _ *canon.Request) (*wire.Completion, *wire.Error) {
			causes <- context.Cause(ctx)
			return big, nil
		}, nil, func(g *Gateway) {
			conn := dial(t, g)
			io.WriteString(conn, rawEcho("!hi"))
			if _, err := io.ReadFull(conn, make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if cause := <-causes; cause != nil {
				t.Errorf("the turn was over, and then %v", cause)
			}
		})
	})
}

// A stream that cannot be written ends its turn as one whose client left, should the watcher be
// late.
func TestBrokenStreamEndsItsTurn(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &eventStream{turn: &turn{ctx: ctx, cancel: cancel}, ticker: time.NewTicker(time.Hour), done: make(chan struct{})}
	go func() { <-ctx.Done(); close(s.done) }()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, ErrClientLeft) {
		t.Errorf("cause %v", cause)
	}
}

// A parked request holds its parsed form, not its bytes.
func TestParkedRequestsLetGoOfTheirBodies(t *testing.T) {
	const n, size = 40, 1 << 20
	p := newParked()
	g := open(t, p.complete, nil)
	body := strings.TrimSuffix(chatBody("hi", false), "}") + `,"ignored":"` + strings.Repeat("x", size) + `"}`
	raw := rawHead("/", fmt.Sprint("Content-Length: ", len(body))) + body
	before := inUse()
	for range n {
		if _, err := io.WriteString(dial(t, g), raw); err != nil {
			t.Fatal(err)
		}
		<-p.waiting
	}
	if held := inUse() - before; held > n*size/4 {
		t.Errorf("%d requests of %d MB hold %d MB", n, size>>20, held>>20)
	}
}

// A client that does not read a big answer holds its connection for a while, never its turn.
func TestSlowReader(t *testing.T) {
	big := completion(strings.Repeat("long ", 8<<20))
	for _, stream := range []string{"", "!"} {
		t.Run("stream "+stream, func(t *testing.T) {
			timeout := time.Hour
			for _, cut := range []bool{false, true} {
				if cut {
					timeout = 20 * time.Millisecond
				}
				over := make(chan struct{}, 1)
				leavesNothing(t, func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) {
					over <- struct{}{}
					return big, nil
				}, func(cfg *Config) { cfg.WriteTimeout = timeout; cfg.MaxRequests = 1 }, func(g *Gateway) {
					conn := dial(t, g)
					io.WriteString(conn, rawEcho(stream+"hi"))
					<-over
					await(t, "the turn to end", func() bool { return g.turns.Load() == 0 })
					if !cut {
						if g.served.Load() != 1 {
							t.Error("the connection ended although there is time")
						}
					} else { // it ends without the client
						await(t, "the connection to be cut", func() bool { return g.served.Load() == 0 })
						// Nothing more comes: the kernel does not keep the rest for it.
						if _, err := io.Copy(io.Discard, conn); !errors.Is(err, syscall.ECONNRESET) {
							t.Errorf("the client got %v", err)
						}
					}
					conn.Close()
				})
			}
		})
	}
}

// A reader that is slow but reads gets everything, however often the write timeout passes.
func TestReaderWithPauses(t *testing.T) {
	const pieces = 20
	text := strings.Repeat("0123456789abcdef", pieces*4096)
	g := open(t, func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) {
		return completion(text), nil
	}, func(cfg *Config) { cfg.WriteTimeout = 5 * time.Second })
	conn := dial(t, g)
	io.WriteString(conn, rawEcho("hi"))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for {
		if _, err := io.CopyN(&got, resp.Body, 64<<10); err != nil {
			break
		}
		runtime.Gosched()
	}
	if got.String() != "echo answer "+text {
		t.Errorf("%d bytes came", got.Len())
	}
}

// A connection is as good as new after every error that lets it live.
func TestKeepAliveAfterErrors(t *testing.T) {
	leavesNothing(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		if req.Messages[0].Content == "fail" {
			return nil, wire.ContextLength(8, 9)
		}
		return say(ctx, req)
	}, nil, func(g *Gateway) {
		conn := dial(t, g)
		defer conn.Close()
		r := bufio.NewReader(conn)
		unknown := strings.NewReplacer(token, "unknown-session")
		naked := strings.NewReplacer("Authorization: Bearer "+token+"\r\n", "")
		for round := range 3 {
			for _, test := range []struct {
				raw, want string
				status    int
			}{
				{strings.Replace(rawEcho("x"), "POST", "PUT", 1), "echo error 405 method_not_allowed", 405},
				{rawHead("/echo/nope", "Content-Length: 3") + "abc", "echo error 404 not_found", 404},
				{naked.Replace(rawEcho(strings.Repeat("x", 100<<10))), "echo error 401 authentication_error", 401},
				{unknown.Replace(rawEcho("x")), "echo error 404 session_discarded", 404},
				{rawEcho("?"), "echo error 400 invalid_request_error", 400},
				{rawHead("/echo", "Content-Encoding: gzip", "Content-Length: 3") + "abc", "echo error 400 invalid_request_error", 400},
				{rawHead("/echo", "Content-Encoding: x", "Content-Length: 3") + "abc", "echo error 415 unsupported_encoding", 415},
				{rawEcho("fail"), "echo error 400 context_length_exceeded", 400},
				{rawEcho("!fail"), "echo connected\necho stream error 400 context_length_exceeded", 200},
				{rawCount("four"), `{"input_tokens":4}`, 200},
				{rawEcho("fine"), "echo answer you said fine", 200},
				{rawEcho("!fine"), "echo connected\necho stream you said fine", 200},
			} {
				io.WriteString(conn, test.raw)
				if resp, body := answer(t, r); resp.StatusCode != test.status || body != test.want {
					t.Fatalf("round %d, %.80q: %d %s", round, test.raw, resp.StatusCode, body)
				}
			}
		}
	})
}

// Requests that come before the one ahead of them is answered are answered in their order.
func TestPipelinedRequests(t *testing.T) {
	p := newParked()
	release := make(chan struct{})
	leavesNothing(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		if req.Messages[0].Content == "wait" {
			p.waiting <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
				t.Error(context.Cause(ctx))
			}
		}
		return say(ctx, req)
	}, nil, func(g *Gateway) {
		conn := dial(t, g)
		defer conn.Close()
		first := strings.Repeat("x", 20<<10)
		io.WriteString(conn, rawEcho("wait")+rawEcho("?")+rawEcho("!wait")+rawEcho(first)+rawCount("four")+rawEcho("!last"))
		<-p.waiting
		release <- struct{}{}
		<-p.waiting
		release <- struct{}{}
		r := bufio.NewReader(conn)
		for _, want := range []string{
			"echo answer you said wait", "echo error 400 invalid_request_error", "echo connected\necho stream you said wait",
			"echo answer you said " + first, `{"input_tokens":4}`, "echo connected\necho stream you said last",
		} {
			if _, body := answer(t, r); body != want {
				t.Fatalf("got %.100q, want %.100q", body, want)
			}
		}
	})
}

// parkedMost is how many requests the release test parks, if descriptors allow: two for each.
const parkedMost = 5000

// Thousands of parked requests, released at once, all get their own answers.
func TestManyReleasedAtOnce(t *testing.T) {
	n := parkedMost
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if room := (int(min(limit.Cur, 1<<20)) - descriptors() - 200) / 2; n > room {
		n = room
		t.Logf("SCALED DOWN: %d instead of %d parked requests, because ulimit -n is %d", n, parkedMost, limit.Cur)
	}
	waiting, release := make(chan struct{}, n), make(chan struct{})
	leavesNothing(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		waiting <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
			t.Error(context.Cause(ctx))
		}
		return say(ctx, req)
	}, func(cfg *Config) { cfg.Heartbeat = time.Hour }, func(g *Gateway) {
		conns := make([]net.Conn, n)
		for i := range conns {
			conns[i] = dial(t, g)
			text := fmt.Sprint("number ", i)
			if i%4 == 0 {
				text = "!" + text
			}
			if _, err := io.WriteString(conns[i], rawEcho(text)); err != nil {
				t.Fatal(err)
			}
		}
		for range n {
			<-waiting
		}
		if got := g.turns.Load(); got != int64(n) {
			t.Errorf("%d turns, want %d", got, n)
		}
		close(release)
		for i, conn := range conns {
			want := fmt.Sprint("echo answer you said number ", i)
			if i%4 == 0 {
				want = fmt.Sprint("echo connected\necho stream you said number ", i)
			}
			if _, body := answer(t, bufio.NewReader(conn)); body != want {
				t.Fatalf("request %d: %q", i, body)
			}
			conn.Close()
		}
	})
}

// Clients that do anything at any time leave nothing behind, and never spoil others' answers.
func TestChaos(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 4))
	leavesNothing(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		if strings.HasPrefix(req.Messages[0].Content, "park") {
			<-ctx.Done()
			return nil, wire.Disconnected()
		}
		return say(ctx, req)
	}, func(cfg *Config) { cfg.Heartbeat = time.Millisecond; cfg.MaxConnections = 40 }, func(g *Gateway) {
		good := dial(t, g)
		defer good.Close()
		r := bufio.NewReader(good)
		io.WriteString(good, rawEcho("first")) // it has its place
		answer(t, r)
		var open sync.WaitGroup
		slots := make(chan struct{}, 60)
		for i := range 600 {
			raw := []string{
				rawEcho("park"), rawEcho("!park"), rawEcho("x"), rawEcho("!x"), rawEcho("?"), "GET / HTTP/1.1\r\n\r\n", "nonsense\r\n\r\n",
				rawHead("/echo", "Content-Length: 5000") + "abc", rawHead("/echo", "Expect: 100-continue", "Content-Length: 5"),
				rawHead("/echo", "Transfer-Encoding: chunked") + "5\r\nab", rawEcho("x") + rawEcho("park"),
			}[random.IntN(11)]
			cut, reset, read := len(raw)-max(0, random.IntN(2*len(raw))-len(raw)), random.IntN(2) == 0, random.IntN(2) == 0
			pause := time.Duration(random.IntN(5)) * time.Millisecond
			slots <- struct{}{}
			open.Add(1)
			go func() {
				defer func() { <-slots; open.Done() }()
				conn, err := net.Dial("tcp", g.address())
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				io.WriteString(conn, raw[:cut])
				if read {
					conn.SetReadDeadline(time.Now().Add(pause))
					io.Copy(io.Discard, conn)
				} else {
					time.Sleep(pause)
				}
				if reset {
					conn.(*net.TCPConn).SetLinger(0)
				}
			}()
			if i%10 == 0 {
				text := fmt.Sprint("round ", i)
				io.WriteString(good, rawEcho(text))
				if resp, body := answer(t, r); resp.StatusCode != 200 || body != "echo answer you said "+text {
					t.Fatalf("%d %s", resp.StatusCode, body)
				}
			}
		}
		open.Wait()
	})
}
