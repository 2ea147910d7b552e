package relax

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/agent"
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/credit"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// exported reads an output file's text and selects its contexts.
func exported(s *session, text string) ([]*export, error) {
	output, err := agent.ParseOutput("session_output.json", []byte(text))
	if err != nil {
		return nil, err
	}
	return s.exports(output)
}

// jsonText is v as JSON.
func jsonText(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// twoTurns makes two turns in a straight line and returns the conversation, which ends with
// the second answer.
func twoTurns(t *testing.T, e *Engine, s *session, extra map[string]any) []chatMessage {
	t.Helper()
	messages := []chatMessage{{"role": "user", "content": "Hello"}}
	for _, question := range []string{"and then?", ""} {
		body := maps.Clone(extra)
		if body == nil {
			body = map[string]any{}
		}
		body["messages"] = messages
		a := post(t, e, s, body)
		if a.status != 200 {
			t.Fatalf("%+v", a)
		}
		messages = append(messages, a.Choices[0].Message)
		if question != "" {
			messages = append(messages, chatMessage{"role": "user", "content": question})
		}
	}
	return messages
}

// Every fault of a record names the record, the path of the fault, and what was expected (guide,
// Explicitly Export One or More Contexts; reference session service 8.1 and 2.1).
func TestFaultsOfRecordsHaveTheirPath(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, func(c *Config) { c.CustomAdvantage = true })
	messages := twoTurns(t, e, s, nil)
	good := jsonText(t, map[string]any{"name": "main", "messages": messages})
	user := `{"role":"user","content":"Hello"}`
	call := func(call string) string {
		return `[` + user + `,{"role":"assistant","content":null,"tool_calls":[` + call + `]}]`
	}
	for _, tt := range []struct{ name, messages, rest, want string }{
		{"no message", `[]`, ``, `messages hold no message`},
		{"a message that is none", `[1]`, ``, `messages[0] must be dict, not int`},
		{"no role", `[` + user + `,{"content":"x"}]`, ``, `messages[1].role is missing`},
		{"role a number", `[{"role":1,"content":"x"}]`, ``, `messages[0].role must be str, not int`},
		{"role unknown", `[{"role":"function","content":"x"}]`, ``, `messages[0].role must be one of assistant, developer, system, tool, user, not "function"`},
		{"a Responses item", `[` + user + `,{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]`, ``, `messages[1].role is missing`},
		{"an Anthropic block", `[` + user + `,{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}]`, ``,
			`messages[1].content[0] of type "tool_use" has no text`},
		{"no content", `[{"role":"user"}]`, ``, `messages[0].content is missing`},
		{"content null", `[{"role":"user","content":null}]`, ``, `messages[0].content must not be null`},
		{"content empty", `[{"role":"user","content":""}]`, ``, `messages[0].content must not be empty`},
		{"content a number", `[{"role":"user","content":7}]`, ``, `messages[0].content must be str, list or null, not int`},
		{"content an empty list", `[{"role":"user","content":[]}]`, ``, `messages[0].content must not be an empty list`},
		{"a part that is none", `[{"role":"user","content":["x"]}]`, ``, `messages[0].content[0] must be dict, not str`},
		{"a part of empty text", `[{"role":"user","content":[{"type":"text","text":""}]}]`, ``, `messages[0].content[0].text must not be empty`},
		{"reasoning a list", `[` + user + `,{"role":"assistant","content":"a","reasoning_content":["r"]}]`, ``,
			`messages[1].reasoning_content must be str or null, not list`},
		{"tool_call_id empty", `[` + user + `,{"role":"tool","content":"r","tool_call_id":""}]`, ``, `messages[1].tool_call_id must be a non-empty str`},
		{"calls an object", `[` + user + `,{"role":"assistant","content":"a","tool_calls":{}}]`, ``, `messages[1].tool_calls must be list or null, not dict`},
		{"a call that is none", call(`"f"`), ``, `messages[1].tool_calls[0] must be dict, not str`},
		{"call id a number", call(`{"id":1,"function":{"name":"f","arguments":"{}"}}`), ``, `messages[1].tool_calls[0].id must be a non-empty str or null, not int`},
		{"no function", call(`{"id":"c"}`), ``, `messages[1].tool_calls[0].function must be dict, not NoneType`},
		{"function name a list", call(`{"id":"c","function":{"name":[],"arguments":"{}"}}`), ``,
			`messages[1].tool_calls[0].function.name must be str or null, not list`},
		{"no arguments", call(`{"id":"c","function":{"name":"f"}}`), ``, `messages[1].tool_calls[0].function.arguments must be an object or its JSON text`},
		{"arguments no JSON", call(`{"id":"c","function":{"name":"f","arguments":"{"}}`), ``,
			`messages[1].tool_calls[0].function.arguments must be the JSON text of an object`},
		{"arguments a list", call(`{"id":"c","function":{"name":"f","arguments":"[]"}}`), ``,
			`messages[1].tool_calls[0].function.arguments must be an object or its JSON text, not list`},
		{"a tool that is none", `[` + user + `]`, `,"tools":["f"]`, `tools[0] must be dict, not str`},
		{"a tool without a name", `[` + user + `]`, `,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{}}]`,
			`tools[1].function.name must be str, not NoneType`},
		{"a description that is none", `[` + user + `]`, `,"tools":[{"type":"function","function":{"name":"f","description":1}}]`,
			`tools[0].function.description must be str or null, not int`},
		{"reserved arguments", `[` + user + `]`, `,"chat_template_kwargs":{"tools":[]}`, `chat_template_kwargs must not set tools`},
		{"reward without its key", jsonText(t, messages), `,"reward":{"acc":1}`, `reward: reward is an object with members acc; option reward_key must name the one to train on`},
	} {
		second := `{"name":"side","messages":` + tt.messages + tt.rest + `}`
		_, err := exported(s, good+"\n"+second)
		if want := `record 2 "side": ` + tt.want; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\ngot  %v\nwant %s…", tt.name, err, want)
		}
	}
	if out, err := exported(s, good); err != nil || len(out) != 1 {
		t.Errorf("the good record: %v", err)
	}
}

