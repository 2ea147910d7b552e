package sglangtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer/bytetok"
)

// ByteTokenizer returns a tokenizer that needs no file: one id a byte, and the control
// tokens of the Qwen family behind them.
func ByteTokenizer() Tokenizer { return bytetok.New() }

// Config says how a [Server] behaves. The zero value is a server on a free loopback port
// with the byte tokenizer and [DefaultPolicy].
type Config struct {
	// Addr is where to listen. Default "127.0.0.1:0": a free port.
	Addr string
	// Tokenizer counts and decodes. Default [ByteTokenizer]. The server does not close it.
	Tokenizer Tokenizer
	// Policy is what the model says. Default [DefaultPolicy].
	Policy *Policy
	// ModelPath and ServedName are reported by /model_info, until /update_weights_from_disk brings
	// another path, which both are then. Default "sglangtest", and ModelPath.
	ModelPath  string
	ServedName string
	// WeightVersion is the version the server starts with. Default "default".
	WeightVersion string
	// EOS are the ids that end a reply; the first is the one candidates end with. Default: the
	// tokenizer's <|im_end|> and <|endoftext|>, those it has.
	EOS []int32
	// ContextLen is the context length in tokens. Default 32768.
	ContextLen int
	// Seed makes sampling repeatable: equal seeds, rids and prompts give equal replies.
	Seed uint64
	// StartDelay is spent before the first token, in the waiting queue. TokenDelay is the
	// time from one token to the next. Default 0: as fast as possible.
	StartDelay time.Duration
	TokenDelay time.Duration
	// MaxRunning bounds the requests generating at once; others wait in the queue. Default 0:
	// no bound. MaxQueued bounds those waiting for a place; more are refused with 503.
	// Default 0: no bound.
	MaxRunning int
	MaxQueued  int
	// FlushEvery is how many tokens of a unary request reach the answering side at once; an
	// abort of a retracted request loses what came after the last multiple. Default 50, as in
	// SGLang.
	FlushEvery int
	// ImageTokens is how many placeholder tokens an image becomes. Default 1. ImageToken is
	// the placeholder's spelling. Default "<|image_pad|>"; without such a token requests with
	// images are refused.
	ImageTokens int
	ImageToken  string
	// KVTokens is the KV cache size that is reported. Default 4 Mi. Nothing is refused for it.
	KVTokens int
	// Metrics opens GET /metrics, as --enable-metrics does.
	Metrics bool
	// Drafts, if not 0, makes answers carry the counts of speculative decoding with so many draft
	// tokens a step, of which as many are accepted as the reply is long.
	Drafts int
	// Experts makes the server answer return_routed_experts. Default: such requests are refused.
	Experts Experts
	// APIKey, if set, must come as a bearer token with everything but health checks.
	APIKey string
	// WorkerURLs are listed by /workers. Default: the server itself. NoWorkers takes the route
	// away: a real worker has none, only a router has.
	WorkerURLs []string
	NoWorkers  bool
	// Faults are the rules a server starts with; see [Server.SetFault] for a function.
	Faults []FaultRule
	// Records bounds [Server.Requests]. Default 256; negative: none.
	Records int
	// DisconnectCheck is how often connections are checked for clients that have gone.
	// Default 100 ms.
	DisconnectCheck time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.Tokenizer == nil {
		c.Tokenizer = ByteTokenizer()
	}
	if c.Policy == nil {
		c.Policy = DefaultPolicy()
	}
	setDefault(&c.ModelPath, "sglangtest")
	setDefault(&c.ServedName, c.ModelPath)
	setDefault(&c.WeightVersion, "default")
	setDefault(&c.ContextLen, 32768)
	setDefault(&c.FlushEvery, 50)
	setDefault(&c.ImageTokens, 1)
	setDefault(&c.ImageToken, "<|image_pad|>")
	setDefault(&c.Records, 256)
	setDefault(&c.KVTokens, maxCached)
	setDefault(&c.DisconnectCheck, 100*time.Millisecond)
	if len(c.EOS) == 0 {
		for _, spelling := range []string{"<|im_end|>", "<|endoftext|>"} {
			if id, ok := c.Tokenizer.TokenID(spelling); ok {
				c.EOS = append(c.EOS, id)
			}
		}
	}
	c.EOS = slices.Clone(c.EOS)
	c.WorkerURLs = slices.Clone(c.WorkerURLs)
	return c, c.check()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) check() error {
	if len(c.EOS) == 0 {
		return fmt.Errorf("EOS: the tokenizer has neither <|im_end|> nor <|endoftext|>; give the ids that end a reply")
	}
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"ContextLen", c.ContextLen >= 2},
		{"StartDelay", c.StartDelay >= 0},
		{"TokenDelay", c.TokenDelay >= 0},
		{"MaxRunning", c.MaxRunning >= 0},
		{"MaxQueued", c.MaxQueued >= 0},
		{"FlushEvery", c.FlushEvery >= 1},
		{"ImageTokens", c.ImageTokens >= 1},
		{"DisconnectCheck", c.DisconnectCheck > 0},
		{"KVTokens", c.KVTokens > 0},
		{"Drafts", c.Drafts >= 0},
		{"Experts", c.Experts == Experts{} || c.Experts.Layers > 0 && c.Experts.TopK > 0 && c.Experts.Count >= c.Experts.TopK},
	} {
		if !f.ok {
			return fmt.Errorf("%s is out of range", f.name)
		}
	}
	for _, id := range c.EOS {
		if id < 0 || int(id) >= c.Tokenizer.VocabSize() {
			return fmt.Errorf("EOS: id %d is outside the vocabulary of %d ids", id, c.Tokenizer.VocabSize())
		}
	}
	return nil
}
