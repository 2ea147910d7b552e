package sglangtest

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
)

// Experts is the shape of a mixture-of-experts model: Layers with Count experts each, TopK of
// which see a token.
type Experts struct {
	Layers int `json:"layers"`
	TopK   int `json:"top_k"`
	Count  int `json:"count"`
}

// Routed is the expert at slot of a layer for the token at a position: a number in
// [0, Count) that a test can compute, different for the slots of one layer.
func (e Experts) Routed(position, layer, slot int, token int32) int32 {
	h := mix(uint64(position)<<32 ^ uint64(layer)<<16 ^ uint64(uint32(token))*0x9e3779b97f4a7c15)
	return int32((h%uint64(e.Count) + uint64(slot)) % uint64(e.Count))
}

// appendExperts appends routed_experts: base64 of little-endian int32 for the positions
// [start, prompt+output−1), layers and slots.
func (r *run) appendExperts(b []byte) []byte {
	e := r.server.cfg.Experts
	last := len(r.prompt) + len(r.said) - 1
	var raw []byte
	for position := r.req.ExpertsStart; position < last; position++ {
		token := r.at(position)
		for layer := range e.Layers {
			for slot := range e.TopK {
				raw = binary.LittleEndian.AppendUint32(raw, uint32(e.Routed(position, layer, slot, token)))
			}
		}
	}
	b = append(b, `,"routed_experts":`...)
	return strconv.AppendQuote(b, base64.StdEncoding.EncodeToString(raw))
}

// at is the token at a position of prompt and reply.
func (r *run) at(position int) int32 {
	if position < len(r.prompt) {
		return r.prompt[position]
	}
	return r.said[position-len(r.prompt)]
}
