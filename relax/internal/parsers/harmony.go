package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// gpt-oss writes harmony messages: <|start|>ROLE<|channel|>CHANNEL<|message|>BODY and an end
// token, where the recipient of a call stands behind the role or the channel as
// " to=functions.NAME". The generation prompt holds <|start|>assistant, so a turn begins in
// the middle of a header. All markers are special tokens.
//
// Fixed against SGLang, which reads one spelling only: calls at the very beginning of a turn,
// calls on any channel, a recipient beside the role, no <|constrain|>, any end token or none
// (the final stop token is removed before parsing). A turn without any marker is content
// where SGLang loses it.

const (
	harmonyStart   = "<|start|>"
	harmonyChannel = "<|channel|>"
	harmonyMessage = "<|message|>"
)

// A harmonyPart is one message, or text between messages.
type harmonyPart struct {
	raw       string // all of it with its markers
	channel   string
	recipient string
	body      string // all of it if there is no header: loose text, or a header without a body
}

// harmonyParts cuts text into its messages in one pass.
func harmonyParts(text string) []harmonyPart {
	var parts []harmonyPart
	for rest := text; rest != ""; {
		at := harmonyHeader(rest, len(rest) == len(text))
		if at > 0 {
			parts = append(parts, harmonyPart{raw: rest[:at], body: rest[:at]})
			rest = rest[at:]
			continue
		}
		part, n := harmonyNext(rest)
		parts = append(parts, part)
		rest = rest[n:]
	}
	return parts
}

// harmonyHeader is where the next header begins in text, its length if there is none. At
// the beginning of a turn the header may lack its <|start|> and role.
func harmonyHeader(text string, beginning bool) int {
	at := len(text)
	for i := 0; i < len(text); {
		j := strings.Index(text[i:], "<|")
		if j < 0 {
			break
		}
		i += j
		if strings.HasPrefix(text[i:], harmonyStart) || strings.HasPrefix(text[i:], harmonyChannel) {
			at = i
			break
		}
		i += len("<|")
	}
	if !beginning {
		return at
	}
	if i := strings.Index(text, harmonyMessage); i >= 0 && i < at {
		at = i // a header of the role and recipient alone
	}
	head := pyStrip(strings.TrimPrefix(pyStrip(text[:at]), "assistant"))
	if at < len(text) && head == "" || strings.HasPrefix(head, "to=") && len(strings.Fields(head)) == 1 {
		return 0
	}
	return at
}

// harmonyNext reads the message at the beginning of text and returns its length, at least 1.
func harmonyNext(text string) (harmonyPart, int) {
	headerEnd := strings.Index(text, harmonyMessage)
	if headerEnd < 0 {
		return harmonyPart{raw: text, body: text}, len(text)
	}
	// A header that runs into another message is no header.
	if i := strings.LastIndex(text[:headerEnd], harmonyStart); i > 0 {
		return harmonyPart{raw: text[:i], body: text[:i]}, i
	}
	part := harmonyPart{}
	part.channel, part.recipient = harmonyAddress(text[:headerEnd])
	body := text[headerEnd+len(harmonyMessage):]
	end, token := len(body), 0
	for i := 0; i < len(body); {
		j := strings.Index(body[i:], "<|")
		if j < 0 {
			break
		}
		if n, stops := harmonyEnd(body[i+j:]); stops {
			end, token = i+j, n
			break
		}
		i += j + 2
	}
	part.body = body[:end]
	n := headerEnd + len(harmonyMessage) + end + token
	part.raw = text[:n]
	return part, n
}

// harmonyEnd reports whether text begins with what ends a body, and how much of it belongs
// to the message.
func harmonyEnd(text string) (length int, stops bool) {
	for _, token := range [...]string{"<|end|>", "<|call|>", "<|return|>"} {
		if strings.HasPrefix(text, token) {
			return len(token), true
		}
	}
	return 0, strings.HasPrefix(text, harmonyStart) || strings.HasPrefix(text, harmonyChannel)
}

// harmonyAddress reads the channel and the recipient, each up to the next space or marker.
func harmonyAddress(header string) (channel, recipient string) {
	return harmonyWord(header, harmonyChannel), harmonyWord(header, "to=")
}

// harmonyWord is the word behind the last mark of a header.
func harmonyWord(header, mark string) string {
	i := strings.LastIndex(header, mark)
	if i < 0 {
		return ""
	}
	word := header[i+len(mark):]
	if end := strings.IndexFunc(word, func(r rune) bool { return pySpace(r) || r == '<' }); end >= 0 {
		word = word[:end]
	}
	return word
}

// harmonyReasoning takes the analysis messages as reasoning. Messages with a recipient stay
// raw in the content for the tool-call parser; all others are content.
type harmonyReasoning struct{}

func (harmonyReasoning) Split(t Turn) Split {
	if rest, ok := strings.CutPrefix(t.Text, "analysis"); ok && !strings.Contains(t.Text, "<|") {
		// The same with its special tokens lost in decoding.
		if reasoning, content, ok := strings.Cut(rest, "assistantfinal"); ok {
			return Split{Reasoning: reasoning, Content: content}
		}
	}
	var reasoning, content strings.Builder
	for _, part := range harmonyParts(t.Text) {
		switch {
		case part.recipient != "":
			content.WriteString(part.raw)
		case part.channel == "analysis":
			reasoning.WriteString(part.body)
		default:
			content.WriteString(part.body)
		}
	}
	return Split{Reasoning: reasoning.String(), Content: content.String()}
}

// harmony reads calls out of harmony messages. The function is the last dotted part of the
// recipient. Content is the bodies of the other messages, analysis apart, joined by spaces.
type harmony struct{}

func (harmony) Find(text string, tools []canon.ToolSpec) Found {
	if len(tools) == 0 || !strings.Contains(text, "to=") || !strings.Contains(text, harmonyMessage) {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	addressed := false
	var content []string
	for _, part := range harmonyParts(text) {
		switch {
		case part.recipient != "":
			addressed = true
			name := part.recipient[strings.LastIndexByte(part.recipient, '.')+1:]
			arguments, err := canon.ParseValue([]byte(pyStrip(part.body)))
			if err != nil {
				got.fault("call of %q: %v", canon.Shorten(name, shortest), err)
				continue
			}
			got.take(name, arguments)
		case part.channel != "analysis" && part.body != "":
			content = append(content, part.body)
		}
	}
	if !addressed {
		return Found{Content: text}
	}
	return got.result(text, pyStrip(strings.Join(content, " ")))
}
