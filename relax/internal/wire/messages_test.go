package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// messagesBody is a Messages request of a list of messages and more fields.
func messagesBody(list string, fields ...string) string {
	return `{"max_tokens":9,"messages":[` + list + `]` + strings.Join(append([]string{""}, fields...), ",") + `}`
}

// Section 1.C of the reference's cases.
func TestMessagesCasesC(t *testing.T) {
	const u, user, limit = `{"role":"user","content":"u"}`, `{"content":"u","role":"user"}`, "\nmax 9"
	userBlocks := func(list string) string { return messagesBody(`{"role":"user","content":[` + list + `]}`) }
	result := func(members string) string {
		return userBlocks(`{"type":"tool_result","tool_use_id":"t1"` + members + `}`)
	}
	assistant := func(list string) string { return messagesBody(u + `,{"role":"assistant","content":[` + list + `]}`) }
	image := func(url string) string { return `{"image_url":{"url":"` + url + `"},"type":"image_url"}` }
	checkParse(t, Messages, []parseCase{
		{"C1", `{"max_tokens":64,"messages":[{"role":"user","content":"ping"}]}`, `{"content":"ping","role":"user"}` + "\nmax 64", ""},
		{"C2 string", messagesBody(u, `"system":"A"`), `{"content":"A","role":"system"}` + "\n" + user + limit, ""},
		{"C2 null", messagesBody(u, `"system":null`), user + limit, ""},
		{"C2 list", messagesBody(u, `"system":[{"type":"text","text":"A"},{"type":"text","text":"B","cache_control":{"type":"ephemeral"}}]`),
			`{"content":"A\n\nB","role":"system"}` + "\n" + user + limit, ""},
		{"C2 no text", messagesBody(u, `"system":[{"type":"image"},7]`), user + limit + "\nignored system.image system.int", ""},
		{"C3", userBlocks(`{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{}}`), `{"content":"ab","role":"user"}` + limit, ""},
		{"C4", userBlocks(`{"type":"text","text":"see"},{"type":"image","source":{"type":"url","url":"https://x/1.png"}}`),
			`{"content":[{"text":"see","type":"text"},` + image("https://x/1.png") + `],"role":"user"}` + limit, ""},
		{"C5", userBlocks(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"text","text":"a"},{"type":"text","text":"b"}`),
			`{"content":[` + image("data:image/png;base64,AAAA") + `,{"text":"a","type":"text"},{"text":"b","type":"text"}],"role":"user"}` + limit, ""},
		{"C6", userBlocks(`{"type":"text","text":"pre"},{"type":"tool_result","tool_use_id":"t1","content":"r"},{"type":"text","text":"post"}`),
			`{"content":"pre","role":"user"}` + "\n" + `{"content":"r","role":"tool","tool_call_id":"t1"}` + "\n" + `{"content":"post","role":"user"}` + limit, ""},
		{"C7", userBlocks(`{"type":"tool_result","tool_use_id":"t1","content":"1"},{"type":"tool_result","tool_use_id":"t2","content":"2"}`),
			`{"content":"1","role":"tool","tool_call_id":"t1"}` + "\n" + `{"content":"2","role":"tool","tool_call_id":"t2"}` + limit, ""},
		{"C8", result(``), `{"content":"","role":"tool","tool_call_id":"t1"}` + limit, ""},
		{"C8 empty", result(`,"content":""`), `{"content":"","role":"tool","tool_call_id":"t1"}` + limit, ""},
		{"C8 null", result(`,"content":null`), `{"content":"","role":"tool","tool_call_id":"t1"}` + limit, ""},
		{"C8 empty list", result(`,"content":[]`), `{"content":"","role":"tool","tool_call_id":"t1"}` + limit, oneForm},
		{"C9", result(`,"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]`), `{"content":"ab","role":"tool","tool_call_id":"t1"}` + limit, ""},
		{"C9 images", result(`,"content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"url","url":"https://x/1.png"}},{"type":"document","source":{}}]`),
			`{"content":[{"text":"a","type":"text"},` + image("https://x/1.png") + `],"role":"tool","tool_call_id":"t1"}` + limit + "\nignored messages.content.document",
			"settled: images in tool results are kept"},
		{"C10", result(`,"content":"r","is_error":true,"cache_control":{}`), `{"content":"r","role":"tool","tool_call_id":"t1"}` + limit, ""},
		{"C11", assistant(`{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"a","citations":null},{"type":"tool_use","id":"c","name":"f","input":{"b":2.0,"a":"x"}}`),
			user + "\n" + `{"content":"a","reasoning_content":"t","role":"assistant","tool_calls":[{"function":{"arguments":"{\"a\":\"x\",\"b\":2}","name":"f"},"id":"c","type":"function"}]}` + limit, ""},
		{"C12", assistant(`{"type":"thinking","thinking":"t","signature":"s"},{"type":"redacted_thinking","data":"x"},{"type":"thinking","thinking":""},{"type":"thinking","thinking":"v"},{"type":"text","text":"a"},{"type":"text","text":"b"}`),
			user + "\n" + `{"content":"ab","reasoning_content":"t\n\nv","role":"assistant"}` + limit + "\nignored messages.content.redacted_thinking", ""},
		{"C13", messagesBody(u + `,{"role":"assistant","content":"a"}`), user + "\n" + `{"content":"a","role":"assistant"}` + limit, ""},
		{"C14 system", messagesBody(u+`,{"role":"system","content":"S"},`+u+`,{"role":"system","content":[{"type":"text","text":"A"},{"type":"text","text":"B"}]}`, `"system":"T"`),
			`{"content":"T","role":"system"}` + "\n" + user + "\n" + `{"content":"S","role":"system"}` + "\n" + user + "\n" + `{"content":"A\n\nB","role":"system"}` + limit, stays},
		{"C14 leading system", `{"max_tokens":9,"messages":[{"role":"system","content":"S"},{"role":"developer","content":"D"},` + u + `],"system":"T"}`,
			`{"content":"T\n\nS\n\nD","role":"system"}` + "\n" + user + limit, stays},
		{"C14 others", messagesBody(u + `,{"role":"tool","content":"x"},{"content":"x"},7,"hi",null`),
			user + limit + "\nignored messages.NoneType messages.int messages.role messages.role.tool messages.str", ""},
		{"C15 disabled", messagesBody(u, `"thinking":{"type":"disabled"}`), user + "\n" + `kwargs {"enable_thinking":false}` + limit, ""},
		{"C15 enabled", messagesBody(u, `"thinking":{"type":"enabled","budget_tokens":1024}`), user + "\n" + `kwargs {"enable_thinking":true}` + limit + "\nignored thinking.budget_tokens", ""},
		{"C15 adaptive", messagesBody(u, `"thinking":{"type":"adaptive"}`), user + "\n" + `kwargs {"enable_thinking":true}` + limit, ""},
		{"C15 other", messagesBody(u, `"thinking":{"type":"deep"}`), user + limit + "\nignored thinking", ""},
		{"C15 odd", messagesBody(u, `"thinking":true`), user + limit + "\nignored thinking", ""},
		{"C16", messagesBody(u, `"tools":[{"name":"f","input_schema":{"b":1.0,"a":1},"description":"d"},{"type":"custom","name":"g","input_schema":{},"description":null,"cache_control":{}},{"type":null,"name":"h","input_schema":{}}]`),
			user + "\n" + `tool {"function":{"description":"d","name":"f","parameters":{"a":1,"b":1.0}},"type":"function"}` + "\n" +
				`tool {"function":{"name":"g","parameters":{}},"type":"function"}` + "\n" + `tool {"function":{"name":"h","parameters":{}},"type":"function"}` + limit, ""},
		{"C17", messagesBody(u, `"tools":[{"type":"bash_20250124","name":"bash"},7]`), user + limit + "\nignored tools.bash_20250124 tools.int", ""},
		{"C18", messagesBody(u, `"stop_sequences":["X","Y"]`), user + limit + "\n" + `stop ["X" "Y"]`, ""},
		{"C19", messagesBody(u, `"temperature":1,"top_p":1,"top_k":1,"metadata":{"user_id":"x"},"tool_choice":{"type":"auto"},"service_tier":"auto","output_config":{"effort":"high"},"context_management":{"edits":[]},"seed":7,"logprobs":true,"chat_template_kwargs":{"a":1},"container":null`),
			user + limit + "\nignored chat_template_kwargs context_management logprobs metadata output_config seed service_tier temperature tool_choice top_k top_p", ""},
		{"document", userBlocks(`{"type":"text","text":"u"},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"D"}},"x",{"text":"untyped"}`),
			user + limit + "\nignored messages.content.document messages.content.str messages.content.untyped", ""},
		{"D-63", assistant(`{"type":"thinking","thinking":""}`), user + "\n" + `{"content":"","role":"assistant"}` + limit, replays},
		{"D-63 empty list", assistant(``), user + "\n" + `{"content":"","role":"assistant"}` + limit, replays},
		{"D-63 empty string", messagesBody(u + `,{"role":"assistant","content":""}`), user + "\n" + `{"content":"","role":"assistant"}` + limit, replays},
		{"only a system", messagesBody(``, `"system":"A"`), `{"content":"A","role":"system"}` + limit, ""},
	})
}

// What Claude Code sends: cache_control wanders between the turns, a system message comes second.
func TestMessagesClaudeCode(t *testing.T) {
	cache := canon.NewCache(0)
	parse := func(body string) *canon.Request {
		t.Helper()
		req, e := Messages.Parse([]byte(body), cache)
		if e != nil {
			t.Fatal(e)
		}
		return req
	}
	system := `"system":[{"type":"text","text":"A"},{"type":"text","text":"B","cache_control":{"type":"ephemeral"}}],"model":"claude","stream":true`
	head := `{"role":"user","content":[{"type":"text","text":"reminder"},{"type":"text","text":"task"%s}]},{"role":"system","content":"skills"}`
	first := parse(messagesBody(strings.Replace(head, "%s", `,"cache_control":{"type":"ephemeral"}`, 1), system))
	second := parse(messagesBody(strings.Replace(head, "%s", "", 1)+
		`,{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"sig"},{"type":"text","text":"a"},{"type":"tool_use","id":"c","name":"Bash","input":{}}]},`+
		`{"role":"user","content":[{"tool_use_id":"c","type":"tool_result","content":"ok","is_error":false,"cache_control":{"type":"ephemeral"}}]}`, system))
	if first.Model != "claude" || !first.Stream || len(first.Messages) != 3 || len(second.Messages) != 5 {
		t.Fatalf("got %s\nthen %s", requestText(first), requestText(second))
	}
	for i, m := range first.Messages {
		if m != second.Messages[i] {
			t.Errorf("message %d differs: %s", i, second.Messages[i].AppendCanonical(nil))
		}
	}
}

// However much is left out, only a few names of it are kept.
func TestSkippedNamesAreBounded(t *testing.T) {
	var list strings.Builder
	for i := range 1000 {
		list.WriteString(`,{"type":"t` + string(rune('a'+i%26)) + `"},{"type":"t` + string(rune('a'+i%3)) + `"}`)
	}
	body := messagesBody(`{"role":"user","content":[{"type":"text","text":"u"}` + list.String() + `]}`)
	req, e := Messages.Parse([]byte(body), canon.NewCache(0))
	if e != nil || len(req.Ignored) != maxSkipped {
		t.Errorf("%d names, %v", len(req.Ignored), e)
	}
}

// Bytes that mean different things in different dialects and fields do not meet in one cache.
func TestDialectsShareACache(t *testing.T) {
	cache := canon.NewCache(0)
	list := `[{"type":"text","text":"A"}]`
	for range 2 {
		a, e := Messages.Parse([]byte(`{"max_tokens":1,"system":`+list+`,"tools":`+list+`,"messages":[`+list+`,{"role":"assistant","content":"x","reasoning_content":"r"}]}`), cache)
		if e != nil {
			t.Fatal(e)
		}
		if got, want := requestText(a), `{"content":"A","role":"system"}`+"\n"+`{"content":"x","role":"assistant"}`+"\nmax 1\nignored messages.list tools.text"; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		b, e := Chat.Parse([]byte(`{"messages":[{"role":"assistant","content":"x","reasoning_content":"r"}],"tools":`+list+`}`), cache)
		if e != nil {
			t.Fatal(e)
		}
		if got, want := requestText(b), `{"content":"x","reasoning_content":"r","role":"assistant"}`+"\nignored tools.text"; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		if _, e := Chat.Parse([]byte(`{"messages":[`+list+`]}`), cache); e == nil {
			t.Error("Chat took a list for a message")
		}
	}
}

// Section 1.D, the rows of Messages.
func TestMessagesCasesD(t *testing.T) {
	second := func(m string) string { return messagesBody(`{"role":"user","content":"x"},` + m) }
	user := func(list string) string { return second(`{"role":"user","content":[` + list + `]}`) }
	assistant := func(list string) string { return second(`{"role":"assistant","content":[` + list + `]}`) }
	field := func(fields string) string { return messagesBody(`{"role":"user","content":"x"}`, fields) }
	source := func(s string) string { return user(`{"type":"image"` + s + `}`) }
	const at = "messages[1].content"
	checkRefusals(t, Messages, []refusal{
		{"D-1", `{`, "body", "invalid JSON"},
		{"D-1", `{"max_tokens":1,"messages":[{"role":"user","content":"` + "\xff" + `"}]}`, "body", "messages[0]: invalid JSON"},
		{"D-1", `{"max_tokens":1,"messages":[{"role":"user" "content":"a"}]}`, "body", "messages[0]"},
		{"D-1", field(`"system":"\ud800"`), "body", "system: invalid JSON"},
		{"D-1", field(`"system":[nope]`), "body", "system: invalid JSON"},
		{"D-1", field(`"metadata":{"a":nope}`), "body", "metadata"},
		{"D-1", field(`"tools":[nope]`), "body", "tools: invalid JSON"},
		{"D-1", `{"max_tokens":1,"messages":[{nope}],"messages":[{"role":"user","content":"x"}]}`, "body", "messages[0]"},
		{"D-1", `{"max_tokens":1,"messages":[{"role":"user"},nope],"messages":[{"role":"user","content":"x"}]}`, "messages", "messages[0]"},
		{"D-1", field(`"system":[nope],"system":"A"`), "body", "system"},
		{"D-1", field(`"tools":[nope],"tools":[]`), "body", "tools"},
		{"D-2", `[]`, "body", "must be a JSON object, not list"},
		{"D-3", `{"max_tokens":1,"messages":[]}`, "messages", "zero supported messages"},
		{"D-3", `{"max_tokens":1,"messages":[{"role":"tool"}]}`, "messages", "zero supported messages"},
		{"D-26", assistant(`{"type":"tool_use","id":"c","name":"f","input":{"a":"\ud800"}}`), "body", "lone surrogate"},
		{"D-25", assistant(`{"type":"tool_use","id":"c","name":"f","input":{"a":1e999}}`), "body", "does not fit"},
		{"D-32", `{"max_tokens":0,"messages":[{"role":"user","content":"x"}]}`, "max_tokens", "positive"},
		{"D-32", `{"max_tokens":true,"messages":[{"role":"user","content":"x"}]}`, "max_tokens", "not bool"},
		{"D-32", `{"max_tokens":"8","messages":[{"role":"user","content":"x"}]}`, "max_tokens", "not str"},
		{"D-48", field(`"tools":{}`), "tools", "tools must be list or null, not dict"},
		{"D-49", field(`"tools":[{"name":"","input_schema":{}}]`), "tools", `tools[0].name must be a non-empty str, not ""`},
		{"D-49", field(`"tools":[{"input_schema":{}}]`), "tools", "tools[0].name"},
		{"D-50", field(`"tools":[{"name":"f"}]`), "tools", "tools[0].input_schema must be dict, not NoneType"},
		{"D-50", field(`"tools":[{"name":"f","input_schema":[]}]`), "tools", "not list"},
		{"", field(`"tools":[{"name":"f","input_schema":{},"description":1}]`), "tools", "tools[0].description must be str or null, not int"},
		{"D-51", `{"messages":[{"role":"user","content":"x"}]}`, "max_tokens", "max_tokens is required"},
		{"D-51", `{"max_tokens":null,"messages":[{"role":"user","content":"x"}]}`, "max_tokens", "max_tokens is required"},
		{"D-52", `{"max_tokens":1}`, "messages", "messages is required"},
		{"D-52", `{"max_tokens":1,"messages":null}`, "messages", "messages must be list, not NoneType"},
		{"D-52", `{"max_tokens":1,"messages":"hi"}`, "messages", "messages must be list, not str"},
		{"D-53", field(`"system":""`), "system", "system must not be empty"},
		{"D-53", field(`"system":5`), "system", "system must be str or list, not int"},
		{"D-54", field(`"system":[{"type":"text","text":""}]`), "system", "system[0].text must be a non-empty str"},
		{"D-55", second(`{"role":"user","content":5}`), "messages", at + " must be str or list, not int"},
		{"D-55", second(`{"role":"user"}`), "messages", at + " must be str or list, not NoneType"},
		{"D-55", second(`{"role":"assistant","content":5}`), "messages", at + " must be str or list, not int"},
		{"D-55", second(`{"role":"assistant","content":null}`), "messages", "not NoneType"},
		{"D-55", second(`{"role":"system","content":null}`), "messages", "not NoneType"},
		{"D-55", second(`{"role":"system","content":5}`), "messages", "not int"},
		{"", second(`{"role":"system","content":""}`), "messages", at + " must not be empty"},
		{"", second(`{"role":"user","content":""}`), "messages", at + " must not be empty"},
		{"D-56", user(`{"type":"text","text":"a"},{"type":"text","text":""}`), "messages", at + "[1].text must be a non-empty str"},
		{"D-56", assistant(`{"type":"text","text":""}`), "messages", at + "[0].text"},
		{"D-56", user(`{"type":"text"}`), "messages", at + "[0].text must be a non-empty str, not NoneType"},
		{"D-57", assistant(`{"type":"thinking","thinking":5}`), "messages", at + "[0].thinking must be str, not int"},
		{"D-58", assistant(`{"type":"tool_use","name":"f","input":{}}`), "messages", at + "[0].id must be a non-empty str"},
		{"D-58", assistant(`{"type":"tool_use","id":"c","name":"","input":{}}`), "messages", at + "[0].name must be a non-empty str"},
		{"D-58", assistant(`{"type":"tool_use","id":"c","name":"f","input":"{}"}`), "messages", at + "[0].input must be dict, not str"},
		{"D-58", assistant(`{"type":"tool_use","id":"c","name":"f"}`), "messages", at + "[0].input must be dict, not NoneType"},
		{"D-59", user(`{"type":"tool_result","content":"x"}`), "messages", at + "[0].tool_use_id must be a non-empty str"},
		{"D-60", user(`{"type":"tool_result","tool_use_id":"t","content":5}`), "messages", at + "[0].content must be str or list, not int"},
		{"D-60", user(`{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":""}]}`), "messages", at + "[0].content[0].text must be a non-empty str"},
		{"", user(`{"type":"tool_result","tool_use_id":"t","content":[{"type":"document"}]}`), "messages", at + "[0].content has no text or image"},
		{"D-61", source(``), "messages", at + "[0].source must be dict, not NoneType"},
		{"D-61", source(`,"source":"https://x/1.png"`), "messages", at + "[0].source must be dict, not str"},
		{"D-61", source(`,"source":{"type":"base64","media_type":"text/plain","data":"AAAA"}`), "messages", at + `[0].source.media_type must be an image type such as image/png, not "text/plain"`},
		{"D-61", source(`,"source":{"type":"base64","media_type":"image/png","data":""}`), "messages", at + "[0].source.data must be a non-empty str"},
		{"D-61", source(`,"source":{"type":"url","url":""}`), "messages", at + "[0].source.url must be a non-empty str"},
		{"D-61", source(`,"source":{"type":"file","file_id":"f"}`), "messages", at + `[0].source.type "file" is not supported`},
		{"D-61", user(`{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"/etc/passwd"}}]}`), "messages", at + "[0].content[0]: an image must be an http(s) or data:image/ URL"},
		{"", source(`,"source":{"type":"url","url":"file:///etc/passwd"}`), "messages", "never open local files"},
		{"D-62", user(`{"type":"document","source":{}}`), "messages", at + " has no text, image or tool_result block"},
		{"D-62", user(``), "messages", at + " has no text, image or tool_result block"},
		{"D-64", field(`"stop_sequences":"x"`), "stop_sequences", "must be list of str or null, not str"},
		{"D-64", field(`"stop_sequences":[1]`), "stop_sequences", "stop_sequences[0] must be str, not int"},
		{"", field(`"stream":"true"`), "stream", "must be bool or null, not str"},
		// The order of checks is the reference's.
		{"", `{"max_tokens":0,"messages":[{"role":"user","content":""}],"system":"","stop_sequences":1,"tools":1}`, "system", "system"},
		{"", `{"max_tokens":0,"messages":[{"role":"user","content":""}],"stop_sequences":1,"tools":1}`, "messages", "empty"},
		{"", `{"max_tokens":0,"messages":[{"role":"user","content":"x"}],"stop_sequences":1,"tools":1}`, "max_tokens", "positive"},
		{"", field(`"stop_sequences":1,"tools":1`), "stop_sequences", "int"},
	})
}

// The SDKs' tool runners ask the server to keep the conversation, and fall back to complete
// histories by this code.
func TestThreadsAreRefused(t *testing.T) {
	const body = `{"max_tokens":5,"messages":[{"role":"user","content":"x"}],"thread":`
	for _, thread := range []string{`{"type":"create"}`, `{"type":"continue","previous_message_id":"msg_1"}`} {
		_, e := Messages.Parse([]byte(body+thread+"}"), nil)
		if e == nil || e.Status != 400 || e.Param != "thread" {
			t.Fatalf("%s: %v", thread, e)
		}
		got := string(Messages.AppendError(nil, e))
		if !strings.Contains(got, `"details":{"error_code":"thread_unsupported_request","unsupported":[]}}`) || !json.Valid([]byte(got)) {
			t.Errorf("%s: %s", thread, got)
		}
	}
	if _, e := Messages.Parse([]byte(body+"null}"), nil); e != nil {
		t.Errorf("thread null: %v", e)
	}
}

func TestParseCountTokens(t *testing.T) {
	req, e := ParseCountTokens([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`), nil)
	if e != nil || req.MaxTokens != 0 || req.Model != "m" || len(req.Messages) != 1 {
		t.Fatalf("got %+v, %v", req, e)
	}
	if _, e := ParseCountTokens([]byte(`{"messages":[{"role":"user","content":"x"}],"max_tokens":-1}`), nil); e == nil || e.Param != "max_tokens" {
		t.Errorf("got %v", e)
	}
}

func TestMessagesKeepsNothingOfTheBody(t *testing.T) {
	body := []byte(messagesBody(`{"role":"user","content":[{"type":"text","text":"some text"},{"type":"document"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}`,
		`"model":"model","system":"system","stop_sequences":["stop"],"unknown":1`, `"tools":[{"name":"name","description":"about","input_schema":{"k":"v"}}]`))
	for _, cache := range []*canon.Cache{nil, canon.NewCache(0)} {
		b := append([]byte(nil), body...)
		req, e := Messages.Parse(b, cache)
		if e != nil {
			t.Fatal(e)
		}
		before := requestText(req) + req.Model
		for i := range b {
			b[i] = 'X'
		}
		if after := requestText(req) + req.Model; before != after {
			t.Errorf("reusing the body's buffer changed the request to %s", after)
		}
	}
}

const messagesUsage = `"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":3}`

// Case R5.
func TestAppendMessages(t *testing.T) {
	c := sample()
	signature := `sig_` + hashText(c.Message)
	got := string(Messages.AppendAnswer(nil, c))
	want := `{"id":"msg_1","type":"message","role":"assistant","model":"m<&>` + "\u2028" + `","content":[` +
		`{"type":"thinking","thinking":"thi` + "\u2028" + `nk","signature":"` + signature + `"},` +
		`{"type":"text","text":"a\n` + "\u0085\u2029" + `é"},` +
		`{"type":"tool_use","id":"c0","name":"f","input":{"a":1}},{"type":"tool_use","id":"c1","name":"g","input":{}}],` +
		`"stop_reason":"tool_use","stop_sequence":null,"stop_details":null,"container":null,` + messagesUsage + `}`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	empty := &Completion{ID: "i", FinishReason: FinishStop, Message: canon.NewMessage(canon.Message{Role: canon.Assistant})}
	if got := string(Messages.AppendAnswer(nil, empty)); !strings.Contains(got, `"model":"","content":[],"stop_reason":"end_turn","stop_sequence":null`) {
		t.Errorf("got %s", got)
	}
}

func TestMessagesStopReasons(t *testing.T) {
	for _, tt := range []struct{ finish, sequence, want string }{
		{FinishStop, "", `"stop_reason":"end_turn","stop_sequence":null`},
		{FinishLength, "", `"stop_reason":"max_tokens","stop_sequence":null`},
		{FinishToolCalls, "", `"stop_reason":"tool_use","stop_sequence":null`},
		{FinishStop, "##\n", `"stop_reason":"stop_sequence","stop_sequence":"##\n"`},
		{FinishToolCalls, "##", `"stop_reason":"tool_use","stop_sequence":null`},
	} {
		c := &Completion{FinishReason: tt.finish, StopSequence: tt.sequence, Message: canon.NewMessage(canon.Message{Role: canon.Assistant, Content: "a"})}
		for _, got := range []string{string(Messages.AppendAnswer(nil, c)), string(Messages.AppendStream(nil, c))} {
			if !strings.Contains(got, tt.want) {
				t.Errorf("%+v: got %s", tt, got)
			}
		}
	}
}

// Cases SSE5 and SSE6.
func TestAppendMessagesStream(t *testing.T) {
	c := sample()
	c.Message = canon.NewMessage(canon.Message{Role: canon.Assistant, Reasoning: "thi\u2028nk", Content: "a\n",
		ToolCalls: []canon.ToolCall{{ID: "c0", Name: "f", Arguments: `{"a":1}`}}})
	got := string(Messages.AppendStream(nil, c))
	signature := `sig_` + hashText(c.Message)
	frames := [][2]string{
		{"message_start", `,"message":{"id":"msg_1","type":"message","role":"assistant","model":"m<&>\u2028","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,` +
			`"container":null,` + strings.Replace(messagesUsage, `output_tokens":3`, `output_tokens":0`, 1) + `}`},
		{"content_block_start", `,"index":0,"content_block":{"type":"thinking","thinking":"","signature":""}`},
		{"content_block_delta", `,"index":0,"delta":{"type":"thinking_delta","thinking":"thi\u2028nk"}`},
		{"content_block_delta", `,"index":0,"delta":{"type":"signature_delta","signature":"` + signature + `"}`},
		{"content_block_stop", `,"index":0`},
		{"content_block_start", `,"index":1,"content_block":{"type":"text","text":""}`},
		{"content_block_delta", `,"index":1,"delta":{"type":"text_delta","text":"a\n"}`},
		{"content_block_stop", `,"index":1`},
		{"content_block_start", `,"index":2,"content_block":{"type":"tool_use","id":"c0","name":"f","input":{}}`},
		{"content_block_delta", `,"index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}`},
		{"content_block_stop", `,"index":2`},
		{"message_delta", `,"delta":{"stop_reason":"tool_use","stop_sequence":null,"stop_details":null,"container":null},` + messagesUsage},
		{"message_stop", ``},
	}
	var want strings.Builder
	for _, f := range frames {
		want.WriteString("event: " + f[0] + "\ndata: {\"type\":\"" + f[0] + `"` + f[1] + "}\n\n")
	}
	if got != want.String() {
		t.Errorf("\n got %s\nwant %s", got, want.String())
	}
	for _, frame := range []string{Messages.Connected(), Messages.Heartbeat()} {
		if frame != "event: ping\ndata: {\"type\":\"ping\"}\n\n" {
			t.Errorf("got %q", frame)
		}
	}
}

// Case SSE7 and the envelope of section 1.D.
func TestMessagesErrors(t *testing.T) {
	for _, tt := range []struct {
		status int
		want   string
	}{
		{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
		{405, "invalid_request_error"}, {413, "request_too_large"}, {415, "invalid_request_error"}, {429, "rate_limit_error"},
		{499, "invalid_request_error"}, {500, "api_error"}, {502, "api_error"}, {503, "overloaded_error"}, {529, "overloaded_error"},
	} {
		e := &Error{Status: tt.status, Type: "t", Code: "c", Param: "p", Message: "bad \"x\"\u2028"}
		want := `"error":{"type":"` + tt.want + `","message":"bad \"x\"` + "\u2028" + `"},"request_id":null}`
		got := string(Messages.AppendError(nil, e))
		if got != `{"type":"error",`+want || !json.Valid([]byte(got)) {
			t.Errorf("%d: got %s", tt.status, got)
		}
		stream := "event: error\ndata: {\"type\":\"error\"," + strings.ReplaceAll(want, "\u2028", `\u2028`) + "\n\n"
		if got := string(Messages.AppendStreamError(nil, e)); got != stream {
			t.Errorf("%d: got %q\nwant %q", tt.status, got, stream)
		}
	}
	if got := string(Messages.AppendError(nil, ContextLength(4096, 5000))); !strings.Contains(got, `"prompt is too long: This model's maximum context length is 4096 tokens`) {
		t.Errorf("got %s", got)
	}
}
