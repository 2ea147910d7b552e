package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string
	line int
}

// describe names a token in an error.
func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokBlockBegin:
		return "'{%'"
	case tokBlockEnd:
		return "'%}'"
	case tokVarBegin:
		return "'{{'"
	case tokVarEnd:
		return "'}}'"
	case tokData:
		return "text"
	}
	return "'" + t.text + "'"
}

// A lexer cuts a source into tokens. Whitespace control is settled here.
type lexer struct {
	src       string
	pos       int
	line      int
	lineStart bool // the text so far ended a line, as jinja2's line_starting
	out       []token
	open      []byte // brackets to be closed inside a tag
}

func lex(src string) ([]token, error) {
	src = normalizeNewlines(src)
	src = strings.TrimSuffix(src, "\n")
	lx := &lexer{src: src, line: 1, lineStart: true}
	for lx.pos < len(lx.src) {
		if err := lx.root(); err != nil {
			return nil, err
		}
	}
	lx.emit(tokEOF, "")
	return lx.out, nil
}

func normalizeNewlines(s string) string {
	if strings.IndexByte(s, '\r') < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

func (lx *lexer) fail(format string, args ...any) error {
	return &SyntaxError{Line: lx.line, Message: fmt.Sprintf(format, args...)}
}

func (lx *lexer) emit(k tokenKind, text string) {
	lx.out = append(lx.out, token{k, text, lx.line})
}

// advance moves to pos and counts the lines on the way.
func (lx *lexer) advance(pos int) {
	lx.line += strings.Count(lx.src[lx.pos:pos], "\n")
	if pos > lx.pos {
		lx.lineStart = lx.src[pos-1] == '\n'
	}
	lx.pos = pos
}

// root reads text up to the next tag and the tag that follows.
func (lx *lexer) root() error {
	i := lx.nextTag()
	if i < 0 {
		lx.emit(tokData, lx.src[lx.pos:])
		lx.advance(len(lx.src))
		return nil
	}
	tag, after, sign := lx.src[i+1], i+2, byte(0)
	if after < len(lx.src) && (lx.src[after] == '-' || lx.src[after] == '+') {
		sign = lx.src[after]
		after++
	}
	if text := lx.lstrip(lx.src[lx.pos:i], sign, tag != '{'); text != "" {
		lx.emit(tokData, text)
	}
	switch tag {
	case '#':
		return lx.comment(i, after)
	case '{':
		lx.advance(after)
		lx.emit(tokVarBegin, "")
		return lx.tag(false)
	}
	if end, ok := lx.rawBegin(after); ok {
		lx.advance(end)
		return lx.raw()
	}
	lx.advance(after)
	lx.emit(tokBlockBegin, "")
	return lx.tag(true)
}

func (lx *lexer) nextTag() int {
	for i := lx.pos; ; i++ {
		j := strings.IndexByte(lx.src[i:], '{')
		if j < 0 || i+j+1 >= len(lx.src) {
			return -1
		}
		i += j
		if c := lx.src[i+1]; c == '{' || c == '%' || c == '#' {
			return i
		}
	}
}

// lstrip drops whitespace before a tag as its sign and lstrip_blocks ask.
func (lx *lexer) lstrip(text string, sign byte, block bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || !block {
		return text
	}
	l := strings.LastIndexByte(text, '\n') + 1
	if (l > 0 || lx.lineStart) && strings.TrimFunc(text[l:], isSpace) == "" {
		return text[:l]
	}
	return text
}

// tagEnd reports where a block-like end ("%}" or "#}") at pos stops, whitespace control included.
func (lx *lexer) tagEnd(pos int, close string) (int, bool) {
	rest := lx.src[pos:]
	if len(rest) > 2 && rest[1:3] == close {
		if rest[0] == '+' {
			return pos + 3, true
		}
		if rest[0] == '-' {
			return lx.skipSpace(pos + 3), true
		}
	}
	if strings.HasPrefix(rest, close) {
		if len(rest) > 2 && rest[2] == '\n' {
			return pos + 3, true
		}
		return pos + 2, true
	}
	return 0, false
}

func (lx *lexer) skipSpace(pos int) int {
	rest := lx.src[pos:]
	return pos + len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
}

func (lx *lexer) comment(start, after int) error {
	i := strings.Index(lx.src[after:], "#}")
	if i < 0 {
		lx.advance(start)
		return lx.fail("comment is not closed: expected '#}'")
	}
	i += after
	if i > after && (lx.src[i-1] == '-' || lx.src[i-1] == '+') {
		i--
	}
	end, _ := lx.tagEnd(i, "#}")
	lx.advance(end)
	return nil
}

// rawBegin matches "raw %}" after "{%".
func (lx *lexer) rawBegin(pos int) (int, bool) {
	pos = lx.skipSpace(pos)
	if !strings.HasPrefix(lx.src[pos:], "raw") {
		return 0, false
	}
	pos = lx.skipSpace(pos + 3)
	if strings.HasPrefix(lx.src[pos:], "-%}") {
		return lx.skipSpace(pos + 3), true
	}
	return pos + 2, strings.HasPrefix(lx.src[pos:], "%}")
}

func (lx *lexer) raw() error {
	for i := lx.pos; ; {
		j := strings.Index(lx.src[i:], "{%")
		if j < 0 {
			return lx.fail("raw block is not closed: expected '{%% endraw %%}'")
		}
		i += j
		after, sign := i+2, byte(0)
		if after < len(lx.src) && (lx.src[after] == '-' || lx.src[after] == '+') {
			sign = lx.src[after]
			after++
		}
		p := lx.skipSpace(after)
		if strings.HasPrefix(lx.src[p:], "endraw") {
			if end, ok := lx.tagEnd(lx.skipSpace(p+6), "%}"); ok {
				if text := lx.lstrip(lx.src[lx.pos:i], sign, true); text != "" {
					lx.emit(tokData, text)
				}
				lx.advance(end)
				return nil
			}
		}
		i += 2
	}
}

// tag reads the tokens of one {{ }} or {% %}.
func (lx *lexer) tag(block bool) error {
	lx.open = lx.open[:0]
	for {
		lx.advance(lx.skipSpace(lx.pos))
		if lx.pos >= len(lx.src) {
			return lx.fail("unexpected end of template inside a tag")
		}
		if len(lx.open) == 0 && lx.endTag(block) {
			return nil
		}
		if err := lx.token(); err != nil {
			return err
		}
	}
}

func (lx *lexer) endTag(block bool) bool {
	if block {
		end, ok := lx.tagEnd(lx.pos, "%}")
		if ok {
			lx.emit(tokBlockEnd, "")
			lx.advance(end)
		}
		return ok
	}
	rest := lx.src[lx.pos:]
	end := lx.pos + 2
	if strings.HasPrefix(rest, "-}}") {
		end = lx.skipSpace(lx.pos + 3)
	} else if !strings.HasPrefix(rest, "}}") {
		return false
	}
	lx.emit(tokVarEnd, "")
	lx.advance(end)
	return true
}

func (lx *lexer) token() error {
	c := lx.src[lx.pos]
	switch {
	case c >= '0' && c <= '9':
		return lx.number()
	case c == '\'' || c == '"':
		return lx.str(c)
	}
	if r, _ := utf8.DecodeRuneInString(lx.src[lx.pos:]); r == '_' || unicode.IsLetter(r) {
		end := lx.pos
		for i, r := range lx.src[lx.pos:] {
			if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) {
				break
			}
			end = lx.pos + i + utf8.RuneLen(r)
		}
		lx.emit(tokName, lx.src[lx.pos:end])
		lx.advance(end)
		return nil
	}
	return lx.operator()
}

