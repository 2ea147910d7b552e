//go:build linux

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"unicode/utf8"
)

// An Output is what an agent left for training.
type Output struct {
	// Explicit is set when the agent named contexts: Records then has at least one element, and
	// Metadata and Reward are those of the records. Otherwise the Session's one committed
	// conversation is meant.
	Explicit bool
	Records  []Record
	// Metadata is a JSON object, nil if the agent wrote none.
	Metadata json.RawMessage
	// Reward is nil if the agent wrote none or null.
	Reward *Reward
	// Warnings name keys that were ignored, in file order.
	Warnings []string
}

// A Record is one context chosen for training. Raw fields are nil if absent or null.
type Record struct {
	// Name is not empty and unique in the Output.
	Name string
	// Messages is a JSON list, its elements unchecked.
	Messages json.RawMessage
	// Tools is a JSON list, ChatTemplateKwargs and Metadata are JSON objects.
	Tools, ChatTemplateKwargs, Metadata json.RawMessage
	Reward                              *Reward
}

// An OutputError says what is wrong in an output file and where.
type OutputError struct {
	// File is the file's base name, Line counts from 1.
	File string
	Line int
	// Record is the name of the record at fault, "" if the fault lies in no record or before its
	// name.
	Record string
	// Field is the path of the field, "" for the line as such.
	Field string
	// Problem says what was expected and what was found.
	Problem string
}

func (e *OutputError) Error() string {
	place := fmt.Sprintf("%s line %d", e.File, e.Line)
	if e.Record != "" {
		place += fmt.Sprintf(", record %q", shorten(e.Record, 64))
	}
	if e.Field == "" {
		return place + ": " + e.Problem
	}
	return place + ": field " + e.Field + ": " + e.Problem
}

// readOutputFile reads the file, if there is one, and parses it.
func readOutputFile(path string, limit int64) (Output, error) {
	f, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Output{}, nil
	}
	if err != nil {
		return Output{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Output{}, err
	}
	name := filepath.Base(path)
	if st.Size() > limit {
		return Output{}, fmt.Errorf("%s has %d bytes, more than the limit of %d: write fewer records or less metadata", name, st.Size(), limit)
	}
	data := make([]byte, st.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return Output{}, err
	}
	return ParseOutput(name, data)
}

// ParseOutput reads the text of an output file called name.
//
//   - Blank: implicit export without reward.
//   - One JSON object without "messages": implicit export with "metadata" (object) and "reward"
//     (null, number, boolean, object).
//   - One JSON object with "messages": one record.
//   - Otherwise JSON Lines: each line that is not blank is a record.
//
// A JSON list or a bare value is refused. Unknown keys become warnings. Errors are [*OutputError].
func ParseOutput(name string, data []byte) (Output, error) {
	p := outputParser{file: name, seen: map[string]int{}}
	if err := p.checkUTF8(data); err != nil {
		return Output{}, err
	}
	data = bytes.TrimPrefix(data, []byte("\xEF\xBB\xBF"))
	text := bytes.TrimSpace(data)
	if len(text) == 0 {
		return Output{}, nil
	}
	p.line = 1 + bytes.Count(data[:bytes.Index(data, text)], []byte("\n"))
	whole, err := p.decode(text)
	if err == nil {
		if err := p.checkBounds(text); err != nil {
			return Output{}, err
		}
		return p.document(whole)
	}
	if !errors.As(err, new(*json.SyntaxError)) {
		return Output{}, p.fail("", "%s", notAnObject(text))
	}
	return p.lines(data, err)
}

type outputParser struct {
	file   string
	line   int
	record string         // the name of the record being read, once it is known
	seen   map[string]int // record name → line
	out    Output
}

type object = map[string]json.RawMessage

func (p *outputParser) fail(field, format string, args ...any) error {
	return &OutputError{File: p.file, Line: p.line, Record: p.record, Field: field, Problem: fmt.Sprintf(format, args...)}
}

func (p *outputParser) checkUTF8(data []byte) error {
	if utf8.Valid(data) {
		return nil
	}
	line, at := 1, 0
	for at < len(data) {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		if r == '\n' {
			line++
		}
		at += size
	}
	p.line = line
	return p.fail("", "expected UTF-8, found byte 0x%02x at offset %d", data[at], at)
}

func (p *outputParser) decode(text []byte) (object, error) {
	var obj object
	if err := json.Unmarshal(text, &obj); err != nil {
		return nil, err
	}
	if obj == nil { // null decodes into a nil map without an error
		return nil, errNotAnObject
	}
	return obj, nil
}

// Bounds on what an agent writes: what hooks and the trainer get of it must be readable by any JSON
// library. Python's gives up at about 1,000 levels and at integers of 4,300 digits.
const (
	maxLevels = 200
	maxNumber = 1000
)

// checkBounds looks over JSON text that was decoded, outside its strings.
func (p *outputParser) checkBounds(text []byte) error {
	level, number := 0, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= '0' && c <= '9' || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E' {
			if number++; number > maxNumber {
				return p.fail("", "expected numbers of at most %d characters, found a longer one", maxNumber)
			}
			continue
		}
		number = 0
		switch c {
		case '{', '[':
			if level++; level > maxLevels {
				return p.fail("", "expected at most %d nested lists and objects, found more", maxLevels)
			}
		case '}', ']':
			level--
		case '"':
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return nil
}

var errNotAnObject = errors.New("not an object")

func notAnObject(text []byte) string {
	if text[0] == '[' {
		return "expected one JSON object, or one object a line (JSONL), found a JSON list"
	}
	return "expected a JSON object, found " + describe(text)
}

