package canon

import (
	"fmt"
	"strings"
	"testing"
)

// Every prefix of a conversation, and two that part in the middle, have the hash that hashing
// the whole text gives.
func TestReferenceChainIsTheHashOfEveryPrefix(t *testing.T) {
	tools := []ToolSpec{{Name: "f"}, {Name: "g"}}
	kwargs := ObjectOf(Member{"enable_thinking", BoolValue(false)})
	history := talk(20)
	for _, context := range []struct {
		tools  []ToolSpec
		kwargs Value
	}{{nil, ObjectOf()}, {nil, Value{}}, {tools, kwargs}} {
		chain := NewReferenceChain(context.tools, context.kwargs)
		for n := range len(history) + 1 {
			if got, want := chain.Sum(), ReferenceHash(history[:n], context.tools, context.kwargs); got != want {
				t.Fatalf("%d messages: %s, want %s", n, got, want)
			}
			if n == len(history) {
				break
			}
			fork := chain.Fork()
			other := NewMessage(Message{Role: User, Content: "another"})
			fork.Add(other)
			branch := append(append([]*Message{}, history[:n]...), other)
			if got, want := fork.Sum(), ReferenceHash(branch, context.tools, context.kwargs); got != want {
				t.Fatalf("branch at %d: %s, want %s", n, got, want)
			}
			chain.Add(history[n])
		}
	}
}

func talk(n int) []*Message {
	var out []*Message
	for i := range n {
		role := User
		if i%2 == 1 {
			role = Assistant
		}
		out = append(out, NewMessage(Message{Role: role, Content: fmt.Sprintf("message %d %s", i, strings.Repeat("text ", 400))}))
	}
	return out
}

// The hashes of all prefixes cost one pass: per byte as much at 400 messages as at 10.
func BenchmarkReferenceChain(b *testing.B) {
	for _, n := range []int{10, 400} {
		history := talk(n)
		var size int64
		for _, m := range history {
			size += int64(len(m.Content))
		}
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				chain := NewReferenceChain(nil, ObjectOf())
				for _, m := range history {
					chain.Add(m)
					_ = chain.Sum()
				}
			}
		})
	}
}
