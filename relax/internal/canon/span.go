package canon

import (
	"bytes"
	"errors"
	"fmt"
)

// WalkMembers calls fn with every key, in order, of the JSON object raw and the index where its
// value starts; fn returns the index after the value, which [SkipValue] finds. Spans are found
// by quotes and brackets alone: what lies inside is not checked, so a span must be parsed (or be
// equal to one parsed before) ere it is trusted. Repeated keys are reported each time.
func WalkMembers(raw []byte, fn func(key string, at int) (end int, err error)) error {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '{' {
		return spanError(i, "expected an object")
	}
	i = skipSpace(raw, i+1)
	if i < len(raw) && raw[i] == '}' {
		return endsAt(raw, i+1)
	}
	for {
		keyEnd, err := skipString(raw, i)
		if err != nil {
			return err
		}
		key, err := spanKey(raw, i, keyEnd)
		if err != nil {
			return err
		}
		i = skipSpace(raw, keyEnd)
		if i >= len(raw) || raw[i] != ':' {
			return spanError(i, "expected ':'")
		}
		end, err := fn(key, skipSpace(raw, i+1))
		if err != nil {
			return err
		}
		i = skipSpace(raw, end)
		if i < len(raw) && raw[i] == '}' {
			return endsAt(raw, i+1)
		}
		if i >= len(raw) || raw[i] != ',' {
			return spanError(i, "expected ',' or '}'")
		}
		i = skipSpace(raw, i+1)
	}
}

// SkipValue returns the index after the value that starts at raw[at]. The value is as
// unchecked as the spans of [WalkMembers].
func SkipValue(raw []byte, at int) (end int, err error) { return skipValue(raw, at) }

func spanError(at int, text string) error {
	return fmt.Errorf("invalid JSON at byte %d: %s", at, text)
}

// errOpen is an array, object or string that the text does not close.
var errOpen = errors.New("invalid JSON: the text ends inside a value")

func endsAt(raw []byte, i int) error {
	if i = skipSpace(raw, i); i != len(raw) {
		return spanError(i, "unexpected text after the value")
	}
	return nil
}

func spanKey(raw []byte, start, end int) (string, error) {
	p := parser{text: string(raw[start:end])}
	key, err := p.string()
	if err != nil {
		return "", fmt.Errorf("key at byte %d: %w", start, err)
	}
	return key, nil
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\r' || raw[i] == '\t') {
		i++
	}
	return i
}

// skipValue returns the end of the value that starts at i.
func skipValue(raw []byte, i int) (int, error) {
	if i >= len(raw) {
		return 0, errOpen
	}
	switch raw[i] {
	case '"':
		return skipString(raw, i)
	case '{', '[':
		return skipNested(raw, i)
	case ',', ':', '}', ']':
		return 0, spanError(i, "expected a value")
	}
	start := i
	for i < len(raw) && !endsScalar(raw[i]) {
		i++
	}
	if i == start {
		return 0, spanError(i, "expected a value")
	}
	return i, nil
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\r', '\t', ':', '"', '{', '[':
		return true
	}
	return false
}

// skipNested returns the end of the array or object that starts at i. Brackets are counted
// without regard to their shape; parsing the span finds a mismatch.
func skipNested(raw []byte, i int) (int, error) {
	depth := 0
	for i < len(raw) {
		switch raw[i] {
		case '"':
			end, err := skipString(raw, i)
			if err != nil {
				return 0, err
			}
			i = end
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1, nil
			}
		}
		i++
	}
	return 0, errOpen
}

// skipString returns the end of the string literal that starts at i. It jumps from quote to
// quote, so long strings cost little.
func skipString(raw []byte, i int) (int, error) {
	if i >= len(raw) || raw[i] != '"' {
		return 0, spanError(i, "expected a string")
	}
	from := i + 1
	for {
		n := bytes.IndexByte(raw[from:], '"')
		if n < 0 {
			return 0, errOpen
		}
		quote := from + n
		slashes := 0
		for quote-1-slashes > i && raw[quote-1-slashes] == '\\' {
			slashes++
		}
		from = quote + 1
		if slashes%2 == 0 {
			return from, nil
		}
	}
}
