package canon

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

// maxExactInt is 2^53 - 1: floats beyond it do not name one integer.
const maxExactInt = 1<<53 - 1

// CanonicalArguments returns the canonical text of tool-call arguments: the JSON text of an
// object with sorted keys, no spaces, literal non-ASCII, and integral floats up to 2^53-1 as
// ints (reference session service 2.3). v is the object itself or a string that holds its
// JSON text; in such a string repeated keys are an error. Anything but an object is refused.
func CanonicalArguments(v Value) (string, error) {
	if v.Kind() == String {
		return CanonicalArgumentsText(v.Str())
	}
	return argumentsOf(v)
}

// CanonicalArgumentsText is [CanonicalArguments] of the JSON text of an object.
func CanonicalArgumentsText(text string) (string, error) {
	v, err := parseText(text, true)
	if err != nil {
		return "", fmt.Errorf("arguments must be the JSON text of an object: %w", err)
	}
	return argumentsOf(v)
}

func argumentsOf(v Value) (string, error) {
	if v.Kind() == Null {
		return "", errors.New("arguments must be an object or its JSON text, they are missing or null")
	}
	if v.Kind() != Object {
		return "", fmt.Errorf("arguments must be an object or its JSON text, not %s", v.TypeName())
	}
	return string(integral(v).AppendCanonical(nil)), nil
}

// integral returns v with every integral float of exact size spelled as an int.
func integral(v Value) Value {
	switch v.kind {
	case Number:
		if f, ok := v.Float64(); ok && !v.truth && f == math.Trunc(f) && math.Abs(f) <= maxExactInt {
			return Value{kind: Number, truth: true, text: strconv.FormatInt(int64(f), 10)}
		}
		return v
	case Array:
		elems := make([]Value, len(v.elems))
		for i := range elems {
			elems[i] = integral(v.elems[i])
		}
		return Value{kind: Array, elems: elems}
	case Object:
		members := make([]Member, len(v.members))
		for i := range members {
			members[i] = Member{v.members[i].Key, integral(v.members[i].Value)}
		}
		return Value{kind: Object, members: members}
	default:
		return v
	}
}
