package wire

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

func hashText(m *canon.Message) string { return fmt.Sprintf("%016x", m.Hash()) }

// digest is the reference's SHA-256 of a request.
func digest(req *canon.Request) string {
	return canon.ReferenceHash(req.Messages, req.Tools, req.Kwargs)
}

func mustParse(t testing.TB, d Dialect, body string) *canon.Request {
	t.Helper()
	req, e := d.Parse([]byte(body), canon.NewCache(0))
	if e != nil {
		t.Fatalf("%s: %v", body, e)
	}
	return req
}

// Case F1: one conversation in all dialects. The bodies lack what each dialect must have beside.
func TestOneConversationOneState(t *testing.T) {
	const schema = `{"type":"object","properties":{"city":{"type":"string"}}}`
	tests := []struct{ name, chat, messages, want string }{
		{"text only, G3", `"messages":[{"role":"user","content":"ping"}]`, `"messages":[{"role":"user","content":[{"type":"text","text":"ping"}]}]`,
			"5b9fde44f89b68d8ef0842890fa8451d1603e6af8ab7df0ebc310d8d0d419ff2"},
		{"not ASCII, G4", `"messages":[{"role":"user","content":"naïve café ☕ 東京"}]`, `"messages":[{"role":"user","content":"na\u00efve caf\u00e9 \u2615 東京"}]`,
			"147908900004ac5595f055fd281c0c2f1d9aab80b3db000b3caee39aba5a8c2f"},
		{"emoji", `"messages":[{"role":"user","content":"😀"}]`, `"messages":[{"role":"user","content":"\ud83d\ude00"}]`, ""},
		{"two system pieces", `"messages":[{"role":"system","content":"A"},{"role":"system","content":"B"},{"role":"user","content":"u"}]`,
			`"system":[{"type":"text","text":"A"},{"type":"text","text":"B"}],"messages":[{"role":"user","content":"u"}]`, ""},
		{"assistant text", `"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]`,
			`"messages":[{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"text","text":"a"}]}]`, ""},
		{"reasoning and text, G8", `"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"because"}]`,
			`"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"thinking","thinking":"because","signature":"s"},{"type":"text","text":"a"}]}]`,
			"6b7a221312206072f8b920f6913c2313b25630ef5669407850e8c632b0184fca"},
		{"reasoning only", `"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"reasoning_content":"r"}]`,
			`"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"thinking","thinking":"r"}]}]`, ""},
		{"single call, G9", `"messages":[{"role":"user","content":"weather?"},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"wx","arguments":"{\"days\": 2, \"city\": \"Oslo\"}"}}]},` +
			`{"role":"tool","tool_call_id":"c1","content":"rain"}],"tools":[{"type":"function","function":{"name":"wx","description":"forecast","parameters":` + schema + `}}],"chat_template_kwargs":{"enable_thinking":false}`,
			`"messages":[{"role":"user","content":"weather?"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"wx","input":{"days":2.0,"city":"Oslo"}}]},` +
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"rain"}]}]}],"tools":[{"name":"wx","description":"forecast","input_schema":` + schema + `}],"thinking":{"type":"disabled"}`,
			"c9e78575010fc86b4e5f3f91cf30b244ffd4dbd6e7caf9bba6f3d9588c7b71a9"},
		{"parallel calls", `"messages":[{"role":"user","content":"u"},{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}},{"id":"c2","function":{"name":"g","arguments":"{}"}}]},` +
			`{"role":"tool","tool_call_id":"c2","content":"2"},{"role":"tool","tool_call_id":"c1","content":"1"},{"role":"user","content":"go on"}]`,
			`"messages":[{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"f","input":{}},{"type":"tool_use","id":"c2","name":"g","input":{}}]},` +
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c2","content":"2"},{"type":"tool_result","tool_use_id":"c1","content":"1"},{"type":"text","text":"go on"}]}]`, ""},
		{"empty tool result", `"messages":[{"role":"user","content":"u"},{"role":"tool","tool_call_id":"c","content":""}]`,
			`"messages":[{"role":"user","content":"u"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c"}]}]`, ""},
		{"http image, G7", `"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"https://img.test/1.png","detail":"high"}}]}]`,
			`"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image","source":{"type":"url","url":"https://img.test/1.png"}}]}]`,
			"e71b66896623bdb2a621ef6993e3fdee213ce1b48ea197dff3919465222fd6db"},
		{"base64 image", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64,AAAA"}]}]`,
			`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]`, ""},
		{"image with several texts", `"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image_url","image_url":{"url":"https://x/1"}},{"type":"text","text":"c"}]}]`,
			`"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image","source":{"type":"url","url":"https://x/1"}},{"type":"text","text":"c"}]}]`, ""},
		{"image in a tool result", `"messages":[{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"https://x/1"}}]}]`,
			`"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"url","url":"https://x/1"}}]}]}]`, ""},
		{"tool without description", `"messages":[{"role":"user","content":"u"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"minimum":1.0}}}]`,
			`"messages":[{"role":"user","content":"u"}],"tools":[{"name":"f","input_schema":{"minimum":1.0}}]`, ""},
		{"thinking on", `"messages":[{"role":"user","content":"u"}],"chat_template_kwargs":{"enable_thinking":true}`,
			`"messages":[{"role":"user","content":"u"}],"thinking":{"type":"adaptive"}`, ""},
		{"a system message amid the turns", `"messages":[{"role":"system","content":"A"},{"role":"user","content":"u"},{"role":"system","content":"B"},{"role":"assistant","content":"a"}]`,
			`"system":"A","messages":[{"role":"user","content":"u"},{"role":"system","content":"B"},{"role":"assistant","content":"a"}]`, ""},
	}
	user := `{"role":"user","content":"u"}`
	responses := map[string]string{
		"text only, G3":     `"input":"ping"`,
		"not ASCII, G4":     `"input":[{"role":"user","content":[{"type":"input_text","text":"naïve café ☕ 東京"}]}]`,
		"emoji":             `"input":"😀"`,
		"two system pieces": `"instructions":"A","input":[{"role":"developer","content":"B"},` + user + `]`,
		"assistant text":    `"input":[` + user + `,{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}]}]`,
		"reasoning and text, G8": `"input":[{"role":"user","content":"q"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"because"}]},` +
			`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]}]`,
		"reasoning only": `"input":[{"role":"user","content":"q"},{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]}]`,
		"single call, G9": `"input":[{"role":"user","content":"weather?"},{"type":"function_call","call_id":"c1","name":"wx","arguments":"{\"days\":2,\"city\":\"Oslo\"}"},` +
			`{"type":"function_call_output","call_id":"c1","output":"rain"}],"tools":[{"type":"function","name":"wx","description":"forecast","parameters":` + schema + `}],"reasoning":{"effort":"none"}`,
		"parallel calls": `"input":[` + user + `,{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},{"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},` +
			`{"type":"function_call_output","call_id":"c2","output":"2"},{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"1"}]},{"role":"user","content":"go on"}]`,
		"empty tool result":               `"input":[` + user + `,{"type":"function_call_output","call_id":"c","output":""}]`,
		"http image, G7":                  `"input":[{"role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"https://img.test/1.png","detail":"auto"}]}]`,
		"base64 image":                    `"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]}]`,
		"image with several texts":        `"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"},{"type":"input_image","image_url":"https://x/1"},{"type":"input_text","text":"c"}]}]`,
		"image in a tool result":          `"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"https://x/1"}]}]`,
		"tool without description":        `"input":"u","tools":[{"type":"function","name":"f","parameters":{"minimum":1.0}}]`,
		"thinking on":                     `"input":"u","reasoning":{"effort":"high"}`,
		"a system message amid the turns": `"instructions":"A","input":[` + user + `,{"role":"developer","content":"B"},{"role":"assistant","content":"a"}]`,
	}
	seen := map[string]string{}
	for _, tt := range tests {
		sameRequest(t, tt.name+" as Responses", mustParse(t, Chat, "{"+tt.chat+"}"), mustParse(t, Responses, "{"+responses[tt.name]+"}"))
		chat := mustParse(t, Chat, "{"+tt.chat+"}")
		messages := mustParse(t, Messages, `{"max_tokens":1,`+tt.messages+"}")
		a, b := digest(chat), digest(messages)
		if a != b {
			t.Errorf("%s\nChat     %s\nMessages %s", tt.name, requestText(chat), requestText(messages))
		}
		if canon.RootState(chat.Tools, chat.Kwargs) != canon.RootState(messages.Tools, messages.Kwargs) {
			t.Errorf("%s: two root states", tt.name)
		}
		for i, m := range chat.Messages {
			if !m.Equal(messages.Messages[i]) || m.Hash() != messages.Messages[i].Hash() {
				t.Errorf("%s: message %d differs", tt.name, i)
			}
		}
		if tt.want != "" && a != tt.want {
			t.Errorf("%s: digest %s, want %s", tt.name, a, tt.want)
		}
		// Case F6.
		if other, ok := seen[a]; ok {
			t.Errorf("%s has the digest of %s", tt.name, other)
		}
		seen[a] = tt.name
	}
}

