//go:build !linux

package gateway

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// A watcher looks at all waiting connections in turn; only Linux is told by the kernel. A
// client that leaves is noticed within about a quarter of a second.
type watcher struct {
	quit chan struct{}

	mu   sync.Mutex
	gone map[*net.TCPConn]func()
}

func newWatcher() (*watcher, error) {
	return &watcher{quit: make(chan struct{}), gone: map[*net.TCPConn]func(){}}, nil
}

// watch calls gone, at most once, when the peer of conn leaves. stop must be called before
// conn is read again or closed; gone is not called after stop returned.
func (w *watcher) watch(conn *net.TCPConn, gone func()) (stop func()) {
	w.mu.Lock()
	w.gone[conn] = gone
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		delete(w.gone, conn)
		w.mu.Unlock()
	}
}

func (w *watcher) run() {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-tick.C:
			w.look()
		}
	}
}

func (w *watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn, gone := range w.gone {
		if left(conn) {
			delete(w.gone, conn)
			gone()
		}
	}
}

func left(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	eof := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		eof = n <= 0 && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return err != nil || eof
}

func (w *watcher) close() { close(w.quit) }
