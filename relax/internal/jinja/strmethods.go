package jinja

import (
	"strings"
	"unicode"
)

// strMethods are the methods of str. Text made from Markup stays Markup.
var strMethods map[string]method

func init() {
	strMethods = map[string]method{
		"capitalize": mapText(capitalize), "casefold": mapText(pyLower), "lower": mapText(pyLower),
		"upper": mapText(pyUpper), "title": mapText(pyTitle), "swapcase": mapText(swapcase),
		"strip": stripper("strip", true, true), "lstrip": stripper("lstrip", true, false), "rstrip": stripper("rstrip", false, true),
		"split": splitter("split", pySplit), "rsplit": splitter("rsplit", pyRSplit), "splitlines": strSplitlines,
		"startswith": affix("startswith", strings.HasPrefix), "endswith": affix("endswith", strings.HasSuffix),
		"replace": strReplace, "join": strJoin, "count": strCount,
		"find": finder("find", false, false), "rfind": finder("rfind", true, false),
		"index": finder("index", false, true), "rindex": finder("rindex", true, true),
		"partition": partition(strings.Index), "rpartition": rpartition,
		"removeprefix": trimAffix("removeprefix", strings.TrimPrefix), "removesuffix": trimAffix("removesuffix", strings.TrimSuffix),
		"ljust": padder("ljust"), "rjust": padder("rjust"), "center": padder("center"), "zfill": strZfill,
		"expandtabs": strExpandtabs, "format": strFormat, "format_map": strFormatMap,
		"isalpha": allRunes(unicode.IsLetter), "isdigit": allRunes(unicode.IsDigit), "isdecimal": allRunes(unicode.IsDigit),
		"isnumeric": allRunes(unicode.IsNumber), "isspace": allRunes(isSpace),
		"isalnum": allRunes(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
		"isupper": mapTest(isUpper), "islower": mapTest(isLower), "istitle": mapTest(isTitle),
		"isascii": mapTest(isASCII), "isprintable": mapTest(func(s string) bool { return strings.IndexFunc(s, func(c rune) bool { return !printable(c) }) < 0 }),
		"isidentifier": mapTest(isIdentifier),
	}
}

// upperSpecial are the characters whose upper case is longer than one character.
var upperSpecial = strings.NewReplacer("ß", "SS", "ŉ", "ʼN", "ﬀ", "FF", "ﬁ", "FI", "ﬂ", "FL", "ﬃ", "FFI", "ﬄ", "FFL", "ﬅ", "ST", "ﬆ", "ST")

func pyUpper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return strings.ToUpper(upperSpecial.Replace(s))
}

// pyLower is str.lower: a sigma at the end of a word has a form of its own.
func pyLower(s string) string {
	low := strings.ToLower(s)
	if !strings.ContainsRune(s, 'Σ') && !strings.ContainsRune(s, 'İ') {
		return low
	}
	rs := []rune(s)
	var b strings.Builder
	for i, c := range rs {
		switch {
		case c == 'İ':
			b.WriteString("i\u0307")
		case c == 'Σ' && i > 0 && unicode.IsLetter(rs[i-1]) && (i+1 == len(rs) || !unicode.IsLetter(rs[i+1])):
			b.WriteRune('ς')
		default:
			b.WriteRune(unicode.ToLower(c))
		}
	}
	return b.String()
}

func mapText(fn func(string) string) method {
	return func(r *run, self Value, a args) (Value, error) {
		if err := a.bind("method", nil); err != nil {
			return self, err
		}
		return self.like(fn(self.text())), r.room(int(self.n), "string method")
	}
}

func mapTest(fn func(string) bool) method {
	return func(_ *run, self Value, a args) (Value, error) {
		return Bool(fn(self.text())), a.bind("method", nil)
	}
}

func allRunes(fn func(rune) bool) method {
	return mapTest(func(s string) bool {
		return s != "" && strings.IndexFunc(s, func(c rune) bool { return !fn(c) }) < 0
	})
}

func capitalize(s string) string {
	if s == "" {
		return s
	}
	w := runeWidth(s)
	return strings.ToTitle(s[:w]) + pyLower(s[w:])
}

func pyTitle(s string) string {
	inWord := false
	return strings.Map(func(c rune) rune {
		cased := unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c)
		defer func() { inWord = cased }()
		if inWord {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	}, s)
}

func swapcase(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsUpper(c) {
			return unicode.ToLower(c)
		}
		return unicode.ToUpper(c)
	}, s)
}

func isUpper(s string) bool { return s != strings.ToLower(s) && s == strings.ToUpper(s) }
func isLower(s string) bool { return s != strings.ToUpper(s) && s == strings.ToLower(s) }
func isTitle(s string) bool {
	return s == pyTitle(s) && strings.IndexFunc(s, unicode.IsLetter) >= 0
}
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func isIdentifier(s string) bool {
	for i, c := range s {
		if c != '_' && !unicode.IsLetter(c) && (i == 0 || !unicode.IsDigit(c)) {
			return false
		}
	}
	return s != ""
}

