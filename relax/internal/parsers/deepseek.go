package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// DeepSeek's markers, all special tokens.
const (
	deepseekCallsOpen = "<｜tool▁calls▁begin｜>"
	deepseekCallOpen  = "<｜tool▁call▁begin｜>"
	deepseekCallClose = "<｜tool▁call▁end｜>"
	deepseekSep       = "<｜tool▁sep｜>"
)

// deepseekV3 reads V3 and R1, where a call is function SEP NAME and a json fence, and V3.1,
// where it is NAME SEP {json}. Content is the text before the first marker, stripped. As in
// SGLang one bad call makes the whole turn plain text; the end of the list is not asked for,
// the end of each call is.
type deepseekV3 struct {
	fenced bool
}

func (g deepseekV3) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, deepseekCallsOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	bad := ""
	_, open := blocks(text[first:], deepseekCallOpen, deepseekCallClose, func(call string) {
		name, arguments, ok := g.parts(call)
		if !ok {
			bad = "a call does not follow the grammar"
			return
		}
		v, err := canon.ParseValue([]byte(pyStrip(arguments)))
		if err != nil {
			bad = "a tool call is not valid JSON: " + err.Error()
			return
		}
		if v.Kind() != canon.Object && v.Kind() != canon.String {
			bad = "the arguments of a call are not an object but " + v.TypeName()
			return
		}
		got.take(pyStrip(name), v)
	})
	if bad != "" {
		return Found{Content: text, ParseError: bad}
	}
	if open {
		got.fault("a call is not closed")
	}
	return got.found(text, first)
}

func (g deepseekV3) parts(call string) (name, arguments string, ok bool) {
	head, rest, ok := strings.Cut(call, deepseekSep)
	if !g.fenced || !ok {
		return head, rest, ok
	}
	name, rest, ok = strings.Cut(rest, "\n```json\n")
	arguments, closed := strings.CutSuffix(pyStrip(rest), "\n```")
	return name, arguments, ok && closed
}

// dsml reads DeepSeek V3.2 (function_calls) and V4 (tool_calls): named elements whose tags
// all begin with ｜DSML｜, a special token. string="true" keeps the stripped text, otherwise
// the value is JSON, else the stripped text; the tools' schemas play no part. The body of a
// call may be a JSON object instead. Content is the text before the block less one empty
// line. A block that is not closed holds no call.
type dsml struct {
	outer string
}

const dsmlMark = "｜DSML｜"

var dsmlTags = invokeTags{call: dsmlMark + "invoke", parameter: dsmlMark + "parameter"}

func (g dsml) Find(text string, tools []canon.ToolSpec) Found {
	opening := "<" + dsmlMark + g.outer + ">"
	first := markerAt(text, opening, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	_, open := blocks(text[first:], opening, "</"+dsmlMark+g.outer+">", func(block string) {
		if !dsmlTags.calls(block, func(name, body string) { got.take(name, dsmlArguments(body)) }) {
			got.fault("an invoke element is not closed")
		}
	})
	if open {
		got.fault("the %s block is not closed", opening)
	}
	return got.result(text, strings.TrimSuffix(text[:first], "\n\n"))
}

func dsmlArguments(body string) canon.Value {
	if s := pyStrip(body); strings.HasPrefix(s, "{") {
		if v, err := canon.ParseValue([]byte(s)); err == nil && v.Kind() == canon.Object {
			return v
		}
	}
	var args argList
	dsmlTags.parameters(body, func(key, header, value string) {
		v := textValue(pyStrip(value))
		if attr(header, "string") != "true" {
			v = jsonOr(v.Str(), v)
		}
		args.set(key, v)
	})
	return args.value()
}
