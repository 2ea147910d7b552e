package chat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// sampled are the own terminators a model samples.
func (e *turnEnd) sampled() []int32 {
	var out []int32
	for _, id := range e.Own {
		if !slices.Contains(e.InHistory, id) {
			out = append(out, id)
		}
	}
	return out
}

// setEqual finds which stop ids the template writes itself: those end a turn as they are.
func (e *turnEnd) setEqual(template string, stops []int32, c *controls) {
	for _, id := range stops {
		t := c.token(id)
		if slices.Contains(e.Own, id) || (t != nil && strings.Contains(template, t.Content)) {
			e.Equal = append(e.Equal, id)
		}
	}
}

// learnPieces encodes what the template puts between control tokens once: every turn has it.
func (f *Format) learnPieces() error {
	for _, t := range f.templates() {
		for _, s := range continuations() {
			out, err := t.print(s.conversation, true)
			if err != nil {
				continue
			}
			if err := f.learnGaps(out); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxPiece is the longest text worth remembering, in bytes.
const maxPiece = 24

func (f *Format) learnGaps(s script) error {
	at := 0
	for _, m := range s.marks {
		gap := s.text[at:m.start]
		at = m.end
		if len(gap) == 0 || len(gap) > maxPiece || strings.Contains(string(gap), "relax") {
			continue
		}
		ids, err := f.tok.EncodeInner(string(gap))
		if err != nil {
			return fmt.Errorf("encode the chat template's text %q: %w", gap, err)
		}
		f.pieces[string(gap)] = slices.Clip(ids)
	}
	return nil
}

// roundTrip encodes a small conversation and decodes it again: a tokenizer that adds, drops
// or rewrites text around control tokens would put other text before the model than the
// template says, on every turn and in silence. It also checks that content which spells every
// control token stays text.
func (f *Format) roundTrip() error {
	hostile := hostileText(f.controls)
	c := conversation{turns: []*canon.Message{say(canon.User, "a {\"b\": 1}\n\n  c\u00e9\u4e16"+hostile)}}
	t := f.plain
	out, err := t.print(c, true)
	if err != nil {
		return fmt.Errorf("tokenizer self-check: %w", err)
	}
	ids, err := f.encodeScript(&out)
	if err != nil {
		return fmt.Errorf("tokenizer self-check: %w", err)
	}
	if controls := len(out.marks); controls != f.countControls(ids) {
		return fmt.Errorf("tokenizer self-check: the template writes %d control tokens and %d are encoded: content that spells one "+
			"becomes one; mark them as special in %s", controls, f.countControls(ids), tokenizerFile)
	}
	back, err := f.tok.Decode(ids)
	if err != nil {
		return fmt.Errorf("tokenizer self-check: %w", err)
	}
	if want := string(out.text); !sameText(back, want) {
		at := 0
		for at < len(back) && at < len(want) && back[at] == want[at] {
			at++
		}
		return fmt.Errorf("tokenizer self-check: chat text does not survive encoding: at byte %d expected %q, got %q",
			at, canon.Shorten(want[at:], 40), canon.Shorten(back[at:], 40))
	}
	return nil
}

// sameText compares text apart from white space, which control tokens may swallow (flags
// lstrip and rstrip) and SentencePiece tokenizers put before a first word.
func sameText(a, b string) bool {
	return strings.Join(strings.Fields(a), "") == strings.Join(strings.Fields(b), "")
}

// hostileText spells control tokens: some of each vocabulary, for Gemma has six thousand.
func hostileText(c *controls) string {
	var b strings.Builder
	for i, t := range c.tokens {
		if i < 40 || i >= len(c.tokens)-40 {
			b.WriteString(" x" + t.Content + "y")
		}
	}
	return b.String()
}

func (f *Format) countControls(ids []int32) int {
	n := 0
	for _, id := range ids {
		if f.controls.token(id) != nil {
			n++
		}
	}
	return n
}
