package wire

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// messagesDialect is Anthropic's Messages (reference session service 2.8, 7.7, 7.8).
type messagesDialect struct{}

// messagesFields are the parts of a Messages request that mean something.
type messagesFields struct {
	body     []byte
	cache    *canon.Cache
	system   list[*canon.Message]
	messages list[*canon.Message]
	// present: the body has messages.
	present bool
	tools   list[canon.ToolSpec]
	small   map[string]canon.Value
	ignored []string
}

// Parse implements [Dialect].
func (messagesDialect) Parse(body []byte, cache *canon.Cache) (*canon.Request, *Error) {
	return readMessages(body, cache, func(v canon.Value) (int, *Error) {
		if v.IsNull() {
			return 0, Invalid("max_tokens", "max_tokens is required; expected a positive int")
		}
		return turnLimit("max_tokens", v)
	})
}

// ParseCountTokens reads the body of a Messages request that only asks for its number of
// tokens: max_tokens may be absent.
func ParseCountTokens(body []byte, cache *canon.Cache) (*canon.Request, *Error) {
	return readMessages(body, cache, func(v canon.Value) (int, *Error) { return turnLimit("max_tokens", v) })
}

func readMessages(body []byte, cache *canon.Cache, maxTokens func(v canon.Value) (int, *Error)) (*canon.Request, *Error) {
	body = bytes.TrimPrefix(body, byteOrderMark)
	f := messagesFields{body: body, cache: cache, small: make(map[string]canon.Value, 8)}
	if e := objectBody(body, f.read); e != nil {
		return nil, e
	}
	if !f.present {
		return nil, Invalid("messages", "messages is required; expected a list")
	}
	for _, fault := range []*Error{f.system.fault, f.messages.fault} {
		if fault != nil {
			return nil, fault
		}
	}
	req := &canon.Request{}
	var e *Error
	if req.MaxTokens, e = maxTokens(f.small["max_tokens"]); e != nil {
		return nil, e
	}
	if e := f.settings(req); e != nil {
		return nil, e
	}
	f.messages.items = slices.Insert(f.messages.items, 0, f.system.items...)
	f.messages.skipped = append(f.messages.skipped, f.system.skipped...)
	if e := conversation(req, f.messages, f.tools, cache); e != nil {
		return nil, e
	}
	return req, nil
}

// read reads one member of the body.
func (f *messagesFields) read(key string, at int) (end int, err error) {
	switch key {
	case "messages":
		f.present = true
		l, end, err := f.turns(at)
		f.messages.replace(l)
		return end, err
	case "system":
		l, end, err := f.systemField(at)
		f.system.replace(l)
		return end, err
	case "tools":
		l, end, err := toolList(f.body, at, f.cache.For(messagesTools), "tools", messagesTool)
		f.tools.replace(l)
		return end, err
	}
	v, end, err := parseAt(f.body, at)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", canon.Shorten(key, 40), err)
	}
	switch key {
	case "model", "max_tokens", "stop_sequences", "stream", "thinking", "thread":
		f.small[key] = v
	default:
		if !v.IsNull() {
			f.ignored = append(f.ignored, key)
		}
	}
	return end, nil
}

// turns reads the list of messages at an index of the body.
func (f *messagesFields) turns(at int) (list[*canon.Message], int, error) {
	if at < len(f.body) && f.body[at] == '[' {
		return elements(f.body, at, f.cache.For(messagesElements), readTurn)
	}
	v, end, err := parseAt(f.body, at)
	if err != nil {
		return list[*canon.Message]{}, 0, err
	}
	return list[*canon.Message]{fault: Invalid("messages", "messages must be list, not %s", v.TypeName())}, end, nil
}

// systemField reads the system field at an index of the body.
func (f *messagesFields) systemField(at int) (list[*canon.Message], int, error) {
	end, err := canon.SkipValue(f.body, at)
	if err != nil {
		return list[*canon.Message]{}, 0, err
	}
	m, err := f.cache.For(messagesSystem).Read(f.body[at:end], func(owned []byte) (canon.Meaning, error) {
		v, err := canon.ParseOwned(owned)
		if err != nil {
			return canon.Meaning{}, Invalid("body", "system: %v (counted from the value's start)", err)
		}
		t := turnReader{ruler: ruler{"system"}, place: "system", field: "system"}
		if e := t.system(v); e != nil {
			return canon.Meaning{}, e
		}
		return t.meaning, nil
	})
	if err != nil {
		return list[*canon.Message]{fault: asError(err, "system")}, end, nil
	}
	return list[*canon.Message]{items: m.Messages, skipped: m.Skipped}, end, nil
}

// noThreads refuses a conversation that the server is to keep: its history would be lost without
// a word. By the error code the SDKs' tool runners know that they must send all of it, and do.
func noThreads() *Error {
	e := Invalid("thread", "thread must be absent: no conversation is stored here; send the complete history in messages")
	e.Details = `{"error_code":"thread_unsupported_request","unsupported":[]}`
	return e
}

// settings fills what is neither messages nor tools nor the turn limit.
func (f *messagesFields) settings(req *canon.Request) *Error {
	var e *Error
	if thread := f.small["thread"]; !thread.IsNull() {
		return noThreads()
	}
	if stop := f.small["stop_sequences"]; stop.Kind() == canon.String {
		return Invalid("stop_sequences", "stop_sequences must be list of str or null, not str")
	} else if req.Stop, e = stopStrings("stop_sequences", stop); e != nil {
		return e
	}
	if req.Stream, e = flag("stream", f.small["stream"]); e != nil {
		return e
	}
	req.Kwargs = f.thinking()
	req.Model, f.ignored = modelName(f.small["model"], f.ignored)
	req.Ignored = sortedNames(f.ignored)
	return nil
}

// thinking makes template arguments of the thinking field. Budgets have no equivalent.
func (f *messagesFields) thinking() canon.Value {
	thinking := f.small["thinking"]
	kind, _ := thinking.Get("type")
	switch kind.Str() {
	case "enabled", "adaptive", "disabled":
	default:
		if !thinking.IsNull() {
			f.ignored = append(f.ignored, "thinking")
		}
		return canon.ObjectOf()
	}
	for _, m := range thinking.Members() {
		if m.Key != "type" && !m.Value.IsNull() {
			f.ignored = append(f.ignored, "thinking."+m.Key)
		}
	}
	return canon.ObjectOf(canon.Member{Key: "enable_thinking", Value: canon.BoolValue(kind.Str() != "disabled")})
}

// messagesTool reads one entry of tools; types other than custom are Anthropic's own tools, which
// a model here cannot call.
func messagesTool(item canon.Value, i int) (canon.ToolSpec, bool, *Error) {
	const param = "tools"
	kind, _ := item.Get("type")
	if item.Kind() != canon.Object || !kind.IsNull() && (kind.Kind() != canon.String || kind.Str() != "custom") {
		return canon.ToolSpec{}, false, nil
	}
	name, _ := item.Get("name")
	if name.Kind() != canon.String || name.Str() == "" {
		return canon.ToolSpec{}, false, Invalid(param, "tools[%d].name must be a non-empty str, not %s", i, describe(name))
	}
	schema, _ := item.Get("input_schema")
	if schema.Kind() != canon.Object {
		return canon.ToolSpec{}, false, Invalid(param, "tools[%d].input_schema must be dict, not %s", i, schema.TypeName())
	}
	description, e := toolDescription(item, param, fmt.Sprintf("tools[%d]", i))
	if e != nil {
		return canon.ToolSpec{}, false, e
	}
	return canon.NewToolSpec(name.Str(), description, schema), true, nil
}
