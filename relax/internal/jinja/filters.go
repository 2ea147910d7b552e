package jinja

import (
	"strings"
)

var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"tojson": filterToJSON, "from_json": filterFromJSON, "abs": filterAbs, "attr": filterAttr, "batch": filterBatch, "slice": filterSlice,
		"capitalize": textFilter(capitalize), "lower": textFilter(pyLower), "upper": textFilter(pyUpper),
		"title": plainFilter(jinjaTitle), "striptags": plainFilter(striptags), "urlencode": filterURLEncode,
		"center": filterCenter, "count": filterLength, "length": filterLength, "default": filterDefault, "d": filterDefault,
		"dictsort": filterDictSort, "escape": filterEscape, "e": filterEscape, "forceescape": filterForceEscape,
		"safe": filterSafe, "string": filterString, "first": filterFirst, "last": filterLast, "float": filterFloat,
		"int": filterInt, "format": filterFormat, "groupby": filterGroupBy, "indent": filterIndent, "items": filterItems,
		"join": filterJoin, "list": filterList, "map": filterMap, "max": extreme("max", opGt), "min": extreme("min", opLt),
		"pprint": filterPprint, "reject": selecting("reject", false, false), "rejectattr": selecting("rejectattr", true, false),
		"select": selecting("select", false, true), "selectattr": selecting("selectattr", true, true),
		"replace": filterReplace, "reverse": filterReverse, "round": filterRound, "sort": filterSort, "sum": filterSum,
		"trim": filterTrim, "truncate": filterTruncate, "unique": filterUnique, "wordcount": filterWordCount,
	}
}

// softStr is str(v) that keeps Markup.
func (r *run) softStr(v Value) (Value, error) {
	if v.isStr() {
		return v, nil
	}
	s, err := r.str(v)
	return String(s), err
}

func textFilter(fn func(string) string) filterFunc {
	return func(r *run, v Value, a args) (Value, error) {
		v, err := r.softStr(v)
		if err != nil {
			return v, err
		}
		return v.like(fn(v.text())), a.bind("filter", nil)
	}
}

