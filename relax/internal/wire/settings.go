package wire

import (
	"math"
	"slices"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// This file has the rules of a request's small fields (reference session service 2.5, 2.6).

// reservedKwargs are template arguments the engine sets itself.
var reservedKwargs = []string{"add_generation_prompt", "tokenize", "tools"}

// kwargs reads chat_template_kwargs. Values Python takes for false count as none.
func kwargs(v canon.Value) (canon.Value, *Error) {
	const param = "chat_template_kwargs"
	if v.Falsy() {
		return canon.ObjectOf(), nil
	}
	if v.Kind() != canon.Object {
		return canon.Value{}, Invalid(param, "%s must be dict or null, not %s", param, v.TypeName())
	}
	var reserved []string
	for _, key := range reservedKwargs {
		if _, ok := v.Get(key); ok {
			reserved = append(reserved, key)
		}
	}
	if len(reserved) > 0 {
		return canon.Value{}, Invalid(param, "%s must not set %s: the engine sets them; leave them out",
			param, strings.Join(reserved, ", "))
	}
	return canon.MergeKwargs(canon.Value{}, v), nil
}

// turnLimit reads a positive int or null; 0 is null. Limits beyond an int are the largest int.
func turnLimit(param string, v canon.Value) (int, *Error) {
	if v.IsNull() {
		return 0, nil
	}
	if !v.IsInt() {
		return 0, Invalid(param, "%s must be a positive int or null, not %s", param, v.TypeName())
	}
	if strings.HasPrefix(v.Str(), "-") || v.Str() == "0" {
		return 0, Invalid(param, "%s must be positive, not %s", param, canon.Shorten(v.Str(), 40))
	}
	n, ok := v.Int64()
	if !ok || n > math.MaxInt {
		return math.MaxInt, nil
	}
	return int(n), nil
}

// stopStrings reads null, a string or a list of strings.
func stopStrings(param string, v canon.Value) ([]string, *Error) {
	switch v.Kind() {
	case canon.Null:
		return nil, nil
	case canon.String:
		return []string{v.Str()}, nil
	case canon.Array:
	default:
		return nil, Invalid(param, "%s must be str, list of str or null, not %s", param, v.TypeName())
	}
	var stop []string
	for i, item := range v.Elems() {
		if item.Kind() != canon.String {
			return nil, Invalid(param, "%s[%d] must be str, not %s", param, i, item.TypeName())
		}
		stop = append(stop, item.Str())
	}
	return stop, nil
}

// flag reads a bool or null; null is false.
func flag(param string, v canon.Value) (bool, *Error) {
	if v.Kind() == canon.Bool || v.IsNull() {
		return v.Bool(), nil
	}
	return false, Invalid(param, "%s must be bool or null, not %s", param, v.TypeName())
}

// seed reads an int or null.
func seed(param string, v canon.Value) (*int64, *Error) {
	if v.IsNull() {
		return nil, nil
	}
	n, ok := v.Int64()
	if !ok {
		return nil, Invalid(param, "%s must be an int of 64 bits or null, not %s", param, describe(v))
	}
	return &n, nil
}

// sortedNames returns names sorted and without repeats.
func sortedNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// modelName is the name to echo. One that is no text has no effect, and joins the ignored fields.
func modelName(v canon.Value, ignored []string) (string, []string) {
	if v.Kind() == canon.String || v.IsNull() {
		return v.Str(), ignored
	}
	return "", append(ignored, "model")
}
