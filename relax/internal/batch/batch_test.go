package batch

import (
	"errors"
	"math"
	"slices"
	"testing"
	"unsafe"
)

// dirtyHeap hands out aligned memory full of old bytes, as a pool does.
type dirtyHeap struct{ live int }

type heapArena struct {
	mem  []byte
	heap *dirtyHeap
}

func (h *dirtyHeap) Alloc(size int) (Arena, error) {
	h.live++
	raw := make([]byte, size+Align)
	for i := range raw {
		raw[i] = 0xA5
	}
	shift := int(-uintptr(unsafe.Pointer(&raw[0])) % Align)
	return &heapArena{raw[shift : shift+size], h}, nil
}

func (a *heapArena) Bytes() []byte { return a.mem }
func (a *heapArena) Free()         { a.heap.live-- }

func twoRows() []Row {
	return []Row{
		{
			Pieces: []Piece{
				{Tokens: []int32{1, 2, 3}},
				{Tokens: []int32{4, 5}, Logprobs: []float32{-0.5, -1}},
				{Tokens: []int32{6}},
				{Tokens: []int32{7}, Logprobs: []float32{-2}},
			},
			PromptLen: 3,
			Segments:  []Segment{{3, 1}, {6, 2}},
			TurnTable: []Turn{{Start: 3, Len: 2, Advantage: 0.5}, {Start: 6, Len: 1, Advantage: 0.5}},
			Reward:    1, RawReward: 1, Advantage: 0.5, GroupID: 9, SessionSeq: 0, SampleIndex: 18, Partition: 6, Turns: 2, Aborts: 1,
			Meta: []byte(`{"a":1}`),
		},
		{
			Pieces:    []Piece{{Tokens: []int32{8}}, {Tokens: []int32{9}, Logprobs: []float32{0}}},
			PromptLen: 1,
			Segments:  []Segment{{1, 2}},
			TurnTable: []Turn{{Start: 1, Len: 1, Advantage: -0.5}},
			Reward:    math.NaN(), RawReward: 1, Advantage: -0.5, GroupID: 9, SessionSeq: 1, SampleIndex: 19, Turns: 1, Status: Truncated,
			Meta: []byte(`{}`),
		},
	}
}

func TestBuild(t *testing.T) {
	heap := &dirtyHeap{}
	b, err := Build(heap, 4, 7, twoRows())
	if err != nil {
		t.Fatal(err)
	}
	if b.ID != 4 || b.RolloutID != 7 || b.Seqs != 2 || b.Tokens != 9 || b.Segments != 3 {
		t.Errorf("header = %+v", b)
	}
	expect(t, b, "offsets", []int64{0, 7, 9})
	expect(t, b, "cu_seqlens", []int32{0, 7, 9})
	expect(t, b, "tokens", []int32{1, 2, 3, 4, 5, 6, 7, 8, 9})
	expect(t, b, "logprobs", []float32{0, 0, 0, -0.5, -1, 0, -2, 0, 0})
	expect(t, b, "loss_mask", []uint8{0, 0, 0, 1, 1, 0, 1, 0, 1})
	expect(t, b, "prompt_len", []int32{3, 1})
	expect(t, b, "advantage", []float32{0.5, -0.5})
	expect(t, b, "group_id", []int64{9, 9})
	expect(t, b, "session_seq", []int32{0, 1})
	expect(t, b, "status", []int32{0, 1})
	expect(t, b, "turns", []int32{2, 1})
	expect(t, b, "aborts", []int32{1, 0})
	expect(t, b, "seg_offsets", []int64{0, 2, 3})
	expect(t, b, "seg_start", []int32{3, 6, 1})
	expect(t, b, "seg_weight_version", []int64{1, 2, 2})
	expect(t, b, "total_lengths", []int64{7, 2})
	expect(t, b, "response_lengths", []int64{4, 1})
	expect(t, b, "raw_reward", []float32{1, 1})
	expect(t, b, "sample_indices", []int64{18, 19})
	expect(t, b, "sample_index_mask_sums", []int64{3, 1})
	expect(t, b, "partition", []int64{6, 0})
	expect(t, b, "truncated", []int64{0, 1})
	expect(t, b, "turn_offsets", []int64{0, 2, 3})
	expect(t, b, "turn_start", []int32{3, 6, 1})
	expect(t, b, "turn_len", []int32{2, 1, 1})
	expect(t, b, "turn_advantage", []float32{0.5, 0.5, -0.5})
	expect(t, b, "turn_masked", []uint8{0, 0, 0})
	for _, name := range []string{"advantages", "routed_experts", "routed_experts_shape"} {
		if _, ok := b.Column(name); ok {
			t.Errorf("the batch has column %s, which nobody asked for", name)
		}
	}
	expect(t, b, "meta_offsets", []int64{0, 7, 9})
	expect(t, b, "meta_json", []uint8(`{"a":1}{}`))
	if r := View[float64](b, "reward"); r[0] != 1 || !math.IsNaN(r[1]) {
		t.Errorf("reward = %v, want [1 NaN]", r)
	}
	b.Release()
	b.Release() // twice is once
	if heap.live != 0 {
		t.Errorf("%d arenas are still live", heap.live)
	}
}

func expect[T interface {
	Number
	comparable
}](t *testing.T, b *Batch, name string, want []T) {
	t.Helper()
	if got := View[T](b, name); !slices.Equal(got, want) {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

func TestColumnsAreAlignedAndApart(t *testing.T) {
	b, err := Build(&dirtyHeap{}, 1, 0, twoRows())
	if err != nil {
		t.Fatal(err)
	}
	end := 0
	for _, c := range b.Columns {
		if c.Offset%Align != 0 || c.Offset < end {
			t.Errorf("column %s at %d: not aligned, or before %d", c.Name, c.Offset, end)
		}
		end = c.Offset + c.Size()
	}
	if end > len(b.Arena().Bytes()) {
		t.Errorf("columns end at %d, the arena at %d", end, len(b.Arena().Bytes()))
	}
}

func TestEmptyBatch(t *testing.T) {
	b, err := Build(&dirtyHeap{}, 1, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, b, "offsets", []int64{0})
	expect(t, b, "tokens", []int32(nil))
}

func TestAllocationFailureNamesTheRollout(t *testing.T) {
	_, err := Build(noMemory{}, 1, 3, twoRows())
	if !errors.Is(err, errNoMemory) {
		t.Fatalf("err = %v, want it to wrap the allocator's", err)
	}
}

var errNoMemory = errors.New("no memory")

type noMemory struct{}

func (noMemory) Alloc(int) (Arena, error) { return nil, errNoMemory }

func TestViewRefusesWrongType(t *testing.T) {
	b, err := Build(&dirtyHeap{}, 1, 0, twoRows())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a float32 view of int32 tokens did not panic")
		}
	}()
	View[float32](b, "tokens")
}
