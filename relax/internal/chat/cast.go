package chat

import (
	"crypto/sha256"
	"math/big"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/jinja"
)

// A dialect is how one template wants a conversation: what [probe] found out.
type dialect struct {
	// ArgumentsText: tool-call arguments go in as JSON text instead of an object
	// (DeepSeek-V3 and R1 concatenate them).
	ArgumentsText bool
	// ReasoningKey is the key of a message's reasoning, "reasoning_content" unless the
	// template reads only another one (gpt-oss: "thinking").
	ReasoningKey string
	// ContentParts: content goes in as [{"type": "text", "text": …}].
	ContentParts bool
	// NullContent: an assistant message with calls and no text has content None instead of ""
	// (DeepSeek-V3 and R1 print the calls of no other).
	NullContent bool
	// ShortIDs: the template takes only call ids of nine letters and digits (Mistral).
	ShortIDs bool
	// ToolNames: tool messages need the function's name.
	ToolNames bool
	// SystemAsUser: a system message behind the first place goes in as a user message.
	SystemAsUser bool
	// MergeUsers: the template refuses two user messages in a row, so a system message that
	// goes in as a user message joins its neighbour.
	MergeUsers bool
}

// A cast turns canonical values into the values a template sees. It counts the spellings of
// control tokens in them, and seals those that are asked for: see shield.go.
type cast struct {
	dialect  *dialect
	controls *controls
	// hazards is the number of spellings so far; assistant holds the numbers of those that an
	// assistant message brought.
	hazards   int
	assistant map[int]bool
	// seal breaks the spellings that sealed picks by number; "" for none.
	seal   string
	sealed func(hazard int) bool
	// inAssistant is set while an assistant message is cast.
	inAssistant bool
	// names are the functions of the calls so far, by call id; kept for ToolNames alone.
	names map[string]string
}

// text is a string of the conversation.
func (c *cast) text(s string) jinja.Value {
	at := c.controls.hazard(s)
	if at < 0 {
		return jinja.String(s)
	}
	var out strings.Builder
	for ; at >= 0; at = c.controls.hazard(s) {
		out.WriteString(s[:at])
		if c.seals() {
			out.WriteString(c.seal)
		}
		if s = s[at:]; s == "" {
			break
		}
	}
	out.WriteString(s)
	return jinja.String(out.String())
}

// seals counts a hazard and reports whether it is to be sealed.
func (c *cast) seals() bool {
	number := c.hazards
	c.hazards++
	if c.inAssistant {
		if c.assistant == nil {
			c.assistant = map[int]bool{}
		}
		c.assistant[number] = true
	}
	return c.seal != "" && c.sealed(number)
}

func (c *cast) messages(messages []*canon.Message) []jinja.Value {
	out := make([]jinja.Value, len(messages))
	for i, m := range messages {
		out[i] = c.message(m)
	}
	return out
}

// message gives the keys in the reference's order: role, content, reasoning_content,
// tool_calls, tool_call_id (reference session service 5.3). Keys without a value are absent,
// as SGLang leaves them out: templates ask "is defined".
func (c *cast) message(m *canon.Message) jinja.Value {
	c.inAssistant = m.Role == canon.Assistant
	d := jinja.NewDict(5)
	d.Set("role", jinja.String(string(m.Role)))
	if c.dialect.NullContent && m.Content == "" && len(m.ToolCalls) > 0 {
		d.Set("content", jinja.None())
	} else {
		d.Set("content", c.content(m.Content))
	}
	if m.Reasoning != "" {
		d.Set(c.dialect.ReasoningKey, c.text(m.Reasoning))
	}
	if len(m.ToolCalls) > 0 {
		calls := make([]jinja.Value, len(m.ToolCalls))
		for i := range m.ToolCalls {
			calls[i] = c.call(&m.ToolCalls[i])
		}
		d.Set("tool_calls", jinja.List(calls))
	}
	if m.Role == canon.Tool {
		if m.ToolCallID != "" {
			d.Set("tool_call_id", c.text(c.id(m.ToolCallID)))
		}
		if name, ok := c.names[m.ToolCallID]; ok && c.dialect.ToolNames {
			d.Set("name", c.text(name))
		}
	}
	return jinja.FromDict(d)
}

func (c *cast) content(text string) jinja.Value {
	if !c.dialect.ContentParts {
		return c.text(text)
	}
	if text == "" {
		return jinja.List(nil)
	}
	part := jinja.NewDict(2).Set("type", jinja.String("text")).Set("text", c.text(text))
	return jinja.List([]jinja.Value{jinja.FromDict(part)})
}