// The golden digests of section 1.F that the test above does not have (F6, F7).
func TestGoldenDigests(t *testing.T) {
	for _, tt := range []struct{ id, body, want string }{
		{"G5", `"messages":[{"role":"user","content":"a<b & \"c\"\\\n\t\u2028\u007f"}]`, "5120ec300849d8636d38663d36deadafe4acb530f42f50912468efb1496d59d5"},
		{"G6 int", `"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"n":1}`, "20822500626e10649703ede1b0b85698c2d7ab8030bc681a820bf62488660bc5"},
		{"G6 float", `"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"n":1.0}`, "84201354a83cc2d9199d211231f53e870acd77ec64785864a14293c82fa64062"},
		{"G6 bool", `"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"n":true}`, "9c547d2e4c4e6ef25f98f4a8af93890b97f21f161e529bbbe0be25adf45d7eba"},
	} {
		if got := digest(mustParse(t, Chat, "{"+tt.body+"}")); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.id, got, tt.want)
		}
	}
	thinking := canon.ObjectOf(canon.Member{Key: "enable_thinking", Value: canon.BoolValue(true)})
	if got := canon.ReferenceHash(nil, nil, canon.ObjectOf()); got != "26d60f342de6e843c9fd1759679a83d219fa4751ce1ccf5acd33d64de8db43db" {
		t.Errorf("G1: %s", got)
	}
	if got := canon.ReferenceHash(nil, nil, thinking); got != "f22e117e708b6055b402ea29754aaf660aa5f590252c8a63ac69e5dd1a889265" {
		t.Errorf("G2: %s", got)
	}
}

