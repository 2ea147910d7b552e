package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// pythonic reads one Python list of calls with keyword arguments anywhere in the text:
// [f(a=1), g()] (Llama 4, Gemma 3 with such a template). <|python_start|> and <|python_end|>
// (special tokens) are removed. Content is the text before and after the list.
//
// Fixed against SGLang, which loses the turn: negative numbers and tuples (a list) are read.
// Names and expressions as values still make the turn plain text.
type pythonic struct{}

func (pythonic) Find(text string, tools []canon.ToolSpec) Found {
	if len(tools) == 0 {
		return Found{Content: text}
	}
	bare := text
	if strings.Contains(text, "<|python_") {
		bare = strings.NewReplacer("<|python_start|>", "", "<|python_end|>", "").Replace(text)
	}
	bare = pyStrip(bare)
	got := harvest{tools: tools}
	seen := false
	budget := 8 * len(bare) // what failed attempts may cost
	for i := 0; budget >= 0; i++ {
		j := strings.IndexByte(bare[i:], '[')
		if j < 0 {
			break
		}
		i += j
		p := pyParser{text: bare, pos: i + 1}
		if !p.beginsCall() {
			continue
		}
		seen = true
		p.pos = i + 1
		calls, err := p.calls()
		if err != nil {
			budget -= p.pos - i
			got.fault("a list of calls is not Python with literal arguments")
			continue
		}
		for _, c := range calls {
			got.take(c.name, c.args)
		}
		return got.result(text, bare[:i]+bare[p.pos:])
	}
	if !seen {
		return Found{Content: text}
	}
	return got.result(text, text)
}

// beginsCall reports whether NAME( comes next. The name is bounded: it is looked at once for
// every bracket.
func (p *pyParser) beginsCall() bool {
	const longest = 256
	p.space()
	text := p.text
	p.text = text[:min(len(text), p.pos+longest)]
	name := p.name()
	for name != "" && p.peek() == '.' {
		p.pos++
		name = p.name()
	}
	p.text = text
	return name != "" && p.peek() == '('
}

// calls reads f(a=1), g()] up to and with the closing bracket.
func (p *pyParser) calls() ([]pyCall, error) {
	var calls []pyCall
	for {
		if len(calls) > 0 && p.eat(']') {
			return calls, nil
		}
		c, err := p.call()
		if err != nil {
			return nil, err
		}
		calls = append(calls, c)
		if !p.eat(',') {
			if !p.eat(']') {
				return nil, errNotLiteral
			}
			return calls, nil
		}
	}
}

// lfm2 reads calls between <|tool_call_start|> and <|tool_call_end|> (special tokens): a
// Python list of calls, one call alone, or JSON. true, false and null, tuples and dotted
// names are read too. A call whose arguments cannot be read is left out alone. Content is the
// text before the first marker, stripped.
type lfm2 struct{}

const (
	lfm2Open  = "<|tool_call_start|>"
	lfm2Close = "<|tool_call_end|>"
)

func (lfm2) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, lfm2Open, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	_, open := blocks(text[first:], lfm2Open, lfm2Close, func(block string) {
		block = pyStrip(block)
		if v, err := canon.ParseValue([]byte(block)); err == nil {
			if err := got.acts(v); err != nil {
				got.fault("%v", err)
			}
			return
		}
		got.lfm2Calls(block)
	})
	if open {
		got.fault("the %s block is not closed", lfm2Open)
	}
	return got.found(text, first)
}

func (h *harvest) lfm2Calls(block string) {
	p := pyParser{text: block, jsonNames: true}
	list := p.eat('[')
	for {
		p.space()
		if p.pos == len(p.text) || list && p.peek() == ']' {
			return
		}
		start := p.pos
		c, err := p.call()
		if err != nil {
			h.fault("a call is not Python with literal arguments")
			// p stopped inside the call; what came before its fault is well formed, so the
			// way to its end is looked for from the beginning once.
			p.pos = start
			if !p.skipCall() {
				return
			}
		} else {
			h.take(c.name, c.args)
		}
		if !p.eat(',') {
			if p.space(); p.pos < len(p.text) && !list {
				h.fault("text follows a call")
			}
			return
		}
	}
}

// skipCall moves behind the bracket that closes the next call, past strings and brackets.
func (p *pyParser) skipCall() bool {
	depth := 0
	var ignored strings.Builder
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
			if depth <= 0 {
				p.pos++
				return depth == 0
			}
		case '"', '\'':
			if p.string(&ignored) != nil {
				return false
			}
			continue
		}
		p.pos++
	}
	return false
}
