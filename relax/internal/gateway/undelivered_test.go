package gateway

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// The Session learns which answers did not reach their client, and of no others.
func TestUndelivered(t *testing.T) {
	big := completion(strings.Repeat("long ", 8<<20))
	for _, stream := range []string{"", "!"} {
		t.Run("the client leaves while it is written, stream "+stream, func(t *testing.T) {
			g, lost := openLossy(t, big)
			conn := dial(t, g)
			io.WriteString(conn, rawEcho(stream+"hi"))
			if _, err := io.ReadFull(conn, make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
			select {
			case answer := <-lost:
				if answer != big {
					t.Errorf("told of %v", answer.ID)
				}
			case <-time.After(20 * time.Second):
				t.Error("the session was not told")
			}
		})
		t.Run("the client leaves after it has read, stream "+stream, func(t *testing.T) {
			g, lost := openLossy(t, completion("short"))
			c := client(t)
			for range 3 {
				answer, err := c.Do(echoRequest(t, context.Background(), g, stream+"hi"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadAll(answer.Body); err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
			}
			c.CloseIdleConnections()
			if err := g.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			if len(lost) > 0 {
				t.Error("the session was told of an answer that was read")
			}
		})
	}
}

// openLossy returns a gateway that answers with c, and what its Session is told.
func openLossy(t *testing.T, c *wire.Completion) (*Gateway, chan *wire.Completion) {
	lost := make(chan *wire.Completion, 10)
	answer := func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) { return c, nil }
	return open(t, answer, func(cfg *Config) { cfg.Handler.(*fake).undelivered = lost }), lost
}

// A connection that idles holds neither the answer it wrote nor the Session behind it.
func TestAnIdleConnectionForgetsItsAnswer(t *testing.T) {
	given := make(chan weak.Pointer[wire.Completion], 1)
	g := open(t, func(context.Context, *canon.Request) (*wire.Completion, *wire.Error) {
		c := completion("short")
		given <- weak.Make(c)
		return c, nil
	}, nil)
	conn := dial(t, g)
	io.WriteString(conn, rawEcho("hi"))
	if _, err := io.ReadFull(conn, make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	answer := <-given
	for deadline := time.Now().Add(20 * time.Second); answer.Value() != nil; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("the answer is still held")
		}
		time.Sleep(time.Millisecond)
	}
}

// The Session learns which of its requests were refused before they became turns.
func TestRefused(t *testing.T) {
	refused := make(chan *wire.Error, 10)
	g := open(t, say, func(cfg *Config) { cfg.Handler.(*fake).refused = refused })
	c := client(t)
	for _, body := range []string{"hi", "?", "!hi"} {
		answer, err := c.Do(echoRequest(t, context.Background(), g, body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(answer.Body); err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	c.CloseIdleConnections()
	if err := g.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(refused) != 1 || (<-refused).Param != "text" {
		t.Errorf("the session was told of %d refusals", len(refused))
	}
}
