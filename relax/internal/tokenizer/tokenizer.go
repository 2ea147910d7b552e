// Package tokenizer says what the engine asks of a tokenizer. The Hugging Face one (cgo)
// is in hf/; bytetok/ is a byte-level one in plain Go for the simulator's built-in model
// and for tests.
//
// What may enter: text and ids. What it never does: chat formats, templates, I/O beyond
// loading its own file.
package tokenizer

// A Tokenizer turns text into ids and back. All methods are safe for concurrent use.
type Tokenizer interface {
	// Encode returns the ids of plain text. No BOS or EOS is added, and the text of a special
	// token (added token with special=true) is encoded as ordinary text: only the chat
	// format may write control tokens. Text that is not valid UTF-8 is an error; a NUL byte
	// is text like any other.
	Encode(text string) ([]int32, error)
	// Decode returns the text of ids with special tokens spelled out. Bytes that do not form
	// UTF-8 become U+FFFD; ids outside the vocabulary are an error.
	Decode(ids []int32) (string, error)
	// TokenID returns the id of a token by its exact vocabulary or added-token spelling.
	TokenID(token string) (int32, bool)
	// VocabSize is the number of ids including added tokens.
	VocabSize() int
	// Close frees the tokenizer. Calls after it return an error.
	Close() error
}
