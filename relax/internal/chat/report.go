package chat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A Report says what was found out about a model's chat format.
type Report struct {
	// Templates has one entry, or two for checkpoints with a "tool_use" template.
	Templates []TemplateReport `json:"templates"`
	// Terminator is the token that ends an assistant turn.
	Terminator Token `json:"terminator"`
	// StopTokens end a generation, the terminator first.
	StopTokens []Token `json:"stop_tokens"`
	// ControlTokens is the number of tokens that the text of a message never becomes.
	ControlTokens int `json:"control_tokens"`
	VocabSize     int `json:"vocab_size"`
	// Warnings say what the chosen parsers or the template get wrong, in full sentences.
	Warnings []string `json:"warnings"`
}

// A Token is an id and its spelling.
type Token struct {
	ID   int32  `json:"id"`
	Text string `json:"text"`
}

// A TemplateReport is what was found out about one template.
type TemplateReport struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	// Strategy is how the text behind a response is found: "suffix" (with "+system", "+tools"
	// for what it needs), "splice" or "full".
	Strategy string `json:"strategy"`
	// Arguments is how tool-call arguments go in: "object" or "text".
	Arguments string `json:"arguments"`
	// ReasoningKey is the message key that reasoning is read from.
	ReasoningKey string `json:"reasoning_key"`
	// LaterSystem is what becomes of a system message behind the first place: "in place" or
	// "as user".
	LaterSystem string `json:"later_system"`
	// The parts of a conversation that the template prints.
	PrintsSystem        bool `json:"prints_system"`
	PrintsTools         bool `json:"prints_tools"`
	PrintsCalls         bool `json:"prints_calls"`
	PrintsParallelCalls bool `json:"prints_parallel_calls"`
	PrintsResults       bool `json:"prints_results"`
	PrintsReasoning     bool `json:"prints_reasoning"`
	// Checks are the scenarios of the self-check.
	Checks []Check `json:"checks"`
	// ReasoningParsers and ToolCallParsers read back what the template prints, best first.
	ReasoningParsers []string `json:"reasoning_parsers"`
	ToolCallParsers  []string `json:"tool_call_parsers"`
	// SuggestedReasoning and SuggestedToolCall are the parsers to choose, "" for none.
	SuggestedReasoning string `json:"suggested_reasoning_parser"`
	SuggestedToolCall  string `json:"suggested_tool_call_parser"`
	// Example is a short conversation as a training row would hold it.
	Example []Span `json:"example"`
}

// A Check is one scenario of the self-check.
type Check struct {
	Scenario string `json:"scenario"`
	// Result is "ok", "rewritten" (exact, but a full render prints the history otherwise than
	// it was sampled) or "unsupported" (the template cannot print it).
	Result string `json:"result"`
	// Detail says why, "" if ok.
	Detail string `json:"detail"`
}

// Report describes the format.
func (f *Format) Report() (*Report, error) {
	r := &Report{Terminator: f.tokenOf(f.Terminator()), ControlTokens: len(f.controls.tokens), VocabSize: f.tok.VocabSize(),
		Warnings: f.Warnings()}
	for _, id := range f.stopIDs {
		r.StopTokens = append(r.StopTokens, f.tokenOf(id))
	}
	for _, t := range f.templates() {
		one, err := f.reportOn(t)
		if err != nil {
			r.Warnings = append(r.Warnings, err.Error())
		}
		r.Templates = append(r.Templates, one)
	}
	return r, nil
}

func (f *Format) tokenOf(id int32) Token { return Token{ID: id, Text: f.TokenText(id)} }

