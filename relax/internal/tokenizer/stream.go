package tokenizer

// A Stream decodes ids as they come. It gives out a character once all its bytes are there,
// so no client ever sees the halves of one that two tokens share. All it has given out plus
// what Flush returns is the text of [Tokenizer.DecodeBytes] of all ids, which for byte-level
// vocabularies is [Tokenizer.Decode] of them.
//
// A Stream belongs to one goroutine.
type Stream struct {
	tokenizer Tokenizer
	pending   []byte // the beginning of a character
}

// NewStream returns a Stream that has seen no ids.
func NewStream(t Tokenizer) *Stream { return &Stream{tokenizer: t} }

// Next takes further ids and returns the text that is complete with them, often "". Bytes that
// cannot become UTF-8 any more are U+FFFD. After an error the Stream is as before the call.
func (s *Stream) Next(ids ...int32) (string, error) {
	raw, err := s.tokenizer.DecodeBytes(ids)
	if err != nil {
		return "", err
	}
	if len(s.pending) > 0 {
		raw = append(s.pending, raw...)
	}
	n := completeLen(raw)
	text := Text(raw[:n])
	s.pending = append(s.pending[:0], raw[n:]...)
	return text, nil
}

// Flush ends the text: it returns U+FFFD for the beginning of a character that never ended, or
// "". The Stream may then take the ids of another text.
func (s *Stream) Flush() string {
	text := Text(s.pending)
	s.pending = s.pending[:0]
	return text
}
