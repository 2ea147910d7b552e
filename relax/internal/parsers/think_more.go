package parsers

import (
	"strings"
)

// minimaxAppendThink keeps the think block in the content and puts back the start tag that
// was part of the prompt: what MiniMax wants replayed.
type minimaxAppendThink struct{}

func (minimaxAppendThink) Split(t Turn) Split { return Split{Content: "<think>" + t.Text} }

// minimaxM3Reasoning is the base grammar, but an end tag in front of an answer that was not
// to think is removed.
type minimaxM3Reasoning struct{}

func (minimaxM3Reasoning) Split(t Turn) Split {
	if !t.ThinkOpen {
		if rest, ok := strings.CutPrefix(pyTrimLeft(t.Text), minimaxM3Think.end); ok {
			t.Text = rest
		}
	}
	return minimaxM3Think.Split(t)
}

// hunyuanReasoning is the base grammar whose tags may carry a suffix of the vocabulary, as in
// <think:x>. SGLang takes the suffix from the vocabulary, here the first tag of the text shows it.
type hunyuanReasoning struct{}

func (hunyuanReasoning) Split(t Turn) Split {
	suffix, found := tagSuffix(t.Text, "<think")
	if !found {
		suffix, _ = tagSuffix(t.Text, "</think")
	}
	g := thinkTags{start: "<think" + suffix + ">", end: "</think" + suffix + ">", interrupt: "<tool_calls" + suffix + ">"}
	return g.Split(t)
}

// tagSuffix finds the first tag that begins with open, a "<" and a name, and returns what
// stands between the name and the ">": "" or ":suffix".
func tagSuffix(text, open string) (suffix string, found bool) {
	const longest = 64 // a vocabulary's suffix is short; a longer one is other text
	for rest := text; ; {
		_, after, ok := strings.Cut(rest, open)
		if !ok {
			return "", false
		}
		if strings.HasPrefix(after, ">") {
			return "", true
		}
		if strings.HasPrefix(after, ":") {
			if end := strings.IndexAny(after[:min(len(after), longest)], "<>\n "); end > 0 && after[end] == '>' {
				return after[:end], true
			}
		}
		rest = after
	}
}

// k2HorizonReasoning is the base grammar with one of three pairs of tags, whichever the turn
// uses. The prompt that opens a block shows in the end tag only.
type k2HorizonReasoning struct{}

func (k2HorizonReasoning) Split(t Turn) Split {
	for _, g := range k2HorizonThinks {
		if strings.Contains(t.Text, g.start) || t.ThinkOpen && strings.Contains(t.Text, g.end) {
			return g.Split(t)
		}
	}
	return k2HorizonThinks[len(k2HorizonThinks)-1].Split(t)
}

// cohereReasoning reads Command A: a think block that the prompt always opens, then the
// answer between text markers or an action block, which is left for the tool-call parser.
// Needs special tokens.
//
// Fixed against SGLang: an answer without text markers is kept, SGLang drops it; and a block
// that lacks its end ends where the answer or the action begins.
type cohereReasoning struct{}

const (
	cohereTextOpen    = "<|START_TEXT|>"
	cohereTextClose   = "<|END_TEXT|>"
	cohereActionOpen  = "<|START_ACTION|>"
	cohereActionClose = "<|END_ACTION|>"
)

func (cohereReasoning) Split(t Turn) Split {
	g := thinkTags{start: "<|START_THINKING|>", end: "<|END_THINKING|>", always: true, interrupt: cohereTextOpen}
	if action := strings.Index(t.Text, cohereActionOpen); action >= 0 && !strings.Contains(t.Text[:action], cohereTextOpen) {
		g.interrupt = cohereActionOpen
	}
	s := g.Split(t)
	answer, action := s.Content, ""
	if i := strings.Index(answer, cohereActionOpen); i >= 0 {
		answer, action = answer[:i], answer[i:]
	}
	if _, inside, ok := strings.Cut(answer, cohereTextOpen); ok {
		answer, _, _ = strings.Cut(inside, cohereTextClose)
	}
	s.Content = answer + action
	return s
}

// apertusReasoning joins any number of inner blocks. A tools list inside a block moves to the
// content, where the tool-call parser finds it. Needs special tokens.
type apertusReasoning struct{}

const (
	apertusInnerOpen  = "<|inner_prefix|>"
	apertusInnerClose = "<|inner_suffix|>"
	apertusToolsOpen  = "<|tools_prefix|>"
	apertusToolsClose = "<|tools_suffix|>"
)

func (apertusReasoning) Split(t Turn) Split {
	var reasoning, content strings.Builder
	for rest := t.Text; rest != ""; {
		outside, after, opened := strings.Cut(rest, apertusInnerOpen)
		content.WriteString(outside)
		if !opened {
			break
		}
		inner, next, _ := strings.Cut(after, apertusInnerClose)
		rest = next
		for {
			before, list, more := strings.Cut(inner, apertusToolsOpen)
			end := strings.Index(list, apertusToolsClose)
			if !more || end < 0 {
				reasoning.WriteString(inner)
				break
			}
			end += len(apertusToolsClose)
			reasoning.WriteString(before)
			content.WriteString(apertusToolsOpen + list[:end])
			inner = list[end:]
		}
	}
	return Split{Reasoning: reasoning.String(), Content: content.String()}
}
