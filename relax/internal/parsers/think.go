package parsers

import "strings"

// thinkTags is the grammar most reasoning models share: one block between two tags at the
// beginning of the turn.
type thinkTags struct {
	start, end string
	// label follows the start tag and belongs to it where it is removed, not where it is
	// looked for (Gemma 4). "" for most.
	label string
	// interrupt ends an unclosed block without being part of it: a model that goes straight
	// from thinking to a call. "" if the family has none.
	interrupt string
	// always forces reasoning whatever the prompt said, never lets the start tag alone decide.
	always, never bool
}

// Split follows SGLang's base detector: a start tag anywhere makes the text reasoning up to
// the first end tag, start tags at the very beginning are removed, nothing is trimmed. An
// unclosed block is reasoning up to the interrupting marker or the end of the text.
func (g thinkTags) Split(t Turn) Split {
	forced := g.always || t.ThinkOpen && !g.never
	if !forced && !strings.Contains(t.Text, g.start) {
		return Split{Content: t.Text}
	}
	text, opening := t.Text, g.start+g.label
	for strings.HasPrefix(text, opening) {
		text = text[len(opening):]
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

// The plain families. SGLang forces qwen3 and its likes whenever the request does not turn
// thinking off, so that an answer without any tag is all reasoning and the content is empty;
// here it is content unless the prompt opened the block. Of these mistral and gemma4 need
// the special tokens spelled out.
var (
	qwen3         = thinkTags{start: "<think>", end: "</think>", interrupt: toolCallOpen}
	qwen3Thinking = thinkTags{start: "<think>", end: "</think>", interrupt: toolCallOpen, always: true}
	// deepseekR1 always thinks: text without any tag is reasoning. A tool-call marker inside
	// an unclosed block stays reasoning.
	deepseekR1      = thinkTags{start: "<think>", end: "</think>", always: true}
	deepseekV4Think = thinkTags{start: "<think>", end: "</think>", interrupt: "<｜DSML｜"}
	kimiThink       = thinkTags{start: "◁think▷", end: "◁/think▷", never: true}
	kimiK2Think     = thinkTags{start: "<think>", end: "</think>", interrupt: kimiSectionOpen}
	mistralThink    = thinkTags{start: "[THINK]", end: "[/THINK]"}
	gemma4Think     = thinkTags{start: "<|channel>", label: "thought\n", end: "<channel|>"}
	dotsThink       = thinkTags{start: "<think>", end: "</think>", interrupt: dotsOpen}
	minimaxM3Think  = thinkTags{start: "<mm:think>", end: "</mm:think>"}
	k2HorizonThinks = []thinkTags{ifmThink("think_faster"), ifmThink("think_fast"), ifmThink("think")}
)

func ifmThink(name string) thinkTags {
	return thinkTags{start: "<ifm|" + name + ">", end: "</ifm|" + name + ">", interrupt: k2HorizonOpen}
}
