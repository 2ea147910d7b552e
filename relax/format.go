package relax

import "github.com/relax-rollout/relax-rollout/relax/internal/chat"

// A FormatReport says how a model is talked to: what [Doctor] found out from its checkpoint.
type FormatReport struct {
	// Templates has one entry, or two for checkpoints with a "tool_use" template, which serves
	// the requests with tools.
	Templates []TemplateReport `json:"templates"`
	// Terminator is the token that ends an assistant turn.
	Terminator FormatToken `json:"terminator"`
	// StopTokens end a generation, the terminator first.
	StopTokens []FormatToken `json:"stop_tokens"`
	// ControlTokens is the number of tokens that the text of a message never becomes.
	ControlTokens int `json:"control_tokens"`
	VocabSize     int `json:"vocab_size"`
	// Warnings say what the chosen parsers or the template get wrong, in full sentences.
	Warnings []string `json:"warnings"`
	// Text and IDs are the first prompt of DoctorOptions.Messages, generation prompt included;
	// empty if there were none.
	Text string  `json:"text"`
	IDs  []int32 `json:"ids"`
	// Prompts are the first prompts of DoctorOptions.Conversations, in their order.
	Prompts []FormatPrompt `json:"prompts"`
}

// A FormatPrompt is the first prompt of a conversation.
type FormatPrompt struct {
	Text string  `json:"text"`
	IDs  []int32 `json:"ids"`
	// Error says why an agent's request with the conversation would be refused, "" if it is not.
	Error string `json:"error"`
}

// A FormatToken is an id and its spelling.
type FormatToken struct {
	ID   int32  `json:"id"`
	Text string `json:"text"`
}

// A TemplateReport is what was found out about one chat template by rendering probes with it.
type TemplateReport struct {
	Name string `json:"name"`
	// Source is the file the template is from.
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
	// The parts of a conversation that the template prints. What it does not print the model
	// does not see.
	PrintsSystem        bool `json:"prints_system"`
	PrintsTools         bool `json:"prints_tools"`
	PrintsCalls         bool `json:"prints_calls"`
	PrintsParallelCalls bool `json:"prints_parallel_calls"`
	PrintsResults       bool `json:"prints_results"`
	PrintsReasoning     bool `json:"prints_reasoning"`
	// Checks are the scenarios of the self-check.
	Checks []FormatCheck `json:"checks"`
	// ReasoningParsers and ToolCallParsers read back what the template prints, best first.
	ReasoningParsers []string `json:"reasoning_parsers"`
	ToolCallParsers  []string `json:"tool_call_parsers"`
	// SuggestedReasoning and SuggestedToolCall are the parsers to choose, "" for none.
	SuggestedReasoning string `json:"suggested_reasoning_parser"`
	SuggestedToolCall  string `json:"suggested_tool_call_parser"`
	// Example is a short conversation as a training row would hold it.
	Example []FormatSpan `json:"example"`
}

// A FormatCheck is one scenario of the self-check.
type FormatCheck struct {
	Scenario string `json:"scenario"`
	// Result is "ok", "rewritten" (exact, but a full render prints the history otherwise than
	// it was sampled) or "unsupported" (the template cannot print it).
	Result string `json:"result"`
	// Detail says why, "" if ok.
	Detail string `json:"detail"`
}

// A FormatSpan is a piece of the example conversation.
type FormatSpan struct {
	// Kind is "context" (messages, mask 0), "prompt" (the generation prompt, mask 0) or
	// "sampled" (what the model said, mask 1).
	Kind string `json:"kind"`
	Text string `json:"text"`
	// Tokens is the number of ids.
	Tokens int `json:"tokens"`
}

// reportOf copies the internal report, whose types programs outside cannot name.
func reportOf(r *chat.Report) *FormatReport {
	return &FormatReport{
		Templates:     each(r.Templates, templateReportOf),
		Terminator:    FormatToken(r.Terminator),
		StopTokens:    each(r.StopTokens, func(t chat.Token) FormatToken { return FormatToken(t) }),
		ControlTokens: r.ControlTokens,
		VocabSize:     r.VocabSize,
		Warnings:      append([]string{}, r.Warnings...),
		IDs:           []int32{},
		Prompts:       []FormatPrompt{},
	}
}

func templateReportOf(t chat.TemplateReport) TemplateReport {
	return TemplateReport{
		Name: t.Name, Source: t.Source, Strategy: t.Strategy,
		Arguments: t.Arguments, ReasoningKey: t.ReasoningKey, LaterSystem: t.LaterSystem,
		PrintsSystem: t.PrintsSystem, PrintsTools: t.PrintsTools, PrintsCalls: t.PrintsCalls,
		PrintsParallelCalls: t.PrintsParallelCalls, PrintsResults: t.PrintsResults, PrintsReasoning: t.PrintsReasoning,
		Checks:           each(t.Checks, func(c chat.Check) FormatCheck { return FormatCheck(c) }),
		ReasoningParsers: append([]string{}, t.ReasoningParsers...), ToolCallParsers: append([]string{}, t.ToolCallParsers...),
		SuggestedReasoning: t.SuggestedReasoning, SuggestedToolCall: t.SuggestedToolCall,
		Example: each(t.Example, func(s chat.Span) FormatSpan { return FormatSpan(s) }),
	}
}

func each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	for i, v := range list {
		out[i] = f(v)
	}
	return out
}
