//go:build cgo && !relax_nohf

package hf

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/daulet/tokenizers"
)

// These tests use daulet/tokenizers directly: the shim must serve all of it.

func TestShimServesEveryAttribute(t *testing.T) {
	tok, err := tokenizers.FromFile(tinychat)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tok.EncodeWithOptionsErr("hé<|im_end|>", true, tokenizers.WithReturnAllAttributes())
	if err != nil {
		t.Fatal(err)
	}
	end := len(got.IDs) - 1
	if got.Tokens[end] != "<|im_end|>" || got.IDs[end] != 2041 {
		t.Errorf("FromFile does not recognise special tokens: %+v", got)
	}
	for name, n := range map[string]int{
		"type ids": len(got.TypeIDs), "mask": len(got.SpecialTokensMask), "attention": len(got.AttentionMask),
		"tokens": len(got.Tokens), "offsets": len(got.Offsets),
	} {
		if n != len(got.IDs) {
			t.Errorf("%d %s for %d ids", n, name, len(got.IDs))
		}
	}
	if first, last := got.Offsets[0], got.Offsets[end]; first[0] != 0 || last[1] != 13 {
		t.Errorf("offsets %v: want bytes, 0 to 13", got.Offsets)
	}
	ids, tokens := tok.Encode("a", false)
	if len(ids) != 1 || !slices.Equal(tokens, []string{"a"}) {
		t.Errorf("Encode = %v, %v", ids, tokens)
	}
	if text, err := tok.DecodeErr(got.IDs, true); err != nil || text != "hé" {
		t.Errorf("Decode without specials = %q, %v", text, err)
	}
	if err := tok.Close(); err != nil {
		t.Error(err)
	}
}

func TestShimTruncates(t *testing.T) {
	data, err := os.ReadFile(tinychat)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizers.FromBytesWithTruncation(data, 2, tokenizers.TruncationDirectionLeft)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tok.EncodeWithOptionsErr("1234", false, tokenizers.WithReturnTokens())
	if err != nil || !slices.Equal(got.Tokens, []string{"3", "4"}) {
		t.Errorf("Encode = %v, %v; want the last two digits", got.Tokens, err)
	}
	if err := tok.Close(); err != nil {
		t.Error(err)
	}
	if _, err := tokenizers.FromBytesWithTruncation(data, 2, tokenizers.TruncationDirection(7)); err == nil {
		t.Error("direction 7 gives no error")
	}
}

func TestShimHasNoTiktoken(t *testing.T) {
	if _, err := tokenizers.FromTiktoken("a", "b", "c"); err == nil || !strings.Contains(err.Error(), "not built in") {
		t.Errorf("FromTiktoken: %v", err)
	}
}

func TestShimReportsAFailedEncode(t *testing.T) {
	tok, err := tokenizers.FromFile(tinychat)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tok.EncodeWithOptionsErr("a\xff", false); err == nil {
		t.Errorf("invalid UTF-8 became %v", got.IDs)
	}
	if err := tok.Close(); err != nil {
		t.Error(err)
	}
}
