package sglang

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"unsafe"
)

var errShape = errors.New("unexpected shape")

// A scanner walks JSON that was found valid. It never reads outside of it, and reports
// errShape when a value is not of the kind asked for.
type scanner struct {
	b []byte
	i int
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take consumes c if it is next.
func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.i++
	return true
}

// object calls field for each member with its raw key; field consumes the value.
func (s *scanner) object(field func(key []byte) error) error {
	if !s.take('{') {
		return errShape
	}
	if s.take('}') {
		return nil
	}
	for {
		key, err := s.str()
		if err != nil {
			return err
		}
		if !s.take(':') {
			return errShape
		}
		if err := field(key); err != nil {
			return err
		}
		if s.take(',') {
			continue
		}
		if s.take('}') {
			return nil
		}
		return errShape
	}
}

// array calls item for each element; item consumes it.
func (s *scanner) array(item func() error) error {
	if !s.take('[') {
		return errShape
	}
	if s.take(']') {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.take(',') {
			continue
		}
		if s.take(']') {
			return nil
		}
		return errShape
	}
}

// str consumes a string and returns what is between its quotes, escapes untouched.
func (s *scanner) str() ([]byte, error) {
	if !s.take('"') {
		return nil, errShape
	}
	start := s.i
	for {
		j := bytes.IndexByte(s.b[s.i:], '"')
		if j < 0 {
			return nil, errShape
		}
		end := s.i + j
		s.i = end + 1
		slashes := 0
		for end-slashes > start && s.b[end-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return s.b[start:end], nil
		}
	}
}

// raw consumes any value and returns its bytes.
func (s *scanner) raw() ([]byte, error) {
	c := s.peek()
	start := s.i
	switch c {
	case 0:
		return nil, errShape
	case '"':
		_, err := s.str()
		return s.b[start:s.i], err
	case '{', '[':
		err := s.nested()
		return s.b[start:s.i], err
	default:
		return s.word(), nil
	}
}

// nested consumes an object or array without looking into it.
func (s *scanner) nested() error {
	depth := 0
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '"':
			if _, err := s.str(); err != nil {
				return err
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.i++
		if depth == 0 {
			return nil
		}
	}
	return errShape
}

// word consumes a number or literal.
func (s *scanner) word() []byte {
	s.peek()
	start := s.i
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ',', '}', ']', ' ', '\t', '\n', '\r', ':', '"', '{', '[':
			return s.b[start:s.i]
		}
		s.i++
	}
	return s.b[start:]
}

// id consumes a token id.
func (s *scanner) id() (int32, error) {
	s.peek()
	start, v := s.i, int64(0)
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		v = v*10 + int64(s.b[s.i]-'0')
		if v > math.MaxInt32 {
			return 0, errShape
		}
		s.i++
	}
	if s.i == start {
		return 0, errShape
	}
	if s.i < len(s.b) && (s.b[s.i] == '.' || s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		return 0, errShape
	}
	return int32(v), nil
}

// float consumes a number, or null as NaN, which is how servers write it.
func (s *scanner) float() (float32, error) {
	w := s.word()
	if len(w) == 0 {
		return 0, errShape
	}
	if w[0] == 'n' {
		return float32(math.NaN()), nil
	}
	if v, ok := quickFloat(w); ok {
		return v, nil
	}
	v, err := strconv.ParseFloat(unsafe.String(&w[0], len(w)), 32)
	if err != nil {
		return 0, errShape
	}
	return float32(v), nil
}

// powersOfTen are those a float64 holds exactly.
var powersOfTen = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// quickFloat reads a plain decimal number, as log probabilities are, for which float64
// arithmetic surely rounds to the nearest float32. Servers print float32 values with the 17
// digits of a float64, which is the slow case of strconv.
func quickFloat(w []byte) (float32, bool) {
	i, negative := 0, w[0] == '-'
	if negative {
		i = 1
	}
	var digits uint64
	first, point := i, -1
	for ; i < len(w); i++ {
		switch c := w[i]; {
		case c-'0' <= 9:
			digits = digits*10 + uint64(c-'0')
		case c == '.' && point < 0:
			point = i
		default:
			return 0, false
		}
	}
	behind := 0
	if point >= 0 {
		behind = len(w) - point - 1
	}
	if n := i - first; n > 19 || n == 0 { // with a point 18 digits, which uint64 holds
		return 0, false
	}
	v := float64(digits) / powersOfTen[behind]
	// v is off by at most two units of its last place. Only next to the middle between two float32
	// values can that change which one is nearest.
	const below, margin = 1<<29 - 1, 4
	bits := math.Float64bits(v)
	if off := int64(bits&below) - 1<<28; off >= -margin && off <= margin || v < 1e-30 && v != 0 || v > math.MaxFloat32/2 {
		return 0, false
	}
	if negative {
		v = -v
	}
	return float32(v), true
}

// count consumes an integer ≥ 0; anything else counts as absent (-1).
func (s *scanner) count() (int, error) {
	raw, err := s.raw()
	if err != nil {
		return -1, err
	}
	n, err := strconv.Atoi(string(raw))
	if err != nil || n < 0 {
		return -1, nil
	}
	return n, nil
}
