package batch

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// encode is what the backend sends for these experts.
func encode(experts ...int32) []byte {
	var raw []byte
	for _, e := range experts {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(e))
	}
	return []byte(base64.StdEncoding.EncodeToString(raw))
}

// routedRow has 2 prompt tokens, 2 sampled ones, and an observation of 2: 5 positions, of which the
// backend computed 3. Its model has one layer and takes the best two experts.
func routedRow(pieces ...ExpertPiece) []Row {
	return []Row{{
		Session: "session-1",
		Pieces: []Piece{
			{Tokens: []int32{1, 2}}, {Tokens: []int32{3, 4}, Logprobs: []float32{-1, -1}}, {Tokens: []int32{5, 6}},
		},
		PromptLen: 2, TurnTable: []Turn{{Start: 2, Len: 2}},
		Experts: &Experts{Layers: 1, TopK: 2, Pieces: pieces},
	}}
}

func TestRoutedExperts(t *testing.T) {
	for name, pieces := range map[string][]ExpertPiece{
		"one answer":  {{0, encode(10, 11, 12, 13, 14, 15)}},
		"two answers": {{0, encode(10, 11)}, {1, encode(12, 13, 14, 15)}},
		"an overlap":  {{0, encode(10, 11, 90, 91, 14, 15)}, {1, encode(12, 13)}},
		"an empty answer, of an attempt aborted in the queue": {{0, nil}, {0, encode(10, 11, 12, 13, 14, 15)}},
	} {
		heap := &dirtyHeap{}
		b, err := Build(heap, 1, 0, routedRow(pieces...))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := View[int32](b, "routed_experts"), []int32{10, 11, 12, 13, 14, 15, 0, 1, 0, 1}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		expect(t, b, "routed_experts_shape", []int32{1, 2})
	}
}

func TestWrongRoutedExpertsNameTheSession(t *testing.T) {
	none := routedRow()
	none[0].Experts = nil
	other := routedRow(ExpertPiece{0, encode(10, 11, 12, 13, 14, 15)})
	other[0].Experts.TopK = 1
	good := routedRow(ExpertPiece{0, encode(10, 11, 12, 13, 14, 15)})
	for want, rows := range map[string][]Row{
		"2 positions, expected at least 3":          routedRow(ExpertPiece{0, encode(10, 11, 12, 13)}),
		"24 bytes from position 3 on":               routedRow(good[0].Experts.Pieces[0], ExpertPiece{3, encode(1, 2, 3, 4, 5, 6)}),
		"12 bytes from position 0 on, expected a m": routedRow(ExpertPiece{0, encode(10, 11, 12)}),
		"piece 0 starts at position 1":              routedRow(ExpertPiece{1, encode(10, 11)}),
		"piece 0 starts at position -1":             routedRow(ExpertPiece{-1, encode(10, 11)}),
		"no multiple of 4":                          routedRow(ExpertPiece{0, []byte("abc")}),
		"line breaks":                               routedRow(ExpertPiece{0, []byte(strings.Repeat("\n", 32))}),
		"illegal base64":                            routedRow(ExpertPiece{0, []byte(strings.Repeat("!", 32))}),
		"some rows have routed experts":             {good[0], none[0]},
		"and some have none":                        {none[0], good[0]},
		"those of the first row":                    {good[0], other[0]},
	} {
		heap := &dirtyHeap{}
		_, err := Build(heap, 1, 0, rows)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "session-1") {
			t.Errorf("%v, want %q and the session", err, want)
		}
		if heap.live != 0 {
			t.Errorf("%s: an arena is left", want)
		}
	}
}

// Any length, into the middle of other bytes: nothing around it may change.
func TestDecodeStaysInItsPlace(t *testing.T) {
	for n := range 300 {
		raw := make([]byte, n)
		for i := range raw {
			raw[i] = byte(i*37 + n)
		}
		text := []byte(base64.StdEncoding.EncodeToString(raw))
		if size, err := DecodedLen(text); size != n || err != nil {
			t.Fatalf("decoded length %d, %v, want %d", size, err, n)
		}
		memory := bytes.Repeat([]byte{0xEE}, n+128)
		if err := decode(memory[64:64+n], text); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		around := append(bytes.Clone(memory[:64]), memory[64+n:]...)
		if !bytes.Equal(memory[64:64+n], raw) || !bytes.Equal(around, bytes.Repeat([]byte{0xEE}, 128)) {
			t.Fatalf("%d bytes were decoded wrong, or beside their place", n)
		}
	}
}
