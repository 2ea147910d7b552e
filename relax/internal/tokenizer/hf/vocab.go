package hf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// maxID bounds the ids of a file, so that a broken one cannot ask for gigabytes.
const maxID = 1 << 24

// A kind says what an id is.
type kind uint8

const (
	unknown  kind = iota // not in the file
	ordinary             // may come out of text
	control              // never comes out of text
)

// A vocabulary is what the engine must know of a tokenizer.json beyond encoding.
type vocabulary struct {
	ids    map[string]int32
	tokens []string // spellings by id
	kinds  []kind   // by id
	added  []tokenizer.AddedToken
}

func (v *vocabulary) size() int { return len(v.ids) }

func (v *vocabulary) kind(id uint32) kind {
	if uint64(id) >= uint64(len(v.kinds)) {
		return unknown
	}
	return v.kinds[id]
}

// check refuses ids that the file does not have.
func (v *vocabulary) check(ids []int32) error {
	for at, id := range ids {
		if v.kind(uint32(id)) == unknown {
			return fmt.Errorf("id %d at position %d is outside the vocabulary of %d ids", id, at, v.size())
		}
	}
	return nil
}

// withID returns a listed token with the id it has here.
func (v *vocabulary) withID(token tokenizer.AddedToken) tokenizer.AddedToken {
	token.ID = v.ids[token.Content]
	return token
}

// newVocabulary joins the model's vocabulary and the added tokens, which it gives their ids by
// the rule of the tokenizers library, which does not read the file's "id": a token of the
// model's vocabulary keeps its id, the others are numbered on from the size of that vocabulary,
// in their order.
func newVocabulary(model []byte, list []tokenizer.AddedToken, isControl func(tokenizer.AddedToken) bool) (*vocabulary, error) {
	fields := map[string][]byte{}
	if !absent(model) {
		var err error
		if fields, err = members(model); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
	}
	ids, next, err := modelVocab(fields["vocab"])
	if err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	v := &vocabulary{ids: ids, added: slices.Clone(list)}
	for i := range v.added {
		token := &v.added[i]
		id, ok := ids[token.Content]
		if !ok {
			id = next
			next++
			ids[token.Content] = id
		}
		token.ID = id
	}
	if err := v.index(isControl); err != nil {
		return nil, err
	}
	if id, ok := unknownToken(fields, ids); ok && v.kind(uint32(id)) == control {
		v.kinds[id] = ordinary // text with unknown characters legitimately gives it
	}
	slices.SortFunc(v.added, func(a, b tokenizer.AddedToken) int { return cmp.Compare(a.ID, b.ID) })
	return v, nil
}

// index fills tokens and kinds. Where a model's ids have gaps and an added token was numbered
// onto one of them, the added token wins, as in the library.
func (v *vocabulary) index(isControl func(tokenizer.AddedToken) bool) error {
	highest := int32(-1)
	for token, id := range v.ids {
		if id < 0 || id >= maxID {
			return fmt.Errorf("token %q has id %d; want 0 to %d", token, id, maxID-1)
		}
		highest = max(highest, id)
	}
	v.tokens, v.kinds = make([]string, highest+1), make([]kind, highest+1)
	for token, id := range v.ids {
		v.tokens[id], v.kinds[id] = token, ordinary
	}
	for _, token := range v.added {
		v.tokens[token.ID] = token.Content
		if isControl(token) {
			v.kinds[token.ID] = control
		}
	}
	return nil
}

// modelVocab reads the two shapes of a vocabulary: token to id (BPE, WordPiece, WordLevel), or
// a list of [piece, score] whose ids are the positions (Unigram). It also returns the size that
// the library counts, which for a list that holds a piece twice is not the number of pieces.
func modelVocab(raw []byte) (ids map[string]int32, size int32, err error) {
	if absent(raw) {
		return nil, 0, errors.New("missing; want the tokenizer.json of a fast tokenizer")
	}
	ids = make(map[string]int32, len(raw)/16) // a guess near the truth for real files
	if raw[0] == '{' {
		err = walk(raw, func(token string, value []byte, _ int) error {
			id, err := strconv.ParseInt(string(value), 10, 32)
			if err != nil {
				return fmt.Errorf("token %q: expected an id below 2147483648, found %.20q", token, value)
			}
			ids[token] = int32(id)
			return nil
		})
		return ids, int32(len(ids)), err
	}
	var pieces [][2]json.RawMessage
	if err := json.Unmarshal(raw, &pieces); err != nil {
		return nil, 0, err
	}
	for i, piece := range pieces {
		var token string
		if err := json.Unmarshal(piece[0], &token); err != nil {
			return nil, 0, fmt.Errorf("piece %d: %w", i, err)
		}
		ids[token] = int32(i)
	}
	return ids, int32(len(pieces)), nil
}

// unknownToken returns the id that the model gives to what it cannot spell.
func unknownToken(model map[string][]byte, ids map[string]int32) (int32, bool) {
	var token string
	if raw := model["unk_token"]; !absent(raw) && json.Unmarshal(raw, &token) == nil {
		id, ok := ids[token]
		return id, ok
	}
	var id int32
	if raw := model["unk_id"]; !absent(raw) && json.Unmarshal(raw, &id) == nil && id >= 0 {
		return id, true
	}
	return 0, false
}
