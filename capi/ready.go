package main

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A readiness is an eventfd that is readable while the host has a reason to poll. All its
// methods return at once. After close they do nothing, so that a late signal never writes to
// a descriptor that belongs to somebody else by then. A nil readiness can be closed.
type readiness struct {
	mu sync.Mutex
	fd int // -1 after close
}

func newReadiness() (*readiness, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("relax: eventfd: %w; raise the limit of open files", err)
	}
	return &readiness{fd: fd}, nil
}

func (r *readiness) descriptor() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fd
}

// signal makes the descriptor readable.
func (r *readiness) signal() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		_, _ = unix.Write(r.fd, one[:]) // EAGAIN: the counter is full, so it is readable
	}
}

// drain makes it unreadable.
func (r *readiness) drain() {
	var count [8]byte
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		_, _ = unix.Read(r.fd, count[:]) // EAGAIN: nothing was signalled
	}
}

func (r *readiness) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
	}
	r.fd = -1
}
