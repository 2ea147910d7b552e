package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// respell writes canonical messages as the items of a Responses input.
func respell(t *testing.T, messages []*canon.Message, spelling any) []byte {
	items := [][]byte{}
	add := func(item map[string]any) {
		raw, err := json.Marshal(item)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, raw)
	}
	for _, m := range messages {
		var content any = m.Content
		if m.Parts != nil {
			var parts []any
			for _, p := range m.Parts {
				if p.Image != "" {
					parts = append(parts, map[string]any{"type": "input_image", "image_url": p.Image})
				} else {
					parts = append(parts, map[string]any{"type": "input_text", "text": p.Text})
				}
			}
			content = parts
		}
		switch m.Role {
		case canon.Tool:
			add(map[string]any{"type": "function_call_output", "call_id": m.ToolCallID, "output": content})
		case canon.Assistant:
			var answer struct{ Output []json.RawMessage }
			if err := json.Unmarshal(Responses.AppendAnswer(nil, &Completion{Message: m, Spelling: spelling}), &answer); err != nil {
				t.Fatal(err)
			}
			items = append(items, rawItems(answer.Output)...)
		default:
			add(map[string]any{"role": string(m.Role), "content": content})
		}
	}
	return bytes.Join(items, []byte(","))
}

// toolsOf is the text of a body's tools, with those of its input's additional_tools.
func toolsOf(t *testing.T, body []byte) string {
	tools, input := "null", "null"
	body = bytes.TrimPrefix(body, byteOrderMark)
	err := canon.WalkMembers(body, func(key string, at int) (int, error) {
		end, err := canon.SkipValue(body, at)
		if key == "tools" && err == nil {
			tools = string(body[at:end])
		}
		if key == "input" && err == nil {
			input = string(body[at:end])
		}
		return end, err
	})
	if err != nil {
		t.Fatal(err)
	}
	all, items := []string{}, []json.RawMessage{}
	for _, list := range append([]string{tools}, addedTools(input)...) {
		if err := json.Unmarshal([]byte(list), &items); err == nil {
			all = append(all, strings.Trim(string(bytes.Join(rawItems(items), []byte(","))), " "))
		}
	}
	return "[" + strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ",") + "]"
}

// addedTools are the texts of the lists in the additional_tools of an input.
func addedTools(input string) []string {
	v, err := canon.ParseValue([]byte(input))
	if err != nil {
		return nil
	}
	var lists []string
	for _, item := range v.Elems() {
		kind, _ := item.Get("type")
		if tools, _ := item.Get("tools"); kind.Str() == "additional_tools" && tools.Kind() == canon.Array {
			lists = append(lists, string(tools.AppendCompact(nil)))
		}
	}
	return lists
}

