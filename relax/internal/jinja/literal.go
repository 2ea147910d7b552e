package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// number reads an integer or a float. An integer followed by ".name" stays an integer.
func (lx *lexer) number() error {
	rest := lx.src[lx.pos:]
	if len(rest) > 2 && rest[0] == '0' && strings.IndexByte("xXoObB", rest[1]) >= 0 {
		n := 2
		for n < len(rest) && (rest[n] == '_' || isHex(rest[n])) {
			n++
		}
		if _, ok := new(big.Int).SetString(rest[:n], 0); ok {
			lx.emit(tokInt, rest[:n])
			lx.advance(lx.pos + n)
			return nil
		}
	}
	n := digits(rest, 0)
	float := false
	afterDot := lx.pos > 0 && lx.src[lx.pos-1] == '.'
	if !afterDot {
		if n+1 < len(rest) && rest[n] == '.' && isDigit(rest[n+1]) {
			n, float = digits(rest, n+1), true
		}
		if m := exponent(rest, n); m > n {
			n, float = m, true
		}
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	kind := tokInt
	if float {
		kind = tokFloat
	} else if len(text) > 1 && text[0] == '0' && strings.Trim(text, "0") != "" {
		return lx.fail("number %s starts with a zero", text)
	}
	lx.emit(kind, text)
	lx.advance(lx.pos + n)
	return nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || (c|32 >= 'a' && c|32 <= 'f') }

func digits(s string, i int) int {
	for i < len(s) && (isDigit(s[i]) || (s[i] == '_' && i+1 < len(s) && isDigit(s[i+1]))) {
		i++
	}
	return i
}

// exponent returns the end of an exponent at i, or i.
func exponent(s string, i int) int {
	if i >= len(s) || s[i]|32 != 'e' {
		return i
	}
	j := i + 1
	if j < len(s) && (s[j] == '+' || s[j] == '-') {
		j++
	}
	if j >= len(s) || !isDigit(s[j]) {
		return i
	}
	return digits(s, j)
}

func intLiteral(text string) Value {
	base := 10
	if len(text) > 1 && text[1] > '9' {
		base = 0
	}
	b, ok := new(big.Int).SetString(text, base)
	if !ok {
		return Int(0)
	}
	return BigInt(b)
}

func floatLiteral(text string) Value {
	f, _ := strconv.ParseFloat(text, 64)
	return Float(f)
}

var simpleEscapes = map[byte]byte{
	'n': '\n', 't': '\t', 'r': '\r', '\\': '\\', '\'': '\'', '"': '"',
	'a': 7, 'b': 8, 'f': 12, 'v': 11,
}

// unescape decodes a string literal by the rules of Python's unicode-escape codec.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if s[i] != '\\' || i+1 >= len(s) {
			b = append(b, s[i])
			i++
			continue
		}
		c := s[i+1]
		i += 2
		if e, ok := simpleEscapes[c]; ok {
			b = append(b, e)
			continue
		}
		width := 0
		switch c {
		case '\n':
			continue
		case 'x':
			width = 2
		case 'u':
			width = 4
		case 'U':
			width = 8
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n, v := 0, rune(0)
			for i--; n < 3 && i < len(s) && s[i] >= '0' && s[i] <= '7'; n++ {
				v = v*8 + rune(s[i]-'0')
				i++
			}
			b = utf8.AppendRune(b, v)
			continue
		default:
			b = append(b, '\\', c)
			continue
		}
		if i+width > len(s) {
			return "", fmt.Errorf("escape \\%c is cut off: expected %d hex digits", c, width)
		}
		v, err := strconv.ParseUint(s[i:i+width], 16, 32)
		if err != nil || v > 0x10ffff {
			return "", fmt.Errorf("escape \\%c%s is not a character", c, s[i:i+width])
		}
		b = utf8.AppendRune(b, rune(v))
		i += width
	}
	return string(b), nil
}

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool {
	switch {
	case r >= 9 && r <= 13, r >= 0x1c && r <= 0x20, r == 0x85, r == 0xa0, r == 0x1680:
		return true
	case r >= 0x2000 && r <= 0x200a, r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f, r == 0x3000:
		return true
	}
	return false
}
