// Package tokenizer says what the engine asks of a tokenizer. The Hugging Face one (cgo)
// is in hf/; bytetok/ is a byte-level one in plain Go for the simulator's built-in model
// and for tests.
//
// What may enter: text and ids. What it never does: chat formats, templates, I/O beyond
// loading its own file.
package tokenizer

// An AddedToken is a token listed beside the model's vocabulary (added_tokens of a
// tokenizer.json, added_tokens_decoder of a tokenizer_config.json). The flags are those of
// the tokenizers library.
type AddedToken struct {
	ID         int32
	Content    string
	Special    bool // kept out of text by Encode
	SingleWord bool // found in text only where no word character touches it
	LStrip     bool // takes the white space before it along
	RStrip     bool // takes the white space behind it along
	Normalized bool // looked for after normalization instead of before
}

// A Tokenizer turns text into ids and back. All methods are safe for concurrent use.
type Tokenizer interface {
	// Encode returns the ids of plain text at the very start of a sequence. No BOS or EOS is
	// added, and the text of a special token (added token with special=true) is encoded as
	// ordinary text: only the chat format may write control tokens. Text that is not valid
	// UTF-8 is an error; a NUL byte is text like any other.
	Encode(text string) ([]int32, error)
	// EncodeInner is Encode for text that follows other tokens: without what some tokenizers
	// put before the first word of a sequence.
	EncodeInner(text string) ([]int32, error)
	// EncodeBatch encodes each text as EncodeInner does and returns the results in order. A
	// large batch is spread over the CPUs. On an error it returns that of the first bad text,
	// with its number.
	EncodeBatch(texts []string) ([][]int32, error)
	// Decode returns the text of ids with special tokens spelled out. Bytes that do not form
	// UTF-8 become U+FFFD; ids outside the vocabulary are an error.
	Decode(ids []int32) (string, error)
	// DecodeBytes returns the bytes that ids stand for, also when they begin or end within a
	// character. Ids are taken as following others: the bytes of a sequence are those of its
	// parts put together, and a space that Decode drops at the start of a text stays.
	DecodeBytes(ids []int32) ([]byte, error)
	// TokenID returns the id of a token by its exact vocabulary or added-token spelling.
	TokenID(token string) (int32, bool)
	// Token returns the vocabulary's or the added token's spelling of an id.
	Token(id int32) (string, bool)
	// AddedTokens returns the added tokens, lowest id first. The caller owns the slice.
	AddedTokens() []AddedToken
	// VocabSize is the number of ids including added tokens.
	VocabSize() int
	// Close frees the tokenizer. Calls of Encode and Decode after it return an error.
	Close() error
}
