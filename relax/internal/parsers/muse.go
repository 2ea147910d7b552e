package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Muse writes messages to=NAME<|message|>BODY<|eom|> (or <|eot|>), perhaps with
// <|start|>assistant in front: to self is reasoning, to user the answer, to a function a call
// of <atem:invoke name="N"> elements. The markers are special tokens; the last end token is
// the stop token and may be missing.

const museMessage = "<|message|>"

var museTags = invokeTags{call: "atem:invoke", parameter: "atem:parameter"}

// museMessages calls message for each message with a recipient and loose for the text between.
func museMessages(text string, message func(to, body, raw string), loose func(text string)) {
	for text != "" {
		head, after, found := strings.Cut(text, museMessage)
		to := strings.LastIndex(head, "to=")
		if !found || to < 0 {
			loose(text)
			return
		}
		start := to
		if before := strings.TrimRight(head[:to], " "); strings.HasSuffix(before, "<|start|>assistant") {
			start = len(before) - len("<|start|>assistant")
		} else if pyStrip(before) == "" {
			start = 0
		}
		if start > 0 {
			loose(head[:start])
		}
		end, token := len(after), 0
		if i := firstOf(after, "<|eom|>", "<|eot|>"); i < len(after) {
			end, token = i, len("<|eom|>")
		}
		n := len(head) + len(museMessage) + end + token
		message(pyStrip(head[to+len("to="):]), after[:end], text[start:n])
		text = text[n:]
	}
}

// museReasoning joins the messages to self by newlines. Calls stay raw in the content.
type museReasoning struct{}

func (museReasoning) Split(t Turn) Split {
	var reasoning []string
	var content strings.Builder
	museMessages(t.Text, func(to, body, raw string) {
		switch to {
		case "self":
			reasoning = append(reasoning, body)
		case "user":
			content.WriteString(body)
		default:
			content.WriteString(raw)
		}
	}, func(text string) { content.WriteString(text) })
	return Split{Reasoning: strings.Join(reasoning, "\n"), Content: content.String()}
}

// muse reads the calls. A value is JSON, else text. Content is the rest: loose text and
// messages to the user.
type muse struct{}

func (muse) Find(text string, tools []canon.ToolSpec) Found {
	if markerAt(text, "<atem:", tools) < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	var content strings.Builder
	museMessages(text, func(to, body, raw string) {
		switch to {
		case "self":
		case "user":
			content.WriteString(body)
		default:
			got.museCalls(body)
		}
	}, func(text string) {
		if _, body, ok := strings.Cut(text, "<atem:function_calls>"); ok {
			got.museCalls(body)
			return
		}
		content.WriteString(text)
	})
	return got.result(text, content.String())
}

func (h *harvest) museCalls(body string) {
	whole := museTags.calls(body, func(name, body string) {
		var args argList
		museTags.parameters(body, func(key, _, value string) { args.set(key, jsonOr(value, textValue(value))) })
		h.take(name, args.value())
	})
	if !whole {
		h.fault("an invoke element is not closed")
	}
}
