package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// maxID bounds the ids of a file, so that a broken one cannot ask for gigabytes.
const maxID = 1 << 24

// A kind says what an id is.
type kind uint8

const (
	unknown  kind = iota // not in the file
	ordinary             // may come out of text
	control              // special added token: never comes out of text
)

// A vocabulary is what the engine must know of a tokenizer.json beyond encoding.
type vocabulary struct {
	ids   map[string]int32
	kinds []kind // by id
	added []AddedToken
}

func (v *vocabulary) size() int { return len(v.ids) }

func (v *vocabulary) kind(id uint32) kind {
	if uint64(id) >= uint64(len(v.kinds)) {
		return unknown
	}
	return v.kinds[id]
}

// spelling returns the content of an added token, "" if id is none.
func (v *vocabulary) spelling(id int32) string {
	for _, token := range v.added {
		if token.ID == id {
			return token.Content
		}
	}
	return ""
}

// The part of a tokenizer.json that is read here.
type tokenizerFile struct {
	AddedTokens []struct {
		Content string `json:"content"`
		Special bool   `json:"special"`
	} `json:"added_tokens"`
	Model struct {
		Vocab    json.RawMessage `json:"vocab"`
		UnkToken *string         `json:"unk_token"`
		UnkID    *int32          `json:"unk_id"`
	} `json:"model"`
}

// parseVocabulary reads the bytes of a tokenizer.json.
func parseVocabulary(data []byte) (*vocabulary, error) {
	var file tokenizerFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	ids, err := modelVocab(file.Model.Vocab)
	if err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	v := &vocabulary{ids: ids}
	special := v.addTokens(file)
	if err := v.sort(special); err != nil {
		return nil, err
	}
	if id, ok := unknownToken(file, ids); ok && v.kind(uint32(id)) == control {
		v.kinds[id] = ordinary // text with unknown characters legitimately gives it
	}
	return v, nil
}

// modelVocab reads the two shapes of a vocabulary: token to id (BPE, WordPiece, WordLevel), or
// a list of [piece, score] whose ids are the positions (Unigram).
func modelVocab(raw json.RawMessage) (map[string]int32, error) {
	switch raw = bytes.TrimSpace(raw); {
	case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		return nil, errors.New("missing; want the tokenizer.json of a fast tokenizer")
	case raw[0] == '{':
		var ids map[string]int32
		err := json.Unmarshal(raw, &ids)
		return ids, err
	}
	var pieces [][2]json.RawMessage
	if err := json.Unmarshal(raw, &pieces); err != nil {
		return nil, err
	}
	ids := make(map[string]int32, len(pieces))
	for i, piece := range pieces {
		var token string
		if err := json.Unmarshal(piece[0], &token); err != nil {
			return nil, fmt.Errorf("piece %d: %w", i, err)
		}
		ids[token] = int32(i)
	}
	return ids, nil
}

// addTokens gives added tokens their ids by the rule of the tokenizers library, which does not
// read the file's "id": a token of the model's vocabulary keeps its id, the others are numbered
// on from the size of that vocabulary, in the file's order. It returns the special spellings.
func (v *vocabulary) addTokens(file tokenizerFile) map[string]bool {
	special := map[string]bool{}
	next := int32(len(v.ids))
	listed := map[string]bool{}
	for _, token := range file.AddedTokens {
		if token.Content == "" {
			continue
		}
		special[token.Content] = special[token.Content] || token.Special
		if _, ok := v.ids[token.Content]; !ok {
			v.ids[token.Content] = next
			next++
		}
		if !listed[token.Content] {
			listed[token.Content] = true
			v.added = append(v.added, AddedToken{ID: v.ids[token.Content], Content: token.Content})
		}
	}
	for i := range v.added {
		v.added[i].Special = special[v.added[i].Content]
	}
	slices.SortFunc(v.added, func(a, b AddedToken) int { return int(a.ID) - int(b.ID) })
	return special
}

// sort fills kinds.
func (v *vocabulary) sort(special map[string]bool) error {
	highest := int32(-1)
	for token, id := range v.ids {
		if id < 0 || id >= maxID {
			return fmt.Errorf("token %q has id %d; want 0 to %d", token, id, maxID-1)
		}
		highest = max(highest, id)
	}
	v.kinds = make([]kind, highest+1)
	for token, id := range v.ids {
		if special[token] {
			v.kinds[id] = control
		} else if v.kinds[id] == unknown {
			v.kinds[id] = ordinary
		}
	}
	return nil
}

// unknownToken returns the id that the model gives to what it cannot spell.
func unknownToken(file tokenizerFile, ids map[string]int32) (int32, bool) {
	if file.Model.UnkToken != nil {
		id, ok := ids[*file.Model.UnkToken]
		return id, ok
	}
	if file.Model.UnkID != nil && *file.Model.UnkID >= 0 {
		return *file.Model.UnkID, true
	}
	return 0, false
}
