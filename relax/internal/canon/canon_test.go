package canon

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
)

func mustParse(t testing.TB, text string) Value {
	t.Helper()
	v, err := ParseValue([]byte(text))
	if err != nil {
		t.Fatalf("ParseValue(%s): %v", text, err)
	}
	return v
}

func TestSpellings(t *testing.T) {
	tests := []struct{ name, in, canonical, template string }{
		{"sorted keys", `{"b":1,"a":{"z":true,"y":null}}`, `{"a":{"y":null,"z":true},"b":1}`, `{"b": 1, "a": {"z": true, "y": null}}`},
		{"lists", ` [ 1 , "x" ,[] ,{} ] `, `[1,"x",[],{}]`, `[1, "x", [], {}]`},
		{"last duplicate wins, first place stays", `{"a":1,"b":2,"a":3}`, `{"a":3,"b":2}`, `{"a": 3, "b": 2}`},
		{"float and int differ", `[1,1.0,-0,-0.0,1e2]`, `[1,1.0,0,-0.0,100.0]`, `[1, 1.0, 0, -0.0, 100.0]`},
		{"big int verbatim", `12345678901234567890123`, `12345678901234567890123`, `12345678901234567890123`},
		{"repr edges", `[1e16,123456789012345.6e1,1e-4,1e-5,0.1,1e20,1e-07,1.7976931348623157e308,5e-324]`,
			`[1e+16,1234567890123456.0,0.0001,1e-05,0.1,1e+20,1e-07,1.7976931348623157e+308,5e-324]`,
			`[1e+16, 1234567890123456.0, 0.0001, 1e-05, 0.1, 1e+20, 1e-07, 1.7976931348623157e+308, 5e-324]`},
		{"escapes", `"\u0022\\\/\b\f\n\r\t\u0001\u007f\u2028<&>\u00e9\ud83d\ude00中"`,
			"\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\u007f\u2028<&>é😀中\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\u007f\u2028<&>é😀中\""},
		{"keys sort by code point", `{"\ud83d\ude00":1,"\uffee":2,"Z":3,"a":4}`, "{\"Z\":3,\"a\":4,\"\uffee\":2,\"😀\":1}", "{\"😀\": 1, \"\uffee\": 2, \"Z\": 3, \"a\": 4}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := mustParse(t, tt.in)
			if got := string(v.AppendCanonical(nil)); got != tt.canonical {
				t.Errorf("canonical\n got %s\nwant %s", got, tt.canonical)
			}
			if got := string(v.AppendTemplate(nil)); got != tt.template {
				t.Errorf("template\n got %s\nwant %s", got, tt.template)
			}
			again := mustParse(t, string(v.AppendTemplate(nil)))
			if !again.Equal(v) {
				t.Errorf("reading the template spelling back gives another value")
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", MaxDepth+2) + strings.Repeat("]", MaxDepth+2)
	for _, in := range []string{
		``, ` `, `nul`, `tru`, `{`, `[`, `[1`, `[1,`, `[1,]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `"`, `"\`, `"\u12`, `"\x"`,
		`01`, `1.`, `.5`, `1e`, `-`, `+1`, `1 2`, `NaN`, `Infinity`, `-Infinity`, `1e999`, `-1e999`,
		"\"\x01\"", "\"a\nb\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\\n\xff\"", "{\"\xff\":1}",
		`"\ud800"`, `"\udc00"`, `"\ud800\u0041"`, `"\ud800x"`, `"a\ud83d"`, `{"\ud800":1}`, deep,
	} {
		if v, err := ParseValue([]byte(in)); err == nil {
			t.Errorf("ParseValue(%.40q) = %s, want an error", in, v.AppendCanonical(nil))
		}
	}
	if _, err := ParseValue([]byte(strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth))); err != nil {
		t.Errorf("depth %d: %v", MaxDepth, err)
	}
}

func TestValueEqual(t *testing.T) {
	tests := []struct {
		a, b  string
		equal bool
	}{
		{`{"a":1,"b":[1,{"x":null}]}`, `{"b":[1,{"x":null}],"a":1}`, true},
		{`1`, `1.0`, false},
		{`1`, `true`, false},
		{`1.0`, `10e-1`, true},
		{`0`, `-0`, true},
		{`[1,2]`, `[2,1]`, false},
		{`[]`, `{}`, false},
		{`null`, `false`, false},
		{`{"a":1}`, `{"a":2}`, false},
		{`{"a":1}`, `{"b":1}`, false},
		{`{"a":1}`, `{"a":1,"b":1}`, false},
		{`"1"`, `1`, false},
	}
	for _, tt := range tests {
		a, b := mustParse(t, tt.a), mustParse(t, tt.b)
		if a.Equal(b) != tt.equal || b.Equal(a) != tt.equal {
			t.Errorf("%s and %s: Equal is %v", tt.a, tt.b, a.Equal(b))
		}
		if same := string(a.AppendCanonical(nil)) == string(b.AppendCanonical(nil)); same != tt.equal {
			t.Errorf("%s and %s: canonical texts agree: %v", tt.a, tt.b, same)
		}
	}
}

func TestManyKeys(t *testing.T) {
	var b strings.Builder
	b.WriteByte('{')
	for i := range 1000 {
		b.WriteString(`"k` + strconv.Itoa(i) + `":0,`)
	}
	b.WriteString(`"k7":1}`)
	v := mustParse(t, b.String())
	if len(v.Members()) != 1000 || v.Members()[7].Value.Str() != "1" {
		t.Errorf("got %d members, k7 = %s", len(v.Members()), v.Members()[7].Value.Str())
	}
}

func TestAccessors(t *testing.T) {
	v := mustParse(t, `{"s":"x","i":3,"f":3.0,"b":true,"n":null,"a":[1],"o":{}}`)
	types := map[string]string{"s": "str", "i": "int", "f": "float", "b": "bool", "n": "NoneType", "a": "list", "o": "dict"}
	for key, want := range types {
		got, ok := v.Get(key)
		if !ok || got.TypeName() != want {
			t.Errorf("%s: type %s, want %s", key, got.TypeName(), want)
		}
	}
	if _, ok := v.Get("absent"); ok {
		t.Error("absent key found")
	}
	i, _ := v.Get("i")
	f, _ := v.Get("f")
	if n, ok := i.Int64(); !ok || n != 3 {
		t.Errorf("Int64 = %d, %v", n, ok)
	}
	if _, ok := f.Int64(); ok {
		t.Error("a float gave an Int64")
	}
	if x, ok := f.Float64(); !ok || x != 3 {
		t.Errorf("Float64 = %v, %v", x, ok)
	}
	built := ObjectOf(Member{"s", StringValue("x")}, Member{"i", IntValue(3)}, Member{"f", FloatValue(3)},
		Member{"b", BoolValue(true)}, Member{"n", Value{}}, Member{"a", ArrayOf(IntValue(1))}, Member{"o", ObjectOf()})
	if !built.Equal(v) {
		t.Errorf("built %s", built.AppendCanonical(nil))
	}
}

func TestCanonicalArguments(t *testing.T) {
	accepted := []struct{ in, want string }{
		{`{"c":"d","a":"b"}`, `{"a":"b","c":"d"}`},
		{`{"a": "b", "c": "d"}`, `{"a":"b","c":"d"}`},
		{`{"n":{"z":1,"a":[2,{"y":3,"x":4}]}}`, `{"n":{"a":[2,{"x":4,"y":3}],"z":1}}`},
		{`{"a":2.0}`, `{"a":2}`},
		{`{"a":"\u4e2d"}`, `{"a":"中"}`},
		{`{"a":-0.0,"b":1e3,"c":9007199254740991.0,"d":9007199254740992.0,"e":1e20,"f":0.5}`,
			`{"a":0,"b":1000,"c":9007199254740991,"d":9007199254740992.0,"e":1e+20,"f":0.5}`},
		{`{}`, `{}`},
		{` {"a":1} `, `{"a":1}`},
	}
	for _, tt := range accepted {
		for name, v := range map[string]Value{"string": StringValue(tt.in), "object": mustParse(t, tt.in)} {
			got, err := CanonicalArguments(v)
			if err != nil || got != tt.want {
				t.Errorf("%s %s: got %s, %v; want %s", name, tt.in, got, err, tt.want)
			}
		}
	}
	for _, in := range []string{`{"a":1,"a":2}`, `{"n":{"a":1,"a":1}}`, `{"a":NaN}`, `{"a":Infinity}`, `{"n":[-Infinity]}`,
		`{"a":1e999}`, `{"a":1`, `[]`, `"x"`, `3`, `null`, `{"a":"\ud800"}`, ``} {
		if got, err := CanonicalArguments(StringValue(in)); err == nil {
			t.Errorf("%s: got %s, want an error", in, got)
		}
	}
	for _, v := range []Value{{}, IntValue(1), ArrayOf(), BoolValue(true)} {
		if got, err := CanonicalArguments(v); err == nil {
			t.Errorf("%s: got %s, want an error", v.TypeName(), got)
		}
	}
}

// The vectors of reference session service 3.2 that our message model can express.
func TestReferenceHash(t *testing.T) {
	text := "d"
	thinking := mustParse(t, `{"enable_thinking":false}`)
	user := func(s string) []*Message { return []*Message{NewMessage(Message{Role: User, Content: s})} }
	dialogue := []*Message{
		NewMessage(Message{Role: System, Content: "You are concise."}), NewMessage(Message{Role: User, Content: "你好"}),
		NewMessage(Message{Role: Assistant, Content: "Hello."}), NewMessage(Message{Role: User, Content: "Use tools when needed."})}
	query := mustParse(t, `{"type":"object","required":["query"],"properties":{"query":{"type":"string"}}}`)
	numbers := mustParse(t, `{"type":"object","properties":{"n":{"type":"number","minimum":0.0,"maximum":1e20,"default":0.1,"multipleOf":1e-07}}}`)
	tests := []struct {
		name     string
		messages []*Message
		tools    []ToolSpec
		kwargs   Value
		want     string
	}{
		{"empty", nil, nil, Value{}, "26d60f342de6e843c9fd1759679a83d219fa4751ce1ccf5acd33d64de8db43db"},
		{"kwargs only", nil, nil, thinking, "dce5c558dfb5a494312f265b3fee6a851b106ce63841ba161603b5ccd7be0cb1"},
		{"hi", user("hi"), nil, ObjectOf(), "78a03b4dad09c18a50c1b1730a4d8b38bde22c7dce5659cbe1cfe2d930734d15"},
		{"numbers", user("x"), []ToolSpec{NewToolSpec("f", &text, numbers)}, mustParse(t, `{"enable_thinking":true,"a":1.0}`),
			"9dd05530a92ee3acb670cf9aa3aac51ef200fb2182a3f950e815d59b769a9a66"},
		{"escapes", user("q\"\\/\b\f\n\r\t\x01\x7f\u2028<&>é😀"), nil, ObjectOf(),
			"f249af6809bbb746edcc7c02452f87fdd5971e73515c498f648f21901185bd9b"},
		{"text", dialogue, []ToolSpec{NewToolSpec("search", nil, query)}, thinking,
			"a00bb147c18e3f4adb70a741b72796b5badc929c0593b5066d42ff06c21bcd16"},
		{"text_blocks", user("What is 2 + 3?"), nil, thinking, "ec281e76b19fd0ec4ce8c0b295977c5d477bc3de77402d5d02169c99767e00eb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ReferenceHash(tt.messages, tt.tools, tt.kwargs); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestMessageIdentity(t *testing.T) {
	base := Message{Role: Assistant, Content: "c", Reasoning: "r", ToolCalls: []ToolCall{{ID: "1", Name: "f", Arguments: "{}"}}}
	a, b := NewMessage(base), NewMessage(base)
	if a == b || !a.Equal(b) || a.Hash() != b.Hash() {
		t.Fatal("two messages of the same fields must be equal")
	}
	changes := map[string]func(*Message){
		"role":      func(m *Message) { m.Role = User },
		"content":   func(m *Message) { m.Content = "d" },
		"reasoning": func(m *Message) { m.Reasoning = "" },
		"call id":   func(m *Message) { m.ToolCalls = []ToolCall{{ID: "2", Name: "f", Arguments: "{}"}} },
		"name":      func(m *Message) { m.ToolCalls = []ToolCall{{ID: "1", Name: "g", Arguments: "{}"}} },
		"arguments": func(m *Message) { m.ToolCalls = []ToolCall{{ID: "1", Name: "f", Arguments: `{"a":1}`}} },
		"no calls":  func(m *Message) { m.ToolCalls = nil },
		"answer id": func(m *Message) { m.ToolCallID = "1" },
	}
	for name, change := range changes {
		other := base
		change(&other)
		if o := NewMessage(other); a.Equal(o) || o.Equal(a) || a.Hash() == o.Hash() {
			t.Errorf("%s: a change of it is not seen", name)
		}
	}
	// Clients trim reasoning that they send back (qwen-code does).
	for _, spaced := range []string{"\nr\n", " r", "r\u2028"} {
		other := base
		other.Reasoning = spaced
		if o := NewMessage(other); !a.Equal(o) || o.Reasoning != "r" {
			t.Errorf("reasoning %q is another message", spaced)
		}
	}
	// Equal hashes alone do not make messages equal.
	forged := NewMessage(Message{Role: User, Content: "other"})
	forged.hash = a.hash
	if a.Equal(forged) {
		t.Error("messages with a colliding hash are taken for equal")
	}
	var none *Message
	if none.Equal(a) || a.Equal(none) || !none.Equal(nil) {
		t.Error("nil messages")
	}
	if m := NewMessage(Message{Role: Assistant, Content: "a\xff\xfeb", Reasoning: "\xff"}); m.Content != "a\uFFFDb" || m.Reasoning != "\uFFFD" {
		t.Errorf("bad UTF-8 kept: %q %q", m.Content, m.Reasoning)
	}
}

func TestStateChain(t *testing.T) {
	tool := func(schema string) ToolSpec { return NewToolSpec("f", nil, mustParse(t, schema)) }
	a, b := tool(`{"x":1,"y":2}`), tool(`{"y":2,"x":1}`)
	kw := mustParse(t, `{"p":1,"q":true}`)
	root := RootState([]ToolSpec{a}, kw)
	if RootState([]ToolSpec{b}, mustParse(t, `{"q":true,"p":1}`)) != root {
		t.Error("key order takes part in identity")
	}
	if !EqualTools([]ToolSpec{a}, []ToolSpec{b}) {
		t.Error("tools that differ in key order must be equal")
	}
	if literal := (ToolSpec{Name: "f", Parameters: a.Parameters}); RootState([]ToolSpec{literal}, kw) != root {
		t.Error("a tool not built with NewToolSpec has another identity")
	}
	one, real := mustParse(t, `{"p":1.0,"q":true}`), mustParse(t, `{"p":true,"q":true}`)
	states := map[State]string{root: "base"}
	for name, s := range map[string]State{
		"no tools":   RootState(nil, kw),
		"two tools":  RootState([]ToolSpec{a, a}, kw),
		"float":      RootState([]ToolSpec{a}, one),
		"bool":       RootState([]ToolSpec{a}, real),
		"no kwargs":  RootState([]ToolSpec{a}, ObjectOf()),
		"one more":   root.Next(NewMessage(Message{Role: User, Content: "x"})),
		"other text": root.Next(NewMessage(Message{Role: User, Content: "y"})),
	} {
		if other, taken := states[s]; taken {
			t.Errorf("%s and %s have one state", name, other)
		}
		states[s] = name
	}
}

func TestMergeKwargs(t *testing.T) {
	got := MergeKwargs(mustParse(t, `{"z":{"b":1,"a":[{"d":1,"c":2}]},"x":1}`), mustParse(t, `{"x":2.0,"a":null}`))
	if text := string(got.AppendCompact(nil)); text != `{"a":null,"x":2.0,"z":{"a":[{"c":2,"d":1}],"b":1}}` {
		t.Errorf("got %s", text)
	}
	if empty := MergeKwargs(Value{}, Value{}); empty.Kind() != Object {
		t.Error("nothing over nothing must be an object")
	}
}

// eachMember calls fn with the keys and raw values of an object.
func eachMember(raw []byte, fn func(key string, value []byte) error) error {
	return WalkMembers(raw, func(key string, at int) (int, error) {
		end, err := SkipValue(raw, at)
		if err != nil {
			return 0, err
		}
		return end, fn(key, raw[at:end])
	})
}

// eachElem calls fn with the elements of an array as a request's messages are found.
func eachElem(raw []byte, fn func(index int, elem []byte) error) error {
	at := skipSpace(raw, 0)
	if at >= len(raw) || raw[at] != '[' {
		return spanError(at, "expected an array")
	}
	var none *Cache // builds everything
	_, end, err := readMessages(none, raw, at, func(index int, elem []byte) (*Message, error) {
		return NewMessage(Message{}), fn(index, elem)
	})
	if err != nil {
		return err
	}
	return endsAt(raw, end)
}

func TestSpans(t *testing.T) {
	var got []string
	err := eachMember([]byte(` { "a" : [1,"]\"}"] , "b\n":{"c":"}"},"d":-1.5e3 ,"a":null } `), func(key string, raw []byte) error {
		got = append(got, key+"="+string(raw))
		return nil
	})
	if want := "a=[1,\"]\\\"}\"]|b\n={\"c\":\"}\"}|d=-1.5e3|a=null"; err != nil || strings.Join(got, "|") != want {
		t.Errorf("got %q, %v", strings.Join(got, "|"), err)
	}
	got = nil
	err = eachElem([]byte(`[ "a\\" ,[[]],{} , 1]`), func(_ int, raw []byte) error {
		got = append(got, string(raw))
		return nil
	})
	if want := `"a\\"|[[]]|{}|1`; err != nil || strings.Join(got, "|") != want {
		t.Errorf("got %q, %v", strings.Join(got, "|"), err)
	}
	for _, in := range []string{``, `[`, `{`, `{"a"`, `{"a":`, `{"a":}`, `{"a":1`, `{"a":1,}`, `{,}`, `{"a":"x}`, `{} x`, `[1,]`, `[,]`, `[[]`, `[1 2]`, `[] ]`, `{"\ud800":1}`} {
		each := func(string, []byte) error { return nil }
		elem := func(int, []byte) error { return nil }
		if eachMember([]byte(in), each) == nil || eachElem([]byte(in), elem) == nil {
			t.Errorf("%q: accepted", in)
		}
	}
}

// FuzzParseValue checks the parser against encoding/json: what it accepts the library accepts,
// with the same meaning, and spellings read back to the same value.
func FuzzParseValue(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.5,"x\n\ud83d\ude00",null,true]}`, `"\ud800"`, `1e999`, `[[[]]]`, "\"\xff\"", `{"a":1,"a":2}`, `-0`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := ParseValue(raw)
		if err != nil {
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("accepted invalid JSON %q", raw)
		}
		for _, text := range [][]byte{v.AppendCanonical(nil), v.AppendTemplate(nil), v.AppendCompact(nil)} {
			again, err := ParseValue(text)
			if err != nil || !again.Equal(v) {
				t.Fatalf("%q spelled %q, read back with %v", raw, text, err)
			}
		}
		if n, ok := v.Float64(); ok && (math.IsInf(n, 0) || math.IsNaN(n)) && !v.IsInt() {
			t.Fatalf("%q is not finite", raw)
		}
		if args, err := CanonicalArguments(v); err == nil {
			twice, err := CanonicalArgumentsText(args)
			if err != nil || twice != args {
				t.Fatalf("arguments %q are not a fixed point: %q, %v", args, twice, err)
			}
		}
	})
}

// FuzzSpans checks that span walking agrees with the parser on valid text and never fails it.
func FuzzSpans(f *testing.F) {
	f.Add([]byte(`{"a":[1,"]\\"],"b":{}}`))
	f.Add([]byte(`[1,{"x":"\""}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		keys, elems := 0, 0
		memberErr := eachMember(raw, func(string, []byte) error { keys++; return nil })
		elemErr := eachElem(raw, func(int, []byte) error { elems++; return nil })
		v, err := ParseValue(raw)
		if err != nil {
			return
		}
		if v.Kind() == Object && (memberErr != nil || keys < len(v.Members())) {
			t.Fatalf("%q: %d keys, %v", raw, keys, memberErr)
		}
		if v.Kind() == Array && (elemErr != nil || elems != len(v.Elems())) {
			t.Fatalf("%q: %d elements, %v", raw, elems, elemErr)
		}
	})
}

