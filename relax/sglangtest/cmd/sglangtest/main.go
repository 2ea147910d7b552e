// Command sglangtest runs the SGLang stand-in of package sglangtest as a process of its own,
// for trainers and agents that are not Go programs.
//
//	sglangtest [-addr host:port] [-policy file.json] [-faults file.json] [...]
//
// It prints its URL as one line on standard output when it listens, and ends cleanly, with
// status 0, on SIGTERM or SIGINT. With -router it stands in for a router in front of the
// workers named by -workers instead.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sglangtest:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	config   sglangtest.Config
	policy   string
	faults   string
	workers  string
	router   bool
	hf       string
	tokenize string
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("sglangtest", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.config.Addr, "addr", "127.0.0.1:0", "where to listen; port 0 is a free one")
	f.StringVar(&o.policy, "policy", "", "policy document, a JSON file; empty: the built-in one")
	f.StringVar(&o.faults, "faults", "", "fault rules, a JSON file")
	f.StringVar(&o.tokenize, "tokenizer", "byte", "byte: one id a byte, or hf: see -hf-checkpoint")
	f.StringVar(&o.hf, "hf-checkpoint", "", "directory with a tokenizer.json; implies -tokenizer hf")
	f.StringVar(&o.config.ModelPath, "model-path", "", "reported model path")
	f.StringVar(&o.config.ServedName, "served-model-name", "", "reported model name")
	f.StringVar(&o.config.WeightVersion, "weight-version", "", `first weight version; empty: "default"`)
	f.IntVar(&o.config.ContextLen, "context-length", 0, "context length in tokens; 0: 32768")
	f.Uint64Var(&o.config.Seed, "seed", 0, "seed of sampling")
	f.DurationVar(&o.config.StartDelay, "start-delay", 0, "time before the first token, such as 20ms")
	f.DurationVar(&o.config.TokenDelay, "token-delay", 0, "time between tokens, such as 5ms")
	f.IntVar(&o.config.MaxRunning, "max-running-requests", 0, "requests generating at once; 0: no bound")
	f.IntVar(&o.config.MaxQueued, "max-queued-requests", 0, "requests waiting for that; 0: no bound")
	f.IntVar(&o.config.KVTokens, "kv-tokens", 0, "KV cache size that is reported, in tokens; 0: 4194304")
	f.BoolVar(&o.config.Metrics, "enable-metrics", false, "answer GET /metrics")
	f.StringVar(&o.config.APIKey, "api-key", "", "bearer token to ask for")
	f.StringVar(&o.workers, "workers", "", "worker URLs for /workers or -router, separated by commas")
	f.BoolVar(&o.router, "router", false, "be a router in front of -workers")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.workers != "" {
		o.config.WorkerURLs = strings.Split(o.workers, ",")
	}
	return o, nil
}

// server is what both kinds of server are here.
type server interface {
	URL() string
	Close() error
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	s, release, err := o.start()
	if err != nil {
		return err
	}
	defer release()
	if _, err := fmt.Fprintln(stdout, s.URL()); err != nil {
		return errors.Join(err, s.Close())
	}
	<-ctx.Done()
	return s.Close()
}

func (o *options) start() (s server, release func(), err error) {
	if o.router {
		s, err := sglangtest.NewRouterAt(o.config.Addr, o.config.WorkerURLs...)
		if err != nil {
			return nil, nil, err
		}
		return s, func() {}, nil
	}
	if err := o.readFiles(); err != nil {
		return nil, nil, err
	}
	release, err = o.tokenizer()
	if err != nil {
		return nil, nil, err
	}
	s, err = sglangtest.New(o.config)
	if err != nil {
		release()
		return nil, nil, err
	}
	return s, release, nil
}

func (o *options) readFiles() error {
	if o.policy != "" {
		document, err := os.ReadFile(o.policy)
		if err != nil {
			return fmt.Errorf("-policy: %w", err)
		}
		if o.config.Policy, err = sglangtest.ParsePolicy(document); err != nil {
			return fmt.Errorf("-policy %s: %w", o.policy, err)
		}
	}
	if o.faults != "" {
		document, err := os.ReadFile(o.faults)
		if err != nil {
			return fmt.Errorf("-faults: %w", err)
		}
		if o.config.Faults, err = sglangtest.ParseFaults(document); err != nil {
			return fmt.Errorf("-faults %s: %w", o.faults, err)
		}
	}
	return nil
}

// tokenizer sets the tokenizer asked for and returns what frees it.
func (o *options) tokenizer() (release func(), err error) {
	if o.hf == "" && o.tokenize == "byte" {
		return func() {}, nil
	}
	if o.hf == "" && o.tokenize == "hf" {
		return nil, errors.New("-tokenizer hf: give the directory with -hf-checkpoint")
	}
	if o.tokenize != "hf" && o.tokenize != "byte" {
		return nil, fmt.Errorf("-tokenizer is %q, expected byte or hf", o.tokenize)
	}
	tok, err := loadHF(o.hf)
	if err != nil {
		return nil, fmt.Errorf("-hf-checkpoint %s: %w", o.hf, err)
	}
	o.config.Tokenizer = tok
	return func() { _ = tok.Close() }, nil // the process ends
}
