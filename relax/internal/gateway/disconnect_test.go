package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

func TestClientLeaves(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			p := newParked()
			g := open(t, p.complete, nil)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-p.waiting; cancel() }()
			resp, err := client(t).Do(post(t, ctx, g, chatBody("hi", stream)))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("client got %v", err)
			}
			if cause := <-p.causes; !errors.Is(cause, ErrClientLeft) {
				t.Errorf("cause %v", cause)
			}
		})
	}
}

// Watching a connection must leave it fit for the next request.
func TestKeepAliveAfterWatching(t *testing.T) {
	conns := map[string]bool{}
	g := open(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		if ctx.Err() != nil {
			t.Error("context ended")
		}
		return say(ctx, req)
	}, nil)
	c := client(t)
	for i := range 50 {
		resp, body := do(t, c, post(t, t.Context(), g, chatBody(fmt.Sprint(i), i%2 == 0)))
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	g.mu.Lock()
	for conn := range g.conns {
		conns[conn.RemoteAddr().String()] = true
	}
	g.mu.Unlock()
	if len(conns) != 1 {
		t.Errorf("%d connections for 50 requests one after the other", len(conns))
	}
	if n := len(g.watcher.gone); n != 0 {
		t.Errorf("%d connections still watched", n)
	}
}

// Of many parked requests exactly those whose clients leave end.
func TestManyParked(t *testing.T) {
	const n = 500
	p := newParked()
	release := make(chan struct{})
	g := open(t, func(ctx context.Context, req *canon.Request) (*wire.Completion, *wire.Error) {
		p.waiting <- struct{}{}
		select {
		case <-ctx.Done():
			p.causes <- context.Cause(ctx)
			return nil, wire.Disconnected()
		case <-release:
			return say(ctx, req)
		}
	}, nil)
	c := client(t)
	stay, leave := t.Context(), context.Context(nil)
	leave, cancel := context.WithCancel(t.Context())
	defer cancel()
	var staying, leaving sync.WaitGroup
	for i := range n {
		ctx, wg := stay, &staying
		if i%2 == 0 {
			ctx, wg = leave, &leaving
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			resp, err := c.Do(post(t, ctx, g, chatBody("hi", i%4 < 2)))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if gone := errors.Is(err, context.Canceled); gone != (ctx == leave) {
				t.Errorf("request %d: %v", i, err)
			}
		}()
	}
	for range n {
		<-p.waiting
	}
	if got := g.turns.Load(); got != n {
		t.Errorf("%d turns, want %d", got, n)
	}
	cancel()
	for range n / 2 {
		if cause := <-p.causes; !errors.Is(cause, ErrClientLeft) {
			t.Errorf("cause %v", cause)
		}
	}
	leaving.Wait()
	close(release)
	staying.Wait()
	if len(p.causes) != 0 {
		t.Errorf("%d more turns ended early", len(p.causes))
	}
}

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (server *net.TCPConn, peer net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peer, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); peer.Close() })
	return nc.(*net.TCPConn), peer
}

func TestWatcher(t *testing.T) {
	w, err := newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { w.run(); close(ended) }()

	stopped, peer := pair(t)
	stop := w.watch(stopped, func() { t.Error("called after stop") })
	stop()
	peer.Close()

	left, peer := pair(t)
	peer.Close() // before it is watched: seen all the same
	gone := make(chan struct{})
	stop = w.watch(left, func() { close(gone) })
	<-gone
	stop()

	stays, _ := pair(t)
	stop = w.watch(stays, func() { t.Error("called for a peer that stays") })
	w.close()
	<-ended
	stop()
	w.watch(stays, func() { t.Error("called on a closed watcher") })()
}
