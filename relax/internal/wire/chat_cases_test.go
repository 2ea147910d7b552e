package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// requestText is a request in lines: what it says first, then what it asks for.
func requestText(req *canon.Request) string {
	lines := []string{canonicalText(req.Messages)}
	for i := range req.Tools {
		lines = append(lines, "tool "+string(req.Tools[i].AppendCanonical(nil)))
	}
	if len(req.Kwargs.Members()) > 0 {
		lines = append(lines, "kwargs "+string(req.Kwargs.AppendCompact(nil)))
	}
	if req.MaxTokens > 0 {
		lines = append(lines, fmt.Sprint("max ", req.MaxTokens))
	}
	if req.Stop != nil {
		lines = append(lines, fmt.Sprintf("stop %q", req.Stop))
	}
	if req.Seed != nil {
		lines = append(lines, fmt.Sprint("seed ", *req.Seed))
	}
	if req.Logprobs {
		lines = append(lines, "logprobs")
	}
	if len(req.Ignored) > 0 {
		lines = append(lines, "ignored "+strings.Join(req.Ignored, " "))
	}
	return strings.Join(lines, "\n")
}

// A parseCase is one row of a table of reference-cases: what a body means. settled says why we
// differ from the reference; then want is ours.
type parseCase struct{ id, body, want, settled string }

func checkParse(t *testing.T, d Dialect, cases []parseCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.id, func(t *testing.T) {
			cache := canon.NewCache(0)
			// Once read for the first time, once recognised.
			for range 2 {
				req, e := d.Parse([]byte(tt.body), cache)
				if e != nil {
					t.Fatalf("%s: %v", tt.body, e)
				}
				if got := requestText(req); got != tt.want {
					t.Errorf("%s\n got %s\nwant %s\n%s", tt.body, got, tt.want, tt.settled)
				}
			}
		})
	}
}

// Reasons of design 5 for what differs from the reference.
const (
	oneForm   = "settled: one meaning has one form, so that harnesses that spell it otherwise meet their history"
	stays     = "settled: a later system message stays where it is; moving it would change message 0"
	replays   = "settled: an empty turn is one we hand out ourselves"
	developer = "settled: developer is accepted as system"
)

