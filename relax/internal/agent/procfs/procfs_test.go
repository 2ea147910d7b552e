//go:build linux

package procfs

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestParseStat(t *testing.T) {
	tests := []struct {
		name, in string
		want     Stat
		ok       bool
	}{
		{"plain", "12 (bash) S 1 12 11 0 -1", Stat{'S', 1, 12, 11}, true},
		{"brackets and spaces in the name", "12 (a) b) (c) Z 7 8 9 0", Stat{'Z', 7, 8, 9}, true},
		{"no bracket", "12 bash S 1 2 3", Stat{}, false},
		{"cut short", "12 (bash) S 1", Stat{}, false},
		{"not a number", "12 (bash) S x 2 3", Stat{}, false},
		{"empty", "", Stat{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := parseStat([]byte(tt.in))
			if got != tt.want || ok != tt.ok {
				t.Fatalf("got %+v %v, want %+v %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestTreeOfARealChild(t *testing.T) {
	cmd := exec.Command("cat")
	cmd.Env = []string{"RELAX_TEST_MARK=a b", "OTHER=1"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stdin.Close(); cmd.Wait() }()
	pid := cmd.Process.Pid

	if got := Children(os.Getpid()); !slices.Contains(got, pid) {
		t.Errorf("Children = %v, want %d in it", got, pid)
	}
	if got := scanChildren(os.Getpid()); !slices.Contains(got, pid) {
		t.Errorf("scanChildren = %v, want %d in it", got, pid)
	}
	st, ok := ReadStat(pid)
	if !ok || st.Parent != os.Getpid() {
		t.Errorf("ReadStat = %+v %v, want parent %d", st, ok, os.Getpid())
	}
	if !HasEnv(pid, "RELAX_TEST_MARK=a b") {
		t.Error("HasEnv does not find an entry that is there")
	}
	if HasEnv(pid, "RELAX_TEST_MARK=a") || HasEnv(pid, "RELAX_TEST_MARK") {
		t.Error("HasEnv matches part of an entry")
	}
	if !HasEnvPrefix(pid, "RELAX_TEST_MARK=a") || HasEnvPrefix(pid, "TEST_MARK") {
		t.Error("HasEnvPrefix does not find the beginning of an entry, or finds its middle")
	}
	if got := CommandLine(pid, 80); got != "cat" {
		t.Errorf("CommandLine = %q, want cat", got)
	}
	if got := CommandLine(pid, 2); got != "ca" {
		t.Errorf("CommandLine of two bytes = %q, want ca", got)
	}
}

func TestNoSuchProcess(t *testing.T) {
	const none = 1 << 30
	if _, ok := ReadStat(none); ok {
		t.Error("ReadStat found a process that cannot exist")
	}
	if got := Children(none); got != nil {
		t.Errorf("Children = %v, want none", got)
	}
	if HasEnv(none, "A=b") {
		t.Error("HasEnv found a process that cannot exist")
	}
}
