//go:build cgo && !relax_nohf

package hf

// -L is relative to this file, so that a module with a replace directive finds the library
// too. --as-needed drops libstdc++, which daulet/tokenizers names and the shim does not use.

/*
#cgo LDFLAGS: -L${SRCDIR}/../../../../.cache/lib
#cgo linux LDFLAGS: -Wl,--as-needed
#cgo noescape hfshim_encode
#cgo nocallback hfshim_encode
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The shim's own symbol; see shim/src/direct.rs.
typedef struct { size_t len; char *error; } relax_tokenizers_ids;
relax_tokenizers_ids hfshim_encode(void *tokenizer, const uint8_t *text, size_t len,
	bool inner, uint32_t *ids, size_t room);
void tokenizers_free_string(char *string);
*/
import "C"

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"unsafe"

	"github.com/daulet/tokenizers"
)

// A native is a core over daulet/tokenizers, whose way to encode it does not use: that one
// takes four calls into C, copies the text and copies the ids twice.
type native struct {
	tokenizer *tokenizers.Tokenizer
	handle    unsafe.Pointer // of the library, owned by tokenizer
}

func openCore(data []byte) (core, error) {
	// The option's name is upside down: it means that special spellings are encoded as text.
	tokenizer, err := tokenizers.FromBytes(data, tokenizers.WithEncodeSpecialTokens())
	if err != nil {
		return nil, err
	}
	field := reflect.ValueOf(tokenizer).Elem().FieldByName("tokenizer")
	if field.Kind() != reflect.UnsafePointer {
		err := errors.New("this version of daulet/tokenizers keeps its handle elsewhere")
		return nil, errors.Join(err, tokenizer.Close())
	}
	return native{tokenizer, field.UnsafePointer()}, nil
}

const (
	shortText = 128     // bytes of text up to which only the result takes memory from the heap
	longText  = 1 << 20 // bytes of text from which memory for the ids is not kept
)

// rooms holds memory for the ids of texts between the two.
var rooms = sync.Pool{New: func() any { return new([]int32) }}

func (n native) encode(text string, inner bool) ([]int32, error) {
	if len(text) <= shortText {
		var room [shortText + spare]int32
		return n.encodeTo(room[:], text, inner)
	}
	if len(text) > longText {
		return n.encodeTo(make([]int32, len(text)+spare), text, inner)
	}
	room := rooms.Get().(*[]int32)
	defer rooms.Put(room)
	if want := len(text) + spare; len(*room) < want {
		*room = make([]int32, want)
	}
	return n.encodeTo(*room, text, inner)
}

// spare is room for what a normalizer may put before a text. Texts have fewer ids than bytes,
// other than after unusual normalizers, which encodeTo can handle.
const spare = 16

// encodeTo encodes with the help of room and returns a copy.
func (n native) encodeTo(room []int32, text string, inner bool) ([]int32, error) {
	count, err := n.call(room, text, inner)
	if err != nil {
		return nil, err
	}
	if count > len(room) {
		ids := make([]int32, count)
		_, err := n.call(ids, text, inner)
		return ids, err
	}
	ids := make([]int32, count)
	copy(ids, room)
	return ids, nil
}

// call writes the ids of text to room and returns their number, which may be larger.
func (n native) call(room []int32, text string, inner bool) (int, error) {
	got := C.hfshim_encode(n.handle,
		(*C.uint8_t)(unsafe.StringData(text)), C.size_t(len(text)), C.bool(inner),
		(*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(room))), C.size_t(len(room)))
	if got.error != nil {
		defer C.tokenizers_free_string(got.error)
		return 0, errors.New(strings.ToValidUTF8(C.GoString(got.error), "\uFFFD"))
	}
	return int(got.len), nil
}

func (n native) decode(ids []uint32) (string, error) {
	return n.tokenizer.DecodeErr(ids, false)
}

func (n native) vocabSize() int { return int(n.tokenizer.VocabSize()) }

func (n native) close() error { return n.tokenizer.Close() }
