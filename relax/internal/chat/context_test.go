package chat

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/jinja"
)

// contextOf is the template's render of a case's context as JSON, changed where the canonical
// form or the dialect says so; nil if it raises. It goes around this package's own casts.
func contextOf(t *testing.T, f *Format, c templateCase, x translation) *string {
	t.Helper()
	var ctx map[string]json.RawMessage
	if err := json.Unmarshal(c.Ctx, &ctx); err != nil {
		t.Fatal(err)
	}
	tpl := f.template(x.req.Tools)
	names := map[string]string{}
	var list [][]byte
	for _, m := range x.req.Messages {
		list = append(list, messageJSON(t, m, &tpl.dialect, names))
	}
	ctx["messages"] = append(append([]byte("["), bytes.Join(list, []byte(","))...), ']')
	raw, err := json.Marshal(ctx)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jinja.FromJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := v.AsDict()
	out, err := tpl.code.Render(d)
	if err != nil {
		return nil
	}
	return &out
}

// object writes an ordered JSON object of key, raw value pairs; pairs without a value are left
// out.
func object(t *testing.T, pairs ...any) []byte {
	t.Helper()
	out := []byte("{")
	for i := 0; i < len(pairs); i += 2 {
		var raw []byte
		switch v := pairs[i+1].(type) {
		case nil:
			continue
		case []byte:
			raw = v
		default:
			var buf bytes.Buffer
			enc := json.NewEncoder(&buf)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(v); err != nil {
				t.Fatal(err)
			}
			raw = bytes.TrimSpace(buf.Bytes())
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), pairs[i].(string)...), `":`...)
		out = append(out, raw...)
	}
	return append(out, '}')
}

func messageJSON(t *testing.T, m *canon.Message, d *dialect, names map[string]string) []byte {
	t.Helper()
	var content any = m.Content
	if d.NullContent && m.Content == "" && len(m.ToolCalls) > 0 {
		content = []byte("null")
	}
	if d.ContentParts {
		content = []byte("[]")
		if m.Content != "" {
			content = append(append([]byte("["), object(t, "type", "text", "text", m.Content)...), ']')
		}
	}
	pairs := []any{"role", string(m.Role), "content", content}
	if m.Reasoning != "" {
		pairs = append(pairs, d.ReasoningKey, m.Reasoning)
	}
	if len(m.ToolCalls) > 0 {
		var calls [][]byte
		for _, call := range m.ToolCalls {
			var arguments any = []byte(call.Arguments)
			if d.ArgumentsText {
				arguments = call.Arguments
			}
			names[call.ID] = call.Name
			calls = append(calls, object(t, "id", shortFor(d, call.ID), "type", "function",
				"function", object(t, "name", call.Name, "arguments", arguments)))
		}
		pairs = append(pairs, "tool_calls", append(append([]byte("["), bytes.Join(calls, []byte(","))...), ']'))
	}
	if m.Role == canon.Tool {
		pairs = append(pairs, "tool_call_id", shortFor(d, m.ToolCallID))
		if d.ToolNames {
			pairs = append(pairs, "name", names[m.ToolCallID])
		}
	}
	return object(t, pairs...)
}

func shortFor(d *dialect, id string) string {
	if d.ShortIDs {
		return shorten(id)
	}
	return id
}
