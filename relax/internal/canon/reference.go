package canon

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
)

// ReferenceHash is the state hash of the public Python reference: lower-hex SHA-256 of the
// canonical JSON of {messages, template_kwargs, tools} (reference session service 3.1). It
// reads the whole history, so it is for dumps and traces only. Where our canonical form
// differs (text lists collapsed, unknown keys of tool calls gone) the hash is that of our form.
func ReferenceHash(messages []*Message, tools []ToolSpec, kwargs Value) string {
	c := NewReferenceChain(tools, kwargs)
	for _, m := range messages {
		c.Add(m)
	}
	return c.Sum()
}

// A ReferenceChain gives the [ReferenceHash] of every prefix of a conversation in one pass. The
// recipe writes messages before kwargs and tools, so what a prefix hashes is, up to its tail,
// what the next one does: a prefix costs its new messages, and kwargs and tools once more.
type ReferenceChain struct {
	digest hash.Cloner
	// tail is the text behind the messages.
	tail   []byte
	opened bool // has a message
	buffer []byte
}

// NewReferenceChain is the chain of the empty conversation.
func NewReferenceChain(tools []ToolSpec, kwargs Value) *ReferenceChain {
	tail := []byte(`],"template_kwargs":`)
	if kwargs.IsNull() {
		kwargs = ObjectOf()
	}
	tail = kwargs.AppendCanonical(tail)
	tail = append(tail, `,"tools":[`...)
	for i := range tools {
		if i > 0 {
			tail = append(tail, ',')
		}
		tail = tools[i].AppendCanonical(tail)
	}
	c := &ReferenceChain{digest: sha256.New().(hash.Cloner), tail: append(tail, `]}`...)}
	c.write([]byte(`{"messages":[`))
	return c
}

// Add appends a message to the conversation.
func (c *ReferenceChain) Add(m *Message) {
	c.buffer = c.buffer[:0]
	if c.opened {
		c.buffer = append(c.buffer, ',')
	}
	c.opened = true
	c.buffer = m.AppendCanonical(c.buffer)
	c.write(c.buffer)
}

// Sum is the hash of the conversation so far.
func (c *ReferenceChain) Sum() string {
	whole := clone(c.digest)
	_, _ = whole.Write(c.tail) // a hash takes every write
	return hex.EncodeToString(whole.Sum(nil))
}

// Fork returns a chain that goes on from here by itself.
func (c *ReferenceChain) Fork() *ReferenceChain {
	return &ReferenceChain{digest: clone(c.digest), tail: c.tail, opened: c.opened}
}

func (c *ReferenceChain) write(b []byte) { _, _ = c.digest.Write(b) }

// clone copies a digest; those of the standard library always can be.
func clone(digest hash.Cloner) hash.Cloner {
	copied, err := digest.Clone()
	if err != nil {
		panic("canon: a SHA-256 digest cannot be cloned: " + err.Error())
	}
	return copied
}