func plainFilter(fn func(string) string) filterFunc {
	return func(r *run, v Value, a args) (Value, error) {
		s, err := r.str(v)
		if err != nil {
			return v, err
		}
		return String(fn(s)), a.bind("filter", nil)
	}
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// escaped is markupsafe's escape of a text; Markup is left alone.
func escaped(v Value) string {
	if v.k == kMarkup {
		return v.text()
	}
	return escaper.Replace(v.text())
}

func filterEscape(r *run, v Value, a args) (Value, error) {
	v, err := r.softStr(v)
	if err != nil {
		return v, err
	}
	return Markup(escaped(v)), r.room(int(v.n), "filter 'escape'")
}

func filterForceEscape(r *run, v Value, a args) (Value, error) {
	s, err := r.str(v)
	if err != nil {
		return v, err
	}
	return Markup(escaper.Replace(s)), r.room(len(s), "filter 'forceescape'")
}

func filterSafe(r *run, v Value, a args) (Value, error) {
	s, err := r.str(v)
	return Markup(s), err
}

func filterString(r *run, v Value, a args) (Value, error) { return r.softStr(v) }

func filterLength(_ *run, v Value, a args) (Value, error) {
	n, err := length(v)
	return Int(int64(n)), err
}

func filterDefault(r *run, v Value, a args) (Value, error) {
	p := [2]Value{}
	if err := a.bind("default", p[:], "default_value", "boolean"); err != nil {
		return v, err
	}
	if v.k == kUndefined || (truth(p[1]) && !truth(v)) {
		if p[0].k == kMissing {
			return String(""), nil
		}
		return p[0], nil
	}
	return v, nil
}

func filterTrim(r *run, v Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("trim", p[:], "chars"); err != nil {
		return v, err
	}
	v, err := r.softStr(v)
	if err != nil {
		return v, err
	}
	s, err := strip(v.text(), p[0], "strip", true, true)
	return v.like(s), err
}

func filterItems(r *run, v Value, a args) (Value, error) {
	if v.k == kUndefined {
		return lazy("do_items", func() (Value, bool, error) { return Value{}, false, nil }), nil
	}
	i := 0
	return lazy("do_items", func() (Value, bool, error) {
		if v.k != kDict {
			return Value{}, false, typeError("can only get item pairs from a mapping")
		}
		if i >= v.dict().Len() {
			return Value{}, false, nil
		}
		key, val := v.dict().At(i)
		i++
		return Tuple(key, val), true, nil
	}), nil
}

func filterList(r *run, v Value, a args) (Value, error) {
	items, err := r.collect(v, "filter 'list'")
	return List(items), err
}

func filterFirst(r *run, v Value, a args) (Value, error) {
	if v.isStr() && v.n > 0 {
		w := runeWidth(v.text())
		return String(v.text()[:w]), nil
	}
	next, err := r.iterate(v)
	if err != nil {
		return v, err
	}
	first, ok, err := next()
	if err == nil && !ok {
		return emptySequence("first"), nil
	}
	return first, err
}

func emptySequence(which string) Value {
	return Value{k: kUndefined, aux: auxEmpty}.because("no " + which + " item, sequence was empty")
}

func filterLast(r *run, v Value, a args) (Value, error) {
	if v.k == kGen {
		return v, typeError("'generator' object is not reversible")
	}
	items, err := r.collect(v, "filter 'last'")
	if err != nil {
		return v, err
	}
	if len(items) == 0 {
		return emptySequence("last"), nil
	}
	return items[len(items)-1], nil
}

func filterReverse(r *run, v Value, a args) (Value, error) {
	if v.isStr() {
		rs := []rune(v.text())
		reverse(rs)
		return String(string(rs)), r.room(int(v.n), "filter 'reverse'")
	}
	items, err := r.collect(v, "filter 'reverse'")
	if err != nil {
		return v, errorf("FilterArgumentError", "argument must be iterable")
	}
	i := len(items)
	return lazy("list_reverseiterator", func() (Value, bool, error) {
		if i == 0 {
			return Value{}, false, nil
		}
		i--
		return items[i], true, nil
	}), nil
}

func filterReplace(r *run, v Value, a args) (Value, error) {
	var p [3]Value
	if err := a.bind("replace", p[:], "old", "new", "count"); err != nil {
		return v, err
	}
	if p[0].k == kMissing || p[1].k == kMissing {
		return v, typeError("do_replace() missing a required argument: old and new")
	}
	n := -1
	if p[2].k != kMissing && !p[2].isNone() {
		var err error
		if n, err = wantInt("replace", p[2], -1); err != nil {
			return v, err
		}
	}
	var s [3]string
	for i, x := range []Value{v, p[0], p[1]} {
		var err error
		if s[i], err = r.str(x); err != nil {
			return v, err
		}
	}
	out, err := r.replace(s[0], s[1], s[2], n)
	return String(out), err
}

func filterIndent(r *run, v Value, a args) (Value, error) {
	var p [3]Value
	if err := a.bind("indent", p[:], "width", "first", "blank"); err != nil {
		return v, err
	}
	indention := "    "
	if p[0].isStr() {
		indention = p[0].text()
	} else {
		n, err := wantInt("indent", p[0], 4)
		if err == nil {
			err = r.room(max(0, n), "filter 'indent'")
		}
		if err != nil {
			return v, err
		}
		indention = strings.Repeat(" ", max(0, n))
	}
	v, err := r.softStr(v)
	if err != nil {
		return v, err
	}
	first, blank := truth(p[1]), truth(p[2])
	s := v.text() + "\n"
	if blank { // blank lines are indented too; the newline just added ends the text
		parts := splitLines(v.text(), false)
		if strings.HasSuffix(v.text(), "\n") || v.n == 0 {
			parts = append(parts, "")
		}
		s, err = r.joinParts(parts, "\n"+indention)
	} else {
		s, err = r.indentLines(splitLines(s, false), indention)
	}
	if first {
		s = indention + s
	}
	return v.like(s), err
}

// indentLines joins lines, all but the first and the empty ones indented.
func (r *run) indentLines(lines []string, indention string) (string, error) {
	size := 0
	for _, l := range lines {
		size += len(l) + 1 + len(indention)
	}
	if err := r.room(size, "filter 'indent'"); err != nil {
		return "", err
	}
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteByte('\n')
			if l != "" {
				b.WriteString(indention)
			}
		}
		b.WriteString(l)
	}
	return b.String(), nil
}

func filterFormat(r *run, v Value, a args) (Value, error) {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		return v, errorf("FilterArgumentError", "can't handle positional and keyword arguments at the same time")
	}
	v, err := r.softStr(v)
	if err != nil {
		return v, err
	}
	if len(a.kw) > 0 {
		d := NewDict(len(a.kw))
		for _, k := range a.kw {
			d.Set(k.name, k.val)
		}
		return r.percent(v, FromDict(d))
	}
	return r.percent(v, Tuple(a.pos...))
}

func filterCenter(r *run, v Value, a args) (Value, error) {
	var p [1]Value
	if err := a.bind("center", p[:], "width"); err != nil {
		return v, err
	}
	width, err := wantInt("center", p[0], 80)
	if err != nil {
		return v, err
	}
	v, err = r.softStr(v)
	if err != nil {
		return v, err
	}
	s, err := r.pad(v.text(), width, " ", "center")
	return v.like(s), err
}
