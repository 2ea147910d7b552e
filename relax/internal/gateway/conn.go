package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

const (
	// maxRefusals bounds the connections over the limit that are told so at the same time; those
	// behind them wait in the kernel's backlog.
	maxRefusals = 64
	// refusalTime bounds how long one of them may take.
	refusalTime = 2 * time.Second
	// readPiece earns a client one second more for its request, in bytes.
	readPiece = 64 << 10
	// writePiece is what a client must read in one write timeout, in bytes.
	writePiece = 64 << 10
)

func (g *Gateway) accept() {
	failing := false
	for {
		nc, err := g.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: wait for some to be closed
			if !failing {
				g.cfg.Log(fmt.Sprintf("accept: %v; trying again until it works", err))
			}
			failing = true
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-g.ctx.Done():
				return
			}
		}
		failing = false
		if !g.admitConn(&clientConn{TCPConn: nc.(*net.TCPConn), writeTimeout: g.cfg.WriteTimeout}) {
			nc.Close()
			return
		}
	}
}

// admitConn serves a connection, or turns it away when there are too many. It is false once
// the gateway is closing.
func (g *Gateway) admitConn(c *clientConn) bool {
	if int(g.served.Load()) < g.cfg.MaxConnections { // only this goroutine adds
		g.served.Add(1)
		return g.add(c, "gateway-conn", func() {
			defer g.served.Add(-1)
			_ = g.server.ServeConn(c) // how a connection ended is the client's to know
		})
	}
	select {
	case g.refusals <- struct{}{}:
	case <-g.ctx.Done():
		return false
	}
	return g.add(c, "gateway-refusal", func() {
		defer func() { <-g.refusals }()
		g.turnAway(c)
	})
}

// add runs serve in the connection's own goroutine. It is false once the gateway is closing.
func (g *Gateway) add(c *clientConn, name string, serve func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		return false
	}
	g.conns[c] = struct{}{}
	g.spawn(name, func() {
		defer g.remove(c)
		serve()
	})
	return true
}

func (g *Gateway) remove(c *clientConn) {
	c.TCPConn.Close() // also after a panic
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
}

// overloaded is the answer while the gateway has as many connections or requests as it may.
func overloaded(what string, limit int) *wire.Error {
	return wire.Unavailable("overloaded", fmt.Sprintf("the rollout engine serves its limit of %d %s; try again", limit, what))
}

// turnAway answers the first request of a connection that is one too many, in its dialect, and
// closes it.
func (g *Gateway) turnAway(c *clientConn) {
	if c.SetReadDeadline(time.Now().Add(refusalTime)) != nil {
		return
	}
	r, err := http.ReadRequest(bufio.NewReader(io.LimitReader(c, maxHeaderBytes)))
	if err != nil {
		return
	}
	d := dialectOf(path.Clean("/"+r.URL.Path), r.Header.Get("anthropic-version") != "")
	body := d.AppendError(nil, overloaded("connections", g.cfg.MaxConnections))
	_, err = fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"+
		"Retry-After: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", retryAfter, len(body), body)
	c.linger = err == nil
	_ = c.Close() // nobody is left to tell
}

// A clientConn is an accepted connection that can close slowly and does not wait for ever for a
// client that sends or reads too little. Reading and writing are one goroutine's at a time.
type clientConn struct {
	*net.TCPConn
	deadline     time.Time // for reading
	unpaid       int       // bytes read that have not moved the deadline
	writeTimeout time.Duration
	// linger is set when the answer was written before the request was read to its end. A close
	// would then reset the connection, and the client would not see the answer.
	linger bool
	// failed is told once if the answer being written cannot be. nil: nobody wants to know.
	failed func()
	// expecting is the request whose client waits for 100 Continue, nil if none does.
	expecting *head
}

// SetReadDeadline sets when reading ends. Bytes that come move it.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	c.deadline, c.unpaid = t, 0
	return c.TCPConn.SetReadDeadline(t)
}

// Read reads, and gives a client that sends enough more time: a body of any size may come, but
// not at any pace. The end of the stream is never io.EOF, for which fasthttp would drop a request
// that ends in its body without calling anybody.
func (c *clientConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if errors.Is(err, io.EOF) {
		return n, io.ErrUnexpectedEOF
	}
	if c.unpaid += n; c.unpaid >= readPiece && err == nil && !c.linger && !c.deadline.IsZero() {
		c.deadline = c.deadline.Add(time.Duration(c.unpaid/readPiece) * time.Second)
		c.unpaid %= readPiece
		err = c.TCPConn.SetReadDeadline(c.deadline)
	}
	return n, err
}

// Write writes p piece by piece, each of which must go out within the write timeout: an answer
// of any size may take as long as it likes while the client keeps reading.
func (c *clientConn) Write(p []byte) (n int, err error) {
	for {
		if err := c.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
			return n, err
		}
		m, err := c.TCPConn.Write(p[n:min(n+writePiece, len(p))])
		if n += m; err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				_ = c.SetLinger(0) // let the kernel forget what nobody reads
			}
			if failed := c.failed; failed != nil {
				c.failed = nil
				failed()
			}
			return n, err
		}
		if n == len(p) {
			return n, nil
		}
	}
}

// Close closes the connection; a lingering one first reads, for at most 2 s, what the client
// still sends.
func (c *clientConn) Close() error {
	if !c.linger {
		return c.TCPConn.Close()
	}
	if c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(2*time.Second)) == nil {
		var waste [32 << 10]byte
		for {
			if _, err := c.Read(waste[:]); err != nil {
				break
			}
		}
	}
	return c.TCPConn.Close()
}
