package tokenizer

import "testing"

func TestInvalidAt(t *testing.T) {
	for text, want := range map[string]int{
		"": -1, "a\x00é你😀": -1, "\uFFFD": -1,
		"\xff": 0, "ab\x80": 2, "\uFFFD\xe4\xbd": 3, "x\xed\xa0\x80": 1, "\xc0\x80": 0,
	} {
		if got := InvalidAt(text); got != want {
			t.Errorf("InvalidAt(%q) = %d, want %d", text, got, want)
		}
	}
}
