// Package observe spells what the engine tells people: log lines, metric names and traces of
// Sessions, as the reference spells them, so that dashboards and greps keep working.
//
// What may enter: values to show, and a Session's forest when it is over. What it never does:
// write anywhere, keep time, or decide anything.
package observe

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Levels of a Line.
const (
	Info    = "INFO"
	Warning = "WARNING"
	Error   = "ERROR"
)

// A Field is one k=v of a log line.
type Field struct {
	Key   string
	Value any
}

// F makes a Field.
func F(key string, value any) Field { return Field{key, value} }

// A Line is one log event. Component and Event are empty for a plain status text.
type Line struct {
	Level     string
	Component string
	Event     string
	Text      string
	Fields    []Field
}

// Event is a Line with fields: AGENTIC <component> event=<event> k=v …
func Event(component, event string, fields ...Field) Line {
	return Line{Level: Info, Component: component, Event: event, Fields: fields}
}

// Status is a Line of plain text.
func Status(level, text string, fields ...Field) Line {
	return Line{Level: level, Text: text, Fields: fields}
}

// String is the line as operators grep for it (reference pipeline 7.1, uncoloured).
func (l Line) String() string {
	var b strings.Builder
	b.WriteString("AGENTIC")
	if l.Component != "" {
		b.WriteString(" " + l.Component)
	}
	if l.Event != "" {
		b.WriteString(" event=" + l.Event)
	}
	if l.Text != "" {
		b.WriteString(" " + l.Text)
	}
	for _, f := range l.Fields {
		fmt.Fprintf(&b, " %s=%v", f.Key, f.Value)
	}
	return plain(b.String())
}

// plain takes out what would steer a terminal: agents print colours, and causes quote them.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7F {
			return -1
		}
		return r
	}, text)
}

// AppendJSON appends {"level","component","event","text",fields…,"line"} in that order.
func (l Line) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"level":`...)
	dst = appendValue(dst, l.Level)
	for _, f := range []Field{{"component", l.Component}, {"event", l.Event}, {"text", l.Text}} {
		if f.Value != "" {
			dst = appendField(dst, f)
		}
	}
	for _, f := range l.Fields {
		dst = appendField(dst, f)
	}
	return append(appendField(dst, Field{"line", l.String()}), '}')
}

func appendField(dst []byte, f Field) []byte {
	dst = append(dst, ',')
	dst = appendValue(dst, f.Key)
	dst = append(dst, ':')
	return appendValue(dst, f.Value)
}

// appendValue falls back to text: a log line must not fail over one value.
func appendValue(dst []byte, v any) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		out, _ = json.Marshal(fmt.Sprint(v))
	}
	return append(dst, out...)
}