// Cases I4, I14, I15, I16, I17, I18: what a record may name, and what it is told otherwise. The
// configuration's template arguments lie under the record's as they lie under a request's.
func TestRecordsAreMatchedLikeRequests(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, func(c *Config) { c.ApplyChatTemplateKwargs = json.RawMessage(`{"level":1}`) })
	tools := []any{map[string]any{"type": "function", "function": map[string]any{"name": "f"}}}
	m := twoTurns(t, e, s, map[string]any{"tools": tools})
	edited := slices.Clone(m)
	edited[1] = chatMessage{"role": "assistant", "content": "never said"}
	for _, tt := range []struct {
		name   string
		record map[string]any
		turns  int
		want   string
	}{
		{"I4: the last answer", map[string]any{"messages": m, "tools": tools}, 2, ""},
		{"I14: an answer in the middle", map[string]any{"messages": m[:2], "tools": tools}, 1, ""},
		{"I15: an observation below an answer", map[string]any{"messages": m[:3], "tools": tools}, 1, ""},
		{"I16: the first observation", map[string]any{"messages": m[:1], "tools": tools}, 0, "end before the first response"},
		{"I17: an edited answer", map[string]any{"messages": edited, "tools": tools}, 0, `messages[1].content differs`},
		{"I17: forgotten tools", map[string]any{"messages": m}, 0, "tools differ: recorded"},
		{"I17: tools of the Responses shape", map[string]any{"messages": m, "tools": []any{map[string]any{"type": "function", "name": "f"}}}, 0,
			"it is no message or function tool of the Chat shape: tools.function"},
		{"I17: too long", map[string]any{"messages": append(slices.Clip(m), m[0]), "tools": tools}, 0, "messages[4] follows the recorded conversation"},
		{"I18: the configuration's arguments", map[string]any{"messages": m, "tools": tools, "chat_template_kwargs": map[string]any{"level": 1}}, 2, ""},
		{"I18: other arguments", map[string]any{"messages": m, "tools": tools, "chat_template_kwargs": map[string]any{"level": 2}}, 0,
			"chat_template_kwargs differ"},
	} {
		tt.record["name"] = "main"
		out, err := exported(s, jsonText(t, tt.record))
		if tt.want != "" {
			if err == nil || !strings.HasPrefix(err.Error(), `record 1 "main": not finalizable: `) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		row := out[0].lineage
		if observed := out[0].node.Kind() == forest.Observation; row.Turns != tt.turns || row.Truncated != observed {
			t.Errorf("%s: %d turns, truncated %v, ends with an observation %v", tt.name, row.Turns, row.Truncated, observed)
		}
	}
}

