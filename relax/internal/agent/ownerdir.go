//go:build linux

package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent/procfs"
	"github.com/relax-rollout/relax-rollout/relax/internal/agent/supervisor"
)

// An ownerDir is the directory all IO directories of one launcher are in. It is locked while
// the launcher or one of its supervisors lives, however they end, so a directory that can be
// locked belongs to nobody any more.
type ownerDir struct {
	path string
	lock *os.File
}

// ownerPrefix begins the names of this boot's owner directories. A lock tells the truth only
// among processes of one kernel: run_dir may be a network directory that other hosts use too.
func ownerPrefix() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "owner-unknown-" // never swept, see sweepDead
	}
	sum := sha256.Sum256(boot)
	return "owner-" + hex.EncodeToString(sum[:6]) + "-"
}

// claimOwnerDir makes a directory for one launcher below sessions and locks it. Where the file
// system knows no locks it stays unlocked, and nobody can take it for abandoned either.
func claimOwnerDir(sessions string) (ownerDir, error) {
	const tries = 100
	for range tries {
		if err := os.MkdirAll(sessions, 0o700); err != nil {
			return ownerDir{}, err
		}
		path, err := os.MkdirTemp(sessions, ownerPrefix()+"*")
		if err != nil {
			return ownerDir{}, err
		}
		lock, err := tryLock(path)
		if err == nil {
			return ownerDir{path, lock}, nil
		}
		// Another engine may look at it between the two steps and take it for abandoned.
		if !errors.Is(err, errHeld) && !errors.Is(err, fs.ErrNotExist) {
			return ownerDir{}, alongside(err, os.Remove(path))
		}
	}
	return ownerDir{}, fmt.Errorf("%s: a new directory was taken away %d times", sessions, tries)
}

var errHeld = errors.New("directory is in use")

// tryLock locks a directory that is still there. errHeld: somebody else has the lock. Where the
// file system knows no locks, it succeeds without one.
func tryLock(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	lock := os.NewFile(uintptr(fd), path)
	var held, there unix.Stat_t
	switch {
	case unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK:
		err = errHeld
	case unix.Fstat(fd, &held) != nil || unix.Lstat(path, &there) != nil || held.Ino != there.Ino || held.Dev != there.Dev:
		err = &fs.PathError{Op: "lock", Path: path, Err: fs.ErrNotExist}
	default:
		return lock, nil
	}
	lock.Close()
	return nil, err
}

// canLock reports whether a second lock of a locked directory is refused, so that locks prove
// something on this file system.
func (d ownerDir) canLock() bool {
	again, err := tryLock(d.path)
	if err == nil {
		again.Close()
	}
	return errors.Is(err, errHeld)
}

// remove removes the directory and, if nothing else is in them, those above it.
func (d ownerDir) remove(above ...string) {
	if os.Remove(d.path) != nil { // an IO directory is still in it
		return
	}
	for _, dir := range above {
		if os.Remove(dir) != nil {
			return
		}
	}
}

// sweepDead removes what owners of this user left behind that ended without cleaning up and
// whose supervisors did too, and kills processes of theirs. mine is the caller's own directory.
// It reports what it removed, "" if nothing.
func sweepDead(sessions string, mine ownerDir) (report string, err error) {
	if strings.Contains(ownerPrefix(), "unknown") || !mine.canLock() {
		return "", nil // nothing could be proved
	}
	entries, err := os.ReadDir(sessions)
	if err != nil {
		return "", err
	}
	owners, dirs, killed := 0, 0, 0
	for _, entry := range entries {
		path := filepath.Join(sessions, entry.Name())
		if path == mine.path || !strings.HasPrefix(entry.Name(), ownerPrefix()) || !ownedByUs(path) {
			continue
		}
		lock, lockErr := tryLock(path)
		if lockErr != nil { // in use, or swept by somebody else
			continue
		}
		killed += killOrphans(path)
		left, _ := os.ReadDir(path)
		err = alongside(err, supervisor.RemoveTree(path))
		lock.Close()
		owners, dirs = owners+1, dirs+len(left)
	}
	if owners > 0 {
		report = fmt.Sprintf("agent: removed from %s what %d dead engines left behind: %d session directories; killed %d processes of theirs", sessions, owners, dirs, killed)
	}
	return report, err
}

func ownedByUs(path string) bool {
	var st syscall.Stat_t
	return syscall.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}

// killOrphans kills the processes that were started with an IO directory below owner in their
// environment. It spares this process if it is one of them: an engine inside an agent.
func killOrphans(owner string) (killed int) {
	mark := EnvIODir + "=" + owner + string(filepath.Separator)
	if procfs.HasEnvPrefix(os.Getpid(), mark) {
		return 0
	}
	return killAll(func(pid int, _ procfs.Stat) bool { return procfs.HasEnvPrefix(pid, mark) })
}
