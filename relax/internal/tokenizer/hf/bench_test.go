//go:build cgo && !relax_nohf

package hf

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proseUnit has words, numbers, code and two scripts, as a turn of an agent does.
const proseUnit = "The answer is 42, because Ada finds the book in the library. 今天天气很好。\n" +
	"{\"name\": \"search\", \"arguments\": {\"query\": \"naïve Bayes\", \"limit\": 25}}\n" +
	"for i in range(10):\n    total += values[i] * weights[i]  # weighted sum\n"

var benchTexts = []struct{ name, text string }{
	{"5B", "Hello"},
	{"200B", proseUnit},
	{"10kB", strings.Repeat(proseUnit, 10<<10/len(proseUnit))},
	{"1MB", strings.Repeat(proseUnit, 1<<20/len(proseUnit))},
}

// benchFiles are tokenizers to measure: ours, and the real ones that are there.
func benchFiles(b *testing.B) map[string]string {
	root := os.Getenv("RELAX_CHECKPOINTS")
	if root == "" {
		root = "../../../../.cache/checkpoints"
	}
	files := map[string]string{"tinychat": tinychat}
	found, err := filepath.Glob(filepath.Join(root, "*", "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range found {
		files[filepath.Base(filepath.Dir(file))] = file
	}
	if len(found) == 0 {
		b.Logf("NO REAL TOKENIZER IS MEASURED: there is none in %s (`make deps` fetches them)", root)
	}
	return files
}

func encodeTimes(b testing.TB, tok *Tokenizer, text string, n int) {
	for range n {
		if _, err := tok.EncodeInner(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for model, file := range benchFiles(b) {
		tok := open(b, file)
		for _, c := range benchTexts {
			b.Run(model+"/"+c.name, func(b *testing.B) {
				b.SetBytes(int64(len(c.text)))
				b.ReportAllocs()
				encodeTimes(b, tok, c.text, 1) // fill the library's cache
				b.ResetTimer()
				encodeTimes(b, tok, c.text, b.N)
			})
		}
	}
}

// BenchmarkScaling shows whether one tokenizer serves several goroutines at once, beside one
// instance for each. MB/cpu-s counts processor time, so that it says the same on a busy machine.
func BenchmarkScaling(b *testing.B) {
	for model, file := range benchFiles(b) {
		shared := open(b, file)
		text := benchTexts[2].text
		for _, n := range []int{1, 2, 4} {
			one := slices.Repeat([]*Tokenizer{shared}, n)
			b.Run(fmt.Sprintf("%s/goroutines=%d/instances=1", model, n), func(b *testing.B) { encodeTogether(b, one, text) })
		}
		two := []*Tokenizer{shared, open(b, file)}
		b.Run(model+"/goroutines=2/instances=2", func(b *testing.B) { encodeTogether(b, two, text) })
	}
}

// encodeTogether shares b.N encodings among a goroutine for each tokenizer.
func encodeTogether(b *testing.B, toks []*Tokenizer, text string) {
	for _, tok := range toks {
		encodeTimes(b, tok, text, 1) // fill the library's cache
	}
	b.SetBytes(int64(len(text)))
	b.ResetTimer()
	before := cpuTime(b)
	var wg sync.WaitGroup
	for g, tok := range toks {
		wg.Go(func() { encodeTimes(b, tok, text, (b.N+g)/len(toks)) })
	}
	wg.Wait()
	b.ReportMetric(float64(len(text)*b.N)/1e6/(cpuTime(b)-before).Seconds(), "MB/cpu-s")
}

// cpuTime returns the processor time of this process so far.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func BenchmarkEncodeBatch(b *testing.B) {
	tok := open(b, tinychat)
	texts := make([]string, 64)
	size := 0
	for i := range texts {
		texts[i] = benchTexts[2].text
		size += len(texts[i])
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tok.EncodeBatch(texts); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for model, file := range benchFiles(b) {
		tok := open(b, file)
		ids := mustEncode(b, tok, benchTexts[2].text)
		b.Run(model+"/10kB", func(b *testing.B) {
			b.SetBytes(int64(len(benchTexts[2].text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tok.Decode(ids); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for model, file := range benchFiles(b) {
		b.Run(model, func(b *testing.B) {
			info, err := os.Stat(file)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(info.Size())
			b.ReportAllocs()
			for b.Loop() {
				tok, err := Load(file, Options{})
				if err != nil {
					b.Fatal(err)
				}
				if err := tok.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAgainstRust sets EncodeInner beside the tokenizers crate called by Rust, in turns, on
// the same text. x-rust is our time divided by Rust's, the median of the rounds; the speeds are
// each the best of the rounds.
func BenchmarkAgainstRust(b *testing.B) {
	for model, file := range benchFiles(b) {
		tok := open(b, file)
		rust := startRust(b, file)
		for _, c := range benchTexts {
			b.Run(model+"/"+c.name, func(b *testing.B) {
				count := max(1, 20_000/len(c.text))
				encodeTimes(b, tok, c.text, 1)
				rust.time(b, c.text, 1)
				ours, theirs := math.Inf(1), math.Inf(1)
				var ratios []float64
				for range max(b.N, 2) {
					rustTime := rust.time(b, c.text, count)
					start := time.Now()
					encodeTimes(b, tok, c.text, count)
					time := float64(time.Since(start).Nanoseconds()) / float64(count)
					ours, theirs = min(ours, time), min(theirs, rustTime)
					ratios = append(ratios, time/rustTime)
				}
				slices.Sort(ratios)
				b.ReportMetric(0, "ns/op") // a round is no operation
				b.ReportMetric(ratios[len(ratios)/2], "x-rust")
				b.ReportMetric(float64(len(c.text))*1e3/ours, "MB/s")
				b.ReportMetric(float64(len(c.text))*1e3/theirs, "rust-MB/s")
			})
		}
	}
}

// A rustEncoder is a running shim/examples/direct.rs.
type rustEncoder struct {
	in  io.Writer
	out *bufio.Reader
}

func startRust(b *testing.B, file string) *rustEncoder {
	program := os.Getenv("RELAX_RUST_DIRECT")
	if program == "" {
		program = "../../../../.cache/tokenizers/release/examples/direct"
	}
	if _, err := exec.LookPath(program); err != nil {
		b.Skipf("RUST IS NOT MEASURED: %v (`make bench` builds it; RELAX_RUST_DIRECT names another place)", err)
	}
	cmd := exec.CommandContext(b.Context(), program, file)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := in.Close(); err != nil {
			b.Error(err)
		}
		_ = cmd.Wait() // it ended by itself, or the benchmark's context ended it
	})
	return &rustEncoder{in, bufio.NewReader(out)}
}

// time returns the nanoseconds of one encode_fast.
func (r *rustEncoder) time(b *testing.B, text string, count int) (ns float64) {
	if _, err := fmt.Fprintf(r.in, "%d %d\n%s", count, len(text), text); err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Fscanln(r.out, &ns); err != nil {
		b.Fatal(err)
	}
	return ns
}
