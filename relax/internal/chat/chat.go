// Package chat is one model's chat format: its template, tokenizer and parsers. It turns the
// new messages of a request into token ids (an observation) and generated ids into the
// assistant message a client sees.
//
// What may enter: canonical requests, token ids, the files of a checkpoint directory. What it
// never does: HTTP, sampling, keeping conversations, and encoding generated ids again: they
// pass through as they were sampled.
//
// A conversation is rendered by the checkpoint's own Jinja template, byte for byte as Hugging
// Face's apply_chat_template does. What goes in is canonical: tool-call arguments have sorted
// keys and 2.0 is 2, keys without a value are absent. How a template wants the rest (arguments
// as an object or as text, where a system message may stand, which tokens end a turn) is found
// out once at start by rendering probe conversations: probe.go. How the text behind a response
// is found is chosen there too, and checked against full renders: delta.go and selfcheck.go. A
// template for which nothing holds is refused at start, with what was tried.
package chat

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/parsers"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// Options choose how generated text is read.
type Options struct {
	// ReasoningParser and ToolCallParser are SGLang parser names, "" for none.
	ReasoningParser string
	ToolCallParser  string
	// Now is the clock behind strftime_now, which some templates print; nil is time.Now.
	Now func() time.Time
}

// A Format is one model's chat format. All methods are safe for concurrent use.
type Format struct {
	tok       tokenizer.Tokenizer
	controls  *controls
	plain     *template // without tools
	tools     *template // with tools; the same one unless the checkpoint has a "tool_use"
	names     Options   // as given, in small letters
	reasoning parsers.ReasoningParser
	toolCalls parsers.ToolCallParser
	stopIDs   []int32 // the terminator first
	findings  map[*template][]finding
	cache     encodeCache
	// pieces are the short texts that templates put between control tokens, encoded.
	pieces map[string][]int32

	mu      sync.Mutex
	prompts map[promptKey]*prompt
}

//go:embed chatml.jinja
var chatML string

// New returns a ChatML format with tools and thinking on tok, for models that come without
// files. It takes tok over: [Format.Close] closes it. On an error tok stays the caller's.
func New(tok tokenizer.Tokenizer, opts Options) (*Format, error) {
	c := checkpoint{templates: []source{{name: defaultTemplate, file: "the built-in ChatML template", text: chatML}}}
	if id, ok := tok.TokenID("<|endoftext|>"); ok {
		c.eos = append(c.eos, id)
	}
	return newFormat(tok, c, opts)
}

// newFormat builds the format of a checkpoint whose files were read.
func newFormat(tok tokenizer.Tokenizer, c checkpoint, opts Options) (*Format, error) {
	reasoning, err := parsers.Reasoning(opts.ReasoningParser)
	if err != nil {
		return nil, fmt.Errorf("agentic_reasoning_parser: %w", err)
	}
	toolCalls, err := parsers.ToolCalls(opts.ToolCallParser)
	if err != nil {
		return nil, fmt.Errorf("agentic_tool_call_parser: %w", err)
	}
	opts.ReasoningParser, opts.ToolCallParser = strings.ToLower(opts.ReasoningParser), strings.ToLower(opts.ToolCallParser)
	f := &Format{tok: tok, names: opts, reasoning: reasoning, toolCalls: toolCalls, findings: map[*template][]finding{},
		pieces: map[string][]int32{}, prompts: map[promptKey]*prompt{}}
	f.controls = newControls(c.controlTokens(tok.AddedTokens()))
	for _, s := range c.templates {
		t, err := f.learn(s, &c, opts)
		if err != nil {
			return nil, err
		}
		switch s.name {
		case defaultTemplate:
			f.plain = t
		case toolUseTemplate:
			f.tools = t
		}
	}
	if f.tools == nil {
		f.tools = f.plain
	}
	if err := f.findStops(c.eos); err != nil {
		return nil, err
	}
	for _, t := range f.templates() {
		t.turnEnd.setEqual(t.text, f.stopIDs, f.controls)
		findings, err := t.choose()
		if err != nil {
			return nil, err
		}
		f.findings[t] = findings
	}
	if err := f.learnPieces(); err != nil {
		return nil, err
	}
	return f, f.roundTrip()
}

// learn compiles and probes one template.
func (f *Format) learn(s source, c *checkpoint, opts Options) (*template, error) {
	now := opts.Now
	if now == nil {
		now = time.Now
	}
	t, err := newTemplate(s, c.named(), f.controls, now)
	if err != nil {
		return nil, err
	}
	if err := t.probe(); err != nil {
		return nil, err
	}
	t.probeTurnEnd(c.eos)
	return t, nil
}

func (f *Format) templates() []*template {
	if f.tools == f.plain {
		return []*template{f.plain}
	}
	return []*template{f.plain, f.tools}
}

// template is the one Hugging Face takes: "tool_use", if there is one, for requests with tools.
func (f *Format) template(tools []canon.ToolSpec) *template {
	if len(tools) > 0 {
		return f.tools
	}
	return f.plain
}

// findStops collects the ids that end a generation: the terminators the templates show, then
// those of the checkpoint's files.
func (f *Format) findStops(eos []int32) error {
	for _, t := range f.templates() {
		for _, list := range [][]int32{t.turnEnd.sampled(), t.turnEnd.Shared} {
			for _, id := range list {
				f.addStop(id)
			}
		}
	}
	for _, id := range eos {
		f.addStop(id)
	}
	if len(f.stopIDs) == 0 {
		return errors.New("no token ends a turn: the chat template closes an assistant message with none, and neither " +
			"eos_token of tokenizer_config.json nor eos_token_id of generation_config.json is there")
	}
	return nil
}

func (f *Format) addStop(id int32) {
	if !slices.Contains(f.stopIDs, id) {
		f.stopIDs = append(f.stopIDs, id)
	}
}

func (f *Format) encodeScript(s *script) ([]int32, error) { return s.ids(f.tok, f.pieces) }

// StopIDs are the ids that end a turn: the terminator first, then the checkpoint's own EOS
// ids. The slice must not be changed.
func (f *Format) StopIDs() []int32 { return f.stopIDs }

// Terminator is the id that the template ends an assistant turn with.
func (f *Format) Terminator() int32 { return f.stopIDs[0] }

// TokenText is the text of one token, "" for an id outside the vocabulary. A token that is
// only part of a character gives U+FFFD.
func (f *Format) TokenText(id int32) string {
	text, err := f.tok.Decode([]int32{id})
	if err != nil {
		return ""
	}
	return text
}

// Tokenizer is the format's tokenizer. It must not be closed.
func (f *Format) Tokenizer() tokenizer.Tokenizer { return f.tok }

// Close closes the tokenizer.
func (f *Format) Close() error { return f.tok.Close() }

var errEncodePanicked = errors.New("encode observation: the tokenizer panicked")

// xxhashOf is a key for template arguments, whose keys are sorted.
func xxhashOf(v canon.Value) uint64 {
	if len(v.Members()) == 0 {
		return 0
	}
	return xxhash.Sum64(v.AppendCompact(nil))
}
