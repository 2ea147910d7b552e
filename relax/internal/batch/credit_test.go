package batch

import (
	"slices"
	"testing"
)

// Two contexts of one Session: the second holds the first's turn masked, as
// shared_prefix_loss=first has it.
func sharedRows() []Row {
	shared := Piece{Tokens: []int32{3, 4}}
	return []Row{
		{
			Pieces:    []Piece{{Tokens: []int32{1, 2}}, {Tokens: shared.Tokens, Logprobs: []float32{-1, -1}}},
			PromptLen: 2, SampleIndex: 7, PerTurn: true, Advantage: 3,
			TurnTable: []Turn{{Start: 2, Len: 2, Advantage: 3}},
		},
		{
			Pieces: []Piece{
				{Tokens: []int32{1, 2}}, shared, {Tokens: []int32{5}},
				{Tokens: []int32{6, 7, 8}, Logprobs: []float32{-1, -1, -1}}, {Tokens: []int32{9}},
			},
			PromptLen: 2, SampleIndex: 7, PerTurn: true, Advantage: -2,
			TurnTable: []Turn{{Start: 2, Len: 2, Advantage: 3, Masked: true}, {Start: 5, Len: 3, Advantage: -2}},
		},
		{ // another Session, with one number for the entire row
			Pieces: []Piece{
				{Tokens: []int32{1}}, {Tokens: []int32{2}, Logprobs: []float32{-1}}, {Tokens: []int32{3}},
			},
			PromptLen: 1, SampleIndex: 8, Advantage: 0.5, Status: Truncated,
			TurnTable: []Turn{{Start: 1, Len: 1, Advantage: 0.5}},
		},
	}
}

func TestCreditOfTurns(t *testing.T) {
	b, err := Build(&dirtyHeap{}, 1, 0, sharedRows())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, b, "advantages", []float32{
		0, 0, 3, 3,
		0, 0, 0, 0, 0, -2, -2, -2, 0,
		0, 0.5, 0.5, // the row's number on the observation too, as in the reference
	})
	expect(t, b, "turn_offsets", []int64{0, 1, 3, 4})
	expect(t, b, "turn_advantage", []float32{3, 3, -2, 0.5})
	expect(t, b, "turn_masked", []uint8{0, 1, 0, 0})
	expect(t, b, "loss_mask", []uint8{0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0})
	expect(t, b, "sample_index_mask_sums", []int64{5, 5, 1})
	expect(t, b, "response_lengths", []int64{2, 7, 2})
}

func TestMaskSumsDoNotDependOnTheOrderOfRows(t *testing.T) {
	rows := sharedRows()
	b, err := Build(&dirtyHeap{}, 1, 0, []Row{rows[0], rows[2], rows[1]})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, b, "sample_index_mask_sums", []int64{5, 1, 5})
}

func TestLongMasksAreAllOnes(t *testing.T) {
	for _, n := range []int{0, 1, len(ones) - 1, len(ones), len(ones) + 1, 3*len(ones) + 5} {
		mask := make([]uint8, n+1)
		fillOnes(mask[:n])
		if slices.Contains(mask[:n], 0) || mask[n] != 0 {
			t.Errorf("a mask of %d is not all ones, or goes on behind its end", n)
		}
	}
}
