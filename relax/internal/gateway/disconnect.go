//go:build linux

package gateway

import (
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// A watcher tells which of many waiting connections were closed by their clients, with one
// goroutine and one epoll set for all. A client that only half-closes counts as gone, as it
// does for net/http.
type watcher struct {
	epoll int
	wake  int // an eventfd that ends run

	mu     sync.Mutex
	closed bool
	next   uint64
	gone   map[uint64]func()
}

func newWatcher() (*watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	w := &watcher{epoll: epoll, wake: wake, gone: map[uint64]func(){}}
	event := newEvent(unix.EPOLLIN, 0)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &event); err != nil {
		unix.Close(epoll)
		unix.Close(wake)
		return nil, fmt.Errorf("epoll_ctl: %w", err)
	}
	return w, nil
}

// newEvent stores key in the 64 bits the kernel gives back. Keys are never used twice, so an
// event that was under way while its connection was removed means nothing to anybody.
func newEvent(events uint32, key uint64) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
}

func eventKey(e *unix.EpollEvent) uint64 {
	return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
}

// watch calls gone, at most once and from the watcher's goroutine, when the peer of conn
// leaves. gone must be quick. stop must be called before conn is read again or closed; gone is
// not called after stop returned.
func (w *watcher) watch(conn *net.TCPConn, gone func()) (stop func()) {
	raw, err := conn.SyscallConn()
	if err != nil {
		gone()
		return func() {}
	}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return func() {}
	}
	w.next++
	key := w.next
	w.gone[key] = gone
	w.mu.Unlock()

	added := w.control(func() error {
		return controlFD(raw.Control, func(fd int) error {
			event := newEvent(unix.EPOLLRDHUP|unix.EPOLLONESHOT, key)
			return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event)
		})
	})
	if !added {
		w.fire(key)
		return func() {}
	}
	return func() {
		w.control(func() error {
			return controlFD(raw.Control, func(fd int) error {
				return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, fd, nil)
			})
		})
		w.mu.Lock()
		delete(w.gone, key)
		w.mu.Unlock()
	}
}

// control runs a change of the epoll set unless the set is closed, and reports success.
func (w *watcher) control(change func() error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.closed && change() == nil
}

// controlFD runs fn on the descriptor of a connection and returns its error.
func controlFD(control func(func(fd uintptr)) error, fn func(fd int) error) error {
	var failed error
	if err := control(func(fd uintptr) { failed = fn(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// run waits for events until close.
func (w *watcher) run() {
	defer w.release()
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(w.epoll, events[:], -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for i := range events[:n] {
			key := eventKey(&events[i])
			if key == 0 {
				return
			}
			w.fire(key)
		}
	}
}

// fire calls the function of key if it is still there. The lock is held, so that stop waits
// for it.
func (w *watcher) fire(key uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if gone := w.gone[key]; gone != nil {
		delete(w.gone, key)
		gone()
	}
}

// close ends run. Connections watched after it are not watched.
func (w *watcher) close() {
	one := [8]byte{1} // any value wakes
	_, _ = unix.Write(w.wake, one[:])
}

func (w *watcher) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	unix.Close(w.epoll)
	unix.Close(w.wake)
}