func (c *cast) call(t *canon.ToolCall) jinja.Value {
	function := jinja.NewDict(2).Set("name", c.text(t.Name)).Set("arguments", c.arguments(t.Arguments))
	d := jinja.NewDict(3)
	if t.ID != "" {
		d.Set("id", c.text(c.id(t.ID)))
	}
	d.Set("type", jinja.String("function")).Set("function", jinja.FromDict(function))
	if c.dialect.ToolNames {
		if c.names == nil {
			c.names = map[string]string{}
		}
		c.names[t.ID] = t.Name
	}
	return jinja.FromDict(d)
}

func (c *cast) arguments(text string) jinja.Value {
	if c.dialect.ArgumentsText {
		return c.text(text)
	}
	v, err := canon.ParseValue(bytesOf(text))
	if err != nil {
		return c.text(text) // cannot be for canonical text; never lose it
	}
	return c.value(v)
}

// shortID is the length of the ids Mistral's templates insist on.
const shortID = 9

// id is a call id as the template takes it. One that it would refuse becomes another that
// follows from it alone, so that a call and its result still agree.
func (c *cast) id(id string) string {
	if !c.dialect.ShortIDs || isShortID(id) {
		return id
	}
	return shorten(id)
}

func isShortID(id string) bool {
	for i := range len(id) {
		b := id[i]
		if (b < '0' || b > '9') && (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') {
			return false
		}
	}
	return len(id) == shortID
}

func shorten(id string) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	sum := sha256.Sum256(bytesOf(id))
	var out [shortID]byte
	for i := range out {
		out[i] = digits[int(sum[i])%len(digits)]
	}
	return string(out[:])
}

func (c *cast) tools(tools []canon.ToolSpec) jinja.Value {
	c.inAssistant = false
	if len(tools) == 0 {
		return jinja.None()
	}
	out := make([]jinja.Value, len(tools))
	for i := range tools {
		out[i] = c.value(tools[i].Value())
	}
	return jinja.List(out)
}

// value is a JSON value.
func (c *cast) value(v canon.Value) jinja.Value {
	switch v.Kind() {
	case canon.Bool:
		return jinja.Bool(v.Bool())
	case canon.Number:
		return number(v)
	case canon.String:
		return c.text(v.Str())
	case canon.Array:
		items := make([]jinja.Value, len(v.Elems()))
		for i, e := range v.Elems() {
			items[i] = c.value(e)
		}
		return jinja.List(items)
	case canon.Object:
		d := jinja.NewDict(len(v.Members()))
		for _, m := range v.Members() {
			key, _ := c.text(m.Key).AsString()
			d.Set(key, c.value(m.Value))
		}
		return jinja.FromDict(d)
	default:
		return jinja.None()
	}
}

func number(v canon.Value) jinja.Value {
	if i, ok := v.Int64(); ok {
		return jinja.Int(i)
	}
	if v.IsInt() {
		if b, ok := new(big.Int).SetString(string(v.AppendCompact(nil)), 10); ok {
			return jinja.BigInt(b)
		}
	}
	f, _ := v.Float64()
	return jinja.Float(f)
}

// adapt puts a conversation into roles the template can print in place. A leading system
// message is left alone when whole says that messages begin the conversation.
func (d *dialect) adapt(messages []*canon.Message, whole bool) []*canon.Message {
	first := 0
	if whole && len(messages) > 0 && messages[0].Role == canon.System {
		first = 1
	}
	if !d.SystemAsUser || !hasSystem(messages[first:]) {
		return messages
	}
	out := append(make([]*canon.Message, 0, len(messages)), messages[:first]...)
	for i, m := range messages[first:] {
		asked := m.Role == canon.System
		if asked {
			user := *m
			user.Role = canon.User
			m = &user
		}
		joins := d.MergeUsers && m.Role == canon.User && len(out) > first && out[len(out)-1].Role == canon.User
		if joins && (asked || messages[first+i-1].Role == canon.System) {
			both := *out[len(out)-1]
			both.Content = both.Content + "\n\n" + m.Content
			out[len(out)-1] = &both
			continue
		}
		out = append(out, m)
	}
	return out
}

func hasSystem(messages []*canon.Message) bool {
	for _, m := range messages {
		if m.Role == canon.System {
			return true
		}
	}
	return false
}
