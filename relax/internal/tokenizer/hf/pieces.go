package hf

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// pieces are the bytes of every id, for decoders that work id by id.
type pieces struct {
	all   string
	ends  []uint32 // by id, into all
	exact bool     // the library's own decoder does nothing else
}

func (p *pieces) of(id int32) string {
	start := uint32(0)
	if id > 0 {
		start = p.ends[id-1]
	}
	return p.all[start:p.ends[id]]
}

// join returns the bytes of known ids.
func (p *pieces) join(ids []int32) []byte {
	size := 0
	for _, id := range ids {
		size += len(p.of(id))
	}
	out := make([]byte, 0, size)
	for _, id := range ids {
		out = append(out, p.of(id)...)
	}
	return out
}

// newPieces reads the member decoder, nil if its work cannot be cut into ids.
func newPieces(raw []byte, v *vocabulary) (*pieces, error) {
	if absent(raw) {
		return nil, nil
	}
	var decoder decoderJSON
	if err := json.Unmarshal(raw, &decoder); err != nil {
		return nil, err
	}
	steps := decoder.flat()
	var apply []func(string) string
	for i, step := range steps {
		f, ok := step.piecewise(i > 0 && steps[i-1].fuses())
		if !ok {
			return nil, nil
		}
		apply = append(apply, f)
	}
	p := &pieces{ends: make([]uint32, len(v.tokens)), exact: len(steps) == 1 && steps[0].Type == "ByteLevel"}
	var all strings.Builder
	for id, token := range v.tokens {
		for _, f := range apply {
			token = f(token)
		}
		all.WriteString(token)
		p.ends[id] = uint32(all.Len())
	}
	p.all = all.String()
	return p, nil
}

// A decoderJSON is a decoder of a tokenizer.json.
type decoderJSON struct {
	Type        string        `json:"type"`
	Decoders    []decoderJSON `json:"decoders"`    // Sequence
	Pattern     patternJSON   `json:"pattern"`     // Replace
	Content     string        `json:"content"`     // Replace, Strip
	Start       int           `json:"start"`       // Strip
	Stop        int           `json:"stop"`        // Strip
	Replacement string        `json:"replacement"` // Metaspace
}

type patternJSON struct {
	String string
	Regex  string
}

// flat returns the steps of a decoder in order.
func (d decoderJSON) flat() []decoderJSON {
	if d.Type != "Sequence" {
		return []decoderJSON{d}
	}
	var steps []decoderJSON
	for _, step := range d.Decoders {
		steps = append(steps, step.flat()...)
	}
	return steps
}

// fuses says whether the step joins all tokens, so that the next one sees the whole text.
func (d decoderJSON) fuses() bool { return d.Type == "Fuse" || d.Type == "ByteLevel" }

func same(token string) string { return token }

// piecewise returns what the step does to the bytes of one token that follows others, false if
// that depends on its neighbours.
func (d decoderJSON) piecewise(fused bool) (func(string) string, bool) {
	switch d.Type {
	case "ByteLevel":
		return byteLevel, true
	case "ByteFallback":
		return byteFallback, true
	case "Fuse":
		return same, true
	case "Metaspace":
		return func(token string) string { return strings.ReplaceAll(token, d.Replacement, " ") }, true
	case "Replace":
		// After a Fuse a longer pattern may lie across two tokens.
		ok := d.Pattern.String != "" && (!fused || utf8.RuneCountInString(d.Pattern.String) == 1)
		return func(token string) string { return strings.ReplaceAll(token, d.Pattern.String, d.Content) }, ok
	case "Strip":
		// After a Fuse it takes spaces from the start of the whole text alone.
		return same, fused && d.Stop == 0
	}
	return nil, false
}

// byteFallback turns <0x41> into its byte.
func byteFallback(token string) string {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return token
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	if err != nil {
		return token
	}
	return string([]byte{byte(b)})
}

// byteLevel turns the letters that byte-level vocabularies write for bytes back into bytes. A
// token with any other letter, such as most added ones, is its own text.
func byteLevel(token string) string {
	raw := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := letterByte(r)
		if !ok {
			return token
		}
		raw = append(raw, b)
	}
	return string(raw)
}

// letterByte is GPT-2's table: printable Latin-1 letters stand for themselves, the other 68
// bytes are numbered on from U+0100 in ascending order.
func letterByte(r rune) (byte, bool) {
	if r < 0x100 {
		return byte(r), printable(byte(r))
	}
	if at := int(r - 0x100); at < len(unprintable) {
		return unprintable[at], true
	}
	return 0, false
}

func printable(b byte) bool {
	return '!' <= b && b <= '~' || 0xA1 <= b && b != 0xAD
}

var unprintable = func() (list []byte) {
	for b := range 256 {
		if !printable(byte(b)) {
			list = append(list, byte(b))
		}
	}
	return list
}()
