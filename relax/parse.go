package relax

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// ParseConfig reads a configuration document: one JSON object whose keys are option names.
// An unknown option or a wrong type is an [*OptionError] naming it; null is the default.
func ParseConfig(data []byte) (Config, error) {
	var cfg Config
	if err := parseOptions(data, reflect.ValueOf(&cfg).Elem()); err != nil {
		return cfg, err
	}
	return cfg, refuseZeros(data)
}

// neverZero are options no engine can run with at zero. In a Config zero is the default, and is left
// out of a document made of it (omitzero); who writes it into a document means it.
func neverZero() (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if name, rest, _ := strings.Cut(field.Tag.Get("json"), ","); rest == "omitzero" {
			names = append(names, name)
		}
	}
	return names
}

// refuseZeros looks at a document that was parsed before.
func refuseZeros(data []byte) error {
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	for _, name := range neverZero() {
		if doc[name] == 0.0 {
			return &OptionError{Option: name, Problem: "expected a positive number, found 0; leave the option out for its default"}
		}
	}
	return nil
}

// parseOptions fills a struct of options from a document.
func parseOptions(data []byte, into reflect.Value) error {
	var doc map[string]json.RawMessage
	err := json.Unmarshal(data, &doc)
	if err != nil || doc == nil {
		return &OptionError{Option: "(configuration)", Problem: "expected one JSON object", Err: err}
	}
	fields := optionFields(into)
	names := make([]string, 0, len(doc))
	for name := range doc {
		names = append(names, name)
	}
	slices.Sort(names) // the first error is the same each time
	for _, name := range names {
		field, ok := fields[name]
		if !ok {
			return &OptionError{Option: name, Problem: "unknown option" + suggest(name, into.Type().Name(), fields)}
		}
		if err := setOption(field, doc[name]); err != nil {
			return &OptionError{Option: name, Problem: err.Error()}
		}
	}
	return nil
}

func optionFields(cfg reflect.Value) map[string]reflect.Value {
	fields := make(map[string]reflect.Value, cfg.NumField())
	for i := range cfg.NumField() {
		name, _, _ := strings.Cut(cfg.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = cfg.Field(i)
	}
	return fields
}

func setOption(field reflect.Value, raw json.RawMessage) error {
	err := json.Unmarshal(raw, field.Addr().Interface())
	if err == nil {
		return nil
	}
	found := string(raw)
	if len(found) > 60 {
		found = found[:60] + "…"
	}
	return fmt.Errorf("expected %s, found %s", spellType(field.Type()), found)
}

func spellType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return spellType(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Map:
		return "an object of " + strings.TrimPrefix(strings.TrimPrefix(spellType(t.Elem()), "a "), "an ") + " values"
	case reflect.Slice:
		return "a list of " + strings.TrimPrefix(strings.TrimPrefix(spellType(t.Elem()), "a "), "an ") + "s"
	}
	return t.String()
}

// decodeStrict decodes one JSON value and refuses unknown fields.
func decodeStrict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text after the value")
	}
	return nil
}

// suggest names the known option closest to name, if one is close, else where they are listed.
func suggest(name, list string, fields map[string]reflect.Value) string {
	best, bestDistance := "", 1+len(name)/3
	for known := range fields {
		if d := editDistance(name, known); d < bestDistance || (d == bestDistance && best != "" && known < best) {
			best, bestDistance = known, d
		}
	}
	if best == "" {
		return "; see relax." + list + " for the list"
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
