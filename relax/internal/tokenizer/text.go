package tokenizer

import "unicode/utf8"

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
