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

// completeLen against its meaning: what it holds back, and nothing else, some bytes can complete.
func TestCompleteLen(t *testing.T) {
	for raw, want := range map[string]int{
		"": 0, "a": 1, "é": 2, "\xc3": 0, "a\xe4": 1, "a\xe4\xbd": 1, "\xf0\x9f\x98": 0, "😀": 4, "a\xf0\x9f\x98\x80": 5,
		"\x80": 1, "\x80\x80\x80": 3, "\xed\xa0": 2, "\xf5": 1, "\xc0": 1, "\xf0\x80": 2, "\xe4\xbd\xc3": 2, "\xf4\x90": 2,
	} {
		if got := completeLen([]byte(raw)); got != want {
			t.Errorf("completeLen(%q) = %d, want %d", raw, got, want)
		}
	}
}