// Cases F3 to F5 and F10: which differences of a request are differences of its state.
func TestWhatIsIdentity(t *testing.T) {
	same := func(d Dialect, a, b string, want bool) {
		t.Helper()
		if got := digest(mustParse(t, d, a)) == digest(mustParse(t, d, b)); got != want {
			t.Errorf("same state: %v, want %v\n%s\n%s", got, want, a, b)
		}
	}
	chat := func(list, fields string) string { return `{"messages":[` + list + `]` + fields + `}` }
	const u, v = `{"role":"user","content":"u"}`, `{"role":"user","content":"v"}`
	tools := func(list string) string { return chat(u, `,"tools":[`+list+`]`) }
	const f, g = `{"type":"function","function":{"name":"f","parameters":{"a":1,"b":[1,2]}}}`, `{"type":"function","function":{"name":"g","parameters":{}}}`
	same(Chat, chat(u, ""), `{"stop":"x","messages":[{"content":"u","role":"user"}]}`, true)
	same(Chat, tools(f), chat(u, `,"tools":[{"function":{"parameters":{"b":[1,2],"a":1},"name":"f"},"type":"function"}]`), true)
	same(Chat, chat(u+`,`+v, ""), chat(v+`,`+u, ""), false)
	same(Chat, tools(f+`,`+g), tools(g+`,`+f), false)
	same(Chat, tools(f+`,`+g), tools(f), false)
	same(Chat, tools(f), tools(strings.Replace(f, `"a":1,`, `"a":1.0,`, 1)), false)
	same(Chat, chat(u, ""), chat(`{"role":"user","content":"u "}`, ""), false)
	same(Chat, chat(u, `,"chat_template_kwargs":{"enable_thinking":true}`), chat(u, `,"chat_template_kwargs":{"enable_thinking":false}`), false)
	same(Chat, chat(`{"role":"tool","content":"x","tool_call_id":"a"}`, ""), chat(`{"role":"tool","content":"x","tool_call_id":"b"}`, ""), false)

	const text, image = `{"type":"text","text":"a"}`, `{"type":"image","source":{"type":"url","url":"https://x/1"}}`
	user := func(list string) string { return messagesBody(`{"role":"user","content":[` + list + `]}`) }
	assistant := func(list string) string { return messagesBody(`{"role":"assistant","content":[` + list + `]}`) }
	const c, d = `{"type":"tool_use","id":"c","name":"f","input":{"a":1,"b":2}}`, `{"type":"tool_use","id":"d","name":"f","input":{}}`
	same(Messages, user(text+`,`+image), user(image+`,`+text), false)
	same(Messages, user(text+`,`+image), user(`{"text":"a","type":"text","cache_control":{}},`+`{"source":{"url":"https://x/1","type":"url"},"type":"image"}`), true)
	same(Messages, assistant(c+`,`+d), assistant(d+`,`+c), false)
	same(Messages, assistant(c), assistant(`{"input":{"b":2,"a":1},"name":"f","id":"c","type":"tool_use","caller":{"type":"direct"}}`), true)
	same(Messages, assistant(`{"type":"thinking","thinking":"t","signature":"x"},`+text), assistant(`{"type":"thinking","thinking":"t","signature":"y"},`+text), true)
	same(Messages, messagesBody(u, `"system":"A"`), messagesBody(u, `"system":"B"`), false)
}

