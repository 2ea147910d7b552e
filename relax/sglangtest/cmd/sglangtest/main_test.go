package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asProgram makes the test binary behave as the program itself.
const asProgram = "SGLANGTEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// TestSIGTERM: the program prints its URL, serves, and ends with status 0 on SIGTERM, also
// with a request in flight.
func TestSIGTERM(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-token-delay", "1h", "-weight-version", "5")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(line)
	if status, raw := post(t, url+"/generate", `{"text":"q","sampling_params":{"max_new_tokens":1}}`); status != 200 || !strings.Contains(raw, `"weight_version":"5"`) {
		t.Errorf("got %d %s", status, raw)
	}
	dropped := make(chan error, 1)
	go func() {
		resp, err := client.Post(url+"/generate", "application/json", strings.NewReader(`{"text":"q"}`))
		if err == nil {
			resp.Body.Close()
		}
		dropped <- err
	}()
	waitInFlight(t, url)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if err := <-dropped; err == nil {
		t.Error("the request in flight got an answer")
	}
}

func waitInFlight(t *testing.T, url string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		resp, err := client.Get(url + "/v1/loads?include=core")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(`"num_running_reqs":1`)) {
			return
		}
	}
	t.Fatal("the request did not start")
}

// serve runs the program in this process and returns its URL.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, args, writer, io.Discard)
		writer.CloseWithError(errors.Join(io.EOF, err))
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestFilesAndRouter(t *testing.T) {
	dir := t.TempDir()
	policy, faults := filepath.Join(dir, "policy.json"), filepath.Join(dir, "faults.json")
	if err := os.WriteFile(policy, []byte(`{"default":[{"text":"from the file"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(faults, []byte(`[{"rid_prefix":"bad","fault":{"status":500,"body":"as told"}}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	worker := serve(t, "-policy", policy, "-faults", faults)
	router := serve(t, "-router", "-workers", worker)
	for _, url := range []string{worker, router} {
		if status, raw := post(t, url+"/generate", `{"text":"q"}`); status != 200 || !strings.Contains(raw, "from the file") {
			t.Errorf("got %d %s", status, raw)
		}
		if status, raw := post(t, url+"/generate", `{"text":"q","rid":"bad1"}`); status != 500 || raw != "as told" {
			t.Errorf("got %d %s", status, raw)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"argument":        {[]string{"x"}, "unexpected argument"},
		"flag":            {[]string{"-none"}, "not defined"},
		"no policy file":  {[]string{"-policy", filepath.Join(dir, "none")}, "-policy"},
		"broken policy":   {[]string{"-policy", broken}, "broken.json"},
		"broken faults":   {[]string{"-faults", broken}, "broken.json"},
		"tokenizer":       {[]string{"-tokenizer", "words"}, "expected byte or hf"},
		"hf without path": {[]string{"-tokenizer", "hf"}, "-hf-checkpoint"},
		"no checkpoint":   {[]string{"-hf-checkpoint", dir}, "-hf-checkpoint"},
		"address":         {[]string{"-addr", "127.0.0.1:none"}, "listening"},
	} {
		err := run(t.Context(), c.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	if err := run(t.Context(), []string{"-h"}, io.Discard, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}
