package chat

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

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

// A translated case is a fixture as a canonical request, with the expected text changed where
// the canonical form settles what a template is given: the order of tool keys and the
// spelling of arguments.
type translated struct {
	req    *canon.Request
	prompt bool
	want   string
}

// translate returns false for what canonical messages cannot say (a fifth role, content that
// is no text).
func translate(t *testing.T, c templateCase) (translated, bool) {
	ctx := kwargs(t, string(c.Ctx))
	out := translated{req: &canon.Request{Kwargs: canon.ObjectOf()}, want: *c.Out}
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
		case "enable_thinking":
			out.req.Kwargs = canon.ObjectOf(m)
		}
	}
	return out, true
}

func (x *translated) tool(v canon.Value) {
	function, _ := v.Get("function")
	name, _ := function.Get("name")
	parameters, _ := function.Get("parameters")
	var description *string
	if d, ok := function.Get("description"); ok {
		s := d.Str()
		description = &s
	}
	spec := canon.NewToolSpec(name.Str(), description, parameters)
	x.req.Tools = append(x.req.Tools, spec)
	x.want = strings.ReplaceAll(x.want, string(v.AppendTemplate(nil)), string(appendTool(nil, &spec)))
}

func (x *translated) message(t *testing.T, v canon.Value) (*canon.Message, bool) {
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
	if get("content").Kind() != canon.String {
		return nil, false
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
		m.ToolCalls = append(m.ToolCalls, canon.ToolCall{ID: id.Str(), Name: name.Str(), Arguments: canonical})
		given := string(arguments.AppendTemplate(nil))
		ours := string(appendArguments(nil, canonical))
		if arguments.Kind() == canon.String { // Qwen3 prints a text as it is, Qwen2.5 quotes it
			x.want = strings.ReplaceAll(x.want, arguments.Str(), ours)
		}
		x.want = strings.ReplaceAll(x.want, given, ours)
	}
	return canon.NewMessage(m), true
}

func TestRenderIsHuggingFace(t *testing.T) {
	all := readCases(t)
	for tpl, s := range map[string]style{
		"lc__Qwen-Qwen3-0.6B":          qwen3Style{},
		"npm__qwen3":                   qwen3Style{},
		"trl__qwen3":                   qwen3Style{},
		"lc__Qwen-Qwen2.5-7B-Instruct": qwen25Style{},
	} {
		t.Run(tpl, func(t *testing.T) {
			f := styled(t, s)
			checked, raises, foreign := 0, 0, []string(nil)
			for _, c := range all {
				if c.Tpl != tpl {
					continue
				}
				if c.Out == nil {
					raises++
					continue
				}
				x, ok := translate(t, c)
				if !ok {
					foreign = append(foreign, c.Conv)
					continue
				}
				checked++
				if got := rendered(f, x.req, x.prompt); got != x.want {
					t.Errorf("%s:\ngot  %q\nwant %q", c.Conv, got, x.want)
				}
			}
			if t.Logf("%d cases equal to Hugging Face, %d raise there, not expressible: %v", checked, raises, foreign); checked < 17 {
				t.Errorf("only %d cases found", checked)
			}
		})
	}
}

func TestFixtureTemplatesAreKnown(t *testing.T) {
	for name, want := range map[string]style{
		"lc__Qwen-Qwen3-0.6B":          qwen3Style{},
		"npm__qwen3":                   qwen3Style{},
		"trl__qwen3":                   qwen3Style{},
		"lc__Qwen-Qwen2.5-7B-Instruct": qwen25Style{},
		"lc__Qwen-QwQ-32B":             nil,
		"lc__Qwen3-Coder":              nil,
		"trl__qwen3_5_think":           nil,
		"lc__google-gemma-2-2b-it":     nil,
	} {
		path := sharedPath(t, "fixtures/chat_templates/"+name+".jinja")
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := detectStyle(string(raw), path)
		if got != want || (err == nil) != (want != nil) {
			t.Errorf("%s: style %T, error %v", name, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name the file: %v", name, err)
		}
	}
}