// Case H8 (deviation by option: match_policy tolerant): a record that drops reasoning and white
// space at an answer's end names the recorded answer, and its row has the tokens sampled.
func TestTolerantRecords(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{matchExact: "messages[1].reasoning_content differs", matchTolerant: ""} {
		e, s := openIdle(t, func(c *Config) {
			c.MatchPolicy, c.ReasoningParser = policy, "qwen3"
			c.Simulator = json.RawMessage(`{"policy":{"default":[{"text":"<think>hm</think>yes "}]}}`)
		})
		if a := post(t, e, s, map[string]any{}); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		out, err := exported(s, `{"name":"main","messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"yes"}]}`)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", policy, err)
			}
			continue
		}
		if err != nil || out[0].lineage.Turns != 1 || out[0].lineage.Messages[1].Reasoning != "hm" {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

// Cases I19, I20, I21, S13, 3b-43: records of one Session share its index, two names of one node
// make two rows of the same tokens, and a record's metadata lies over the task's key by key. (A
// deviation from I20: the trace is a document of its own and is not merged into metadata.)
func TestRowsOfOneSession(t *testing.T) {
	t.Parallel()
	e, s := openIdle(t, func(c *Config) { c.CustomAdvantage = true })
	messages := twoTurns(t, e, s, nil)
	s.group.task.Metadata = json.RawMessage(`{"level":3,"stop_reason":"none"}`)
	records := ""
	for name, metadata := range map[string]any{"a": map[string]any{"stop_reason": "done", "outcome": 1.5}, "b": nil} {
		records += jsonText(t, map[string]any{"name": name, "messages": messages, "metadata": metadata, "reward": 1}) + "\n"
	}
	out, err := exported(s, records)
	if err != nil || len(out) != 2 {
		t.Fatalf("%d contexts, %v", len(out), err)
	}
	for _, x := range out {
		row := s.row(x, credit.Credit{Number: 1, Turns: []float32{1, 1}})
		stat := s.stat(x, map[*forest.Node]bool{})
		if row.GroupID != int64(s.group.id) || row.SessionSeq != int32(s.ref.Seq) || stat.Turns != 2 {
			t.Errorf("%s: group %d, session %d, %d turns", x.name, row.GroupID, row.SessionSeq, stat.Turns)
		}
		var meta struct {
			Name     string
			Metadata map[string]any
			Reward   float64
		}
		if err := json.Unmarshal(row.Meta, &meta); err != nil {
			t.Fatal(err)
		}
		want := map[string]map[string]any{
			"a": {"level": 3.0, "stop_reason": "done", "outcome": 1.5}, "b": {"level": 3.0, "stop_reason": "none"},
		}[x.name]
		if meta.Name != x.name || meta.Reward != 1 || !maps.Equal(meta.Metadata, want) {
			t.Errorf("meta %s, want metadata %v", row.Meta, want)
		}
	}
	if out[0].node != out[1].node || out[0].lineage.Len != out[1].lineage.Len {
		t.Error("two names of one conversation are two nodes")
	}
}

// Case S5: prompt and cached tokens of a row are those of all its turns. (There are no
// speculative counters yet.)
func TestRowSumsUsage(t *testing.T) {
	t.Parallel()
	_, s := openIdle(t, nil)
	var history []*canon.Message
	for i, g := range []forest.Generation{
		{IDs: []int32{1}, Logprobs: []float32{0}, PromptTokens: 10, CachedTokens: 4},
		{IDs: []int32{2}, Logprobs: []float32{0}, PromptTokens: 20, CachedTokens: 11},
	} {
		req := askFor("q"+strconv.Itoa(i), canon.Retry{})
		req.Messages = append(slices.Clip(history), req.Messages...)
		g.Message = canon.NewMessage(canon.Message{Role: canon.Assistant, Content: "a"})
		if _, err := s.forest.Commit(s.forest.Attach(s.forest.Match(req), []int32{7}, nil, req), g); err != nil {
			t.Fatal(err)
		}
		history = append(slices.Clip(req.Messages), g.Message)
	}
	out, err := exported(s, `{"reward":1}`)
	if err != nil {
		t.Fatal(err)
	}
	if stat := s.stat(out[0], map[*forest.Node]bool{}); stat.PromptTokens != 30 || stat.CachedTokens != 15 {
		t.Errorf("prompt %d, cached %d; want 30, 15", stat.PromptTokens, stat.CachedTokens)
	}
}

// What drops a Session's Group at its end. A good Group takes its place, so that the step brings
// its row all the same.
func TestEndsThatDropAGroup(t *testing.T) {
	for _, tt := range []struct {
		name   string
		task   agentTask
		after  string // a shell command behind the agent
		reason string
		cause  []string
	}{
		{"I6: a JSON list", agentTask{Output: `[{"reward":1}]`}, "", "invalid_output", []string{"session_output.json line 1", "found a JSON list"}},
		{"I7: an empty name", agentTask{Output: `{"name":"","messages":[]}`}, "", "invalid_output", []string{"field name"}},
		{"I8: metadata a list", agentTask{Output: `{"metadata":[]}`}, "", "invalid_output", []string{"field metadata: expected an object, found the list []"}},
		{"I11: two contexts and none named", agentTask{Mode: "branch", Output: `{"reward":1}`}, "", "export",
			[]string{"implicit export needs exactly one context, the session has 2", "1 turn", "write named explicit records"}},
		{"I22: exit code 1 with a good output", agentTask{Turns: 1}, "exit 1", "agent_exit", []string{"code 1"}},
		{"I24: exit code 0 before the first request", agentTask{Mode: "nocall"}, "", "no_request", []string{"no model request"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			if tt.after != "" { // once: the Group that takes the place must end well
				cfg.AgentCommand = strings.TrimPrefix(cfg.AgentCommand, "exec ") + " && mkdir ended 2>/dev/null && " + tt.after + "; exit 0"
			}
			e := openEngine(t, cfg)
			if err := e.Submit([]Task{task(tt.task)}); err != nil {
				t.Fatal(err)
			}
			r := runStep(t, e, 0, func(ev Event) { replyTasks(t, e, ev, task(agentTask{})) })
			if r.report.Groups != 1 || r.report.Rows != 1 || len(r.report.Drops) != 1 || r.report.Drops[0].Reason != tt.reason {
				t.Fatalf("report %+v", r.report)
			}
			for _, cause := range tt.cause {
				if !strings.Contains(r.report.Drops[0].First, cause) {
					t.Errorf("the cause does not say %q: %s", cause, r.report.Drops[0].First)
				}
			}
		})
	}
}

// How agents leave their output directory. The output is read when the process is over, whatever
// else lies there; a directory that is gone is an implicit export without a reward.
func TestOutputDirectoriesAsAgentsLeaveThem(t *testing.T) {
	for name, after := range map[string]string{
		"I25: the directory is gone": `rm -rf "$(dirname "$RELAX_OUTPUT_JSON")"`,
		"I26: written beside and renamed": `cd "$(dirname "$RELAX_OUTPUT_JSON")" && mv "$RELAX_OUTPUT_JSON" .tmp && ` +
			`echo junk > session_output.json.bak && echo '[' > other.json && mv .tmp "$RELAX_OUTPUT_JSON"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			cfg.CustomRM = true
			cfg.AgentCommand = strings.TrimPrefix(cfg.AgentCommand, "exec ") + " && " + after
			e := openEngine(t, cfg)
			half := 0.5
			if err := e.Submit([]Task{task(agentTask{Reward: &half})}); err != nil {
				t.Fatal(err)
			}
			r := runStep(t, e, 0, func(ev Event) {
				if err := e.Reply(ev.ID, []byte(`{"rewards":[0.25]}`)); err != nil {
					t.Error(err)
				}
			})
			want := 0.5
			if strings.Contains(name, "gone") {
				want = 0.25
			}
			if r.report.Rows != 1 || len(r.report.Drops) != 0 || View[float64](r.batch, "reward")[0] != want {
				t.Errorf("report %+v", r.report)
			}
		})
	}
}

// Case 3b-37: engines know nothing of each other, so neither has the other's weight version.
func TestEnginesHaveTheirOwnWeightVersion(t *testing.T) {
	t.Parallel()
	engines := map[int64]*Engine{3: openEngine(t, testConfig(t)), 8: openEngine(t, testConfig(t))}
	for version, e := range engines {
		if err := e.SetWeightVersion(version); err != nil {
			t.Fatal(err)
		}
	}
	for version, e := range engines {
		if err := e.Submit([]Task{task(agentTask{})}); err != nil {
			t.Fatal(err)
		}
		r := runStep(t, e, 0, nil)
		if got := View[int64](r.batch, "seg_weight_version"); fmt.Sprint(got) != fmt.Sprint([]int64{version}) {
			t.Errorf("versions %v, want %d", got, version)
		}
	}
}

// Case I3: a key of the output file that nobody reads is named in the log, so that a misspelt one
// is found.
func TestUnknownKeysAreLogged(t *testing.T) {
	t.Parallel()
	e := openEngine(t, testConfig(t))
	if err := e.Submit([]Task{task(agentTask{Output: `{"reward":1,"rewards":2}`})}); err != nil {
		t.Fatal(err)
	}
	r := runStep(t, e, 0, nil)
	if r.report.Rows != 1 {
		t.Fatalf("report %+v", r.report)
	}
	logged := func(line string) bool {
		return strings.Contains(line, `session_output.json line 1: unknown key "rewards" is ignored`)
	}
	if !slices.ContainsFunc(r.logs, logged) {
		t.Errorf("logs %q", r.logs)
	}
}
