//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestParseOutput(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	num := func(n float64, s string) *Reward { return &Reward{Number: n, Raw: raw(s)} }
	tests := []struct {
		name, in string
		want     Output
	}{
		{"I1: empty", "", Output{}},
		{"I1: blank", " \n\t\r\n\u00a0", Output{}},
		{"byte order mark only", "\uFEFF \n", Output{}},
		{"empty object", "{}", Output{}},
		{"I2: reward and metadata", `{"reward":0.5,"metadata":{"k":1}}`, Output{Metadata: raw(`{"k":1}`), Reward: num(0.5, "0.5")}},
		{"I9: null reward", `{"reward": null}`, Output{}},
		{"null metadata", `{"metadata": null}`, Output{}},
		// A deviation from case I8, where a boolean reward is refused: in Python, and in reference
		// session service 8.1, a boolean is a number.
		{"boolean reward", `{"reward": true}`, Output{Reward: num(1, "true")}},
		{"false", `{"reward": false}`, Output{Reward: num(0, "false")}},
		{"I9: negative exponent", `{"reward": -1e-3}`, Output{Reward: num(-0.001, "-1e-3")}},
		{"I9: object reward", `{"reward": {"acc": 1, "note": "x", "ok": true}}`, Output{Reward: &Reward{
			Object: map[string]json.RawMessage{"acc": raw("1"), "note": raw(`"x"`), "ok": raw("true")},
			Raw:    raw(`{"acc": 1, "note": "x", "ok": true}`)}}},
		{"I3: unknown keys, indented", "{\n  \"metadata\": {},\n  \"zeta\": 1,\n  \"alpha\": 2\n}\n", Output{Metadata: raw("{}"), Warnings: []string{
			`out.json line 1: unknown key "alpha" is ignored`, `out.json line 1: unknown key "zeta" is ignored`}}},
		{"I4: one record", `{"name":"main","messages":[{"role":"user"}]}`, Output{Explicit: true, Records: []Record{
			{Name: "main", Messages: raw(`[{"role":"user"}]`)}}}},
		{"one record, indented", "{\n\"name\": \"main\",\n\"messages\": []\n}", Output{Explicit: true, Records: []Record{
			{Name: "main", Messages: raw(`[]`)}}}},
		{"I5: two records with blank lines", "\n\n{\"name\":\"a\",\"messages\":[]}\r\n  \n{\"name\":\"b\",\"messages\":[],\"tools\":[{}],\"chat_template_kwargs\":{\"x\":1},\"metadata\":{\"m\":2},\"reward\":3,\"u\":4}\n\n",
			Output{Explicit: true, Records: []Record{
				{Name: "a", Messages: raw("[]")},
				{Name: "b", Messages: raw("[]"), Tools: raw("[{}]"), ChatTemplateKwargs: raw(`{"x":1}`), Metadata: raw(`{"m":2}`), Reward: num(3, "3")},
			}, Warnings: []string{`out.json line 5: unknown key "u" is ignored`}}},
		{"nulls in a record", `{"name":"a","messages":[],"tools":null,"chat_template_kwargs":null,"metadata":null,"reward":null}`,
			Output{Explicit: true, Records: []Record{{Name: "a", Messages: raw("[]")}}}},
		{"within bounds", `{"metadata":{"s":"\\\"` + strings.Repeat("[1", 1000) + `","d":` + strings.Repeat("[", 198) + strings.Repeat("]", 198) + `}}`,
			Output{Metadata: raw(`{"s":"\\\"` + strings.Repeat("[1", 1000) + `","d":` + strings.Repeat("[", 198) + strings.Repeat("]", 198) + `}`)}},
		{"escapes in a name", `{"name":"\u0061\n","messages":[]}`, Output{Explicit: true, Records: []Record{{Name: "a\n", Messages: raw("[]")}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseOutput("out.json", []byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestParseOutputRefuses(t *testing.T) {
	const record = `{"name":"a","messages":[]}`
	tests := []struct {
		name, in string
		line     int
		field    string
		want     string // in the problem
	}{
		{"I6: list", `[` + record + `]`, 1, "", "one object a line (JSONL), found a JSON list"},
		{"list over lines", "\n[\n" + record + "]", 2, "", "found a JSON list"},
		{"number", "1", 1, "", "expected a JSON object, found the number 1"},
		{"string", ` "x"`, 1, "", `expected a JSON object, found the string "x"`},
		{"null", "null", 1, "", "expected a JSON object, found null"},
		{"not JSON", "done!", 1, "", "expected JSON or JSONL"},
		{"cut short", "{\n\"reward\": 1,\n", 2, "", "unexpected end of JSON input"},
		{"fault inside a document", "\n{\n \"reward\": 1,\n \"metadata\": {x}\n}", 4, "", "invalid character 'x'"},
		{"reward beyond a float32", `{"reward": -3.5e38}`, 1, "reward", "expected a number that a float32 holds (at most 3.4e38), found -3.5e+38"},
		{"nested too deep", `{"metadata":` + strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 201), 1, "", "at most 200 nested lists and objects"},
		{"a record nested too deep", record + "\n" + `{"name":"b","messages":[],"metadata":{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}}", 2, "", "at most 200 nested"},
		{"a number without end", `{"metadata":{"n":` + strings.Repeat("1", 1001) + "}}", 1, "", "numbers of at most 1000 characters"},
		{"NaN", `{"reward": NaN}`, 1, "", "NaN is not JSON, write null or a finite number"},
		{"Infinity in the second line", record + "\n" + `{"name":"b","messages":[],"reward":-Infinity}`, 2, "", "Infinity is not JSON"},
		{"second line broken", record + "\n\n{\"name\":", 3, "", "one JSON object in each line"},
		{"second line a list", record + "\n[]", 2, "", "found a JSON list"},
		{"second line a number", record + "\n5", 2, "", "found the number 5"},
		{"lines without messages", "{\"reward\":1}\n{\"reward\":2}", 1, "name", "found nothing"},
		{"no name", `{"messages":[]}`, 1, "name", "expected a non-empty string, unique in the file, found nothing"},
		{"I7: empty name", `{"name":"","messages":[]}`, 1, "name", `found the string ""`},
		{"name a number", `{"name":7,"messages":[]}`, 1, "name", "found the number 7"},
		{"I7: name twice", record + "\n" + record, 2, "name", `found the string "a" again, used in line 1`},
		{"messages null", `{"name":"a","messages":null}`, 1, "messages", "expected a list of messages, found null"},
		{"I8: messages missing in a line", record + "\n" + `{"name":"b"}`, 2, "messages", "found nothing"},
		{"tools an object", `{"name":"a","messages":[],"tools":{}}`, 1, "tools", "expected a list, found the object {}"},
		{"kwargs a list", `{"name":"a","messages":[],"chat_template_kwargs":[]}`, 1, "chat_template_kwargs", "expected an object, found the list []"},
		{"I8: record metadata a string", `{"name":"a","messages":[],"metadata":"x"}`, 1, "metadata", "expected an object"},
		{"I8: metadata a list", `{"metadata":[]}`, 1, "metadata", "expected an object, found the list []"},
		{"I8: reward a string", `{"reward":"1"}`, 1, "reward", `expected null, a finite number or an object, found the string "1"`},
		{"reward a list", `{"reward":[1]}`, 1, "reward", "found the list [1]"},
		{"reward too large", `{"reward":1e999}`, 1, "reward", "found the number 1e999"},
		{"reward member too large", `{"reward":{"acc":-1e999}}`, 1, "reward.acc", "expected a finite number"},
		{"messages a string", `{"name":"a","messages":"hi"}`, 1, "messages", `expected a list of messages, found the string "hi"`},
		{"tools a string in the second line", record + "\n" + `{"name":"b","messages":[],"tools":"f"}`, 2, "tools", `expected a list, found the string "f"`},
		{"kwargs a number", `{"name":"a","messages":[],"chat_template_kwargs":1}`, 1, "chat_template_kwargs", "expected an object, found the number 1"},
		{"metadata a number in a record", `{"name":"a","messages":[],"metadata":0}`, 1, "metadata", "expected an object, found the number 0"},
		{"metadata false", `{"metadata":false}`, 1, "metadata", "expected an object, found the boolean false"},
		{"reward of a record a string", `{"name":"a","messages":[],"reward":"high"}`, 1, "reward", `expected null, a finite number or an object, found the string "high"`},
		{"reward member of a record too large", record + "\n" + `{"name":"b","messages":[],"reward":{"acc":1e999}}`, 2, "reward.acc", "expected a finite number"},
		{"name null", `{"name":null,"messages":[]}`, 1, "name", "expected a non-empty string, unique in the file, found null"},
		{"name a list", `{"name":["a"],"messages":[]}`, 1, "name", `found the list ["a"]`},
		{"a record and a bare reward", record + "\n" + `{"reward":1}`, 2, "name", "found nothing"},
		{"not UTF-8", "{}\n\xff", 2, "", "expected UTF-8, found byte 0xff at offset 3"},
		{"too deep", `{"metadata":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}", 1, "", "depth"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := ParseOutput("out.json", []byte(tt.in))
			var oe *OutputError
			if !errors.As(err, &oe) {
				t.Fatalf("got %+v, %v; want an OutputError", out, err)
			}
			if oe.File != "out.json" || oe.Line != tt.line || oe.Field != tt.field || !strings.Contains(oe.Problem, tt.want) {
				t.Errorf("got %q, want line %d, field %q, %q", err, tt.line, tt.field, tt.want)
			}
		})
	}
}

func TestOutputErrorText(t *testing.T) {
	_, err := ParseOutput("session_output.json", []byte(`{"name":"a","messages":{}}`))
	want := `session_output.json line 1, record "a": field messages: expected a list of messages, found the object {}`
	if err == nil || err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// TestOutputErrorsNameTheRecord: once a record's name is known, errors of its other fields have it.
func TestOutputErrorsNameTheRecord(t *testing.T) {
	for in, want := range map[string]string{
		`{"name":"a","messages":[]}` + "\n" + `{"name":"b","messages":[],"tools":{}}`: `f line 2, record "b": field tools: `,
		`{"name":"a","messages":[]}` + "\n" + `{"name":"","messages":[]}`:             `f line 2: field name: `,
		`{"name":"a","messages":[]}` + "\n" + `{`:                                     `f line 2: expected one JSON object`,
	} {
		if _, err := ParseOutput("f", []byte(in)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\ngot  %v\nwant %s…", in, err, want)
		}
	}
}

func TestRewardValue(t *testing.T) {
	tests := []struct {
		raw, key string
		want     float64
		err      string
	}{
		{"0.25", "", 0.25, ""},
		{"2", "acc", 2, ""},
		{"true", "", 1, ""},
		{`{"acc":0.5}`, "acc", 0.5, ""},
		{`{"ok":true}`, "ok", 1, ""},
		{`{"acc":1,"b":2}`, "", 0, "option reward_key must name the one"},
		{`{"b":1,"a":2}`, "acc", 0, `no member "acc" (option reward_key); it has members a, b`},
		{`{}`, "acc", 0, "no members"},
		{`{"acc":null}`, "acc", 0, "found null"},
		{`{"acc":"1"}`, "acc", 0, `found the string "1"`},
	}
	for _, tt := range tests {
		t.Run(tt.raw+" "+tt.key, func(t *testing.T) {
			r, _, err := ParseReward(json.RawMessage(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Value(tt.key)
			if tt.err == "" && (err != nil || got != tt.want) {
				t.Errorf("Value = %v, %v, want %v", got, err, tt.want)
			}
			if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("err = %v, want %q", err, tt.err)
			}
		})
	}
	if _, _, err := ParseReward(nil); err == nil {
		t.Error("ParseReward of nothing: want an error")
	}
	if _, _, err := ParseReward(json.RawMessage(`{"a":`)); err == nil {
		t.Error("ParseReward of broken JSON: want an error")
	}
}

func FuzzParseOutput(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "[]", "1", "null", `{"reward":1e999}`, `{"reward":{"a":true},"metadata":{}}`,
		`{"name":"a","messages":[]}`, "{\"name\":\"a\",\"messages\":[]}\n{\"name\":\"b\",\"messages\":[{}],\"reward\":-0}",
		"{\n", "\uFEFF{}", "\xff", "{\"name\":\"\\ud800\",\"messages\":[],\"x\":1}", "{}\n{}", "{ \"reward\" : \n NaN }",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := ParseOutput("f", data)
		if err != nil {
			var oe *OutputError
			if !errors.As(err, &oe) || oe.Line < 1 || oe.Problem == "" {
				t.Fatalf("error without a place: %v", err)
			}
			return
		}
		if out.Explicit != (len(out.Records) > 0) || (out.Explicit && (out.Metadata != nil || out.Reward != nil)) {
			t.Fatalf("explicit and implicit are mixed: %+v", out)
		}
		names := map[string]bool{}
		rewards := []*Reward{out.Reward}
		for _, r := range out.Records {
			if r.Name == "" || names[r.Name] {
				t.Fatalf("name %q is empty or used twice", r.Name)
			}
			names[r.Name] = true
			for _, raw := range []json.RawMessage{r.Messages, r.Tools, r.ChatTemplateKwargs, r.Metadata} {
				if raw != nil && !json.Valid(raw) {
					t.Fatalf("field is not JSON: %q", raw)
				}
			}
			rewards = append(rewards, r.Reward)
		}
		for _, r := range rewards {
			if r == nil {
				continue
			}
			if v, err := r.Value(""); err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
				t.Fatalf("reward %s is %v", r.Raw, v)
			}
		}
	})
}
