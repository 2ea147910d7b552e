package wire

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// parseResponses reads a request that must be good.
func parseResponses(t testing.TB, body string, cache *canon.Cache) *canon.Request {
	t.Helper()
	req, e := Responses.Parse([]byte(body), cache)
	if e != nil {
		t.Fatalf("%s: %v", body, e)
	}
	return req
}

const (
	callC   = `{"type":"function_call","id":"fc_1","status":"completed","call_id":"c","name":"f","arguments":"{\"b\": 2.0, \"a\":1}"}`
	callD   = `{"type":"function_call","call_id":"d","name":"g","arguments":"{}"}`
	callsC  = `{"function":{"arguments":"{\"a\":1,\"b\":2}","name":"f"},"id":"c","type":"function"}`
	callsD  = `{"function":{"arguments":"{}","name":"g"},"id":"d","type":"function"}`
	userHi  = `{"role":"user","content":"hi"}`
	wantHi  = `{"content":"hi","role":"user"}`
	summary = `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"r1"},{"type":"summary_text","text":"r2"}],"content":null,"encrypted_content":"x"}`
)

// The names are those of the cases file, section 1.B.
func TestResponsesInput(t *testing.T) {
	lines := func(l ...string) string { return strings.Join(l, "\n") }
	output := func(o string) string { return `{"type":"function_call_output","call_id":"c","output":` + o + `}` }
	tests := []struct{ name, fields, want, ignored string }{
		{"B1", `"input":"ping"`, `{"content":"ping","role":"user"}`, ""},
		{"B2", `"instructions":"Be brief","input":[` + userHi + `]`, lines(`{"content":"Be brief","role":"system"}`, wantHi), ""},
		{"B3", `"input":[{"role":"developer","content":[{"type":"input_text","text":"d1"},{"type":"input_text","text":"d2"}]},{"role":"system","content":"s"},` + userHi + `],"instructions":"i"`,
			lines(`{"content":"i\n\nd1\n\nd2\n\ns","role":"system"}`, wantHi), ""},
		{"a later system message stays (settled: moving it would fork the history)", `"input":[` + userHi + `,{"role":"developer","content":"d"}]`,
			lines(wantHi, `{"content":"d","role":"system"}`), ""},
		{"instructions alone", `"instructions":"i","input":[]`, `{"content":"i","role":"system"}`, ""},
		{"B4", `"input":[{"role":"user","content":"hi","id":"m","status":"completed","phase":null}]`, wantHi, ""},
		{"B5", `"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}]`, `{"content":"ab","role":"user"}`, ""},
		{"B6 B7", `"input":[{"role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,aGk=","detail":"low","file_id":null}]}]`,
			`{"content":[{"text":"see","type":"text"},{"image_url":{"url":"data:image/png;base64,aGk="},"type":"image_url"}],"role":"user"}`, ""},
		{"image_url as an object (settled: every legal spelling)", `"input":[{"role":"user","content":[{"type":"input_image","image_url":{"url":"https://u","detail":"low"}}]}]`,
			`{"content":[{"image_url":{"url":"https://u"},"type":"image_url"}],"role":"user"}`, ""},
		{"B8", `"input":[{"role":"system","content":[{"type":"input_image","image_url":"u"},{"type":"input_text","text":"s"}]},` + userHi + `]`,
			lines(`{"content":"s","role":"system"}`, wantHi), "input.content.input_image"},
		{"B9", `"input":[` + userHi + `,` + summary + `,{"type":"message","role":"assistant","content":[{"type":"output_text","text":"t","annotations":[]}]},` + callC + `,` + callD + `]`,
			lines(wantHi, `{"content":"t","reasoning_content":"r1\n\nr2","role":"assistant","tool_calls":[`+callsC+`,`+callsD+`]}`), ""},
		{"B10 B11", `"input":[` + userHi + `,{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},{"type":"reasoning","summary":[{"text":""}],"content":[{"text":"q"}]},{"role":"assistant","content":"t"}]`,
			lines(wantHi, `{"content":"t","reasoning_content":"r\n\nq","role":"assistant"}`), ""},
		{"reasoning alone", `"input":[` + userHi + `,` + summary + `]`, lines(wantHi, `{"content":"","reasoning_content":"r1\n\nr2","role":"assistant"}`), ""},
		{"unreadable reasoning", `"input":[` + userHi + `,{"type":"reasoning","summary":[],"encrypted_content":"x"}]`, wantHi, "input.encrypted_content"},
		{"B12", `"input":[{"role":"assistant","content":"a"},{"role":"assistant","content":[{"type":"output_text","text":"b"}]},` + userHi + `]`,
			lines(`{"content":"ab","role":"assistant"}`, wantHi), ""},
		{"B13", `"input":[` + callC + `,` + output(`"x"`) + `]`, lines(`{"content":"","role":"assistant","tool_calls":[`+callsC+`]}`, `{"content":"x","role":"tool","tool_call_id":"c"}`), ""},
		{"B14", `"input":[` + output(`""`) + `]`, `{"content":"","role":"tool","tool_call_id":"c"}`, ""},
		{"B15", `"input":[` + output(`[{"type":"input_text","text":"x"},{"type":"input_text","text":"y"}]`) + `]`, `{"content":"xy","role":"tool","tool_call_id":"c"}`, ""},
		{"images of an output are kept (settled: they are part of what the model sees)", `"input":[` + output(`[{"type":"input_text","text":"x"},{"type":"input_image","image_url":"https://u"},{"type":"input_file","file_id":"f"}]`) + `]`,
			`{"content":[{"text":"x","type":"text"},{"image_url":{"url":"https://u"},"type":"image_url"}],"role":"tool","tool_call_id":"c"}`, "input.output.input_file"},
		{"B17", `"input":[` + callC + `,{"type":"item_reference","id":"i"},7,{"id":"i"},{"role":"tool","content":"x"},{"type":"web_search_call","id":"w"},` + callD + `]`,
			`{"content":"","role":"assistant","tool_calls":[` + callsC + `,` + callsD + `]}`,
			"input.int input.item_reference input.role=NoneType input.role=tool input.web_search_call"},
		{"B25", `"input":[{"role":"assistant","content":[{"type":"output_text","text":""}]},` + callC + `]`, `{"content":"","role":"assistant","tool_calls":[` + callsC + `]}`, ""},
		{"an empty assistant turn is one we hand out (settled: as in Chat)", `"input":[` + userHi + `,{"role":"assistant","content":[{"type":"output_text","text":""}]}]`,
			lines(wantHi, `{"content":"","role":"assistant"}`), ""},
		{"empty with company", `"input":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},` + callD + `,{"role":"assistant","content":null}]`,
			`{"content":"","role":"assistant","tool_calls":[` + callsD + `]}`, "input.content.refusal"},
		{"custom tool", `"input":[{"type":"custom_tool_call","id":"ctc","call_id":"c","name":"apply_patch","input":"*** Begin"},{"type":"custom_tool_call_output","call_id":"c","output":"ok"}]`,
			lines(`{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":"{\"input\":\"*** Begin\"}","name":"apply_patch"},"id":"c","type":"function"}]}`,
				`{"content":"ok","role":"tool","tool_call_id":"c"}`), ""},
		{"namespace", `"input":[{"type":"function_call","call_id":"c","namespace":"multi_agent_v1","name":"spawn_agent","arguments":"{}"}]`,
			`{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"multi_agent_v1__spawn_agent"},"id":"c","type":"function"}]}`, ""},
		{"notes keep the rest of a message", `"input":[{"role":"user","content":[{"type":"input_text","text":"hi"},{"type":"input_file","file_id":"f"},4]}]`,
			wantHi, "input.content.input_file input.content.int"},
		{"the last of a repeated key wins", `"input":[3],"input":"hi"`, wantHi, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cache := canon.NewCache(0)
			for _, cache := range []*canon.Cache{nil, cache, cache} {
				req := parseResponses(t, `{`+tt.fields+`}`, cache)
				if got := canonicalText(req.Messages); got != tt.want {
					t.Errorf("\n got %s\nwant %s", got, tt.want)
				}
				if got := strings.Join(req.Ignored, " "); got != tt.ignored {
					t.Errorf("ignored %s, want %s", got, tt.ignored)
				}
			}
		})
	}
}