func FuzzParseResponses(f *testing.F) {
	f.Add([]byte(`{"input":"hi","instructions":"i","reasoning":{"effort":"low"}}`))
	f.Add([]byte(`{"input":[` + userHi + `,` + summary + `,{"role":"assistant","content":[{"type":"output_text","text":"t"},{"type":"refusal"}]},` + callC + `,` + callD + `],"tools":` + codexTools + `}`))
	f.Add([]byte(`{"input":[{"type":"custom_tool_call","call_id":"c","name":"exec","input":"x"},{"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_image","image_url":"https://u"},{"type":"input_text","text":"x"}]}],"tools":` + codexTools + `}`))
	f.Add([]byte(`{"input":[{"type":"function_call","call_id":"c","namespace":"multi_agent_v1","name":"js","arguments":"{\"input\":\"x\"}"},{"role":"developer","content":"d"},{"type":"item_reference"},3]}`))
	f.Add([]byte(`{"input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"n","tools":[{"type":"custom","name":"f"}]}]},` + userHi + `],"tools":[]}`))
	f.Add([]byte(`{"input":[}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		cache := canon.NewCache(0)
		first, e := Responses.Parse(body, cache)
		second, e2 := Responses.Parse(body, cache)
		if (e == nil) != (e2 == nil) {
			t.Fatalf("%q: %v, then %v", body, e, e2)
		}
		if e != nil {
			if e.Status != 400 || e.Message == "" || !json.Valid(Responses.AppendError(nil, e)) {
				t.Fatalf("%q: %+v", body, e)
			}
			return
		}
		if !json.Valid(bytes.TrimPrefix(body, byteOrderMark)) {
			t.Fatalf("accepted invalid JSON %q", body)
		}
		if !reflect.DeepEqual(first.Ignored, second.Ignored) || canon.RootState(first.Tools, first.Kwargs) != canon.RootState(second.Tools, second.Kwargs) {
			t.Fatalf("%q: the same bytes have two states", body)
		}
		// Differential: what was read is spelled back to the same.
		again, e := Responses.Parse([]byte(`{"input":[`+string(respell(t, first.Messages, first.Spelling))+`],"tools":`+toolsOf(t, body)+`}`), nil)
		if e != nil {
			t.Fatalf("%q: the respelled request is refused: %v", body, e)
		}
		if canonicalText(again.Messages) != canonicalText(first.Messages) || !canon.EqualTools(again.Tools, first.Tools) {
			t.Fatalf("%q: read as %s\nrespelled as %s", body, canonicalText(first.Messages), canonicalText(again.Messages))
		}
		for i, m := range first.Messages {
			if !m.Equal(second.Messages[i]) || !m.Equal(again.Messages[i]) {
				t.Fatalf("%q: message %d differs", body, i)
			}
			switch m.Role {
			case canon.System, canon.User, canon.Assistant, canon.Tool:
			default:
				t.Fatalf("%q: role %q left the package", body, m.Role)
			}
		}
	})
}

// BenchmarkParse reads a request of 200 elements and 800 KB of which all but the last are known
// to the cache. In the Responses request an assistant's turn is three items (reasoning, text, call).
func BenchmarkParse(b *testing.B) {
	text := strings.Repeat("a line of text\\n", (800<<10)/200/16)
	chat := []string{`{"role":"user","content":"` + text + `"}`, `{"role":"assistant","content":"` + text + `","reasoning_content":"r","tool_calls":[` + callsC + `]}`,
		`{"role":"tool","tool_call_id":"c","content":"` + text + `"}`, `{"role":"assistant","content":"` + text + `"}`}
	responses := []string{`{"type":"reasoning","summary":[{"type":"summary_text","text":"` + text + `"}]}`,
		`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"` + text + `","annotations":[]}]}`,
		`{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":\"` + strings.ReplaceAll(text, `\`, `\\`) + `\"}"}`,
		`{"type":"function_call_output","call_id":"c","output":"` + text + `"}`}
	body := func(head string, elements []string) []byte {
		for len(elements) < 199 {
			next := strings.Replace(elements[len(elements)%4], "a line", fmt.Sprint("line ", len(elements)), 1)
			elements = append(elements, next)
		}
		return []byte(head + strings.Join(elements, ",") + `,{"role":"user","content":"number 000000000"}]}`)
	}
	for _, bb := range []struct {
		name string
		Dialect
		body []byte
	}{{"chat", Chat, body(`{"messages":[`, chat)}, {"responses", Responses, body(`{"input":[`, responses)},
		{"responses/instructions", Responses, body(`{"instructions":"`+strings.Repeat(text, 5)+`","input":[`, responses)}} {
		b.Run(bb.name, func(b *testing.B) {
			cache := canon.NewCache(0)
			b.SetBytes(int64(len(bb.body)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				copy(bb.body[len(bb.body)-len(`000000000"}]}`):], fmt.Sprintf("%09d", i))
				if _, e := bb.Parse(bb.body, cache); e != nil {
					b.Fatal(e)
				}
			}
		})
	}
}
