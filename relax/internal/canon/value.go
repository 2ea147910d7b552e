package canon

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// A Kind is the JSON type of a [Value].
type Kind uint8

// The kinds. The zero Value is Null.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

// String is the kind's Python type name, which the reference's error texts use.
func (k Kind) String() string {
	switch k {
	case Bool:
		return "bool"
	case Number:
		return "number"
	case String:
		return "str"
	case Array:
		return "list"
	case Object:
		return "dict"
	default:
		return "NoneType"
	}
}

// A Value is a JSON value that loses nothing a chat template or the state identity could
// see: the order of object members and the spelling of numbers. It is immutable.
type Value struct {
	kind    Kind
	truth   bool   // the value of a Bool; for a Number whether it is an int
	text    string // the text of a String, the literal of a Number
	elems   []Value
	members []Member
}

// A Member is one key and value of an object.
type Member struct {
	Key   string
	Value Value
}

// BoolValue returns a JSON true or false.
func BoolValue(b bool) Value { return Value{kind: Bool, truth: b} }

// StringValue returns a JSON string. s must be valid UTF-8.
func StringValue(s string) Value { return Value{kind: String, text: s} }

// IntValue returns a JSON integer.
func IntValue(i int64) Value {
	return Value{kind: Number, truth: true, text: strconv.FormatInt(i, 10)}
}

// FloatValue returns a JSON number that is a float even if it is integral. f must be finite.
func FloatValue(f float64) Value {
	return Value{kind: Number, text: string(appendPythonFloat(nil, f))}
}

// ArrayOf returns a JSON array. It keeps elems.
func ArrayOf(elems ...Value) Value { return Value{kind: Array, elems: elems} }

// ObjectOf returns a JSON object. It keeps members, whose keys must differ.
func ObjectOf(members ...Member) Value { return Value{kind: Object, members: members} }

// Kind is the value's JSON type.
func (v Value) Kind() Kind { return v.kind }

// TypeName is the name of the Python type the value would have: "int" and "float" apart.
func (v Value) TypeName() string {
	if v.kind != Number {
		return v.kind.String()
	}
	if v.truth {
		return "int"
	}
	return "float"
}

// IsNull reports whether the value is null.
func (v Value) IsNull() bool { return v.kind == Null }

// Falsy reports what Python holds for false: null, false, zero, and empty text, list or object.
func (v Value) Falsy() bool {
	switch v.kind {
	case Bool:
		return !v.Bool()
	case Number:
		f, ok := v.Float64()
		return ok && f == 0
	case String:
		return v.Str() == ""
	case Array:
		return len(v.Elems()) == 0
	case Object:
		return len(v.Members()) == 0
	default:
		return true
	}
}

// Bool is the truth of a Bool, false for other kinds.
func (v Value) Bool() bool { return v.kind == Bool && v.truth }

// Str is the text of a String or the literal of a Number, "" for other kinds.
func (v Value) Str() string { return v.text }

// IsInt reports whether the value is a Number spelled without fraction and exponent.
func (v Value) IsInt() bool { return v.kind == Number && v.truth }

// Int64 returns the value of an int that fits.
func (v Value) Int64() (int64, bool) {
	if !v.IsInt() {
		return 0, false
	}
	i, err := strconv.ParseInt(v.text, 10, 64)
	return i, err == nil
}

// Float64 returns the value of a Number, rounded if need be.
func (v Value) Float64() (float64, bool) {
	if v.kind != Number {
		return 0, false
	}
	f, err := strconv.ParseFloat(v.text, 64)
	return f, err == nil
}

// Elems are the elements of an Array, nil for other kinds. They must not be changed.
func (v Value) Elems() []Value { return v.elems }

// Members are the members of an Object in the order of the text, nil for other kinds. They
// must not be changed.
func (v Value) Members() []Member { return v.members }

// Get returns the member of an Object by key.
func (v Value) Get(key string) (Value, bool) {
	for i := range v.members {
		if v.members[i].Key == key {
			return v.members[i].Value, true
		}
	}
	return Value{}, false
}

// Equal reports whether two values have the same canonical text: key order does not matter,
// 1 and 1.0 differ.
func (v Value) Equal(o Value) bool {
	if v.kind != o.kind {
		return false
	}
	switch v.kind {
	case Bool:
		return v.truth == o.truth
	case Number:
		return v.text == o.text || v.truth == o.truth && bytes.Equal(v.appendNumber(nil), o.appendNumber(nil))
	case String:
		return v.text == o.text
	case Array:
		return slices.EqualFunc(v.elems, o.elems, Value.Equal)
	case Object:
		return len(v.members) == len(o.members) &&
			slices.EqualFunc(sortedMembers(v.members), sortedMembers(o.members), Member.equal)
	default:
		return true
	}
}

