// Package chat is one model's chat format: its template, tokenizer and parsers. It turns the
// new messages of a request into token ids (an observation) and generated ids into the
// assistant message a client sees.
//
// What may enter: canonical requests, token ids, the files of a checkpoint directory. What it
// never does: HTTP, sampling, keeping conversations, and encoding generated ids again: they
// pass through as they were sampled.
//
// Templates are rendered by hand-written Go, known by a fingerprint of the template text, and
// equal to Hugging Face's apply_chat_template byte for byte with two settled differences in
// what goes in: tools are printed in the reference's key order (name, parameters,
// description), because the canonical tool keeps no other, and tool-call arguments in
// canonical form (sorted keys, 2.0 as 2). A template that is not known is refused at start.
package chat

import (
	"errors"
	"fmt"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/parsers"
	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// Options choose how generated text is read.
type Options struct {
	// ReasoningParser and ToolCallParser are SGLang parser names, "" for none.
	ReasoningParser string
	ToolCallParser  string
}

// A Format is one model's chat format. All methods are safe for concurrent use.
type Format struct {
	tok       tokenizer.Tokenizer
	style     style
	controls  controls
	reasoning parsers.ReasoningParser
	toolCalls parsers.ToolCallParser
	imEnd     int32
	stopIDs   []int32 // the terminator first
	// The generation prompts with thinking left to the model and with it switched off.
	prompt, promptNoThinking prompt
	// newline is the encoded text between two turns, the one run that every delta has.
	newline []int32
	cache   encodeCache
}

// A prompt is an encoded generation prompt.
type prompt struct {
	ids       []int32
	thinkOpen bool
}

// New returns the Qwen3-style ChatML format on tok, for models that come without files. It
// takes tok over: [Format.Close] closes it. On an error tok stays the caller's.
func New(tok tokenizer.Tokenizer, opts Options) (*Format, error) {
	var stops []int32
	if id, ok := tok.TokenID("<|endoftext|>"); ok {
		stops = append(stops, id)
	}
	return newFormat(tok, qwen3Style{}, stops, opts)
}

// newFormat builds a format whose turns also end at the ids of stops.
func newFormat(tok tokenizer.Tokenizer, s style, stops []int32, opts Options) (*Format, error) {
	reasoning, err := parsers.Reasoning(opts.ReasoningParser)
	if err != nil {
		return nil, fmt.Errorf("agentic_reasoning_parser: %w", err)
	}
	toolCalls, err := parsers.ToolCalls(opts.ToolCallParser)
	if err != nil {
		return nil, fmt.Errorf("agentic_tool_call_parser: %w", err)
	}
	f := &Format{tok: tok, style: s, controls: findControls(tok), reasoning: reasoning, toolCalls: toolCalls}
	for _, m := range []string{imStart, imEnd} {
		if _, ok := f.controls[m]; !ok {
			return nil, fmt.Errorf("tokenizer has no token %s: the ChatML template needs it", m)
		}
	}
	f.imEnd = f.controls[imEnd]
	f.stopIDs = []int32{f.imEnd}
	for _, id := range stops {
		if !slices.Contains(f.stopIDs, id) {
			f.stopIDs = append(f.stopIDs, id)
		}
	}
	if f.newline, err = tok.Encode("\n"); err != nil {
		return nil, fmt.Errorf("encode the text between two turns: %w", err)
	}
	if f.prompt, err = f.encodePrompt(false); err != nil {
		return nil, err
	}
	if f.promptNoThinking, err = f.encodePrompt(true); err != nil {
		return nil, err
	}
	if err := f.selfCheck(); err != nil {
		return nil, err
	}
	return f, nil
}

// encode encodes the text between two control tokens.
func (f *Format) encode(text []byte) ([]int32, error) {
	if len(text) == 1 && text[0] == '\n' {
		return f.newline, nil
	}
	return f.tok.Encode(string(text))
}

func (f *Format) encodePrompt(noThinking bool) (prompt, error) {
	var s script
	f.style.prompt(&s, &scene{controls: f.controls, noThinking: noThinking})
	ids, err := s.ids(f.encode)
	if err != nil {
		return prompt{}, fmt.Errorf("generation prompt: %w", err)
	}
	return prompt{ids: slices.Clip(ids), thinkOpen: parsers.OpensThinking(f.reasoning, string(s.text))}, nil
}

// StopIDs are the ids that end a turn: the terminator first, then the checkpoint's own EOS
// ids. The slice must not be changed.
func (f *Format) StopIDs() []int32 { return f.stopIDs }

// Terminator is the id that the template ends an assistant turn with.
func (f *Format) Terminator() int32 { return f.imEnd }

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