// Section 1.A of the reference's cases.
func TestChatCasesA(t *testing.T) {
	user := `{"content":"u","role":"user"}`
	messages := func(list string) string { return `{"messages":[` + list + `]}` }
	with := func(fields string) string { return `{"messages":[{"role":"user","content":"u"}],` + fields + `}` }
	call := func(arguments string) string {
		return messages(`{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":` + arguments + `}}]}`)
	}
	called := func(arguments string) string {
		return `{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":` + arguments + `,"name":"f"},"id":"c","type":"function"}]}`
	}
	parts := func(list string) string { return messages(`{"role":"user","content":[` + list + `]}`) }
	image := func(url string) string { return `{"image_url":{"url":"` + url + `"},"type":"image_url"}` }
	userParts := func(list string) string { return `{"content":[` + list + `],"role":"user"}` }
	checkParse(t, Chat, []parseCase{
		{"A1", messages(`{"role":"user","content":"ping"}`), `{"content":"ping","role":"user"}`, ""},
		{"A2", messages(`{"role":"user","content":"na\u00efve café ☕ 東京"}`), `{"content":"naïve café ☕ 東京","role":"user"}`, ""},
		{"A3 leading", messages(`{"role":"system","content":"A"},{"role":"system","content":"B"},{"role":"user","content":"u"}`),
			`{"content":"A\n\nB","role":"system"}` + "\n" + user, ""},
		{"A3 later", messages(`{"role":"system","content":"A"},{"role":"user","content":"u"},{"role":"system","content":"B"}`),
			`{"content":"A","role":"system"}` + "\n" + user + "\n" + `{"content":"B","role":"system"}`, stays},
		{"A4", messages(`{"role":"system","content":[{"type":"text","text":"A"},{"type":"text","text":"B"}]},{"role":"user","content":"u"}`),
			`{"content":"A\n\nB","role":"system"}` + "\n" + user, ""},
		{"A5", messages(`{"role":"system","content":[{"type":"image_url","image_url":{"url":"https://x/1.png"}}]},{"role":"user","content":"u"}`),
			user + "\nignored messages.content.image_url", ""},
		{"A5 with text", messages(`{"role":"system","content":[{"type":"image_url"},{"type":"other","text":"A"}]},{"role":"user","content":"u"}`),
			`{"content":"A","role":"system"}` + "\n" + user + "\nignored messages.content.image_url", ""},
		{"A6", messages(`{"name":"n","role":"user","content":"u","refusal":null,"audio":null,"function_call":null,"annotations":[]}`), user, ""},
		{"A7", messages(`{"role":"assistant","content":"done"}`), `{"content":"done","role":"assistant"}`, ""},
		{"A8", messages(`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`), called(`"{}"`), ""},
		{"A9", messages(`{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`), called(`"{}"`), ""},
		{"A10", messages(`{"role":"assistant","content":"","reasoning_content":"think"}`), `{"content":"","reasoning_content":"think","role":"assistant"}`, ""},
		{"A11", messages(`{"role":"assistant","content":"a","reasoning_content":"think"}`), `{"content":"a","reasoning_content":"think","role":"assistant"}`, ""},
		{"A12", messages(`{"role":"assistant","content":"a","reasoning_content":"","tool_calls":[]}`), `{"content":"a","role":"assistant"}`, ""},
		{"A13", messages(`{"role":"user","content":"u","reasoning_content":"x"}`), `{"content":"u","reasoning_content":"x","role":"user"}`, ""},
		{"A14", messages(`{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}},{"id":"c2","function":{"name":"g","arguments":"{}"}}]},` +
			`{"role":"tool","tool_call_id":"c2","content":"2"},{"role":"tool","tool_call_id":"c1","content":"1"}`),
			`{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"f"},"id":"c1","type":"function"},{"function":{"arguments":"{}","name":"g"},"id":"c2","type":"function"}]}` + "\n" +
				`{"content":"2","role":"tool","tool_call_id":"c2"}` + "\n" + `{"content":"1","role":"tool","tool_call_id":"c1"}`, ""},
		{"A15", call(`{"b":1,"a":"x"}`), called(`"{\"a\":\"x\",\"b\":1}"`), ""},
		{"A16, A17", call(`"{\"b\": 1, \"a\": \"x\"}"`), called(`"{\"a\":\"x\",\"b\":1}"`), ""},
		{"A18", call(`"{\"n\":2.0,\"m\":-0.0,\"o\":1e5}"`), called(`"{\"m\":0,\"n\":2,\"o\":100000}"`), ""},
		{"A19", call(`"{\"n\":1e16}"`), called(`"{\"n\":1e+16}"`), ""},
		{"A20", call(`"{\"n\":0.0000001}"`), called(`"{\"n\":1e-07}"`), ""},
		{"A21", call(`"{\"n\":123456789012345678901234567890}"`), called(`"{\"n\":123456789012345678901234567890}"`), ""},
		{"A22", call(`"{\"s\":\"<b>&\\u2028\"}"`), called(`"{\"s\":\"<b>&` + "\u2028" + `\"}"`), ""},
		{"A23", call(`{"o":{"z":1,"a":[2,{"y":3,"x":4}]}}`), called(`"{\"o\":{\"a\":[2,{\"x\":4,\"y\":3}],\"z\":1}}"`), ""},
		{"A24 object", call(`{}`), called(`"{}"`), ""},
		{"A24 text", call(`"{}"`), called(`"{}"`), ""},
		{"A25", messages(`{"role":"assistant","content":"","tool_calls":[{"id":"c","index":0,"type":"x","function":{"name":"f","arguments":"{}","parsed_arguments":{}}}]}`), called(`"{}"`), oneForm},
		{"A26", messages(`{"role":"assistant","tool_calls":[{"id":null,"function":{"arguments":{}}},{"function":{"name":"f","arguments":{}}}]}`),
			`{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":"{}"},"type":"function"},{"function":{"arguments":"{}","name":"f"},"type":"function"}]}`, ""},
		{"A27, D-75", messages(`{"role":"user","content":"u","tool_calls":3,"tool_call_id":7}`), user, ""},
		{"A28", messages(`{"role":"tool","content":"x"}`), `{"content":"x","role":"tool"}`, ""},
		{"A29", messages(`{"role":"tool","tool_call_id":"c1","content":""}`), `{"content":"","role":"tool","tool_call_id":"c1"}`, ""},
		{"A30", messages(`{"role":"tool","content":[{"type":"text","text":"shot"},{"type":"image_url","image_url":{"url":"https://x/1.png"}}]}`),
			`{"content":[{"text":"shot","type":"text"},` + image("https://x/1.png") + `],"role":"tool"}`, ""},
		{"A30 assistant", messages(`{"role":"assistant","content":[{"type":"image_url","image_url":{"url":"https://x/1.png"}}]}`),
			`{"content":[` + image("https://x/1.png") + `],"role":"assistant"}`, ""},
		{"A31", parts(`{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"https://x/1.png"}},{"type":"text","text":"a"},{"type":"text","text":"b"}`),
			userParts(`{"text":"see","type":"text"},` + image("https://x/1.png") + `,{"text":"a","type":"text"},{"text":"b","type":"text"}`), ""},
		{"A33", parts(`{"type":"text","text":"a","cache_control":{}},{"type":"input_text","text":"b"},{"text":"c"}`), `{"content":"abc","role":"user"}`, oneForm},
		{"A34", parts(`{"type":"image_url","image_url":"https://img.test/1.png"}`), userParts(image("https://img.test/1.png")), oneForm},
		{"A35", parts(`{"type":"image_url","image_url":{"url":"https://img.test/1.png","detail":"low"}}`), userParts(image("https://img.test/1.png")), oneForm},
		{"A35 input_image", parts(`{"type":"input_image","image_url":"HTTP://img.test/1.png","detail":"low"}`), userParts(image("HTTP://img.test/1.png")), oneForm},
		{"A35 image", parts(`{"type":"image","image":"data:image/png;base64,AAAA"},{"type":"image","url":"https://x/2"},{"type":"image","image_url":{"url":"https://x/3"}},{"image":"https://x/4"},{"image_url":"https://x/5"}`),
			userParts(image("data:image/png;base64,AAAA") + `,` + image("https://x/2") + `,` + image("https://x/3") + `,` + image("https://x/4") + `,` + image("https://x/5")), oneForm},
		{"A35 Anthropic's", parts(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"image","source":{"type":"url","url":"https://x/2"}}`),
			userParts(image("data:image/png;base64,AAAA") + `,` + image("https://x/2")), oneForm},
		{"A36", with(`"tools":[{"type":"function","function":{"strict":true,"parameters":{"type":"object"},"description":"d","name":"f"}}]`),
			user + "\n" + `tool {"function":{"description":"d","name":"f","parameters":{"type":"object"}},"type":"function"}`, ""},
		{"A37", with(`"tools":[{"type":"function","function":{"name":"f","parameters":{},"description":null}},{"type":"function","function":{"name":"g"}}]`),
			user + "\n" + `tool {"function":{"name":"f","parameters":{}},"type":"function"}` + "\n" + `tool {"function":{"name":"g","parameters":null},"type":"function"}`, ""},
		{"A38", with(`"tools":[{"type":"web_search"},{"function":{"name":"g"}}]`), user + "\nignored tools.untyped tools.web_search", ""},
		{"A39", with(`"chat_template_kwargs":{"enable_thinking":false,"b":{"d":1,"c":2}}`), user + "\n" + `kwargs {"b":{"c":2,"d":1},"enable_thinking":false}`, ""},
		{"A40", with(`"max_tokens":64`), user + "\nmax 64", ""},
		{"A41", with(`"max_tokens":64,"max_completion_tokens":32`), user + "\nmax 32", ""},
		{"A42", with(`"temperature":1,"top_p":1,"top_k":1,"n":2,"stop_token_ids":[1],"tool_choice":"auto","parallel_tool_calls":true,"stream_options":{},"model":"m"`),
			user + "\nignored n parallel_tool_calls stop_token_ids stream_options temperature tool_choice top_k top_p", ""},
		{"A43 one", with(`"stop":"###"`), user + "\n" + `stop ["###"]`, ""},
		{"A43 list", with(`"stop":["a","b"]`), user + "\n" + `stop ["a" "b"]`, ""},
		{"A44", with(`"seed":7`), user + "\nseed 7", ""},
		{"A45", with(`"logprobs":null`), user, ""},
		{"A45 true", with(`"logprobs":true`), user + "\nlogprobs", ""},
		{"D-8 developer", messages(`{"role":"developer","content":"d"},{"role":"user","content":"u"}`), `{"content":"d","role":"system"}` + "\n" + user, developer},
		{"D-11, D-12", messages(`{"role":"user","content":"u"},{"role":"assistant","content":"","tool_calls":[]}`), user + "\n" + `{"content":"","role":"assistant"}`, replays},
		{"D-11 null", messages(`{"role":"user","content":"u"},{"role":"assistant","content":null}`), user + "\n" + `{"content":"","role":"assistant"}`, replays},
		{"D-70", parts(`{"type":"image_url","image_url":{"url":"data:image/png;base64,!"}}`), userParts(image("data:image/png;base64,!")), ""},
		{"D-71", messages(`{"role":"user","content":"u"},{"role":"tool","tool_call_id":"nobody","content":"x"}`), user + "\n" + `{"content":"x","role":"tool","tool_call_id":"nobody"}`, ""},
		{"D-72", call(`{}`), called(`"{}"`), ""},
		{"reasoning under its other name", messages(`{"role":"assistant","content":"a","reasoning":"r"}`), `{"content":"a","reasoning_content":"r","role":"assistant"}`, oneForm},
		{"last duplicate key wins", messages(`{"role":"user","content":"a","content":"u"}`), user, ""},
		{"spacing", " {\n\"messages\" : [ { \"role\" : \"user\" ,\n\"content\":\t\"u\" } ] } ", user, ""},
	})
}

// Section 1.D, the rows of Chat. Those of the gateway (D-65 to D-69, D-74) are tested there.
func TestChatCasesD(t *testing.T) {
	call := func(c string) string { return `{"messages":[{"role":"assistant","tool_calls":[` + c + `]}]}` }
	message := func(m string) string { return `{"messages":[{"role":"user","content":"x"},` + m + `]}` }
	checkRefusals(t, Chat, []refusal{
		{"D-1", ``, "body", "empty"},
		{"D-2", `[]`, "body", "must be a JSON object, not list"},
		{"D-1", `{`, "body", "invalid JSON"},
		{"", `{` + hi + `}x`, "body", "invalid JSON"},
		{"", `{` + hi + `,"user":"\ud800"}`, "body", "lone surrogate"},
		{"", `{` + hi + `,"metadata":{"a":nope}}`, "body", "metadata"},
		{"", `{"messages":[{"role":"user","content":"` + "\xff" + `"}]}`, "body", "UTF-8"},
		{"", `{"messages":[{"role":"user","content":"\ud800"}]}`, "body", "messages[0]"},
		{"D-3", `{}`, "messages", "zero supported messages"},
		{"", `{"messages":null}`, "messages", "zero supported messages"},
		{"D-3", `{"messages":[]}`, "messages", "zero supported messages"},
		{"D-4", `{"messages":"hi"}`, "messages", "messages must be list, not str"},
		{"D-5", `{"messages":[3]}`, "messages", "messages[0] must be dict, not int"},
		{"D-6", message(`{"content":"a"}`), "messages", "messages[1].role is missing"},
		{"D-7", message(`{"role":1.0,"content":"a"}`), "messages", "messages[1].role must be str, not float"},
		{"D-8", message(`{"role":"function","content":"a"}`), "messages", "assistant, developer, system, tool, user"},
		{"D-9", message(`{"role":"user"}`), "messages", "messages[1].content is missing"},
		{"D-10", message(`{"role":"user","content":null}`), "messages", "must not be null"},
		{"D-10", message(`{"role":"user","content":""}`), "messages", "must not be empty"},
		{"", message(`{"role":"system","content":""}`), "messages", "must not be empty"},
		{"", message(`{"role":"tool","content":null}`), "messages", "must not be null"},
		{"", message(`{"role":"assistant"}`), "messages", "content is missing"},
		{"", message(`{"role":"assistant","content":[],"reasoning_content":"r"}`), "messages", "empty list"},
		{"D-13", message(`{"role":"user","content":3}`), "messages", "must be str, list or null, not int"},
		{"D-14", message(`{"role":"user","content":["a"]}`), "messages", "messages[1].content[0] must be dict, not str"},
		{"D-15", message(`{"role":"user","content":[{"type":"text","text":""}]}`), "messages", "messages[1].content[0].text must not be empty"},
		{"", message(`{"role":"user","content":[{"type":"input_audio"}]}`), "messages", `"input_audio" has no text`},
		{"D-27", message(`{"role":"tool","content":"a","tool_call_id":""}`), "messages", "messages[1].tool_call_id"},
		{"D-16", message(`{"role":"user","content":"a","reasoning_content":[]}`), "messages", "messages[1].reasoning_content must be str or null, not list"},
		{"D-17", message(`{"role":"assistant","content":"a","tool_calls":{}}`), "messages", "messages[1].tool_calls must be list or null, not dict"},
		{"D-17", call(`1`), "messages", "messages[0].tool_calls[0] must be dict, not int"},
		{"D-18", call(`{"id":""}`), "messages", "messages[0].tool_calls[0].id must be"},
		{"D-19", call(`{"id":"a"}`), "messages", "messages[0].tool_calls[0].function must be dict, not NoneType"},
		{"D-20", call(`{"function":{"name":1,"arguments":"{}"}}`), "messages", "function.name must be str or null, not int"},
		{"D-22", call(`{"function":{"name":"f"}}`), "messages", "missing or null"},
		{"D-23", call(`{"function":{"name":"f","arguments":"{\"a\":1,\"a\":2}"}}`), "messages", "repeated"},
		{"D-22", call(`{"function":{"name":"f","arguments":"[]"}}`), "messages", "not list"},
		{"D-21", call(`{"function":{"name":"f","arguments":""}}`), "messages", "messages[0].tool_calls[0].function.arguments must be"},
		{"D-28", `{` + hi + `,"tools":{}}`, "messages", "tools must be list or null, not dict"},
		{"D-28", `{` + hi + `,"tools":[1]}`, "messages", "tools[0] must be dict, not int"},
		{"", `{` + hi + `,"tools":[{"type":"function","function":{}}]}`, "messages", "tools[0].function.name must be str, not NoneType"},
		{"", `{` + hi + `,"tools":[{"type":"function","function":{"name":"f","description":1}}]}`, "messages", "description must be str or null"},
		{"D-30", `{` + hi + `,"chat_template_kwargs":{"tools":1,"tokenize":1,"x":1}}`, "chat_template_kwargs", "tokenize, tools"},
		{"", `{` + hi + `,"chat_template_kwargs":7}`, "chat_template_kwargs", "must be dict or null, not int"},
		{"D-31", `{` + hi + `,"logprobs":1}`, "logprobs", "must be bool or null, not int"},
		{"D-32", `{` + hi + `,"max_completion_tokens":true}`, "max_completion_tokens", "not bool"},
		{"D-32", `{` + hi + `,"max_completion_tokens":0}`, "max_completion_tokens", "positive"},
		{"D-32", `{` + hi + `,"max_tokens":1.0}`, "max_tokens", "not float"},
		{"D-32", `{` + hi + `,"max_tokens":-3}`, "max_tokens", "positive"},
		{"D-33", `{` + hi + `,"stop":3}`, "stop", "not int"},
		{"D-33", `{` + hi + `,"stop":["a",null]}`, "stop", "stop[1]"},
		{"", `{` + hi + `,"seed":"12"}`, "seed", `"12"`},
		{"", `{` + hi + `,"seed":1.5}`, "seed", "float"},
		{"", `{` + hi + `,"stream":"false"}`, "stream", "must be bool or null, not str"},
		{"", `{` + hi + `,"stream":1}`, "stream", "must be bool or null, not int"},
		{"D-1", `{"messages":[{nope}],` + hi + `}`, "body", "messages[0]"},
		{"D-1", `{"messages":[3,nope],` + hi + `}`, "messages", "messages[0]"},
		{"D-1", `{` + hi + `,"tools":[nope],"tools":[]}`, "body", "tools"},
		{"D-10", message(`{"role":"user","content":[]}`), "messages", "empty list"},
		{"D-21", call(`{"function":{"name":"f","arguments":"{"}}`), "messages", "messages[0].tool_calls[0].function.arguments must be the JSON text"},
		{"D-22", call(`{"function":{"name":"f","arguments":"\"x\""}}`), "messages", "not str"},
		{"D-22", call(`{"function":{"name":"f","arguments":7}}`), "messages", "not int"},
		{"D-23", call(`{"function":{"name":"f","arguments":"{\"o\":{\"a\":1,\"a\":2}}"}}`), "messages", "repeated"},
		{"D-24", call(`{"function":{"name":"f","arguments":"{\"a\":NaN}"}}`), "messages", "arguments"},
		{"D-24", call(`{"function":{"name":"f","arguments":"{\"a\":[-Infinity]}"}}`), "messages", "arguments"},
		{"D-25", call(`{"function":{"name":"f","arguments":"{\"a\":1e999}"}}`), "messages", "does not fit"},
		{"D-26", call(`{"function":{"name":"f","arguments":"{\"a\":\"\\ud800\"}"}}`), "messages", "lone surrogate"},
		{"D-27", message(`{"role":"tool","content":"a","tool_call_id":null}`), "messages", "messages[1].tool_call_id must be a non-empty str, not NoneType"},
		{"D-29", `{` + hi + `,"chat_template_kwargs":"x"}`, "chat_template_kwargs", "must be dict or null, not str"},
		{"D-31", `{` + hi + `,"logprobs":"yes"}`, "logprobs", "not str"},
		{"D-32", `{` + hi + `,"max_tokens":"8"}`, "max_tokens", "not str"},
		{"D-33", `{` + hi + `,"stop":[1]}`, "stop", "stop[0]"},
		{"A32, settled: what is neither text nor image has no canonical form", message(`{"role":"user","content":[{"type":"video_url","video_url":{"url":"http://x/v.mp4"}}]}`), "messages", `"video_url" has no text`},
		{"A47, settled: image URLs never open local files", message(`{"role":"user","content":[{"type":"image","image":"/p.png"}]}`), "messages", "messages[1].content[0]: an image must be an http(s) or data:image/ URL"},
		{"", message(`{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}`), "messages", "messages[1].content[1]: an image"},
		{"", message(`{"role":"tool","content":[{"type":"image_url","image_url":"FILE:///x"}]}`), "messages", "never open local files"},
		{"", message(`{"role":"assistant","content":[{"type":"image_url","image_url":"data:text/html,x"}]}`), "messages", "never open local files"},
		{"", message(`{"role":"user","content":[{"type":"image_url","image_url":"https://"}]}`), "messages", "never open local files"},
		{"", message(`{"role":"user","content":[{"type":"image_url","image_url":{"url":""}}]}`), "messages", "messages[1].content[0].image_url must be a non-empty URL"},
		{"", message(`{"role":"user","content":[{"type":"image_url","image_url":{}}]}`), "messages", "not NoneType"},
		{"", message(`{"role":"user","content":[{"type":"image_url","image_url":7}]}`), "messages", "not int"},
		{"", message(`{"role":"user","content":[{"type":"image_url"}]}`), "messages", "has no image"},
		{"", message(`{"role":"user","content":[{"type":"input_image","file_id":"f"}]}`), "messages", "file ids are not supported"},
		{"", message(`{"role":"user","content":[{"type":"image","source":{"type":"file","file_id":"f"}}]}`), "messages", "source.type"},
		{"", message(`{"role":"system","content":[]}`), "messages", "messages[1].content must not be an empty list"},
		{"", message(`{"role":"system","content":["a"]}`), "messages", "messages[1].content[0] must be dict, not str"},
		{"", message(`{"role":"system","content":[{"type":"text","text":""}]}`), "messages", "messages[1].content[0].text must not be empty"},
		// The order of checks is the reference's.
		{"", `{"messages":[],"tools":3,"stop":3,"logprobs":3,"chat_template_kwargs":{"tools":1}}`, "chat_template_kwargs", "tools"},
		{"", `{"messages":[],"stop":3,"logprobs":3}`, "logprobs", "bool"},
		{"", `{"messages":[3],"stop":3}`, "stop", "stop"}})
}

// D-73: the order of keys does not alter an error's text.
func TestChatErrorsAreStable(t *testing.T) {
	_, a := Chat.Parse([]byte(`{"messages":[{"role":"user","content":7,"name":"n"}],"model":"m"}`), nil)
	_, b := Chat.Parse([]byte(`{"model":"m","messages":[{"name":"n","content":7,"role":"user"}]}`), canon.NewCache(0))
	if a == nil || b == nil || *a != *b || strings.Contains(a.Message, "0x") {
		t.Errorf("got %v and %v", a, b)
	}
}

// A refusal is one row of section 1.D: the body is refused as a 400 with param and a text that
// contains text.
type refusal struct{ id, body, param, text string }

func checkRefusals(t *testing.T, d Dialect, cases []refusal) {
	t.Helper()
	for _, tt := range cases {
		req, e := d.Parse([]byte(tt.body), canon.NewCache(0))
		if e == nil {
			t.Errorf("%s %s: accepted as %s", tt.id, tt.body, canonicalText(req.Messages))
			continue
		}
		if e.Status != 400 || e.Type != "invalid_request_error" || e.Code != "invalid_request_error" || e.Retry != nil {
			t.Errorf("%s %s: got %+v", tt.id, tt.body, e)
		}
		if e.Param != tt.param || !strings.Contains(e.Message, tt.text) {
			t.Errorf("%s %s: got param %s, %q; want %s, …%s…", tt.id, tt.body, e.Param, e.Message, tt.param, tt.text)
		}
	}
}