func (m Member) equal(o Member) bool { return m.Key == o.Key && m.Value.Equal(o.Value) }

// A spelling is one way to write a value as JSON text.
type spelling struct {
	comma, colon string
	sorted       bool
}

var (
	// canonical is Python's json.dumps(sort_keys=True, separators=(",", ":"), ensure_ascii=False).
	canonical = spelling{comma: ",", colon: ":", sorted: true}
	// template is Python's json.dumps(ensure_ascii=False), which Hugging Face's tojson is.
	template = spelling{comma: ", ", colon: ": "}
	// compact keeps the key order without spaces, as SSE data lines want it.
	compact = spelling{comma: ",", colon: ":"}
)

// AppendCanonical appends the text that identity is computed on: keys sorted by code point,
// no spaces, non-ASCII literal, floats as Python's repr.
func (v Value) AppendCanonical(dst []byte) []byte { return v.append(dst, &canonical) }

// AppendTemplate appends the text Hugging Face's tojson filter gives: key order kept, ", " and
// ": " as separators, non-ASCII literal, floats as Python's repr.
func (v Value) AppendTemplate(dst []byte) []byte { return v.append(dst, &template) }

// AppendCompact appends the value with its key order and without spaces.
func (v Value) AppendCompact(dst []byte) []byte { return v.append(dst, &compact) }

func (v Value) append(dst []byte, s *spelling) []byte {
	switch v.kind {
	case Bool:
		return strconv.AppendBool(dst, v.truth)
	case Number:
		return v.appendNumber(dst)
	case String:
		return AppendString(dst, v.text)
	case Array:
		dst = append(dst, '[')
		for i := range v.elems {
			if i > 0 {
				dst = append(dst, s.comma...)
			}
			dst = v.elems[i].append(dst, s)
		}
		return append(dst, ']')
	case Object:
		members := v.members
		if s.sorted {
			members = sortedMembers(members)
		}
		dst = append(dst, '{')
		for i := range members {
			if i > 0 {
				dst = append(dst, s.comma...)
			}
			dst = AppendString(dst, members[i].Key)
			dst = append(dst, s.colon...)
			dst = members[i].Value.append(dst, s)
		}
		return append(dst, '}')
	default:
		return append(dst, "null"...)
	}
}

// sortedMembers returns members ordered by key, the same slice if they already are. The
// order of UTF-8 bytes is the order of code points, which Python sorts by.
func sortedMembers(members []Member) []Member {
	less := func(a, b Member) int { return strings.Compare(a.Key, b.Key) }
	if slices.IsSortedFunc(members, less) {
		return members
	}
	members = slices.Clone(members)
	slices.SortFunc(members, less)
	return members
}

// appendNumber writes ints as they stand and floats as Python's repr.
func (v Value) appendNumber(dst []byte) []byte {
	if v.truth {
		if v.text == "-0" {
			return append(dst, '0')
		}
		return append(dst, v.text...)
	}
	f, err := strconv.ParseFloat(v.text, 64)
	if err != nil {
		// The parser refuses literals out of range; keep what is there.
		return append(dst, v.text...)
	}
	return appendPythonFloat(dst, f)
}

// appendPythonFloat appends repr(f) of Python: the shortest digits that read back as f,
// positional for exponents from -4 to 15, else with an exponent of at least two digits.
func appendPythonFloat(dst []byte, f float64) []byte {
	if f == 0 {
		if 1/f < 0 {
			return append(dst, "-0.0"...)
		}
		return append(dst, "0.0"...)
	}
	var scratch [32]byte
	sci := strconv.AppendFloat(scratch[:0], f, 'e', -1, 64)
	exp, _ := strconv.Atoi(string(sci[bytes.IndexByte(sci, 'e')+1:]))
	if exp < -4 || exp >= 16 {
		return append(dst, sci...)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if bytes.IndexByte(dst[start:], '.') < 0 {
		dst = append(dst, ".0"...)
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string the way Python does with ensure_ascii=False: only
// the quote, the backslash and control characters are escaped. s must be valid UTF-8.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
