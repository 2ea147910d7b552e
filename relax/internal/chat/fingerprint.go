package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strconv"
	"strings"
)

// fingerprint names what a Jinja chat template does, apart from how it is laid out:
// comments, indentation that the tags trim away, spaces inside tags, the kind of quotes,
// a['b'] against a.b, and whether fixed text is printed in one piece or several make no
// difference. Everything that can reach the output does. It is 16 hex digits of a SHA-256.
func fingerprint(template string) string {
	sum := sha256.New()
	for _, part := range lexTemplate(template) {
		io.WriteString(sum, part)
		sum.Write([]byte{0})
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// space is what a tag's minus sign trims.
const space = " \t\r\n\v\f"

// lexTemplate cuts a template into fixed text ("T" and the text) and tags ("%" or "{" and the
// normalised code), with white space removed the way Hugging Face sets Jinja up
// (trim_blocks, lstrip_blocks, and the marks - and + at the tags).
func lexTemplate(src string) []string {
	src = strings.TrimSuffix(strings.ReplaceAll(src, "\r\n", "\n"), "\n")
	var parts []string
	var text strings.Builder // fixed text since the last tag that is more than text
	trimNext, dropNewline := false, false
	for pos := 0; pos < len(src); {
		open := pos + nextTag(src[pos:])
		chunk := src[pos:open]
		if trimNext {
			chunk = strings.TrimLeft(chunk, space)
		} else if dropNewline {
			chunk = strings.TrimPrefix(chunk, "\n")
		}
		if open == len(src) {
			text.WriteString(chunk)
			break
		}
		kind := src[open+1]
		code, length := tagCode(src[open+2:], kind)
		pos = open + 2 + length
		text.WriteString(trimBefore(chunk, lineBegins(src, open), &code, kind))
		trimNext, dropNewline = trimAfter(&code, kind)
		if kind == '#' {
			continue
		}
		code = normalCode(code)
		if literal, err := strconv.Unquote(code); err == nil && kind == '{' {
			text.WriteString(literal)
			continue
		}
		if text.Len() > 0 {
			parts = append(parts, "T"+text.String())
			text.Reset()
		}
		parts = append(parts, string(kind)+code)
	}
	if text.Len() > 0 {
		parts = append(parts, "T"+text.String())
	}
	return parts
}

// lineBegins reports whether nothing but blanks stands before src[at] on its line.
func lineBegins(src string, at int) bool {
	before := strings.TrimRight(src[:at], " \t")
	return before == "" || strings.HasSuffix(before, "\n")
}

// nextTag is the index of the next {%, {{ or {#, len(src) if there is none.
func nextTag(src string) int {
	for i := 0; i+1 < len(src); i++ {
		if src[i] == '{' && (src[i+1] == '%' || src[i+1] == '{' || src[i+1] == '#') {
			return i
		}
	}
	return len(src)
}

// tagCode returns what stands inside a tag and how long that is with the tag's end. An unclosed
// tag runs to the end: such a template has no known fingerprint anyway.
func tagCode(src string, kind byte) (code string, length int) {
	closer := string(kind) + "}"
	if kind == '{' {
		closer = "}}"
	}
	var quote byte
	for i := 0; i < len(src); i++ {
		switch {
		case kind != '#' && quote != 0:
			if src[i] == '\\' {
				i++
			} else if src[i] == quote {
				quote = 0
			}
		case kind != '#' && (src[i] == '\'' || src[i] == '"'):
			quote = src[i]
		case strings.HasPrefix(src[i:], closer):
			return src[:i], i + 2
		}
	}
	return src, len(src)
}

// trimBefore applies a tag's left mark, or lstrip_blocks where the line begins with the tag,
// to the text in front of it.
func trimBefore(chunk string, lineBegins bool, code *string, kind byte) string {
	if rest, ok := strings.CutPrefix(*code, "-"); ok {
		*code = rest
		return strings.TrimRight(chunk, space)
	}
	if rest, ok := strings.CutPrefix(*code, "+"); ok {
		*code = rest
		return chunk
	}
	if kind != '{' && lineBegins {
		return strings.TrimRight(chunk, " \t")
	}
	return chunk
}

// trimAfter says what a tag does to the text behind it: all white space goes, or (trim_blocks)
// one newline after a block or comment.
func trimAfter(code *string, kind byte) (all, newline bool) {
	if rest, ok := strings.CutSuffix(*code, "-"); ok {
		*code = rest
		return true, false
	}
	if rest, ok := strings.CutSuffix(*code, "+"); ok {
		*code = rest
		return false, false
	}
	return false, kind != '{'
}

// normalCode spells the code inside a tag in one way.
func normalCode(code string) string {
	var tokens []string
	for i := 0; i < len(code); {
		c := code[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '\'' || c == '"':
			value, n := stringLiteral(code[i:])
			tokens = append(tokens, strconv.Quote(value))
			i += n
		case wordByte(c):
			j := i
			for j < len(code) && wordByte(code[j]) {
				j++
			}
			tokens = append(tokens, code[i:j])
			i = j
		default:
			tokens = append(tokens, string(c))
			i++
		}
	}
	return joinTokens(tokens)
}

// joinTokens writes a subscript by a plain word as an attribute and keeps words apart.
func joinTokens(tokens []string) string {
	var out strings.Builder
	lastWord := false
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		if t == "[" && i > 0 && i+2 < len(tokens) && tokens[i+2] == "]" && lastWord {
			if name, err := strconv.Unquote(tokens[i+1]); err == nil && isWord(name) {
				out.WriteString("." + name)
				i += 2
				continue
			}
		}
		word := wordByte(t[0])
		if word && lastWord {
			out.WriteByte(' ')
		}
		out.WriteString(t)
		lastWord = word
	}
	return out.String()
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isWord(s string) bool {
	for i := 0; i < len(s); i++ {
		if !wordByte(s[i]) {
			return false
		}
	}
	return s != "" && (s[0] < '0' || s[0] > '9')
}

// stringLiteral returns the value of the literal src begins with and its length in src.
func stringLiteral(src string) (string, int) {
	var out strings.Builder
	for i := 1; i < len(src); i++ {
		switch c := src[i]; {
		case c == src[0]:
			return out.String(), i + 1
		case c == '\\' && i+1 < len(src):
			i++
			switch e := src[i]; e {
			case 'n':
				out.WriteByte('\n')
			case 't':
				out.WriteByte('\t')
			case 'r':
				out.WriteByte('\r')
			case '\\', '\'', '"':
				out.WriteByte(e)
			default: // kept as written, so that it stays different from anything plain
				out.WriteByte('\\')
				out.WriteByte(e)
			}
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), len(src)
}
