//go:build linux

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What agents take of the trainer's and the host's limits.
const (
	// filesPerAgent is a running agent's share of the trainer's descriptors: the socket to its
	// supervisor and the supervisor's pidfd.
	filesPerAgent = 2
	// filesPerStart is what a start holds in addition: log, instructions, the socket's other end,
	// and the pipe that tells whether exec worked.
	filesPerStart = 5
	// connectionsPerAgent is what an agent's model client holds at the least.
	connectionsPerAgent = 1
	// tasksPerAgent is a running agent's share of the host's processes and threads at the least:
	// the supervisor's 7 threads, a shell, and the app.
	tasksPerAgent = 9
)

// checkLimits compares what cfg.MaxAgents agents take with what there is. What cannot work is
// an error, what may not is a warning.
func checkLimits(cfg Config) (warnings []string, err error) {
	if cfg.MaxAgents <= 0 {
		return nil, nil
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		warning, err := checkFiles(cfg, files.Cur, openFiles())
		if err != nil {
			return nil, err
		}
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	if limit, used, ok := cgroupPids(); ok {
		if need := cfg.MaxAgents * tasksPerAgent; used+need > limit {
			warnings = append(warnings, fmt.Sprintf("agent: %d agents take %d processes and threads at least, and the cgroup allows %d, of which %d are in use; raise pids.max or lower agentic_concurrency",
				cfg.MaxAgents, need, limit, used))
		}
	}
	return warnings, nil
}

// checkFiles is about descriptors of this process, of which limit may be open and used are.
func checkFiles(cfg Config, limit uint64, used int) (warning string, err error) {
	own := used + cfg.MaxAgents*filesPerAgent + cfg.StartConcurrency*filesPerStart
	all := own + cfg.MaxAgents*connectionsPerAgent
	text := func(need int, what string) string {
		return fmt.Sprintf("%d agents need %d descriptors in this process (%d each for %s, %d in use now) and RLIMIT_NOFILE allows %d; raise it with ulimit -n or lower it",
			cfg.MaxAgents, need, (need-used)/cfg.MaxAgents, what, used, limit)
	}
	switch {
	case uint64(own) > limit:
		return "", &OptionError{Option: "agentic_concurrency", Problem: text(own, "supervision")}
	case uint64(all) > limit:
		return "agent: option agentic_concurrency: " + text(all, "supervision and a connection to the model"), nil
	}
	return "", nil
}

// openFiles counts this process's descriptors, 0 if it cannot.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries) - 1 // without the one it read from
}

func fileLimits() string {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil {
		return "RLIMIT_NOFILE"
	}
	text := fmt.Sprintf("RLIMIT_NOFILE soft %s, hard %s", limitText(lim.Cur), limitText(lim.Max))
	if n := openFiles(); n > 0 {
		text += fmt.Sprintf(", %d open", n)
	}
	return text
}

func processLimits() string {
	var lim unix.Rlimit
	text := "RLIMIT_NPROC"
	if unix.Getrlimit(unix.RLIMIT_NPROC, &lim) == nil {
		text += " " + limitText(lim.Cur)
	}
	if limit, used, ok := cgroupPids(); ok {
		text += fmt.Sprintf(", cgroup pids.max %d with %d in use", limit, used)
	}
	return text
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// cgroupPids reads how many tasks the process's cgroup allows and has. ok is false if it sets
// no limit, or is of a kind not known here.
func cgroupPids() (limit, used int, ok bool) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root := "/sys/fs/cgroup"
		if fields[1] == "pids" { // version 1
			root += "/pids"
		} else if fields[0] != "0" {
			continue
		}
		limit, err1 := readInt(filepath.Join(root, fields[2], "pids.max"))
		used, err2 := readInt(filepath.Join(root, fields[2], "pids.current"))
		if err1 == nil && err2 == nil {
			return limit, used, true
		}
	}
	return 0, 0, false
}

func readInt(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data))) // "max" is no number
}
