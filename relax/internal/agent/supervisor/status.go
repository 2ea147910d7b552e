//go:build linux

package supervisor

import (
	"strconv"
	"syscall"
	"unicode/utf8"
)

// A Status is the last line a supervisor writes.
type Status struct {
	// ExitCode is the agent's exit code, -1 if it has none.
	ExitCode int `json:"exit_code"`
	// Signal is the number of the signal that ended the agent, 0 if none did.
	Signal int `json:"signal"`
	// Reason is one of the Reason constants.
	Reason string `json:"reason"`
	// Error says what went wrong with supervision itself, "" if nothing. Errno is the system's
	// number for it, 0 if it has none.
	Error string `json:"error"`
	Errno int    `json:"errno"`
	// LeftBehind counts the processes that were running when the agent had ended by itself, and
	// Names holds the command lines of the first few.
	LeftBehind int      `json:"left_behind"`
	Names      []string `json:"names"`
	// Rusage counts the agent and everything below it.
	Rusage Rusage `json:"rusage"`
}

// A Rusage is what processes used: CPU seconds, and the largest resident size of one of them.
type Rusage struct {
	UserSec  float64 `json:"utime_s"`
	SysSec   float64 `json:"stime_s"`
	MaxRSSKB int64   `json:"maxrss_kb"`
}

// A Started is the first line a supervisor writes, if the agent could be started.
type Started struct {
	// PID is the agent's process id, which is also its process group and session.
	PID int `json:"pid"`
}

// line renders by hand: encoding/json would double the start-up work of the supervisor.
func (s *Status) line() []byte {
	out := append([]byte(nil), `{"exit_code":`...)
	out = strconv.AppendInt(out, int64(s.ExitCode), 10)
	out = append(out, `,"signal":`...)
	out = strconv.AppendInt(out, int64(s.Signal), 10)
	out = append(out, `,"reason":`...)
	out = appendJSONString(out, s.Reason)
	out = append(out, `,"error":`...)
	out = appendJSONString(out, s.Error)
	out = append(out, `,"errno":`...)
	out = strconv.AppendInt(out, int64(s.Errno), 10)
	out = append(out, `,"left_behind":`...)
	out = strconv.AppendInt(out, int64(s.LeftBehind), 10)
	out = append(out, `,"names":[`...)
	for i, name := range s.Names {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendJSONString(out, name)
	}
	out = append(out, `],"rusage":{"utime_s":`...)
	out = strconv.AppendFloat(out, s.Rusage.UserSec, 'f', 6, 64)
	out = append(out, `,"stime_s":`...)
	out = strconv.AppendFloat(out, s.Rusage.SysSec, 'f', 6, 64)
	out = append(out, `,"maxrss_kb":`...)
	out = strconv.AppendInt(out, s.Rusage.MaxRSSKB, 10)
	return append(out, "}}\n"...)
}

func (s *Started) line() []byte {
	return append(strconv.AppendInt([]byte(`{"pid":`), int64(s.PID), 10), "}\n"...)
}

func appendJSONString(out []byte, s string) []byte {
	const hex = "0123456789abcdef"
	out = append(out, '"')
	for _, r := range s { // an invalid byte arrives as U+FFFD
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\\', byte(r))
		case r < 0x20:
			out = append(out, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return append(out, '"')
}

// childrenRusage is what all reaped children used: the agent and what was adopted.
func childrenRusage() Rusage {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ru) != nil {
		return Rusage{}
	}
	return Rusage{UserSec: seconds(ru.Utime), SysSec: seconds(ru.Stime), MaxRSSKB: ru.Maxrss}
}

func seconds(tv syscall.Timeval) float64 { return float64(tv.Sec) + float64(tv.Usec)/1e6 }
