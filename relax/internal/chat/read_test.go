package chat

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/parsers"
)

// end is the terminator of the built-in format.
const end = "<|im_end|>"

func TestCallIDRecipe(t *testing.T) {
	// The reference's vector.
	if got := callID(0, strings.Repeat("a", 64), []int32{1, 2, 3}); got != "call_ec3ef703b606b3fbc013a7ec" {
		t.Errorf("callID = %s", got)
	}
}

// TestReadKeepsTheModelsIDs: Kimi writes ids that its template prints again. A call whose id
// says nothing gets one of ours.
func TestReadKeepsTheModelsIDs(t *testing.T) {
	f := byteFormat(t)
	kimi, err := parsers.ToolCalls("kimi_k2")
	if err != nil {
		t.Fatal(err)
	}
	f.toolCalls = kimi
	req := request(user("u"))
	req.Tools = []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.ObjectOf())}
	ids := generated(t, f, "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{}<|tool_call_end|>"+
		"<|tool_call_begin|>1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"+end)
	calls := f.Read(0xabc, ids, req, Observation{Prompt: generated(t, f, "<|im_start|>assistant\n")}).Message.ToolCalls
	if len(calls) != 2 || calls[0].ID != "functions.f:7" || calls[1].ID != callID(1, "0000000000000abc", ids) {
		t.Errorf("calls %+v", calls)
	}
}

// TestReadGivesNoIDTwice: a model writes an id that an earlier call has, as Kimi does when it
// begins to count anew. A client that sees it again takes the call for done.
func TestReadGivesNoIDTwice(t *testing.T) {
	tools := []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.ObjectOf())}
	kimi := func(id string) string {
		return "<|tool_calls_section_begin|><|tool_call_begin|>" + id + "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
	}
	mistral := func(id string) string { return "[TOOL_CALLS]f[CALL_ID]" + id + "[ARGS]{}" }
	const ours = "" // an id of the engine's
	for _, c := range []struct {
		name, parser, text string
		before             []*canon.Message
		want               []string
	}{
		{"new", "kimi_k2", kimi("functions.f:1"), []*canon.Message{calling("", "functions.f:0", "f", "{}"), result("functions.f:0", "r")}, []string{"functions.f:1"}},
		{"used", "kimi_k2", kimi("functions.f:0"), []*canon.Message{calling("", "functions.f:0", "f", "{}"), result("functions.f:0", "r")}, []string{ours}},
		{"used long ago", "kimi_k2", kimi("functions.f:0"),
			[]*canon.Message{calling("", "a", "f", "{}", "functions.f:0", "f", "{}"), result("functions.f:0", "r"), user("u"), assistant("a"), user("u")}, []string{ours}},
		{"its call was left out", "kimi_k2", kimi("functions.f:0"), []*canon.Message{result("functions.f:0", "r")}, []string{ours}},
		{"used", "mistral", mistral("abcDEF123"), []*canon.Message{calling("", "abcDEF123", "f", "{}"), result("abcDEF123", "r")}, []string{ours}},
		{"twice in a turn", "mistral", mistral("abcDEF123") + mistral("abcDEF123") + mistral("abcDEF124"), nil, []string{"abcDEF123", ours, "abcDEF124"}},
	} {
		f := byteFormat(t)
		var err error
		if f.toolCalls, err = parsers.ToolCalls(c.parser); err != nil {
			t.Fatal(err)
		}
		req := request(append([]*canon.Message{user("u")}, c.before...)...)
		req.Tools = tools
		ids := generated(t, f, c.text+end)
		var got []string
		for i, call := range f.Read(0xabc, ids, req, Observation{}).Message.ToolCalls {
			if call.ID == callID(i, "0000000000000abc", ids) {
				call.ID = ours
			}
			got = append(got, call.ID)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: ids %q, want %q", c.parser, c.name, got, c.want)
		}
	}
}

