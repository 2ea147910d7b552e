package wire

import (
	"strconv"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// This file spells answers of the Responses dialect (reference session service 7.5, 7.6), with
// all that the official SDK's models require and its stream accumulators wait for.

// An outputItem is one item of an answer's output.
type outputItem struct {
	// kind is the item's type: reasoning, message, function_call or custom_tool_call.
	kind, id string
	// text is what the item says: reasoning, content, arguments or input.
	text string
	// callID, name and namespace are a call's.
	callID, name, namespace string
}

// outputItems are the items of an answer: reasoning, text, calls. A turn without any of them is
// a message without text, so that its replay is not lost.
func outputItems(c *Completion) []outputItem {
	m := c.Message
	items := make([]outputItem, 0, 2+len(m.ToolCalls))
	if m.Reasoning != "" {
		items = append(items, outputItem{kind: "reasoning", id: "rs_" + c.ID, text: m.Reasoning})
	}
	if m.Content != "" || m.Reasoning == "" && len(m.ToolCalls) == 0 {
		items = append(items, outputItem{kind: "message", id: "msg_" + c.ID, text: m.Content})
	}
	spelling, _ := c.Spelling.(*responsesSpelling)
	for i := range m.ToolCalls {
		items = append(items, callItem(&m.ToolCalls[i], "_"+c.ID+"_"+strconv.Itoa(i), spelling))
	}
	return items
}

// callItem spells a call as its tool was given: one that was not given is a plain function.
func callItem(call *canon.ToolCall, id string, spelling *responsesSpelling) outputItem {
	item := outputItem{kind: "function_call", id: "fc" + id, text: call.Arguments, callID: call.ID, name: call.Name}
	if spelling == nil {
		return item
	}
	how, ok := spelling.calls.Get(call.Name)
	if !ok {
		return item
	}
	name, _ := how.Get("name")
	namespace, _ := how.Get("namespace")
	item.name, item.namespace = name.Str(), namespace.Str()
	if kind, _ := how.Get("type"); kind.Str() == "custom" {
		item.kind, item.id, item.text = "custom_tool_call", "ctc"+id, customInput(call.Arguments)
	}
	return item
}

// append appends the item as it is when it is done.
func (o *outputItem) append(dst []byte) []byte { return o.appendAs(dst, "completed", o.text, true) }

// appendOpened appends the item as a stream announces it.
func (o *outputItem) appendOpened(dst []byte) []byte {
	return o.appendAs(dst, "in_progress", "", false)
}

// appendAs appends the item with a status and text; reasoning and messages show the text only
// once they have parts.
func (o *outputItem) appendAs(dst []byte, status, text string, parts bool) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendText(dst, o.id)
	dst = append(dst, `,"type":"`...)
	dst = append(dst, o.kind...)
	dst = append(dst, `","status":"`...)
	dst = append(dst, status...)
	dst = append(dst, '"')
	switch o.kind {
	case "reasoning":
		// The text is the summary too: older Codex versions replay only that, and NeMo Gym needs one.
		dst = append(dst, `,"summary":[`...)
		if parts {
			dst = append(dst, `{"type":"summary_text","text":`...)
			dst = appendText(dst, text)
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
		dst = o.appendContent(dst, text, parts)
		dst = append(dst, `,"encrypted_content":null`...)
	case "message":
		dst = append(dst, `,"role":"assistant"`...)
		dst = o.appendContent(dst, text, parts)
	default:
		dst = o.appendCall(dst, text)
	}
	return append(dst, '}')
}

func (o *outputItem) appendContent(dst []byte, text string, parts bool) []byte {
	dst = append(dst, `,"content":[`...)
	if parts {
		dst = o.appendPart(dst, text)
	}
	return append(dst, ']')
}

// appendPart appends the one content part of reasoning or a message.
func (o *outputItem) appendPart(dst []byte, text string) []byte {
	if o.kind == "reasoning" {
		dst = append(dst, `{"type":"reasoning_text","text":`...)
		dst = appendText(dst, text)
		return append(dst, '}')
	}
	dst = append(dst, `{"type":"output_text","text":`...)
	dst = appendText(dst, text)
	return append(dst, `,"annotations":[],"logprobs":[]}`...)
}

// appendCall appends the members of a call.
func (o *outputItem) appendCall(dst []byte, text string) []byte {
	dst = append(dst, `,"call_id":`...)
	dst = appendText(dst, o.callID)
	if o.namespace != "" {
		dst = append(dst, `,"namespace":`...)
		dst = appendText(dst, o.namespace)
	}
	dst = append(dst, `,"name":`...)
	dst = appendText(dst, o.name)
	if o.kind == "custom_tool_call" {
		dst = append(dst, `,"input":`...)
	} else {
		dst = append(dst, `,"arguments":`...)
	}
	return appendText(dst, text)
}

// A responseState is what a response object says beside the completion's facts.
type responseState struct {
	// status is completed, incomplete, in_progress or failed.
	status string
	output []outputItem
	// failure is why a failed response failed.
	failure *Error
}

// finalState is the state of a finished turn.
func finalState(c *Completion) responseState {
	s := responseState{status: "completed", output: outputItems(c)}
	if c.FinishReason == FinishLength {
		s.status = "incomplete"
	}
	return s
}

// appendResponse appends a response object. Instructions and tools are not repeated: the client
// has them, and a stream would carry them three times.
func appendResponse(dst []byte, c *Completion, s responseState) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendText(dst, "resp_"+c.ID)
	dst = append(dst, `,"object":"response","created_at":`...)
	dst = strconv.AppendInt(dst, c.Created, 10)
	dst = append(dst, `,"status":"`...)
	dst = append(dst, s.status...)
	dst = append(dst, `","background":false,"error":`...)
	if s.failure != nil {
		dst = appendErrorObject(dst, s.failure)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"incomplete_details":`...)
	if s.status == "incomplete" {
		dst = append(dst, `{"reason":"max_output_tokens"}`...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = appendEchoes(dst, c)
	dst = append(dst, `,"output":[`...)
	for i := range s.output {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = s.output[i].append(dst)
	}
	dst = append(dst, `],"usage":`...)
	if s.output == nil {
		return append(dst, `null}`...)
	}
	dst = appendInt(dst, `{"input_tokens":`, c.PromptTokens)
	dst = appendInt(dst, `,"input_tokens_details":{"cached_tokens":`, c.CachedTokens)
	dst = appendInt(dst, `,"cache_write_tokens":0},"output_tokens":`, c.CompletionTokens)
	dst = appendInt(dst, `,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":`, c.PromptTokens+c.CompletionTokens)
	return append(dst, `}}`...)
}

// appendEchoes appends the members that repeat the request or stand for settings nobody can
// change here.
func appendEchoes(dst []byte, c *Completion) []byte {
	spelling, _ := c.Spelling.(*responsesSpelling)
	if spelling == nil {
		spelling = &responsesSpelling{}
	}
	dst = append(dst, `,"instructions":null,"max_output_tokens":`...)
	if spelling.maxTokens > 0 {
		dst = strconv.AppendInt(dst, int64(spelling.maxTokens), 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"metadata":`...)
	if spelling.metadata.Kind() == canon.Object {
		dst = spelling.metadata.AppendCompact(dst)
	} else {
		dst = append(dst, `{}`...)
	}
	dst = append(dst, `,"model":`...)
	dst = appendTextOrNull(dst, c.Model)
	return append(dst, `,"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},`+
		`"temperature":null,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":null,"truncation":"disabled"`...)
}

// AppendAnswer implements [Dialect].
func (responsesDialect) AppendAnswer(dst []byte, c *Completion) []byte {
	return appendResponse(dst, c, finalState(c))
}

// AppendError implements [Dialect].
func (responsesDialect) AppendError(dst []byte, e *Error) []byte { return appendOpenAIError(dst, e) }

// An eventWriter appends the events of a stream and numbers them.
type eventWriter struct {
	dst []byte
	seq int
}

// event appends one event; fill appends further members, each with a comma before it.
func (w *eventWriter) event(name string, fill func(dst []byte) []byte) {
	w.dst = append(w.dst, "event: "...)
	w.dst = append(w.dst, name...)
	w.dst = append(w.dst, '\n')
	w.dst = appendFrame(w.dst, func(dst []byte) []byte {
		dst = append(dst, `{"type":"`...)
		dst = append(dst, name...)
		dst = appendInt(dst, `","sequence_number":`, w.seq)
		return append(fill(dst), '}')
	})
	w.seq++
}

func (w *eventWriter) response(name string, c *Completion, s responseState) {
	w.event(name, func(dst []byte) []byte {
		return appendResponse(append(dst, `,"response":`...), c, s)
	})
}

// item appends the events of one output item, which comes in one piece.
func (w *eventWriter) item(index int, o *outputItem) {
	w.event("response.output_item.added", func(dst []byte) []byte {
		dst = appendInt(dst, `,"output_index":`, index)
		return o.appendOpened(append(dst, `,"item":`...))
	})
	switch o.kind {
	case "reasoning":
		w.part(index, o, "response.reasoning_text", "")
	case "message":
		w.part(index, o, "response.output_text", `,"logprobs":[]`)
	case "custom_tool_call":
		w.text(index, o, "response.custom_tool_call_input", "input", "")
	default:
		w.text(index, o, "response.function_call_arguments", "arguments", "")
	}
	w.event("response.output_item.done", func(dst []byte) []byte {
		dst = appendInt(dst, `,"output_index":`, index)
		return o.append(append(dst, `,"item":`...))
	})
}

// part appends the events of an item's one content part.
func (w *eventWriter) part(index int, o *outputItem, name, more string) {
	edge := func(name, text string) {
		w.event(name, func(dst []byte) []byte {
			dst = o.appendPlace(dst, index, `,"content_index":0`)
			return o.appendPart(append(dst, `,"part":`...), text)
		})
	}
	edge("response.content_part.added", "")
	w.text(index, o, name, "text", `,"content_index":0`+more)
	edge("response.content_part.done", o.text)
}

// text appends an item's text as a delta, unless it is empty, and as a whole; key names the
// whole.
func (w *eventWriter) text(index int, o *outputItem, name, key, more string) {
	say := func(name, key string) {
		w.event(name, func(dst []byte) []byte {
			dst = o.appendPlace(dst, index, more)
			dst = append(dst, `,"`...)
			dst = append(dst, key...)
			dst = append(dst, `":`...)
			return appendText(dst, o.text)
		})
	}
	if o.text != "" {
		say(name+".delta", "delta")
	}
	say(name+".done", key)
}

// appendPlace appends the members that say which item an event is about.
func (o *outputItem) appendPlace(dst []byte, index int, more string) []byte {
	dst = append(dst, `,"item_id":`...)
	dst = appendText(dst, o.id)
	dst = appendInt(dst, `,"output_index":`, index)
	return append(dst, more...)
}

// AppendStream appends the entire sequence of events; the content of each item is one delta.
func (responsesDialect) AppendStream(dst []byte, c *Completion) []byte {
	w := eventWriter{dst: dst}
	begun := responseState{status: "in_progress"}
	w.response("response.created", c, begun)
	w.response("response.in_progress", c, begun)
	s := finalState(c)
	for i := range s.output {
		w.item(i, &s.output[i])
	}
	w.response("response."+s.status, c, s)
	return w.dst
}

// AppendStreamError appends a response that was created and failed.
func (responsesDialect) AppendStreamError(dst []byte, e *Error) []byte {
	w := eventWriter{dst: dst}
	// Nothing is known of the request here.
	c := &Completion{ID: "failed"}
	w.response("response.created", c, responseState{status: "in_progress"})
	w.response("response.failed", c, responseState{status: "failed", failure: e})
	return w.dst
}
