package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// An entry is an added token as a tokenizer.json writes it.
type entry struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

func (e entry) token() tokenizer.AddedToken {
	return tokenizer.AddedToken{ID: e.ID, Content: e.Content, Special: e.Special, SingleWord: e.SingleWord,
		LStrip: e.LStrip, RStrip: e.RStrip, Normalized: e.Normalized}
}

func entryOf(t tokenizer.AddedToken) entry {
	return entry{ID: t.ID, Content: t.Content, SingleWord: t.SingleWord, LStrip: t.LStrip, RStrip: t.RStrip,
		Normalized: t.Normalized, Special: t.Special}
}

// readAdded reads the member added_tokens. Like the library it passes over tokens without
// content, and of a token listed twice it takes the later flags, but special from either.
func readAdded(raw []byte) ([]tokenizer.AddedToken, error) {
	var entries []entry
	if !absent(raw) {
		if err := json.Unmarshal(raw, &entries); err != nil {
			return nil, fmt.Errorf("added_tokens: %w", err)
		}
	}
	var list []tokenizer.AddedToken
	at := map[string]int{}
	for _, e := range entries {
		i, twice := at[e.Content]
		switch {
		case e.Content == "":
		case twice:
			e.Special = e.Special || list[i].Special
			list[i] = e.token()
		default:
			at[e.Content] = len(list)
			list = append(list, e.token())
		}
	}
	return list, nil
}

// override gives the entries of a tokenizer_config.json precedence over the file's list, as
// transformers does: known contents get other flags, the others are appended by their ids.
func override(list, entries []tokenizer.AddedToken) []tokenizer.AddedToken {
	at := map[string]int{}
	for i, token := range list {
		at[token.Content] = i
	}
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b tokenizer.AddedToken) int { return cmp.Compare(a.ID, b.ID) })
	out := slices.Clone(list)
	for _, e := range entries {
		i, known := at[e.Content]
		switch {
		case e.Content == "":
		case known:
			e.ID = out[i].ID
			out[i] = e
		default:
			at[e.Content] = len(out)
			out = append(out, e)
		}
	}
	return out
}

// checkAppended refuses a token that only the options name if it did not get the id they say:
// the model was trained with that id.
func checkAppended(v *vocabulary, file, entries []tokenizer.AddedToken) error {
	known := map[string]bool{"": true}
	for _, token := range file {
		known[token.Content] = true
	}
	for _, e := range entries {
		if id := v.ids[e.Content]; !known[e.Content] && id != e.ID {
			return fmt.Errorf("tokenizer_config.json gives the added token %q the id %d, but behind the tokens of this file "+
				"it gets %d: add it to added_tokens of the file, or correct the id", e.Content, e.ID, id)
		}
	}
	return nil
}

// A document is a tokenizer.json whose parts are found and not read.
type document struct {
	data    []byte
	fields  map[string][]byte
	addedAt int // where the value of added_tokens begins
}

func newDocument(data []byte) (*document, error) {
	d := &document{data: data, fields: map[string][]byte{}}
	err := walk(data, func(name string, value []byte, at int) error {
		d.fields[name] = value
		if name == addedField {
			d.addedAt = at
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	return d, nil
}

const addedField = "added_tokens"

// withAdded returns the document's bytes with another list of added tokens. All else stays as
// it is, byte for byte.
func (d *document) withAdded(list []tokenizer.AddedToken) ([]byte, error) {
	entries := make([]entry, 0, len(list))
	for _, token := range list {
		entries = append(entries, entryOf(token))
	}
	added, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	if old, ok := d.fields[addedField]; ok {
		return slices.Concat(d.data[:d.addedAt], added, d.data[d.addedAt+len(old):]), nil
	}
	start := bytes.IndexByte(d.data, '{') + 1
	return slices.Concat(d.data[:start], []byte(`"added_tokens":`), added, []byte(","), d.data[start:]), nil
}