// The Responses rows of the cases file, section 1.D. Indices are those of the request, not of
// the canonical messages (settled).
func TestResponsesRefuses(t *testing.T) {
	input := func(items string) string { return `{"input":[` + userHi + `,` + items + `]}` }
	tools := func(tools string) string { return `{"input":"x","tools":` + tools + `}` }
	tests := []struct{ name, body, param, text string }{
		{"D-1", `{"input":"x"`, "body", "JSON"},
		{"D-1", `{"input":"x","metadata":{"a":nope}}`, "body", "metadata"},
		{"D-1", `{"input":nope}`, "body", "input"},
		{"D-1", input(`{"role":"user","content":nope}`), "body", "input[1]"},
		{"D-1", tools(`[{"type":nope}]`), "body", "tools"},
		{"D-1, though replaced", `{"input":[nope],"input":"x"}`, "body", "input[0]"},
		{"D-1, though replaced", `{"input":"x","tools":[nope],"tools":[]}`, "body", "tools"},
		{"D-1, though replaced", `{"input":"x","instructions":"\ud800","instructions":"y"}`, "body", "instructions"},
		{"D-2", `[]`, "body", "must be a JSON object, not list"},
		{"D-26", input(`{"role":"user","content":"\ud800"}`), "body", "lone surrogate"},
		{"D-34", `{}`, "input", "input is missing"},
		{"D-34", `{"input":{}}`, "input", "input must be str or list, not dict"},
		{"D-34", `{"input":null}`, "input", "input must be str or list, not NoneType"},
		{"D-35", `{"input":""}`, "input", "input must not be empty"},
		{"D-35", input(`{"role":"user","content":""}`), "input", "input[1].content must not be empty"},
		{"D-35", input(`{"role":"system","content":[]}`), "input", "input[1].content must not be empty"},
		{"D-36", `{"input":"x","instructions":""}`, "instructions", "non-empty str or null"},
		{"D-36", `{"input":"x","instructions":5}`, "instructions", "not int"},
		{"D-37", input(`{"role":"user","content":7}`), "input", "input[1].content must be str or list, not int"},
		{"D-37", input(`{"role":"user","content":null}`), "input", "input[1].content must be str or list, not NoneType"},
		{"D-38", input(`{"role":"user","content":[{"type":"input_text","text":""}]}`), "input", "input[1].content[0].text must be a non-empty str"},
		{"D-38", input(`{"role":"user","content":[{"type":"input_text"}]}`), "input", "input[1].content[0].text"},
		{"D-38", input(`{"role":"assistant","content":[{"type":"output_text","text":null}]}`), "input", "input[1].content[0].text"},
		{"D-39", input(`{"role":"user","content":[{"type":"input_image","image_url":""}]}`), "input", "input[1].content[0].image_url must be a non-empty URL"},
		{"D-39", input(`{"role":"user","content":[{"type":"input_image","image_url":{}}]}`), "input", "input[1].content[0].image_url"},
		{"a file", input(`{"role":"user","content":[{"type":"input_image","file_id":"f"}]}`), "input", "input[1].content[0]: file ids are not supported"},
		{"a path", input(`{"role":"user","content":[{"type":"input_image","image_url":"file:///etc/passwd"}]}`), "input", "input[1].content[0]: an image must be an http(s) or data:image/ URL"},
		{"D-40", input(`{"type":"function_call","name":"f","arguments":"{}"}`), "input", "input[1].call_id must be a non-empty str, not NoneType"},
		{"D-40", input(`{"type":"function_call","call_id":"c","name":"","arguments":"{}"}`), "input", "input[1].name must be a non-empty str"},
		{"a namespace", input(`{"type":"function_call","call_id":"c","name":"f","namespace":4,"arguments":"{}"}`), "input", "input[1].namespace"},
		{"D-41", input(`{"type":"function_call","call_id":"c","name":"f","arguments":{}}`), "input", "input[1].arguments must be str, the JSON text of an object, not dict"},
		{"D-42", input(`{"type":"function_call","call_id":"c","name":"f","arguments":"{bad"}`), "input", "input[1].arguments must be the JSON text"},
		{"D-23", input(`{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1,\"a\":2}"}`), "input", "repeated"},
		{"a custom call", input(`{"type":"custom_tool_call","call_id":"c","name":"f"}`), "input", "input[1].input must be str"},
		{"D-43", input(`{"type":"function_call_output","output":"x"}`), "input", "input[1].call_id"},
		{"D-44", input(`{"type":"function_call_output","call_id":"c","output":5}`), "input", "input[1].output must be str or list, not int"},
		{"D-45", input(`{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":""}]}`), "input", "input[1].output[0].text"},
		{"B16", input(`{"type":"function_call_output","call_id":"c","output":[{"type":"input_file"}]}`), "input", "input[1].output must have"},
		{"D-46", `{"input":[{"role":"assistant","content":[]},` + userHi + `]}`, "input", "input[0].content projected to no supported content"},
		{"D-46", input(`{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}`), "input", "input[1].content projected to no supported content"},
		{"D-47", `{"input":[{"type":"item_reference","id":"x"}]}`, "input", "zero supported messages"},
		{"D-48", tools(`{}`), "tools", "tools must be list or null, not dict"},
		{"D-49", tools(`[{"type":"function","name":"","parameters":{}}]`), "tools", "tools[0].name must be a non-empty str"},
		{"D-50", tools(`[{"type":"function","name":"f","parameters":null}]`), "tools", "tools[0].parameters must be dict, not NoneType"},
		{"D-50", tools(`[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f","parameters":[]}]}]`), "tools", "tools[0].tools[0].parameters must be dict, not list"},
		{"tools", tools(`[{"type":"function","name":"f","description":1,"parameters":{}}]`), "tools", "tools[0].description"},
		{"tools", tools(`[{"type":"namespace","name":"n"}]`), "tools", "tools[0].tools must be list"},
		{"tools", tools(`[{"type":"namespace","tools":[]}]`), "tools", "tools[0].name"},
		{"two tools of one name", tools(`[{"type":"function","name":"a__b","parameters":{}},{"type":"namespace","name":"a","tools":[{"type":"function","name":"b","parameters":{}}]}]`),
			"tools", `tools[1].tools[0]: the model would know function "a__b" of namespace "" and function "b" of namespace "a" by one name, "a__b"`},
		{"two tools of one name", tools(`[{"type":"function","name":"f","parameters":{}},{"type":"custom","name":"f"}]`), "tools", "tools[1]: the model would know"},
		{"D-32", `{"input":"x","max_output_tokens":0}`, "max_output_tokens", "positive"},
		{"D-32", `{"input":"x","max_output_tokens":true}`, "max_output_tokens", "not bool"},
		{"stream", `{"input":"x","stream":"yes"}`, "stream", "must be bool"},
		{"B24 settled: it would lose the history in silence", `{"previous_response_id":"resp_1"}`, "previous_response_id", "complete history"},
		{"settled", `{"input":"x","conversation":"conv_1"}`, "conversation", "complete history"},
		{"settled", `{"input":"x","background":true}`, "background", "complete history"},
		{"the order of checks", `{"input":[3],"max_output_tokens":0,"instructions":""}`, "instructions", "instructions"},
		{"the order of checks", `{"input":[{"role":"user","content":3}],"max_output_tokens":0,"tools":3}`, "input", "content"},
		{"the order of checks", `{"input":"x","max_output_tokens":0,"tools":3}`, "max_output_tokens", "positive"},
	}
	for _, tt := range tests {
		cache := canon.NewCache(0)
		for range 2 {
			req, e := Responses.Parse([]byte(tt.body), cache)
			if e == nil {
				t.Fatalf("%s: %s: accepted as %s", tt.name, tt.body, canonicalText(req.Messages))
			}
			if e.Status != 400 || e.Type != "invalid_request_error" || e.Param != tt.param || !strings.Contains(e.Message, tt.text) {
				t.Errorf("%s: %s: got %+v; want %s, …%s…", tt.name, tt.body, e, tt.param, tt.text)
			}
		}
	}
}

