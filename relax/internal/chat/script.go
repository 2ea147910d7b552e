package chat

import (
	"bytes"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// A script is rendered text in which the control tokens are marked. A message can spell a
// control token but never be one: see shield.go.
type script struct {
	text  []byte
	marks []mark
	// start: the text begins a sequence, where some tokenizers put a space before a first word.
	start bool
	// part: text lies in the memory of a longer render.
	part bool
}

// from is the part of s behind offset at, which must not lie inside a mark.
func (s script) from(at int) script {
	out := script{text: s.text[at:], part: s.part || at > 0}
	for i, m := range s.marks {
		if m.end <= at {
			continue
		}
		out.marks = make([]mark, 0, len(s.marks)-i)
		for _, m := range s.marks[i:] {
			out.marks = append(out.marks, mark{max(m.start-at, 0), m.end - at, m.id})
		}
		break
	}
	return out
}

// upTo is the part of s before offset at, which must not lie inside a mark.
func (s script) upTo(at int) script {
	out := script{text: s.text[:at:at], marks: s.marks, start: s.start, part: s.part}
	for i, m := range s.marks {
		if m.end > at {
			out.marks = s.marks[:i:i]
			break
		}
	}
	return out
}

// ids encodes the script: marks are their ids, the text between two marks is encoded in one
// piece, as the tokenizers library does between two added tokens. Pieces that known has are
// not encoded again.
func (s *script) ids(tok tokenizer.Tokenizer, known map[string][]int32) ([]int32, error) {
	pieces := make([][]int32, len(s.marks)+1)
	var texts []string
	var places []int
	at := 0
	for i := range pieces {
		end, next := len(s.text), 0
		if i < len(s.marks) {
			end, next = s.marks[i].start, s.marks[i].end
		}
		if text := textOf(s.text[at:max(at, end)]); text != "" {
			ids, ok := known[text]
			if !ok || (s.start && at == 0) {
				ids = nil
				texts, places = append(texts, text), append(places, i)
			}
			pieces[i] = ids
		}
		at = next
	}
	if err := s.encode(tok, texts, func(k int, ids []int32) { pieces[places[k]] = ids }); err != nil {
		return nil, err
	}
	return s.join(pieces), nil
}

// encode encodes texts, the pieces that are not known.
func (s *script) encode(tok tokenizer.Tokenizer, texts []string, put func(k int, ids []int32)) error {
	if s.start && len(texts) > 0 && (len(s.marks) == 0 || s.marks[0].start > 0) {
		ids, err := tok.Encode(texts[0])
		if err != nil {
			return fmt.Errorf("encode chat text: %w", err)
		}
		put(0, ids)
		encoded := put
		texts, put = texts[1:], func(k int, ids []int32) { encoded(k+1, ids) }
	}
	if len(texts) == 0 {
		return nil
	}
	if len(texts) == 1 {
		ids, err := tok.EncodeInner(texts[0])
		if err != nil {
			return fmt.Errorf("encode chat text: %w", err)
		}
		put(0, ids)
		return nil
	}
	batch, err := tok.EncodeBatch(texts)
	if err != nil {
		return fmt.Errorf("encode chat text: %w", err)
	}
	for k, ids := range batch {
		put(k, ids)
	}
	return nil
}

// join puts the ids of the marks between those of the pieces.
func (s *script) join(pieces [][]int32) []int32 {
	n := len(s.marks)
	for _, ids := range pieces {
		n += len(ids)
	}
	out := make([]int32, 0, n)
	for i, ids := range pieces {
		out = append(out, ids...)
		if i < len(s.marks) {
			out = append(out, s.marks[i].id)
		}
	}
	return out
}

// alone is s in memory of its own, so that keeping it keeps nothing else.
func (s script) alone() script {
	if s.part {
		s.text, s.marks, s.part = bytes.Clone(s.text), slices.Clone(s.marks), false
	}
	return s
}

func (s *script) equal(o *script) bool {
	if s.start != o.start || len(s.marks) != len(o.marks) || !bytes.Equal(s.text, o.text) {
		return false
	}
	for i := range s.marks {
		if s.marks[i] != o.marks[i] {
			return false
		}
	}
	return true
}

// common is the length of what a and b have in common from their beginning, cut back to where
// both have the same control tokens behind them: never inside one.
func common(a, b script) int {
	n := 0
	for limit := min(len(a.text), len(b.text)); n < limit && a.text[n] == b.text[n]; {
		n++
	}
	for n > 0 && n < len(a.text) && !utf8.RuneStart(a.text[n]) {
		n--
	}
	for i := 0; ; i++ {
		inA, inB := i < len(a.marks) && a.marks[i].start < n, i < len(b.marks) && b.marks[i].start < n
		switch {
		case !inA && !inB:
			return n
		case inA && inB && a.marks[i] == b.marks[i] && a.marks[i].end <= n:
		case inA && inB:
			return min(a.marks[i].start, b.marks[i].start)
		case inA:
			return a.marks[i].start
		default:
			return b.marks[i].start
		}
	}
}

func isSpace(text []byte) bool { return len(bytes.TrimSpace(text)) == 0 }

func trimSpaceLeft(text []byte) []byte  { return bytes.TrimLeftFunc(text, unicode.IsSpace) }
func trimSpaceRight(text []byte) []byte { return bytes.TrimRightFunc(text, unicode.IsSpace) }

// bytesOf views a string as bytes that must not be written to, textOf the reverse.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
func textOf(b []byte) string  { return unsafe.String(unsafe.SliceData(b), len(b)) }

// endsWith reports whether s ends in text that begins with a control token of its own.
func (s script) endsWith(text string) bool {
	at := len(s.text) - len(text)
	if text == "" || at < 0 || string(s.text[at:]) != text {
		return false
	}
	for _, m := range s.marks {
		if m.start == at {
			return true
		}
	}
	return false
}