func (lx *lexer) str(quote byte) error {
	for i := lx.pos + 1; i < len(lx.src); i++ {
		switch lx.src[i] {
		case '\\':
			i++
		case quote:
			text, err := unescape(lx.src[lx.pos+1 : i])
			if err != nil {
				return lx.fail("%v", err)
			}
			lx.emit(tokString, text)
			lx.advance(i + 1)
			return nil
		}
	}
	return lx.fail("string is not closed: expected %c", quote)
}

func (lx *lexer) operator() error {
	rest := lx.src[lx.pos:]
	if len(rest) >= 2 {
		switch op := rest[:2]; op {
		case "//", "**", "==", "!=", "<=", ">=":
			lx.emit(tokOp, op)
			lx.advance(lx.pos + 2)
			return nil
		}
	}
	c := rest[0]
	if strings.IndexByte("+-/*%~[](){}><=.:|,;", c) < 0 {
		r, _ := utf8.DecodeRuneInString(rest)
		return lx.fail("unexpected character %q", r)
	}
	switch c {
	case '(', '[', '{':
		lx.open = append(lx.open, c+1+c>>6) // the closing bracket: ')' = '('+1, ']' = '['+2, '}' = '{'+2
	case ')', ']', '}':
		if len(lx.open) == 0 || lx.open[len(lx.open)-1] != c {
			return lx.fail("unexpected '%c'", c)
		}
		lx.open = lx.open[:len(lx.open)-1]
	}
	lx.emit(tokOp, rest[:1])
	lx.advance(lx.pos + 1)
	return nil
}