// document is a file that is one JSON object.
func (p *outputParser) document(obj object) (Output, error) {
	if _, ok := obj["messages"]; ok {
		if err := p.readRecord(obj); err != nil {
			return Output{}, err
		}
		return p.out, nil
	}
	var err error
	if p.out.Metadata, err = p.optional(obj, "metadata", '{'); err != nil {
		return Output{}, err
	}
	if p.out.Reward, err = p.reward(obj); err != nil {
		return Output{}, err
	}
	p.warnUnknown(obj, "metadata", "reward")
	return p.out, nil
}

// lines is a file of one record a line. whole says why it is not one JSON document.
func (p *outputParser) lines(data []byte, whole error) (Output, error) {
	first := true
	p.line = 0
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		p.line++
		text := bytes.TrimSpace(line)
		if len(text) == 0 {
			continue
		}
		obj, err := p.decode(text)
		if err != nil {
			return Output{}, p.badLine(text, err, first, data, whole)
		}
		if err := p.checkBounds(text); err != nil {
			return Output{}, err
		}
		first = false
		if err := p.readRecord(obj); err != nil {
			return Output{}, err
		}
	}
	return p.out, nil
}

// badLine explains a line that is no object. If it is the first, the file was probably meant as
// one document, so its fault as a document is given.
func (p *outputParser) badLine(text []byte, err error, first bool, data []byte, whole error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return p.fail("", "%s", notAnObject(text))
	}
	if first && errors.As(whole, &syntax) {
		lead := bytes.Index(data, bytes.TrimSpace(data))
		at := min(lead+int(syntax.Offset), len(data))
		p.line = 1 + bytes.Count(data[:max(at-1, 0)], []byte("\n"))
		return p.fail("", "expected JSON or JSONL: %v%s", syntax, hint(text))
	}
	return p.fail("", "expected one JSON object in each line (JSONL): %v%s", syntax, hint(text))
}

// hint explains what Python's json module writes and JSON does not know.
func hint(text []byte) string {
	for _, word := range []string{"NaN", "Infinity"} {
		if bytes.Contains(text, []byte(word)) {
			return "; " + word + " is not JSON, write null or a finite number"
		}
	}
	return ""
}

func (p *outputParser) readRecord(obj object) error {
	name, err := p.name(obj)
	if err != nil {
		return err
	}
	p.record = name
	rec := Record{Name: name}
	messages, ok := obj["messages"]
	if !ok {
		return p.fail("messages", "expected a list of messages, found nothing")
	}
	if messages[0] != '[' {
		return p.fail("messages", "expected a list of messages, found %s", describe(messages))
	}
	rec.Messages = messages
	for _, f := range []struct {
		key  string
		open byte
		dst  *json.RawMessage
	}{
		{"tools", '[', &rec.Tools},
		{"chat_template_kwargs", '{', &rec.ChatTemplateKwargs},
		{"metadata", '{', &rec.Metadata},
	} {
		if *f.dst, err = p.optional(obj, f.key, f.open); err != nil {
			return err
		}
	}
	if rec.Reward, err = p.reward(obj); err != nil {
		return err
	}
	p.warnUnknown(obj, "name", "messages", "tools", "chat_template_kwargs", "metadata", "reward")
	p.out.Explicit = true
	p.out.Records = append(p.out.Records, rec)
	p.record = ""
	return nil
}

func (p *outputParser) name(obj object) (string, error) {
	const want = "expected a non-empty string, unique in the file"
	raw, ok := obj["name"]
	if !ok {
		return "", p.fail("name", want+", found nothing")
	}
	var name string
	if raw[0] != '"' || json.Unmarshal(raw, &name) != nil || name == "" {
		return "", p.fail("name", want+", found %s", describe(raw))
	}
	if line, dup := p.seen[name]; dup {
		return "", p.fail("name", want+", found %s again, used in line %d", describe(raw), line)
	}
	p.seen[name] = p.line
	return name, nil
}

// optional returns a field that is a list or an object, as open says, absent or null.
func (p *outputParser) optional(obj object, key string, open byte) (json.RawMessage, error) {
	raw, ok := obj[key]
	if !ok || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != open {
		kind := "an object"
		if open == '[' {
			kind = "a list"
		}
		return nil, p.fail(key, "expected %s, found %s", kind, describe(raw))
	}
	return raw, nil
}

func (p *outputParser) reward(obj object) (*Reward, error) {
	raw, ok := obj["reward"]
	if !ok {
		return nil, nil
	}
	r, field, err := ParseReward(raw)
	if err != nil {
		if field != "" {
			field = "." + field
		}
		return nil, p.fail("reward"+field, "%v", err)
	}
	return r, nil
}

func (p *outputParser) warnUnknown(obj object, known ...string) {
	for _, key := range slices.Sorted(maps.Keys(obj)) {
		if !slices.Contains(known, key) {
			p.out.Warnings = append(p.out.Warnings, fmt.Sprintf("%s line %d: unknown key %q is ignored", p.file, p.line, shorten(key, 64)))
		}
	}
}

// describe names a JSON value's kind and shows the start of it.
func describe(raw []byte) string {
	kind := "the number"
	switch raw[0] {
	case '{':
		kind = "the object"
	case '[':
		kind = "the list"
	case '"':
		kind = "the string"
	case 't', 'f':
		kind = "the boolean"
	case 'n':
		return "null"
	}
	return kind + " " + shorten(string(raw), 40)
}