// TestReadDropsWhiteSpaceBesideCalls: whatever the family's parser leaves of the text around calls,
// clients drop white space alone, and their replay must be the recorded turn.
func TestReadDropsWhiteSpaceBesideCalls(t *testing.T) {
	const (
		coder   = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
		kimi    = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
		minimax = "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>"
	)
	for _, c := range []struct{ parser, text, content string }{
		{"qwen3_coder", "\n\n" + coder, ""},
		{"qwen3_coder", " \t\r\n\u00a0" + coder, ""},
		{"qwen3_coder", "<think>\nr\n</think>\n\n" + coder, ""},
		{"qwen3_coder", "\n\nI look.\n\n" + coder, "\n\nI look.\n\n"},
		{"qwen3_coder", "\n\n<tool_call>\n</tool_call>", "\n\n<tool_call>\n</tool_call>"},
		{"kimi_k2", "\n" + kimi, ""},
		{"minimax-m2", "\n" + minimax + "\n", ""},
		{"minimax-m2", "a\n" + minimax + "\n", "a\n\n"},
	} {
		f := byteFormat(t)
		var err error
		if f.toolCalls, err = parsers.ToolCalls(c.parser); err != nil {
			t.Fatal(err)
		}
		req := request(user("u"))
		req.Tools = []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.ObjectOf())}
		got := f.Read(1, generated(t, f, c.text+end), req, Observation{})
		if m := got.Message; m.Content != c.content || len(m.ToolCalls) == 0 != (got.ParseError != "") || got.Text != c.text {
			t.Errorf("%s %q: content %q, %d calls, flag %q, text %q", c.parser, c.text, m.Content, len(m.ToolCalls), got.ParseError, got.Text)
		}
	}
}

func TestRead(t *testing.T) {
	f := byteFormat(t)
	tools := []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.ObjectOf())}
	const call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 2.0, \"a\": \"é\"}}\n</tool_call>"
	for _, c := range []struct {
		name, text         string
		noTools            bool
		content, reasoning string
		calls              []string // name and arguments
		flag               string
	}{
		{name: "plain", text: "hi" + end, content: "hi"},
		{name: "cut off", text: "hi", content: "hi"},
		{name: "content is not trimmed", text: "\n\n hi \n" + end, content: "\n\n hi \n"},
		{name: "one stop token only", text: "hi" + end + end, content: "hi" + end},
		{name: "stop token within", text: "a" + end + "b", content: "a" + end + "b"},
		{name: "thinking", text: "<think>\nr\n</think>\n\nhi" + end, content: "\n\nhi", reasoning: "r"},
		{name: "thinking cut off", text: "<think>\nr", reasoning: "r"},
		{name: "call", text: "<think>r</think>ok\n" + call + end, content: "ok", reasoning: "r", calls: []string{"f", `{"a":"é","b":2}`}},
		{name: "call without tools", text: call + end, noTools: true, content: call},
		{name: "two calls", text: call + "\n" + call + end, calls: []string{"f", `{"a":"é","b":2}`, "f", `{"a":"é","b":2}`}},
		{name: "calls in the reasoning do not count", text: "<think>" + call + "</think>hi" + end, content: "hi", reasoning: call},
		{name: "bad call", text: "<think>r</think>x <tool_call>\n{bad}\n</tool_call>" + end,
			content: "x <tool_call>\n{bad}\n</tool_call>", reasoning: "r", flag: "not valid JSON"},
		{name: "call cut off", text: "<tool_call>\n{\"name\": \"f\", \"argu", content: "<tool_call>\n{\"name\": \"f\", \"argu", flag: "not closed"},
		{name: "no tokens", text: "", flag: "empty turn: 0 tokens"},
		{name: "only a stop token", text: end, flag: "empty turn: 1 tokens"},
		{name: "empty thinking", text: "<think></think>" + end, flag: "empty turn"},
		{name: "thinking of white space", text: "<think>\n\n</think>" + end, flag: "empty turn: 5 tokens"},
		{name: "thinking and text of white space", text: "<think>\n\n</think>\n\n" + end, content: "\n\n", flag: "empty turn"},
		{name: "text of white space", text: " \n" + end, content: " \n", flag: "empty turn"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request(user("u"))
			if !c.noTools {
				req.Tools = tools
			}
			ids := generated(t, f, c.text)
			before := slices.Clone(ids)
			got := f.Read(0xabc, ids, req, Observation{Prompt: generated(t, f, "<|im_start|>assistant\n")})
			m := got.Message
			if m.Role != canon.Assistant || m.Content != c.content || m.Reasoning != c.reasoning {
				t.Errorf("message %+v", m)
			}
			var calls []string
			for i, call := range m.ToolCalls {
				calls = append(calls, call.Name, call.Arguments)
				if want := callID(i, "0000000000000abc", ids); call.ID != want {
					t.Errorf("call %d: id %s, want %s", i, call.ID, want)
				}
			}
			if !slices.Equal(calls, c.calls) {
				t.Errorf("calls %q, want %q", calls, c.calls)
			}
			if (got.ParseError == "") != (c.flag == "") || !strings.Contains(got.ParseError, c.flag) {
				t.Errorf("ParseError %q, want %q", got.ParseError, c.flag)
			}
			if want := strings.TrimSuffix(c.text, end); got.Text != want {
				t.Errorf("Text %q, want %q", got.Text, want)
			}
			if !slices.Equal(ids, before) {
				t.Error("the ids were changed")
			}
		})
	}
}

