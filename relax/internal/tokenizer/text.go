package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// InvalidAt returns the offset of the first byte of text that is not valid UTF-8, -1 if all is.
func InvalidAt(text string) int {
	if utf8.ValidString(text) {
		return -1
	}
	for at, r := range text {
		if r != utf8.RuneError {
			continue
		}
		if _, size := utf8.DecodeRuneInString(text[at:]); size == 1 {
			return at
		}
	}
	return -1
}

// Text returns bytes as text, with U+FFFD for each maximal broken sequence (Unicode 3.9,
// "substitution of maximal subparts"). The standard library replaces byte by byte or run by
// run, neither of which agrees with Hugging Face on a text that ends within a character.
func Text(raw []byte) string {
	if utf8.Valid(raw) {
		return string(raw)
	}
	var out strings.Builder
	out.Grow(len(raw) + 8)
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		if r == utf8.RuneError && size == 1 {
			size = brokenLen(raw)
			out.WriteRune(utf8.RuneError)
		} else {
			out.Write(raw[:size])
		}
		raw = raw[size:]
	}
	return out.String()
}

// brokenLen returns how many bytes at the start of broken text are the beginning of one
// character, at least 1. FullRune is false for as long as more bytes could complete it.
func brokenLen(text []byte) int {
	n := 1
	for n < len(text) && !utf8.FullRune(text[:n+1]) {
		n++
	}
	return n
}

// completeLen returns how much of raw cannot change by bytes that follow: all but the
// beginning of a character at its end.
func completeLen(raw []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(raw); n++ {
		at := len(raw) - n
		if !utf8.RuneStart(raw[at]) {
			continue
		}
		if utf8.FullRune(raw[at:]) {
			return len(raw)
		}
		return at
	}
	return len(raw)
}
