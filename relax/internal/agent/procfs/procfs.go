//go:build linux

// Package procfs reads who is whose child from /proc.
//
// What may enter: process ids. What it never does: signal, reap, or keep anything.
package procfs

import (
	"bytes"
	"os"
	"strconv"
)

// A Stat is what /proc/<pid>/stat says about a process's place in the tree.
type Stat struct {
	// State is the kernel's letter: R, S, D, T, Z, …
	State byte
	// Parent, Group and Session are process ids.
	Parent, Group, Session int
}

// ReadStat reads the place of pid. It is false if there is no such process.
func ReadStat(pid int) (Stat, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, false
	}
	return parseStat(data)
}

// parseStat skips the command name by its last closing bracket, because the name may
// contain brackets and spaces itself.
func parseStat(data []byte) (Stat, bool) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return Stat{}, false
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) < 4 || len(fields[0]) != 1 {
		return Stat{}, false
	}
	st := Stat{State: fields[0][0]}
	for i, dst := range []*int{&st.Parent, &st.Group, &st.Session} {
		n, err := strconv.Atoi(string(fields[1+i]))
		if err != nil {
			return Stat{}, false
		}
		*dst = n
	}
	return st, true
}

// Children lists the direct children of pid, zombies included. The list may miss one that
// appears or goes while it is read, so a caller who wants all of them gone asks again.
func Children(pid int) []int {
	base := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(base)
	if err != nil {
		return nil
	}
	var out []int
	for _, task := range tasks {
		data, err := os.ReadFile(base + "/" + task.Name() + "/children")
		if err != nil && lacksChildrenFiles() {
			return scanChildren(pid)
		}
		out = appendPIDs(out, data)
	}
	return out
}

// lacksChildrenFiles tells a kernel built without these files from a task that just ended.
func lacksChildrenFiles() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err != nil
}

func appendPIDs(out []int, data []byte) []int {
	for _, field := range bytes.Fields(data) {
		if pid, err := strconv.Atoi(string(field)); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

func scanChildren(parent int) []int {
	var out []int
	for _, pid := range All() {
		if st, ok := ReadStat(pid); ok && st.Parent == parent {
			out = append(out, pid)
		}
	}
	return out
}

// All lists every process this one can see.
func All() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// CommandLine is the command line of pid with its arguments separated by spaces, or its name in
// square brackets where it has none, limit bytes at most.
func CommandLine(pid, limit int) string {
	base := "/proc/" + strconv.Itoa(pid)
	data, _ := os.ReadFile(base + "/cmdline")
	data = bytes.TrimRight(data, "\x00")
	if len(data) == 0 {
		name, _ := os.ReadFile(base + "/comm")
		data = append(append([]byte{'['}, bytes.TrimSpace(name)...), ']')
	}
	return string(bytes.ReplaceAll(data[:min(len(data), limit)], []byte{0}, []byte{' '}))
}

// HasEnv reports whether pid was started with the environment entry "NAME=value". It is
// false where the environment may not be read.
func HasEnv(pid int, entry string) bool {
	return anyEnv(pid, func(item []byte) bool { return string(item) == entry })
}

// HasEnvPrefix reports whether pid was started with an environment entry that begins with
// prefix. It is false where the environment may not be read.
func HasEnvPrefix(pid int, prefix string) bool {
	return anyEnv(pid, func(item []byte) bool { return bytes.HasPrefix(item, []byte(prefix)) })
}

func anyEnv(pid int, match func(item []byte) bool) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for len(data) > 0 {
		item, rest, _ := bytes.Cut(data, []byte{0})
		if match(item) {
			return true
		}
		data = rest
	}
	return false
}
