package chat

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A templateCase is one render by jinja2 set up as transformers does.
type templateCase struct {
	Tpl  string          `json:"tpl"`
	Conv string          `json:"conv"`
	Ctx  json.RawMessage `json:"ctx"`
	Out  *string         `json:"out"`
}

func readCases(t *testing.T) []templateCase {
	t.Helper()
	file, err := os.Open(sharedPath(t, "fixtures/chat_template_cases.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []templateCase
	if err := json.NewDecoder(zip).Decode(&cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// A translation is a case as a canonical request. Its context is the case's own with what the
// canonical form settles: sorted argument keys, 2 for 2.0, no keys without a value, no call
// names on tool messages unless the template needs them.
type translation struct {
	req      *canon.Request
	bos, eos string
	prompt   bool
	// changed: the canonical form is not what the case gave.
	changed bool
}

// translate returns false for what canonical messages cannot say: a fifth role, content that
// is no text.
func translate(t *testing.T, c templateCase) (translation, bool) {
	t.Helper()
	ctx := kwargs(t, string(c.Ctx))
	out := translation{req: &canon.Request{Kwargs: canon.ObjectOf()}}
	var options []canon.Member
	for _, m := range ctx.Members() {
		switch m.Key {
		case "messages":
			for _, v := range m.Value.Elems() {
				message, ok := out.message(t, v)
				if !ok {
					return out, false
				}
				out.req.Messages = append(out.req.Messages, message)
			}
		case "tools":
			for _, v := range m.Value.Elems() {
				out.tool(v)
			}
		case "add_generation_prompt":
			out.prompt = m.Value.Bool()
		case "bos_token":
			out.bos = m.Value.Str()
		case "eos_token":
			out.eos = m.Value.Str()
		case "documents", "pad_token", "unk_token": // pad_token is the eos_token, unk_token <unk>
		default:
			options = append(options, m)
		}
	}
	out.req.Kwargs = canon.ObjectOf(options...)
	return out, true
}

func (x *translation) tool(v canon.Value) {
	function, _ := v.Get("function")
	name, _ := function.Get("name")
	parameters, _ := function.Get("parameters")
	var description *string
	if d, ok := function.Get("description"); ok {
		s := d.Str()
		description = &s
	}
	spec := canon.NewToolSpec(name.Str(), description, parameters)
	spec.Function = function
	x.req.Tools = append(x.req.Tools, spec)
}

func (x *translation) message(t *testing.T, v canon.Value) (*canon.Message, bool) {
	t.Helper()
	get := func(key string) canon.Value { field, _ := v.Get(key); return field }
	m := canon.Message{
		Role:       canon.Role(get("role").Str()),
		Content:    get("content").Str(),
		Reasoning:  get("reasoning_content").Str(),
		ToolCallID: get("tool_call_id").Str(),
	}
	switch m.Role {
	case canon.System, canon.User, canon.Assistant, canon.Tool:
	default:
		return nil, false
	}
	switch kind := get("content").Kind(); {
	case kind == canon.Null:
		x.changed = true // canonical content is ""
	case kind != canon.String:
		return nil, false
	}
	if get("name").Kind() != canon.Null {
		x.changed = true
	}
	for _, call := range get("tool_calls").Elems() {
		id, _ := call.Get("id")
		function, _ := call.Get("function")
		name, _ := function.Get("name")
		arguments, _ := function.Get("arguments")
		canonical, err := canon.CanonicalArguments(arguments)
		if err != nil {
			t.Fatal(err)
		}
		if arguments.Kind() == canon.String || string(arguments.AppendCompact(nil)) != canonical {
			x.changed = true
		}
		m.ToolCalls = append(m.ToolCalls, canon.ToolCall{ID: id.Str(), Name: name.Str(), Arguments: canonical})
	}
	return canon.NewMessage(m), true
}

// renderCase renders a translation with the fixture's own places for system messages.
func renderCase(f *Format, x translation) (string, error) {
	t := f.template(x.req.Tools)
	out, err := t.print(conversation{x.req.Messages, x.req.Tools, x.req.Kwargs}, x.prompt)
	return string(out.text), err
}

// TestRenderIsHuggingFace renders every case that canonical messages can say. Where the
// canonical form is what the case gave, text and errors are those of transformers. Where it is
// not, the expected text is the template's own render of the canonical form's context, made
// without this package: see contextOf.
func TestRenderIsHuggingFace(t *testing.T) {
	same, other, raises, foreign := 0, 0, 0, 0
	refused := map[string]bool{"lc__MiroThinker": true}
	for _, c := range readCases(t) {
		if refused[c.Tpl] {
			continue
		}
		x, ok := translate(t, c)
		if !ok {
			foreign++
			continue
		}
		f, err := tryFamily(t, c.Tpl, x.bos, x.eos)
		if err != nil {
			refused[c.Tpl] = true
			t.Errorf("%s: %v", c.Tpl, err)
			continue
		}
		if f.plain.toolsOnly && len(x.req.Tools) == 0 {
			foreign++
			continue
		}
		got, err := renderCase(f, x)
		want, settled := c.Out, !x.changed && !recast(f, x)
		if !settled {
			want = contextOf(t, f, c, x)
		}
		switch {
		case want == nil && err == nil:
			t.Errorf("%s / %s: rendered %q, transformers raises", c.Tpl, c.Conv, got)
		case want != nil && err != nil:
			t.Errorf("%s / %s: %v", c.Tpl, c.Conv, err)
		case want == nil:
			raises++
		case got != *want:
			t.Errorf("%s / %s:\n got %q\nwant %q", c.Tpl, c.Conv, got, *want)
		case settled:
			same++
		default:
			other++
		}
	}
	t.Logf("%d renders equal transformers', %d that of the canonical form, %d raise there and here, %d cannot be said", same, other, raises, foreign)
	if same < 800 || other < 250 || raises < 100 {
		t.Errorf("only %d, %d, %d cases were compared", same, other, raises)
	}
}

// recast reports whether the dialect gives the template something else than the case does.
func recast(f *Format, x translation) bool {
	d := f.template(x.req.Tools).dialect
	if d.ContentParts {
		return true
	}
	for _, m := range x.req.Messages {
		if len(m.ToolCalls) > 0 && (d.ArgumentsText || d.NullContent && m.Content == "") ||
			m.Reasoning != "" && d.ReasoningKey != "reasoning_content" ||
			d.ShortIDs && (m.ToolCallID != "" || len(m.ToolCalls) > 0) {
			return true
		}
	}
	return false
}
