package parsers

import (
	"errors"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// gemma4 reads <|tool_call>call:NAME{k:v,…}<tool_call|>, where strings stand between <|"|>
// tokens and true, false, numbers, words, {} and [] are bare; null is the word. The markers
// are special tokens. Functions that were not offered pass through. Content is the text
// before the first call as it stands.
type gemma4 struct{}

const (
	gemma4Open  = "<|tool_call>"
	gemma4Close = "<tool_call|>"
	gemma4Quote = `<|"|>`
)

func (gemma4) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, gemma4Open, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools, anyName: true}
	_, open := blocks(text[first:], gemma4Open, gemma4Close, func(block string) {
		head, ok := strings.CutPrefix(pyStrip(block), "call:")
		brace := strings.IndexByte(head, '{')
		if !ok || brace < 0 {
			got.fault("a tool call is not call:NAME{…}")
			return
		}
		p := gemmaParser{text: head, pos: brace}
		v, err := p.value(0)
		if p.space(); err != nil || p.pos < len(head) {
			got.fault("the arguments of a tool call cannot be read")
			return
		}
		got.take(pyStrip(head[:brace]), v)
	})
	if open {
		got.fault("a tool call is not closed")
	}
	return got.result(text, text[:first])
}

// A gemmaParser reads Gemma 4's values.
type gemmaParser struct {
	text string
	pos  int
}

var errGemma = errors.New("not a value")

func (p *gemmaParser) space() {
	p.pos += len(p.text[p.pos:]) - len(strings.TrimLeft(p.text[p.pos:], " \t\r\n"))
}

func (p *gemmaParser) eat(token string) bool {
	p.space()
	if !strings.HasPrefix(p.text[p.pos:], token) {
		return false
	}
	p.pos += len(token)
	return true
}

func (p *gemmaParser) value(depth int) (canon.Value, error) {
	switch {
	case depth > canon.MaxDepth:
		return canon.Value{}, errGemma
	case p.eat(gemma4Quote):
		s, _, closed := strings.Cut(p.text[p.pos:], gemma4Quote)
		if !closed {
			return canon.Value{}, errGemma
		}
		p.pos += len(s) + len(gemma4Quote)
		return textValue(s), nil
	case p.eat("{"):
		return p.object(depth)
	case p.eat("["):
		return p.array(depth)
	default:
		return p.word()
	}
}

func (p *gemmaParser) word() (canon.Value, error) {
	rest := p.text[p.pos:]
	end := strings.IndexAny(rest, ",{}[]")
	if end < 0 {
		return canon.Value{}, errGemma
	}
	p.pos += end
	word := pyStrip(rest[:end])
	switch word {
	case "":
		return canon.Value{}, errGemma
	case "true":
		return canon.BoolValue(true), nil
	case "false":
		return canon.BoolValue(false), nil
	}
	if v, ok := floatOrInt(word); ok {
		return v, nil
	}
	return textValue(word), nil
}

func (p *gemmaParser) object(depth int) (canon.Value, error) {
	var args argList
	for {
		if p.eat("}") {
			return args.value(), nil
		}
		colon := strings.IndexAny(p.text[p.pos:], ":{}[],")
		if colon < 0 || p.text[p.pos+colon] != ':' {
			return canon.Value{}, errGemma
		}
		key := pyStrip(strings.ReplaceAll(p.text[p.pos:p.pos+colon], gemma4Quote, ""))
		p.pos += colon + 1
		v, err := p.value(depth + 1)
		if err != nil {
			return canon.Value{}, err
		}
		args.set(key, v)
		if !p.eat(",") {
			if !p.eat("}") {
				return canon.Value{}, errGemma
			}
			return args.value(), nil
		}
	}
}

func (p *gemmaParser) array(depth int) (canon.Value, error) {
	elems := []canon.Value{}
	for {
		if p.eat("]") {
			return canon.ArrayOf(elems...), nil
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return canon.Value{}, err
		}
		elems = append(elems, v)
		if !p.eat(",") {
			if !p.eat("]") {
				return canon.Value{}, errGemma
			}
			return canon.ArrayOf(elems...), nil
		}
	}
}
