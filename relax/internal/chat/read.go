package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/parsers"
)

// A Reply is what generated ids say.
type Reply struct {
	// Message is the assistant message, never nil. All of it may be empty.
	Message *canon.Message
	// ParseError says what could not be read, "" if nothing was wrong. The message then holds
	// the text as it was generated, or the calls beside the bad one.
	ParseError string
	// Text is the decoded turn without its final stop token, before any parser.
	Text string
}

// Read turns the ids of a finished generation into a message. It never fails: whatever the
// ids are, there is a message, and a flag if something was wrong with them. state is the
// state that was generated from and obs the observation before it; req is the request. The
// final stop token is left out of the text; the caller keeps it in the stored ids.
//
// The message must come back the same when a client sends it again. So nothing is trimmed beyond
// what SGLang's parsers trim and, of reasoning, white space at its ends (see [canon.Message]); but
// white space alone beside calls is no content, because clients drop it. The ids of tool calls are
// the model's own if it writes them and the conversation has no other call by that id, else they
// follow from state and ids alone.
func (f *Format) Read(state canon.State, ids []int32, req *canon.Request, obs Observation) Reply {
	visible := ids
	if n := len(ids); n > 0 && slices.Contains(f.stopIDs, ids[n-1]) {
		visible = ids[:n-1]
	}
	text, problem := f.decode(visible)
	split := f.reasoning.Split(parsers.Turn{Text: text, ThinkOpen: f.opensThinking(obs)})
	found := f.toolCalls.Find(split.Content, req.Tools)

	m := canon.Message{Role: canon.Assistant, Content: found.Content, Reasoning: split.Reasoning}
	if len(found.Calls) > 0 {
		m.ToolCalls = f.identified(found.Calls, state, ids, req)
		if strings.TrimSpace(m.Content) == "" {
			m.Content = ""
		}
	}
	if problem != "" && found.ParseError != "" {
		problem += "; "
	}
	problem += found.ParseError
	message := canon.NewMessage(m)
	if problem == "" && isEmpty(message) {
		problem = fmt.Sprintf("empty turn: %d tokens without text, reasoning or calls", len(ids))
	}
	return Reply{Message: message, ParseError: problem, Text: text}
}

// isEmpty reports whether a message says nothing: white space is no text.
func isEmpty(m *canon.Message) bool {
	return strings.TrimSpace(m.Content) == "" && m.Reasoning == "" && len(m.ToolCalls) == 0
}

// identified are the calls of a turn with ids that no other call of the conversation has
// (reference session service 7.1): a client that meets an id again takes the call for done.
func (f *Format) identified(found []parsers.Call, state canon.State, ids []int32, req *canon.Request) []canon.ToolCall {
	parent, newID := fmt.Sprintf("%016x", uint64(state)), callID
	if f.template(req.Tools).dialect.ShortIDs {
		newID = shortCallID
	}
	calls := make([]canon.ToolCall, len(found))
	for i, c := range found {
		if c.ID == "" || hasCall(calls[:i], c.ID) || isUsed(req.Messages, c.ID) {
			c.ID = newID(c.Index, parent, ids)
		}
		calls[i] = canon.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments}
	}
	return calls
}

// isUsed reports whether a call of the messages has the id, or a result whose call was left out.
func isUsed(messages []*canon.Message, id string) bool {
	return slices.ContainsFunc(messages, func(m *canon.Message) bool { return m.ToolCallID == id || hasCall(m.ToolCalls, id) })
}

func hasCall(calls []canon.ToolCall, id string) bool {
	return slices.ContainsFunc(calls, func(c canon.ToolCall) bool { return c.ID == id })
}

// promptTail is how many ids at the end of an observation can say that thinking has begun.
const promptTail = 8

// opensThinking reports whether what was generated from ends inside a think block.
func (f *Format) opensThinking(obs Observation) bool {
	tail := obs.Prompt
	if len(tail) == 0 {
		tail = obs.Body
	}
	text, _ := f.decode(tail[max(0, len(tail)-promptTail):])
	return parsers.OpensThinking(f.reasoning, text)
}

// decode returns the text of ids. Ids the tokenizer refuses (a backend with a larger
// vocabulary than the tokenizer) become U+FFFD each, and problem says so.
func (f *Format) decode(ids []int32) (text, problem string) {
	if len(ids) == 0 {
		return "", ""
	}
	text, err := f.tok.Decode(ids)
	if err == nil {
		return text, ""
	}
	problem = "decode: " + err.Error()
	var out strings.Builder
	good := 0 // ids[good:i] can be decoded
	flush := func(end int) {
		if good < end {
			if part, err := f.tok.Decode(ids[good:end]); err == nil {
				out.WriteString(part)
			} else {
				out.WriteString("\uFFFD")
			}
		}
	}
	for i, id := range ids {
		if _, err := f.tok.Decode([]int32{id}); err != nil {
			flush(i)
			out.WriteString("\uFFFD")
			good = i + 1
		}
	}
	flush(len(ids))
	return out.String(), problem
}

// callID is the reference's recipe: the first 24 hex digits of the SHA-256 of the compact
// JSON {"call_index","parent_state_hash","token_ids"} (reference session service 7.1). Our
// parent hash is the 64-bit state in 16 hex digits.
func callID(index int, parent string, ids []int32) string {
	text := make([]byte, 0, 64+len(parent)+7*len(ids))
	text = append(text, `{"call_index":`...)
	text = strconv.AppendInt(text, int64(index), 10)
	text = append(text, `,"parent_state_hash":"`...)
	text = append(text, parent...)
	text = append(text, `","token_ids":[`...)
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(id), 10)
	}
	text = append(text, "]}"...)
	sum := sha256.Sum256(text)
	return "call_" + hex.EncodeToString(sum[:])[:24]
}

// shortCallID is callID for templates that take no other than nine letters and digits.
func shortCallID(index int, parent string, ids []int32) string {
	return shorten(callID(index, parent, ids))
}
