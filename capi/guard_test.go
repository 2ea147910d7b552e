package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax"
)

// The statuses of the header.
const (
	ok         = 0
	timeout    = 1
	closed     = 2
	invalid    = -1
	state      = -2
	already    = -3
	noMemory   = -4
	system     = -5
	backend    = -6
	afterPanic = -9
)

func TestStatusOf(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("call: %w", err) }
	for _, c := range []struct {
		err  error
		want int
	}{
		{relax.ErrClosed, closed},
		{wrap(relax.ErrState), state},
		{wrap(relax.ErrInvalid), invalid},
		{&relax.OptionError{Option: "agent_cwd", Problem: "missing"}, invalid},
		{wrap(relax.ErrBackend), backend},
		{fmt.Errorf("%w: %w", relax.ErrBackend, context.DeadlineExceeded), backend},
		{wrap(context.DeadlineExceeded), timeout},
		{errAlready, already},
		{wrap(&memoryError{what: "a batch", size: 1}), noMemory},
		{fmt.Errorf("%w: %w", relax.ErrPanic, relax.ErrClosed), afterPanic},
		{os.ErrNotExist, system},
	} {
		if got := int(statusOf(c.err)); got != c.want {
			t.Errorf("statusOf(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

// quiet sends what the guard prints to nowhere and heals the process afterwards.
func quiet(t *testing.T) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = null
	t.Cleanup(func() {
		os.Stderr = stderr
		_ = null.Close()
		poison.Store(nil)
	})
}

func explode() { panic("first cause") }

func TestPanicPoisons(t *testing.T) {
	quiet(t)
	if got := run("relax_submit", nil, func() error { explode(); return nil }); got != afterPanic {
		t.Fatalf("status of the panic: %d", got)
	}
	first := *poison.Load()
	for _, part := range []string{"relax: panic in relax_submit: first cause; ", "capi.explode("} {
		if !strings.Contains(first, part) {
			t.Errorf("no %q in %q", part, first)
		}
	}
	if stack := first[strings.Index(first, "\n")+1:]; !strings.Contains(strings.SplitN(stack, "\n", 2)[0], "explode") {
		t.Errorf("the frame that panicked does not come first: %q", stack)
	}
	called := false
	if got := run("relax_poll", nil, func() error { called = true; return nil }); got != afterPanic || called {
		t.Errorf("later call: %d, called %v", got, called)
	}
	second := poisonWith("relax_poll", errors.New("second"), nil)
	if second != first {
		t.Errorf("a second panic replaced the first: %q", second)
	}
}

// The engine catches panics of its own goroutines and tells the next call, which poisons as well.
func TestAPanicOfTheEnginePoisons(t *testing.T) {
	quiet(t)
	cause := fmt.Errorf("%w: goroutine loop: boom", relax.ErrPanic)
	if got := run("relax_poll", nil, func() error { return cause }); got != afterPanic {
		t.Fatalf("status of the panic: %d", got)
	}
	called := false
	if got := run("relax_open", nil, func() error { called = true; return nil }); got != afterPanic || called {
		t.Errorf("later call: %d, called %v", got, called)
	}
	if text := *poison.Load(); text != cause.Error() {
		t.Errorf("poison %q", text)
	}
}

func TestNilDereferenceIsCaught(t *testing.T) {
	quiet(t)
	if got := run("relax_submit", nil, func() error { _ = *nowhere(); return nil }); got != afterPanic {
		t.Fatalf("status %d", got)
	}
}

func TestRunReportsErrors(t *testing.T) {
	if got := run("x", nil, func() error { return nil }); got != ok {
		t.Errorf("no error: %d", got)
	}
	if got := run("x", nil, func() error { return relax.ErrState }); got != state {
		t.Errorf("ErrState: %d", got)
	}
}

func TestPanicHookIsOffByDefault(t *testing.T) {
	tasks := []relax.Task{{}, {Metadata: []byte(`{"__panic__": true}`)}}
	panicOnRequest(tasks)
	panicHook = true
	t.Cleanup(func() { panicHook = false })
	panicOnRequest([]relax.Task{{}, {Metadata: []byte(`{"other": true}`)}, {Metadata: []byte(`[]`)}})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	panicOnRequest(tasks)
}

func TestBuildInfo(t *testing.T) {
	if got := buildInfo(); !strings.HasPrefix(got, `{"version":"dev","go":"go1.`) {
		t.Error(got)
	}
}
