package canon

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// A State names a conversation state: template arguments, tools and the messages so far. It
// is a chain of 64-bit hashes, so the states of all prefixes of a request cost one pass. Two
// conversations may share a State by chance: compare the messages on a hit.
type State uint64

// RootState is the state before the first message. Key order inside schemas and kwargs does
// not matter; the order of tools does.
func RootState(tools []ToolSpec, kwargs Value) State {
	s := State(sum(kwargs.AppendCanonical))
	for i := range tools {
		s = s.mix(tools[i].Hash())
	}
	return s.mix(uint64(len(tools)))
}

// Next is the state after one more message.
func (s State) Next(m *Message) State { return s.mix(m.hash) }

func (s State) mix(h uint64) State {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(s))
	binary.LittleEndian.PutUint64(b[8:], h)
	return State(xxhash.Sum64(b[:]))
}

// MergeKwargs overlays the template arguments over on base, member by member, and sorts the
// keys at every level. null counts as an empty object; the result is always an object.
func MergeKwargs(base, over Value) Value {
	o := objectBuilder{}
	for _, m := range base.members {
		o.add(m.Key, m.Value)
	}
	for _, m := range over.members {
		o.add(m.Key, m.Value)
	}
	return sortedKeys(o.value())
}

// sortedKeys returns v with the members of every object sorted by key.
func sortedKeys(v Value) Value {
	switch v.kind {
	case Array:
		elems := make([]Value, len(v.elems))
		for i := range elems {
			elems[i] = sortedKeys(v.elems[i])
		}
		return Value{kind: Array, elems: elems}
	case Object:
		members := make([]Member, len(v.members))
		for i, m := range sortedMembers(v.members) {
			members[i] = Member{m.Key, sortedKeys(m.Value)}
		}
		return Value{kind: Object, members: members}
	default:
		return v
	}
}
