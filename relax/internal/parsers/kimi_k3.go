package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Kimi K3 writes XTML: channels and elements between <|open|>NAME<|sep|> and
// <|close|>NAME<|sep|>, all of them special tokens.
const (
	xtmlOpen  = "<|open|>"
	xtmlClose = "<|close|>"
	xtmlSep   = "<|sep|>"

	kimiK3ThinkOpen     = xtmlOpen + "think" + xtmlSep
	kimiK3ThinkClose    = xtmlClose + "think" + xtmlSep
	kimiK3ResponseOpen  = xtmlOpen + "response" + xtmlSep
	kimiK3ResponseClose = xtmlClose + "response" + xtmlSep
	kimiK3MessageClose  = xtmlClose + "message" + xtmlSep
	kimiK3ToolsOpen     = xtmlOpen + "tools" + xtmlSep
	kimiK3ToolsClose    = xtmlClose + "tools" + xtmlSep
)

// kimiK3Reasoning parts the think channel from the response channel, whose wrapper is
// removed. A tools channel that opens before the think channel closes ends the reasoning.
//
// Fixed against SGLang: a turn that never closes its think channel but opens or closes a
// response has its answer in the content, where SGLang makes all of it reasoning.
type kimiK3Reasoning struct{}

func (kimiK3Reasoning) Split(t Turn) Split {
	text := strings.TrimPrefix(t.Text, kimiK3ThinkOpen)
	closing := strings.Index(text, kimiK3ThinkClose)
	calls := strings.Index(text, kimiK3ToolsOpen)
	thinks := t.ThinkOpen || len(text) < len(t.Text) || closing >= 0
	switch {
	case calls >= 0 && (closing < 0 || calls < closing) && thinks && !strings.Contains(text[:calls], kimiK3ResponseOpen):
		return Split{Reasoning: text[:calls], Content: text[calls:]}
	case closing >= 0:
		return Split{Reasoning: text[:closing], Content: kimiK3Response(text[closing+len(kimiK3ThinkClose):])}
	}
	if i := strings.Index(text, kimiK3ResponseOpen); i >= 0 {
		return Split{Reasoning: text[:i], Content: kimiK3Response(text[i:])}
	}
	if thinks && !strings.Contains(text, kimiK3ResponseClose) {
		return Split{Reasoning: text}
	}
	return Split{Content: kimiK3Response(text)}
}

// kimiK3Response removes the response wrapper and the message's end, whole or cut short. A
// tools channel after the response stays.
func kimiK3Response(text string) string {
	answer, calls := text, ""
	if i := strings.Index(text, kimiK3ToolsOpen); i >= 0 {
		answer, calls = text[:i], text[i:]
	}
	answer = strings.TrimPrefix(answer, kimiK3ResponseOpen)
	if before, after, ok := strings.Cut(answer, kimiK3ResponseClose); ok {
		answer = before + after
	}
	if calls == "" {
		answer = strings.TrimSuffix(answer, kimiK3MessageClose)
		for _, marker := range []string{kimiK3ResponseClose, kimiK3MessageClose} {
			answer = cutPartial(answer, marker)
		}
	}
	return answer + calls
}

// cutPartial removes the beginning of marker at the end of text, if it is long enough to be
// one: a generation cut off inside the marker.
func cutPartial(text, marker string) string {
	for n := min(len(marker), len(text)); n >= len(xtmlClose); n-- {
		if strings.HasSuffix(text, marker[:n]) {
			return text[:len(text)-n]
		}
	}
	return text
}

// kimiK3 reads the tools channel: calls with typed arguments. Content is the text before the
// channel; functions that were not offered pass through, as in SGLang. The end of the
// channel may be missing. Needs special tokens.
type kimiK3 struct{}

func (kimiK3) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, kimiK3ToolsOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools, anyName: true}
	block, _, _ := strings.Cut(text[first+len(kimiK3ToolsOpen):], kimiK3ToolsClose)
	for {
		_, after, opened := strings.Cut(block, xtmlOpen+"call ")
		if !opened {
			break
		}
		header, rest, ok := strings.Cut(after, xtmlSep)
		body, next, closed := strings.Cut(rest, xtmlClose+"call"+xtmlSep)
		if !ok || !closed {
			got.fault("a call of the tools channel is not closed")
			break
		}
		block = next
		got.take(xtmlAttr(header, "tool"), kimiK3Arguments(body))
	}
	return got.result(text, text[:first])
}

func kimiK3Arguments(body string) canon.Value {
	var args argList
	for {
		_, after, opened := strings.Cut(body, xtmlOpen+"argument ")
		if !opened {
			return args.value()
		}
		header, rest, ok := strings.Cut(after, xtmlSep)
		value, next, closed := strings.Cut(rest, xtmlClose+"argument"+xtmlSep)
		if !ok || !closed {
			return args.value()
		}
		body = next
		v := textValue(value)
		if xtmlAttr(header, "type") != "string" {
			v = jsonOr(value, v)
		}
		args.set(xtmlAttr(header, "key"), v)
	}
}

// xtmlAttr returns an attribute of a header like tool="N" index="0".
func xtmlAttr(header, name string) string {
	for rest := header; ; {
		key, after, ok := strings.Cut(rest, `="`)
		if !ok {
			return ""
		}
		value, next, _ := strings.Cut(after, `"`)
		if pyStrip(key) == name {
			return strings.ReplaceAll(strings.ReplaceAll(value, "&quot;", `"`), "&amp;", "&")
		}
		rest = next
	}
}
