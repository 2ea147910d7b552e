package hf

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

func TestMembersRefuseWhatIsNoObject(t *testing.T) {
	for _, data := range []string{"", "{", `{"a"`, `{"a":`, `{"a":[1,"b\"]}`, `{"a":1 "b":2}`, `{"a":}`, `{"a":,}`, `[]`} {
		if values, err := members([]byte(data)); err == nil {
			t.Errorf("members(%q) = %q", data, values)
		}
	}
}

func TestVocabularyIDs(t *testing.T) {
	for text, want := range map[string]int32{"0": 0, " 12 ": 12, "2147483647": 1<<31 - 1, "-5": -5} {
		if ids, _, err := modelVocab([]byte(`{"a":` + text + `}`)); err != nil || ids["a"] != want {
			t.Errorf("id %q is %d, %v; want %d", text, ids["a"], err, want)
		}
	}
	for _, text := range []string{"-", "x", "1.5", "2147483648", "99999999999999999999", `"1"`} {
		if ids, _, err := modelVocab([]byte(`{"a":` + text + `}`)); err == nil || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("id %q: %v, %v", text, ids, err)
		}
	}
}

// FuzzMembers: of whatever encoding/json reads as an object, the scanner finds the same parts.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{
		`{}`, ` { "a" : [1, {"b": "]}"}, null] , "c\"\\d": -1.5e+7 }`, `{"a":"\u00e9\\","a":{}}`, `{"":[[],[[]]],"x":true}`, "{\"\\ud83d\\ude00\":\n0}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := members(data)
		var want map[string]json.RawMessage
		if !utf8.Valid(data) || json.Unmarshal(data, &want) != nil || want == nil {
			return // all that counts is that nothing panicked
		}
		for name := range want { // encoding/json takes a lone surrogate in a name, the native library does not
			if strings.Contains(name, "\uFFFD") && !bytes.Contains(data, []byte("\uFFFD")) && err != nil {
				return
			}
		}
		if err != nil || len(got) != len(want) {
			t.Fatalf("members(%q) = %q, %v; want %q", data, got, err, want)
		}
		for name, value := range want {
			if string(got[name]) != string(value) {
				t.Fatalf("members(%q)[%q] = %q, want %q", data, name, got[name], value)
			}
		}
	})
}

func TestWithAddedChangesNothingElse(t *testing.T) {
	list := []tokenizer.AddedToken{{ID: 3, Content: "<é>", LStrip: true}}
	const added = `[{"id":3,"content":"\u003cé\u003e","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":false}]`
	for data, want := range map[string]string{
		" {\"b\" : 1.0,\n\"added_tokens\" : [ {\"x\":[]} ] , \"a\":{ } }": " {\"b\" : 1.0,\n\"added_tokens\" : " + added + " , \"a\":{ } }",
		`{"b":1,"added_tokens":null}`:                                     `{"b":1,"added_tokens":` + added + `}`,
		`{"b":1}`:                                                         `{"added_tokens":` + added + `,"b":1}`,
		`{"added_tokens":[], "c":[{}]}`:                                   `{"added_tokens":` + added + `, "c":[{}]}`,
	} {
		doc, err := newDocument([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := doc.withAdded(list); err != nil || string(got) != want {
			t.Errorf("withAdded of %s = %s, %v; want %s", data, got, err, want)
		}
	}
}
