package wire

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// responsesDialect is OpenAI's Responses (reference session service 2.7, 7.5, 7.6). The items of
// the input are in responses_items.go, the tools in responses_tools.go, the answer in
// responses_answer.go.
type responsesDialect struct{}

func (responsesDialect) Connected() string { return connected }
func (responsesDialect) Heartbeat() string { return heartbeat }

// responsesFields are the parts of a Responses request that mean something. Input and tools are
// read while the body is walked; what is wrong with them is kept, because other fields are
// checked first.
type responsesFields struct {
	body  []byte
	cache *canon.Cache
	// inputType is the fault of an input that is neither text nor list.
	inputType    *Error
	instructions list[*canon.Message]
	// input has one piece for each item.
	input list[*canon.Message]
	tools list[canon.ToolSpec]
	// toolText is the text of the tools.
	toolText []byte
	// spelling is what the tools have to say about the answer.
	spelling responsesSpelling
	small    map[string]canon.Value
	ignored  []string
}

// responsesSmall names the small fields of a Responses request.
func responsesSmall(key string) bool {
	switch key {
	case "model", "max_output_tokens", "reasoning", "stream", "metadata",
		"previous_response_id", "conversation", "background":
		return true
	}
	return false
}

// Parse implements [Dialect].
func (responsesDialect) Parse(body []byte, cache *canon.Cache) (*canon.Request, *Error) {
	body = bytes.TrimPrefix(body, byteOrderMark)
	f := responsesFields{body: body, cache: cache, small: make(map[string]canon.Value, 8)}
	f.inputType = Invalid("input", "input is missing; expected str or list")
	if e := objectBody(body, f.read); e != nil {
		return nil, e
	}
	req := &canon.Request{}
	if e := f.fill(req); e != nil {
		return nil, e
	}
	req.Ignored = sortedNames(slices.Concat(f.ignored, f.input.skipped, f.tools.skipped))
	spelling := f.spelling // a copy: a pointer into f would keep the body while the request waits
	req.Spelling = &spelling
	return req, nil
}

// read reads one member of the body. Text that is no JSON ends the walk, though a later member
// of the same name may replace it.
func (f *responsesFields) read(key string, at int) (end int, err error) {
	var fault *Error
	switch key {
	case "input":
		end, err = f.readInput(at)
		fault = f.input.fault
	case "instructions":
		end, err = f.readInstructions(at)
		fault = f.instructions.fault
	case "tools":
		end, err = f.readTools(at)
		fault = f.tools.fault
	default:
		return f.readField(key, at)
	}
	if err == nil && fault != nil && fault.Param == "body" {
		return 0, fault
	}
	return end, err
}

// readField reads a member that is not kept in the cache.
func (f *responsesFields) readField(key string, at int) (end int, err error) {
	v, end, err := parseAt(f.body, at)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", canon.Shorten(key, 40), err)
	}
	if responsesSmall(key) {
		f.small[key] = v
	} else if !v.IsNull() {
		f.ignored = append(f.ignored, key)
	}
	return end, nil
}

// readInput reads the input at body[at]: a text or a list of items.
func (f *responsesFields) readInput(at int) (end int, err error) {
	f.inputType, f.input = nil, list[*canon.Message]{}
	if at < len(f.body) && f.body[at] == '[' {
		f.input, end, err = elements(f.body, at, f.cache.For(responsesItems), itemPiece)
		return end, err
	}
	v, end, err := parseAt(f.body, at)
	if err != nil {
		return 0, fmt.Errorf("input: %w", err)
	}
	switch {
	case v.Kind() != canon.String:
		f.inputType = Invalid("input", "input must be str or list, not %s", v.TypeName())
	case v.Str() == "":
		f.input.fault = Invalid("input", "input must not be empty")
	default:
		m := canon.NewMessage(canon.Message{Role: canon.User, Content: v.Str()})
		f.input.items = []*canon.Message{f.cache.Intern(m)}
	}
	return end, nil
}

// readInstructions reads the instructions at body[at], which are the first system message.
func (f *responsesFields) readInstructions(at int) (end int, err error) {
	if end, err = canon.SkipValue(f.body, at); err != nil {
		return 0, err
	}
	m, err := f.cache.For(responsesInstructions).Read(f.body[at:end], func(owned []byte) (canon.Meaning, error) {
		v, err := canon.ParseOwned(owned)
		switch {
		case err != nil:
			return canon.Meaning{}, Invalid("body", "instructions: %v (counted from the text's start)", err)
		case v.IsNull():
			return canon.Meaning{}, nil
		case v.Kind() != canon.String || v.Str() == "":
			return canon.Meaning{}, Invalid("instructions", "instructions must be a non-empty str or null, not %s", describe(v))
		}
		system := canon.NewMessage(canon.Message{Role: canon.System, Content: v.Str()})
		return canon.Meaning{Messages: []*canon.Message{system}}, nil
	})
	f.instructions = list[*canon.Message]{items: m.Messages}
	if err != nil {
		f.instructions.fault = asError(err, "instructions")
	}
	return end, nil
}

