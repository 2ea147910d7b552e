// Package parsers reads reasoning and tool calls out of generated text, one small file a
// family of grammars.
//
// What may enter: decoded text of one finished turn, the tools that were offered, and
// whether the prompt had already opened a think block. What it never does: tokens, I/O,
// streaming, or failing: a turn that cannot be read keeps its text and says why.
//
// Names and results are SGLang's (its one-shot detectors), so that a model served by SGLang
// is read alike with and without this engine. Where we differ, the family's file says so;
// the rules for all families are:
//
//   - Calls are numbered 0, 1, 2 in the order of the text. SGLang numbers some families by
//     the tool's place in the tools list.
//   - Text that holds the family's marker but no usable call is kept whole as content and
//     flagged. SGLang drops it, and with it what the policy really said.
//   - Arguments come as canonical JSON text of an object. "arguments": "{...}" (an object
//     spelled inside a string) is unwrapped once, and null means no arguments. SGLang hands
//     both on as they are, which no client can use.
//   - Control tokens must be spelled out in the text, all but the final stop token, which must
//     be gone. Families whose markers are control tokens say so.
//   - A call of a function that was not offered is not usable, but in the families where
//     SGLang passes it on: Qwen3-Coder, Step-3.5, both Kimis, Gemma 4, Inkling.
//   - Time is linear in the text, whatever the text: where several attempts to read JSON or
//     Python fail, the rest of the turn is given up.
//   - Whether reasoning is forced follows from the rendered prompt, not from a guess about
//     the template; families that SGLang always forces are always forced.
//
// Names of SGLang whose grammars nobody here has read (deepseek-v41, deepseekv41, gigachat35,
// granite_thinking_parser, iquest_q1, nanbeige, plamo3, spark25, telechat4) are refused as
// unknown: better at start than wrong in silence. So is "auto".
package parsers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A Turn is the text of one generated turn, without its final stop token.
type Turn struct {
	Text string
	// ThinkOpen says that the prompt ended inside a think block, so that the text begins
	// with reasoning though no start tag is in it.
	ThinkOpen bool
}

// A Split is a turn's text parted into reasoning and the rest. Neither side is trimmed.
type Split struct {
	Reasoning string
	Content   string
}

// A ReasoningParser parts reasoning from the answer. It is stateless and safe for
// concurrent use.
type ReasoningParser interface {
	// Split never fails: text it knows nothing about is all content.
	Split(t Turn) Split
}

// A Call is one function call found in a turn.
type Call struct {
	// Index numbers the calls of a turn 0, 1, 2.
	Index int
	Name  string
	// Arguments is the canonical JSON text of the arguments object.
	Arguments string
	// ID is the id the model itself wrote, "" for families that write none or a malformed one.
	ID string
}

// Found is what a [ToolCallParser] made of a turn.
type Found struct {
	// Content is the text beside the calls; the whole text if there is no usable call.
	Content string
	Calls   []Call
	// ParseError says what could not be used, "" if nothing was wrong. Calls may be there
	// all the same: a bad block among good ones is left out and named here.
	ParseError string
}

// A ToolCallParser finds function calls in the text that the reasoning parser left. It is
// stateless and safe for concurrent use.
type ToolCallParser interface {
	// Find never fails. Without tools the text comes back unchanged. A call of a function
	// that is not among tools is not usable, but in the families the package comment names.
	Find(text string, tools []canon.ToolSpec) Found
}

// Reasoning returns the reasoning parser SGLang knows by name, in any case of letters. ""
// means none: everything is content. An unknown name is an error that lists the known ones.
func Reasoning(name string) (ReasoningParser, error) {
	if name == "" {
		return noReasoning{}, nil
	}
	return lookup("reasoning parser", name, reasoningFamilies)
}

// ToolCalls returns the tool-call parser SGLang knows by name, in any case of letters. ""
// means none: everything is content. An unknown name is an error that lists the known ones.
func ToolCalls(name string) (ToolCallParser, error) {
	if name == "" {
		return noToolCalls{}, nil
	}
	return lookup("tool-call parser", name, toolCallFamilies)
}

// ReasoningNames are the names that [Reasoning] takes, sorted.
func ReasoningNames() []string { return slices.Sorted(maps.Keys(reasoningFamilies)) }

// ToolCallNames are the names that [ToolCalls] takes, sorted.
func ToolCallNames() []string { return slices.Sorted(maps.Keys(toolCallFamilies)) }

func lookup[P any](kind, name string, families map[string]P) (P, error) {
	if p, ok := families[strings.ToLower(name)]; ok {
		return p, nil
	}
	var none P
	return none, fmt.Errorf("unknown %s %q: expected one of %s, or empty for none",
		kind, name, strings.Join(slices.Sorted(maps.Keys(families)), ", "))
}

type noReasoning struct{}

func (noReasoning) Split(t Turn) Split { return Split{Content: t.Text} }

type noToolCalls struct{}

func (noToolCalls) Find(text string, _ []canon.ToolSpec) Found { return Found{Content: text} }
