//go:build linux

package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestInstructionsRoundTrip(t *testing.T) {
	for _, in := range []Instructions{
		{Shell: "/bin/bash", Command: "a 'b'\nc", Cwd: "/x y", IODir: "/z", Grace: 5 * time.Second, WindDown: time.Second, LogLimit: 1 << 20, OwnerPID: 42, Login: true, Prune: []string{"/a", "/b"}, Env: []string{"A=1", "B=", "C=a=b\n"}},
		{Prune: []string{}, Env: []string{}},
	} {
		got, err := DecodeInstructions(in.Encode())
		if err != nil || !reflect.DeepEqual(got, in) {
			t.Errorf("got %+v, %v, want %+v", got, err, in)
		}
	}
}

func FuzzDecodeInstructions(f *testing.F) {
	in := Instructions{Shell: "s", Command: "c", Env: []string{"A=1"}}
	f.Add(in.Encode())
	f.Add([]byte(""))
	f.Add([]byte(Protocol + "\x00"))
	f.Add([]byte(Protocol + "\x00a\x00b\x00c\x00d\x00x\x001\x001\x00"))
	f.Add([]byte(Protocol + "\x00a\x00b\x00c\x00d\x001\x001\x001\x00true\x001\x009\x00A=1\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in, err := DecodeInstructions(data)
		if err != nil {
			return
		}
		again, err := DecodeInstructions(in.Encode())
		if err != nil || !reflect.DeepEqual(again, in) {
			t.Fatalf("%+v becomes %+v, %v", in, again, err)
		}
	})
}

func TestStatusIsJSON(t *testing.T) {
	for _, text := range []string{"", `a "b" \ c`, "tab\tnewline\nbell\a", "é \u2028", "bad \xff byte"} {
		want := Status{ExitCode: -1, Signal: 9, Reason: ReasonExit, Error: text, Errno: 11, LeftBehind: 2, Names: []string{text, "b"}, Rusage: Rusage{UserSec: 1.25, SysSec: 0.000001, MaxRSSKB: 7}}
		line := want.line()
		var got Status
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		want.Error = strings.ToValidUTF8(text, "\uFFFD")
		want.Names[0] = want.Error
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if strings.Count(string(line), "\n") != 1 {
			t.Errorf("%q is not one line", line)
		}
	}
	var got Started
	if err := json.Unmarshal((&Started{PID: 12}).line(), &got); err != nil || got.PID != 12 {
		t.Errorf("started = %+v, %v", got, err)
	}
}

func TestBoundedLogAccountsForEveryByte(t *testing.T) {
	for _, limit := range []int64{4096, 5000, 64 << 10} {
		path := filepath.Join(t.TempDir(), "log")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		rw, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer rw.Close()
		l := newBoundedLog(int(rw.Fd()), limit)
		var all strings.Builder
		for i := 0; int64(all.Len()) < 5*limit; i++ {
			line := fmt.Sprintf("line %d\n", i)
			all.WriteString(line)
			l.append([]byte(line))
			if st, err := f.Stat(); err != nil || st.Size() > limit {
				t.Fatalf("size %d, %v, limit %d", st.Size(), err, limit)
			}
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, tail, ok := strings.Cut(string(data), "\n[relax: ")
		if !ok {
			t.Fatalf("no mark in %q", data)
		}
		count, tail, ok := strings.Cut(tail, " bytes of output left out]\n")
		if !ok {
			t.Fatalf("no end of the mark in %q", data)
		}
		var missing int
		if _, err := fmt.Sscan(count, &missing); err != nil {
			t.Fatal(err)
		}
		if len(head)+missing+len(tail) != all.Len() {
			t.Errorf("limit %d: %d + %d + %d bytes, want %d in all", limit, len(head), missing, len(tail), all.Len())
		}
		if !strings.HasPrefix(all.String(), head) || !strings.HasSuffix(all.String(), tail) {
			t.Errorf("limit %d: head or tail is not what was written", limit)
		}
	}
}

func TestLogSurvivesAFullDisk(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("SKIPPED, no /dev/full here: %v", err)
	}
	defer f.Close()
	l := newBoundedLog(int(f.Fd()), 4096)
	l.append([]byte("x"))
	if !l.failed || l.size != 0 {
		t.Errorf("failed = %v, size = %d", l.failed, l.size)
	}
	l.append([]byte("y"))
}

func TestRemoveTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "a"), 0); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("still there")
	}
	if err := RemoveTree(dir); err != nil {
		t.Errorf("of nothing: %v", err)
	}
}

func TestCloseListed(t *testing.T) {
	const first = 700 // this test's own descriptors are below
	open := func(fd int) bool {
		var st syscall.Stat_t
		return syscall.Fstat(fd, &st) == nil
	}
	for _, fd := range []int{first - 1, first, first + 17} {
		if open(fd) {
			t.Fatalf("descriptor %d is in use", fd)
		}
		if err := syscall.Dup3(0, fd, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	defer syscall.Close(first - 1)
	closeListed(first)
	if !open(first-1) || open(first) || open(first+17) {
		t.Errorf("open: %d %v, %d %v, %d %v, want only the first", first-1, open(first-1), first, open(first), first+17, open(first+17))
	}
}

func TestCheckIsJSON(t *testing.T) {
	for _, want := range []Check{{}, {Protocol: Protocol, Subreaper: true, Proc: true}, {PidFD: true, CloseRange: true}} {
		var got Check
		if err := json.Unmarshal(want.line(), &got); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}