func TestReadAfterAnOpenThinkBlock(t *testing.T) {
	f := byteFormat(t)
	open := generated(t, f, "<|im_start|>assistant\n<think>\n")
	closed := generated(t, f, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
	ids := generated(t, f, "why</think>hi"+end)
	for name, c := range map[string]struct {
		prompt             []int32
		content, reasoning string
	}{
		"open": {open, "hi", "why"}, "closed": {closed, "why</think>hi", ""},
		"plain": {generated(t, f, "<|im_start|>assistant\n"), "why</think>hi", ""}, "none": {nil, "why</think>hi", ""},
	} {
		m := f.Read(1, ids, request(user("u")), Observation{Prompt: c.prompt}).Message
		if m.Content != c.content || m.Reasoning != c.reasoning {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestReadSurvivesForeignIDs(t *testing.T) {
	f := byteFormat(t)
	got := f.Read(1, []int32{'a', -5, 'b', 1 << 30, f.Terminator()}, request(user("u")), Observation{})
	if got.Message.Content != "a\uFFFDb\uFFFD" || !strings.Contains(got.ParseError, "decode") {
		t.Errorf("%+v, %q", got.Message, got.ParseError)
	}
	half := f.Read(1, []int32{'a', 0xe4, 0xb8}, request(user("u")), Observation{})
	if half.Message.Content != "a\uFFFD" || half.ParseError != "" {
		t.Errorf("half a character: %+v, %q", half.Message, half.ParseError)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	dead := f.Read(1, []int32{'a', 'b'}, request(user("u")), Observation{})
	if dead.Message == nil || dead.ParseError == "" {
		t.Errorf("closed tokenizer: %+v", dead)
	}
}

func TestStops(t *testing.T) {
	f := byteFormat(t)
	id, _ := f.tok.TokenID(end)
	eot, _ := f.tok.TokenID("<|endoftext|>")
	if f.Terminator() != id || !slices.Equal(f.StopIDs(), []int32{id, eot}) {
		t.Errorf("terminator %d, stops %v", f.Terminator(), f.StopIDs())
	}
	if got := f.Read(1, []int32{'a', eot}, request(user("u")), Observation{}); got.Message.Content != "a" {
		t.Errorf("another stop id stays: %q", got.Message.Content)
	}
	if f.TokenText('a') != "a" || f.TokenText(id) != end || f.TokenText(1<<20) != "" {
		t.Errorf("token texts %q %q %q", f.TokenText('a'), f.TokenText(id), f.TokenText(1<<20))
	}
	if f.Tokenizer() != f.tok {
		t.Error("another tokenizer")
	}
}

func FuzzRead(f *testing.F) {
	format := byteFormat(f)
	req := request(user("u"))
	req.Tools = []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.ObjectOf())}
	for _, s := range []string{"", "hi", "<think>a</think>b", "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>", "\xe4\xb8", "\x00"} {
		f.Add([]byte(s), int32(0))
	}
	f.Add([]byte("x"), int32(-1))
	f.Fuzz(func(t *testing.T, raw []byte, extra int32) {
		ids := make([]int32, len(raw), len(raw)+1)
		for i, b := range raw {
			ids[i] = int32(b)
		}
		ids = append(ids, extra)
		first := format.Read(3, ids, req, Observation{})
		again := format.Read(3, ids, req, Observation{})
		m := first.Message
		if m.Role != canon.Assistant || !m.Equal(again.Message) || first.ParseError != again.ParseError {
			t.Fatalf("%+v, then %+v", first, again)
		}
		if !utf8.ValidString(m.Content) || !utf8.ValidString(m.Reasoning) {
			t.Fatalf("message is not text: %+v", m)
		}
		if back := throughJSON(t, m); !m.Equal(back) {
			t.Fatalf("%+v came back as %+v", m, back)
		}
	})
}

// throughJSON sends a message through Chat JSON and a client that echoes it.
func throughJSON(t *testing.T, m *canon.Message) *canon.Message {
	t.Helper()
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil {
		t.Fatal(err)
	}
	var back canon.Message
	if err := json.Unmarshal(buf.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	return canon.NewMessage(back)
}