func (f *Format) reportOn(t *template) (TemplateReport, error) {
	r := TemplateReport{
		Name: t.name, Source: t.source, Strategy: t.plan.String(),
		Arguments: "object", ReasoningKey: t.dialect.ReasoningKey, LaterSystem: "in place",
		PrintsSystem: t.traits.System, PrintsTools: t.traits.Tools, PrintsCalls: t.traits.Calls,
		PrintsParallelCalls: t.traits.ParallelCalls, PrintsResults: t.traits.Results, PrintsReasoning: t.traits.Reasoning,
		ReasoningParsers: f.reasoningParsers(t), ToolCallParsers: f.toolCallParsers(t),
	}
	if t.dialect.ArgumentsText {
		r.Arguments = "text"
	}
	if t.dialect.SystemAsUser {
		r.LaterSystem = "as user"
	}
	for _, x := range f.findings[t] {
		r.Checks = append(r.Checks, x.check())
	}
	r.SuggestedReasoning, r.SuggestedToolCall = suggest(r.ReasoningParsers, r.ToolCallParsers)
	var err error
	if r.Example, err = f.example(t); err != nil {
		return r, fmt.Errorf("%s cannot print the example conversation: %w", t.source, err)
	}
	return r, nil
}

func (x *finding) check() Check {
	switch {
	case x.Unsupported != "":
		return Check{x.Scenario, "unsupported", x.Unsupported}
	case x.Rewrites != "":
		return Check{x.Scenario, "rewritten", x.Rewrites}
	}
	return Check{x.Scenario, "ok", ""}
}

// Warnings are what a user should know before a run, in full sentences.
func (f *Format) Warnings() []string {
	var out []string
	t := f.tools
	if !t.traits.Tools {
		out = append(out, fmt.Sprintf("%s does not print the tools of a request: the agent must describe them in its prompt", t.source))
	}
	if text, ok := f.callText(t); ok {
		if fit := f.toolCallParsers(t); f.names.ToolCallParser != "" && !readsCall(f.toolCalls, text) {
			out = append(out, fmt.Sprintf("agentic_tool_call_parser %s does not read the calls that %s prints; it prints %q; parsers that read it: %s",
				f.names.ToolCallParser, t.source, canon.Shorten(text, 120), listOr(fit, "none")))
		}
	}
	if fit := f.reasoningParsers(t); len(fit) > 0 && f.names.ReasoningParser != "" && !slices.Contains(fit, f.names.ReasoningParser) {
		out = append(out, fmt.Sprintf("agentic_reasoning_parser %s does not part the reasoning that %s prints from its answer; "+
			"parsers that do: %s", f.names.ReasoningParser, t.source, listOr(fit, "none")))
	}
	if end, ok := f.openCallEnd(t); ok {
		out = append(out, fmt.Sprintf("%s ends a turn with calls with %q, which no file of the checkpoint calls an end of turn: "+
			"if the model stops there, add its id to rollout_stop_token_ids or restore generation_config.json", t.source, end))
	}
	return out
}

// openCallEnd is the control token at the end of a turn with calls if it is no stop token.
func (f *Format) openCallEnd(t *template) (string, bool) {
	if !t.traits.Calls || len(t.turnEnd.Own) == 0 {
		return "", false
	}
	said, ok := t.sampled(oneCall(), 1)
	n := len(said.marks)
	if !ok || n == 0 || !isSpace(said.text[said.marks[n-1].end:]) || slices.Contains(f.stopIDs, said.marks[n-1].id) {
		return "", false
	}
	return string(said.text[said.marks[n-1].start:said.marks[n-1].end]), true
}

func listOr(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ")
}

// First is the text and the ids of a request's first prompt, generation prompt included.
func (f *Format) First(req *canon.Request) (text string, ids []int32, err error) {
	obs, err := f.Observe(req, 0, Prev{})
	if err != nil {
		return "", nil, err
	}
	t := f.template(req.Tools)
	seen, err := t.observe(conversation{req.Messages, req.Tools, req.Kwargs}, 0, -1)
	if err != nil {
		return "", nil, err
	}
	return string(seen.text), slices.Concat(obs.Body, obs.Prompt), nil
}
