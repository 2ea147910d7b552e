package chat

import (
	"cmp"
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
// final stop token is left out of the text; the caller keeps it in the stored ids. Nothing is
// trimmed beyond what SGLang's parsers trim and, of reasoning, white space at its ends (see
// [canon.Message]), so that the message comes back the same when a client sends it again. The ids of tool calls are the model's
// own if it writes them, else they follow from state and ids alone.
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
		parent, newID := fmt.Sprintf("%016x", uint64(state)), callID
		if f.template(req.Tools).dialect.ShortIDs {
			newID = shortCallID
		}
		m.ToolCalls = make([]canon.ToolCall, len(found.Calls))
		for i, c := range found.Calls {
			m.ToolCalls[i] = canon.ToolCall{ID: cmp.Or(c.ID, newID(c.Index, parent, ids)), Name: c.Name, Arguments: c.Arguments}
		}
	}
	if problem != "" && found.ParseError != "" {
		problem += "; "
	}
	problem += found.ParseError
	if problem == "" && m.Content == "" && m.Reasoning == "" && len(m.ToolCalls) == 0 {
		problem = fmt.Sprintf("empty turn: %d tokens without text, reasoning or calls", len(ids))
	}
	return Reply{Message: canon.NewMessage(m), ParseError: problem, Text: text}
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
