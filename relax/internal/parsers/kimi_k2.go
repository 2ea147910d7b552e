package parsers

import (
	"strconv"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// kimiK2 reads a section of calls, each ID, argument marker, {json}. All markers are special
// tokens. The id is functions.NAME:INDEX or NAME:INDEX and is kept as the call's id, so that
// a rendered history spells it as the model did; SGLang writes its own. A bare number names
// the function whose schema has all the argument's keys. Functions that were not offered
// pass through. Content is the text before the section as it stands; text after it is
// dropped.
//
// Different from SGLang: arguments that are no JSON object are not handed on.
type kimiK2 struct{}

const (
	kimiSectionOpen  = "<|tool_calls_section_begin|>"
	kimiSectionClose = "<|tool_calls_section_end|>"
	kimiCallOpen     = "<|tool_call_begin|>"
	kimiCallClose    = "<|tool_call_end|>"
	kimiArgument     = "<|tool_call_argument_begin|>"
)

func (kimiK2) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, kimiSectionOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools, anyName: true}
	seen := map[string]bool{}
	section, _, _ := strings.Cut(text[first:], kimiSectionClose)
	_, open := blocks(section, kimiCallOpen, kimiCallClose, func(call string) {
		id, arguments, ok := strings.Cut(call, kimiArgument)
		if !ok {
			got.fault("a call has no arguments")
			return
		}
		v, err := canon.ParseValue([]byte(pyStrip(arguments)))
		if err != nil {
			got.fault("the arguments of a call are not valid JSON: %v", err)
			return
		}
		id = pyStrip(id)
		name, literal := kimiName(id, v, tools)
		if literal && !seen[id] {
			seen[id] = true
		} else {
			id = "" // two calls of one turn must not share an id
		}
		if err := got.add(name, id, v); err != nil {
			got.fault("call with id %q: %v", canon.Shorten(id, shortest), err)
		}
	})
	if open {
		got.fault("a call is not closed")
	}
	return got.result(text, text[:first])
}

// kimiName is the function an id names; literal says that the id follows the grammar.
func kimiName(id string, arguments canon.Value, tools []canon.ToolSpec) (name string, literal bool) {
	if _, err := strconv.ParseUint(id, 10, 32); err == nil {
		return kimiGuess(arguments, tools), false
	}
	colon := strings.LastIndexByte(id, ':')
	if colon < 0 {
		return "", false
	}
	if _, err := strconv.ParseUint(id[colon+1:], 10, 32); err != nil {
		return "", false
	}
	name = strings.TrimPrefix(id[:colon], "functions.")
	if strings.ContainsFunc(name, func(r rune) bool {
		return r > 0x7f || !isAlnum(byte(r)) && !strings.ContainsRune("_.-", r)
	}) {
		return "", false
	}
	return name, name != ""
}

// kimiGuess is the only tool, or the first whose schema has every key of the arguments.
func kimiGuess(arguments canon.Value, tools []canon.ToolSpec) string {
	if len(tools) == 1 {
		return tools[0].Name
	}
	for i := range tools {
		fits := true
		for _, m := range arguments.Members() {
			if _, known := propertyOf(tools[i].Parameters, m.Key); !known {
				fits = false
				break
			}
		}
		if fits {
			return tools[i].Name
		}
	}
	return ""
}
