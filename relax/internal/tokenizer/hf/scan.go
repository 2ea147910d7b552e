package hf

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// A scanner walks JSON of tens of megabytes without building anything from what nobody asks
// for. It checks only as much as it needs to keep its place: the native library parses the
// whole file and reports what is malformed elsewhere.
type scanner struct {
	data []byte
	at   int
}

// fail returns an error with the place.
func (s *scanner) fail(expected string) error {
	if s.at >= len(s.data) {
		return fmt.Errorf("the JSON ends at byte %d where %s is expected", len(s.data), expected)
	}
	return fmt.Errorf("byte %d is %q where %s is expected", s.at, s.data[s.at], expected)
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.data); s.at++ {
		switch s.data[s.at] {
		case ' ', '\n', '\r', '\t':
		default:
			return s.data[s.at]
		}
	}
	return 0
}

// take consumes the next byte after white space if it is c.
func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.at++
	return true
}

// quoted consumes a string and returns it with its quotes.
func (s *scanner) quoted() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.fail("a string")
	}
	start := s.at
	for at := start + 1; at < len(s.data); at++ {
		switch s.data[at] {
		case '"':
			s.at = at + 1
			return s.data[start:s.at], nil
		case '\\':
			at++ // whatever follows does not end the string
		}
	}
	s.at = len(s.data)
	return nil, s.fail("the end of a string")
}

// text consumes a string and returns what it says.
func (s *scanner) text() (string, error) {
	raw, err := s.quoted()
	if err != nil {
		return "", err
	}
	return unquote(raw)
}

func unquote(raw []byte) (string, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return text, err
}

// value consumes any value and returns its bytes.
func (s *scanner) value() ([]byte, error) {
	s.peek()
	start := s.at
	for depth := 0; ; {
		switch s.peek() {
		case 0:
			return nil, s.fail("a value")
		case '"':
			if _, err := s.quoted(); err != nil {
				return nil, err
			}
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case ',', ':':
			if depth == 0 {
				return nil, s.fail("a value")
			}
			s.at++
			continue
		default:
			s.literal()
		}
		if depth < 0 {
			s.at--
			return nil, s.fail("a value")
		}
		if depth == 0 {
			return s.data[start:s.at], nil
		}
	}
}

// literal consumes a number, true, false or null.
func (s *scanner) literal() {
	for ; s.at < len(s.data); s.at++ {
		switch s.data[s.at] {
		case ',', ':', ']', '}', '[', '{', '"', ' ', '\n', '\r', '\t':
			return
		}
	}
}

// number consumes an id.
func (s *scanner) number() (int32, error) {
	s.peek()
	start := s.at
	n, negative := int64(0), s.take('-')
	for ; s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9' && n <= 1<<31; s.at++ {
		n = n*10 + int64(s.data[s.at]-'0')
	}
	if digits := s.at - start; digits == 0 || negative && digits == 1 || n > 1<<31-1 {
		return 0, s.fail("an id below 2147483648")
	}
	if negative {
		n = -n
	}
	return int32(n), nil
}

// list consumes what lies between two brackets and calls item at the start of each item.
func (s *scanner) list(open, end byte, item func() error) error {
	if !s.take(open) {
		return s.fail(fmt.Sprintf("%q", open))
	}
	if s.take(end) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.take(end) {
			return nil
		}
		if !s.take(',') {
			return s.fail(fmt.Sprintf("a comma or %q", end))
		}
	}
}

// object consumes an object and calls member for each name, which must consume the value.
func (s *scanner) object(member func(name string) error) error {
	return s.list('{', '}', func() error {
		name, err := s.text()
		if err != nil {
			return err
		}
		if !s.take(':') {
			return s.fail("a colon")
		}
		return member(name)
	})
}

// members returns the values of an object by name, the last one where a name comes twice.
func members(data []byte) (map[string][]byte, error) {
	s := &scanner{data: data}
	values := map[string][]byte{}
	err := s.object(func(name string) (err error) {
		values[name], err = s.value()
		return err
	})
	return values, err
}

// absent says whether a value is missing or null.
func absent(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }
