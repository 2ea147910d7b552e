//go:build linux

package supervisor

import (
	"strconv"
	"syscall"
)

// A boundedLog keeps the beginning and the end of an agent's output in a file that never grows
// beyond limit and can be read at any time. A full file is compacted in place: the first and
// the last quarter stay, with a line between them that says how much is missing.
//
// The agent writes into a pipe that the supervisor copies, because a file handed to the agent
// itself could not be bounded.
type boundedLog struct {
	fd      int
	limit   int64
	size    int64
	missing int64
	buf     []byte
	failed  bool // the disk is full or gone: output is read and forgotten, the agent goes on
}

const logBuffer = 32 << 10

func newBoundedLog(fd int, limit int64) *boundedLog {
	size := min(logBuffer, max(limit/4, 1))
	return &boundedLog{fd: fd, limit: limit, buf: make([]byte, size)}
}

// copyFrom moves what a non-blocking pipe holds into the file, at most 16 buffers at a time so
// that a chatty agent cannot keep the supervisor from its other work. It reports false at the
// end of the pipe.
func (l *boundedLog) copyFrom(pipe int) (open bool) {
	for range 16 {
		n, err := syscall.Read(pipe, l.buf)
		if err == syscall.EAGAIN || err == syscall.EINTR {
			return true
		}
		if err != nil || n == 0 {
			return false
		}
		l.append(l.buf[:n])
	}
	return true
}

// drain moves everything the pipe holds, when nobody is left who could write more.
func (l *boundedLog) drain(pipe int) {
	for range 1 << 10 {
		n, err := syscall.Read(pipe, l.buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		l.append(l.buf[:n])
	}
}

func (l *boundedLog) append(p []byte) {
	if l.failed {
		return
	}
	if l.size+int64(len(p)) > l.limit {
		l.compact()
	}
	for len(p) > 0 && !l.failed {
		n, err := syscall.Write(l.fd, p)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			l.failed = true
			return
		}
		l.size += int64(n)
		p = p[n:]
	}
}

// compact moves the last quarter behind the first one. The destination lies before the source,
// so copying forwards never overwrites what is still to be read.
func (l *boundedLog) compact() {
	quarter := l.limit / 4
	src, dst := l.size-quarter, quarter
	if src <= dst {
		return
	}
	if l.missing > 0 {
		l.missing -= int64(len(l.mark())) // the earlier mark is among what goes
	}
	l.missing += src - dst
	tail := make([]byte, quarter)
	if n, err := syscall.Pread(l.fd, tail, src); err != nil || int64(n) != quarter {
		l.failed = true
		return
	}
	if err := l.cut(dst); err != nil {
		l.failed = true
		return
	}
	l.append(l.mark())
	l.append(tail)
}

// cut shortens the file and moves the file offset there. Writing goes by the offset, which fd 2
// shares, so that a crash report of the supervisor itself lands behind the agent's output.
func (l *boundedLog) cut(size int64) error {
	if err := syscall.Ftruncate(l.fd, size); err != nil {
		return err
	}
	l.size = size
	_, err := syscall.Seek(l.fd, size, 0)
	return err
}

// mark has a fixed width, so that compacting twice gives files of one shape.
func (l *boundedLog) mark() []byte {
	digits := strconv.FormatInt(l.missing, 10)
	const width = 16
	out := append([]byte(nil), "\n[relax: "...)
	for range max(width-len(digits), 0) {
		out = append(out, ' ')
	}
	out = append(out, digits...)
	return append(out, " bytes of output left out]\n"...)
}
