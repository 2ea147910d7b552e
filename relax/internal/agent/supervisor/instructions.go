//go:build linux

package supervisor

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Argv0 is the argv[0] a supervisor is started with. A Go program that is its own supervisor
// recognises the role by it.
const Argv0 = "relax-agent-init"

// The file descriptors a supervisor is started with, beside /dev/null as 0 and the agent's
// log file, open for reading and writing, as 1 and 2.
const (
	// OwnerFD is a stream socket to the owner. Owner to supervisor: single bytes, [ByteTerminate]
	// and [ByteKill]; end of stream means that the owner is gone. Supervisor to owner: one
	// JSON line {"pid"} once the agent runs and one JSON line, a [Status], at the end.
	OwnerFD = 3
	// InstructionsFD is a file holding the encoded [Instructions].
	InstructionsFD = 4
	// LockFD is the owner's directory, locked. The supervisor only holds it, so that the lock
	// lives as long as anything is left of the owner.
	LockFD = 5
)

// Protocol names what owner and supervisor say to each other. It changes when that changes.
const Protocol = "relax-agent-2"

// What the owner can ask for while the agent runs.
const (
	ByteTerminate byte = 't' // TERM, grace, KILL
	ByteKill      byte = 'k' // KILL at once
)

// Reasons why supervision ended, as in [Status].
const (
	ReasonExit        = "exit"         // the agent ended by itself
	ReasonTerminated  = "terminated"   // the owner, or a signal to the supervisor, ended it
	ReasonOwnerGone   = "owner_gone"   // the owner ended without ending the agent
	ReasonStartFailed = "start_failed" // the agent was never started
)

// Instructions say what to run and how. They travel in a file and not in the supervisor's own
// environment, so that the agent's environment is exact and cannot influence the supervisor.
type Instructions struct {
	// Shell is the program started, as: Shell -c Command, or with Login as: Shell -lc Command.
	Shell, Command string
	Login          bool
	// Cwd is the agent's working directory.
	Cwd string
	// IODir is removed if the owner is gone, and then, if they are empty, the directories of
	// Prune in this order.
	IODir string
	Prune []string
	// Grace is the time between TERM and KILL.
	Grace time.Duration
	// WindDown is the time that processes get to end by themselves which still run when the agent
	// has ended, as a tee does that it fed. Then they count as left behind and are ended.
	WindDown time.Duration
	// LogLimit bounds the log file in bytes.
	LogLimit int64
	// OwnerPID is the process that started the supervisor.
	OwnerPID int
	// Env is the agent's whole environment.
	Env []string
}

const fixedFields = 11

var errInstructions = errors.New("supervisor: instructions cannot be read: owner and supervisor are of different versions")

// Encode returns the instructions as NUL-separated fields. No string may contain a NUL, which
// no argument, path or environment entry can.
func (in *Instructions) Encode() []byte {
	size := 128 + len(in.Shell) + len(in.Command) + len(in.Cwd) + len(in.IODir)
	for _, list := range [][]string{in.Prune, in.Env} {
		for _, entry := range list {
			size += len(entry) + 1
		}
	}
	out := make([]byte, 0, size)
	for _, field := range [fixedFields]string{
		Protocol, in.Shell, in.Command, in.Cwd, in.IODir,
		strconv.FormatInt(int64(in.Grace), 10), strconv.FormatInt(in.LogLimit, 10), strconv.Itoa(in.OwnerPID),
		strconv.FormatBool(in.Login), strconv.FormatInt(int64(in.WindDown), 10), strconv.Itoa(len(in.Prune)),
	} {
		out = append(append(out, field...), 0)
	}
	for _, list := range [][]string{in.Prune, in.Env} {
		for _, entry := range list {
			out = append(append(out, entry...), 0)
		}
	}
	return out
}

// DecodeInstructions reads what Encode wrote.
func DecodeInstructions(data []byte) (Instructions, error) {
	if len(data) == 0 || data[len(data)-1] != 0 {
		return Instructions{}, errInstructions
	}
	fields := strings.Split(string(data[:len(data)-1]), "\x00")
	if len(fields) < fixedFields || fields[0] != Protocol {
		return Instructions{}, errInstructions
	}
	rest := fields[fixedFields:]
	grace, err1 := strconv.ParseInt(fields[5], 10, 64)
	limit, err2 := strconv.ParseInt(fields[6], 10, 64)
	owner, err3 := strconv.Atoi(fields[7])
	windDown, err4 := strconv.ParseInt(fields[9], 10, 64)
	prune, err5 := strconv.Atoi(fields[10])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil || prune < 0 || prune > len(rest) {
		return Instructions{}, errInstructions
	}
	return Instructions{
		Shell: fields[1], Command: fields[2], Login: fields[8] == "true", Cwd: fields[3], IODir: fields[4],
		Grace: time.Duration(grace), WindDown: time.Duration(windDown), LogLimit: limit, OwnerPID: owner,
		Prune: rest[:prune:prune], Env: rest[prune:],
	}, nil
}

func readInstructions(fd int) (Instructions, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return Instructions{}, err
	}
	data := make([]byte, st.Size)
	for n := 0; n < len(data); {
		m, err := syscall.Pread(fd, data[n:], int64(n))
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return Instructions{}, err
		}
		if m == 0 {
			return Instructions{}, errInstructions
		}
		n += m
	}
	return DecodeInstructions(data)
}
