package parsers

import "strings"

// thinkTags is the grammar most reasoning models share: one block between two tags at the
// beginning of the turn.
type thinkTags struct {
	start, end string
	// interrupt ends an unclosed block without being part of it: a model that goes straight
	// from thinking to a call. "" if the family has none.
	interrupt string
	// always forces reasoning whatever the prompt said.
	always bool
}

// Split follows SGLang's base detector: a start tag anywhere makes the text reasoning up to
// the first end tag, start tags at the very beginning are removed, nothing is trimmed. An
// unclosed block is reasoning up to the interrupting marker or the end of the text.
func (g thinkTags) Split(t Turn) Split {
	if !g.always && !t.ThinkOpen && !strings.Contains(t.Text, g.start) {
		return Split{Content: t.Text}
	}
	text := t.Text
	for strings.HasPrefix(text, g.start) {
		text = text[len(g.start):]
	}
	if reasoning, content, closed := strings.Cut(text, g.end); closed {
		return Split{Reasoning: reasoning, Content: content}
	}
	if g.interrupt != "" {
		if i := strings.Index(text, g.interrupt); i >= 0 {
			return Split{Reasoning: text[:i], Content: text[i:]}
		}
	}
	return Split{Reasoning: text}
}