func TestResponsesSettings(t *testing.T) {
	req := parseResponses(t, `{"model":"m","input":"hi","max_output_tokens":128,"stream":true,"store":false,"include":["x"],"top_logprobs":3,
		"temperature":0.5,"user":null,"previous_response_id":null,"conversation":null,"background":false,"metadata":{"k":"v"},"chat_template_kwargs":{"a":1},
		"reasoning":{"effort":"none","summary":"auto","x":null},"stop":"x","seed":3}`, nil)
	if req.Model != "m" || req.MaxTokens != 128 || !req.Stream || req.Stop != nil || req.Seed != nil || req.Logprobs {
		t.Errorf("got %+v", req)
	}
	if want := []string{"chat_template_kwargs", "include", "reasoning.summary", "seed", "stop", "store", "temperature", "top_logprobs"}; !reflect.DeepEqual(req.Ignored, want) {
		t.Errorf("ignored %v, want %v", req.Ignored, want)
	}
	for reasoning, want := range map[string]string{
		`null`: `{}`, `"high"`: `{}`, `{}`: `{}`, `{"effort":"deep"}`: `{}`, `{"effort":3}`: `{}`, `{"effort":"none"}`: `{"enable_thinking":false}`,
		`{"effort":"minimal"}`: `{"enable_thinking":true}`, `{"effort":"max"}`: `{"enable_thinking":true}`,
	} {
		req := parseResponses(t, `{"input":"hi","reasoning":`+reasoning+`,"model":4,"metadata":[]}`, nil)
		if got := string(req.Kwargs.AppendCanonical(nil)); got != want || req.Kwargs.Kind() != canon.Object {
			t.Errorf("reasoning %s: kwargs %s, want %s", reasoning, got, want)
		}
		if ignored := strings.Join(req.Ignored, " "); !strings.HasPrefix(ignored, "metadata model") ||
			strings.Contains(ignored, "reasoning") != (reasoning == `"high"` || strings.Contains(reasoning, "deep") || strings.Contains(reasoning, "3")) {
			t.Errorf("reasoning %s: ignored %s", reasoning, ignored)
		}
	}
}