func wantStr(fn string, v Value) (string, error) {
	if v.isStr() {
		return v.text(), nil
	}
	if v.k == kUndefined {
		return "", typeError("%s() argument must be str, not Undefined", fn)
	}
	return "", typeError("%s() argument must be str, not %s", fn, v.typeName())
}

func wantInt(fn string, v Value, unset int) (int, error) {
	switch v.k {
	case kMissing:
		return unset, nil
	case kInt, kBool:
		return int(v.int()), nil
	}
	return 0, typeError("%s(): '%s' object cannot be interpreted as an integer", fn, v.typeName())
}

// strip cuts characters of set (whitespace where set is missing or None) off the ends of s.
func strip(s string, set Value, fn string, left, right bool) (string, error) {
	in := isSpace
	if set.k != kMissing && set.k != kNone {
		if !set.isStr() {
			return "", typeError("%s arg must be None or str", fn)
		}
		chars := set.text()
		in = func(c rune) bool { return strings.ContainsRune(chars, c) }
	}
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return s, nil
}

func stripper(fn string, left, right bool) method {
	return func(_ *run, self Value, a args) (Value, error) {
		var p [1]Value
		if err := a.bind(fn, p[:]); err != nil {
			return self, err
		}
		s, err := strip(self.text(), p[0], fn, left, right)
		return self.like(s), err
	}
}

// textList makes a list of parts with the kind of v.
func textList(v Value, parts []string) Value {
	out := make([]Value, len(parts))
	for i, p := range parts {
		out[i] = v.like(p)
	}
	return List(out)
}

func splitter(fn string, split func(s string, n int) []string) method {
	return func(r *run, self Value, a args) (Value, error) {
		var p [2]Value
		if err := a.bind(fn, p[:], "sep", "maxsplit"); err != nil {
			return self, err
		}
		n, err := wantInt(fn, p[1], -1)
		if err != nil {
			return self, err
		}
		if err := r.roomItems(int(self.n), "string method '"+fn+"'"); err != nil {
			return self, err
		}
		s := self.text()
		if p[0].k == kMissing || p[0].isNone() {
			return textList(self, split(s, n)), nil
		}
		sep, err := wantStr(fn, p[0])
		if err != nil {
			return self, err
		}
		if sep == "" {
			return self, valueError("empty separator")
		}
		if fn == "rsplit" && n >= 0 {
			return textList(self, splitFromRight(s, sep, n)), nil
		}
		if n < 0 {
			return textList(self, strings.Split(s, sep)), nil
		}
		return textList(self, strings.SplitN(s, sep, n+1)), nil
	}
}

func splitFromRight(s, sep string, n int) []string {
	var parts []string
	for ; n > 0; n-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	reverse(parts)
	return parts
}

func reverse[T any](s []T) {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
}

// pySplit splits at runs of whitespace, at most n times.
func pySplit(s string, n int) []string {
	var parts []string
	for {
		s = strings.TrimLeftFunc(s, isSpace)
		if s == "" {
			return parts
		}
		i := strings.IndexFunc(s, isSpace)
		if i < 0 {
			return append(parts, s)
		}
		if n >= 0 && len(parts) == n {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		s = s[i:]
	}
}

func pyRSplit(s string, n int) []string {
	var parts []string
	for {
		s = strings.TrimRightFunc(s, isSpace)
		if s == "" {
			break
		}
		i := strings.LastIndexFunc(s, isSpace)
		if i < 0 || (n >= 0 && len(parts) == n) {
			parts = append(parts, s)
			break
		}
		i += runeWidth(s[i:])
		parts = append(parts, s[i:])
		s = s[:i]
	}
	reverse(parts)
	return parts
}

func strSplitlines(r *run, self Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("splitlines", p[:], "keepends"); err != nil {
		return self, err
	}
	keep := truth(p[0])
	s := self.text()
	if err := r.roomItems(len(s), "string method 'splitlines'"); err != nil {
		return self, err
	}
	return textList(self, splitLines(s, keep)), nil
}

func splitLines(s string, keep bool) []string {
	var lines []string
	for s != "" {
		i := strings.IndexFunc(s, isLineEnd)
		if i < 0 {
			return append(lines, s)
		}
		end := i + runeWidth(s[i:])
		if s[i] == '\r' && end < len(s) && s[end] == '\n' {
			end++
		}
		if keep {
			i = end
		}
		lines = append(lines, s[:i])
		s = s[end:]
	}
	return lines
}

func isLineEnd(c rune) bool {
	return c >= 10 && c <= 13 || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}