func TestHoistSystem(t *testing.T) {
	say := func(role Role, text string) *Message { return NewMessage(Message{Role: role, Content: text}) }
	s1, s2, u, a := say(System, "s1"), say(System, "s2"), say(User, "u"), say(Assistant, "a")
	for _, c := range []struct {
		name       string
		given      []*Message
		want       []*Message
		sameMemory bool
	}{
		{"none", []*Message{u, a}, []*Message{u, a}, true},
		{"leading", []*Message{s1, u, a}, []*Message{s1, u, a}, true},
		{"later", []*Message{u, a, s2, u}, []*Message{s2, u, a, u}, false},
		{"both", []*Message{s1, u, s2, a}, []*Message{say(System, "s1\n\ns2"), u, a}, false},
		{"last", []*Message{u, s1}, []*Message{s1, u}, false},
	} {
		got := HoistSystem(c.given)
		if len(got) != len(c.want) {
			t.Fatalf("%s: %d messages, want %d", c.name, len(got), len(c.want))
		}
		for i := range got {
			if !got[i].Equal(c.want[i]) || got[i].Hash() != c.want[i].Hash() {
				t.Errorf("%s: message %d is %s %q, want %q", c.name, i, got[i].Role, got[i].Content, c.want[i].Content)
			}
		}
		if same := &got[0] == &c.given[0]; same != c.sameMemory {
			t.Errorf("%s: copied %v", c.name, !same)
		}
	}
}