// codexTools has one tool of each kind that Codex sends.
const codexTools = `[{"type":"function","strict":true,"name":"shell","description":"d","parameters":{"type":"object","b":1,"a":2}},
	{"type":"web_search","external_web_access":true},{"name":"untyped","parameters":{}},"x",
	{"type":"custom","name":"apply_patch","description":"patch","format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
	{"type":"custom","name":"exec","format":{"type":"text"}},
	{"type":"namespace","name":"multi_agent_v1","description":"agents","tools":[
		{"type":"function","name":"spawn_agent","parameters":{}},{"type":"custom","name":"js"},{"type":"namespace","name":"deeper","tools":[]}]},
	{"type":"local_shell"},{"type":"image_generation"}]`

func TestResponsesTools(t *testing.T) {
	cache := canon.NewCache(0)
	for _, cache := range []*canon.Cache{nil, cache, cache} {
		req := parseResponses(t, `{"input":"hi","tools":`+codexTools+`}`, cache)
		var got []string
		for i := range req.Tools {
			got = append(got, string(req.Tools[i].Value().AppendCompact(nil)))
		}
		schema := func(more string) string {
			return `"parameters":{"type":"object","properties":{"input":{"type":"string","description":"The whole input of the tool, as plain text.` + more + `"}},"required":["input"]}}}`
		}
		want := []string{
			`{"type":"function","function":{"name":"shell","description":"d","parameters":{"type":"object","b":1,"a":2}}}`,
			`{"type":"function","function":{"name":"apply_patch","description":"patch",` + schema(` It must match this grammar (lark):\nstart: x`),
			`{"type":"function","function":{"name":"exec",` + schema(""),
			`{"type":"function","function":{"name":"multi_agent_v1__spawn_agent","parameters":{}}}`,
			`{"type":"function","function":{"name":"multi_agent_v1__js",` + schema(""),
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
		if got, want := strings.Join(req.Ignored, " "), "tools.image_generation tools.local_shell tools.namespace tools.str tools.untyped tools.web_search"; got != want {
			t.Errorf("ignored %s, want %s", got, want)
		}
		if cap(req.Tools) != len(req.Tools) {
			t.Error("an append would write into the cache's list")
		}
	}
	for _, tools := range []string{`null`, `[]`, `[{"type":"function","name":"f","parameters":{}},{"type":"function","name":"f","parameters":{}}]`} {
		req := parseResponses(t, `{"input":"hi","tools":`+tools+`}`, cache)
		if len(req.Ignored) != 0 || len(req.Spelling.(*responsesSpelling).calls.Members()) != 0 {
			t.Errorf("%s: %+v", tools, req)
		}
	}
	// The last of a repeated key wins, with its spelling.
	if req := parseResponses(t, `{"input":"hi","tools":[{"type":"custom","name":"f"}],"tools":null}`, cache); len(req.Tools) != 0 || len(req.Spelling.(*responsesSpelling).calls.Members()) != 0 {
		t.Errorf("got %+v", req)
	}
}

func TestResponsesAdditionalTools(t *testing.T) {
	cache := canon.NewCache(0)
	f := `{"type":"function","name":"f","parameters":{}}`
	added := `{"type":"additional_tools","id":"at","role":"developer","tools":[{"type":"namespace","name":"functions","tools":[{"type":"custom","name":"exec"}]},{"type":"web_search"}]}`
	for _, tt := range []struct{ name, body, want string }{
		{"alone", `{"input":[` + added + `,` + userHi + `]}`, "functions__exec"},
		{"after the request's own", `{"input":[` + userHi + `,` + added + `,{"type":"additional_tools","tools":[ ]}],"tools": [ ` + f + ` ] }`, "f functions__exec"},
		{"an empty list before", `{"input":[` + userHi + `,` + added + `],"tools":[]}`, "functions__exec"},
		{"none before", `{"input":[` + added + `,` + userHi + `],"tools":null}`, "functions__exec"},
	} {
		for range 2 {
			req := parseResponses(t, tt.body, cache)
			var names []string
			for _, tool := range req.Tools {
				names = append(names, tool.Name)
			}
			if got := strings.Join(names, " "); got != tt.want || canonicalText(req.Messages) != wantHi || strings.Join(req.Ignored, " ") != "tools.web_search" {
				t.Errorf("%s: tools %s, ignored %v, messages %s", tt.name, got, req.Ignored, canonicalText(req.Messages))
			}
			call := canon.NewMessage(canon.Message{Role: canon.Assistant, ToolCalls: []canon.ToolCall{{ID: "c", Name: "functions__exec", Arguments: `{"input":"x"}`}}})
			if got := string(Responses.AppendAnswer(nil, &Completion{Message: call, Spelling: req.Spelling})); !strings.Contains(got, `"custom_tool_call","status":"completed","call_id":"c","namespace":"functions","name":"exec","input":"x"`) {
				t.Errorf("%s: got %s", tt.name, got)
			}
		}
	}
	for _, body := range []string{`{"input":[` + userHi + `,{"type":"additional_tools","tools":[{"type":"function","name":"f"}]}],"tools":[` + f + `]}`,
		`{"input":[` + userHi + `,{"type":"additional_tools","tools":[{"type":"custom","name":"f"}]}],"tools":[` + f + `]}`} {
		if _, e := Responses.Parse([]byte(body), cache); e == nil || e.Param != "tools" || !strings.Contains(e.Message, "additional_tools of input") || !strings.Contains(e.Message, "tools[1]") {
			t.Errorf("%s: got %v", body, e)
		}
	}
	if req := parseResponses(t, `{"input":[`+userHi+`,{"type":"additional_tools"}]}`, cache); strings.Join(req.Ignored, " ") != "input.additional_tools" {
		t.Errorf("ignored %v", req.Ignored)
	}
}

// cutName takes a name of qualifiedName apart again.
func cutName(name string) (namespace, inner string) {
	at := strings.LastIndex(name, "__")
	n, err := strconv.Atoi(name[at+2:])
	if err != nil || strings.Trim(name[at+2:], "0123456789") != "" {
		return name[:at], name[at+2:]
	}
	return name[:n], name[n+2 : at]
}

func TestQualifiedNamesAreReversible(t *testing.T) {
	names := []string{""}
	for at := 0; len(names[at]) < 4; at++ {
		for _, c := range []string{"a", "_", "1"} {
			names = append(names, names[at]+c)
		}
	}
	for _, namespace := range names[1:] {
		for _, name := range names[1:] {
			q := qualifiedName(namespace, name)
			if a, b := cutName(q); a != namespace || b != name {
				t.Fatalf("%q, %q: %q is read as %q, %q", namespace, name, q, a, b)
			}
		}
	}
	if got := qualifiedName("mcp__node", "js"); got != "mcp__node__js" {
		t.Errorf("got %s", got)
	}
	if got := qualifiedName("", "a__b"); got != "a__b" {
		t.Errorf("got %s", got)
	}
}

// The same bytes mean other things in other dialects, also to a cache that serves both.
func TestChatAndResponsesShareACache(t *testing.T) {
	cache := canon.NewCache(0)
	elements := `[{"role":"tool","tool_call_id":"c","content":"x"},{"role":"user","content":[{"text":"a"},{"type":"input_text","text":"b"}]}]`
	tools := `[{"type":"function","name":"f","parameters":{},"function":{"name":"g"}}]`
	for range 2 {
		req := parseResponses(t, `{"input":`+elements+`,"tools":`+tools+`}`, cache)
		if got := canonicalText(req.Messages); got != `{"content":"b","role":"user"}` || req.Tools[0].Name != "f" {
			t.Errorf("Responses: got %s, %s", got, req.Tools[0].Name)
		}
		chat, e := Chat.Parse([]byte(`{"messages":`+elements+`,"tools":`+tools+`}`), cache)
		if e != nil {
			t.Fatal(e)
		}
		if got := canonicalText(chat.Messages); got != `{"content":"x","role":"tool","tool_call_id":"c"}`+"\n"+`{"content":"ab","role":"user"}` || chat.Tools[0].Name != "g" {
			t.Errorf("Chat: got %s, %s", got, chat.Tools[0].Name)
		}
	}
}

func TestResponsesReplaySharesMessages(t *testing.T) {
	cache := canon.NewCache(0)
	turn := summary + `,{"role":"assistant","content":"t"},` + callC
	first := parseResponses(t, `{"input":[`+userHi+`,`+turn+`],"tools":`+codexTools+`}`, cache)
	second := parseResponses(t, `{"input":[`+userHi+`,`+turn+`,{"type":"function_call_output","call_id":"c","output":"x"}],"tools":`+codexTools+`}`, cache)
	for i, m := range first.Messages {
		if m != second.Messages[i] {
			t.Errorf("message %d was built again", i)
		}
	}
	if &first.Tools[0] != &second.Tools[0] {
		t.Error("the tools were built again")
	}
}

// A cache hit by hashes alone must not decide what a turn says.
func TestJoinedTurnConfirmsHits(t *testing.T) {
	piece := func(m canon.Message) *canon.Message { m.Role = canon.Assistant; return canon.NewMessage(m) }
	a, b := piece(canon.Message{Reasoning: "r"}), piece(canon.Message{Content: "c", Reasoning: "s", ToolCalls: []canon.ToolCall{{ID: "i", Name: "n", Arguments: "{}"}}})
	pieces := []*canon.Message{a, b}
	joined := joinPieces(pieces)
	if !isJoined(joined, pieces) {
		t.Error("a turn is not recognised")
	}
	for _, change := range []func(m *canon.Message){
		func(m *canon.Message) { m.Content += "x" }, func(m *canon.Message) { m.Content = "" }, func(m *canon.Message) { m.Reasoning = "rs" },
		func(m *canon.Message) { m.Reasoning += "\n\n" }, func(m *canon.Message) { m.Reasoning = "q\n\ns" },
		func(m *canon.Message) { m.ToolCalls = nil }, func(m *canon.Message) { m.ToolCalls = append(m.ToolCalls[:1:1], m.ToolCalls[0]) },
		func(m *canon.Message) { m.Role = canon.User },
	} {
		other := *joined
		change(&other)
		if isJoined(&other, pieces) {
			t.Errorf("%s is taken for %s", other.AppendCanonical(nil), joined.AppendCanonical(nil))
		}
	}
}

func TestResponsesKeepsNothingOfTheBody(t *testing.T) {
	body := `{"model":"model","instructions":"some","input":[{"role":"user","content":[{"type":"input_text","text":"text"},{"type":"input_file"}]},` + callC + `],"unknown":1,
		"metadata":{"key":"value"},"reasoning":{"effort":"low"},"tools":` + codexTools + `}`
	for _, cache := range []*canon.Cache{nil, canon.NewCache(0)} {
		b := []byte(body)
		req, e := Responses.Parse(b, cache)
		if e != nil {
			t.Fatal(e)
		}
		show := func() string {
			c := responsesSample(t)
			c.Model, c.Spelling = req.Model, req.Spelling
			text := canonicalText(req.Messages) + string(Responses.AppendAnswer(nil, c)) + strings.Join(req.Ignored, " ") + string(req.Kwargs.AppendCompact(nil))
			for i := range req.Tools {
				text += string(req.Tools[i].Value().AppendCompact(nil))
			}
			return text
		}
		before := show()
		for i := range b {
			b[i] = 'X'
		}
		if after := show(); before != after {
			t.Errorf("reusing the body's buffer changed the request to %s", after)
		}
	}
}

// The vectors of the cases file, section 1.F, from Responses requests.
func TestResponsesReferenceHashes(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"G3", `{"input":"ping"}`, "5b9fde44f89b68d8ef0842890fa8451d1603e6af8ab7df0ebc310d8d0d419ff2"},
		{"G4", `{"input":"naïve café ☕ 東京"}`, "147908900004ac5595f055fd281c0c2f1d9aab80b3db000b3caee39aba5a8c2f"},
		{"G7", `{"input":[{"role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"https://img.test/1.png","detail":"auto"}]}]}`,
			"e71b66896623bdb2a621ef6993e3fdee213ce1b48ea197dff3919465222fd6db"},
		{"G8", `{"input":[{"role":"user","content":"q"},{"type":"reasoning","summary":[{"type":"summary_text","text":"because"}]},{"role":"assistant","content":"a"}]}`,
			"6b7a221312206072f8b920f6913c2313b25630ef5669407850e8c632b0184fca"},
		{"G9", `{"input":[{"role":"user","content":"weather?"},{"type":"function_call","call_id":"c1","name":"wx","arguments":"{\"days\": 2.0, \"city\": \"Oslo\"}"},
			{"type":"function_call_output","call_id":"c1","output":"rain"}],"reasoning":{"effort":"none"},
			"tools":[{"type":"function","name":"wx","description":"forecast","strict":false,"parameters":{"type":"object","properties":{"city":{"type":"string"}}}}]}`,
			"c9e78575010fc86b4e5f3f91cf30b244ffd4dbd6e7caf9bba6f3d9588c7b71a9"},
	} {
		req := parseResponses(t, tt.body, nil)
		if got := canon.ReferenceHash(req.Messages, req.Tools, req.Kwargs); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
