package chat

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// A tag is a spelling that agents and datasets write as text, such as <think> or <tool_call>.
// Vocabularies that list tags as ordinary tokens mean them to come out of text.
var tag = regexp.MustCompile(`^</?[A-Za-z_][A-Za-z0-9_:.-]*>$`)

// isControl reports whether an added token may come only from the template, never from the
// text of a message: every token that the file calls special, and of the others those that a
// template writes, unless they are white space or plain tags. DeepSeek's <｜User｜> is not
// special in its file, and yet nobody but the template may open a turn.
func isControl(t tokenizer.AddedToken, templates ...string) bool {
	if t.Special {
		return true
	}
	if !strings.ContainsFunc(t.Content, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		return false
	}
	if tag.MatchString(t.Content) {
		return false
	}
	for _, source := range templates {
		if strings.Contains(source, t.Content) {
			return true
		}
	}
	return false
}

// controls finds control tokens in rendered text. Flags are those of the tokenizers library,
// and so is the rule for overlaps: leftmost, then longest.
type controls struct {
	tokens []tokenizer.AddedToken
	nodes  []trieNode
	first  [256]bool
	// only is the byte that every spelling begins with, if there is but one.
	only   byte
	single bool
}

// A trieNode's children lie in one list each: few have more than two.
type trieNode struct {
	next  []trieEdge
	token int32 // index into tokens, -1 if no spelling ends here
}

type trieEdge struct {
	b    byte
	node int32
}

func newControls(tokens []tokenizer.AddedToken) *controls {
	c := &controls{tokens: tokens, nodes: []trieNode{{token: -1}}}
	for i, t := range tokens {
		if t.Content == "" {
			continue
		}
		c.first[t.Content[0]] = true
		at := int32(0)
		for k := range len(t.Content) {
			at = c.grow(at, t.Content[k])
		}
		c.nodes[at].token = int32(i)
	}
	count := 0
	for b, used := range c.first {
		if used {
			c.only = byte(b)
			count++
		}
	}
	c.single = count == 1
	return c
}

// next is the first offset from i on where a spelling may begin, len(text) if there is none.
func (c *controls) next(text []byte, i int) int {
	if c.single {
		if k := bytes.IndexByte(text[i:], c.only); k >= 0 {
			return i + k
		}
		return len(text)
	}
	for i < len(text) && !c.first[text[i]] {
		i++
	}
	return i
}

func (c *controls) grow(at int32, b byte) int32 {
	if next := c.step(at, b); next >= 0 {
		return next
	}
	c.nodes = append(c.nodes, trieNode{token: -1})
	next := int32(len(c.nodes) - 1)
	c.nodes[at].next = append(c.nodes[at].next, trieEdge{b, next})
	return next
}

func (c *controls) step(at int32, b byte) int32 {
	for _, e := range c.nodes[at].next {
		if e.b == b {
			return e.node
		}
	}
	return -1
}

// longest is the control token that text begins with, nil if none. partial says that text
// ends in the middle of a spelling.
func (c *controls) longest(text []byte) (found *tokenizer.AddedToken, partial bool) {
	at := int32(0)
	for _, b := range text {
		if at = c.step(at, b); at < 0 {
			return found, false
		}
		if i := c.nodes[at].token; i >= 0 {
			found = &c.tokens[i]
		}
	}
	return found, true
}

// token returns the control token with an id, nil if it is none.
func (c *controls) token(id int32) *tokenizer.AddedToken {
	for i := range c.tokens {
		if c.tokens[i].ID == id {
			return &c.tokens[i]
		}
	}
	return nil
}

// hazard is the offset behind the first rune of the first control spelling in text, or the
// end of text if it ends inside a spelling that other text could complete; -1 if neither.
func (c *controls) hazard(text string) int {
	for i := c.next(bytesOf(text), 0); i < len(text); i = c.next(bytesOf(text), i+1) {
		found, partial := c.longest(bytesOf(text[i:]))
		if found != nil {
			_, size := utf8.DecodeRuneInString(text[i:])
			return i + size
		}
		if partial {
			return len(text)
		}
	}
	return -1
}

// A mark says that text[start:end] is the token id. White space that the token swallows by
// its flags lies inside.
type mark struct {
	start, end int
	id         int32
}

// scan marks the control tokens of text. cuts are ascending offsets that no token may span:
// there the text of a message begins, ends or goes on.
func (c *controls) scan(text []byte, cuts []int) []mark {
	var marks []mark
	behind := 0 // end of the last mark
	for i := c.next(text, 0); i < len(text); i = c.next(text, i) {
		t, _ := c.longest(text[i:])
		if t == nil {
			i++
			continue
		}
		end := i + len(t.Content)
		for len(cuts) > 0 && cuts[0] <= i {
			cuts = cuts[1:]
		}
		if (len(cuts) > 0 && cuts[0] < end) || (t.SingleWord && !standsAlone(text, i, end)) {
			i++
			continue
		}
		m := mark{start: i, end: end, id: t.ID}
		if t.LStrip {
			m.start = max(behind, len(trimSpaceRight(text[:i])))
		}
		if t.RStrip {
			m.end = len(text) - len(trimSpaceLeft(text[end:]))
		}
		marks = append(marks, m)
		behind, i = m.end, m.end
	}
	return marks
}

// standsAlone reports whether no word touches text[start:end] (flag single_word).
func standsAlone(text []byte, start, end int) bool {
	before, _ := utf8.DecodeLastRune(text[:start])
	after, _ := utf8.DecodeRune(text[end:])
	return (start == 0 || !isWord(before)) && (end == len(text) || !isWord(after))
}

// isWord is the \w of Unicode's regular expressions (UTS 18), which the tokenizers library asks.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.In(r, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc, unicode.Join_Control)
}
