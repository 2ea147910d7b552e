package chat

import (
	"bytes"
	"fmt"
	"strconv"
)

// Rendered text no longer shows what the template wrote and what stood in a message. Almost
// always that makes no difference: a message that spells no control token cannot be one. Where
// one does, the conversation is rendered a second time with every such spelling broken by a
// character that nobody writes (the seal). Where both renders say the same apart from the
// seals, the seals' places are the places where the text of a message goes on, and no control
// token may span one.
//
// A template may act on a spelling in a message: many cut an assistant's content at </think>.
// Then the renders differ, and those spellings are left to the template, as Hugging Face leaves
// all of them.

// maxTries bounds the renders spent on finding out which spellings of assistant messages a
// template reads.
const maxTries = 64

// shielded renders v, whose messages spell control tokens, to text that is known to be plain.
func (t *template) shielded(v *view, n int, generate bool, plain []byte) ([]int, error) {
	seal, escaped, err := newSeal(plain)
	if err != nil {
		return nil, err
	}
	try := func(sealed func(int) bool) ([]int, bool) {
		c := &cast{dialect: &t.dialect, controls: t.controls, seal: seal, sealed: sealed}
		text, err := t.exec(v.recast(c), n, generate)
		if err != nil {
			return nil, false
		}
		open, cuts := unseal(text, seal, escaped)
		return cuts, bytes.Equal(open, plain)
	}
	if cuts, ok := try(func(int) bool { return true }); ok {
		return cuts, nil
	}
	safe := func(k int) bool { return !v.cast.assistant[k] }
	if _, ok := try(safe); !ok {
		return nil, fmt.Errorf("%s: a message spells a control token, and the template reads it: "+
			"it cannot be kept apart from the template's own", t.name)
	}
	kept := map[int]bool{}
	tries := 0
	for k := range v.cast.hazards {
		if safe(k) || tries == maxTries {
			continue
		}
		tries++
		if _, ok := try(func(i int) bool { return i == k }); ok {
			kept[k] = true
		}
	}
	if cuts, ok := try(func(k int) bool { return safe(k) || kept[k] }); ok {
		return cuts, nil
	}
	cuts, _ := try(safe)
	return cuts, nil
}

// newSeal picks one of Unicode's noncharacters that text does not have, and the spelling that
// JSON and Python's repr give it.
func newSeal(text []byte) (seal, escaped string, err error) {
	for r := rune(0xFDD0); r <= 0xFDEF; r++ {
		seal, escaped = string(r), `\u`+strconv.FormatInt(int64(r), 16)
		if !bytes.Contains(text, bytesOf(seal)) && !bytes.Contains(text, bytesOf(escaped)) {
			return seal, escaped, nil
		}
	}
	return "", "", fmt.Errorf("a message spells a control token beside all 32 noncharacters from U+FDD0 on")
}

// unseal takes the seals out of text in place and returns where they were.
func unseal(text []byte, seal, escaped string) (open []byte, cuts []int) {
	open = text[:0]
	for i := 0; i < len(text); {
		switch rest := text[i:]; {
		case rest[0] == seal[0] && bytes.HasPrefix(rest, bytesOf(seal)):
			cuts = append(cuts, len(open))
			i += len(seal)
		case rest[0] == '\\' && bytes.HasPrefix(rest, bytesOf(escaped)):
			cuts = append(cuts, len(open))
			i += len(escaped)
		default:
			open = append(open, rest[0])
			i++
		}
	}
	return open, cuts
}