// renderChat writes a request as a Chat body: canonical messages are Chat messages.
func renderChat(req *canon.Request) []byte {
	dst := []byte(`{"messages":[`)
	for i, m := range req.Messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = m.AppendCanonical(dst)
	}
	dst = append(dst, `],"tools":[`...)
	for i := range req.Tools {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = req.Tools[i].AppendCanonical(dst)
	}
	dst = append(dst, `],"chat_template_kwargs":`...)
	return append(req.Kwargs.AppendCompact(dst), '}')
}

// renderMessages writes a request as a Messages body. Results of tools that follow each other
// and a user message after them share one element, as clients send them.
func renderMessages(req *canon.Request) []byte {
	fields := map[string]any{"max_tokens": 9}
	messages := req.Messages
	if len(messages) > 0 && messages[0].Role == canon.System {
		fields["system"] = messages[0].Content
		messages = messages[1:]
	}
	elements := []any{}
	var blocks []any
	flush := func() {
		if blocks != nil {
			elements = append(elements, map[string]any{"role": "user", "content": blocks})
			blocks = nil
		}
	}
	for _, m := range messages {
		switch m.Role {
		case canon.Tool:
			blocks = append(blocks, map[string]any{"type": "tool_result", "tool_use_id": m.ToolCallID, "content": renderContent(m)})
		case canon.User:
			blocks = append(blocks, renderContent(m)...)
			flush()
		case canon.System:
			flush()
			elements = append(elements, map[string]any{"role": "system", "content": m.Content})
		case canon.Assistant:
			flush()
			elements = append(elements, map[string]any{"role": "assistant", "content": renderAnswer(m)})
		}
	}
	flush()
	fields["messages"] = elements
	tools := []any{}
	for i := range req.Tools {
		tool := map[string]any{"name": req.Tools[i].Name, "input_schema": json.RawMessage(req.Tools[i].Parameters.AppendCompact(nil))}
		if d := req.Tools[i].Description; d != nil {
			tool["description"] = *d
		}
		tools = append(tools, tool)
	}
	fields["tools"] = tools
	if on, ok := req.Kwargs.Get("enable_thinking"); ok {
		fields["thinking"] = map[string]any{"type": map[bool]string{true: "enabled", false: "disabled"}[on.Bool()]}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return body
}

// renderResponses writes a conversation without tools as a Responses body; what the model said is
// written as we answer it.
func renderResponses(req *canon.Request) []byte {
	items := []any{}
	for _, m := range req.Messages {
		switch m.Role {
		case canon.Tool:
			var output any = m.Content
			if m.Parts != nil {
				output = renderInput(m)
			}
			items = append(items, map[string]any{"type": "function_call_output", "call_id": m.ToolCallID, "output": output})
		case canon.Assistant:
			var answer struct{ Output []json.RawMessage }
			if err := json.Unmarshal(Responses.AppendAnswer(nil, &Completion{Message: m}), &answer); err != nil {
				panic(err)
			}
			for _, item := range answer.Output {
				items = append(items, item)
			}
		default:
			items = append(items, map[string]any{"role": m.Role, "content": renderInput(m)})
		}
	}
	body, err := json.Marshal(map[string]any{"input": items})
	if err != nil {
		panic(err)
	}
	return body
}

// renderInput writes text and images as parts of a Responses item.
func renderInput(m *canon.Message) []any {
	parts := []any{}
	if m.Content != "" {
		parts = append(parts, map[string]any{"type": "input_text", "text": m.Content})
	}
	for _, p := range m.Parts {
		if p.Image != "" {
			parts = append(parts, map[string]any{"type": "input_image", "image_url": p.Image, "detail": "auto"})
		} else {
			parts = append(parts, map[string]any{"type": "input_text", "text": p.Text})
		}
	}
	return parts
}

// renderContent writes text and images as Anthropic blocks.
func renderContent(m *canon.Message) []any {
	blocks := []any{}
	if m.Content != "" {
		blocks = append(blocks, map[string]any{"type": "text", "text": m.Content})
	}
	for _, p := range m.Parts {
		media, data, inline := strings.Cut(strings.TrimPrefix(p.Image, "data:"), ";base64,")
		switch {
		case p.Image == "":
			blocks = append(blocks, map[string]any{"type": "text", "text": p.Text})
		case inline && strings.HasPrefix(p.Image, "data:image/") && data != "":
			blocks = append(blocks, map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": media, "data": data}})
		default:
			blocks = append(blocks, map[string]any{"type": "image", "source": map[string]any{"type": "url", "url": p.Image}})
		}
	}
	return blocks
}

// renderAnswer is the content of our own answer of m.
func renderAnswer(m *canon.Message) json.RawMessage {
	var answer struct{ Content json.RawMessage }
	if err := json.Unmarshal(Messages.AppendAnswer(nil, &Completion{Message: m}), &answer); err != nil {
		panic(err)
	}
	return answer.Content
}

// sameRequest fails unless two requests say the same.
func sameRequest(t *testing.T, what string, a, b *canon.Request) {
	t.Helper()
	if len(a.Messages) != len(b.Messages) || digest(a) != digest(b) {
		t.Fatalf("%s:\n got %s\nwant %s", what, requestText(b), requestText(a))
	}
	for i, m := range a.Messages {
		if !m.Equal(b.Messages[i]) {
			t.Fatalf("%s: message %d is %s, want %s", what, i, b.Messages[i].AppendCanonical(nil), m.AppendCanonical(nil))
		}
	}
	if !canon.EqualTools(a.Tools, b.Tools) || !a.Kwargs.Equal(b.Kwargs) {
		t.Fatalf("%s: tools or kwargs differ", what)
	}
}

// rendersBack fails unless a request that d read, rendered, reads as the same request.
func rendersBack(t *testing.T, d Dialect, render func(*canon.Request) []byte, req *canon.Request) {
	t.Helper()
	body := render(req)
	again, e := d.Parse(body, nil)
	if e != nil {
		t.Fatalf("%s: %v", body, e)
	}
	sameRequest(t, string(body), req, again)
}

// randomHistory is a conversation up to a user message or results of tools, with images.
func randomHistory(r *rand.Rand) []*canon.Message {
	text := func() string { return "t" + randomText(r) }
	content := func(m canon.Message) *canon.Message {
		if r.IntN(3) > 0 {
			m.Content = text()
			return canon.NewMessage(m)
		}
		for range 1 + r.IntN(3) {
			m.Parts = append(m.Parts, canon.Part{Text: text()}, canon.Part{Image: []string{"https://x/1.png", "data:image/png;base64,AAAA", "data:image/svg+xml,x"}[r.IntN(3)]})
		}
		return canon.NewMessage(m)
	}
	var messages []*canon.Message
	if r.IntN(2) == 0 {
		messages = append(messages, canon.NewMessage(canon.Message{Role: canon.System, Content: text()}))
	}
	messages = append(messages, content(canon.Message{Role: canon.User}))
	for range r.IntN(4) {
		if r.IntN(4) == 0 {
			messages = append(messages, canon.NewMessage(canon.Message{Role: canon.System, Content: text()}))
		}
		turn := randomMessage(r)
		messages = append(messages, turn)
		for _, call := range turn.ToolCalls {
			messages = append(messages, content(canon.Message{Role: canon.Tool, ToolCallID: call.ID}))
		}
		if len(turn.ToolCalls) == 0 || r.IntN(2) == 0 {
			messages = append(messages, content(canon.Message{Role: canon.User}))
		}
	}
	return messages
}

// Every dialect's answer to a random history, replayed, gives the state of the answered turn; so
// does the history in the other dialects.
func TestRoundTrips(t *testing.T) {
	renders := []struct {
		dialect Dialect
		render  func(*canon.Request) []byte
	}{{Chat, renderChat}, {Messages, renderMessages}, {Responses, renderResponses}}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		turn := &canon.Request{Messages: randomHistory(r), Kwargs: canon.ObjectOf()}
		answer := randomMessage(r)
		whole := *turn
		whole.Messages = append(append([]*canon.Message{}, turn.Messages...), answer)
		cache := canon.NewCache(0)
		for _, d := range renders {
			for _, want := range []*canon.Request{turn, &whole} {
				got, e := d.dialect.Parse(d.render(want), cache)
				if e != nil {
					t.Fatalf("seed %d: %v\n%s", seed, e, d.render(want))
				}
				sameRequest(t, fmt.Sprint("seed ", seed), want, got)
			}
		}
		if got := accumulate(t, string(Messages.AppendStream(nil, &Completion{Message: answer}))); !got.Equal(answer) {
			t.Fatalf("seed %d: the stream gives %s\nwant %s", seed, got.AppendCanonical(nil), answer.AppendCanonical(nil))
		}
	}
}

// accumulate gathers the blocks of a stream as Anthropic's SDKs do and reads them back.
func accumulate(t *testing.T, stream string) *canon.Message {
	t.Helper()
	blocks := []map[string]any{}
	for frame := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		name, data, _ := strings.Cut(frame, "\ndata: ")
		var event struct {
			Type          string
			Index         int
			Content_block map[string]any
			Delta         map[string]any
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil || "event: "+event.Type != name {
			t.Fatalf("frame %q: %v", frame, err)
		}
		switch event.Type {
		case "content_block_start":
			blocks = append(blocks, event.Content_block)
		case "content_block_delta":
			block := blocks[event.Index]
			for _, key := range []string{"text", "thinking", "signature"} {
				if s, ok := event.Delta[key].(string); ok {
					block[key] = block[key].(string) + s
				}
			}
			if s, ok := event.Delta["partial_json"].(string); ok {
				block["input"] = json.RawMessage(s)
			}
		}
	}
	body, err := json.Marshal(map[string]any{"max_tokens": 1, "messages": []any{map[string]any{"role": "assistant", "content": blocks}}})
	if err != nil {
		t.Fatal(err)
	}
	return mustParse(t, Messages, string(body)).Messages[0]
}

// fuzzParse checks what holds for every body: it is refused as a 400, or it is JSON, is
// recognised when it comes again, and renders back to the same state.
func fuzzParse(t *testing.T, d Dialect, render func(*canon.Request) []byte, body []byte) {
	cache := canon.NewCache(0)
	first, e := d.Parse(body, cache)
	second, e2 := d.Parse(body, cache)
	if (e == nil) != (e2 == nil) {
		t.Fatalf("%q: %v, then %v", body, e, e2)
	}
	if e != nil {
		if e.Status != 400 || e.Message == "" || !json.Valid(d.AppendError(nil, e)) || *e != *e2 {
			t.Fatalf("%q: %+v, then %+v", body, e, e2)
		}
		return
	}
	if !json.Valid(body) && !strings.HasPrefix(string(body), "\xef\xbb\xbf") {
		t.Fatalf("accepted invalid JSON %q", body)
	}
	for i, m := range first.Messages {
		if m != second.Messages[i] {
			t.Fatalf("%q: message %d was not recognised", body, i)
		}
	}
	if canon.RootState(first.Tools, first.Kwargs) != canon.RootState(second.Tools, second.Kwargs) || requestText(first) != requestText(second) {
		t.Fatalf("%q: the same bytes have two states", body)
	}
	rendersBack(t, d, render, first)
}

func FuzzParseChat(f *testing.F) {
	f.Add([]byte(`{` + hi + `,"tools":[{"type":"function","function":{"name":"f"}}],"stop":["a"]}`))
	f.Add([]byte(`{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"a\":1.0}"}}]}]}`))
	f.Add([]byte(`{"messages":[{"role":"system","content":"a"},{"role":"developer","content":[{"type":"text","text":"b"}]}]}`))
	f.Add([]byte(`{"messages":[{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"b"},{"type":"image_url","image_url":{"url":"https://x/1"}},{"type":"image","image":"data:image/png;base64,AAAA"}]}]}`))
	f.Add([]byte(`{"messages":[}`))
	f.Fuzz(func(t *testing.T, body []byte) { fuzzParse(t, Chat, renderChat, body) })
}

func FuzzParseMessages(f *testing.F) {
	f.Add([]byte(messagesBody(`{"role":"user","content":"u"}`, `"system":[{"type":"text","text":"A"}],"thinking":{"type":"enabled"},"tools":[{"name":"f","input_schema":{},"description":"d"}]`)))
	f.Add([]byte(messagesBody(`{"role":"user","content":[{"type":"text","text":"u"},{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"https://x/1"}}]},{"type":"text","text":"u"}]},7,{"role":"system","content":"s"}`)))
	f.Add([]byte(messagesBody(`{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"a"},{"type":"tool_use","id":"c","name":"f","input":{"a":1.0}}]}`)))
	f.Add([]byte(messagesBody(`{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"document"}]}`)))
	f.Add([]byte(`{"max_tokens":1,"messages":[}`))
	f.Fuzz(func(t *testing.T, body []byte) { fuzzParse(t, Messages, renderMessages, body) })
}