// fill checks everything in the reference's order and fills the request. Fields that would
// lose a part of the conversation come first: whatever else is wrong is wrong because of them.
func (f *responsesFields) fill(req *canon.Request) *Error {
	if e := f.wholeHistory(); e != nil {
		return e
	}
	if f.inputType != nil {
		return f.inputType
	}
	if f.instructions.fault != nil {
		return f.instructions.fault
	}
	if f.input.fault != nil {
		return f.input.fault
	}
	var e *Error
	if req.MaxTokens, e = turnLimit("max_output_tokens", f.small["max_output_tokens"]); e != nil {
		return e
	}
	req.Kwargs = f.kwargs()
	if f.tools.fault != nil {
		return f.tools.fault
	}
	if e = f.addTools(); e != nil {
		return e
	}
	req.Tools = f.tools.items
	if req.Stream, e = flag("stream", f.small["stream"]); e != nil {
		return e
	}
	f.echoes(req)
	req.Messages, e = f.messages()
	return e
}

// wholeHistory refuses the fields that leave history to a server's store. The reference ignores
// them and would train on half a conversation.
func (f *responsesFields) wholeHistory() *Error {
	if v := f.small["previous_response_id"]; !v.IsNull() && (v.Kind() != canon.String || v.Str() != "") {
		return Invalid("previous_response_id", "previous_response_id must be null: no response is stored here; "+
			"send the complete history of the conversation as input")
	}
	if v := f.small["conversation"]; !v.IsNull() {
		return Invalid("conversation", "conversation must be null: no conversation is stored here; "+
			"send the complete history of the conversation as input")
	}
	if v := f.small["background"]; !v.Falsy() {
		return Invalid("background", "background must be false or null: no response is stored here to be fetched later; "+
			"send the complete history with each request and read the answer from it")
	}
	return nil
}

// kwargs derives the template arguments from reasoning.effort, as the reference does.
func (f *responsesFields) kwargs() canon.Value {
	reasoning := f.small["reasoning"]
	if reasoning.Kind() != canon.Object {
		if !reasoning.IsNull() {
			f.ignored = append(f.ignored, "reasoning")
		}
		return canon.ObjectOf()
	}
	kwargs := canon.ObjectOf()
	for _, m := range reasoning.Members() {
		known := false
		if m.Key == "effort" && m.Value.Kind() == canon.String {
			switch effort := m.Value.Str(); effort {
			case "none", "minimal", "low", "medium", "high", "xhigh", "max":
				known = true
				kwargs = canon.ObjectOf(canon.Member{Key: "enable_thinking", Value: canon.BoolValue(effort != "none")})
			}
		}
		if !known && !m.Value.IsNull() {
			f.ignored = append(f.ignored, "reasoning."+canon.Shorten(m.Key, 40))
		}
	}
	return kwargs
}

// echoes keeps what the answer repeats of the request.
func (f *responsesFields) echoes(req *canon.Request) {
	f.spelling.maxTokens = req.MaxTokens
	switch metadata := f.small["metadata"]; metadata.Kind() {
	case canon.Null:
	case canon.Object:
		f.spelling.metadata = metadata
	default:
		f.ignored = append(f.ignored, "metadata")
	}
	req.Model, f.ignored = modelName(f.small["model"], f.ignored)
}

// messages makes the pieces of the input the messages of a conversation. What an assistant did
// in one go comes as several items; they become one message.
func (f *responsesFields) messages() ([]*canon.Message, *Error) {
	messages := make([]*canon.Message, 0, len(f.input.items)+1)
	messages = append(messages, f.instructions.items...)
	turn := assistantTurn{empty: -1}
	for i, piece := range f.input.items {
		switch piece.Role {
		case rolePassed, roleTools:
			continue
		case roleEmpty:
			turn.empty = i
			continue
		case canon.Assistant:
			turn.pieces = append(turn.pieces, piece)
			continue
		}
		var e *Error
		if messages, e = turn.end(messages, f.cache); e != nil {
			return nil, e
		}
		messages = append(messages, piece)
	}
	messages, e := turn.end(messages, f.cache)
	if e != nil {
		return nil, e
	}
	if len(messages) == 0 {
		return nil, Invalid("input", "input projected to zero supported messages; send at least one")
	}
	return mergeLeadingSystem(messages, f.cache), nil
}
