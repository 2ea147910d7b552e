package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Inkling writes blocks, each begun by a token that tells its content and ended by
// <|end_message|> (the last one perhaps by <|content_model_end_sampling|> or not at all):
// thinking, text, a call in JSON or a call in text. <|message_model|> and for calls the
// function's name may stand in front. All markers are special tokens.

const (
	inklingHeader   = "<|message_model|>"
	inklingThinking = "<|content_thinking|>"
	inklingText     = "<|content_text|>"
	inklingToolJSON = "<|content_invoke_tool_json|>"
	inklingToolText = "<|content_invoke_tool_text|>"
	inklingEnd      = "<|end_message|>"
	inklingStop     = "<|content_model_end_sampling|>"
)

// An inklingBlock is one block, or loose text with kind "".
type inklingBlock struct{ kind, name, body, raw string }

func inklingBlocks(text string) []inklingBlock {
	var list []inklingBlock
	kinds := []string{inklingThinking, inklingText, inklingToolJSON, inklingToolText}
	for begun := false; text != ""; begun = true {
		at := firstOf(text, kinds...)
		if at == len(text) {
			return append(list, inklingBlock{body: text, raw: text})
		}
		b := inklingBlock{}
		for _, k := range kinds {
			if strings.HasPrefix(text[at:], k) {
				b.kind = k
			}
		}
		start := strings.LastIndex(text[:at], inklingHeader)
		if start >= 0 {
			b.name = text[start+len(inklingHeader) : at]
		} else if start = at; !begun && b.tool() {
			// The generation prompt may hold the header's token, not the name.
			start, b.name = 0, text[:at]
		}
		if start > 0 {
			list = append(list, inklingBlock{body: text[:start], raw: text[:start]})
		}
		body := text[at+len(b.kind):]
		end := firstOf(body, inklingEnd, inklingStop)
		token := 0
		for _, mark := range [...]string{inklingEnd, inklingStop} {
			if strings.HasPrefix(body[end:], mark) {
				token = len(mark)
			}
		}
		n := at + len(b.kind) + end + token
		b.body, b.raw = body[:end], text[start:n]
		list = append(list, b)
		text = text[n:]
	}
	return list
}

func (b *inklingBlock) tool() bool { return b.kind == inklingToolJSON || b.kind == inklingToolText }

// inklingReasoning takes the thinking blocks as reasoning and the text blocks as content;
// calls stay raw in it.
type inklingReasoning struct{}

func (inklingReasoning) Split(t Turn) Split {
	var reasoning, content strings.Builder
	for _, b := range inklingBlocks(t.Text) {
		switch {
		case b.kind == inklingThinking:
			reasoning.WriteString(b.body)
		case b.tool():
			content.WriteString(b.raw)
		default:
			content.WriteString(b.body)
		}
	}
	return Split{Reasoning: reasoning.String(), Content: content.String()}
}

// inkling reads the calls: {"name", "args"}, or text, which becomes {"text": …}. Functions
// that were not offered pass through. Content is the loose text and the text blocks.
//
// Fixed against SGLang: a call in text has the name of its header, SGLang leaves it empty.
type inkling struct{}

func (inkling) Find(text string, tools []canon.ToolSpec) Found {
	if markerAt(text, "<|content_invoke_tool_", tools) < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools, anyName: true}
	var content strings.Builder
	for _, b := range inklingBlocks(text) {
		switch b.kind {
		case inklingToolText:
			var args argList
			args.set("text", textValue(b.body))
			got.take(pyStrip(b.name), args.value())
		case inklingToolJSON:
			v, err := canon.ParseValue([]byte(pyStrip(b.body)))
			name, _ := v.Get("name")
			args, has := v.Get("args")
			if err != nil || !has || name.Kind() != canon.String {
				got.fault(`a call is not {"name", "args"}`)
				continue
			}
			got.take(name.Str(), args)
		case inklingThinking:
		default:
			content.WriteString(b.body)
		}
	}
	return got.result(text, content.String())
}
